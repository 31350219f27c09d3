"""Reader of Chrome traces: `.trace.json` and `.trace.json.gz` as JAX, XProf's trace viewer and torch_xla write them.

Processes are planes and threads are lines, named by the metadata events; `line_id` is the tid. Events are taken
in file order from

- X (complete) events, also those without `dur`, whose duration counts as 0;
- B and E pairs of a thread, innermost first, at the place of the E; a B that is never closed has duration 0;
- i and I (instants), with duration 0;
- C (counters), on a line `_counters_` of their process, with one stat per series.

Events of other phases (flows s, t, f; async b, n, e; ...) are counted in the warnings, not read.

Times: XProf and JAX print microseconds with six fractional digits or more, or with the 17 digits of a double (as
in 4.3961589999999999), so that the nearest picosecond of `ts` and `dur` is the value the exporter had. Where that
value came from a device clock it was itself rounded: `dur` differs by some ps from `device_duration_ps`, which
stays a stat. Times that 64-bit picoseconds cannot hold (microseconds since 1970) count from the first event's whole
microsecond, which then is the `profile_start_time` of a plane `Task Environment`.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from ingest.errors import MalformedError
from ingest.readers.chrome_args import Arguments
from ingest.readers.chrome_chunks import CHUNK, Chunks
from ingest.readers.chrome_events import Event, EventParser, Id
from ingest.readers.chrome_spill import Spill
from ingest.readers.chrome_templates import Piece, Repeats, TemplateParser
from ingest.readers.chrome_times import INT64_MAX, PS_PER_US, exact_picoseconds, picoseconds
from ingest.readers.files import MAX_GZIP_RATIO, CaptureFile
from ingest.records import EventBatch, Int32, Int64, Line, Plane, Stat, StatColumn, StatKind

COUNTERS = "_counters_"
_COUNTER_LINE = object()
_HOST_PREFIX = re.compile(r"([A-Za-z0-9][-.\w]*) (/(?:host|device):.*)", re.DOTALL)
_MAX_ORIGIN_PS = PS_PER_US << 62  # so that differences from it fit into 64 bits
_Key = tuple[Id, Any]


class _Codes(dict[_Key, int]):
    """A number per (pid, tid), in the order of their first event."""

    def __missing__(self, key: _Key) -> int:
        code = self[key] = len(self)
        return code


@dataclass
class _ChromePlane(Plane):
    rows: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))
    """Row of `event_metadata` for the rows of the whole trace's metadata."""


class _Events:
    """Gathers the events of all pieces."""

    def __init__(self, parser: EventParser) -> None:
        self.codes = _Codes()
        self.spill = Spill()
        self.arguments = Arguments()
        self.parse = TemplateParser(parser, self.arguments)
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.used: dict[Id, set[int]] = {}
        self.left_out: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.origin_us: int | None = None
        self._open: dict[_Key, list[Event]] = {}

    def add(self, piece: Piece) -> None:
        """Take the events of one piece."""
        rows: list[Event] = []
        places: list[int] = []
        codes: list[int] = []
        fixed: dict[int, int] = {}
        code_of = self.codes
        new_lines = [] if piece.repeats is None else self._new_lines(piece.repeats)
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
                    codes.append(code_of[e.pid, _COUNTER_LINE])
                    continue
                case "i" | "I":
                    fixed[len(rows)] = 0
                case "B":
                    e.ts, e.args = e.ts.copy(), e.args.copy()  # so that they do not keep their piece in memory
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
            self._add(rows, codes, fixed, np.array(places, np.int64), piece.repeats)
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

    def _close(self, end: Event) -> tuple[Event, int] | None:
        """The event that `end` ends and its duration, if there is one."""
        stack = self._open.get((end.pid, end.tid))
        if not stack:
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
        if repeats is not None:
            start = np.concatenate([start, repeats.start_ps])
            duration = np.concatenate([duration, repeats.duration_ps])
            line = np.concatenate([line, self._codes(repeats)])
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
        borders = [*np.flatnonzero(np.diff(line, prepend=-1)).tolist(), len(line)]
        pids = [pid for pid, _ in self.codes]
        for a, z in pairwise(borders):
            code = int(line[a])
            self.used.setdefault(pids[code], set()).update(np.unique(metadata[a:z]).tolist())
            parts = [part for column in stats if (part := _part(column, a, z)) is not None]
            self.spill.add(code, EventBatch(metadata[a:z], start[a:z], duration[a:z], parts))

    def _codes(self, repeats: Repeats) -> Int64:
        """The line of each event."""
        keys = zip(repeats.pid.tolist(), repeats.tid.tolist(), strict=True)
        return np.fromiter(map(self.codes.__getitem__, keys), np.int64, len(repeats.places))

    def _new_lines(self, repeats: Repeats) -> list[tuple[int, _Key]]:
        """Lines that have not been seen yet, with the place of their first event, the last line first."""
        keys = dict.fromkeys(zip(repeats.pid.tolist(), repeats.tid.tolist(), strict=True))
        new = [key for key in keys if key not in self.codes]
        first = [
            (int(repeats.places[np.argmax((repeats.pid == pid) & (repeats.tid == tid))]), (pid, tid))
            for pid, tid in new
        ]
        return first[::-1]

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


class _Digester:
    """Reads a file from front to back and digests it on the way, on another core."""

    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._done = 0
        self._last: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1)

    def __enter__(self) -> _Digester:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def read(self, low: int, high: int) -> bytes:
        """The bytes [low:high]."""
        piece = self._file.read(low, high)
        if low <= self._done < high:
            if self._last is not None:
                self._last.result()  # no more than one piece waits in memory
            self._last = self._thread.submit(self._sha.update, memoryview(piece)[self._done - low :])
            self._done = high
        return piece

    def digest(self) -> str:
        """SHA-256 of the whole file, in hex."""
        while self._done < self._file.size:
            self.read(self._done, min(self._done + CHUNK, self._file.size))
        if self._last is not None:
            self._last.result()
        return self._sha.hexdigest()


class ChromeTrace:
    """One Chrome trace, read from front to back at once; its events then wait in a temporary file if they are many."""

    format = "chrome"
    origin_ns = None

    def __init__(self, file: CaptureFile, chunk: int = CHUNK) -> None:
        self.size = file.size
        self.errors: Sequence[str] = ()
        parser = EventParser()
        self._gathered = _Events(parser)
        with _Digester(file) as digester:
            chunks = Chunks(digester.read, file.size, self._gathered.parse, chunk)
            try:
                for piece in chunks:
                    self._gathered.add(piece)
            except MalformedError as error:
                raise MalformedError(f"{file.path}: {error}") from None
            self.digest = digester.digest()
        self._gathered.finish()
        self.hostnames: list[str] = []
        self.planes: list[Plane] = self._planes()
        if not self.planes:
            raise MalformedError(f"{file.path}: a Chrome trace without events; nothing was profiled, record it again")
        self._add_start(chunks.members)
        self.warnings = self._warnings(parser, chunks)

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order."""
        rows = cast(_ChromePlane, plane).rows
        for batch in self._gathered.spill.read(line.start):
            yield EventBatch(rows[batch.metadata], batch.start_ps, batch.duration_ps, batch.stats)

    def _planes(self) -> list[Plane]:
        found = self._gathered
        names = dict(found.process_names)
        matches = {pid: m for pid, name in names.items() if (m := _HOST_PREFIX.fullmatch(name))}
        self.hostnames = list(dict.fromkeys(m[1] for m in matches.values()))
        if len(self.hostnames) == 1:  # with several, only the whole name tells their processes apart
            names.update((pid, m[2]) for pid, m in matches.items())
        planes: dict[Id, _ChromePlane] = {}
        for pid in [*names, *(pid for pid, _ in found.codes)]:
            if pid in planes:
                continue
            used = sorted(found.used.get(pid, ()))
            rows = np.full(len(found.arguments.metadata), -1, np.int32)
            rows[used] = np.arange(len(used))
            name = names.get(pid, "unknown process" if pid is None else str(pid))
            plane = _ChromePlane(name, _number(pid) or 0, rows=rows)
            plane.event_metadata = [found.arguments.metadata[i] for i in used]
            planes[pid] = plane
        with_events = found.spill.lines
        for (pid, tid), code in found.codes.items():
            if code not in with_events:
                continue
            if tid is _COUNTER_LINE:
                named = (_number(t) for (p, t), name in found.thread_names.items() if p == pid and name == COUNTERS)
                line = Line(COUNTERS, next((t for t in named if t is not None), -1 - code), start=code)
            else:
                name = found.thread_names.get((pid, tid), "unknown thread" if tid is None else str(tid))
                number = _number(tid)
                line = Line(name, -1 - code if number is None else number, start=code)
            planes[pid].lines.append(line)
        return list(planes.values())

    def _add_start(self, members: dict[str, bytes]) -> None:
        """Name the time that the events count from, where the trace says it."""
        base = members.get("baseTimeNanoseconds", b"")
        start = (int(base) if base.isdigit() and len(base) < 20 else 0) + (self._gathered.origin_us or 0) * 1000
        if 0 < start < 1 << 63:
            self.planes.append(
                _ChromePlane("Task Environment", stats=(Stat("profile_start_time", StatKind.UINT64, start),))
            )

    def _warnings(self, parser: EventParser, chunks: Chunks[Piece]) -> list[str]:
        found = self._gathered
        warnings = [f"{count} {what}" for what, count in found.counted.items() if count]
        if found.left_out:
            phases = ", ".join(f"{n} of phase {ph[:20]!r}" for ph, n in sorted(found.left_out.items())[:20])
            warnings.append(f"{found.left_out.total()} events that are not spans or counters were left out: {phases}")
        if parser.has_replaced:
            warnings.append("names or arguments hold bytes that are not UTF-8; they were replaced by U+FFFD")
        if chunks.is_open:
            warnings.append("the array of events has no end; the trace may be truncated")
        if len(self.hostnames) > 1:
            warnings.append(f"one file of {len(self.hostnames)} hosts: {', '.join(self.hostnames[:10])}")
        return warnings


def read_chrome(path: Path | CaptureFile, *, max_gzip_ratio: float = MAX_GZIP_RATIO) -> ChromeTrace:
    """Open a .trace.json or .trace.json.gz.

    Args:
        path: the file.
        max_gzip_ratio: how many times its own size a gzip file may hold.

    Raises:
        CaptureError: the file is missing, empty or not readable, or a gzip file holds more than it may.
        MalformedError: it is not a Chrome trace, or ends too early.
    """
    return ChromeTrace(path if isinstance(path, CaptureFile) else CaptureFile(path, max_gzip_ratio=max_gzip_ratio))


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


def _number(value: Id) -> int | None:
    """A pid or tid as an integer, if it is one."""
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return int(value) if abs(value) <= INT64_MAX else None
    return None


__all__ = ["COUNTERS", "ChromeTrace", "read_chrome"]
