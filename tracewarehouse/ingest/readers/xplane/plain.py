"""Reads an xplane.pb a second time: with protobuf's own parser, one event at a time.

This is slow, and separate from the reader: the proof of a run from its capture's bytes must not share its mistakes.
They share only the file itself, uncompressed and digested.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError

from tracewarehouse.ingest.columns.profiler_names import PROFILE_START, TASK_PLANE
from tracewarehouse.ingest.columns.records import StatKind
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.protobuf import Field, message_classes
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import XPLANE, file_format

PlainStat = tuple[str, StatKind, int | float | bytes]
"""Name, kind and value; text as bytes, references resolved."""
PlainEvent = tuple[int | None, int, int, list[PlainStat]]
"""Id of its metadata in the plane, start and duration in ps on the file's clock, and its own stats."""


@dataclass(frozen=True)
class PlainLine:
    """A line of a plane; `events` reads its events, in file order.

    `says` has display name, display id, timestamp and duration, if the format has them.
    """

    name: str
    line_id: int
    events: Callable[[], Iterator[PlainEvent]]
    says: tuple[str, int, int, int] | None = None


@dataclass(frozen=True)
class PlainMetadata:
    """Event metadata: its id, its content, and the ids of its children."""

    metadata_id: int
    name: str
    display_name: str
    stats: list[PlainStat]
    children: list[int]


@dataclass
class PlainPlane:
    """A plane: its stats and its lines; id, event metadata and described stats if the format has them."""

    name: str
    stats: list[PlainStat] = field(default_factory=list)
    lines: list[PlainLine] = field(default_factory=list)
    plane_id: int | None = None
    metadata: list[PlainMetadata] = field(default_factory=list)
    descriptions: list[tuple[int, str, str]] = field(default_factory=list)


def double_bits(value: float) -> int:
    """Return the 64 bits of a double."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


_INT64_MAX = (1 << 63) - 1


def xplane_messages(package: str, *, is_raw: bool = False) -> dict[str, Any]:
    """Make the message classes of an XSpace, by name; text is bytes, because captures hold text that is not UTF-8.

    Args:
        is_raw: leave planes, lines and events as bytes, so that only one at a time becomes an object.
    """
    plane, line, event = ("bytes",) * 3 if is_raw else ("XPlane", "XLine", "XEvent")
    fields = {
        "XSpace": (Field(1, "planes", plane, is_repeated=True),),
        "XPlane": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(3, "lines", line, is_repeated=True),
            Field(4, "event_metadata", "EventMetadataEntry", is_repeated=True),
            Field(5, "stat_metadata", "StatMetadataEntry", is_repeated=True),
            Field(6, "stats", "XStat", is_repeated=True),
        ),
        "StatMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XStatMetadata")),
        "XStatMetadata": (Field(1, "id", "int64"), Field(2, "name", "bytes"), Field(3, "description", "bytes")),
        "EventMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XEventMetadata")),
        "XEventMetadata": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(4, "display_name", "bytes"),
            Field(3, "metadata", "bytes"),
            Field(5, "stats", "XStat", is_repeated=True),
            Field(6, "child_id", "int64", is_repeated=True),
        ),
        "XLine": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(3, "timestamp_ns", "int64"),
            Field(4, "events", event, is_repeated=True),
            Field(9, "duration_ps", "int64"),
            Field(10, "display_id", "int64"),
            Field(11, "display_name", "bytes"),
        ),
        "XEvent": (
            Field(1, "metadata_id", "int64"),
            Field(2, "offset_ps", "int64", oneof="data"),
            Field(5, "num_occurrences", "int64", oneof="data"),
            Field(3, "duration_ps", "int64"),
            Field(4, "stats", "XStat", is_repeated=True),
        ),
        "XStat": (
            Field(1, "metadata_id", "int64"),
            Field(2, "double_value", "double", oneof="value"),
            Field(3, "uint64_value", "uint64", oneof="value"),
            Field(4, "int64_value", "int64", oneof="value"),
            Field(5, "str_value", "bytes", oneof="value"),
            Field(6, "bytes_value", "bytes", oneof="value"),
            Field(7, "ref_value", "uint64", oneof="value"),
        ),
    }
    return message_classes(package, fields)


_MESSAGES = xplane_messages("tracewarehouse.plain", is_raw=True)
_KIND = {
    "double_value": StatKind.DOUBLE,
    "uint64_value": StatKind.UINT64,
    "int64_value": StatKind.INT64,
    "str_value": StatKind.STRING,
    "bytes_value": StatKind.BYTES,
    "ref_value": StatKind.REF,
}


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """Yield the planes of a file, in file order."""
    if (found := file_format(file)) is not XPLANE:
        raise CaptureError(
            f"{file.path}: only an xplane.pb can be decoded a second time, found {found.name}; give the profiler's file"
        )
    try:
        yield from xplane_planes(file.read(0, file.size))
    except (DecodeError, KeyError) as error:
        raise CaptureError(f"{file.path}: the independent decoder cannot read it: {error}") from None


def xplane_planes(data: bytes) -> Iterator[PlainPlane]:
    """Yield the planes in the bytes of an XSpace, in file order."""
    planes = [_MESSAGES["XPlane"].FromString(raw) for raw in _MESSAGES["XSpace"].FromString(data).planes]
    lines = [[_MESSAGES["XLine"].FromString(raw) for raw in p.lines] for p in planes]
    zero_ns = _zero(planes, [n for of_plane in lines for n in of_plane])
    for message, of_plane in zip(planes, lines, strict=True):
        names = {e.key: _text(e.value.name) for e in message.stat_metadata}
        known = {e.key for e in message.event_metadata}
        plane = PlainPlane(_text(message.name), _stats(message.stats, names), plane_id=message.id)
        plane.lines = [_line(line, names, known, zero_ns) for line in of_plane]
        plane.metadata = [_metadata(e, names) for e in message.event_metadata]
        plane.descriptions = [
            (e.key, names[e.key], _text(e.value.description)) for e in message.stat_metadata if e.value.description
        ]
        yield plane


def _zero(planes: list[Any], lines: list[Any]) -> int:
    """Return the zero of Unix timestamps: the profile's start, or else the first timestamp if all are such."""
    for plane in planes:
        if _text(plane.name) == TASK_PLANE:
            names = {e.key: _text(e.value.name) for e in plane.stat_metadata}
            times = {n: v for n, _, v in _stats(plane.stats, names) if isinstance(v, int)}
            if PROFILE_START in times:
                return times[PROFILE_START]
            break
    unix = [n.timestamp_ns for n in lines if n.timestamp_ns * 1000 > _INT64_MAX]
    return min(unix) if unix and all(n.timestamp_ns * 1000 > _INT64_MAX for n in lines if n.events) else 0


def _metadata(entry: Any, names: dict[int, str]) -> PlainMetadata:
    stats = _stats(entry.value.stats, names)
    if entry.value.metadata:
        stats.append(("metadata", StatKind.BYTES, entry.value.metadata))
    name, display_name = _text(entry.value.name), _text(entry.value.display_name)
    return PlainMetadata(entry.key, name, display_name, stats, list(entry.value.child_id))


def _line(line: Any, names: dict[int, str], known: set[int], zero_ns: int) -> PlainLine:
    line_ps = (line.timestamp_ns - (zero_ns if line.timestamp_ns * 1000 > _INT64_MAX else 0)) * 1000

    def events() -> Iterator[PlainEvent]:
        event = _MESSAGES["XEvent"]()
        for data in line.events:
            event.ParseFromString(data)
            stats = _stats(event.stats, names)
            if event.num_occurrences:
                stats.append(("num_occurrences", StatKind.INT64, event.num_occurrences))
            metadata_id = event.metadata_id if event.metadata_id in known else None
            if metadata_id is None:
                stats.append(("metadata_id", StatKind.INT64, event.metadata_id))
            yield metadata_id, line_ps + event.offset_ps, event.duration_ps, stats

    says = _text(line.display_name), line.display_id, line.timestamp_ns, line.duration_ps
    return PlainLine(_text(line.name), line.id, events, says)


def _stats(messages: Any, names: dict[int, str]) -> list[PlainStat]:
    stats: list[PlainStat] = []
    for m in messages:
        which = m.WhichOneof("value")
        if which is not None:
            value = getattr(m, which)
            if which == "ref_value":
                value = names.get(value, f"ref {value}").encode()
            stats.append((names.get(m.metadata_id, f"stat {m.metadata_id}"), _KIND[which], value))
    return stats


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
