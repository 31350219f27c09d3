"""Holds the executions of programs on a device, and the steps and phases that they form or that host events mark."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, groupby, islice, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.nesting import outermost
from tracewarehouse.ingest.columns.profiler_names import LAUNCH_EXECUTION, LAUNCH_STEP
from tracewarehouse.ingest.columns.records import OUTSIDE, PHASES, EventBatch, Int32, Int64, Plane
from tracewarehouse.ingest.readers.launches import StepMark, step_mark


@dataclass(frozen=True)
class Step:
    """One step on one device."""

    index: int
    phase: str | None
    name: str
    start_ps: int
    end_ps: int
    source: str
    batch: StepMark | None = None
    """What its mark says of its batch, if it does."""

    @property
    def is_marked(self) -> bool:
        """Whether a mark of the host tells it."""
        return self.source == "marker"


@dataclass(frozen=True)
class Run:
    """One execution of a program on one device."""

    module: str
    program_id: int | None
    start_ps: int
    end_ps: int
    run_id: int | None = None
    """The profiler's number of the execution; the host's events of its launch have the same number."""
    source: str = "module run"
    """Source of the execution: module run, or op line if it is inferred."""


@dataclass
class Timeline:
    """Executions and steps of a device, both sorted by start."""

    runs: list[Run] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    run_has_steps: bool = False
    """Whether some device of the run has steps; then times in no step are known to be outside."""

    def __post_init__(self) -> None:
        self.set_runs(self.runs)

    def set_runs(self, runs: list[Run]) -> None:
        """Set the device's executions."""
        self.runs = sorted(runs, key=lambda r: r.start_ps)
        self._run_edges = _edges(self.runs)
        self.set_steps(self.steps)

    def set_steps(self, steps: list[Step]) -> None:
        """Set the device's steps; the last one is extended by the executions that follow it."""
        self.steps = sorted(steps, key=lambda s: s.start_ps)
        if self.steps:
            self.steps[-1] = self._with_what_follows(self.steps[-1])
        start, end = _edges(self.steps)
        self._step_edges = start, np.append(start[1:], end[-1:])
        self._step_index = np.array([s.index for s in self.steps] + [-1], np.int32)
        outside = PHASES.index(OUTSIDE) if self.steps or self.run_has_steps else -1
        self._step_phase = np.array([_phase_code(s.phase) for s in self.steps] + [outside], np.int32)

    def _with_what_follows(self, last: Step) -> Step:
        """Return the last step until the end of the executions that follow it, as others last until the next one.

        What follows the last mark of a host may be no step's, such as a check of the result. It counts up to the first
        execution of a program that follows none of the earlier steps.
        """
        first = bisect_left(self.runs, last.start_ps, key=lambda r: r.start_ps)
        following = self.runs[first:]
        if last.is_marked and any(r.start_ps >= last.end_ps for r in following):
            starts = [s.start_ps for s in self.steps]
            between = set()
            for run in self.runs[:first]:
                at = bisect_right(starts, run.start_ps) - 1
                if at >= 0 and run.start_ps >= self.steps[at].end_ps:
                    between.add(run.module)
            following = list(takewhile(lambda r: r.start_ps < last.end_ps or r.module in between, following))
        return replace(last, end_ps=max([last.end_ps, *(r.end_ps for r in following)]))

    def set_run_has_steps(self) -> None:
        """Record that some device of the run has steps."""
        self.run_has_steps = True
        self.set_steps(self.steps)

    def move(self, by_ps: int) -> None:
        """Move all times on the timeline."""
        steps = [replace(s, start_ps=s.start_ps + by_ps, end_ps=s.end_ps + by_ps) for s in self.steps]
        self.steps = []
        self.set_runs([replace(r, start_ps=r.start_ps + by_ps, end_ps=r.end_ps + by_ps) for r in self.runs])
        self.set_steps(steps)

    def launched(self, events: EventBatch, at: Int64) -> tuple[Int32, Int32, Int32]:
        """Return execution, step and phase of a device's events, by their launch if it is known, else by their times.

        A reader that knows the launches states the first two as stats.

        Args:
            events: the events, in number n.
            at: their starts on the run's clock, shape (n,).
        """
        execution = self.executions_at(at)
        step, phase = self.steps_at(at)
        stats = {s.name: s for s in events.stats}
        number, is_known = integers(stats.get(LAUNCH_EXECUTION), len(events))
        execution = np.where(is_known, number, execution).astype(np.int32)
        number, is_known = integers(stats.get(LAUNCH_STEP), len(events))
        if is_known.any():
            place = np.append(np.argsort(self._step_index[:-1], kind="stable"), len(self._step_index) - 1)
            found = place[self._step_index[place[:-1]].searchsorted(number)]
            found = np.where(self._step_index[found] == number, found, len(self._step_index) - 1)
            step = np.where(is_known, self._step_index[found], step).astype(np.int32)
            phase = np.where(is_known, self._step_phase[found], phase).astype(np.int32)
        return execution, step, phase

    def executions_at(self, at: Int64) -> Int32:
        """Index into `runs` of the execution at each time, -1 for none."""
        return np.repeat(*_containing(self._run_edges, at))

    def steps_at(self, at: Int64) -> tuple[Int32, Int32]:
        """Return the step that owns each time, -1 for none, and a code into PHASES, which marks times outside of steps.

        A step owns everything that begins before the next step begins; the last step, everything before its end, which
        is that of the last execution.
        """
        interval, count = _containing(self._step_edges, at)
        return np.repeat(self._step_index[interval], count), np.repeat(self._step_phase[interval], count)

    def phase_rows(self, host: str, device_id: int) -> Iterator[dict[str, Any]]:
        """Rows of main.phases: each execution, each step, and the stretches of steps of one phase."""
        base = {"host": host, "device_id": device_id}
        for i, r in enumerate(self.runs):
            yield base | _phase_row("module", r.module, i, r.source, r.start_ps, r.end_ps)
        yield from step_rows(self.steps, base)


def _phase_code(phase: str | None) -> int:
    return PHASES.index(phase) if phase in PHASES and phase != OUTSIDE else -1


def _phase_row(kind: str, name: str, index: int, source: str, start_ps: int, end_ps: int) -> dict[str, Any]:
    return {"kind": kind, "name": name, "index": index, "source": source, "start_ps": start_ps, "end_ps": end_ps}


def _edges(intervals: Sequence[Run] | Sequence[Step]) -> tuple[Int64, Int64]:
    start, end = ([i.start_ps for i in intervals], [i.end_ps for i in intervals])
    return np.array(start, np.int64), np.array(end, np.int64)


def _containing(edges: tuple[Int64, Int64], at: Int64) -> tuple[Int32, Int64]:
    """Return the index of the interval at each time, and the number of consecutive times for which it stands.

    It is the last interval to start, if it has not ended, or else -1.
    """
    start, end = edges
    if not len(start) or not len(at):
        return np.array([-1], np.int32), np.array([len(at)])
    if (at[1:] >= at[:-1]).all():  # as on nearly all lines: look for the few edges in the many times
        first, last = start.searchsorted(at[[0, -1]], side="right") - 1
        i = np.arange(first, last + 1, dtype=np.int32)
        begin = np.append(0, at.searchsorted(start[first + 1 : last + 1]))
        stop = np.append(begin[1:], len(at))
        over = at.searchsorted(end[i]).clip(begin, stop)
        count = np.column_stack([over - begin, stop - over])
        return np.column_stack([i, np.full_like(i, -1)]).ravel(), count.ravel()
    i = (start.searchsorted(at, side="right") - 1).astype(np.int32)
    i[at >= np.append(end, np.iinfo(np.int64).min)[i]] = -1
    return i, np.ones(len(i), np.int64)


def step_rows(steps: Sequence[Step], base: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows of main.phases for steps, and one after each stretch of consecutive steps of one phase."""
    count = 0
    for phase, stretch in groupby(steps, lambda s: s.phase):
        same = list(stretch)
        for s in same:
            yield base | _phase_row("step", s.name, s.index, s.source, s.start_ps, s.end_ps)
        if phase:
            first, end = same[0], max(s.end_ps for s in same)
            yield base | _phase_row("phase", phase, count, first.source, first.start_ps, end)
            count += 1


def steps_of_line(names: Sequence[str], start: Int64, end: Int64, runs: Sequence[Run]) -> list[Step]:
    """Return the steps of a profiler's Steps line, whose event names are numbers; phases come from the modules run."""
    numbers = [int(n) if re.fullmatch(r"\d{1,9}", n) else None for n in names]
    use_names = None not in numbers and len(set(numbers)) == len(numbers)
    ordered = sorted(runs, key=lambda r: r.start_ps)
    run_starts = [r.start_ps for r in ordered]
    steps = []
    for position, i in enumerate(np.argsort(start, kind="stable").tolist()):
        low, high = int(start[i]), int(end[i])
        inside = ordered[bisect_left(run_starts, low) : bisect_left(run_starts, high)]
        phases = {p for r in inside if (p := named_phase(r.module))}
        phase = phases.pop() if len(phases) == 1 else None
        number = numbers[i] if use_names else None
        steps.append(Step(position if number is None else number, phase, phase or "step", low, high, "step line"))
    return steps


def steps_launched(names: Sequence[str], start: Int64, end: Int64, numbers: Sequence[int | None]) -> list[Step]:
    """Return the steps of which a reader knows the launches: windows on the device, under the names of their marks."""
    steps = []
    for name, low, high, number in zip(names, start.tolist(), end.tolist(), numbers, strict=True):
        phase, mark = named_phase(name), step_mark(name)
        batch = mark if mark and mark.has_batch else None
        steps.append(Step(number or 0, phase, phase or name, low, high, "launches", batch))
    return steps


def host_steps(markers: Sequence[StepMarker]) -> list[Step]:
    """Return the steps on the host's clock: its markers in time order, the outermost where those of threads nest."""
    named = ((m, named_phase(m.name)) for m in _outermost(steps_marked(markers)))
    return [Step(m.step, phase, phase or m.name, m.start_ps, m.end_ps, "marker") for m, phase in named]


def steps_marked(markers: Iterable[StepMarker]) -> list[StepMarker]:
    """Return the markers that are steps, by thread and start.

    Where markers of a thread nest, the outermost that names a phase is the step; if none does, the outermost. A number
    that a thread uses again after another one, or for another phase, stands for a further step. All steps are then
    numbered from 0 in the order in which they begin, and the same visit of a number on two threads is one step.
    """
    threads: dict[int, list[StepMarker]] = {}
    for m in markers:
        threads.setdefault(m.thread, []).append(m)
    placed: list[tuple[StepMarker, tuple[int, int]]] = []
    for _, of_thread in sorted(threads.items()):
        visits: Counter[int] = Counter()
        before: StepMarker | None = None
        for m in _outermost(of_thread, [named_phase(m.name) is not None for m in of_thread]):
            phases = {named_phase(x.name) for x in (m, before) if x} - {None}
            if before is None or m.step != before.step or len(phases) > 1:
                visits[m.step] += 1
            placed.append((m, (m.step, visits[m.step])))
            before = m
    if all(visit == 1 for _, (_, visit) in placed):
        return [m for m, _ in placed]
    begin: dict[tuple[int, int], int] = {}
    for m, key in placed:
        begin[key] = min(m.start_ps, begin.get(key, m.start_ps))
    number = {key: i for i, key in enumerate(sorted(begin, key=lambda k: (begin[k], k)))}
    return [replace(m, step=number[key]) for m, key in placed]


def _outermost(markers: Sequence[StepMarker], is_first: Sequence[bool] | None = None) -> list[StepMarker]:
    return [markers[i] for i in outermost([(m.start_ps, m.end_ps) for m in markers], is_first)]


_PHASE = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class StepMarker:
    """A host event with a `step_num`: one step, from its launch to its end on the host."""

    name: str
    step: int
    start_ps: int
    end_ps: int
    thread: int = 0
    """The thread of its host, by any number."""


def named_phase(name: str) -> str | None:
    """Prefill or decode, if the name of a marker or HLO module says so; else None."""
    if mark := step_mark(name):
        return mark.phase
    match = _PHASE.search(name.replace("_", " "))
    return match.group(1).lower() if match else None


def step_markers(plane: Plane, events: EventBatch, thread: int = 0) -> list[StepMarker]:
    """The step markers among a host line's events, in file order; `thread` tells them from those of other lines."""
    column = next((s for s in events.stats if s.name == "step_num"), None)
    if column is None:
        return []
    steps, known = integers(column, len(events))
    return [
        StepMarker(
            plane.event_metadata[events.metadata[i]].name if events.metadata[i] >= 0 else "",
            int(steps[i]),
            int(events.start_ps[i]),
            int(events.start_ps[i] + events.duration_ps[i]),
            thread,
        )
        for i in np.flatnonzero(known).tolist()
    ]


class MarkedTime:
    """The step markers of a thread; finds the one that is active at a given time."""

    def __init__(self, markers: Sequence[StepMarker]) -> None:
        self._markers = sorted(markers, key=lambda m: m.start_ps)
        self._starts = [m.start_ps for m in self._markers]
        self._latest_ends = list(accumulate((m.end_ps for m in self._markers), max))

    def innermost(self, at: int) -> StepMarker | None:
        """Return the marker that began last among those that are active at a time."""
        for i in range(bisect_right(self._starts, at) - 1, -1, -1):
            if self._latest_ends[i] < at:
                break
            if self._markers[i].end_ps >= at:
                return self._markers[i]
        return None


_COMPARED = 64
"""Most executions of a program on a device that are compared with those of another, most that one may lack, and most
devices that one is compared with.
"""
_TOGETHER = 0.9
"""Share of the executions that must overlap in time with those of another device to be the same launches."""


def launch_offsets(timelines: Sequence[tuple[int, Timeline]], clocks: Mapping[int, int]) -> dict[int, Int64]:
    """Return how many launches of its program each execution's device lacks before its first, by device id.

    Devices that ran a program less often than others lack launches at either end of the profile; those before show
    where the executions overlap in time with the others'. Devices that lack none, or where nothing shows, are absent.

    Args:
        clocks: a number for each device, equal for those whose times can be compared.
    """
    positions: dict[tuple[str, int | None], dict[int, list[int]]] = {}
    for device, timeline in timelines:
        for position, run in enumerate(timeline.runs):
            positions.setdefault((run.module, run.program_id), {}).setdefault(device, []).append(position)
    times = {d: np.array([(r.start_ps, r.end_ps) for r in t.runs], np.int64) for d, t in timelines}
    offsets: dict[int, Int64] = {}
    for of_device in positions.values():
        # by clock and number of executions, most first: executions and offset of devices that are placed
        placed = defaultdict[int, dict[int, list[tuple[Int64, int]]]](dict)
        for device, at in sorted(of_device.items(), key=lambda d: (-len(d[1]), d[0])):
            of_clock, own = placed[clocks[device]], times[device][at]
            offset = _offset(own, islice(chain.from_iterable(reversed(of_clock.values())), _COMPARED))
            of_clock.setdefault(len(own), []).append((own, offset))
            if offset:
                offsets.setdefault(device, np.zeros(len(times[device]), np.int64))[at] = offset
    return offsets


def _offset(own: Int64, others: Iterable[tuple[Int64, int]]) -> int:
    """Return the offset by which executions overlap with those of a device that has as many, or else more."""
    for other, offset in others:
        together = _together(own, other)
        if together.max() >= _TOGETHER:
            return offset + int(together.argmax())
    return 0


def _together(own: Int64, other: Int64) -> npt.NDArray[np.float64]:
    """The share of executions, of start and end, that overlap with another device's, for each number that it lacks."""
    compared = min(len(own), _COMPARED)
    starts, ends = own[:compared].T
    lacking = min(len(other) - len(own), _COMPARED)
    windows = sliding_window_view(other[: lacking + compared], compared, axis=0)
    shares: npt.NDArray[np.float64] = np.mean((starts < windows[:, 1]) & (windows[:, 0] < ends), axis=1)
    return shares
