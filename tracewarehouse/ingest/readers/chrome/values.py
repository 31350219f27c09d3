"""Turns the values of Chrome events into columns: times into integer picoseconds, arguments into typed stats.

Times are decimal microseconds, read from their digits, not through doubles. Plain numbers (`1144986.718988`) are read
all at once; the rest (exponents, quotes, numbers near the end of 64 bits) by `decimal` one by one. Both round to the
nearest picosecond, ties away from 0.

A stat is what it was before the exporter made text of it, as far as the text proves it: a string of digits that an
integer prints as is INT64, or UINT64 above 2^63; everything else stays a STRING (leading zeros, '+', more than 64 bits,
decimals). Only the keys of `DOUBLES` become DOUBLE, and only where the double prints as the same text. Of the values
that are no strings, integers become the same types as above, other finite numbers DOUBLE, and true, false, arrays and
objects their compact JSON text; null is no stat.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import sliding_window_view

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Int64, Stat, StatColumn, StatKind
from tracewarehouse.ingest.readers.chrome.document import Event

PS_PER_US = 1_000_000
INT64_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"-?[0-9]{1,400}(?:\.[0-9]{0,400})?(?:[eE][-+]?[0-9]{1,4})?")
_USUAL = b"-.0123456789"
_WIDEST, _AFTER, _HALF = 18, 8, 9
"""Most digits before the dot of a number in 64 bits; the dot and what is read behind it; digits that a double holds."""
_VALUES = np.zeros((_WIDEST + _AFTER, 4))
"""What the digits around a dot are worth: above and below 10^9, in picoseconds, and the one that rounds them."""
_VALUES[:_HALF, 0] = _VALUES[_HALF:_WIDEST, 1] = 10.0 ** np.arange(_HALF)[::-1]
_VALUES[_WIDEST + 1 : -1, 2] = 10.0 ** np.arange(6)[::-1]
_VALUES[-1, 3] = 1
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
    start = (stop := np.cumsum(lengths)) - lengths
    text = np.frombuffer(b"%b%b%b" % (b"0" * _WIDEST, joined, b"0" * _AFTER), np.uint8)
    dots = np.append(np.flatnonzero(text == ord(".")) - _WIDEST, len(joined))
    dot = np.minimum(dots[dots.searchsorted(start)], stop)
    is_negative = text[start + _WIDEST] == ord("-")
    before = dot - start - is_negative
    wide = int(before.max(initial=0))
    if wide > _WIDEST:
        return None
    around = sliding_window_view(text, wide + _AFTER)[dot + _WIDEST - wide]
    place = np.arange(-wide, _AFTER, dtype=np.int8)
    is_digit = (place >= -before.astype(np.int8)[:, None]) & (place != 0)
    is_digit &= place < np.minimum(stop - dot, _AFTER).astype(np.int8)[:, None]
    digits = np.where(is_digit, around - np.uint8(ord("0")), np.uint8(0)).astype(np.float64)
    upper, lower, parts, next_digit = (digits @ _VALUES[_WIDEST - wide :]).T.astype(np.int64)
    sign = np.where(is_negative, -1, 1)
    whole = sign * (upper * 10**_HALF + lower) - origin_us
    if np.abs(whole).max(initial=0) >= INT64_MAX // PS_PER_US:
        return None
    return np.where(lengths > 0, whole * PS_PER_US + sign * (parts + (next_digit >= 5)), 0), lengths > 0


METADATA_KEYS = frozenset(
    {
        "bytes_accessed", "deduplicated_name", "flops", "hlo_category", "long_name", "memory_access_breakdown",
        "model_flops", "program_id", "raw_bytes_accessed", "shape_with_layout", "source", "source_stack", "symbol_id",
        "tf_op",
    }
)  # fmt: skip
"""Arguments that belong to the HLO instruction, not to one execution of it."""
_NAMED_KEYS = METADATA_KEYS - {"program_id"}
"""The same for events of GPUs and virtual devices: they name their instruction (hlo_op), and the program is their
own."""
DOUBLES = frozenset({"occupancy_pct", "theoretical_occupancy_pct"})
"""Arguments that the profiler had as doubles."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")

Typed = tuple[StatKind, int | float | str]
Value = str | Typed
"""A value of an argument: a text that tells its type, or one of a known type."""
_Key = str | tuple[str, tuple[str, ...], Any]
"""Name of an event, names of the arguments of its instruction, and their values (a tuple, or the only one), if any."""

_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_strings: Callable[[msgspec.Raw], dict[str, Value]] = msgspec.json.Decoder(dict[str, str]).decode  # type: ignore[assignment]


class _Layout(NamedTuple):
    """The kinds of the arguments of events with certain argument names, in the same order."""

    shared: tuple[str, ...]
    """Names of the arguments of the instruction."""
    of_instruction: Callable[[Mapping[str, Value]], Any]
    """Returns their values: a tuple, or the only one."""
    own: tuple[str, ...]


class Arguments:
    """The arguments of events, piece by piece.

    Args:
        added: names of arguments that are none of the profiler's, and are left out.
    """

    def __init__(self, added: frozenset[str] = frozenset()) -> None:
        self._added = added
        self._numbers: dict[_Key, int] = {}
        # by names with arguments; to compare texts takes less time than to hash
        self._last: dict[str, tuple[_Key, int]] = {}

    def columns(self, events: Sequence[Event]) -> tuple[Int32, list[StatColumn]]:
        """Return the number of the metadata of each event, shape (n,), and the stats of the events, by name."""
        metadata: list[int] = []
        columns: defaultdict[str, tuple[list[int], list[Value]]] = defaultdict(lambda: ([], []))
        layouts: dict[tuple[Any, ...], _Layout] = {}
        for i, event in enumerate(events):
            facts = _facts(event.args) if event.args else {}
            names = (event.ph == "C", *facts)
            layout = layouts.get(names)
            if layout is None:
                layout = layouts[names] = self._layout(facts, is_counter=event.ph == "C")
            if not layout.shared:
                metadata.append(self._numbers.setdefault(event.name, len(self._numbers)))
            else:
                key = event.name, layout.shared, layout.of_instruction(facts)
                last, number = self._last.get(event.name, (None, 0))
                if last != key:
                    number = self._numbers.setdefault(key, len(self._numbers))
                    self._last[event.name] = key, number
                metadata.append(number)
            if event.cat:
                columns["cat"][0].append(i)
                columns["cat"][1].append((StatKind.STRING, event.cat))
            for name in layout.own:
                rows, values = columns[name]
                rows.append(i)
                values.append(facts[name])
        bounds.check(len(columns), bounds.ARGUMENTS, "names of arguments", "events")
        bounds.check(len(self._numbers), bounds.NAMES, "names", "events")
        return np.array(metadata, np.int32), [
            _column(name, np.array(rows, np.int64), values) for name, (rows, values) in sorted(columns.items())
        ]

    def _layout(self, names: Mapping[str, Value], *, is_counter: bool) -> _Layout:
        keys = METADATA_KEYS if "hlo_category" in names or "hlo_op" not in names else _NAMED_KEYS
        shared = tuple(n for n in names if n in keys and not is_counter)
        own = tuple(n for n in names if is_counter or (n not in keys and n not in self._added))
        return _Layout(shared, itemgetter(*shared) if shared else lambda _: (), own)

    def metadata(self) -> list[EventMetadata]:
        """Return the event metadata in the order of their numbers; nothing can be added afterwards."""
        keys = list(self._numbers)
        del self._numbers, self._last  # both would take more memory than the metadata
        return [EventMetadata(key) if isinstance(key, str) else _metadata(*key) for key in keys]


def _metadata(name: str, arguments: tuple[str, ...], values: Any) -> EventMetadata:
    long_name, stats = "", []
    for argument, value in zip(arguments, values if len(arguments) > 1 else (values,), strict=True):
        kind, content = _typed(argument, value)
        if argument == "long_name" and kind == StatKind.STRING:
            long_name = str(content)
        else:
            stats.append(Stat(argument, kind, content))
    return EventMetadata(long_name or name, name if long_name else "", tuple(stats))


def merged(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    """Return the arguments of two halves of an event; if both have a name, the second counts."""
    return msgspec.Raw(msgspec.json.encode(_values(first) | _values(second))) if bytes(first) else second


def _column(name: str, rows: Int64, values: list[Value]) -> StatColumn:
    try:
        strings = pa.array(values, pa.string())
        numbers = strings.cast(pa.int64())
        if numbers.cast(pa.string()).equals(strings):
            kinds = np.full(len(rows), int(StatKind.INT64), np.uint8)
            return StatColumn(name, rows, kinds, numbers.to_numpy().view(np.uint64))
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # other texts, or values of other types
        pass
    known: dict[str, Typed] = {}
    texts: dict[bytes, int] = {}
    kinds, bits = np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint64)
    for i, value in enumerate(values):
        if isinstance(value, str):
            value = known.get(value) or known.setdefault(value, _typed(name, value))
        kinds[i], content = value
        if isinstance(content, str):
            bits[i] = texts.setdefault(content.encode(), len(texts))
        else:
            bits[i] = content & ((1 << 64) - 1) if isinstance(content, int) else np.float64(content).view(np.uint64)
    return StatColumn(name, rows, kinds, bits, tuple(texts))


def _typed(name: str, value: Value) -> Typed:
    """Return a value with its type, which the text of a string tells."""
    if not isinstance(value, str):
        return value
    if len(value) <= 20 and _INTEGER.fullmatch(value) and -(1 << 63) <= (number := int(value)) < 1 << 64:
        return StatKind.INT64 if number < 1 << 63 else StatKind.UINT64, number
    if name in DOUBLES and len(value) < 40:
        with suppress(ValueError):
            if math.isfinite(double := float(value)) and repr(double) == value:
                return StatKind.DOUBLE, double
    return StatKind.STRING, value


def _facts(text: msgspec.Raw) -> dict[str, Value]:
    """Return the arguments of an event in file order, without null."""
    try:
        return _strings(text)
    except msgspec.ValidationError:  # not only strings
        return {n: _from_json(n, value) for n, v in _values(text).items() if (value := bytes(v)) != b"null"}


def _from_json(name: str, text: bytes) -> Value:
    """Return a JSON value; a number that is no integer gets its type here, because a string of its text may differ."""
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str)
    if text[:1] in b"{[tf":
        value = json.loads(text, parse_float=_verbatim, parse_int=_verbatim)
        return msgspec.json.encode(value).decode()
    number = text.decode()
    is_integer = text.lstrip(b"-").isdigit() and text != b"-0"
    if is_integer or _typed(name, number)[0] != StatKind.STRING or not math.isfinite(float(text)):
        return number
    return StatKind.DOUBLE, float(text)


def _verbatim(number: str) -> msgspec.Raw:
    return msgspec.Raw(number.encode())
