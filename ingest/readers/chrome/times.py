"""Decimal microseconds of a Chrome trace as integer picoseconds, from their digits and not by way of doubles.

Plain numbers (`1144986.718988`) are read by Arrow as decimals, all at once; the rest (exponents, quotes, more than 38
digits) by `decimal` one by one. Both round to the nearest picosecond, ties away from 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Context, Decimal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.ingest.columns.records import Int64

PS_PER_US = 1_000_000
INT64_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,4})?")
_USUAL = b"-.0123456789"
_EXACT = Context(prec=900, rounding=ROUND_HALF_UP, Emin=-99999, Emax=99999)
_HIGHEST = Decimal(10) ** 30
_DIGITS = 38
_READ = pa.decimal128(_DIGITS, 22)
_ROUNDED = pa.decimal128(28, 6)
"""Has the 16 digits before the dot of `_READ`, and those of any origin."""


def exact_picoseconds(text: bytes) -> int | None:
    """One number (or a string that holds one) in microseconds as picoseconds; None where it is no sane number."""
    plain = text.decode("ascii", "replace").strip().strip('"').strip()
    if not _NUMBER.fullmatch(plain):
        return None
    value = Decimal(plain)
    if abs(value) > _HIGHEST:
        return None
    return int(_EXACT.to_integral_value(_EXACT.multiply(value, Decimal(PS_PER_US))))


def picoseconds(texts: Sequence[msgspec.Raw], origin_us: int = 0) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Numbers in microseconds as picoseconds since `origin_us`.

    Args:
        texts: the numbers as in the file, n of them; an empty one is none.
        origin_us: whole microseconds taken off each number.

    Returns:
        The picoseconds, shape (n,), and where they are known: the text is a number and fits into int64.
    """
    joined = b"".join(texts)
    lengths = np.fromiter(map(len, texts), np.int32, len(texts))
    if not joined.translate(None, _USUAL) and lengths.max(initial=0) <= _DIGITS:
        try:
            return _plain(joined, lengths, origin_us)
        except pa.ArrowInvalid:  # more digits before or behind the dot than `_READ` has
            pass
    exact = [exact_picoseconds(bytes(text)) for text in texts]
    since_origin = [None if value is None else value - origin_us * PS_PER_US for value in exact]
    known = [value is not None and abs(value) <= INT64_MAX for value in since_origin]
    values = [value if is_known else 0 for value, is_known in zip(since_origin, known, strict=True)]
    return np.array(values, np.int64), np.array(known, np.bool_)


def _plain(joined: bytes, lengths: npt.NDArray[np.int32], origin_us: int) -> tuple[Int64, npt.NDArray[np.bool_]]:
    ends = np.append(np.int32(0), np.cumsum(lengths, dtype=np.int32))
    known = lengths > 0
    validity = pa.py_buffer(np.packbits(known, bitorder="little"))
    texts = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(joined), validity)
    rounded = pc.round(texts.cast(_READ), 6, "half_towards_infinity").cast(_ROUNDED)
    since = pc.subtract(rounded, pa.scalar(Decimal(origin_us), _ROUNDED))
    values, high = np.frombuffer(since.buffers()[1], np.int64).reshape(-1, 2)[: len(lengths)].T
    known &= (values >> 63 == high) & (values != -INT64_MAX - 1)
    return np.where(known, values, 0), known
