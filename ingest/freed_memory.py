"""Keeps memory that arrays free for the arrays that follow."""

from __future__ import annotations

import numpy as np

_BLOCK = 16 << 20
"""Half of what is kept: more than a row group of ops takes, and below 32 MB, which glibc would not learn from."""


def keep_freed_memory() -> None:
    """Let this process keep up to twice as much freed memory as the block that is made and freed here.

    glibc gives what is freed at the end of its heap back to the system, and takes it anew page by page: with every row
    group, a quarter of the system's time. How much it keeps follows from the largest block that was freed; see
    M_MMAP_THRESHOLD in mallopt(3). No page of the block is touched.
    """
    np.empty(_BLOCK, np.uint8)
