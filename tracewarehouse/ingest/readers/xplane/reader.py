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
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.errors import CaptureError, MalformedError, TooManyError
from tracewarehouse.ingest.readers.files import CHUNK, CaptureFile, FileBytes
from tracewarehouse.ingest.readers.xplane import wire
from tracewarehouse.ingest.readers.xplane.event_places import EventPlaces

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
_VARINT_TAGS, _TEXT_TAGS = (_UINT64, _INT64_VALUE, _REF), (_STRING, _BYTES)
_KIND_OF_TAG = {
    _DOUBLE: StatKind.DOUBLE,
    _UINT64: StatKind.UINT64,
    _INT64_VALUE: StatKind.INT64,
    _STRING: StatKind.STRING,
    _BYTES: StatKind.BYTES,
    _REF: StatKind.REF,
}
_SHORT_STAT = 64
_FEW_BYTES = 1 << 12
KEPT = 1 << 12
"""Bytes of a line from which on its event places are kept; for shorter lines they are not worth their memory."""
_HEAD, _WORTH_KNOWING = 64, 1 << 10
"""Bytes by which a piece of event metadata is looked up, and the size from which on that pays."""


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
    """An opened xplane.pb: planes and metadata are read, events are still in the file.

    Raises:
        CaptureError: the file is missing, empty or not readable.
        MalformedError: it is not a complete XSpace.
    """

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
        """Yield the events of a line, in file order.

        Raises:
            MalformedError: the bytes are not events, or their times do not fit int64 picoseconds.
            CaptureError: the file changed since it was opened.
        """
        with self._named(plane, line):
            yield from self._batches(cast(_XPlane, plane), line)

    def count(self, plane: Plane, line: Line, aside: Spill) -> tuple[int, EventPlaces | None]:
        """Count the events of a line without reading their fields, and return their places for `Line.places`.

        The places of a short line are None: it is searched again.

        Raises:
            MalformedError: the bytes are not events.
            CaptureError: the file changed since it was opened.
            OSError: the disk is full.
        """
        places = EventPlaces(aside)
        with self._named(plane, line):
            windows = self._windows(line, places.others)
            if line.end - line.start < KEPT:
                return sum(len(w.starts) for w in windows), None
            places.put(windows)
        return places.count, places

    @contextmanager
    def _named(self, plane: Plane, line: Line) -> Iterator[None]:
        """Name the line in errors about bytes that are no events."""
        try:
            yield
        except (MalformedError, IndexError) as error:
            raise MalformedError(f"{self._path}: line {line.name!r} of plane {plane.name!r}: {error}") from None

    def _windows(self, line: Line, others: wire.Others) -> Iterator[wire.EventWindow]:
        if isinstance(line.places, EventPlaces):
            others |= line.places.others
            return line.places.read(self._file.array)
        return wire.event_windows(self._file.array, line.start, line.end, wire.WINDOW, others)

    def _batches(self, plane: _XPlane, line: Line) -> Iterator[EventBatch]:
        others: wire.Others = {}
        zero = self.origin_ns if self.origin_ns is not None and line.timestamp_ns > _LAST_RELATIVE_NS else 0
        line_ps = (line.timestamp_ns - zero) * 1000
        for source, starts, _, _ in self._windows(line, others):
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
    """Take the fields after the events."""
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
    """Return the starts of events on the trace's clock."""
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


@dataclass
class _Metadata:
    """Event metadata that follow each other in the file; `decoded` is by the number of their stat names."""

    raw: bytes
    entries: list[bytes]
    decoded: dict[int, tuple[list[int], list[EventMetadata]]] = field(default_factory=dict)


class _SharedMetadata:
    """The event metadata of one trace: equal bytes under equal stat names share one object."""

    def __init__(self) -> None:
        self._planes = self._lines = 0
        self._rows = _RowOfId([])
        self._metadata: dict[bytes, _Metadata] = {}
        self._namings: dict[tuple[tuple[int, str], ...], int] = {}
        self._entries: dict[int, dict[bytes, tuple[int, EventMetadata]]] = {}
        self._found: dict[tuple[int, bytes], EventMetadata] = {}
        self._stats: dict[int, dict[bytes, Stat | None]] = {}

    def count_plane(self) -> None:
        """Count a plane."""
        self._planes += 1
        bounds.check(self._planes, bounds.PLANES, "planes", "devices and hosts")

    def count_line(self) -> None:
        """Count a line."""
        self._lines += 1
        bounds.check(self._lines, bounds.LINES, "threads", "a program")

    def take(self, data: bytes | FileBytes, position: int, end: int, pieces: list[_Metadata]) -> int:
        """Take consecutive event metadata of at most 16 kB each, from `position` on, and return the end of the last.

        They make up most of the bytes read here, so they are cut from larger and larger pieces, not read one by one.
        Devices repeat each other's metadata, so a known piece is not cut again.
        """
        size = _FEW_BYTES
        while position < end and data[position] == _EVENT_METADATA:
            head = data[position : min(position + _HEAD, end)]
            piece = self._metadata.get(head)
            if not piece or data[position : min(position + len(piece.raw), end)] != piece.raw:
                self._metadata.pop(head, None)  # otherwise all bytes with the same beginning would be compared with it
                piece = _cut_entries(data[position : min(position + size, end)])
                if not piece.raw:
                    break
                if len(piece.raw) >= _WORTH_KNOWING:
                    self._metadata[head] = piece
            position += len(piece.raw)
            if len(piece.raw) >= _WORTH_KNOWING:
                pieces.append(piece)
            else:
                _append(pieces, piece.entries)
            size = min(2 * size, CHUNK)
        return position

    def read(self, pieces: Sequence[_Metadata], plane: _XPlane) -> None:
        """Set the event metadata of a plane whose stat names are known."""
        naming = self._namings.setdefault(tuple(sorted(plane.stat_names.items())), len(self._namings))
        for piece in pieces:
            if naming not in piece.decoded:
                pairs = list(self._read(piece.entries, naming, plane.stat_names))
                piece.decoded[naming] = [key for key, _ in pairs], [metadata for _, metadata in pairs]
            ids, metadata = piece.decoded[naming]
            plane.metadata_ids += ids
            plane.event_metadata += metadata
            bounds.check(len(plane.metadata_ids), bounds.NAMES, "names", "events")
        if plane.metadata_ids != self._rows.ids:
            self._rows = _RowOfId(plane.metadata_ids)
        plane.rows = self._rows

    def _read(self, entries: list[bytes], naming: int, names: dict[int, str]) -> Iterator[tuple[int, EventMetadata]]:
        known = self._entries.setdefault(naming, {})
        stats = self._stats.setdefault(naming, {})
        for entry in entries:
            decoded = known.get(entry)
            if decoded is None:
                key, raw = _entry(entry)
                if raw[:1] == b"\x08":  # the id again; without it, equal content has equal bytes
                    raw = raw[wire.read_varint(raw, 1, len(raw))[1] :]
                content = naming, hashlib.blake2b(raw, digest_size=16).digest()
                if content in self._found:  # under another id
                    yield key, self._found[content]
                    continue
                bounds.check(len(self._found) + 1, bounds.NAMES, "names", "events")
                decoded = known[entry] = key, self._found.setdefault(content, _event_metadata(raw, names, stats))
            yield decoded


def _read_plane(data: bytes | FileBytes, start: int, end: int, shared: _SharedMetadata) -> _XPlane:
    shared.count_plane()
    plane = _XPlane("")
    stats: list[bytes] = []
    pieces: list[_Metadata] = []
    described: list[tuple[int, bytes]] = []
    position = start
    while position < end:
        position = shared.take(data, position, end, pieces)
        if position == end:
            break
        tag, _, payload, position = next(wire.fields(data, position, end))
        if tag == _LINE:
            plane.lines.append(_read_line(data, payload, position))
            shared.count_line()
        elif tag == _EVENT_METADATA:
            _append(pieces, [data[payload:position]])
        elif tag == _STAT_METADATA:
            key, raw = _entry(data[payload:position])
            name, description = _stat_metadata(raw)
            plane.stat_names[key] = _text(name)
            if description:
                described.append((key, description))
        elif tag == _PLANE_STAT:
            stats.append(data[payload:position])
        elif tag == _PLANE_NAME:
            plane.name = _text(data[payload:position])
        elif tag == _PLANE_ID:
            plane.plane_id = wire.signed(payload)
    names = plane.stat_names
    plane.stats = tuple(s for raw in stats if (s := _stat(raw, names)))
    plane.stat_descriptions = [(key, names[key], _text(description)) for key, description in described]
    shared.read(pieces, plane)
    return plane


def _append(pieces: list[_Metadata], entries: list[bytes]) -> None:
    """Append entries that will not be looked up, together with those right before them."""
    if pieces and not pieces[-1].raw:
        pieces[-1].entries += entries
    else:
        pieces.append(_Metadata(b"", entries))


def _cut_entries(piece: bytes) -> _Metadata:
    """Return the event metadata at the front of a plane's bytes, as long as each is whole and has at most 16 kB."""
    entries: list[bytes] = []
    last = len(piece) - 3
    at = 0
    while at < last and piece[at] == _EVENT_METADATA:
        length, payload = piece[at + 1], at + 2
        if length > 0x7F:
            length += (piece[at + 2] - 1) << 7
            payload += 1
            if piece[at + 2] > 0x7F:
                break
        if payload + length > len(piece):
            break
        entries.append(piece[payload : payload + length])
        at = payload + length
    return _Metadata(piece[:at], entries)


def _entry(entry: bytes) -> tuple[int, bytes]:
    """Return key and value of a map entry. If the value occurs twice, both are merged by joining their bytes."""
    size = len(entry)
    if entry[:1] == b"\x08":  # as every writer emits it
        key, at = wire.read_varint(entry, 1, size)
        if entry[at : at + 1] == b"\x12":
            length, payload = wire.read_varint(entry, at + 1, size)
            if payload + length == size and payload - at - 1 <= wire.MAX_LENGTH_BYTES:
                return wire.signed(key), entry[payload:]
    key, values = 0, []
    for tag, _, payload, stop in wire.fields(entry, 0, size):
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

    Most stats are short and occur in many metadata, so `known` keeps them by their bytes.
    """
    name = display_name = metadata = b""
    stats: list[Stat] = []
    children: list[int] = []
    stop, end = 0, len(raw)
    while stop < end:
        tag, payload, stop = wire.one_field(raw, stop, end)
        if tag == _METADATA_STAT:
            own = raw[payload:stop]
            if own in known:
                stat = known[own]
            else:
                stat = _stat(own, names)
                if len(own) <= _SHORT_STAT:
                    known[own] = stat
            if stat:
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
    """Read an XStat; None if it has no value."""
    stat_id = tag = at = stop = 0
    end = len(raw)
    if end > 3 and raw[0] == _STAT_ID and raw[1] < 0x80:  # as writers emit it: an id, then a value
        stat_id, tag = raw[1], raw[2]
        if tag in _TEXT_TAGS:
            if raw[3] < 0x80:
                at = 4
                stop = 4 + raw[3]
            else:
                length, at = wire.read_varint(raw, 3, end)
                stop = at + length if at <= 3 + wire.MAX_LENGTH_BYTES else 0
        elif tag in _VARINT_TAGS:
            at, stop = wire.read_varint(raw, 3, end)
    if stop != end:
        stat_id = tag = 0
        for known, _, payload, after in wire.fields(raw, 0, end):
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
    name = names.get(stat_id)
    return Stat(f"stat {stat_id}" if name is None else name, _KIND_OF_TAG[tag], value)


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
