"""Finds the device, execution and step of each op event that ran on the thread pool of virtual CPU devices.

XLA's CPU client runs N virtual devices on a pool of threads, so a line is not a device. The profiler's
ThreadpoolListener records who scheduled what: inside one `PjRtCpuExecutable::Execute`, the k-th `Record` starts
device k; every region (`StartRegion` to `StopRegion`) belongs to the device whose record it consumes, and so do
the records made in it.

A launch on one device only can be recognised by its `ExecuteHelper` on the launching thread: the process has one
device, or the program has no SPMD and runs in a `PjRtCpuExecutable::ExecuteSharded`. All records inside then belong to
that device; a cheap program has no records and runs its ops right there. If there are several devices and no SPMD, no
event says which device it is; it counts as the first.

A program that is launched while an earlier one still runs waits for its end: the `ExecuteHelper`s of its devices make
no record. The thread on which the earlier program ends then makes their records, for the latest waiting device first,
within the region of that program's last device. If their number differs, nothing tells whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import codes, integers
from tracewarehouse.ingest.columns.profiler_names import (
    EXECUTE,
    EXECUTE_HELPER,
    EXECUTE_SHARDED,
    RECORD,
    START_REGION,
    STOP_REGION,
    THUNKS,
)
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Line, Plane
from tracewarehouse.ingest.devices.timeline import MarkedTime, StepMarker

CpuThread = tuple[Line, EventBatch]
"""A host thread, and its events on the run's clock."""


@dataclass
class CpuLine:
    """One thread's events with the facts found about each; arrays of shape (n,) in file order."""

    line: Line
    events: EventBatch
    is_op: npt.NDArray[np.bool_]
    ordinal: Int32
    """Index of the virtual device on the host; -1 if the event is not an op or its device is unknown."""
    execution: Int32
    """Index into `CpuExecutions.executions`; -1 if unknown."""


@dataclass
class Execution:
    """One launch of a program on all virtual devices of the host."""

    start_ps: int
    step: StepMarker | None
    module: str = ""
    program_id: int | None = None


@dataclass
class CpuExecutions:
    """The op events of a host's virtual devices, and their launches, sorted by start."""

    ordinals: list[int]
    """The client's number of each device."""
    executions: list[Execution]
    lines: list[CpuLine] = field(default_factory=list)


@dataclass
class _Region:
    start_ps: int
    context: int
    line: int
    records: list[int] = field(default_factory=list)
    owner: tuple[int, int] | None = None
    released: list[int] = field(default_factory=list)
    """Records of programs that waited for the device's program, made after it has ended."""
    released_ps: int = 0


@dataclass
class _Helper:
    """The start of a program on one device; if it makes no record, the program waits for an earlier one."""

    start_ps: int
    end_ps: int
    region: _Region
    is_waiting: bool = True


@dataclass
class _Execute:
    start_ps: int
    end_ps: int
    line: int
    region: int | None
    records: list[int] = field(default_factory=list)
    is_single: bool = False


def follow_threads(plane: Plane, lines: Sequence[CpuThread], markers: Sequence[Sequence[StepMarker]]) -> CpuExecutions:
    """Follow the contexts through all threads of a host; `markers` are the step markers of each line."""
    walks = [Walk(plane, number, events) for number, (_, events) in enumerate(lines)]
    regions = [r for w in walks for r in w.regions]
    executes = sorted((e for w in walks for e in w.executes), key=lambda e: e.start_ps)
    owner = {c: (i, 0 if e.is_single else k) for i, e in enumerate(executes) for k, c in enumerate(e.records)}
    _own(regions, [h for w in walks for h in w.helpers if h.is_waiting], owner)
    steps = LaunchMarks(walks, markers)
    executions = [Execution(e.start_ps, steps.at(e.line, e.start_ps, e.region)) for e in executes]
    device_count = max((1 if e.is_single else len(e.records) for e in executes), default=0)
    attributed = CpuExecutions(list(range(device_count)), executions)
    numbers = {(e.line, e.start_ps): i for i, e in enumerate(executes)}
    for walk, (line, events) in zip(walks, lines, strict=True):
        owners = np.array([r.owner or (-1, -1) for r in walk.regions] + [(-1, -1)], np.int32)
        event_owner = owners[walk.event_region]
        single = np.array([[numbers[e.line, e.start_ps], e.start_ps, e.end_ps] for e in walk.executes if e.is_single])
        if len(single):  # launches on one device, in order of time; they may run ops in place
            last = np.searchsorted(single[:, 1], events.start_ps, side="right") - 1
            is_inside = (last >= 0) & (events.start_ps < single[last, 2])
            event_owner[is_inside] = np.stack([single[last[is_inside], 0], np.zeros(is_inside.sum(), np.int64)], axis=1)
        execution, device = np.where(walk.is_op[:, np.newaxis], event_owner, np.int32(-1)).T
        attributed.lines.append(CpuLine(line, events, walk.is_op, device, execution))
    name_modules(attributed)
    return attributed


def _own(regions: Sequence[_Region], helpers: Sequence[_Helper], owner: dict[int, tuple[int, int]]) -> None:
    """Set the owners of regions, as (execution, device), from those of the records that they consume.

    `helpers` are the starts of programs that had to wait. `owner` tells the owner of a record by its context; those of
    records that are made in regions are added.
    """
    waiting: dict[int, list[tuple[int, int]]] = {}

    def begin(region: _Region) -> None:
        region.owner = owner.get(region.context)
        if region.owner:
            for context in region.records:
                owner.setdefault(context, region.owner)

    def wait(helper: _Helper) -> None:
        if helper.region.owner:
            waiting.setdefault(helper.region.owner[0], []).append(helper.region.owner)

    def release(region: _Region) -> None:
        if waiting:
            number = min((i for i, devices in waiting.items() if len(devices) == len(region.released)), default=None)
            released = waiting.pop(number)[::-1] if number is not None else []  # else nothing tells whose they are
            owner.update(zip(region.released, released, strict=False))
        elif region.owner:
            owner.update(dict.fromkeys(region.released, region.owner))

    events: list[tuple[int, int, Callable[[], None]]] = []  # a record is older than the region that consumes it
    events += [(r.start_ps, 0, partial(begin, r)) for r in regions]
    events += [(h.start_ps, 1, partial(wait, h)) for h in helpers]
    events += [(r.released_ps, 2, partial(release, r)) for r in regions if r.released]
    for _, _, happen in sorted(events, key=lambda e: e[:2]):
        happen()


def is_op(events: EventBatch) -> npt.NDArray[np.bool_]:
    """Return which events are executions of HLO instructions, shape (n,)."""
    is_named = np.zeros(len(events), bool)
    for s in events.stats:
        if s.name == "hlo_op":
            is_named[s.rows] = True
    return is_named


def name_modules(cpu: CpuExecutions) -> None:
    """Set the module and program of each execution to those that its ops name."""
    for line in cpu.lines:
        stats = {s.name: s for s in line.events.stats}
        code, names = codes(stats.get("hlo_module"), len(line.events))
        program, is_known = integers(stats.get("program_id"), len(line.events))
        columns = (line.execution, code, program, is_known)
        for execution, c, number, known in {*zip(*(c[line.is_op].tolist() for c in columns), strict=True)}:
            if execution >= 0 and c >= 0:
                cpu.executions[execution].module = names[c]
                cpu.executions[execution].program_id = number % (1 << 64) if known else None


class Walk:
    """One thread in time order: its regions, records and executes.

    `event_region` holds the number of the region in force at each event, in file order; `len(regions)` is none.
    """

    def __init__(self, plane: Plane, number: int, events: EventBatch) -> None:
        self.number = number
        self.regions: list[_Region] = []
        self.executes: list[_Execute] = []
        self.helpers: list[_Helper] = []
        self.records: dict[int, tuple[int, int, int | None]] = {}  # context -> line, time, region
        stats = {s.name: s for s in events.stats}
        n = len(events)
        self.is_op = is_op(events)
        produced, _ = integers(stats.get("_p"), n)
        consumed, _ = integers(stats.get("_c"), n)
        kind = np.array([_kind(m.name) for m in plane.event_metadata] + [0], np.int8)[events.metadata]
        order = np.lexsort((-events.duration_ps, events.start_ps))
        last_region = np.full(n, -1, np.int64)  # per event in time order: the region in force, from its start on
        for at in np.flatnonzero(kind[order]).tolist():
            self._mark(int(kind[order[at]]), at, int(order[at]), events, produced, consumed, last_region)
        filled = np.maximum.accumulate(np.where(last_region >= 0, np.arange(n), -1))
        in_force = np.where(filled >= 0, last_region[filled], 0) - 1  # regions are stored from 1; 0 means stopped
        self.event_region = np.empty(n, np.int64)
        self.event_region[order] = np.where(in_force < 0, len(self.regions), in_force)

    def _mark(
        self,
        kind: int,
        at: int,
        row: int,
        events: EventBatch,
        produced: npt.NDArray[np.int64],
        consumed: npt.NDArray[np.int64],
        last_region: npt.NDArray[np.int64],
    ) -> None:
        start = int(events.start_ps[row])
        current = len(self.regions) - 1 if self.regions and not self._stopped else None
        if kind == _MARKS[EXECUTE]:
            self.executes.append(_Execute(start, start + int(events.duration_ps[row]), self.number, current))
        elif kind == _MARKS[EXECUTE_HELPER]:
            launch = self._launch_at(start)
            if launch:
                launch.is_single = True
            elif current is not None:
                end = start + int(events.duration_ps[row])
                self.helpers.append(_Helper(start, end, self.regions[current]))
        elif kind == _MARKS[THUNKS]:
            if current is not None:
                self._thunks_end = self.regions[current], start + int(events.duration_ps[row])
        elif kind == _MARKS[START_REGION]:
            self.regions.append(_Region(start, int(consumed[row]), self.number))
            self._stopped = False
            last_region[at] = len(self.regions)
        elif kind == _MARKS[STOP_REGION]:
            self._stopped = True
            last_region[at] = 0
        else:
            context = int(produced[row])
            self.records[context] = (self.number, start, current)
            launch = self._launch_at(start)
            if self.helpers and start <= self.helpers[-1].end_ps:
                self.helpers[-1].is_waiting = False
            if launch:
                launch.records.append(context)
            elif current is not None:
                self._record(self.regions[current], context, start)

    def _launch_at(self, at: int) -> _Execute | None:
        launch = self.executes[-1] if self.executes else None
        return launch if launch and launch.start_ps <= at <= launch.end_ps else None

    def _record(self, region: _Region, context: int, at: int) -> None:
        ended, end = self._thunks_end
        if ended is region and at >= end:
            region.released.append(context)
            region.released_ps = region.released_ps or at
        else:
            region.records.append(context)

    _stopped = True
    _thunks_end: tuple[_Region | None, int] = None, 0


_MARKS = {EXECUTE: 1, EXECUTE_SHARDED: 1, RECORD: 2, START_REGION: 3, STOP_REGION: 4, EXECUTE_HELPER: 5, THUNKS: 6}


def _kind(name: str) -> int:
    return _MARKS[THUNKS] if name.startswith(THUNKS) else _MARKS.get(name, 0)


class LaunchMarks:
    """Leads from an execution back to the step marker in whose time it was launched."""

    def __init__(self, walks: Sequence[Walk], markers: Sequence[Sequence[StepMarker]]) -> None:
        self._walks = walks
        self._steps = [MarkedTime(m) for m in markers]
        self._records = {context: place for w in walks for context, place in w.records.items()}

    def at(self, line: int, at: int, region: int | None) -> StepMarker | None:
        """Return the marker that lasts at a time of a thread, or on the thread that scheduled its region, and so on."""
        place: tuple[int, int, int | None] | None = (line, at, region)
        seen = 0
        while place is not None and seen < 64:
            line, at, region = place
            marker = self._steps[line].innermost(at)
            if marker:
                return marker
            if region is None:
                return None
            place = self._records.get(self._walks[line].regions[region].context)
            seen += 1
        return None
