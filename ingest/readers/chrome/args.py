"""The arguments of Chrome events become typed stats.

A stat is what it was before the exporter made text of it, as far as the text proves it: a string of digits that
an integer prints as is INT64, or UINT64 above 2^63; everything else stays a STRING (leading zeros, '+', more
than 64 bits, decimals). Only the keys of `DOUBLES` become DOUBLE, and only where the double prints as the same
text. Values that are no strings: integers as above, other finite numbers DOUBLE, true, false, arrays and
objects their compact JSON text; null is no stat.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Int64, Stat, StatColumn, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.events import Event, verbatim

METADATA_KEYS = frozenset(
    {
        "bytes_accessed", "deduplicated_name", "flops", "hlo_category", "long_name", "memory_access_breakdown",
        "model_flops", "program_id", "raw_bytes_accessed", "shape_with_layout", "source", "source_stack", "symbol_id",
        "tf_op",
    }
)  # fmt: skip
"""Arguments that belong to the HLO instruction, not to one execution of it."""
_NAMED_KEYS = METADATA_KEYS - {"program_id"}
"""Of an event of a GPU or a virtual device, which names its instruction (hlo_op), the program is the event's own."""
DOUBLES = frozenset({"occupancy_pct", "theoretical_occupancy_pct"})
"""Arguments that the profiler had as doubles."""
MOST_NAMES = 1 << 13
"""Names of arguments that events of a piece may have; each is a column, which takes some 3 kB of memory."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")

Typed = tuple[StatKind, int | float | str]
Value = str | Typed
"""A value of an argument: a string whose type its text tells, or one of a known type."""
_Key = tuple[str, tuple[str, ...], Any]
"""Name of an event, names of the arguments of its instruction, and their values: a tuple, or the only one."""
_MOST_ARGUMENTS = 16 << 20
"""Bytes of arguments that are kept to find event metadata by; what comes again beyond them is typed again."""

_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_strings: Callable[[msgspec.Raw], dict[str, Value]] = msgspec.json.Decoder(dict[str, str]).decode  # type: ignore[assignment]


class _Layout(NamedTuple):
    """What the arguments of an event with certain names are, in the same order."""

    shared: tuple[str, ...]
    """Those of the instruction."""
    of_instruction: Callable[[Mapping[str, Value]], Any]
    """Gives their values: a tuple, or the only one."""
    own: tuple[str, ...]


class Arguments:
    """The arguments of events, piece by piece.

    Attributes:
        metadata: the event metadata so far, with their numbers.
    """

    def __init__(self) -> None:
        self.metadata: dict[EventMetadata, int] = {}
        self._numbers: dict[_Key, int] = {}
        self._bytes = 0  # of what `_numbers` and `_last` have
        self._last: dict[str, tuple[_Key | None, int]] = {}  # of each name; to compare texts takes less than to hash

    def columns(self, events: Sequence[Event]) -> tuple[Int32, list[StatColumn]]:
        """Number of the metadata of each event, shape (n,), and the stats of the events, by name.

        Raises:
            MalformedError: the arguments have more names than a profiler gives them.
        """
        metadata: list[int] = []
        columns: dict[str, tuple[list[int], list[Value]]] = {"cat": ([], [])}
        layouts: dict[tuple[Any, ...], _Layout] = {}
        for i, event in enumerate(events):
            facts = _facts(event.args) if event.args else {}
            names = (event.ph == "C", *facts)
            layout = layouts.get(names)
            if layout is None:
                layout = layouts[names] = _layout(facts, is_counter=event.ph == "C")
                columns.update((name, ([], [])) for name in layout.own if name not in columns)
                if len(columns) > MOST_NAMES:
                    raise MalformedError(
                        "not a profiler's trace: looked for arguments of events, found more than "
                        f"{MOST_NAMES:,} names of such"
                    )
            key = event.name, layout.shared, layout.of_instruction(facts)
            last, number = self._last.get(event.name, (None, 0))
            if last != key:
                number = self._number(key, len(bytes(event.args)))
                self._last[event.name] = key, number
            metadata.append(number)
            if event.cat:
                columns["cat"][0].append(i)
                columns["cat"][1].append((StatKind.STRING, event.cat))
            for name in layout.own:
                rows, values = columns[name]
                rows.append(i)
                values.append(facts[name])
        stats = [_column(name, np.array(rows, np.int64), v) for name, (rows, v) in sorted(columns.items()) if rows]
        return np.array(metadata, np.int32), stats

    def _number(self, key: _Key, size: int) -> int:
        """The number of event metadata, whose arguments have `size` bytes."""
        if key in self._numbers:
            return self._numbers[key]
        self._bytes += 400 + size  # with what a key takes
        if self._bytes > _MOST_ARGUMENTS:
            self._numbers, self._last, self._bytes = {}, {}, 0
        name, names, values = key
        long_name, stats = "", []
        for argument, value in zip(names, values if len(names) > 1 else (values,), strict=False):
            kind, content = _typed(argument, value)
            if argument == "long_name" and kind == StatKind.STRING:
                long_name = str(content)
            else:
                stats.append(Stat(argument, kind, content))
        metadata = EventMetadata(long_name or name, name if long_name else "", tuple(stats))
        number = self._numbers[key] = self.metadata.setdefault(metadata, len(self.metadata))
        return number


def _layout(names: Sequence[str] | Mapping[str, Value], *, is_counter: bool) -> _Layout:
    keys = METADATA_KEYS if "hlo_category" in names or "hlo_op" not in names else _NAMED_KEYS
    shared = tuple(n for n in names if n in keys and not is_counter)
    own = tuple(n for n in names if n not in keys or is_counter)
    return _Layout(shared, itemgetter(*shared) if shared else lambda _: (), own)


def merged(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    """The arguments of two events that are one, the second counting where both have a name."""
    parts = [bytes(first), bytes(second)]
    if not all(p.startswith(b"{") for p in parts):
        return second if parts[1] else first
    return msgspec.Raw(msgspec.json.encode(_values(parts[0]) | _values(parts[1])))


def _column(name: str, rows: Int64, values: list[Value]) -> StatColumn:
    """A stat of some events."""
    try:
        strings = pa.array(values, pa.string())
        numbers = strings.cast(pa.int64())
        if numbers.cast(pa.string()).equals(strings):
            return StatColumn(
                name, rows, np.full(len(rows), int(StatKind.INT64), np.uint8), numbers.to_numpy().view(np.uint64)
            )
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # other texts, or values of other types
        pass
    known: dict[str, Typed] = {}
    texts: dict[bytes, int] = {}
    kinds, bits = np.empty(len(rows), np.uint8), np.empty(len(rows), np.uint64)
    for i, value in enumerate(values):
        if isinstance(value, str):
            if value not in known:
                known[value] = _typed(name, value)
            value = known[value]
        kinds[i], content = value
        if isinstance(content, str):
            bits[i] = texts.setdefault(content.encode(), len(texts))
        else:
            bits[i] = content & ((1 << 64) - 1) if isinstance(content, int) else np.float64(content).view(np.uint64)
    return StatColumn(name, rows, kinds, bits, tuple(texts))


def _typed(name: str, value: Value) -> Typed:
    """A value with its type, which the text of a string tells."""
    if not isinstance(value, str):
        return value
    if len(value) <= 20 and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << 63) <= number < 1 << 64:
            return StatKind.INT64 if number < 1 << 63 else StatKind.UINT64, number
    if name in DOUBLES and len(value) < 40:
        try:
            double = float(value)
        except ValueError:
            pass
        else:
            if math.isfinite(double) and repr(double) == value:
                return StatKind.DOUBLE, double
    return StatKind.STRING, value


def _facts(text: msgspec.Raw) -> dict[str, Value]:
    """The arguments of an event in file order, without null."""
    try:
        return _strings(text)
    except msgspec.ValidationError:
        pass
    try:
        values = _values(text)
    except msgspec.ValidationError:  # not an object
        values = {"args": text}
    try:
        return {n: value for n, v in values.items() if (value := _from_json(n, bytes(v))) is not None}
    except RecursionError:
        raise MalformedError("not a profiler's trace: arguments nested too deeply") from None


def _from_json(name: str, text: bytes) -> Value | None:
    """A JSON value; numbers are typed here, as a string of the same text may be another."""
    if text[:1] == b'"':
        return msgspec.json.decode(text, type=str)
    if text == b"null":
        return None
    if text[:1] not in (b"{", b"[", b"t", b"f"):
        typed = _typed(name, text.decode())
        if typed[0] != StatKind.STRING or (text.lstrip(b"-").isdigit() and text != b"-0"):
            return typed
        number = float(text)
        return (StatKind.DOUBLE, number) if math.isfinite(number) else typed
    value = json.loads(text, parse_float=verbatim, parse_int=verbatim)
    return StatKind.STRING, msgspec.json.encode(value).decode()
