"""Gathers the events of a range of a Chrome trace by line, piece by piece, and puts them aside on disk."""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.event_stream import part
from tracewarehouse.ingest.columns.records import EventBatch, Int64, StatColumn
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.readers.chrome.args import Arguments, Content, merged
from tracewarehouse.ingest.readers.chrome.document import Document, pieces
from tracewarehouse.ingest.readers.chrome.events import NOTHING, Event, Id
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds

_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits
_MOST_ARGUMENTS = 16 << 20
"""Bytes of arguments whose event metadata are remembered; what comes again after so many is told again."""
MOST_LINES = 1 << 17
"""Threads of all processes that are taken for those of a profiled program; each takes some 600 bytes of memory."""
COUNTERS = ("counters",)
"""Stands for the tid of a line of counters, which is no thread."""
Key = tuple[Id, Any]
"""A line: its pid, and its tid or COUNTERS."""
_UNREADABLE = "event(s) without a readable time, left out"


def _pair(event: Event) -> Key | None:
    """What the halves of an event have in common: their thread or, if they are asynchronous, category and id."""
    if event.ph in "BE":
        return event.pid, event.tid
    return None if event.id is None else (event.pid, (event.cat, event.id))


class Gathered:
    """What a range holds; pickled, it names the file of its events by the descriptor.

    Args:
        descriptor: an open file for the events.
        origin_us: whole microseconds that times count from; None before the first event.
        begun: events that began before the range and have not ended, by what pairs them, the innermost last.

    Attributes:
        end, mark: of the last piece.
        has_replaced: bytes that are not UTF-8 were replaced.
        has_pairs: events begin or end, which may be in another range than the other half.
        codes: number of each line, in the order of their first event.
        places: of the events of each line, one array per piece with rows of line, piece, and bytes from and to.
        used: lines and the event metadata that they have, as line << 32 | number, one array per piece.
        process_names, thread_names: what the trace calls processes and threads.
        left_out: events of each phase that are not read.
        counted: what else is to be warned of.
    """

    def __init__(self, descriptor: int, origin_us: int | None, begun: dict[Key, list[Event]]) -> None:
        self.origin_us, self.begun = origin_us, begun
        self.end, self.mark = 0, b""
        self.has_replaced = self.has_pairs = False
        self.codes: dict[Key, int] = {}
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

    def read(self, document: Document, low: int, high: int, *, is_alone: bool = False) -> None:
        """Read from the event at `low` up to `high`, or to the end of the piece there.

        It stops at halves of pairs if it `is_alone`, which means that the ranges before have not been read.

        Raises:
            MalformedError: the bytes are not events.
            CaptureError: the file changed, or there is no room on disk.
        """
        for piece in pieces(document, low, high):
            self._add_all(piece.events)
            self.end, self.mark = piece.end, piece.mark
            self.has_replaced |= piece.is_replaced
            if is_alone and self.has_pairs:
                return
        if self.mark != b",":
            self._close()
        self._put_metadata()

    def metadata(self) -> Iterator[Content]:
        """The event metadata in the order of their numbers."""
        for i in range(self._lots):
            yield from pickle.loads(self._spill.get(-1 - i, "metadata").data)  # noqa: S301  our own file without a name

    def batch(self, piece: int, low: int, high: int) -> EventBatch:
        """The events at one of the places."""
        batch: EventBatch = pickle.loads(self._spill.get(piece, "batches", low, high).data)  # noqa: S301  as above
        return batch

    def _add_all(self, events: Sequence[Event]) -> None:
        """Sort events by what becomes of them."""
        spans: list[Event] = []
        codes: list[int] = []
        durations: dict[int, int] = {}
        for e in events:
            tid: Any = e.tid
            match e.ph:
                case "X":
                    pass
                case "b" | "e" if e.exact_dur:  # the first half tells both
                    if e.ph == "e":
                        continue
                case "M":
                    self._name(e)
                    continue
                case "C" | "i" | "I":
                    durations[len(spans)] = 0
                    tid = COUNTERS if e.ph == "C" else tid
                case "B" | "b" if (key := _pair(e)) is not None:
                    self.has_pairs = True
                    e.ts, e.dur, e.args = e.ts.copy(), NOTHING, e.args.copy()  # not all the piece
                    self.begun.setdefault(key, []).append(e)
                    continue
                case "E" | "e" if (key := _pair(e)) is not None:
                    self.has_pairs = True
                    pair = self._paired(key, e)
                    if pair is None:
                        continue
                    e, durations[len(spans)] = pair
                    tid = e.tid
                case _:
                    if e.ph or e.name or e.ts:
                        self.left_out[e.ph] += 1
                    continue
            spans.append(e)
            codes.append(self.codes.setdefault((e.pid, tid), len(self.codes)))
        check_lines(self.codes, self.process_names, self.thread_names)
        if spans:
            self._add(spans, codes, durations)

    def _close(self) -> None:
        """Take what was begun and never ended."""
        rest = [event for stack in self.begun.values() for event in stack]
        if rest:
            self.counted["begin event(s) without an end, kept with duration 0"] += len(rest)
            codes = [self.codes.setdefault((e.pid, e.tid), len(self.codes)) for e in rest]
            self._add(rest, codes, dict.fromkeys(range(len(rest)), 0))

    def _paired(self, key: Key, end: Event) -> tuple[Event, int] | None:
        """The event that `end` ends and its duration, if there is one."""
        stack = self.begun.get(key)
        if not stack:
            self.counted["end event(s) without a begin, left out"] += 1
            return None
        begin = stack.pop()
        start, stop = exact_picoseconds(bytes(begin.ts)), exact_picoseconds(bytes(end.ts))
        if start is None or stop is None or abs(stop - start) > INT64_MAX:
            self.counted[_UNREADABLE] += 1
            return None
        if bytes(end.args):
            begin.args = merged(begin.args, end.args)
        return begin, stop - start

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

    def _add(self, events: Sequence[Event], codes: Sequence[int], durations: Mapping[int, int]) -> None:
        """Put events aside: those of one line one behind the other, in file order.

        Args:
            events: those of a piece, n of them.
            codes: their lines, n.
            durations: in picoseconds, of events whose `dur` does not tell it.
        """
        if self.origin_us is None:
            first = exact_picoseconds(bytes(events[0].ts)) or 0
            self.origin_us = first // PS_PER_US if INT64_MAX < first < _MAX_ORIGIN_PS else 0
        start, has_start = picoseconds([e.ts for e in events], self.origin_us)
        duration, has_duration = picoseconds([e.exact_dur or e.dur for e in events])
        for i, known in durations.items():
            duration[i], has_duration[i] = known, True
        self.counted[_UNREADABLE] += int((~has_start).sum())
        self.counted["event(s) without a readable dur, kept with duration 0"] += int((has_start & ~has_duration).sum())
        keep = np.flatnonzero(has_start)
        if not len(keep):
            return
        metadata, stats = self._arguments.columns([events[i] for i in keep.tolist()])
        line = np.array(codes, np.int64)[keep]
        self.used.append(distinct(line << 32 | metadata))
        order = np.argsort(line, kind="stable")
        line, keep = line[order], keep[order]
        stats = [_moved(column, np.argsort(order)) for column in stats]
        batch = EventBatch(metadata[order], start[keep], duration[keep], stats)
        borders = np.append(np.flatnonzero(np.diff(line, prepend=-1)), len(line))
        packed = [pickle.dumps(part(batch, a, z), 5) for a, z in pairwise(borders.tolist())]
        ends = np.cumsum([0, *map(len, packed)])
        piece = len(self.places)
        self.places.append(np.stack([line[borders[:-1]], np.full(len(packed), piece), ends[:-1], ends[1:]]))
        self._put(piece, "batches", b"".join(packed))
        if self._arguments.size > _MOST_ARGUMENTS:
            self._put_metadata()

    def _put_metadata(self) -> None:
        known = self._arguments
        self._lots += 1
        self._put(-self._lots, "metadata", pickle.dumps(known.contents, 5))
        self._arguments = Arguments(known.first + len(known.contents))

    def _put(self, key: int, name: str, content: bytes) -> None:
        try:
            self._spill.put(key, {name: np.frombuffer(content, np.uint8)})
        except OSError as error:
            raise no_room(error) from None


def distinct(values: Int64) -> Int64:
    """Values that are not negative, each once, ascending."""
    values = np.sort(values)
    ascending: Int64 = values[np.flatnonzero(np.diff(values, prepend=-1))]
    return ascending


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
