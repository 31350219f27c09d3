"""Opens a capture with the reader of its format, which is told by its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingest.processes import usable_cores
from ingest.readers.chrome_helpers import Helpers
from ingest.readers.files import CaptureFile

if TYPE_CHECKING:
    from ingest.records import Trace


def open_trace(file: CaptureFile, jobs: int | None = None) -> Trace:
    """Open a capture by its content.

    Args:
        file: the capture.
        jobs: processes that may read a large Chrome trace at once, this one included; None for one per core.

    Raises:
        CaptureError: neither an xplane nor a Chrome trace, or damaged.
        HelperError: one of several processes was ended from outside.
    """
    head = file.head(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] in (b"{", b"["):
        with Helpers(file, usable_cores() if jobs is None else jobs) as helpers:
            from ingest.readers.chrome import ChromeTrace

            return ChromeTrace(file, helpers)
    from ingest.readers.xplane import read_xplane

    return read_xplane(file)


__all__ = ["open_trace"]
