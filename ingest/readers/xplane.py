"""Reader of xplane.pb: a serialized XSpace, as every XLA profiler writes it.

Planes, lines and event metadata are few and read one by one; the events of a line are decoded in blocks
of numpy columns by `ingest.readers.wire`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from google.protobuf.message import DecodeError

from ingest.errors import CaptureError, MalformedError
from ingest.readers import wire
from ingest.readers.files import CaptureFile
from ingest.readers.messages import XPLANE
from ingest.records import (
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

BLOCK = 1 << 15
"""Events decoded together: enough to make Python's share small, few enough for their columns to stay in cache."""
_RELEASE = 1 << 22  # bytes read after which their pages are given back
_WHOLE_TABLE = 1 << 22  # metadata ids below this are looked up in a table, others by search
_VALUE_FIELD = {
    "double_value": StatKind.DOUBLE,
    "uint64_value": StatKind.UINT64,
    "int64_value": StatKind.INT64,
    "str_value": StatKind.STRING,
    "bytes_value": StatKind.BYTES,
    "ref_value": StatKind.REF,
}


@dataclass
class _XPlane(Plane):
    stat_names: dict[int, str] = field(default_factory=dict)
    rows: _RowOfId = field(default_factory=lambda: _RowOfId([]))


class _RowOfId:
    """Row of `event_metadata` for metadata ids; -1 for an id that names none."""

    def __init__(self, ids: list[int]) -> None:
        by_id = {i: row for row, i in enumerate(ids)}  # a key given twice: the last one counts, as in protobuf
        self._ids = np.array(sorted(by_id), np.int64)
        self._rows = np.array([by_id[i] for i in self._ids.tolist()], np.int32)
        self._table: Int32 | None = None
        if len(self._ids) and self._ids[0] >= 0 and self._ids[-1] < _WHOLE_TABLE:
            self._table = np.full(int(self._ids[-1]) + 2, -1, np.int32)
            self._table[self._ids] = self._rows

    def __call__(self, ids: Int64) -> Int32:
        if not len(self._ids):
            return np.full(len(ids), -1, np.int32)
        if self._table is not None:
            found = self._table.take(ids, mode="clip")
            return np.where(ids < 0, np.int32(-1), found) if ids.min(initial=0) < 0 else found
        at = self._ids.searchsorted(ids).clip(max=len(self._ids) - 1)
        return np.where(self._ids[at] == ids, self._rows[at], np.int32(-1))


class XPlaneTrace:
    """One xplane.pb, opened: planes and metadata read, events still in the file."""

    format = "xplane"

    def __init__(self, file: CaptureFile) -> None:
        self.digest, self.size = file.digest, file.size
        self._map = file.open()
        self._words = wire.Words.over(np.frombuffer(self._map, np.uint8))
        self.planes: list[Plane] = []
        texts: dict[int, list[str]] = {2: [], 3: [], 4: []}
        metadata: dict[Any, EventMetadata] = {}
        try:
            for number, _, payload, stop in wire.fields(self._map, 0, self.size):
                if number == 1:
                    self.planes.append(_read_plane(self._map, payload, stop, metadata))
                elif number in texts:
                    texts[number].append(_text(self._map[payload:stop]))
        except (MalformedError, DecodeError, TypeError, ValueError) as error:
            raise MalformedError(f"{file.path.name}: not a complete xplane.pb: {error}") from None
        self.errors, self.warnings, self.hostnames = texts[2], texts[3], texts[4]
        self._name = file.path.name
        if not self.planes:
            raise MalformedError(f"{self._name}: an xplane.pb without planes; nothing was profiled")

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order.

        Raises:
            MalformedError: the bytes are not events.
        """
        try:
            yield from self._batches(cast(_XPlane, plane), line)
        except (MalformedError, IndexError) as error:
            raise MalformedError(f"{self._name}: line {line.name!r} of plane {plane.name!r}: {error}") from None

    def _batches(self, plane: _XPlane, line: Line) -> Iterator[EventBatch]:
        source, start, end = self._words, line.start, line.end
        if wire.Words.needs_padding(end, self.size):
            source, start, end = wire.Words.padded(source.data[start:end]), 0, end - start
        released = start
        for starts in wire.event_starts(source.data, start, end):
            for low in range(0, len(starts), BLOCK):
                block = wire.decode_events(source, starts[low : low + BLOCK])
                yield _batch(source, plane, line, block)
            last = int(starts[-1])
            if source is self._words and last - released > _RELEASE:
                page = mmap.PAGESIZE
                first = (released + page - 1) // page * page
                self._map.madvise(mmap.MADV_DONTNEED, first, last // page * page - first)
                released = last


def read_xplane(path: Path | CaptureFile) -> XPlaneTrace:
    """Open an xplane.pb or xplane.pb.gz.

    Raises:
        CaptureError: the file is missing, empty or not readable.
        MalformedError: it is not a complete XSpace.
    """
    return XPlaneTrace(path if isinstance(path, CaptureFile) else CaptureFile(path))


def profile_window(path: Path) -> tuple[int, int] | None:
    """Start and stop of the profile in Unix nanoseconds; None where the capture does not say or is damaged."""
    try:
        file = CaptureFile(path)
        data = file.open()
        for number, _, payload, stop in wire.fields(data, 0, file.size):
            if number != 1:
                continue
            for inner, _, name_at, name_stop in wire.fields(data, payload, stop):
                if inner == 2:
                    if data[name_at:name_stop] == b"Task Environment":
                        plane = _read_plane(data, payload, stop, {})
                        times = {s.name: s.value for s in plane.stats}
                        return int(times["profile_start_time"]), int(times["profile_stop_time"])
                    break
    except (CaptureError, DecodeError, KeyError, ValueError):
        return None
    return None


def _batch(source: wire.Words, plane: _XPlane, line: Line, block: wire.EventBlock) -> EventBatch:
    start = block.offset_ps + np.int64(line.timestamp_ns * 1000) if line.timestamp_ns else block.offset_ps
    stats = list(_stat_columns(source, plane, block))
    if block.has_occurrences:
        rows = np.flatnonzero(block.occurrences)
        kinds = np.full(len(rows), StatKind.INT64, np.uint8)
        stats.append(StatColumn("num_occurrences", rows, kinds, block.occurrences[rows]))
    return EventBatch(plane.rows(block.metadata_id), start, block.duration_ps, stats)


def _stat_columns(source: wire.Words, plane: _XPlane, block: wire.EventBlock) -> Iterator[StatColumn]:
    """The block's stats, regrouped by name."""
    parts: dict[int, list[wire.StatBlock]] = {}
    for s in block.stats:
        first = int(s.ids[0])
        if (s.ids == first).all():
            parts.setdefault(first, []).append(s)
            continue
        for stat_id in np.unique(s.ids).tolist():
            at = np.flatnonzero(s.ids == stat_id)
            piece = wire.StatBlock(s.rows[at], s.ids[at], s.kinds[at], s.values[at])
            parts.setdefault(stat_id, []).append(piece)
    for stat_id, pieces in parts.items():
        name = plane.stat_names.get(stat_id)
        if name is None:
            name = f"stat {stat_id}"  # the capture does not name it; its value is kept
        rows, kinds, values = (
            np.concatenate(x) for x in zip(*((p.rows, p.kinds, p.values) for p in pieces), strict=True)
        )
        if len(pieces) > 1:
            order = np.argsort(rows, kind="stable")
            rows, kinds, values = rows[order], kinds[order], values[order]
        if not kinds.all():
            has_value = np.flatnonzero(kinds)
            rows, kinds, values = rows[has_value], kinds[has_value], values[has_value]
        if len(rows):
            yield _resolved(source, plane, name, rows, kinds, values)


def _resolved(source: wire.Words, plane: _XPlane, name: str, rows: Int64, kinds: UInt8, values: UInt64) -> StatColumn:
    """A stat column whose strings, bytes and references are indices into their distinct texts."""
    texts: list[bytes] = []
    for kind in (StatKind.STRING, StatKind.BYTES, StatKind.REF):
        at = np.flatnonzero(kinds == kind)
        if not len(at):
            continue
        codes: Any
        if kind == StatKind.REF:
            ids, codes = np.unique(values[at], return_inverse=True)
            found = [plane.stat_names.get(i, f"ref {i}").encode() for i in ids.tolist()]
        else:
            codes, found = wire.distinct_texts(source, values[at].view(np.int64))
        values[at] = codes.astype(np.uint64) + np.uint64(len(texts))
        texts += found
    return StatColumn(name, rows, kinds, values, texts)


def _read_plane(data: mmap.mmap | bytes, start: int, end: int, shared: dict[Any, EventMetadata]) -> _XPlane:
    rest = bytearray()
    spans: list[tuple[int, int]] = []
    entries: list[tuple[int, int]] = []
    for number, tag_at, payload, stop in wire.fields(data, start, end):
        if number == 3:
            spans.append((payload, stop))
        elif number == 4:
            entries.append((payload, stop))
        else:
            rest += data[tag_at:stop]
    message = XPLANE["XPlane"].FromString(bytes(rest))
    names = {e.key: _text(e.value.name) for e in message.stat_metadata}
    plane = _XPlane(_text(message.name), message.id, tuple(_stats(message.stats, names)), stat_names=names)
    plane.lines = [_read_line(data, a, z) for a, z in spans]
    naming = hash(tuple(sorted(names.items())))
    for a, z in entries:
        key, raw = _entry(data, a, z)
        found = shared.get((naming, raw))
        if found is None:
            m = XPLANE["XEventMetadata"].FromString(raw)
            stats = tuple(_stats(m.stats, names))
            if m.metadata:
                stats += (Stat("metadata", StatKind.BYTES, m.metadata),)
            found = shared[naming, raw] = EventMetadata(_text(m.name), _text(m.display_name), stats)
        plane.metadata_ids.append(key)
        plane.event_metadata.append(found)
    plane.rows = _RowOfId(plane.metadata_ids)
    return plane


def _entry(data: mmap.mmap | bytes, start: int, end: int) -> tuple[int, bytes]:
    """A map entry: its key, and the XEventMetadata without its id, so that equal content has equal bytes."""
    parts = list(wire.fields(data, start, end))
    if [p[0] for p in parts] in ([1, 2], [2]):
        _, _, payload, stop = parts[-1]
        key = parts[0][2] if len(parts) == 2 else 0
        raw = data[payload:stop]
    else:  # legal, though no writer does it: let protobuf merge
        message = XPLANE["EventMetadataEntry"].FromString(data[start:end])
        key, raw = message.key, message.value.SerializeToString(deterministic=True)
    if raw[:1] == b"\x08":
        raw = raw[wire.read_varint(raw, 1, len(raw))[1] :]
    return (key + (1 << 63)) % (1 << 64) - (1 << 63), raw


def _read_line(data: mmap.mmap | bytes, start: int, end: int) -> Line:
    line_id, name, timestamp = 0, "", 0
    for number, _, payload, stop in wire.fields(data, start, end):
        if number == 4:
            break
        if number == 1:
            line_id = (payload + (1 << 63)) % (1 << 64) - (1 << 63)
        elif number == 2:
            name = _text(data[payload:stop])
        elif number == 3:
            timestamp = (payload + (1 << 63)) % (1 << 64) - (1 << 63)
    return Line(name, line_id, timestamp, start, end)


def _stats(messages: Any, names: dict[int, str]) -> Iterator[Stat]:
    for m in messages:
        which = m.WhichOneof("value")
        if which is None:
            continue
        kind = _VALUE_FIELD[which]
        value = getattr(m, which)
        if kind == StatKind.REF:
            value = names.get(value, f"ref {value}")
        elif kind == StatKind.STRING:
            value = _text(value)
        yield Stat(names.get(m.metadata_id, f"stat {m.metadata_id}"), kind, value)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


__all__ = ["BLOCK", "CaptureError", "XPlaneTrace", "read_xplane"]
