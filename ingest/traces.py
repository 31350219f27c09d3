"""Opens a capture with the reader of its format, which is told by its content."""

from __future__ import annotations

from ingest.cycle_search import without_cycle_search
from ingest.freed_memory import MOST, keep_freed_memory
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
    keep_freed_memory(MOST)
    if file.is_json:
        from ingest.readers.chrome import read_chrome

        return read_chrome(file, jobs=usable_cores() if jobs is None else jobs)
    from ingest.readers.xplane import read_xplane

    return read_xplane(file)
