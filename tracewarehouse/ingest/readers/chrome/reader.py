"""Reads Chrome traces: `.trace.json` and `.trace.json.gz` as JAX, XProf's trace viewer and torch_xla write them.

Processes are planes and threads are lines, named by the metadata events; `line_id` is the tid. Events are taken
in file order from

- X (complete) events, also those without `dur`, whose duration counts as 0;
- B and E pairs of a thread, innermost first, at the place of the E; a B that is never closed has duration 0;
- b and e pairs of a category and id, in the same way, on the thread of the b; those of `tw export chrome` need no
  pairing, since the b has their duration as `exact_dur`;
- i and I (instants), with duration 0;
- C (counters), on a line `_counters_` of their process, with one stat per series.

Events of other phases (flows s, t, f; async n; ...) are counted in the warnings, not read.

Times: XProf and JAX print microseconds with six fractional digits or more, or with the 17 digits of a double (as in
4.3961589999999999), so that the nearest picosecond of `ts` and `dur` is the value the exporter had. If that value came
from a device clock, it was itself rounded: `dur` differs by some ps from `device_duration_ps`, which stays a stat. If
`tw export chrome` rounds a `dur` for viewers, `exact_dur` has the exact value. If 64-bit picoseconds cannot hold the
times (microseconds since 1970), they count from the first event's whole microsecond, which becomes the
`profile_start_time` of a plane `Task Environment`.
"""

from __future__ import annotations

import os
import pickle
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.batches import part
from tracewarehouse.ingest.columns.keys import is_new
from tracewarehouse.ingest.columns.profiler_names import (
    COUNTER_LINE,
    PREDICTION,
    PREDICTION_PLANE,
    PROFILE_START,
    TASK_PLANE,
)
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Int64, Line, Plane, Stat, StatKind, Trace
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.document import NOTHING, Document, Event, Id
from tracewarehouse.ingest.readers.chrome.values import (
    INT64_MAX,
    PS_PER_US,
    Arguments,
    exact_picoseconds,
    merged,
    picoseconds,
)
from tracewarehouse.ingest.readers.files import CaptureFile, in_temporary_file, temporary_file

_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)
_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits
_COUNTERS = ("counters",)
"""Takes the place of the tid for a line of counters, which is no thread."""
_Key = tuple[Id, Any]
"""A line: its pid, and its tid or _COUNTERS."""
_UNREADABLE = "event(s) without a readable time, left out"
_NUMBER = (1 << 32) - 1


class ChromeTrace(Trace):
    """One Chrome trace, read in one pass; its events stay in a temporary file as long as this object lives."""

    format = "chrome"

    def __init__(self, file: CaptureFile, chunk: int | None = None) -> None:
        self._file = file
        self.size = file.size
        self._codes: dict[_Key, int] = {}  # number of each line, in the order of their first events
        self._process_names: dict[Id, str] = {}
        self._thread_names: dict[_Key, str] = {}
        self._left_out: Counter[str] = Counter()  # events of each phase that are not read
        self._counted: Counter[str] = Counter()  # other reasons for warnings
        self._origin_us: int | None = None  # whole microseconds from which times count
        self._begun: dict[_Key, list[Event]] = {}  # the innermost last
        self._written = 0
        self._added = [(np.zeros((3, 0), np.int64), np.zeros(0, np.int64))]
        try:
            document: Document[Event] = Document(file, chunk)
            self._arguments = Arguments(document.added_arguments)
            self._gather(document)
            members = document.members()
        except MalformedError as error:
            raise MalformedError(f"{file.path}: {error}") from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found = "values nested too deeply" if isinstance(error, RecursionError) else error
            raise MalformedError(
                f"{file.path}: no Chrome trace: looked for a JSON object as args of each event, found {found}"
            ) from None
        places = np.concatenate([places for places, _ in self._added], axis=1)
        self._places = places[:, np.argsort(places[0], kind="stable")]
        used = _distinct([used for _, used in self._added])
        del self._added
        self._used: dict[int, Int32] = {}  # numbers of the event metadata of each line's plane, ascending
        self.planes: list[Plane] = self._planes(used)
        if document.prediction is not None:
            stat = Stat(PREDICTION, StatKind.STRING, document.prediction)
            self.planes.append(Plane(PREDICTION_PLANE, stats=(stat,)))
        if not self.planes:
            raise MalformedError(f"{file.path}: a Chrome trace without events; nothing was profiled, record it again")
        self._add_start(bytes(members.base_time_nanoseconds))
        self.warnings = self._warnings(document)

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield the events of a line, in file order."""
        used = self._used[line.start]
        for low, high in self._of_line(line.start).tolist():
            batch = pickle.loads(os.pread(self._events.fileno(), high - low, low))  # noqa: S301  our own file without a name
            yield replace(batch, metadata=used.searchsorted(batch.metadata).astype(np.int32))

    def _of_line(self, code: int) -> Int64:
        """Return the places of a line's events in the temporary file: rows of first byte and end."""
        a, z = self._places[0].searchsorted([code, code + 1])
        return self._places[1:, a:z].T

    def _gather(self, document: Document[Event]) -> None:
        with in_temporary_file():
            self._events = temporary_file(self)
            for events in document.pieces():
                self._add_all(events)
            self._add_unended()
            self._events.flush()

    def _add_all(self, events: Sequence[Event]) -> None:
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
                    tid = _COUNTERS if e.ph == "C" else tid
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
                        self._left_out[e.ph] += 1
                    continue
            spans.append(e)
            codes.append(self._codes.setdefault((e.pid, tid), len(self._codes)))
        lines = max(len(self._codes), len(self._process_names), len(self._thread_names))
        bounds.check(lines, bounds.LINES, "threads", "a program")
        if spans:
            self._add(spans, codes, durations)

    def _add_unended(self) -> None:
        rest = [event for stack in self._begun.values() for event in stack]
        if rest:
            self._counted["begin event(s) without an end, kept with duration 0"] += len(rest)
            codes = [self._codes.setdefault((e.pid, e.tid), len(self._codes)) for e in rest]
            self._add(rest, codes, dict.fromkeys(range(len(rest)), 0))

    def _paired(self, key: _Key, end: Event) -> tuple[Event, int] | None:
        stack = self._begun.get(key)
        if not stack:
            self._counted["end event(s) without a begin, left out"] += 1
            return None
        begin = stack.pop()
        start, stop = exact_picoseconds(bytes(begin.ts)), exact_picoseconds(bytes(end.ts))
        if start is None or stop is None or abs(stop - start) > INT64_MAX:
            self._counted[_UNREADABLE] += 1
            return None
        if bytes(end.args):
            begin.args = merged(begin.args, end.args)
        return begin, stop - start

    def _name(self, e: Event) -> None:
        if e.name not in ("process_name", "thread_name"):
            if e.name not in ("process_sort_index", "thread_sort_index"):  # which only say how to draw
                self._counted["metadata event(s) that name no process or thread, left out"] += 1
            return
        try:
            name = msgspec.json.decode(e.args, type=dict[str, Any]).get("name")
        except (msgspec.MsgspecError, RecursionError):
            return
        if isinstance(name, str) and e.name == "process_name":
            self._process_names[e.pid] = name
        elif isinstance(name, str):
            self._thread_names[e.pid, e.tid] = name

    def _add(self, events: Sequence[Event], codes: Sequence[int], durations: Mapping[int, int]) -> None:
        """Store the events of a piece, line by line; `durations` has the durations in ps that no `dur` tells."""
        if self._origin_us is None:
            first = exact_picoseconds(bytes(events[0].ts)) or 0
            self._origin_us = first // PS_PER_US if INT64_MAX < first < _MAX_ORIGIN_PS else 0
        start, has_start = picoseconds([e.ts for e in events], self._origin_us)
        duration, has_duration = picoseconds([e.exact_dur or e.dur for e in events])
        for i, known in durations.items():
            duration[i], has_duration[i] = known, True
        self._counted[_UNREADABLE] += int((~has_start).sum())
        self._counted["event(s) without a readable dur, kept with duration 0"] += int((has_start & ~has_duration).sum())
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
        ends = self._written + np.cumsum([0, *map(len, packed)])
        places = np.stack([line[borders[:-1]], ends[:-1], ends[1:]])
        self._added.append((places, _distinct([line << 32 | metadata])))
        self._events.writelines(packed)
        self._written = int(ends[-1])

    def _planes(self, used: Int64) -> list[Plane]:
        names = dict(self._process_names)
        matches = {pid: m for pid, name in names.items() if (m := _HOST_PREFIX.fullmatch(name))}
        self.hostnames = list(dict.fromkeys(m[1] for m in matches.values()))
        if len(self.hostnames) == 1:  # with several, only the whole name tells their processes apart
            names.update((pid, m[2]) for pid, m in matches.items())
        lines: dict[Id, dict[Any, int]] = {pid: {} for pid in names}
        for (pid, tid), code in self._codes.items():
            lines.setdefault(pid, {})[tid] = code
        counters: dict[Id, int] = {}
        for (pid, tid), name in self._thread_names.items():
            if name == COUNTER_LINE and (number := _number(tid)) is not None:
                counters.setdefault(pid, number)
        metadata, planes = self._arguments.metadata(), list[Plane]()
        for pid, codes in lines.items():
            name = names.get(pid, "unknown process" if pid is None else str(pid))
            borders = [used.searchsorted([code << 32, code + 1 << 32]) for code in codes.values()]
            of_plane = _distinct([used[a:z] & _NUMBER for a, z in borders])
            self._used |= dict.fromkeys(codes.values(), of_plane.astype(np.int32))
            plane = Plane(name, _number(pid) or 0)
            plane.event_metadata = [metadata[i] for i in of_plane]  # a list of numbers would take more memory than this
            for tid, code in codes.items():
                if not len(self._of_line(code)):
                    continue
                if tid == _COUNTERS:
                    name, number = COUNTER_LINE, counters.get(pid)
                else:
                    name = self._thread_names.get((pid, tid), "unknown thread" if tid is None else str(tid))
                    number = _number(tid)
                plane.lines.append(Line(name, -1 - code if number is None else number, start=code))
            planes.append(plane)
        return planes

    def _add_start(self, base: bytes) -> None:
        """Add the time from which the events count, if the trace states it, as `tw export chrome` does."""
        start = (int(base) if base.isdigit() and len(base) < 20 else 0) + (self._origin_us or 0) * 1000
        if 0 < start < 1 << 63:
            self.planes.append(Plane(TASK_PLANE, stats=(Stat(PROFILE_START, StatKind.UINT64, start),)))

    def _warnings(self, document: Document[Event]) -> list[str]:
        warnings = [f"{count} {what}" for what, count in sorted(self._counted.items()) if count]
        if self._left_out:
            phases = ", ".join(f"{n} of phase {ph[:20]!r}" for ph, n in sorted(self._left_out.items())[:20])
            warnings.append(f"{self._left_out.total()} events that are not spans or counters were left out: {phases}")
        if not document.is_ended:
            warnings.append("the array of events has no end; the trace may be truncated")
        if len(self.hostnames) > 1:
            warnings.append(
                f"one file of {len(self.hostnames)} hosts ({', '.join(self.hostnames[:10])}): their devices are not "
                "read; write a file per host, as `tw export chrome RUN -o FOLDER` does"
            )
        return warnings


def open_file(file: CaptureFile) -> ChromeTrace:
    """Open a Chrome trace; see `ChromeTrace` for its errors."""
    return ChromeTrace(file)


def _number(value: Id) -> int | None:
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value) if abs(value) <= INT64_MAX else None
    return None


def _distinct(parts: Sequence[Int64]) -> Int64:
    values = np.concatenate([np.zeros(0, np.int64), *parts])
    values.sort()
    return values[is_new(values)]


def _pair(event: Event) -> _Key | None:
    """Return the key that the halves of an event share: their thread or, if asynchronous, category and id."""
    if event.ph in "BE":
        return event.pid, event.tid
    return None if event.id is None else (event.pid, (event.cat, event.id))
