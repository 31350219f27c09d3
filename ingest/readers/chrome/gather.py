"""Gathers the events of a Chrome trace by line, piece by piece, and puts together what processes gathered apart.

What comes out follows from the file alone, whatever pieces it was cut into and whoever read them: lines and event
metadata are in the order of their first event, and a line's events come in batches of a fixed size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.event_stream import part
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Int64, StatColumn, StatKind, concatenate
from tracewarehouse.ingest.readers.chrome.args import Content
from tracewarehouse.ingest.readers.chrome.events import NOTHING, Event, Id
from tracewarehouse.ingest.readers.chrome.look import Bools
from tracewarehouse.ingest.readers.chrome.spill import Place, Spill
from tracewarehouse.ingest.readers.chrome.templates import Piece, Repeats, TemplateParser
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds

_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits


class Special(Enum):
    """Lines that are no thread."""

    COUNTERS = 0


Key = tuple[Id, Any]
"""A line: its pid, and its tid or Special."""
_NONE: Bools = np.zeros(0, np.bool_)
_Scalar = TypeVar("_Scalar", bound=np.generic)
OWN = 0
"""Who gathers: the process that puts together what all have gathered."""
BATCH = 1 << 15
"""Events of a line that are handed out together, but for the last."""


class _Codes(dict[Key, int]):
    """A number per line, in the order of their first event."""

    def __missing__(self, key: Key) -> int:
        code = self[key] = len(self)
        return code


@dataclass(frozen=True)
class Gathered:
    """What a range of a trace holds, to be put together with what stands before it.

    Attributes:
        keys: its lines, in the order of their first event.
        places: where the batches of each line are in the range's file; see `Spill`.
        order: rows of the reader's event metadata, in the order of their first event.
        used: whether the events of each process have the metadata, by its row.
        process_names, thread_names: what the trace calls processes and threads.
        left_out: events of each phase that are not read.
        counted: what else is to be warned of.
        opened: events that have begun and did not end in the range.
        ended: lines in which an event ended that had not begun in the range.
    """

    keys: list[Key]
    places: Mapping[int, Sequence[Place]]
    order: Int64
    used: dict[Id, Bools]
    process_names: dict[Id, str]
    thread_names: dict[tuple[Id, Id], str]
    left_out: Counter[str]
    counted: Counter[str]
    opened: dict[Key, list[Event]]
    ended: set[Key]


@dataclass(frozen=True)
class _Runs:
    """Events one behind the other on one line: the line, the place of the first, and how many there are."""

    keys: list[Key]
    places: list[int]
    lengths: Int64


def _runs(repeats: Repeats) -> _Runs:
    pid, tid = repeats.pid, repeats.tid
    is_first = np.ones(len(pid), np.bool_)
    is_first[1:] = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])
    first = np.flatnonzero(is_first)
    keys = list(zip(pid[first].tolist(), tid[first].tolist(), strict=True))
    return _Runs(keys, repeats.places[first].tolist(), np.diff(first, append=len(pid)))


class Gatherer:
    """Gathers the events of all pieces.

    Attributes:
        codes: number of each line.
        spill: the events of each line.
        process_names, thread_names: what the trace calls processes and threads.
        left_out: events of each phase that are not read.
        counted: what else is to be warned of.
        origin_us: whole microseconds that times count from; None before the first event.
        metadata: what events have in common, numbered in the order of their first event.
        used: whether the events of each process have the metadata, by its number.
    """

    def __init__(self, parse: TemplateParser, spill: Spill, origin_us: int | None = None) -> None:
        self.parse, self.spill = parse, spill
        self.arguments = parse.arguments
        self.codes = _Codes()
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.left_out: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.origin_us = origin_us
        self.metadata: dict[Content, int] = {}
        self.used: dict[Id, Bools] = {}
        self._is_seen = np.zeros(0, np.bool_)
        self._order: list[int] = []
        self._used: dict[Id, Bools] = {}
        self._numbers: dict[int, Int32] = {}
        self._worker_of_file = {0: OWN}
        self._open: dict[Key, list[Event]] = {}
        self._ended: set[Key] = set()

    @property
    def has_pairs(self) -> bool:
        """Whether there are events whose begin and end are told apart from each other."""
        return bool(self._open or self._ended)

    def add(self, piece: Piece) -> None:
        """Take the events of one piece."""
        rows: list[Event] = []
        places: list[int] = []
        codes: list[int] = []
        fixed: dict[int, int] = {}
        code_of = self.codes
        runs = None if piece.repeats is None else _runs(piece.repeats)
        new_lines = [] if runs is None else self._new_lines(runs)
        for place, e in zip(piece.places.tolist(), piece.events, strict=True):
            while new_lines and new_lines[-1][0] < place:
                code_of[new_lines.pop()[1]]
            match e.ph:
                case "X":
                    pass
                case "M":
                    self._name(e)
                    continue
                case "C":
                    fixed[len(rows)] = 0
                    rows.append(e)
                    places.append(place)
                    codes.append(code_of[e.pid, Special.COUNTERS])
                    continue
                case "i" | "I":
                    fixed[len(rows)] = 0
                case "B":
                    # their text is overwritten by that of the next piece
                    e.ts, e.dur, e.args = e.ts.copy(), NOTHING, e.args.copy()
                    self._open.setdefault((e.pid, e.tid), []).append(e)
                    continue
                case "E":
                    pair = self._close(e)
                    if pair is None:
                        continue
                    e, fixed[len(rows)] = pair
                case _:
                    if e.ph or e.name or e.ts:
                        self.left_out[e.ph] += 1
                    continue
            rows.append(e)
            places.append(place)
            codes.append(code_of[e.pid, e.tid])
        for _, key in reversed(new_lines):
            code_of[key]
        if rows or piece.repeats is not None:
            self._add(rows, codes, fixed, np.array(places, np.int64), piece.repeats, runs)
        if self.arguments.is_full:
            self.arguments.forget()
            self.parse.forget()

    def finish(self) -> None:
        """Take what was begun and never ended."""
        rest = [event for stack in self._open.values() for event in stack]
        self.counted["begin event(s) without an end, kept with duration 0"] += len(rest)
        if rest:
            codes = [self.codes[e.pid, e.tid] for e in rest]
            self._add(rest, codes, dict.fromkeys(range(len(rest)), 0), np.arange(len(rest)))
        self._number_own()

    def gathered(self) -> Gathered:
        """What was gathered, for another to put it behind what he has."""
        self.spill.flush()
        return Gathered(
            list(self.codes),
            self.spill.places,
            np.array(self._order, np.int64),
            self._used,
            self.process_names,
            self.thread_names,
            self.left_out,
            self.counted,
            self._open,
            self._ended,
        )

    def join(self, found: Gathered, file: int, worker: int, contents: Sequence[Content]) -> bool:
        """Put what another gathered behind what is here; False where it depends on what is here, and is left.

        Args:
            found: what was gathered.
            file: number of the file of its spill in this one.
            worker: who gathered it.
            contents: event metadata of that worker.
        """
        if any(self._open.get(key) for key in found.ended):
            return False
        self._number_own()
        self._worker_of_file[file] = worker
        self._number(worker, contents, found.order, found.used)
        for code, key in enumerate(found.keys):
            self.spill.include(self.codes[key], file, found.places.get(code, ()))
        self.process_names.update(found.process_names)
        self.thread_names.update(found.thread_names)
        self.left_out.update(found.left_out)
        self.counted.update(found.counted)
        for key, stack in found.opened.items():
            self._open.setdefault(key, []).extend(stack)
        self._ended |= found.ended
        return True

    def batches(self, code: int) -> Iterator[EventBatch]:
        """The events of a line, so many at a time, with rows of `metadata`; after the end of gathering only."""
        waiting: list[EventBatch] = []
        count = 0
        for file, batch in self.spill.read(code):
            metadata = self._numbers[self._worker_of_file[file]][batch.metadata]
            waiting.append(EventBatch(metadata, batch.start_ps, batch.duration_ps, batch.stats))
            count += len(batch)
            if count >= BATCH:
                whole = concatenate(waiting)
                cut = count - count % BATCH
                yield from (_in_order(part(whole, a, a + BATCH)) for a in range(0, cut, BATCH))
                waiting = [part(whole, cut, count)] if cut < count else []
                count -= cut
        if count:
            yield _in_order(concatenate(waiting))

    def _number_own(self) -> None:
        """Number the event metadata that came up since it was last done."""
        self._number(OWN, self.arguments.contents, np.array(self._order, np.int64), self._used)
        self._order, self._used = [], {}

    def _number(self, worker: int, contents: Sequence[Content], order: Int64, used: Mapping[Id, Bools]) -> None:
        """Number event metadata of a worker, given the order of its first events and who has it."""
        numbers = _grown(self._numbers.get(worker, np.zeros(0, np.int32)), len(contents), -1)
        for row in order[numbers[order] < 0].tolist():
            numbers[row] = self.metadata.setdefault(contents[row], len(self.metadata))
        self._numbers[worker] = numbers
        for pid, is_used in used.items():
            self.used[pid] = _grown(self.used.get(pid, _NONE), len(self.metadata))
            self.used[pid][numbers[np.flatnonzero(is_used)]] = True

    def _close(self, end: Event) -> tuple[Event, int] | None:
        """The event that `end` ends and its duration, if there is one."""
        stack = self._open.get((end.pid, end.tid))
        if not stack:
            self._ended.add((end.pid, end.tid))
            self.counted["end event(s) without a begin, left out"] += 1
            return None
        begin = stack.pop()
        start, stop = exact_picoseconds(bytes(begin.ts)), exact_picoseconds(bytes(end.ts))
        if start is None or stop is None or abs(stop - start) > INT64_MAX:
            self.counted["event(s) without a readable time, left out"] += 1
            return None
        args = self.arguments.merged(begin.args, end.args) if bytes(end.args) else begin.args
        return Event("X", begin.pid, begin.tid, begin.ts, name=begin.name, cat=begin.cat, args=args), stop - start

    def _name(self, e: Event) -> None:
        if e.name not in ("process_name", "thread_name"):
            if e.name not in ("process_sort_index", "thread_sort_index"):  # which only say how to draw
                self.counted["metadata event(s) that name no process or thread, left out"] += 1
            return
        try:
            name = msgspec.json.decode(e.args, type=dict[str, Any]).get("name")
        except (msgspec.MsgspecError, RecursionError):
            return
        if isinstance(name, str):
            if e.name == "process_name":
                self.process_names[e.pid] = name
            else:
                self.thread_names[e.pid, e.tid] = name

    def _add(
        self,
        events: list[Event],
        codes: list[int],
        fixed: dict[int, int],
        places: Int64,
        repeats: Repeats | None = None,
        runs: _Runs | None = None,
    ) -> None:
        if self.origin_us is None:
            first = exact_picoseconds(bytes(events[0].ts)) or 0
            self.origin_us = first // PS_PER_US if INT64_MAX < first < _MAX_ORIGIN_PS else 0
            self.parse.origin_us = self.origin_us
        start, has_start = picoseconds([e.ts for e in events], self.origin_us)
        duration, has_duration = picoseconds([e.dur for e in events])
        if fixed:
            at = np.fromiter(fixed, np.int64, len(fixed))
            duration[at] = np.fromiter(fixed.values(), np.int64, len(fixed))
            has_duration[at] = True
        line = np.array(codes, np.int64)
        if not has_start.all():
            keep = np.flatnonzero(has_start)
            self.counted["event(s) without a readable time, left out"] += len(events) - len(keep)
            events = [events[i] for i in keep.tolist()]
            start, duration, has_duration = start[keep], duration[keep], has_duration[keep]
            line, places = line[keep], places[keep]
        if not has_duration.all():
            lacking = len(events) - int(np.count_nonzero(has_duration))
            self.counted["event(s) without a readable dur, kept with duration 0"] += lacking
        plans = np.array(self.arguments.plans(events), np.int64)
        if repeats is not None and runs is not None:
            start = np.concatenate([start, repeats.start_ps])
            duration = np.concatenate([duration, repeats.duration_ps])
            line = np.concatenate([line, np.repeat([self.codes[key] for key in runs.keys], runs.lengths)])
            plans = np.concatenate([plans, self.parse.plans[repeats.templates]])
            places = np.concatenate([places, repeats.places])
        if not len(line):
            return
        order = np.lexsort((places, line))
        start, duration, line = start[order], duration[order], line[order]
        rows = np.empty_like(order)
        rows[order] = np.arange(len(order))
        integers = [] if repeats is None else self._integers(repeats, rows[len(events) :])
        metadata, stats = self.arguments.columns(plans, rows, integers)
        self._see(metadata, places, order)
        borders = [*np.flatnonzero(np.diff(line, prepend=-1)).tolist(), len(line)]
        pids = [pid for pid, _ in self.codes]
        for a, z in pairwise(borders):
            code = int(line[a])
            self._mark(pids[code], metadata[a:z])
            parts = [part for column in stats if (part := _part(column, a, z)) is not None]
            self.spill.add(code, EventBatch(metadata[a:z], start[a:z], duration[a:z], parts))

    def _new_lines(self, runs: _Runs) -> list[tuple[int, Key]]:
        """Lines that have not been seen yet, with the place of their first event, the last line first."""
        new: dict[Key, int] = {}
        for key, place in zip(runs.keys, runs.places, strict=True):
            if key not in self.codes:
                new.setdefault(key, place)
        return [(place, key) for key, place in reversed(new.items())]

    def _integers(self, repeats: Repeats, rows: Int64) -> list[tuple[str, Int64, Int64]]:
        """The arguments that stood in the holes of templates: names, rows and values."""
        out: list[tuple[str, Int64, Int64]] = []
        order = np.argsort(rows, kind="stable")
        rows, template = rows[order], repeats.templates[order]
        names = list(self.parse.names)
        for h, values in enumerate(repeats.values):
            of_row = self.parse.named[template, h]
            for code in np.flatnonzero(np.bincount(of_row[of_row >= 0])).tolist():
                here = np.flatnonzero(of_row == code)
                out.append((names[code], rows[here], values[order[here]]))
        return out

    def _mark(self, pid: Id, metadata: Int32) -> None:
        """Remember what metadata the events of a process have."""
        self._used[pid] = _grown(self._used.get(pid, _NONE), len(self.arguments.contents))
        self._used[pid][metadata] = True

    def _see(self, metadata: Int32, places: Int64, order: Int64) -> None:
        """Remember the order of the first events of metadata that is new; `order` says which event each is of."""
        self._is_seen = _grown(self._is_seen, len(self.arguments.contents))
        new = np.flatnonzero(~self._is_seen[metadata])
        if len(new):
            event = order[new]
            in_order = metadata[new[np.lexsort((event, places[event]))]]
            self._is_seen[in_order] = True
            self._order += dict.fromkeys(in_order.tolist())


def _grown(array: npt.NDArray[_Scalar], size: int, fill: int = 0) -> npt.NDArray[_Scalar]:
    """The array with more elements behind it, where it is shorter than that."""
    if len(array) >= size:
        return array
    return np.append(array, np.full(size - len(array), fill, array.dtype))


def _part(column: StatColumn, start: int, stop: int) -> StatColumn | None:
    """The values of a stat for the events `start` to `stop` of its batch."""
    a, z = column.rows.searchsorted((start, stop)).tolist()
    if a == z:
        return None
    kinds, bits, texts = column.kinds[a:z], column.bits[a:z], column.texts
    if texts:
        is_text = kinds >= StatKind.STRING
        codes, back = np.unique(bits[is_text], return_inverse=True)
        texts = [texts[i] for i in codes.tolist()]
        bits = bits.copy()
        bits[is_text] = back.astype(np.uint64)
    return StatColumn(column.name, column.rows[a:z] - start, kinds, bits, texts)


def _in_order(batch: EventBatch) -> EventBatch:
    """The batch with its stats by name and their texts in the order of their first use."""
    stats = sorted(batch.stats, key=lambda s: s.name)
    return EventBatch(batch.metadata, batch.start_ps, batch.duration_ps, [_texts_in_order(s) for s in stats])


def _texts_in_order(column: StatColumn) -> StatColumn:
    if not column.texts:
        return column
    is_text = column.kinds >= StatKind.STRING
    codes = column.bits[is_text].view(np.int64)
    first = np.full(len(column.texts), len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # of a code given twice the last value stays
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    place = np.zeros(len(first), np.uint64)
    place[used] = np.arange(len(used))
    bits = column.bits.copy()
    bits[is_text] = place[codes]
    return StatColumn(column.name, column.rows, column.kinds, bits, [column.texts[i] for i in used.tolist()])


__all__ = ["BATCH", "OWN", "Gathered", "Gatherer", "Key", "Special"]
