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
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.records import EventMetadata, Int32, Int64, Stat, StatColumn, StatKind, UInt64
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

_INT64, _STRING = StatKind.INT64, StatKind.STRING  # to look a member up takes longer than what is done with it
_MAX_TEXT = 64 << 20  # bytes of argument texts that are remembered
_strings = msgspec.json.Decoder(dict[str, str]).decode
_values = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,19}")
_INTEGER_STARTS = frozenset("-0123456789")

Value = tuple[str, StatKind, int | float | bytes]
Content = tuple[str, str, tuple[str, ...], bytes, tuple[int | float | bytes, ...]]
"""Event metadata before it becomes one: name, display name, and the names, kinds and values of its stats."""
_UNTOLD: Content = "", "", (), b"", ()


class Arguments:
    """Argument texts seen so far.

    Attributes:
        contents: distinct event metadata, in the order in which they were met.
    """

    def __init__(self) -> None:
        self.contents: list[Content] = []
        self._row: dict[Content, int] = {}
        self.forget()

    def __getstate__(self) -> dict[str, Any]:
        # a copy elsewhere goes on from their number, and need not know what they are to be right
        return self.__dict__ | {"contents": [_UNTOLD] * len(self.contents), "_row": {}}

    @property
    def is_full(self) -> bool:
        """Whether the texts remembered should be forgotten."""
        return self._text_bytes > _MAX_TEXT

    def forget(self) -> None:
        """Forget all texts and plans, to bound the memory that they take."""
        self._rows: dict[tuple[Any, ...], int] = {}
        # what a plan means: the row of the event metadata, and the stats of the event itself
        self._plan_rows, self._plan_stats, self._plan_counts = array("i"), list[Sequence[Value]](), array("i")
        self._text_bytes = 0

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
        """Row of `contents` per event, and the stats of the events.

        Args:
            plans: number of the plan of each event, shape (n,).
            rows: where each event goes, shape (n,).
            integers: more stats: names, rows and values.
        """
        columns = _Columns()
        order = np.empty_like(plans)
        order[rows] = plans
        metadata = np.frombuffer(self._plan_rows, np.int32)[order]
        counts = np.frombuffer(self._plan_counts, np.int32)[order]
        having = np.flatnonzero(counts)
        if len(having):
            columns.add_plans(having, order[having], counts[having], self._plan_stats)
        for name, at, values in integers:
            columns.add(name, at, values)
        return metadata, columns.finish()

    def plan(self, event: Event, facts: Sequence[Value], size: int) -> int:
        """Make a plan of an event's facts, which take about `size` bytes; returns its number."""
        shared: list[Value] = []
        own: list[Value] = [("cat", _STRING, event.cat.encode())] if event.cat else []
        long_name = ""
        is_counter = event.ph == "C"
        for fact in facts:
            name, _, value = fact
            if name not in METADATA_KEYS or is_counter:
                own.append(fact)
            elif name == "long_name" and isinstance(value, bytes):
                long_name = value.decode()
            else:
                shared.append(fact)
        names, kinds, values = zip(*shared, strict=True) if shared else ((), (), ())
        content = long_name or event.name, event.name if long_name else "", names, bytes(kinds), values
        row = self._row.setdefault(content, len(self.contents))
        if row == len(self.contents):
            self.contents.append(content)
        self._plan_rows.append(row)
        self._plan_stats.append(own)
        self._plan_counts.append(len(own))
        self._text_bytes += size + 200
        return len(self._plan_rows) - 1

    def facts(self, text: bytes) -> list[Value]:
        """The arguments in file order, typed."""
        if not text:
            return []
        try:
            return [_from_string(name, value) for name, value in _strings(text).items()]
        except msgspec.ValidationError:
            pass
        try:
            values = _values(text)
        except msgspec.ValidationError:  # not an object
            values = {"args": msgspec.Raw(text)}
        try:
            return [fact for name, value in values.items() if (fact := _from_json(name, bytes(value))) is not None]
        except RecursionError:
            raise MalformedError("not a profiler's trace: arguments nested too deeply") from None

    def facts_without(self, text: bytes, numbers: Mapping[str, bytes]) -> list[Value] | None:
        """The arguments but for those which must be these integers; None where they are not."""
        try:
            strings = _strings(text) if text else {}
        except msgspec.ValidationError:
            facts = self.facts(text)
            for name, number in numbers.items():
                try:
                    facts.remove((name, _INT64, int(number)))
                except ValueError:
                    return None
            return facts
        for name, number in numbers.items():
            if strings.pop(name, "") != number.decode():
                return None
        return [_from_string(name, value) for name, value in strings.items()]

    def integers(self, text: bytes) -> list[tuple[str, bytes]]:
        """Arguments of an event that seem to be integers of up to 16 digits, and not of its instruction."""
        try:
            found = [(n, v.encode()) for n, v in _strings(text).items() if v.isdigit() and n not in METADATA_KEYS]
        except msgspec.MsgspecError:
            try:
                found = [(n, bytes(v).strip(b'"')) for n, v in _values(text).items() if n not in METADATA_KEYS]
            except (msgspec.MsgspecError, RecursionError):
                return []
        return [(name, value) for name, value in found if value.isdigit() and len(value) <= 16]

    def merged(self, first: msgspec.Raw, second: msgspec.Raw) -> msgspec.Raw:
        """The arguments of two events that are one, the second counting where both have a name."""
        parts = [bytes(first), bytes(second)]
        if not all(p.startswith(b"{") for p in parts):
            return second if parts[1] else first
        return msgspec.Raw(msgspec.json.encode(_values(parts[0]) | _values(parts[1])))


def event_metadata(contents: Iterable[Content]) -> list[EventMetadata]:
    """What events have in common, as records have it; equal stats are one object."""
    kinds = {int(kind): kind for kind in StatKind}
    known: dict[tuple[str, int, int | float | bytes], Stat] = {}
    found = []
    for name, display_name, *columns in contents:
        stats = []
        for key in zip(*columns, strict=True):
            stat = known.get(key)
            if stat is None:
                value = key[2]
                stat = Stat(key[0], kinds[key[1]], value.decode() if isinstance(value, bytes) else value)
                if not isinstance(value, float):  # 0.0 equals -0.0
                    known[key] = stat
            stats.append(stat)
        found.append(EventMetadata(name, display_name, tuple(stats)))
    return found


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

    def add_plans(self, rows: Int64, plans: Int64, counts: Int32, stats: Sequence[Sequence[Value]]) -> None:
        """Add the stats of events by the numbers of their plans, each of which has so many."""
        used, here = np.unique(plans, return_inverse=True)
        flat = [self._coded(fact) for number in used.tolist() for fact in stats[number]]
        names, kinds, bits = (np.array(x, t) for x, t in zip(zip(*flat, strict=True), "qqQ", strict=True))
        of_plan = np.zeros(len(used), np.int64)
        of_plan[here] = counts
        firsts = (np.cumsum(of_plan) - of_plan)[here]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        at = np.repeat(firsts, counts) + within
        self._parts.append((np.repeat(rows, counts), names[at], kinds[at], bits[at]))

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
    if text[:1] in _INTEGER_STARTS and len(text) <= 20 and _INTEGER.fullmatch(text):
        value = int(text)
        if -(1 << 63) <= value < 1 << 63:
            return name, _INT64, value
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
    return name, _STRING, text.encode()


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


__all__ = ["DOUBLES", "METADATA_KEYS", "Arguments", "Content", "Value", "event_metadata"]
