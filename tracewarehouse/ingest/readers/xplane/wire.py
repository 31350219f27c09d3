"""Decodes protobuf's wire format in numpy: the events of a line advance through their fields in lockstep.

Python code runs once per field of a block of events, not once per event. Every access goes through bounds-checked
arrays. An illegal encoding raises MalformedError (or IndexError, which callers turn into it).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int64, StatKind, UInt8, UInt64
from tracewarehouse.ingest.errors import MalformedError

U = np.uint64
Buffer = Any
"""Any object whose items are bytes as Python integers: bytes, a memoryview, or FileBytes."""

EVENT_TAG = 0x22  # field 4 of XLine, and of XEvent its stats: both length-delimited
WINDOW = 1 << 20
"""Bytes of a line that are read at a time: few enough for their masks to stay in cache."""
_LINE_HEADER_TAGS = (0x08, 0x12, 0x18)  # id, name, timestamp_ns: the reader has them before it decodes events
_HUGE = 1 << 40  # lengths are capped here, far above any file, so that their sums stay in int64
_LONGEST_HEADER = 15  # bytes of a tag and a varint
MAX_LENGTH_BYTES = 5
"""Most bytes of a tag or length; every parser refuses more."""
PADDING = 16
"""Bytes that must follow the events, because a varint is read as two words of eight bytes."""


def read_varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """Return the varint at `position` and the position after it."""
    value = shift = 0
    while True:
        if position >= end or shift > 63:
            raise MalformedError(f"truncated or overlong varint at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position


def fields(data: Buffer, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the fields of the message data[position:end] as (tag, start, payload, stop).

    The tag combines the field's number and wire type, so a known field of an unexpected type is an unknown one, as the
    format demands. `payload` is the value of a varint, or the start of the content of any other field.
    """
    while position < end:
        start = position
        tag = data[start]
        if tag & 0x87 == 2 and tag > 7 and start + 1 < end and (length := data[start + 1]) < 0x80:  # as nearly all are
            payload = start + 2
            position = payload + length
        else:
            tag, payload, position = _field(data, start, end)
        if position > end:
            raise MalformedError(f"field at byte {start} runs past the end of its message")
        yield tag, start, payload, position


def _field(data: Buffer, start: int, end: int) -> tuple[int, int, int]:
    tag, at = data[start], start + 1
    if tag > 0x7F:
        tag, at = read_varint(data, start, end)
    wire_type = tag & 7
    # a tag in more bytes than it needs would hide a known field from comparisons of bytes
    if tag < 8 or tag >> 32 or wire_type not in (0, 1, 2, 5) or tag >> 7 * (at - start - 1) == 0:
        raise MalformedError(f"field tag {tag} at byte {start}")
    if wire_type == 0:
        return tag, *read_varint(data, at, end)
    if wire_type == 2:
        if at < end and (length := data[at]) < 0x80:
            return tag, at + 1, at + 1 + length
        length, payload = read_varint(data, at, end)
        if payload - at > MAX_LENGTH_BYTES:
            raise MalformedError(f"overlong length at byte {at}")
        return tag, payload, payload + length
    return tag, at, at + (8 if wire_type == 1 else 4)


@dataclass(frozen=True)
class Words:
    """Bytes, and the same bytes as overlapping little-endian 64-bit words, one per position."""

    data: UInt8
    words: UInt64

    @classmethod
    def over(cls, data: UInt8) -> Words:
        """View `data`, which has at least eight bytes, without a copy."""
        return cls(data, np.ndarray((data.size - 7,), "<u8", data, strides=(1,)))


Others = dict[int, int | bytes]
"""Fields of a line besides its events, by tag: a varint's value, or the content; the last one of a tag counts."""


def event_windows(
    read: Callable[[int, int, int], UInt8], start: int, end: int, window: int, others: Others | None = None
) -> Iterator[tuple[Words, Int64]]:
    """Yield the line's bytes [start:end] window by window, each with the positions of its whole events (field 4).

    `read(low, high, padding)` gives bytes. A window exceeds `window` bytes only if one field does. The fields between
    and after the events go into `others`.
    """
    scan = _LineScan(others if others is not None else {})
    low, size = start, window
    while low < end:
        high = min(end, low + size)
        source = Words.over(read(low, high, PADDING))
        starts, stop, needed = scan.events(source, high - low, high == end)
        if needed and low + stop + needed > end:
            raise MalformedError(f"an event runs past the end of its line at byte {end}")
        if len(starts):
            yield source, starts
        low += stop
        size = window if stop else needed


class _LineScan:
    """Finds the events of a line, window after window: each lies where the field before it ends.

    Writers emit an event as `22 len 08 id... 10 ...`. In a large window many walkers start at once where that pattern
    occurs. The other fields, and what is left where walkers are lost, are stepped over one by one.
    """

    def __init__(self, others: Others) -> None:
        self._others = others
        self._has_events = False

    def events(self, source: Words, size: int, is_last: bool) -> tuple[Int64, int, int]:
        """Return the whole events in the first `size` bytes, the position after them, and the size of a cut field."""
        data = source.data.data
        walked, places = np.zeros(0, np.int64), array("q")
        position = needed = 0
        if size > FEW_BYTES:
            walked, position = _walk(source, self._skip_to_event(data, size), size)
            self._has_events = self._has_events or len(walked) > 0
        while position < size:
            position = _step_over_events(data, position, size, places)
            self._has_events = self._has_events or bool(places)
            if position == size or (not is_last and size - position < _LONGEST_HEADER):
                break
            after = self._after(data, position, size)
            if after > size:
                needed = min(after, _HUGE) - position
                break
            if data[position] == EVENT_TAG:
                places.append(position)
            position = after
        return np.append(walked, np.array(places, np.int64)), position, needed

    def _skip_to_event(self, data: memoryview, size: int) -> int:
        """Return the position of the first event, or of a cut field before it."""
        position = 0
        while size - position > _LONGEST_HEADER and data[position] != EVENT_TAG:
            after = self._after(data, position, size)
            if after > size:
                break
            position = after
        return position

    def _after(self, data: memoryview, position: int, size: int) -> int:
        """Return the position after the field at `position`, maybe beyond `size`; store the field if it is no event."""
        tag = data[position]
        if tag != EVENT_TAG and self._has_events and tag in _LINE_HEADER_TAGS:
            raise MalformedError("a line's id, name or timestamp stands after its events")
        known, payload, after = _field(data, position, size)
        if known != EVENT_TAG and after <= size:
            self._others[known] = payload if known & 7 == 0 else bytes(data[payload:after])
        return after


def _step_over_events(data: memoryview, position: int, size: int, places: array[int]) -> int:
    """Add consecutive whole events of under 128 bytes to `places`, and return the position after them."""
    last = size - 1
    while position < last and data[position] == EVENT_TAG and (length := data[position + 1]) < 0x80:
        after = position + 2 + length
        if after > size:
            break
        places.append(position)
        position = after
    return position


FEW_BYTES = 1 << 16
"""Most bytes that are walked one field at a time; for these, walkers would cost more time than they save."""
_STRIDES, _GUESS = (256, 512, 1024), 128
"""Bytes between two walkers of a window, and how far each searches for its first event."""
_ENOUGH_WALKERS = 512
"""Most walkers; more would cost more time than they save."""


def _walk(source: Words, start: int, size: int) -> tuple[Int64, int]:
    """Return the positions of consecutive whole events from `start` on, and the position after them.

    At regular distances a walker starts from what looks like an event. All walk from event to event in lockstep until
    they reach the start of the next walker. A walker counts only if the one before it arrives at its start; the first
    is proved.
    """
    stride = next((s for s in _STRIDES if size - start <= s * _ENOUGH_WALKERS), _STRIDES[-1])
    count = (size - start) // stride
    if count < 2:
        return np.zeros(0, np.int64), start
    heads = source.data[start : start + count * stride].reshape(count, stride)
    looks_right = heads[:, :_GUESS] == EVENT_TAG
    looks_right &= heads[:, 1 : _GUESS + 1] < 0x80
    looks_right &= heads[:, 2 : _GUESS + 2] == 0x08
    at = np.flatnonzero(looks_right)  # of a flat view: two dimensions take ten times as long
    guess = start + at + at // _GUESS * (stride - _GUESS)
    guess = guess[_has_offset_after_id(source.data, guess)]
    begin = np.append(start, guess[guess >= start + stride])
    begin = begin[np.append(True, np.diff((begin - start) // stride) > 0)]
    if len(begin) < count // 2:
        return np.zeros(0, np.int64), start
    end = np.append(begin[1:], size)
    words = source.words.view(np.int64)
    steps = [begin]
    for _ in range(4 * stride // 16):
        at = steps[-1]
        word = words[at]
        after = word >> 8
        after &= 0xFF
        after += at
        after += 2
        word &= 0x80FF
        moves = word == EVENT_TAG
        if not moves.all():
            long = np.flatnonzero(word == 0x80 << 8 | EVENT_TAG)
            length = (words[at[long]] >> 8) & 0xFFFF
            after[long] = at[long] + (length & 0x7F) + (length >> 8 << 7) + 3
            moves[long] = length < 0x8000
        moves &= at < end
        moves &= after <= size
        if not moves.any():
            break
        steps.append(np.where(moves, after, at))
    at = np.array(steps).T
    lost = np.flatnonzero(at[:-1, -1] != begin[1:])
    walkers = int(lost[0]) + 1 if len(lost) else len(begin)
    at = at[:walkers]
    return at[:, :-1][at[:, 1:] > at[:, :-1]], int(at[-1, -1])


def _has_offset_after_id(data: UInt8, at: Int64) -> npt.NDArray[np.bool_]:
    """Return whether the tag of offset_ps follows an id of at most three bytes, which tells events from stats."""
    id_bytes = (data[at + 3] >> 7).astype(np.int64)
    id_bytes += id_bytes & (data[at + 4] >> 7)
    is_offset: npt.NDArray[np.bool_] = data[at + 4 + id_bytes] == 0x10
    return is_offset


def varints(source: Words, at: Int64) -> tuple[UInt64, Int64]:
    """Read the varints at positions `at`, and the positions after them, without a loop over their bytes."""
    value = source.words[at]
    own = ~value
    own &= U(0x8080808080808080)  # set in a varint's last byte and in the bytes after it
    is_short = own.all()
    spare = own - U(1)
    own ^= spare  # the bits up to the first stop: the varint's own, or all if it is longer
    after = at + (np.bitwise_count(own) >> 3)
    value &= own
    value &= U(0x7F7F7F7F7F7F7F7F)
    # close the gaps between groups of 7 bits, then of 14, then of 28: x - (upper groups) * (1 - 2^-gap)
    for upper, gap in ((0x7F007F007F007F00, 1), (0x3FFF00003FFF0000, 2), (0x0FFFFFFF00000000, 4)):
        np.bitwise_and(value, U(upper), out=spare)
        spare >>= U(gap)
        spare *= U((1 << gap) - 1)
        value -= spare
    if not is_short:
        is_long = np.flatnonzero((after - at == 8) & (source.data[at + 7] > 0x7F))
        rest = source.words[at[is_long] + 8]
        has_tenth = (rest & U(0x80)) != 0
        if (has_tenth & (rest & U(0x8000) != 0)).any():
            raise MalformedError("a varint has more than ten bytes")
        value[is_long] |= (rest & U(0x7F)) << U(56) | (has_tenth * (rest >> U(8) & U(1))) << U(63)
        after[is_long] += 1 + has_tenth
    return value, after


def lengths(source: Words, at: Int64) -> tuple[Int64, Int64]:
    """Read lengths, which nearly always have one byte, as int64 values capped far above any file size."""
    value = source.data[at]
    if value.max(initial=0) < 0x80:
        return value.astype(np.int64), at + 1
    wide, after = varints(source, at)
    if (after - at > MAX_LENGTH_BYTES).any():
        raise MalformedError("overlong length")
    return np.minimum(wide, U(_HUGE)).view(np.int64), after


def _stat_ids(source: Words, at: Int64) -> tuple[Int64, Int64]:
    value = source.data[at]
    if value.max(initial=0) < 0x80:
        return value.astype(np.int64), at + 1
    wide, after = varints(source, at)
    return wide.view(np.int64), after


@dataclass
class StatBlock:
    """Stats of one step of the lockstep: rows of the block, stat ids, kinds and raw values.

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
    """Decode the events whose tags are at `starts`."""
    n = len(starts)
    columns = np.zeros((4, n), np.uint64)
    block = EventBlock(columns[0].view(np.int64), columns[1].view(np.int64), columns[2].view(np.int64), columns[3])
    size, at = lengths(source, starts + 1)
    end = at + size
    rows = np.arange(n)
    rounds = 0
    while len(at):
        is_open = at < end
        if not is_open.all():
            if (at > end).any():
                raise MalformedError("a field runs past the end of its event")
            at, end, rows = at[is_open], end[is_open], rows[is_open]
            continue
        rounds += 1
        if rounds > _MANY_FIELDS and len(at) < _FEW_EVENTS:
            for row, start, stop in zip(rows.tolist(), at.tolist(), end.tolist(), strict=True):
                _rest_of_event(source, block, columns, row, start, stop)
            break
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
_MANY_FIELDS, _FEW_EVENTS = 128, 64
"""Fewer events with more fields than this are finished one by one, because a step of the lockstep costs more."""


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
        are_all = len(rows) == columns.shape[1]
        _set_column(block, columns, tag, slice(None) if are_all else rows, values)
        return after
    data = source.data.data
    return np.array([next(fields(data, a - 1, e))[3] for a, e in zip(at.tolist(), end.tolist(), strict=True)], np.int64)


def _set_column(block: EventBlock, columns: UInt64, tag: int, rows: Int64 | slice | int, values: UInt64 | int) -> None:
    columns[_COLUMN_OF_TAG[tag], rows] = values
    if tag == 0x28:  # offset_ps and num_occurrences exclude each other; the later one counts
        block.has_occurrences = True
        columns[1, rows] = 0
    elif tag == 0x10 and block.has_occurrences:
        columns[3, rows] = 0


def _rest_of_event(source: Words, block: EventBlock, columns: UInt64, row: int, start: int, end: int) -> None:
    """Decode the fields [start:end] of one event, whose stats become one block."""
    first, last = array("q"), array("q")
    for tag, _, payload, stop in fields(source.data.data, start, end):
        if tag == EVENT_TAG:
            first.append(payload)
            last.append(stop)
        elif tag in _COLUMN_OF_TAG:
            _set_column(block, columns, tag, row, payload)
    if first:
        rows = np.full(len(first), row)
        block.stats.append(_stats(source, rows, np.array(first, np.int64), np.array(last, np.int64)))


_KIND_OF_TAG = np.zeros(256, np.uint8)
_KIND_OF_TAG[[0x11, 0x18, 0x20, 0x2A, 0x32, 0x38]] = [
    StatKind.DOUBLE, StatKind.UINT64, StatKind.INT64, StatKind.STRING, StatKind.BYTES, StatKind.REF,
]  # fmt: skip
_VARINT_KINDS = (StatKind.UINT64, StatKind.INT64, StatKind.REF)


def _stats(source: Words, rows: Int64, start: Int64, end: Int64) -> StatBlock:
    """Decode XStats with an id and then at most one value, as every writer emits them, together; others one by one."""
    ids, at = _stat_ids(source, start + 1)
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
    if len(odd):
        data = source.data.data
        for i in odd.tolist():
            ids[i], kinds[i], values[i] = _odd_stat(data, int(start[i]), int(end[i]))
    return StatBlock(rows, ids, kinds, values)


def _odd_stat(data: memoryview, start: int, end: int) -> tuple[int, int, int]:
    """Decode one XStat whose fields come in any order: id, kind, value."""
    stat_id = kind = value = 0
    for tag, tag_at, payload, stop in fields(data, start, end):
        if tag == 0x08:
            stat_id = signed(payload)
        elif tag < 256 and _KIND_OF_TAG[tag]:
            kind = int(_KIND_OF_TAG[tag])
            if kind == StatKind.DOUBLE:
                value = int.from_bytes(data[payload:stop], "little")
            elif kind in (StatKind.STRING, StatKind.BYTES):
                value = tag_at + 1
            else:
                value = payload
    return stat_id, kind, value


def signed(value: int) -> int:
    """Return a varint's 64 bits as the int64 that they mean."""
    return value - (1 << 64) if value >> 63 else value


def distinct_texts(source: Words, prefixes: Int64) -> tuple[Int64, list[bytes]]:
    """Read the length-prefixed bytes at `prefixes`: a code per position, and the distinct texts."""
    size, at = lengths(source, prefixes)
    if len(at) and int((at + size).max()) > source.data.size:
        raise IndexError("a text runs past the end of the bytes")
    data = source.data.data
    index: dict[bytes, int] = {}
    texts = (bytes(data[a:z]) for a, z in zip(at.tolist(), (at + size).tolist(), strict=True))
    return np.array([index.setdefault(text, len(index)) for text in texts], np.int64), list(index)
