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
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Stat, StatColumn, StatKind
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
DOUBLES = frozenset({"occupancy_pct", "theoretical_occupancy_pct"})
"""Arguments that the profiler had as doubles."""

MOST_NAMES = 1 << 13
"""Names of arguments that events of a piece may have; each is a column, which takes some 3 kB of memory."""
_MOST = 16 << 20
"""Bytes of arguments whose event metadata are remembered; what comes again after so many is told again."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")
_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

Typed = tuple[StatKind, int | bytes]
"""Kind, and the 64 bits or the text of a value."""
Value = str | Typed
"""A value of an argument: a string whose type its text tells, or one of a known type."""
_strings: Callable[[msgspec.Raw], dict[str, Value]] = msgspec.json.Decoder(dict[str, str]).decode  # type: ignore[assignment]
Content = tuple[str, str, tuple[tuple[str, StatKind, int | bytes], ...]]
"""Event metadata before it becomes one: name, display name, and stats."""


class Arguments:
    """The arguments of events, piece by piece.

    Attributes:
        contents: event metadata in the order of their first event, those that have not been taken.
        count: event metadata so far; numbers of the same content may differ once some have been taken.
    """

    def __init__(self) -> None:
        self.contents: list[Content] = []
        self.count = 0
        self._rows: dict[tuple[Any, ...], int] = {}
        self._last: dict[str, tuple[tuple[Any, ...], int]] = {}  # of each name, the last key and its row
        self._bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the event metadata should be taken."""
        return self._bytes > _MOST

    def take(self) -> list[Content]:
        """The event metadata that have not been taken; it forgets them."""
        taken, self.contents, self._rows, self._last, self._bytes = self.contents, [], {}, {}, 0
        return taken

    def columns(self, events: Sequence[Event]) -> tuple[Int32, list[StatColumn]]:
        """Number of the metadata of each event, shape (n,), and the stats of the events by name, rows in any order."""
        metadata: list[int] = []
        categories: tuple[list[int], list[Value]] = [], []
        layouts: tuple[dict[tuple[str, ...], _Layout], ...] = {}, {}
        nothing: tuple[tuple[Any, ...], int] = (), -1
        known: set[str] = set()
        for i, event in enumerate(events):
            facts = _facts(event.args) if event.args else {}
            is_counter = event.ph == "C"
            names = (*facts,)
            layout = layouts[is_counter].get(names)
            if layout is None:
                known.update(names)
                if len(known) > MOST_NAMES:
                    raise MalformedError(
                        "not a profiler's trace: looked for arguments of events, found more than "
                        f"{MOST_NAMES:,} names of such"
                    )
                layout = layouts[is_counter][names] = _Layout(names, is_counter=is_counter)
            if layout.own:
                layout.rows.append(i)
                layout.values.append(layout.of_event(facts))
            values = layout.of_instruction(facts)
            key, row = self._last.get(event.name, nothing)
            if row < 0 or key[2] != values or key[1] != layout.shared:  # comparing texts takes less than hashing them
                key = event.name, layout.shared, values
                row = self._rows.setdefault(key, self.count)
                self._last[event.name] = key, row
                if row == self.count:
                    self.contents.append(_content(*key))
                    self.count += 1
                    self._bytes += 200 + len(bytes(event.args))
            metadata.append(row)
            if event.cat:
                categories[0].append(i)
                categories[1].append((StatKind.STRING, event.cat.encode()))
        columns = {"cat": categories} if categories[0] else {}
        for layout in (*layouts[False].values(), *layouts[True].values()):
            of_names = zip(*layout.values, strict=True) if len(layout.own) > 1 else [layout.values]
            for name, of_name in zip(layout.own, of_names, strict=False):
                at, values = columns.setdefault(name, ([], []))
                at += layout.rows
                values += of_name
        return np.array(metadata, np.int32), [_column(name, *column) for name, column in columns.items()]


class _Layout:
    """Events of a piece whose arguments have the same names, in the same order.

    Attributes:
        shared, of_instruction: arguments of the instruction, and what gives their values: a tuple, or the only one.
        own, of_event: the same of the event's own.
        rows, values: the events that have any of their own, and what `of_event` gives of each.
    """

    def __init__(self, names: Sequence[str], *, is_counter: bool) -> None:
        self.shared = tuple(n for n in names if n in METADATA_KEYS and not is_counter)
        self.own = tuple(n for n in names if n not in METADATA_KEYS or is_counter)
        self.of_instruction = itemgetter(*self.shared) if self.shared else lambda _: ()
        self.of_event = itemgetter(*self.own) if self.own else lambda _: ()
        self.rows: list[int] = []
        self.values: list[Any] = []


def merged(first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
    """The arguments of two events that are one, the second counting where both have a name."""
    parts = [bytes(first), bytes(second)]
    if not all(p.startswith(b"{") for p in parts):
        return second if parts[1] else first
    return msgspec.Raw(msgspec.json.encode(_values(parts[0]) | _values(parts[1])))


def event_metadata(content: Content) -> EventMetadata:
    """What events have in common, as records have it."""
    name, display_name, stats = content
    return EventMetadata(name, display_name, tuple([Stat(n, kind, _decoded(kind, v)) for n, kind, v in stats]))


def _decoded(kind: StatKind, value: int | bytes) -> int | float | str:
    if isinstance(value, bytes):
        return value.decode()
    bits = struct.pack("<Q", value)
    number: int | float = struct.unpack(
        {StatKind.INT64: "<q", StatKind.UINT64: "<Q", StatKind.DOUBLE: "<d"}[kind], bits
    )[0]
    return number


def _content(name: str, names: tuple[str, ...], values: Any) -> Content:
    long_name, stats = "", []
    for key, value in zip(names, values if len(names) > 1 else (values,), strict=False):
        kind, bits = _typed(key, value)
        if key == "long_name" and isinstance(bits, bytes):
            long_name = bits.decode()
        else:
            stats.append((key, kind, bits))
    return long_name or name, name if long_name else "", tuple(stats)


def _column(name: str, rows: list[int], values: list[Value]) -> StatColumn:
    """A stat of some events."""
    at = np.array(rows, np.int64)
    try:
        strings = pa.array(values, pa.string())
        numbers = strings.cast(pa.int64())
        if numbers.cast(pa.string()).equals(strings):
            return StatColumn(
                name, at, np.full(len(at), int(StatKind.INT64), np.uint8), numbers.to_numpy().view(np.uint64)
            )
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # other texts, or values of other types
        pass
    texts: dict[bytes, int] = {}
    coded = {}
    for value in dict.fromkeys(values):
        kind, typed = _typed(name, value)
        coded[value] = kind, texts.setdefault(typed, len(texts)) if isinstance(typed, bytes) else typed
    kinds, codes = zip(*[coded[value] for value in values], strict=True)
    return StatColumn(name, at, np.array(kinds, np.uint8), np.array(codes, np.uint64), tuple(texts))


def _typed(name: str, value: Value) -> Typed:
    """A value with its type, which the text of a string tells."""
    if not isinstance(value, str):
        return value
    if len(value) <= 20 and _INTEGER.fullmatch(value):
        number = int(value)
        if -(1 << 63) <= number < 1 << 64:
            return StatKind.INT64 if number < 1 << 63 else StatKind.UINT64, number & ((1 << 64) - 1)
    if name in DOUBLES and len(value) < 40:
        try:
            double = float(value)
        except ValueError:
            pass
        else:
            if math.isfinite(double) and repr(double) == value:
                return _double(double)
    return StatKind.STRING, value.encode()


def _double(value: float) -> Typed:
    return StatKind.DOUBLE, struct.unpack("<Q", struct.pack("<d", value))[0]


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
    if len(values) > MOST_NAMES:  # too many to look at
        return dict.fromkeys(values, "")
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
        return _double(number) if math.isfinite(number) else typed
    value = json.loads(text, parse_float=verbatim, parse_int=verbatim)
    return StatKind.STRING, msgspec.json.encode(value)


__all__ = ["DOUBLES", "METADATA_KEYS", "Arguments", "Content", "event_metadata", "merged"]
