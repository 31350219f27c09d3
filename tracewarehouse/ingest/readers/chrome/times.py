"""Converts the decimal microseconds of a Chrome trace to integer picoseconds, from their digits, not through doubles.

Plain numbers (`1144986.718988`) are read all at once; the rest (exponents, quotes, numbers near the end of 64 bits) by
`decimal` one by one. Both round to the nearest picosecond, ties away from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import msgspec
import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int64

PS_PER_US = 1_000_000
INT64_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,4})?")
_USUAL = b"-.0123456789"
_EXACT = Context(prec=900, rounding=ROUND_HALF_UP, Emin=-99999, Emax=99999)
_HIGHEST = Decimal(10) ** 30


def exact_picoseconds(text: bytes) -> int | None:
    """Return one number (or a string that holds one) in microseconds as picoseconds; None if it is no sane number."""
    plain = text.decode("ascii", "replace").strip().strip('"').strip()
    if not _NUMBER.fullmatch(plain):
        return None
    value = Decimal(plain)
    if abs(value) > _HIGHEST:
        return None
    return int(_EXACT.to_integral_value(_EXACT.multiply(value, Decimal(PS_PER_US))))


def picoseconds(texts: Sequence[msgspec.Raw], origin_us: int = 0) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return numbers in microseconds as picoseconds since `origin_us`.

    Args:
        texts: the n numbers as in the file; an empty text is no number.
        origin_us: whole microseconds to subtract from each number.

    Returns:
        The picoseconds, shape (n,), and which are known: their text is a number that fits into int64.
    """
    joined = b"".join(texts)
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    if not joined.translate(None, _USUAL) and (read := _plain(joined, lengths, origin_us)):
        return read
    exact = [exact_picoseconds(bytes(text)) for text in texts]
    since_origin = [None if value is None else value - origin_us * PS_PER_US for value in exact]
    known = [value is not None and abs(value) <= INT64_MAX for value in since_origin]
    values = [value if is_known else 0 for value, is_known in zip(since_origin, known, strict=True)]
    return np.array(values, np.int64), np.array(known, np.bool_)


def _plain(joined: bytes, lengths: Int64, origin_us: int) -> tuple[Int64, npt.NDArray[np.bool_]] | None:
    """Return the same for numbers in plain digits; None if one has too many before the dot for 64 bits."""
    text = np.frombuffer(joined + b"0", np.uint8)
    start = (stop := np.cumsum(lengths)) - lengths
    dots = np.append(np.flatnonzero(text == ord(".")), len(text))
    dot = np.minimum(dots[dots.searchsorted(start)], stop)
    is_negative = text[start] == ord("-")
    wide = int((dot - start - is_negative).max(initial=0))
    if wide > 18:  # digits of any number in 64 bits
        return None
    places = dot[:, None] + np.r_[-wide:0, 1:8]
    is_digit = (places >= (start + is_negative)[:, None]) & (places < stop[:, None])
    digits = np.where(is_digit, text[np.where(is_digit, places, 0)].astype(np.int64) - ord("0"), 0)
    sign = np.where(is_negative, -1, 1)
    whole = sign * (digits[:, :wide] @ 10 ** np.arange(wide)[::-1]) - origin_us
    if np.abs(whole).max(initial=0) >= INT64_MAX // PS_PER_US:
        return None
    parts = digits[:, wide:-1] @ 10 ** np.arange(6)[::-1] + (digits[:, -1] >= 5)
    return np.where(lengths > 0, whole * PS_PER_US + sign * parts, 0), lengths > 0
