"""The arguments of Chrome events become typed stats, once per distinct text and not once per event.

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
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from ingest.errors import MalformedError
from ingest.readers.chrome_events import Event, verbatim
from ingest.records import EventMetadata, Int32, Int64, Stat, StatColumn, StatKind, UInt64

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

_MAX_TEXT = 64 << 20  # bytes of argument texts that are remembered
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")

Value = tuple[str, StatKind, int | float | bytes]


class _Plan:
    """What a distinct argument text means: the event metadata and the stats of an event that has it."""

    __slots__ = ("metadata", "stats")

    def __init__(self, metadata: int, stats: Sequence[Value]) -> None:
        self.metadata, self.stats = metadata, stats


class Arguments:
    """Argument texts seen so far.

    Attributes:
        metadata: distinct event metadata in the order of their first event.
    """

    def __init__(self) -> None:
        self.metadata: list[EventMetadata] = []
        self._metadata_row: dict[EventMetadata, int] = {}
        self._rows: dict[tuple[Any, ...], int] = {}
        self._plans: list[_Plan] = []
        self._text_bytes = 0
        self._strings = msgspec.json.Decoder(dict[str, str]).decode
        self._values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    @property
    def is_full(self) -> bool:
        """Whether the texts remembered should be forgotten."""
        return self._text_bytes > _MAX_TEXT

    def forget(self) -> None:
        """Forget all texts and plans, to bound the memory that they take."""
        self._rows, self._plans, self._text_bytes = {}, [], 0

    def plans(self, events: Sequence[Event]) -> list[int]:
        """Number of the plan of each event."""
        found: list[int] = []
        known = self._rows.get
        for event in events:
            text = bytes(event.args)
            key = (event.name, event.cat, text) if event.ph != "C" else (event.name, event.cat, text, "C")
            number = known(key)
            if number is None:
                number = self._rows[key] = self.plan(event, self.facts(text), len(text))
            found.append(number)
        return found

    def columns(
        self, plans: Int64, rows: Int64, integers: Sequence[tuple[str, Int64, Int64]] = ()
    ) -> tuple[Int32, list[StatColumn]]:
        """Row of `metadata` per event, and the stats of the events.

        Args:
            plans: number of the plan of each event, shape (n,).
            rows: where each event goes, shape (n,).
            integers: more stats: names, rows and values.
        """
        columns = _Columns()
        order = np.empty_like(plans)
        order[rows] = plans
        metadata = columns.add_plans(order, self._plans)
        for name, at, values in integers:
            columns.add(name, at, values)
        return metadata, columns.finish()

    def plan(self, event: Event, facts: Sequence[Value], size: int) -> int:
        """Make a plan of an event's facts, which take about `size` bytes; returns its number."""
        shared: list[Stat] = []
        own: list[Value] = [("cat", StatKind.STRING, event.cat.encode())] if event.cat else []
        long_name = ""
        for name, kind, value in facts:
            if name not in METADATA_KEYS or event.ph == "C":
                own.append((name, kind, value))
            elif name == "long_name" and isinstance(value, bytes):
                long_name = value.decode()
            else:
                shared.append(Stat(name, kind, value.decode() if isinstance(value, bytes) else value))
        metadata = EventMetadata(long_name or event.name, event.name if long_name else "", tuple(shared))
        row = self._metadata_row.setdefault(metadata, len(self.metadata))
        if row == len(self.metadata):
            self.metadata.append(metadata)
        self._plans.append(_Plan(row, own))
        self._text_bytes += size + 200
        return len(self._plans) - 1

    def facts(self, text: bytes) -> list[Value]:
        """The arguments in file order, typed."""
        if not text:
            return []
        try:
            return [_from_string(name, value) for name, value in self._strings(text).items()]
        except msgspec.ValidationError:
            pass
        try:
            values = self._values(text)
        except msgspec.ValidationError:  # not an object
            values = {"args": msgspec.Raw(text)}
        try:
            return [fact for name, value in values.items() if (fact := _from_json(name, bytes(value))) is not None]
        except RecursionError:
            raise MalformedError("not a profiler's trace: arguments nested too deeply") from None

    def merged(self, first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
        """The arguments of two events that are one, the second counting where both have a name."""
        parts = [bytes(first), bytes(second)]
        if not all(p.startswith(b"{") for p in parts):
            return second if parts[1] else first
        return msgspec.Raw(msgspec.json.encode(self._values(parts[0]) | self._values(parts[1])))


class _Columns:
    """Stats of a batch while they are gathered."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._texts: dict[str, dict[bytes, int]] = {}
        self._parts: list[tuple[Int64, Int64, Int64, UInt64]] = []  # rows, names, kinds, bits

    def add(self, name: str, rows: Int64, values: Int64) -> None:
        """Add an INT64 stat."""
        names = np.full(len(rows), self._names.setdefault(name, len(self._names)))
        self._parts.append((rows, names, np.full(len(rows), int(StatKind.INT64)), values.view(np.uint64)))

    def add_plans(self, numbers: Int64, plans: list[_Plan]) -> Int32:
        """Add the stats of events by the numbers of their plans; returns the rows of their metadata."""
        is_used = np.zeros(len(plans), np.bool_)
        is_used[numbers] = True
        used = np.flatnonzero(is_used)
        position = np.zeros(len(plans), np.int64)
        position[used] = np.arange(len(used))
        here = position[numbers]
        flat: list[tuple[int, int, int]] = []
        counts = np.zeros(len(used), np.int64)
        metadata = np.zeros(len(used), np.int32)
        for i, number in enumerate(used.tolist()):
            plan = plans[number]
            metadata[i] = plan.metadata
            if plan.stats:
                counts[i] = len(plan.stats)
                flat.extend(map(self._coded, plan.stats))
        if flat:
            firsts = np.cumsum(counts) - counts
            repeats = counts[here]
            rows = np.repeat(np.arange(len(here)), repeats)
            within = np.arange(len(rows)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
            names, kinds, bits = (np.array(x, t) for x, t in zip(zip(*flat, strict=True), "qqQ", strict=True))
            at = np.repeat(firsts[here], repeats) + within
            self._parts.append((rows, names[at], kinds[at], bits[at]))
        return metadata[here]

    def _coded(self, fact: Value) -> tuple[int, int, int]:
        name, kind, value = fact
        if isinstance(value, bytes):
            texts = self._texts.setdefault(name, {})
            bits = texts.setdefault(value, len(texts))
        elif isinstance(value, float):
            bits = int(np.float64(value).view(np.uint64))
        else:
            bits = value & ((1 << 64) - 1)
        return self._names.setdefault(name, len(self._names)), int(kind), bits

    def finish(self) -> list[StatColumn]:
        """One column per name."""
        if not self._parts:
            return []
        rows, names, kinds, bits = (np.concatenate(x) for x in zip(*self._parts, strict=True))
        order = np.argsort(names << 32 | rows, kind="stable")  # a merge of a few ascending runs
        rows, kinds, bits = rows[order], kinds[order].astype(np.uint8), bits[order]
        borders = np.searchsorted(names[order], np.arange(len(self._names) + 1)).tolist()
        return [
            StatColumn(name, rows[a:z], kinds[a:z], bits[a:z], tuple(self._texts.get(name, ())))
            for name, (a, z) in zip(self._names, pairwise(borders), strict=True)
        ]


def _from_string(name: str, text: str) -> Value:
    if len(text) <= 20 and _INTEGER.fullmatch(text):
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return name, StatKind.INT64, value
        if 0 < value < 1 << 64:
            return name, StatKind.UINT64, value
    if name in DOUBLES and len(text) < 40:
        try:
            number = float(text)
        except ValueError:
            pass
        else:
            if math.isfinite(number) and repr(number) == text:
                return name, StatKind.DOUBLE, number
    return name, StatKind.STRING, text.encode()


def _from_json(name: str, text: bytes) -> Value | None:
    if text[:1] == b'"':
        return _from_string(name, msgspec.json.decode(text, type=str))
    if text == b"null":
        return None
    if text[:1] not in (b"{", b"[", b"t", b"f"):
        fact = _from_string(name, text.decode())
        if fact[1] != StatKind.STRING or (text.lstrip(b"-").isdigit() and text != b"-0"):
            return fact
        number = float(text)
        return (name, StatKind.DOUBLE, number) if math.isfinite(number) else fact
    value = json.loads(text, parse_float=verbatim, parse_int=verbatim)
    return name, StatKind.STRING, msgspec.json.encode(value)


__all__ = ["DOUBLES", "METADATA_KEYS", "Arguments", "Value"]
