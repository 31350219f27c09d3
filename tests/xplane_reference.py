"""What a capture holds according to protobuf's own parser, and according to our reader, in one comparable form."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, Plane, Stat, StatKind, Trace
from tracewarehouse.ingest.protobuf import Field, message_classes

# Text is read as bytes, so that invalid UTF-8 is not an error: captures do hold such text.
MESSAGES = message_classes(
    "tracewarehouse.tests",
    {
        "XStat": (
            Field(1, "metadata_id", "int64"),
            Field(2, "double_value", "double", oneof="value"),
            Field(3, "uint64_value", "uint64", oneof="value"),
            Field(4, "int64_value", "int64", oneof="value"),
            Field(5, "str_value", "bytes", oneof="value"),
            Field(6, "bytes_value", "bytes", oneof="value"),
            Field(7, "ref_value", "uint64", oneof="value"),
        ),
        "XEvent": (
            Field(1, "metadata_id", "int64"),
            Field(2, "offset_ps", "int64", oneof="data"),
            Field(5, "num_occurrences", "int64", oneof="data"),
            Field(3, "duration_ps", "int64"),
            Field(4, "stats", "XStat", is_repeated=True),
        ),
        "XLine": (
            Field(1, "id", "int64"),
            Field(10, "display_id", "int64"),
            Field(2, "name", "bytes"),
            Field(11, "display_name", "bytes"),
            Field(3, "timestamp_ns", "int64"),
            Field(9, "duration_ps", "int64"),
            Field(4, "events", "XEvent", is_repeated=True),
        ),
        "XEventMetadata": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(4, "display_name", "bytes"),
            Field(3, "metadata", "bytes"),
            Field(5, "stats", "XStat", is_repeated=True),
            Field(6, "child_id", "int64", is_repeated=True),
        ),
        "XStatMetadata": (Field(1, "id", "int64"), Field(2, "name", "bytes"), Field(3, "description", "bytes")),
        "EventMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XEventMetadata")),
        "StatMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XStatMetadata")),
        "XPlane": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(3, "lines", "XLine", is_repeated=True),
            Field(4, "event_metadata", "EventMetadataEntry", is_repeated=True),
            Field(5, "stat_metadata", "StatMetadataEntry", is_repeated=True),
            Field(6, "stats", "XStat", is_repeated=True),
        ),
        "XSpace": (Field(1, "planes", "XPlane", is_repeated=True),),
    },
)

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


def reference(data: bytes) -> Contents:
    """The capture as protobuf's own parser reads it.

    Raises:
        google.protobuf.message.DecodeError: it is not an XSpace.
    """
    out = Contents([], [], [], [])
    space = MESSAGES["XSpace"].FromString(data)
    origin = _origin(space)
    for p in space.planes:
        names = {e.key: _text(e.value.name) for e in p.stat_metadata}
        described = {e.key: (names[e.key], _text(e.value.description)) for e in p.stat_metadata if e.value.description}
        out.planes.append((_text(p.name), p.id, _decoded_texts(_stats(p.stats, names)), described))
        metadata = {}
        for e in p.event_metadata:
            m = e.value
            extra = (("metadata", int(StatKind.BYTES), m.metadata),) if m.metadata else ()
            metadata[e.key] = (
                _text(m.name),
                _text(m.display_name),
                _sorted((*_decoded_texts(_stats(m.stats, names)), *extra)),
                tuple(m.child_id),
            )
        out.metadata.append(metadata)
        out.lines.append(
            [(_text(n.name), n.id, n.timestamp_ns, _text(n.display_name), n.display_id, n.duration_ps) for n in p.lines]
        )
        zeros = [origin if n.timestamp_ns > INT64_MAX // 1000 else 0 for n in p.lines]
        out.events.append(
            [
                [_event(e, n.timestamp_ns - z, names, metadata) for e in n.events]
                for n, z in zip(p.lines, zeros, strict=True)
            ]
        )
    return out


def _origin(space: Any) -> int:
    """What absolute timestamps count from: the start of the profile, or the first where all are absolute; 0 else."""
    timestamps = [n.timestamp_ns for p in space.planes for n in p.lines if n.events]
    absolute = [n.timestamp_ns for p in space.planes for n in p.lines if n.timestamp_ns > INT64_MAX // 1000]
    for p in space.planes:
        if _text(p.name) == "Task Environment":
            names = {e.key: _text(e.value.name) for e in p.stat_metadata}
            found = {}
            for s in p.stats:
                which = s.WhichOneof("value")
                if which in ("int64_value", "uint64_value"):
                    found[names.get(s.metadata_id)] = getattr(s, which)
            if "profile_start_time" in found:
                return int(found["profile_start_time"])
            break
    return min(absolute) if absolute and all(t > INT64_MAX // 1000 for t in timestamps) else 0


def _event(e: Any, timestamp_ns: int, names: dict[int, str], metadata: dict[int, Any]) -> Event:
    stats = _stats(e.stats, names)
    if e.num_occurrences:
        stats = _sorted((*stats, ("num_occurrences", int(StatKind.INT64), e.num_occurrences % (1 << 64))))
    known = e.metadata_id if e.metadata_id in metadata else None
    if known is None:
        stats = _sorted((*stats, ("metadata_id", int(StatKind.INT64), e.metadata_id % (1 << 64))))
    return Event(known, timestamp_ns * 1000 + e.offset_ps, e.duration_ps, stats)


_KINDS = {
    "double_value": StatKind.DOUBLE,
    "uint64_value": StatKind.UINT64,
    "int64_value": StatKind.INT64,
    "str_value": StatKind.STRING,
    "bytes_value": StatKind.BYTES,
    "ref_value": StatKind.REF,
}


def _stats(messages: Any, names: dict[int, str]) -> tuple[Value, ...]:
    out = []
    for s in messages:
        which = s.WhichOneof("value")
        if which is None:
            continue
        value = getattr(s, which)
        if which == "ref_value":
            value = names.get(value, f"ref {value}").encode()
        elif which == "double_value":
            value = struct.unpack("<Q", struct.pack("<d", value))[0]
        elif which == "int64_value":
            value %= 1 << 64
        out.append((names.get(s.metadata_id, f"stat {s.metadata_id}"), int(_KINDS[which]), value))
    return _sorted(out)


def _decoded_texts(stats: tuple[Value, ...]) -> tuple[Value, ...]:
    """Stats of planes and metadata, whose text is a str and so cannot hold invalid UTF-8."""
    return tuple(
        (n, k, v.decode("utf-8", "replace").encode() if k == StatKind.STRING and isinstance(v, bytes) else v)
        for n, k, v in stats
    )


def _sorted(stats: Any) -> tuple[Value, ...]:
    return tuple(sorted(stats, key=lambda s: s[0]))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


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
            value = struct.unpack("<Q", struct.pack("<d", s.value))[0]
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
