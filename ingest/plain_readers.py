"""Captures read the plain way, an event at a time: by protobuf's own parser and by Python's json.

Slow, and apart from the readers: what proves a run from the bytes of its capture must not share their mistakes. Common
is only the file itself, unpacked and digested.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from google.protobuf.message import DecodeError

from ingest.errors import CaptureError
from ingest.protobuf import Field, message_classes
from ingest.readers.chrome_args import DOUBLES, METADATA_KEYS
from ingest.readers.files import CaptureFile
from ingest.records import StatKind

PlainStat = tuple[str, StatKind, int | float | bytes]
"""Name, kind and value; text as bytes, references resolved."""
PlainEvent = tuple[int, int, list[PlainStat]]
"""Start and duration in ps on the file's clock, and the event's own stats."""


@dataclass(frozen=True)
class PlainLine:
    """A line of a plane; `events` reads its events, in file order.

    `says` has display name, display id, timestamp and duration, where the format has them.
    """

    name: str
    line_id: int
    events: Callable[[], Iterator[PlainEvent]]
    says: tuple[str, int, int, int] | None = None


@dataclass(frozen=True)
class PlainMetadata:
    """Event metadata: its id, what it says, and the ids of its children."""

    metadata_id: int
    stats: list[PlainStat]
    children: list[int]


@dataclass
class PlainPlane:
    """A plane: its stats and its lines; id, event metadata and described stats where the format has them."""

    name: str
    stats: list[PlainStat] = field(default_factory=list)
    lines: list[PlainLine] = field(default_factory=list)
    plane_id: int | None = None
    metadata: list[PlainMetadata] = field(default_factory=list)
    descriptions: list[tuple[int, str, str]] = field(default_factory=list)


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """The planes of a capture of any format, in file order.

    Raises:
        CaptureError: the file cannot be read, or is not a capture.
    """
    try:
        yield from _chrome_planes(file) if file.is_json else _xplane_planes(file)
    except (DecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CaptureError(f"{file.path}: cannot be read by another parser to compare: {error}") from None


_INT64_MAX = (1 << 63) - 1

# --- xplane.pb

# Planes, lines and events are bytes here, so that only one event at a time becomes an object.
_MESSAGES = message_classes(
    "tracewarehouse.plain",
    {
        "XSpace": (Field(1, "planes", "bytes", is_repeated=True),),
        "XPlane": (
            Field(1, "id", "int64"),
            Field(2, "name", "bytes"),
            Field(3, "lines", "bytes", is_repeated=True),
            Field(4, "event_metadata", "EventMetadataEntry", is_repeated=True),
            Field(5, "stat_metadata", "StatMetadataEntry", is_repeated=True),
            Field(6, "stats", "XStat", is_repeated=True),
        ),
        "StatMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XStatMetadata")),
        "XStatMetadata": (Field(1, "id", "int64"), Field(2, "name", "bytes"), Field(3, "description", "bytes")),
        "EventMetadataEntry": (Field(1, "key", "int64"), Field(2, "value", "XEventMetadata")),
        "XEventMetadata": (
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
            Field(4, "events", "bytes", is_repeated=True),
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
    },
)
_KIND = {
    "double_value": StatKind.DOUBLE,
    "uint64_value": StatKind.UINT64,
    "int64_value": StatKind.INT64,
    "str_value": StatKind.STRING,
    "bytes_value": StatKind.BYTES,
    "ref_value": StatKind.REF,
}


def _xplane_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    planes = [
        _MESSAGES["XPlane"].FromString(raw) for raw in _MESSAGES["XSpace"].FromString(file.read(0, file.size)).planes
    ]
    lines = [[_MESSAGES["XLine"].FromString(raw) for raw in p.lines] for p in planes]
    zero_ns = _zero(planes, [n for of_plane in lines for n in of_plane])
    for message, of_plane in zip(planes, lines, strict=True):
        names = {e.key: _text(e.value.name) for e in message.stat_metadata}
        known = {e.key for e in message.event_metadata}
        plane = PlainPlane(_text(message.name), _xplane_stats(message.stats, names), plane_id=message.id)
        plane.lines = [_xplane_line(line, names, known, zero_ns) for line in of_plane]
        plane.metadata = [_xplane_metadata(e, names) for e in message.event_metadata]
        plane.descriptions = [
            (e.key, names[e.key], _text(e.value.description)) for e in message.stat_metadata if e.value.description
        ]
        yield plane


def _zero(planes: list[Any], lines: list[Any]) -> int:
    """What timestamps that are Unix times count from: the profile's start, else the first where all are so."""
    for plane in planes:
        if _text(plane.name) == "Task Environment":
            names = {e.key: _text(e.value.name) for e in plane.stat_metadata}
            found = {n: v for n, _, v in _xplane_stats(plane.stats, names) if isinstance(v, int)}
            if "profile_start_time" in found:
                return found["profile_start_time"]
            break
    unix = [n.timestamp_ns for n in lines if n.timestamp_ns * 1000 > _INT64_MAX]
    return min(unix) if unix and all(n.timestamp_ns * 1000 > _INT64_MAX for n in lines if n.events) else 0


def _xplane_metadata(entry: Any, names: dict[int, str]) -> PlainMetadata:
    stats = _xplane_stats(entry.value.stats, names)
    if entry.value.metadata:
        stats.append(("metadata", StatKind.BYTES, entry.value.metadata))
    if entry.value.display_name:
        stats.append(("display_name", StatKind.STRING, entry.value.display_name))
    return PlainMetadata(entry.key, stats, list(entry.value.child_id))


def _xplane_line(line: Any, names: dict[int, str], known: set[int], zero_ns: int) -> PlainLine:
    line_ps = (line.timestamp_ns - (zero_ns if line.timestamp_ns * 1000 > _INT64_MAX else 0)) * 1000

    def events() -> Iterator[PlainEvent]:
        event = _MESSAGES["XEvent"]()
        for data in line.events:
            event.ParseFromString(data)
            stats = _xplane_stats(event.stats, names)
            if event.num_occurrences:
                stats.append(("num_occurrences", StatKind.INT64, event.num_occurrences))
            if event.metadata_id not in known:
                stats.append(("metadata_id", StatKind.INT64, event.metadata_id))
            yield line_ps + event.offset_ps, event.duration_ps, stats

    says = _text(line.display_name), line.display_id, line.timestamp_ns, line.duration_ps
    return PlainLine(_text(line.name), line.id, events, says)


def _xplane_stats(messages: Any, names: dict[int, str]) -> list[PlainStat]:
    found: list[PlainStat] = []
    for m in messages:
        which = m.WhichOneof("value")
        if which is not None:
            value = getattr(m, which)
            if which == "ref_value":
                value = names.get(value, f"ref {value}").encode()
            found.append((names.get(m.metadata_id, f"stat {m.metadata_id}"), _KIND[which], value))
    return found


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# --- Chrome trace

_COUNTERS = "_counters_"
_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)
_NUMBER = re.compile(r"-?\d{1,400}(\.\d{0,400})?([eE][-+]?\d{1,4})?", re.ASCII)


class _Number(str):
    """A JSON number as it is written."""


class _ChromeTrace:
    """Events by process and thread, from the whole file in memory."""

    def __init__(self, events: list[Any]) -> None:
        self.processes: dict[Any, str] = {}
        self.threads: dict[Any, str] = {}
        self.lines: dict[Any, list[tuple[int, int, Any]]] = {}
        self._open: dict[Any, list[Any]] = {}
        self.origin_ps: int | None = None
        for e in events:
            self._add(e)
        for rest in self._open.values():
            for e in rest:
                self._put((e.get("pid"), e.get("tid")), e, 0)

    def _add(self, e: Any) -> None:
        phase, key = e.get("ph"), (e.get("pid"), e.get("tid"))
        args = e.get("args")
        if phase == "M" and isinstance(args, dict) and isinstance(args.get("name"), str):
            if e.get("name") == "process_name":
                self.processes[e.get("pid")] = args["name"]
            elif e.get("name") == "thread_name":
                self.threads[key] = args["name"]
        elif phase == "X":
            duration = _picoseconds(e.get("dur"))
            self._put(key, e, duration if duration is not None and abs(duration) <= _INT64_MAX else 0)
        elif phase == "C":
            self._put((e.get("pid"), _COUNTERS), e, 0)
        elif phase in ("i", "I"):
            self._put(key, e, 0)
        elif phase == "B":
            self._open.setdefault(key, []).append(e)
        elif phase == "E" and self._open.get(key):
            begin = self._open[key].pop()
            start, stop = _picoseconds(begin.get("ts")), _picoseconds(e.get("ts"))
            if start is not None and stop is not None and abs(stop - start) <= _INT64_MAX:
                args = _arguments(begin) | _arguments(e)
                self._put(key, begin | {"args": args}, stop - start)

    def _put(self, key: Any, e: Any, duration: int) -> None:
        line = self.lines.setdefault(key, [])
        start = _picoseconds(e.get("ts"))
        if self.origin_ps is None:
            self.origin_ps = (start or 0) // 1_000_000 * 1_000_000 if (start or 0) > _INT64_MAX else 0
        if start is not None and abs(start - self.origin_ps) <= _INT64_MAX:
            line.append((start - self.origin_ps, duration, e))


def _chrome_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    text = file.read(0, file.size).decode("utf-8", "replace").removeprefix("\ufeff")
    data = json.loads(text, parse_float=_Number, parse_int=_Number)
    found = _ChromeTrace(data if isinstance(data, list) else data["traceEvents"])
    matches = {pid: m for pid, name in found.processes.items() if (m := _HOST_PREFIX.fullmatch(name))}
    if len({m[1] for m in matches.values()}) == 1:
        found.processes |= {pid: m[2] for pid, m in matches.items()}
    planes: dict[Any, PlainPlane] = {}
    for pid in [*found.processes, *(pid for pid, _ in found.lines)]:
        name = found.processes.get(pid, "unknown process" if pid is None else str(pid))
        planes.setdefault(pid, PlainPlane(name))
    for code, ((pid, tid), events) in enumerate(found.lines.items()):
        if events:
            planes[pid].lines.append(_chrome_line(found, pid, tid, code, events))
    yield from planes.values()


def _chrome_line(found: _ChromeTrace, pid: Any, tid: Any, code: int, events: list[tuple[int, int, Any]]) -> PlainLine:
    if tid == _COUNTERS:
        name = _COUNTERS
        named = (_whole(t) for (p, t), n in found.threads.items() if p == pid and n == _COUNTERS)
        number = next((t for t in named if t is not None), None)
    else:
        name = found.threads.get((pid, tid), "unknown thread" if tid is None else str(tid))
        number = _whole(tid)
    rows = [(start, duration, _chrome_stats(e)) for start, duration, e in events]
    return PlainLine(name, -1 - code if number is None else number, lambda: iter(rows))


def _arguments(e: Any) -> dict[str, Any]:
    args = e.get("args", {})
    return args if isinstance(args, dict) else {"args": args}


def _chrome_stats(e: Any) -> list[PlainStat]:
    typed = (_typed(k, v) for k, v in _arguments(e).items() if k not in METADATA_KEYS)
    return [t for t in typed if t is not None]


def _typed(name: str, value: Any) -> PlainStat | None:
    if value is None:
        return None
    if not isinstance(value, str):
        return name, StatKind.STRING, _utf8(_compact(value))
    if re.fullmatch(r"0|-?[1-9]\d*", value, re.ASCII) and len(value) < 30:
        number = int(value)
        if -(1 << 63) <= number <= _INT64_MAX:
            return name, StatKind.INT64, number
        if 0 < number < 1 << 64:
            return name, StatKind.UINT64, number
    is_integer = re.fullmatch(r"-?\d+", value, re.ASCII) and value != "-0"
    if isinstance(value, _Number) and not is_integer and math.isfinite(float(value)):
        return name, StatKind.DOUBLE, float(value)
    if name in DOUBLES and _NUMBER.fullmatch(value) and repr(float(value)) == value:
        return name, StatKind.DOUBLE, float(value)
    return name, StatKind.STRING, _utf8(value)


def _compact(value: Any) -> str:
    """JSON text that keeps numbers as they are written."""
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_compact, value)) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(k, ensure_ascii=False) + ":" + _compact(v) for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _utf8(text: str) -> bytes:
    """UTF-8, with a replacement character for half of a surrogate pair."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


def _picoseconds(text: Any) -> int | None:
    """Microseconds as written, to the nearest picosecond."""
    if not isinstance(text, str) or not _NUMBER.fullmatch(text.strip()):
        return None
    value = Decimal(text.strip())
    if abs(value) > Decimal(10) ** 30:
        return None
    exact = Context(prec=900, rounding=ROUND_HALF_UP)
    return int(exact.to_integral_value(value.scaleb(6, exact)))


def _whole(value: Any) -> int | None:
    """A pid or tid as an integer, if it is one."""
    if not isinstance(value, _Number) or not math.isfinite(float(value)) or float(value) != int(float(value)):
        return None
    number = int(Decimal(value))
    return number if abs(number) <= _INT64_MAX else None


def bits_of(value: float) -> int:
    """The 64 bits of a double."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
