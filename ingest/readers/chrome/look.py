"""Looks at many places of a text at once: the numbers that stand there, and whether given texts do.

A text has `MARGIN` bytes before and behind what is looked for, so that a number or word near its ends can be read
whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int64, UInt8, UInt64
from tracewarehouse.ingest.readers.chrome.chunks import MARGIN
from tracewarehouse.ingest.readers.chrome.times import (
    MAX_WHOLE,
    PS_PER_US,
    eight,
    leading,
    unaligned_words,
    whole_numbers,
)

START = b'{"ph":"X","pid":'
"""How an event begins that can be found."""
_TID, _TS, _DUR, _NAME = b',"tid":', b',"ts":', b',"dur":', b',"name":"'
_NAME_WORDS = 6
_HIGH, _THREES = np.uint64(0xF0F0F0F0F0F0F0F0), np.uint64(0x3030303030303030)
_TO_HIGH, _HIGH_BITS = np.uint64(0x7676767676767676), np.uint64(0x8080808080808080)
_LOW, _ONE, _EIGHT = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(1), np.uint64(8)
_BLOCK, _SMALLER = 128, (16, 32, 64)
"""Bytes that are compared together, of long texts and of shorter ones."""

_SCANNED, _COMPARED = 1 << 19, 1 << 18  # bytes searched and compared at a time: more would not stay near

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Decimals:
    """Decimal numbers in the text, each of shape (n,).

    Attributes:
        whole: what stands before the dot, up to 16 digits.
        parts: the first eight digits behind it, as an integer.
        high: where they end.
        is_plain: whether they are numbers without sign, exponent, leading zeros, or very many digits.
    """

    whole: Int64
    parts: Int64
    high: Int64
    is_plain: Bools

    def picoseconds(self, origin_us: int) -> tuple[Int64, Bools]:
        """Microseconds as picoseconds since the origin, and where that fits."""
        whole = self.whole - origin_us
        # to the nearest, from units of 10 fs
        return whole * PS_PER_US + (self.parts + 50) // 100, self.is_plain & (np.abs(whole) <= MAX_WHOLE)


class Texts:
    """Texts one behind the other."""

    def __init__(self) -> None:
        self._data: UInt8 = np.zeros(1 << 16, np.uint8)
        self._size = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_data": self._data[: self._size + MARGIN], "_size": self._size}  # without room for more

    @property
    def data(self) -> UInt8:
        """All texts, and some zeros behind them."""
        return self._data

    def add(self, texts: bytes) -> int:
        """Put texts behind the others; returns where they start."""
        start, self._size = self._size, self._size + len(texts)
        if self._size + MARGIN > len(self._data):
            larger = np.zeros(2 * (self._size + MARGIN), np.uint8)
            larger[:start] = self._data[:start]
            self._data = larger
        self._data[start : self._size] = np.frombuffer(texts, np.uint8)
        return start


class Look:
    """Looks at many places of a text at once, whose events are between the margins."""

    def __init__(self, text: memoryview) -> None:
        self._data = np.frombuffer(text, np.uint8)
        self._words = unaligned_words(self._data)

    def starts(self) -> Int64:
        """Where events seem to begin, ascending."""
        end = len(self._data) - MARGIN
        pieces = [self._data[low : min(low + _SCANNED, end)] for low in range(0, end, _SCANNED)]
        at = np.concatenate([(p == START[0]).nonzero()[0] + i * _SCANNED for i, p in enumerate(pieces)])
        first, second = (np.uint64(int.from_bytes(START[i : i + 8], "little")) for i in (0, 8))
        at = at[self._words[at] == first]
        found: Int64 = at[self._words[at + 8] == second]
        return found

    def heads(self, starts: Int64) -> Heads:
        """What events have up to their names."""
        pid, pid_end, has_pid = self.naturals(starts + len(START))
        tid, tid_end, has_tid = self.naturals(pid_end + len(_TID))
        ts = self.decimals(tid_end + len(_TS))
        dur = self.decimals(ts.high + len(_DUR))
        is_whole = has_pid & has_tid & ts.is_plain & dur.is_plain
        is_whole &= self._has(_TID, pid_end) & self._has(_TS, tid_end) & self._has(_DUR, ts.high)
        return Heads(pid, tid, ts, dur, is_whole)

    def keys(self, heads: Heads, ends: Int64) -> UInt64:
        """A key per event by its name and its last bytes; equal for repeats, shape (n,)."""
        name = self._bytes(heads.dur.high + len(_NAME), 8 * _NAME_WORDS)
        is_quote = name == ord('"')
        length = np.where(is_quote.any(axis=1), is_quote.argmax(axis=1), 8 * _NAME_WORDS)
        last = self._words[ends - 8]
        is_other = (last & _HIGH) ^ _THREES
        key = last & (is_other | (is_other >> np.uint64(4)))  # digits (and : ; < = > ?) count as nothing
        words = name.view(np.uint64)
        for i in range(_NAME_WORDS):
            key ^= leading(words[:, i], np.clip(length - 8 * i, 0, 8), is_raw=True)
            key *= np.uint64(0x9E3779B97F4A7C15)
            key ^= key >> np.uint64(29)
        return key

    def naturals(self, at: Int64) -> tuple[Int64, Int64, Bools]:
        """Integers of up to 16 digits that start at the places, where they end, and whether there are any."""
        at = self._inside(at)
        word = self._words[at]
        length = _digits(word)
        has_one = (length > 0) & ((length == 1) | (word & np.uint64(0xFF) != ord("0")))
        value = eight(word << (_EIGHT * (_EIGHT - np.maximum(length, 1).view(np.uint64))) & _LOW)
        long = np.flatnonzero(length == 8)
        if len(long):
            length[long] += _digits(self._words[at[long] + 8])
            value[long] = whole_numbers(self._words, at[long] + length[long], length[long])
        return value, at + length, has_one

    def decimals(self, at: Int64) -> Decimals:
        """Numbers without sign and exponent that start at the places."""
        whole, end, is_plain = self.naturals(at)
        has_dot = self._data[end] == ord(".")
        word = self._words[end + 1]
        length = _digits(word)
        parts = eight(leading(word, np.where(has_dot, length, 0)))
        for i in (1, 2):
            long = np.flatnonzero(length == 8 * i)
            if len(long):
                length[long] += _digits(self._words[end[long] + 1 + 8 * i])
        is_plain &= ~has_dot | ((length > 0) & (length < 24))
        return Decimals(whole, parts, end + np.where(has_dot, 1 + length, 0), is_plain)

    def equal(self, at: Int64, texts: Texts, starts: Int64, lengths: Int64) -> Bools:
        """Whether texts stand at the places, each of shape (n,)."""
        found = at + lengths <= len(self._data)
        rows = (found & (lengths >= _BLOCK)).nonzero()[0]
        if len(rows):
            found[rows] = self._equal_blocks(at[rows], texts, starts[rows], lengths[rows])
        for size in _SMALLER:
            rows = (found & (lengths >= size) & (lengths < 2 * size)).nonzero()[0]
            if len(rows):
                found[rows] = self._equal_ends(at[rows], texts, starts[rows], lengths[rows] - size, size)
        rows = (found & (lengths < _SMALLER[0])).nonzero()[0]
        if len(rows):
            found[rows] = self._equal_words(self._inside(at[rows]), texts, starts[rows], lengths[rows])
        return found

    def _equal_words(self, at: Int64, texts: Texts, starts: Int64, lengths: Int64) -> Bools:
        words = unaligned_words(texts.data)
        is_other = np.zeros(len(at), np.uint64)
        for low in (0, 8):
            count = np.clip(lengths - low, 0, 8)
            is_other |= leading(self._words[at + low] ^ words[starts + low], count, is_raw=True)
        found: Bools = is_other == 0
        return found

    def _equal_ends(self, at: Int64, texts: Texts, starts: Int64, rest: Int64, size: int) -> Bools:
        """The same for texts of `size` bytes and at most as many more."""
        found = np.ones(len(at), np.bool_)
        here, there = _blocks(self._data, size), _blocks(texts.data, size)
        for move in (0, rest):
            is_other = here[at + move].view(np.uint64) != there[starts + move].view(np.uint64)
            if is_other.any():
                found[np.flatnonzero(is_other) // (size // 8)] = False
        return found

    def _equal_blocks(self, at: Int64, texts: Texts, starts: Int64, lengths: Int64) -> Bools:
        """The same for texts of at least a block; the last block of each overlaps the one before."""
        size = _BLOCK
        counts = (lengths + (size - 1)) // size
        ends = np.cumsum(counts)
        place = np.arange(int(ends[-1]))
        place -= np.repeat(ends - counts, counts)
        place *= size
        np.minimum(place, np.repeat(lengths - size, counts), out=place)
        here, there = np.repeat(at, counts), np.repeat(starts, counts)
        here += place
        there += place
        found = np.ones(len(at), np.bool_)
        step = _COMPARED // size
        for low in range(0, len(place), step):
            part = _blocks(self._data, size)[here[low : low + step]].view(np.uint64)
            is_other = part != _blocks(texts.data, size)[there[low : low + step]].view(np.uint64)
            if is_other.any():
                block = low + np.flatnonzero(is_other) // (size // 8)
                found[np.searchsorted(ends, block, side="right")] = False
        return found

    def _bytes(self, at: Int64, size: int) -> UInt8:
        """Bytes from the places on, shape (n, size)."""
        found: UInt8 = _blocks(self._data, size)[self._inside(at)].view(np.uint8).reshape(len(at), size)
        return found

    def _has(self, text: bytes, at: Int64) -> Bools:
        """Whether a text of up to eight bytes stands at the places."""
        mask = np.uint64((1 << 8 * len(text)) - 1)
        found: Bools = self._words[at] & mask == np.uint64(int.from_bytes(text, "little"))
        return found

    def _inside(self, at: Int64) -> Int64:
        """The places, those behind the events in the margin."""
        return np.minimum(at, len(self._data) - MARGIN)


@dataclass(frozen=True)
class Heads:
    """What events have up to their names, each of shape (n,)."""

    pid: Int64
    tid: Int64
    ts: Decimals
    dur: Decimals
    is_whole: Bools


def _blocks(data: UInt8, size: int) -> npt.NDArray[np.void]:
    """The bytes from every position on, so many at a time."""
    return np.ndarray((len(data) - size + 1,), f"V{size}", data, 0, (1,))


def _digits(words: UInt64) -> Int64:
    """How many of the eight bytes are digits before the first that is none."""
    other = words ^ _THREES
    other = ((other + _TO_HIGH) | other) & _HIGH_BITS  # right up to the first that is none, which may carry
    return (np.bitwise_count(~other & (other - _ONE)) >> np.uint8(3)).astype(np.int64)


__all__ = ["START", "Bools", "Decimals", "Heads", "Look", "Texts"]
