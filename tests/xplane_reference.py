"""What a capture holds according to protobuf's own parser, and according to our reader, in one comparable form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, Plane, Stat, StatKind, Trace
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import PlainStat, double_bits, xplane_messages, xplane_planes
from tracewarehouse.ingest.readers.xplane.reader import XPlaneTrace

MESSAGES = xplane_messages("tracewarehouse.tests")
INT64_MAX = (1 << 63) - 1
Value = tuple[str, int, object]
"""A stat: name, kind, and the value; a double as its bits, text as bytes."""


@dataclass(frozen=True)
class Event:
    """An event; `metadata_id` is None where the plane has no such metadata."""

    metadata_id: int | None
    start_ps: int
    duration_ps: int
    stats: tuple[Value, ...]


@dataclass
class Contents:
    """All that a capture holds; stats are ordered by name, those of one name as in the file.

    Planes with the descriptions of their stats, metadata with the ids of its children, lines with their display name,
    display id and duration.
    """

    planes: list[tuple[str, int, tuple[Value, ...], dict[int, tuple[str, str]]]]
    metadata: list[dict[int, tuple[str, str, tuple[Value, ...], tuple[int, ...]]]]
    lines: list[list[tuple[str, int, int, str, int, int]]]
    events: list[list[list[Event]]]

    @property
    def event_count(self) -> int:
        return sum(len(line) for plane in self.events for line in plane)


def read_xplane(path: Path | CaptureFile) -> XPlaneTrace:
    return XPlaneTrace(path if isinstance(path, CaptureFile) else CaptureFile(path))


def reference(data: bytes) -> Contents:
    """The capture as protobuf's own parser reads it.

    Raises:
        google.protobuf.message.DecodeError: it is not an XSpace.
    """
    out = Contents([], [], [], [])
    for p in xplane_planes(data):
        assert p.plane_id is not None
        described = {i: (name, description) for i, name, description in p.descriptions}
        out.planes.append((p.name, p.plane_id, _values(_decoded_texts(p.stats)), described))
        out.metadata.append(
            {
                m.metadata_id: (m.name, m.display_name, _values(_decoded_texts(m.stats)), tuple(m.children))
                for m in p.metadata
            }
        )
        lines = []
        for n in p.lines:
            assert n.says is not None
            display_name, display_id, timestamp_ns, duration_ps = n.says
            lines.append((n.name, n.line_id, timestamp_ns, display_name, display_id, duration_ps))
        out.lines.append(lines)
        out.events.append([[Event(i, at, duration, _values(s)) for i, at, duration, s in n.events()] for n in p.lines])
    return out


def _values(stats: list[PlainStat]) -> tuple[Value, ...]:
    """Stats in the comparable form: numbers as their 64 bits."""
    return _sorted(
        (n, int(k), double_bits(v) if isinstance(v, float) else v % (1 << 64) if isinstance(v, int) else v)
        for n, k, v in stats
    )


def _decoded_texts(stats: list[PlainStat]) -> list[PlainStat]:
    """Stats of planes and metadata, whose text is a str and so cannot hold invalid UTF-8."""
    return [
        (n, k, v.decode("utf-8", "replace").encode() if k == StatKind.STRING and isinstance(v, bytes) else v)
        for n, k, v in stats
    ]


def _sorted(stats: Iterable[Value]) -> tuple[Value, ...]:
    return tuple(sorted(stats, key=lambda s: s[0]))


def fits_int64(contents: Contents) -> bool:
    """Whether every event starts and ends within int64 picoseconds; the reader refuses others."""
    times = (t for p in contents.events for n in p for e in n for t in (e.start_ps, e.start_ps + e.duration_ps))
    return all(-INT64_MAX - 1 <= t <= INT64_MAX for t in times)


def decoded(trace: Trace) -> Contents:
    """The capture as our reader reads it; checks what a batch promises on the way."""
    out = Contents([], [], [], [])
    for plane in trace.planes:
        described = {i: (name, description) for i, name, description in plane.stat_descriptions}
        out.planes.append((plane.name, plane.plane_id, _plain(plane.stats), described))
        metadata = zip(plane.metadata_ids, plane.event_metadata, strict=True)
        out.metadata.append({i: (m.name, m.display_name, _plain(m.stats), m.children) for i, m in metadata})
        out.events.append([[e for b in trace.batches(plane, n) for e in _batch(plane, b)] for n in plane.lines])
        out.lines.append(
            [(n.name, n.line_id, n.timestamp_ns, n.display_name, n.display_id, n.duration_ps) for n in plane.lines]
        )
    return out


def _plain(stats: tuple[Stat, ...]) -> tuple[Value, ...]:
    out: list[Value] = []
    for s in stats:
        value: object = s.value
        if isinstance(s.value, float):
            value = double_bits(s.value)
        elif isinstance(s.value, int):
            value = s.value % (1 << 64)
        elif isinstance(s.value, str):
            value = s.value.encode()
        out.append((s.name, int(s.kind), value))
    return _sorted(out)


def _batch(plane: Plane, batch: EventBatch) -> list[Event]:
    columns = [s.name for s in batch.stats]
    assert len(set(columns)) == len(columns), "two stat columns have one name"
    stats: list[list[Value]] = [[] for _ in range(len(batch))]
    for column in batch.stats:
        assert (np.diff(column.rows) >= 0).all(), "rows of a stat column do not ascend"
        assert len(set(column.texts)) == len(column.texts), "texts of a stat column are not distinct"
        values = zip(column.rows.tolist(), column.kinds.tolist(), column.bits.tolist(), strict=True)
        for row, kind, bits in values:
            stats[row].append((column.name, kind, column.texts[bits] if kind >= StatKind.STRING else bits))
    columns_of = zip(batch.metadata.tolist(), batch.start_ps.tolist(), batch.duration_ps.tolist(), stats, strict=True)
    ids = plane.metadata_ids
    return [Event(None if m < 0 else ids[m], start, dur, _sorted(s)) for m, start, dur, s in columns_of]
