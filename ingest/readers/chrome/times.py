"""Decimal microseconds of a Chrome trace as integer picoseconds, by arithmetic on the digits.

Most numbers are plain (`1144986.718988`) and are read eight digits at a time in numpy; the rest (exponents,
quotes, more digits) goes through `decimal` one by one. Both round to the nearest picosecond, ties away from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int64, UInt64

PS_PER_US = 1_000_000
INT64_MAX = (1 << 63) - 1
_MAX_DECIMALS = 400
_NUMBER = re.compile(rf"-?[0-9]{{1,400}}(?:\.[0-9]{{0,{_MAX_DECIMALS}}})?(?:[eE][-+]?[0-9]{{1,4}})?")
_EXACT = Context(prec=900, rounding=ROUND_HALF_UP, Emin=-99999, Emax=99999)
_HIGHEST = Decimal(10) ** 30
_PAD = b"0" * 16
_NIBBLES = 0x0F0F0F0F0F0F0F0F
_EVERY = (1 << 64) - 1
_FIRST = np.array([_NIBBLES & (_EVERY >> 8 * (8 - k)) for k in range(9)], np.uint64)
_FIRST_BYTES = np.array([_EVERY >> 8 * (8 - k) for k in range(9)], np.uint64)
_LAST = np.array([_NIBBLES & (_EVERY << 8 * (8 - min(k, 8))) for k in range(17)], np.uint64)
"""Masks that keep the values of the first or last k of eight ASCII digits."""
MAX_WHOLE = 9_223_372_036_853  # microseconds; with any fraction below 1 us it still fits into int64 picoseconds


def exact_picoseconds(text: bytes) -> int | None:
    """One number (or a string that holds one) in microseconds as picoseconds; None where it is no sane number."""
    plain = text.decode("ascii", "replace").strip().strip('"').strip()
    if not _NUMBER.fullmatch(plain):
        return None
    value = Decimal(plain)
    if abs(value) > _HIGHEST:
        return None
    return int(_EXACT.to_integral_value(_EXACT.multiply(value, Decimal(PS_PER_US))))


def picoseconds(texts: Sequence[Any], origin_us: int = 0) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Numbers in microseconds as picoseconds since `origin_us`.

    Args:
        texts: the numbers as in the file, as bytes-like objects, n of them.
        origin_us: whole microseconds taken off each number.

    Returns:
        The picoseconds, shape (n,), and where they are known: the text is a number and fits into int64.
    """
    n = len(texts)
    values, known = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    joined = b"\n".join(texts)
    data = np.frombuffer(b"".join((_PAD, joined, b"\n", _PAD)), np.uint8)
    ends = np.flatnonzero(data == 10)
    plain = np.zeros(n, np.bool_)
    if len(ends) == n:
        plain = _plain(data, ends, origin_us, values)
        known |= plain
    for i in np.flatnonzero(~plain).tolist():
        exact = exact_picoseconds(bytes(texts[i]))
        if exact is not None and abs(exact - origin_us * PS_PER_US) <= INT64_MAX:
            values[i], known[i] = exact - origin_us * PS_PER_US, True
    return values, known


def _plain(data: npt.NDArray[np.uint8], ends: Int64, origin_us: int, values: Int64) -> npt.NDArray[np.bool_]:
    """Fill `values` where the text is [-]digits[.digits] of at most 16 digits before the dot; says where that is so."""
    n = len(ends)
    starts = np.empty(n, np.int64)
    starts[0] = len(_PAD)
    starts[1:] = ends[:-1] + 1
    body = data[: int(ends[-1])]
    negative = data[starts] == 45
    odd = np.zeros(n, np.bool_)
    others = np.flatnonzero((body < 48) | (body > 57))
    others = others[(others >= len(_PAD))]
    marks = body[others]
    is_end = marks == 10
    at = np.cumsum(is_end) - is_end
    is_sign = (marks == 45) & (others == starts[at])
    odd[at[(marks != 10) & (marks != 46) & ~is_sign]] = True
    dots, dot_rows = others[marks == 46], at[marks == 46]
    dot_at = ends.copy()
    dot_at[dot_rows] = dots
    odd |= np.bincount(dot_rows, minlength=n) > 1
    lengths = dot_at - starts - negative
    odd |= (lengths < 1) | (lengths > 16) | (dot_at + 1 == ends) | (ends - dot_at > _MAX_DECIMALS + 1)
    words = unaligned_words(data)
    whole = whole_numbers(words, dot_at, np.clip(lengths, 0, 16))
    digits = np.clip(ends - dot_at - 1, 0, 8)
    rounded = (eight(leading(words[dot_at + 1], digits)) + 50) // 100  # from units of 10 fs
    sign = np.where(negative, np.int64(-1), np.int64(1))
    whole = whole * sign - origin_us
    plain = ~odd & (np.abs(whole) <= MAX_WHOLE)
    np.copyto(values, whole * PS_PER_US + rounded * sign, where=plain)
    return plain


def unaligned_words(data: npt.NDArray[np.uint8]) -> UInt64:
    """The eight bytes from every position on, as unaligned little-endian words."""
    return np.ndarray((len(data) - 7,), np.dtype("<u8"), data, 0, (1,))


def whole_numbers(words: UInt64, ends: Int64, lengths: Int64) -> Int64:
    """Integers of `lengths` (0 to 16) digits that stop before `ends`."""
    low = eight(words[ends - 8] & _LAST[lengths])
    if not len(lengths) or int(lengths.max()) <= 8:
        return low
    return eight(words[ends - 16] & _LAST[np.maximum(lengths - 8, 0)]) * 100_000_000 + low


def leading(words: UInt64, counts: Int64, *, is_raw: bool = False) -> UInt64:
    """The first `counts` (0 to 8) of the eight bytes of each word, the others 0; of digits their values."""
    return words & (_FIRST_BYTES if is_raw else _FIRST)[counts]


def eight(w: UInt64) -> Int64:
    """Value of eight digits, the first in the lowest byte; a byte that is masked out counts as 0."""
    # Horner's scheme on pairs, then fours, then eights, all in one word
    w = ((w * np.uint64(2561)) >> np.uint64(8)) & np.uint64(0x00FF00FF00FF00FF)
    w = ((w * np.uint64(6553601)) >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF)
    return ((w * np.uint64(42949672960001)) >> np.uint64(32)).view(np.int64)
