"""Protobuf's wire format in numpy: the events of a line advance through their fields in lockstep.

Python runs per field of a block of events, not per event. Every access goes through bounds-checked
arrays; whatever is not a legal encoding raises MalformedError (or IndexError, which callers turn into it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from ingest.errors import MalformedError
from ingest.records import Int32, Int64, StatKind, UInt8, UInt64

U = np.uint64
Buffer = Any
"""Anything whose items and slices are bytes: a memory map, bytes, or an array of uint8."""

EVENT_TAG = 0x22  # field 4 of XLine, and of XEvent its stats: both length-delimited
WINDOW = 8 << 20
_LINE_HEADER_TAGS = (0x08, 0x12, 0x18)  # id, name, timestamp_ns: the reader has them before it decodes events
_HUGE = 1 << 40  # lengths and ids are capped here, far beyond any file, so that sums of them stay in int64
_PAD = 16  # a varint is read as two words of eight bytes


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """The varint at `position` and the position after it.

    Raises:
        MalformedError: it does not end before `end`, or has more than ten bytes.
    """
    value = shift = 0
    while True:
        if position >= end or shift > 63:
            raise MalformedError(f"truncated or overlong varint at byte {position}")
        byte = int(data[position])
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position


def fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message data[position:end]: (number, start, payload, stop).

    `payload` is the value of a varint, and the start of the content of every other field.

    Raises:
        MalformedError: a field does not fit the message, or is of a wire type that proto3 does not write.
    """
    while position < end:
        start = position
        tag, position = read_varint(data, position, end)
        wire_type = tag & 7
        if tag < 8 or wire_type not in (0, 1, 2, 5):
            raise MalformedError(f"field tag {tag} at byte {start}")
        if wire_type == 0:
            payload, position = read_varint(data, position, end)
        elif wire_type == 2:
            length, payload = read_varint(data, position, end)
            position = payload + length
        else:
            payload = position
            position += 8 if wire_type == 1 else 4
        if position > end:
            raise MalformedError(f"field at byte {start} runs past the end of its message")
        yield tag >> 3, start, payload, position


@dataclass(frozen=True)
class Words:
    """Bytes, and the same bytes as overlapping little-endian 64-bit words, one at every position."""

    data: UInt8
    words: UInt64

    @classmethod
    def over(cls, data: UInt8) -> Words:
        """View `data`; nothing is copied."""
        if data.size < 8:
            data = np.append(data, np.zeros(8 - data.size, np.uint8))
        return cls(data, np.ndarray((data.size - 7,), "<u8", data, strides=(1,)))

    @classmethod
    def padded(cls, data: UInt8) -> Words:
        """A copy of `data` that can be read as words up to its last byte."""
        return cls.over(np.append(data, np.zeros(_PAD, np.uint8)))

    @staticmethod
    def needs_padding(end: int, size: int) -> bool:
        """Whether events that end at `end` are too near the end of `size` bytes to be read as words."""
        return end + _PAD > size


def event_starts(data: UInt8, start: int, end: int, window: int = WINDOW) -> Iterator[Int64]:
    """Offsets of the events (field 4) of the XLine in data[start:end], a window at a time.

    Writers emit an event as `22 len 08 id... 10 ...`. Positions with that pattern are candidates for a whole
    window at once, and only those are kept that the chain start + 2 + length visits from the line's first
    byte on, so that every offset is proved. Fields of any other shape are stepped over one by one.

    Raises:
        MalformedError: the fields do not fit the line.
    """
    size = end - start
    low = 0
    has_events = False
    while low < size:
        view = data[start + low : min(end, start + low + window)]
        is_last = low + len(view) == size
        chain = _Chain(view) if len(view) > 4096 else None
        bytes_of = view if chain else view.tobytes()
        found: list[Any] = []
        position = 0
        while position < len(view):
            run = chain.run_from(position) if chain else None
            if run is not None:
                found.append(run[0])
                position = run[1]
                has_events = True
            elif len(view) - position < 32 and not is_last:
                break  # cut by the window: seen whole in the next one
            else:
                if bytes_of[position] == EVENT_TAG:
                    found.append(np.array([position], np.int64))
                    has_events = True
                elif has_events and bytes_of[position] in _LINE_HEADER_TAGS:
                    raise MalformedError("a line's id, name or timestamp stands after its events")
                position = _after_field(bytes_of, position, len(view), is_last)
        low += position
        if low > size:
            raise MalformedError(f"an event runs past the end of its line at byte {end}")
        if found:
            yield np.concatenate(found) + (start + low - position)


class _Chain:
    """The candidates for events of a window, and where the chain through them breaks."""

    def __init__(self, view: UInt8) -> None:
        at = np.flatnonzero((view[:-5] == EVENT_TAG) & (view[2:-3] == 0x08))
        has_long_id = view[at + 3] > 0x7F
        after_id = np.where(has_long_id, (view[at + 4] > 0x7F) | (view[at + 5] == 0x10), view[at + 4] == 0x10)
        self.at = at[(view[at + 1] < 0x80) & after_id]
        self.next = self.at + 2 + view[self.at + 1]
        self.breaks = np.append(np.flatnonzero(self.next[:-1] != self.at[1:]), len(self.at) - 1)

    def run_from(self, position: int) -> tuple[Int64, int] | None:
        """Candidates that follow each other without a gap from `position`, and the position after them."""
        i = int(self.at.searchsorted(position))
        if i == len(self.at) or self.at[i] != position:
            return None
        last = self.breaks[self.breaks.searchsorted(i)]
        return self.at[i : last + 1], int(self.next[last])


def _after_field(data: Buffer, position: int, size: int, is_last: bool) -> int:
    """Position after the field, which may lie beyond a window that is not the line's last."""
    tag, after = read_varint(data, position, size)
    wire_type = tag & 7
    if tag < 8 or wire_type not in (0, 1, 2, 5):
        raise MalformedError(f"field tag {tag} in a line")
    if wire_type == 0:
        return read_varint(data, after, size)[1]
    if wire_type == 2:
        length, after = read_varint(data, after, size)
    else:
        length = 8 if wire_type == 1 else 4
    if is_last and after + length > size:
        raise MalformedError("a field runs past the end of its line")
    return after + min(length, _HUGE)


def _squeeze(x: UInt64) -> UInt64:
    """Drop the top bit of each of the eight bytes and close the gaps."""
    x = (x & U(0x007F007F007F007F)) | ((x & U(0x7F007F007F007F00)) >> U(1))
    x = (x & U(0x00003FFF00003FFF)) | ((x & U(0x3FFF00003FFF0000)) >> U(2))
    return (x & U(0x0FFFFFFF)) | ((x & U(0x0FFFFFFF00000000)) >> U(4))


def varints(source: Words, at: Int64) -> tuple[UInt64, Int64]:
    """The varints at positions `at`, and the positions after them, without a loop over their bytes.

    Raises:
        MalformedError: one has more than ten bytes.
    """
    x = source.words[at]
    stops = ~x & U(0x8080808080808080)
    first_stop = stops & (~stops + U(1))
    after = at + (np.bitwise_count(first_stop - U(1)) >> 3).astype(np.int64) + 1
    is_long = np.flatnonzero(stops == 0)
    value = _squeeze(x & (first_stop | (first_stop - U(1))) & U(0x7F7F7F7F7F7F7F7F))
    if len(is_long):
        p = at[is_long]
        rest = source.words[p + 8]
        has_tenth = (rest & U(0x80)) != 0
        if (has_tenth & (rest & U(0x8000) != 0)).any():
            raise MalformedError("a varint has more than ten bytes")
        low = _squeeze(source.words[p] & U(0x7F7F7F7F7F7F7F7F))
        value[is_long] = low | (rest & U(0x7F)) << U(56) | (has_tenth * (rest >> U(8) & U(1))) << U(63)
        after[is_long] = p + 9 + has_tenth
    return value, after


def lengths(source: Words, at: Int64) -> tuple[Int64, Int64]:
    """Varints that nearly always have one byte: int64 values, capped far above any file size."""
    value = source.data[at]
    if value.max(initial=0) < 0x80:
        return value.astype(np.int64), at + 1
    wide, after = varints(source, at)
    return np.minimum(wide, U(_HUGE)).view(np.int64), after


@dataclass
class StatBlock:
    """Stats met in one step of the lockstep: rows of the block, stat ids, kinds and raw values.

    A string's or bytes' value is the position of its length prefix.
    """

    rows: Int64
    ids: Int64
    kinds: UInt8
    values: UInt64


@dataclass
class EventBlock:
    """Decoded events: raw varint fields of XEvent and their stats."""

    metadata_id: Int64
    offset_ps: Int64
    duration_ps: Int64
    occurrences: UInt64
    has_occurrences: bool = False
    stats: list[StatBlock] = field(default_factory=list)


def decode_events(source: Words, starts: Int64) -> EventBlock:
    """The events whose tags stand at `starts`.

    Raises:
        MalformedError: a field or stat does not fit its event.
        IndexError: a position lies outside the bytes.
    """
    n = len(starts)
    columns = np.zeros((4, n), np.uint64)
    block = EventBlock(columns[0].view(np.int64), columns[1].view(np.int64), columns[2].view(np.int64), columns[3])
    size, at = lengths(source, starts + 1)
    end = at + size
    rows = np.arange(n)
    while len(at):
        is_open = at < end
        if not is_open.all():
            if (at > end).any():
                raise MalformedError("a field runs past the end of its event")
            at, end, rows = at[is_open], end[is_open], rows[is_open]
            continue
        tags = source.data[at]
        if (tags == tags[0]).all():
            at = _event_field(source, block, columns, int(tags[0]), rows, at + 1, end)
        else:
            after = np.empty_like(at)
            for tag in np.flatnonzero(np.bincount(tags)).tolist():
                s = np.flatnonzero(tags == tag)
                after[s] = _event_field(source, block, columns, tag, rows[s], at[s] + 1, end[s])
            at = after
    return block


_COLUMN_OF_TAG = {0x08: 0, 0x10: 1, 0x18: 2, 0x28: 3}  # metadata_id, offset_ps, duration_ps, num_occurrences


def _event_field(
    source: Words, block: EventBlock, columns: UInt64, tag: int, rows: Int64, at: Int64, end: Int64
) -> Int64:
    if tag == EVENT_TAG:
        size, at = lengths(source, at)
        after = at + size
        if (after > end).any():
            raise MalformedError("a stat runs past the end of its event")
        block.stats.append(_stats(source, rows, at, after))
        return after
    if tag in _COLUMN_OF_TAG:
        values, after = varints(source, at)
        columns[_COLUMN_OF_TAG[tag], rows] = values
        if tag == 0x28:  # offset_ps and num_occurrences exclude each other; the later one counts
            block.has_occurrences = True
            columns[1, rows] = 0
        elif tag == 0x10 and block.has_occurrences:
            columns[3, rows] = 0
        return after
    return np.array([_skip(source.data, int(a) - 1, int(e)) for a, e in zip(at, end, strict=True)], np.int64)


def _skip(data: UInt8, position: int, end: int) -> int:
    return next(fields(data, position, end))[3]


_KIND_OF_TAG = np.zeros(256, np.uint8)
_KIND_OF_TAG[[0x11, 0x18, 0x20, 0x2A, 0x32, 0x38]] = [
    StatKind.DOUBLE, StatKind.UINT64, StatKind.INT64, StatKind.STRING, StatKind.BYTES, StatKind.REF,
]  # fmt: skip
_VARINT_KINDS = (StatKind.UINT64, StatKind.INT64, StatKind.REF)


def _stats(source: Words, rows: Int64, start: Int64, end: Int64) -> StatBlock:
    """XStats data[start:end]: an id and then at most one value, as every writer emits them; others one by one."""
    ids, at = lengths(source, start + 1)
    kinds = _KIND_OF_TAG[source.data[np.minimum(at, end - 1)]]
    kinds[at >= end] = 0
    values = np.zeros(len(at), np.uint64)
    first = int(kinds[0])
    if first in _VARINT_KINDS and (kinds == first).all():
        values, after = varints(source, at + 1)
    else:
        after = at.copy()
        for kind in np.flatnonzero(np.bincount(kinds)).tolist():
            s = np.flatnonzero(kinds == kind)
            value_at = at[s] + 1
            if kind in _VARINT_KINDS:
                values[s], after[s] = varints(source, value_at)
            elif kind == StatKind.DOUBLE:
                values[s] = source.words[value_at]
                after[s] = value_at + 8
            elif kind:
                values[s] = value_at.view(np.uint64)
                size, text_at = lengths(source, value_at)
                after[s] = text_at + size
    odd = np.flatnonzero((after != end) | (source.data[start] != 0x08) | (end <= start))
    for i in odd.tolist():
        ids[i], kinds[i], values[i] = _odd_stat(source.data, int(start[i]), int(end[i]))
    return StatBlock(rows, ids, kinds, values)


def _odd_stat(data: UInt8, start: int, end: int) -> tuple[int, int, int]:
    """One XStat whose fields stand in any order: id, kind, value."""
    stat_id = kind = value = 0
    for _, tag_at, payload, stop in fields(data, start, end):
        tag = int(data[tag_at])
        if tag == 0x08:
            stat_id = payload
        elif int(_KIND_OF_TAG[tag]):
            kind = int(_KIND_OF_TAG[tag])
            if kind == StatKind.DOUBLE:
                value = int.from_bytes(data[payload:stop].tobytes(), "little")
            elif kind in (StatKind.STRING, StatKind.BYTES):
                value = tag_at + 1
            else:
                value = payload
    return min(stat_id, _HUGE), kind, value % (1 << 64)


def distinct_texts(source: Words, prefixes: Int64) -> tuple[Int32, list[bytes]]:
    """The length-prefixed bytes at `prefixes`: a code per position, and the distinct texts in order of appearance.

    Raises:
        IndexError: a text lies outside the bytes.
    """
    size, at = lengths(source, prefixes)
    offsets = np.zeros(len(at) + 1, np.int64)
    np.cumsum(size, out=offsets[1:])
    if len(at) and int((at + size).max()) > source.data.size:
        raise IndexError("a text runs past the end of the bytes")
    content = source.data[np.arange(offsets[-1]) + np.repeat(at - offsets[:-1], size)]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    encoded = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(at), buffers).dictionary_encode()
    return np.asarray(encoded.indices), encoded.dictionary.to_pylist()
