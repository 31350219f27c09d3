"""Keeps memory that arrays free for the arrays that follow."""

from __future__ import annotations

import numpy as np

MOST = (32 << 20) - (1 << 16)
"""Just below the size of blocks from which glibc learns no more."""
ROW_GROUP_OF_OPS = 16 << 20
"""Half of what is kept by a process that writes parts: more than a row group of ops takes."""


def keep_freed_memory(block: int) -> None:
    """Let this process keep up to twice as much freed memory as the block, in bytes, that is made and freed here.

    glibc gives what is freed at the end of its heap back to the system, and takes it anew page by page with the next
    events: with every row group, a quarter of the system's time. How much it keeps follows from the largest block that
    was freed so far; see M_MMAP_THRESHOLD in mallopt(3). No page of the block is touched.
    """
    np.empty(block, np.uint8)
