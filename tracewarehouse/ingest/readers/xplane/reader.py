"""Reads xplane.pb, the serialized XSpace that every XLA profiler writes.

Planes, lines and event metadata are few and are read one by one. `tracewarehouse.ingest.readers.xplane.wire`
decodes the events of a line, in blocks of numpy columns.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.profiler_names import PROFILE_START, PROFILE_STOP, TASK_PLANE
from tracewarehouse.ingest.columns.records import (
    DivisibleTrace,
    EventBatch,
    EventMetadata,
    Int32,
    Int64,
    Line,
    Plane,
    Stat,
    StatColumn,
    StatKind,
    UInt8,
    UInt64,
)
from tracewarehouse.ingest.errors import CaptureError, MalformedError, TooManyError
from tracewarehouse.ingest.readers.files import CaptureFile, FileBytes
from tracewarehouse.ingest.readers.xplane import wire

_FIRST_TEXT = int(StatKind.STRING)
BLOCK = 1 << 15
"""Events that are decoded together: enough to keep Python's share small, few enough to stay in cache."""
_TABLE_ENTRIES = 16  # per metadata id: ids this dense are looked up in a table, others by search
_INT64 = np.iinfo(np.int64)
_PLANE, _ERROR, _WARNING, _HOSTNAME = 0x0A, 0x12, 0x1A, 0x22  # tags of XSpace
_PLANE_ID, _PLANE_NAME, _LINE, _EVENT_METADATA, _STAT_METADATA, _PLANE_STAT = 0x08, 0x12, 0x1A, 0x22, 0x2A, 0x32
_KEY, _VALUE = 0x08, 0x12  # tags of the entries of XPlane's maps
_METADATA_NAME, _DESCRIPTION = 0x12, 0x1A  # tags of XStatMetadata, and of XEventMetadata:
_METADATA, _METADATA_DISPLAY_NAME, _METADATA_STAT, _CHILD, _CHILDREN = 0x1A, 0x22, 0x2A, 0x30, 0x32
_LINE_ID, _LINE_NAME, _TIMESTAMP_NS = 0x08, 0x12, 0x18  # tags of XLine
_DURATION_PS, _DISPLAY_ID, _DISPLAY_NAME = 0x48, 0x50, 0x5A
_LAST_RELATIVE_NS = _INT64.max // 1000
"""A line's timestamp beyond this (106 days) is a Unix time, not a time since the start of a profile."""
_STAT_ID = 0x08  # tags of XStat
_DOUBLE, _UINT64, _INT64_VALUE, _STRING, _BYTES, _REF = 0x11, 0x18, 0x20, 0x2A, 0x32, 0x38
_KIND_OF_TAG = {
    _DOUBLE: StatKind.DOUBLE,
    _UINT64: StatKind.UINT64,
    _INT64_VALUE: StatKind.INT64,
    _STRING: StatKind.STRING,
    _BYTES: StatKind.BYTES,
    _REF: StatKind.REF,
}


@dataclass
class _XPlane(Plane):
    stat_names: dict[int, str] = field(default_factory=dict)
    rows: _RowOfId = field(default_factory=lambda: _RowOfId([]))

    def stat_name(self, stat_id: int) -> str:
        """Return the stat's name; a stat that the capture does not name gets its id as name."""
        return self.stat_names.get(stat_id, f"stat {stat_id}")


class _RowOfId:
    """Maps metadata ids to rows of `event_metadata`; -1 for an id that names none."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        by_id = {i: row for row, i in enumerate(ids)}  # if a key occurs twice, the last one counts, as in protobuf
        self._ids = np.array(sorted(by_id), np.int64)
        self._rows = np.array([by_id[i] for i in self._ids.tolist()], np.int32)
        self._table: Int32 | None = None
        if len(self._ids) and self._ids[0] >= 0 and self._ids[-1] < _TABLE_ENTRIES * len(self._ids):
            self._table = np.full(int(self._ids[-1]) + 2, -1, np.int32)
            self._table[self._ids] = self._rows

    def __call__(self, ids: Int64) -> Int32:
        if not len(self._ids):
            return np.full(len(ids), -1, np.int32)
        if self._table is not None:
            values = self._table.take(ids, mode="clip")
            return np.where(ids < 0, np.int32(-1), values) if ids.min(initial=0) < 0 else values
        at = self._ids.searchsorted(ids).clip(max=len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._rows[at], np.int32(-1))


class XPlaneTrace(DivisibleTrace):
    """An opened xplane.pb: planes and metadata are read, events are still in the file."""

    format = "xplane"

    def __init__(self, file: CaptureFile) -> None:
        self.size = file.size
        self._file = file
        self._path = file.path
        planes: list[Plane] = []
        texts: dict[int, list[str]] = {_ERROR: [], _WARNING: [], _HOSTNAME: []}
        data = file.contents()
        metadata = _SharedMetadata()
        try:
            for tag, _, payload, stop in wire.fields(data, 0, self.size):
                if tag == _PLANE:
                    planes.append(_read_plane(data, payload, stop, metadata))
                    bounds.check(len(planes), bounds.PLANES, "planes", "devices and hosts")
                elif tag in texts:
                    texts[tag].append(_text(data[payload:stop]))
        except TooManyError as error:
            raise MalformedError(f"{self._path}: {error}") from None
        except MalformedError as error:
            raise MalformedError(f"{self._path}: not a complete xplane.pb: {error}") from None
        self.errors, self.warnings, self.hostnames = texts[_ERROR], texts[_WARNING], texts[_HOSTNAME]
        self.planes = planes
        if not planes:
            raise MalformedError(f"{self._path}: an xplane.pb without planes; nothing was profiled")
        self.origin_ns = _origin(planes)

    def __getstate__(self) -> dict[str, Any]:
        """The state that another process needs to read lines of planes that it is given."""
        return self.__dict__ | {"planes": []}

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield the events of a line, in file order."""
        with self._named(plane, line):
            yield from self._batches(cast(_XPlane, plane), line)

    def count(self, plane: Plane, line: Line) -> int:
        """Return the number of a line's events, without reading their fields."""
        with self._named(plane, line):
            return sum(len(starts) for _, starts in self._windows(line, {}))

    @contextmanager
    def _named(self, plane: Plane, line: Line) -> Iterator[None]:
        try:
            yield
        except (MalformedError, IndexError) as error:
            raise MalformedError(f"{self._path}: line {line.name!r} of plane {plane.name!r}: {error}") from None

    def _windows(self, line: Line, others: wire.Others) -> Iterator[tuple[wire.Words, Int64]]:
        return wire.event_windows(self._file.array, line.start, line.end, wire.WINDOW, others)

    def _batches(self, plane: _XPlane, line: Line) -> Iterator[EventBatch]:
        others: wire.Others = {}
        zero = self.origin_ns if self.origin_ns is not None and line.timestamp_ns > _LAST_RELATIVE_NS else 0
        line_ps = (line.timestamp_ns - zero) * 1000
        for source, starts in self._windows(line, others):
            for low in range(0, len(starts), BLOCK):
                yield _batch(source, plane, line_ps, wire.decode_events(source, starts[low : low + BLOCK]))
        _describe(line, others)


def open_file(file: CaptureFile) -> XPlaneTrace:
    """Open an xplane.pb; see `XPlaneTrace` for its errors."""
    return XPlaneTrace(file)


def profile_window(path: Path) -> tuple[int, int] | None:
    """Read start and stop of the profile in Unix nanoseconds; None if the capture does not state them or is damaged."""
    try:
        file = CaptureFile(path)
        data = FileBytes(file)
        for tag, _, payload, stop in wire.fields(data, 0, file.size):
            if tag == _PLANE and _plane_name(data, payload, stop) == TASK_PLANE.encode():
                times = _times(_read_plane(data, payload, stop, _SharedMetadata()))
                return times[PROFILE_START], times[PROFILE_STOP]
    except (CaptureError, KeyError):
        return None
    return None


def _plane_name(data: bytes | FileBytes, start: int, end: int) -> bytes:
    for tag, _, payload, stop in wire.fields(data, start, end):
        if tag == _PLANE_NAME:
            return data[payload:stop]
    return b""


def _times(task: Plane) -> dict[str, int]:
    return {s.name: s.value for s in task.stats if isinstance(s.value, int)}


def _origin(planes: Sequence[Plane]) -> int | None:
    """Return the Unix time from which lines with absolute timestamps count; None without such lines.

    It is the start of the profile. If the capture does not state that and all lines have such timestamps, it is the
    first of them. If only some lines have them, nothing tells how the two clocks relate.
    """
    lines = [n for p in planes for n in p.lines]
    absolute = [n.timestamp_ns for n in lines if n.timestamp_ns > _LAST_RELATIVE_NS]
    if not absolute:
        return None
    start = next((_times(p).get(PROFILE_START) for p in planes if p.name == TASK_PLANE), None)
    if start is None and all(n.timestamp_ns > _LAST_RELATIVE_NS for n in lines if n.has_events):
        return min(absolute)
    return start


def _describe(line: Line, others: wire.Others) -> None:
    name, display_id, duration = (others.get(t) for t in (_DISPLAY_NAME, _DISPLAY_ID, _DURATION_PS))
    if isinstance(name, bytes):
        line.display_name = _text(name)
    if isinstance(display_id, int):
        line.display_id = wire.signed(display_id)
    if isinstance(duration, int):
        line.duration_ps = wire.signed(duration)


def _batch(source: wire.Words, plane: _XPlane, line_ps: int, block: wire.EventBlock) -> EventBatch:
    start = _starts(line_ps, block.offset_ps, block.duration_ps)
    rows = plane.rows(block.metadata_id)
    return EventBatch(rows, start, block.duration_ps, list(_stat_columns(source, plane, block, rows)))


def _starts(line_ps: int, offset: Int64, duration: Int64) -> Int64:
    first, last = line_ps + int(offset.min()), line_ps + int(offset.max())
    if _INT64.min <= min(first, line_ps) and max(last, line_ps) <= _INT64.max:
        start = offset + np.int64(line_ps)
        longest = int(duration.max())
        if last + max(longest, 0) <= _INT64.max and first + min(int(duration.min()), 0) >= _INT64.min:
            return start
        end = start + duration  # wraps if it does not fit
        if ((duration >= 0) == (end >= start)).all():
            return start
    raise MalformedError("an event starts or ends beyond int64 picoseconds")


def _stat_columns(source: wire.Words, plane: _XPlane, block: wire.EventBlock, metadata: Int32) -> Iterator[StatColumn]:
    """Regroup the block's stats by name, since several ids may share one.

    A number of occurrences, or a metadata id that names nothing, also becomes a stat.
    """
    parts: dict[str, list[wire.StatBlock]] = {}
    for s in block.stats:
        first = int(s.ids[0])
        if (s.ids == first).all():
            parts.setdefault(plane.stat_name(first), []).append(s)
            continue
        order = np.argsort(s.ids, kind="stable")
        ids, rows, kinds, values = s.ids[order], s.rows[order], s.kinds[order], s.values[order]
        edges = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
        for a, z in pairwise(edges):
            piece = wire.StatBlock(rows[a:z], ids[a:z], kinds[a:z], values[a:z])
            parts.setdefault(plane.stat_name(int(ids[a])), []).append(piece)
    if block.has_occurrences:
        rows = np.flatnonzero(block.occurrences)
        kinds = np.full(len(rows), StatKind.INT64, np.uint8)
        piece = wire.StatBlock(rows, rows, kinds, block.occurrences[rows])
        parts.setdefault("num_occurrences", []).append(piece)
    if metadata.min(initial=0) < 0:
        rows = np.flatnonzero(metadata < 0)
        kinds = np.full(len(rows), StatKind.INT64, np.uint8)
        piece = wire.StatBlock(rows, rows, kinds, block.metadata_id[rows].view(np.uint64))
        parts.setdefault("metadata_id", []).append(piece)
    for name, pieces in parts.items():
        rows, kinds, values = pieces[0].rows, pieces[0].kinds, pieces[0].values
        if len(pieces) > 1:
            rows = np.concatenate([p.rows for p in pieces])
            order = np.argsort(rows, kind="stable")
            rows = rows[order]
            kinds = np.concatenate([p.kinds for p in pieces])[order]
            values = np.concatenate([p.values for p in pieces])[order]
        if not kinds.all():
            has_value = np.flatnonzero(kinds)
            rows, kinds, values = rows[has_value], kinds[has_value], values[has_value]
        if len(rows):
            yield _resolved(source, plane, name, rows, kinds, values)


def _resolved(source: wire.Words, plane: _XPlane, name: str, rows: Int64, kinds: UInt8, values: UInt64) -> StatColumn:
    """Make a stat column whose strings, bytes and references are indices into their distinct texts."""
    if int(kinds.max()) < _FIRST_TEXT:
        return StatColumn(name, rows, kinds, values)
    texts: dict[bytes, int] = {}
    for kind in (StatKind.STRING, StatKind.BYTES, StatKind.REF):
        at = np.flatnonzero(kinds == kind)
        if not len(at):
            continue
        codes: Any
        if kind == StatKind.REF:
            ids, codes = np.unique(values[at], return_inverse=True)
            distinct = [plane.stat_names.get(i, f"ref {i}").encode() for i in ids.tolist()]
        else:
            codes, distinct = wire.distinct_texts(source, values[at].view(np.int64))
        to_index = np.array([texts.setdefault(t, len(texts)) for t in distinct], np.uint64)
        values[at] = to_index[codes]
    return StatColumn(name, rows, kinds, values, list(texts))


class _SharedMetadata:
    """The event metadata of one trace: equal bytes under equal stat names share one object, as devices repeat them."""

    def __init__(self) -> None:
        self._lines = 0
        self._namings: dict[tuple[tuple[int, str], ...], int] = {}
        self._found: dict[tuple[int, bytes], EventMetadata] = {}
        self._entries: dict[int, dict[bytes, tuple[int, EventMetadata]]] = {}
        self._stats: dict[int, dict[bytes, Stat | None]] = {}

    def count_line(self) -> None:
        self._lines += 1
        bounds.check(self._lines, bounds.LINES, "threads", "a program")

    def read(self, entries: Sequence[bytes], plane: _XPlane) -> None:
        bounds.check(len(entries), bounds.NAMES, "names", "events")
        naming = self._namings.setdefault(tuple(sorted(plane.stat_names.items())), len(self._namings))
        stats, known = self._stats.setdefault(naming, {}), self._entries.setdefault(naming, {})
        for entry in entries:
            if entry not in known:
                known[entry] = self._read(entry, naming, plane.stat_names, stats)
            key, metadata = known[entry]
            plane.metadata_ids.append(key)
            plane.event_metadata.append(metadata)
        plane.rows = _RowOfId(plane.metadata_ids)

    def _read(
        self, entry: bytes, naming: int, names: dict[int, str], stats: dict[bytes, Stat | None]
    ) -> tuple[int, EventMetadata]:
        key, raw = _entry(entry)
        if raw[:1] == b"\x08":  # the id again; without it, equal content has equal bytes
            raw = raw[wire.read_varint(raw, 1, len(raw))[1] :]
        content = naming, hashlib.blake2b(raw, digest_size=16).digest()
        if content not in self._found:
            bounds.check(len(self._found) + 1, bounds.NAMES, "names", "events")
            self._found[content] = _event_metadata(raw, names, stats)
        return key, self._found[content]


def _read_plane(data: bytes | FileBytes, start: int, end: int, shared: _SharedMetadata) -> _XPlane:
    plane = _XPlane("")
    stats: list[bytes] = []
    metadata: list[bytes] = []
    described: list[tuple[int, bytes]] = []
    for tag, _, payload, stop in wire.fields(data, start, end):
        if tag == _LINE:
            plane.lines.append(_read_line(data, payload, stop))
            shared.count_line()
        elif tag == _EVENT_METADATA:
            metadata.append(data[payload:stop])
        elif tag == _STAT_METADATA:
            key, raw = _entry(data[payload:stop])
            name, description = _stat_metadata(raw)
            plane.stat_names[key] = _text(name)
            if description:
                described.append((key, description))
        elif tag == _PLANE_STAT:
            stats.append(data[payload:stop])
        elif tag == _PLANE_NAME:
            plane.name = _text(data[payload:stop])
        elif tag == _PLANE_ID:
            plane.plane_id = wire.signed(payload)
    names = plane.stat_names
    plane.stats = tuple(s for raw in stats if (s := _stat(raw, names)))
    plane.stat_descriptions = [(key, names[key], _text(description)) for key, description in described]
    shared.read(metadata, plane)
    return plane


def _entry(entry: bytes) -> tuple[int, bytes]:
    """Return key and value of a map entry. If the value occurs twice, both are merged by joining their bytes."""
    key, values = 0, []
    for tag, _, payload, stop in wire.fields(entry, 0, len(entry)):
        if tag == _KEY:
            key = wire.signed(payload)
        elif tag == _VALUE:
            values.append(entry[payload:stop])
    if len(values) > 1:
        for value in values:  # each is a message, or joining them would invent fields
            for _ in wire.fields(value, 0, len(value)):
                pass
    return key, b"".join(values)


def _stat_metadata(raw: bytes) -> tuple[bytes, bytes]:
    name = description = b""
    for tag, _, payload, stop in wire.fields(raw, 0, len(raw)):
        if tag == _METADATA_NAME:
            name = raw[payload:stop]
        elif tag == _DESCRIPTION:
            description = raw[payload:stop]
    return name, description


def _event_metadata(raw: bytes, names: dict[int, str], known: dict[bytes, Stat | None]) -> EventMetadata:
    """Read an XEventMetadata; the bytes of its field `metadata` become a stat of that name.

    Most stats occur in many metadata, so `known` keeps them by their bytes.
    """
    name = display_name = metadata = b""
    stats: list[Stat] = []
    children: list[int] = []
    for tag, _, payload, stop in wire.fields(raw, 0, len(raw)):
        if tag == _METADATA_STAT:
            own = raw[payload:stop]
            if own not in known:
                known[own] = _stat(own, names)
            if stat := known[own]:
                stats.append(stat)
        elif tag == _METADATA_NAME:
            name = raw[payload:stop]
        elif tag == _METADATA_DISPLAY_NAME:
            display_name = raw[payload:stop]
        elif tag == _METADATA:
            metadata = raw[payload:stop]
        elif tag == _CHILD:
            children.append(wire.signed(payload))
        elif tag == _CHILDREN:
            while payload < stop:
                child, payload = wire.read_varint(raw, payload, stop)
                children.append(wire.signed(child))
    if metadata:
        stats.append(Stat("metadata", StatKind.BYTES, metadata))
    return EventMetadata(_text(name), _text(display_name), tuple(stats), tuple(children))


def _stat(raw: bytes, names: dict[int, str]) -> Stat | None:
    stat_id = tag = at = stop = 0
    for known, _, payload, after in wire.fields(raw, 0, len(raw)):
        if known == _STAT_ID:
            stat_id = wire.signed(payload)
        elif known in _KIND_OF_TAG:  # the last of several counts
            tag, at, stop = known, payload, after
    value: float | int | str | bytes = at
    if tag == _STRING:
        value = _text(raw[at:stop])
    elif tag == _INT64_VALUE:
        value = wire.signed(at)
    elif tag == _REF:
        value = names.get(at, f"ref {at}")
    elif tag == _BYTES:
        value = raw[at:stop]
    elif tag == _DOUBLE:
        (value,) = struct.unpack_from("<d", raw, at)
    elif tag != _UINT64:
        return None
    return Stat(names.get(stat_id, f"stat {stat_id}"), _KIND_OF_TAG[tag], value)


def _read_line(data: bytes | FileBytes, start: int, end: int) -> Line:
    line_id, name, timestamp, has_events = 0, "", 0, False
    for tag, _, payload, stop in wire.fields(data, start, end):
        if tag == wire.EVENT_TAG:
            has_events = True
            break
        if tag == _LINE_ID:
            line_id = wire.signed(payload)
        elif tag == _LINE_NAME:
            name = _text(data[payload:stop])
        elif tag == _TIMESTAMP_NS:
            timestamp = wire.signed(payload)
    return Line(name, line_id, timestamp, start, end, has_events)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
