"""What a Chrome trace holds according to `ingest.readers.chrome.plain`, and according to our reader, in one form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracewarehouse.ingest.columns.records import Line, Plane, StatKind, Trace
from tracewarehouse.ingest.readers.chrome.plain import chrome_planes as reference
from tracewarehouse.ingest.readers.chrome.reader import ChromeTrace
from tracewarehouse.ingest.readers.files import CaptureFile

__all__ = ["everything", "opened", "reference", "rows"]

Row = tuple[Any, ...]
"""An event: name, display name, metadata stats, start, duration, stats by name."""


def opened(path: Path, chunk: int | None = None, **options: float) -> ChromeTrace:
    """A trace, read in pieces of this size."""
    return ChromeTrace(CaptureFile(path, **options), chunk)


def rows(trace: Trace, plane: Plane, line: Line) -> list[Row]:
    """Events of a line as our reader reads them."""
    out: list[Row] = []
    for batch in trace.batches(plane, line):
        stats: list[list[tuple[str, StatKind, Any]]] = [[] for _ in range(len(batch))]
        for column in batch.stats:
            assert (column.rows[1:] >= column.rows[:-1]).all()
            assert len(set(column.texts)) == len(column.texts)
            for row, kind, bits in zip(column.rows.tolist(), column.kinds.tolist(), column.bits, strict=True):
                value: Any = int(bits)
                if kind >= StatKind.STRING:
                    value = column.texts[value].decode()
                elif kind == StatKind.INT64:
                    value = int(bits.view("<i8"))
                elif kind == StatKind.DOUBLE:
                    value = float(bits.view("<f8"))
                stats[row].append((column.name, StatKind(kind), value))
        for i in range(len(batch)):
            m = plane.event_metadata[batch.metadata[i]]
            shared = tuple((s.name, s.kind, s.value) for s in m.stats)
            times = int(batch.start_ps[i]), int(batch.duration_ps[i])
            out.append((m.name, m.display_name, shared, *times, sorted(stats[i], key=repr)))
    return out


def everything(trace: Trace) -> list[tuple[Any, ...]]:
    """All planes, lines and events as our reader reads them."""
    return [
        (plane.name, [(line.name, line.line_id, rows(trace, plane, line)) for line in plane.lines])
        for plane in trace.planes
    ]
