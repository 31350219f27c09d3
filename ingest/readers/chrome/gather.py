"""Gathers the events of a Chrome trace by line, piece by piece, and puts them aside on disk."""

from __future__ import annotations

import os
import pickle
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.event_stream import part
from tracewarehouse.ingest.columns.records import EventBatch, Int64
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.readers.chrome.args import Arguments, merged
from tracewarehouse.ingest.readers.chrome.document import NOTHING, Document, Event, Id
from tracewarehouse.ingest.readers.chrome.times import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds

_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits
MOST_LINES = 1 << 17
"""Threads of all processes that are taken for those of a profiled program; each takes some 600 bytes of memory."""
COUNTERS = ("counters",)
"""Stands for the tid of a line of counters, which is no thread."""
Key = tuple[Id, Any]
"""A line: its pid, and its tid or COUNTERS."""
_UNREADABLE = "event(s) without a readable time, left out"
_NUMBER = (1 << 32) - 1


def _pair(event: Event) -> Key | None:
    """What the halves of an event have in common: their thread or, if they are asynchronous, category and id."""
    if event.ph in "BE":
        return event.pid, event.tid
    return None if event.id is None else (event.pid, (event.cat, event.id))


class Gathered:
    """What a trace holds; its events are in a temporary file for as long as this lives.

    Args:
        document: the trace, which is read from front to back at once.

    Attributes:
        codes: number of each line, in the order of their first event.
        metadata: the event metadata of all lines.
        process_names, thread_names: what the trace calls processes and threads.
        left_out: events of each phase that are not read.
        counted: what else is to be warned of.
        origin_us: whole microseconds that times count from.

    Raises:
        MalformedError: it is no trace.
        CaptureError: the file changed, or there is no room on disk.
    """

    def __init__(self, document: Document) -> None:
        self.codes: dict[Key, int] = {}
        self._arguments = Arguments()
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.left_out: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.origin_us: int | None = None
        self._begun: dict[Key, list[Event]] = {}  # the innermost last
        self._size = 0
        added = self._added = [(np.zeros((3, 0), np.int64), np.zeros(0, np.int64))]
        try:
            self._file: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
            weakref.finalize(self, self._file.close)
            for events in document.pieces():
                self._add_all(events)
            self._add_unended()
            self._file.flush()
        except OSError as error:
            raise CaptureError(
                f"the events read so far need a temporary file, and {tempfile.gettempdir()} cannot take it: "
                f"{error.strerror or error}; make room there, or name another folder in TMPDIR"
            ) from None
        places = np.concatenate([places for places, _ in added], axis=1)
        self._places = places[:, np.argsort(places[0], kind="stable")]
        self._used = _distinct(np.concatenate([used for _, used in added]))
        self.metadata = self._arguments.metadata()
        del added[:], self._arguments

    def used(self, codes: Iterable[int]) -> Int64:
        """Numbers of the metadata that events of some lines have, ascending."""
        borders = [self._used.searchsorted([code << 32, code + 1 << 32]) for code in codes]
        return _distinct(np.concatenate([self._used[:0], *(self._used[a:z] & _NUMBER for a, z in borders)]))

    def places(self, code: int) -> Int64:
        """Where the events of a line are in the temporary file: rows of the bytes from and to."""
        a, z = self._places[0].searchsorted([code, code + 1])
        return self._places[1:, a:z].T

    def batches(self, code: int) -> Iterator[EventBatch]:
        """The events of a line in file order, with numbers of the metadata."""
        for low, high in self.places(code).tolist():
            yield pickle.loads(os.pread(self._file.fileno(), high - low, low))  # noqa: S301  our own file without a name

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
                    e.ts, e.dur, e.args = e.ts.copy(), NOTHING, e.args.copy()  # not all the piece
                    self._begun.setdefault(key, []).append(e)
                    continue
                case "E" | "e" if (key := _pair(e)) is not None:
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
        if max(len(self.codes), len(self.process_names), len(self.thread_names)) > MOST_LINES:
            raise MalformedError(
                f"not a profiler's trace: looked for the threads of a program, found more than {MOST_LINES:,} threads"
            )
        if spans:
            self._add(spans, codes, durations)

    def _add_unended(self) -> None:
        """Add what was begun and never ended."""
        rest = [event for stack in self._begun.values() for event in stack]
        if rest:
            self.counted["begin event(s) without an end, kept with duration 0"] += len(rest)
            codes = [self.codes.setdefault((e.pid, e.tid), len(self.codes)) for e in rest]
            self._add(rest, codes, dict.fromkeys(range(len(rest)), 0))

    def _paired(self, key: Key, end: Event) -> tuple[Event, int] | None:
        """The event that `end` ends and its duration, if there is one."""
        stack = self._begun.get(key)
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
        line = np.array(codes, np.int64)
        order = np.argsort(line, kind="stable")
        order = order[has_start[order]]
        if not len(order):
            return
        line = line[order]
        metadata, stats = self._arguments.columns([events[i] for i in order.tolist()])
        batch = EventBatch(metadata, start[order], duration[order], stats)
        borders = np.append(np.flatnonzero(np.diff(line, prepend=-1)), len(line))
        packed = [pickle.dumps(part(batch, a, z), 5) for a, z in pairwise(borders.tolist())]
        ends = self._size + np.cumsum([0, *map(len, packed)])
        places = np.stack([line[borders[:-1]], ends[:-1], ends[1:]])
        self._added.append((places, _distinct(line << 32 | metadata)))
        self._file.writelines(packed)
        self._size = int(ends[-1])


def _distinct(values: Int64) -> Int64:
    """Values that are not negative, each once, ascending."""
    values = np.sort(values)
    ascending: Int64 = values[np.flatnonzero(np.diff(values, prepend=-1))]
    return ascending
