"""Opens a capture with the reader of its format, which is told by its content."""

from __future__ import annotations

import numpy as np

from ingest.cycle_search import without_cycle_search
from ingest.processes import usable_cores
from ingest.readers.files import CaptureFile
from ingest.records import Trace


@without_cycle_search()
def open_trace(file: CaptureFile, jobs: int | None = None) -> Trace:
    """Open a capture by its content.

    Args:
        file: the capture.
        jobs: processes that may read a large Chrome trace at once, this one included; None for one per core.

    Raises:
        CaptureError: neither an xplane nor a Chrome trace, or damaged.
        HelperError: one of several processes was ended from outside.
    """
    _reuse_freed_memory()
    if file.is_json:
        from ingest.readers.chrome import read_chrome

        return read_chrome(file, jobs=usable_cores() if jobs is None else jobs)
    from ingest.readers.xplane import read_xplane

    return read_xplane(file)


def _reuse_freed_memory() -> None:
    """Keep glibc from giving freed memory back to the system, to get it again, page by page, with the next events.

    It keeps up to twice the size of the largest block freed so far, of those below 32 MB; one that is never touched
    costs nothing.
    """
    np.empty((32 << 20) - (1 << 16), np.uint8)
