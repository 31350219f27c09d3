"""Holds a device's timeline: the executions of programs on it, and the steps and phases that they form."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.records import OUTSIDE, PHASES, Int32, Int64
from tracewarehouse.ingest.devices.markers import StepMarker, phase_of


@dataclass(frozen=True)
class Step:
    """One step on one device."""

    index: int
    phase: str | None
    name: str
    start_ps: int
    end_ps: int
    source: str


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
    """Executions and steps of a device, both sorted by start.

    Attributes:
        runs: the executions.
        steps: the steps.
        is_of_stepped_run: whether some device of the run has steps; then times in no step are known to be outside.
    """

    runs: list[Run] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    is_of_stepped_run: bool = False

    def __post_init__(self) -> None:
        self.set_runs(self.runs)
        self.set_steps(self.steps)

    def set_runs(self, runs: list[Run]) -> None:
        """Set the device's executions."""
        self.runs = sorted(runs, key=lambda r: r.start_ps)
        self._run_edges = _edges(self.runs)

    def set_steps(self, steps: list[Step]) -> None:
        """Set the device's steps."""
        self.steps = sorted(steps, key=lambda s: s.start_ps)
        start, end = _edges(self.steps)
        self._step_edges = start, np.append(start[1:], end[-1:])
        self._step_index = np.array([s.index for s in self.steps] + [-1], np.int32)
        outside = PHASES.index(OUTSIDE) if self.steps or self.is_of_stepped_run else -1
        self._step_phase = np.array([_phase_code(s.phase) for s in self.steps] + [outside], np.int32)

    def set_of_stepped_run(self) -> None:
        """Record that some device of the run has steps."""
        self.is_of_stepped_run = True
        self.set_steps(self.steps)

    def move(self, by_ps: int) -> None:
        """Move all times on the timeline."""
        self.set_runs([replace(r, start_ps=r.start_ps + by_ps, end_ps=r.end_ps + by_ps) for r in self.runs])
        self.set_steps([replace(s, start_ps=s.start_ps + by_ps, end_ps=s.end_ps + by_ps) for s in self.steps])

    def executions_at(self, at: Int64) -> Int32:
        """Index into `runs` of the execution at each time, -1 for none."""
        return np.repeat(*_containing(self._run_edges, at))

    def steps_at(self, at: Int64) -> tuple[Int32, Int32]:
        """Return the step that owns each time, -1 for none, and a code into PHASES, which marks times outside of steps.

        A step owns everything that begins before the next step begins; the last step, everything before its end.
        """
        interval, count = _containing(self._step_edges, at)
        return np.repeat(self._step_index[interval], count), np.repeat(self._step_phase[interval], count)

    def phase_rows(self, host: str, device_id: int) -> Iterator[dict[str, Any]]:
        """Rows of main.phases: each execution, each step, and the stretches of steps of one phase."""
        base = {"host": host, "device_id": device_id}
        for i, r in enumerate(self.runs):
            times = {"start_ps": r.start_ps, "end_ps": r.end_ps}
            yield base | {"kind": "module", "name": r.module, "index": i, "source": r.source} | times
        yield from step_rows(self.steps, base)


def _phase_code(phase: str | None) -> int:
    return PHASES.index(phase) if phase in PHASES and phase != OUTSIDE else -1


def _edges(intervals: Sequence[Run] | Sequence[Step]) -> tuple[Int64, Int64]:
    return (
        np.array([i.start_ps for i in intervals], np.int64),
        np.array([i.end_ps for i in intervals], np.int64),
    )


def _containing(edges: tuple[Int64, Int64], at: Int64) -> tuple[Int32, Int64]:
    """Return the index of the interval at each time: the last to start, if it has not ended; -1 for none.

    Returns:
        Indices, and the number of consecutive times for which each stands.
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
    """Rows of main.phases for steps, and one per stretch of consecutive steps of one phase."""
    stretch: list[Step] = []
    count = 0
    for s in [*steps, None]:
        if stretch and (s is None or s.phase != stretch[0].phase):
            first = stretch[0]
            if first.phase:
                end = max(x.end_ps for x in stretch)
                times = {"start_ps": first.start_ps, "end_ps": end}
                yield base | {"kind": "phase", "name": first.phase, "index": count, "source": first.source} | times
                count += 1
            stretch = []
        if s is not None:
            stretch.append(s)
            times = {"start_ps": s.start_ps, "end_ps": s.end_ps}
            yield base | {"kind": "step", "name": s.name, "index": s.index, "source": s.source} | times


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
        phases = {p for p in (phase_of(r.module) for r in inside) if p}
        phase = phases.pop() if len(phases) == 1 else None
        number = numbers[i] if use_names else None
        index = number if number is not None else position
        steps.append(Step(index, phase, phase or "step", low, high, "step line"))
    return steps


def host_steps(markers: Sequence[StepMarker]) -> list[Step]:
    """Return the steps on the host's clock: its markers in time order, outermost first where they nest."""
    steps: list[Step] = []
    for m in sorted(markers, key=lambda m: (m.start_ps, -m.end_ps)):
        if not steps or m.start_ps >= steps[-1].end_ps:
            phase = phase_of(m.name)
            steps.append(Step(m.step, phase, phase or m.name, m.start_ps, m.end_ps, "marker"))
    return steps
