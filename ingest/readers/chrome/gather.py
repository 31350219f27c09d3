"""Gathers the events of a range of a Chrome trace by line, piece by piece, and puts them aside on disk."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sized
from enum import Enum
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.event_stream import part
from tracewarehouse.ingest.columns.records import EventBatch, Int64, StatColumn
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.readers.chrome.args import Arguments, Content, merged
from tracewarehouse.ingest.readers.chrome.document import Document, Pieces
from tracewarehouse.ingest.readers.chrome.events import NOTHING, Event, EventParser, Id
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds

_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits
MOST_LINES = 1 << 17
"""Threads of all processes that are taken for those of a profiled program; each takes some 600 bytes of memory."""


class Special(Enum):
    """Lines that are no thread."""

    COUNTERS = 0


Key = tuple[Id, Any]
"""A line: its pid, and its tid or Special."""


class _Codes(dict[Key, int]):
    """A number per line, in the order of their first event."""

    def __missing__(self, key: Key) -> int:
        code = self[key] = len(self)
        return code


class Gathered:
    """What a range holds; pickled, it names the file of its events by the descriptor.

    Args:
        descriptor: an open file for the events.
        origin_us: whole microseconds that times count from; None before the first event.
        begun: events that began before the range and have not ended, by line, the innermost last.

    Attributes:
        end: where its events end.
        is_closed, is_open: see `Pieces`.
        has_replaced: bytes that are not UTF-8 were replaced.
        codes: number of each line, in the order of their first event.
        places: of the events of each line, one array per piece with rows of line, piece, and bytes from and to.
        used: lines and the event metadata that they have, as line << 32 | number.
        process_names, thread_names: what the trace calls processes and threads.
        left_out: events of each phase that are not read.
        counted: what else is to be warned of.
        has_strays: events ended that had not begun.
    """

    def __init__(self, descriptor: int, origin_us: int | None, begun: dict[Key, list[Event]]) -> None:
        self.origin_us, self.begun = origin_us, begun
        self.end = 0
        self.is_closed = self.is_open = self.has_replaced = self.has_strays = False
        self.codes: dict[Key, int] = _Codes()
        self.places: list[Int64] = []
        self.used: list[Int64] = []
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.left_out: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self._spill = Spill(descriptor)
        self._lots = 0
        self._arguments = Arguments()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arguments": None}

    def read(self, document: Document, low: int, high: int) -> None:
        """Read from the event at `low` up to `high`, or to the end of the event there.

        Raises:
            MalformedError: the bytes are not events.
            CaptureError: the file changed, or there is no room on disk.
        """
        parse = EventParser()
        pieces = Pieces(document, parse, low, high)
        for events in pieces:
            self._add_all(events)
        self.end, self.is_closed, self.is_open = pieces.end, pieces.is_closed, pieces.is_open
        self.has_replaced = parse.has_replaced
        self._finish()

    def close(self) -> None:
        """Take what was begun and never ended."""
        rest = [event for stack in self.begun.values() for event in stack]
        self.counted["begin event(s) without an end, kept with duration 0"] += len(rest)
        if rest:
            self._add(rest, [self.codes[e.pid, e.tid] for e in rest], dict.fromkeys(range(len(rest)), 0))
        self._finish()

    def lots_of_metadata(self) -> Iterator[list[Content]]:
        """The event metadata in the order of their numbers."""
        for i in range(self._lots):
            yield pickle.loads(self._spill.get(-1 - i, "metadata").data)  # noqa: S301  our own file without a name

    def batch(self, piece: int, low: int, high: int) -> EventBatch:
        """The events at one of the places."""
        batch: EventBatch = pickle.loads(self._spill.get(piece, "batches", low, high).data)  # noqa: S301  as above
        return batch

    def _add_all(self, events: Iterable[Event]) -> None:
        rows: list[Event] = []
        codes: list[int] = []
        fixed: dict[int, int] = {}
        for e in events:
            key: Key = e.pid, e.tid
            match e.ph:
                case "X":
                    pass
                case "M":
                    self._name(e)
                    continue
                case "C":
                    fixed[len(rows)] = 0
                    key = e.pid, Special.COUNTERS
                case "i" | "I":
                    fixed[len(rows)] = 0
                case "B":
                    e.ts, e.dur, e.args = e.ts.copy(), NOTHING, e.args.copy()  # not all the piece
                    self.begun.setdefault(key, []).append(e)
                    continue
                case "E":
                    pair = self._paired(e)
                    if pair is None:
                        continue
                    e, fixed[len(rows)] = pair
                case _:
                    if e.ph or e.name or e.ts:
                        self.left_out[e.ph] += 1
                    continue
            rows.append(e)
            codes.append(self.codes[key])
        check_lines(self.codes, self.process_names, self.thread_names)
        if rows:
            self._add(rows, codes, fixed)

    def _paired(self, end: Event) -> tuple[Event, int] | None:
        """The event that `end` ends and its duration, if there is one."""
        stack = self.begun.get((end.pid, end.tid))
        if not stack:
            self.has_strays = True
            self.counted["end event(s) without a begin, left out"] += 1
            return None
        begin = stack.pop()
        start, stop = exact_picoseconds(bytes(begin.ts)), exact_picoseconds(bytes(end.ts))
        if start is None or stop is None or abs(stop - start) > INT64_MAX:
            self.counted["event(s) without a readable time, left out"] += 1
            return None
        args = merged(begin.args, end.args) if bytes(end.args) else begin.args
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
        if isinstance(name, str) and e.name == "process_name":
            self.process_names[e.pid] = name
        elif isinstance(name, str):
            self.thread_names[e.pid, e.tid] = name

    def _add(self, events: list[Event], codes: list[int], fixed: Mapping[int, int]) -> None:
        """Put events aside: those of one line one behind the other, in file order."""
        if self.origin_us is None:
            first = exact_picoseconds(bytes(events[0].ts)) or 0
            self.origin_us = first // PS_PER_US if INT64_MAX < first < _MAX_ORIGIN_PS else 0
        start, has_start = picoseconds([e.ts for e in events], self.origin_us)
        duration, has_duration = picoseconds([e.dur for e in events])
        at = np.fromiter(fixed, np.int64, len(fixed))
        duration[at] = np.fromiter(fixed.values(), np.int64, len(fixed))
        has_duration[at] = True
        keep = np.flatnonzero(has_start)
        if len(keep) < len(events):
            self.counted["event(s) without a readable time, left out"] += len(events) - len(keep)
            events = [events[i] for i in keep.tolist()]
        self.counted["event(s) without a readable dur, kept with duration 0"] += int((has_start & ~has_duration).sum())
        if not events:
            return
        metadata, stats = self._arguments.columns(events)
        line = np.array(codes, np.int64)[keep]
        self.used.append(distinct(line << 32 | metadata))
        order = np.argsort(line, kind="stable")
        place = np.argsort(order)
        stats = [_moved(column, place) for column in stats]
        whole = EventBatch(metadata[order], start[keep][order], duration[keep][order], stats)
        line = line[order]
        borders = np.append(np.flatnonzero(np.diff(line, prepend=-1)), len(line))
        packed = [pickle.dumps(part(whole, a, z), 5) for a, z in pairwise(borders.tolist())]
        ends = np.cumsum([0, *map(len, packed)])
        piece = len(self.places)
        self.places.append(np.stack([line[borders[:-1]], np.full(len(packed), piece), ends[:-1], ends[1:]]))
        self._put(piece, "batches", b"".join(packed))
        if self._arguments.is_full:
            self._put_metadata()

    def _finish(self) -> None:
        self._put_metadata()
        self.used = [distinct(np.concatenate([np.zeros(0, np.int64), *self.used]))]

    def _put_metadata(self) -> None:
        self._lots += 1
        self._put(-self._lots, "metadata", pickle.dumps(self._arguments.take(), 5))

    def _put(self, key: int, name: str, content: bytes) -> None:
        try:
            self._spill.put(key, {name: np.frombuffer(content, np.uint8)})
        except OSError as error:
            raise no_room(error) from None


def distinct(values: Int64) -> Int64:
    """Values that are not negative, each once, ascending."""
    values = np.sort(values)
    found: Int64 = values[np.flatnonzero(np.diff(values, prepend=-1))]
    return found


def check_lines(*lines: Sized) -> None:
    """Raise MalformedError where there are too many lines."""
    if max(map(len, lines)) > MOST_LINES:
        raise MalformedError(
            f"not a profiler's trace: looked for the threads of a program, found more than {MOST_LINES:,} threads"
        )


def no_room(error: OSError) -> CaptureError:
    """What to say where the events cannot be put aside."""
    return CaptureError(
        f"the events read so far need a temporary file, and {tempfile.gettempdir()} cannot take it: "
        f"{error.strerror or error}; make room there, or name another folder in TMPDIR"
    )


def _moved(column: StatColumn, place: Int64) -> StatColumn:
    """The stat of events that have moved to other places, rows ascending."""
    rows = place[column.rows]
    order = np.argsort(rows, kind="stable")
    return StatColumn(column.name, rows[order], column.kinds[order], column.bits[order], column.texts)


__all__ = ["Gathered", "Key", "Special", "check_lines", "distinct", "no_room"]
