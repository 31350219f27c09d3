"""Keeps freed memory of arrays for later arrays."""

from __future__ import annotations

MOST = (32 << 20) - (1 << 16)
"""Bytes just below the largest block from which glibc learns."""
ROW_GROUP_OF_OPS = 16 << 20
"""Half of the bytes that a process that writes parts keeps: more than a row group of ops takes."""


def keep_freed_memory(block: int) -> None:
    """Let this process keep freed memory, up to twice `block` bytes, by making and freeing a block of that size.

    glibc returns memory that is freed at the end of its heap to the system, and takes it again page by page for the
    next events; with every row group, that is a quarter of the system's time. The memory that it keeps depends on the
    largest block that was freed so far; see M_MMAP_THRESHOLD in mallopt(3). No page of the block is touched.
    """
    import numpy as np

    np.empty(block, np.uint8)
