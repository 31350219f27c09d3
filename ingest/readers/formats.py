"""Opens a capture with the reader of its format, which is told by its content."""

from __future__ import annotations

from tracewarehouse.ingest.columns.records import Trace
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.processes.freed_memory import MOST, keep_freed_memory
from tracewarehouse.ingest.processes.pool import usable_cores
from tracewarehouse.ingest.readers.files import CaptureFile


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
        from tracewarehouse.ingest.readers.chrome.reader import read_chrome

        return read_chrome(file, jobs=usable_cores() if jobs is None else jobs)
    from tracewarehouse.ingest.readers.xplane.reader import read_xplane

    return read_xplane(file)
