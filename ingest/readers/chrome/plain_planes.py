"""The planes of a Chrome trace that was read the plain way, as records to verify a run by."""

from __future__ import annotations

from collections.abc import Iterator

from tracewarehouse.ingest.readers.chrome.plain import ChromeEvent, ChromeStat, chrome_planes
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.plain import PlainLine, PlainPlane, PlainStat


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """The planes of a file, in file order.

    Raises:
        ValueError: it is no trace.
    """
    for name, lines in chrome_planes(file.read(0, file.size)):
        yield PlainPlane(name, lines=[_line(*line) for line in lines])


def _line(name: str, line_id: int, events: list[ChromeEvent]) -> PlainLine:
    rows = [(None, start, duration, list(map(_stat, stats))) for _, _, _, start, duration, stats in events]
    return PlainLine(name, line_id, lambda: iter(rows))


def _stat(stat: ChromeStat) -> PlainStat:
    name, kind, value = stat
    return name, kind, value.encode() if isinstance(value, str) else value
