"""Finds the executions and steps of virtual CPU devices.

Since 2025, XLA's CPU runtime writes `device_ordinal` and `run_id` to every op event, as in captures of JAX. An event
with the same `run_id` on the thread that called the program is the launch; the step follows from it. A launch on a
single device has no such event: its step follows from the threads, which `cpu_threads.py` follows, as it does in other
captures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.profiler_names import CPU_PLANE, EXECUTE, EXECUTE_SHARDED, THUNKS
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Plane
from tracewarehouse.ingest.devices.cpu_threads import (
    CpuExecutions,
    CpuLine,
    CpuThread,
    Execution,
    LaunchMarks,
    Walk,
    follow_threads,
    is_op,
    name_modules,
)
from tracewarehouse.ingest.devices.timeline import MarkedTime, Run, Step, StepMarker, Timeline, named_phase

_MOST_DEVICES = 1 << 16
"""Maximum number of virtual devices on a host; a larger number means damage."""


def has_cpu_ops(plane: Plane) -> bool:
    """Return whether a plane has the host threads that execute the ops of virtual CPU devices."""
    return plane.name == CPU_PLANE and any(
        m.name in (EXECUTE, EXECUTE_SHARDED) or m.name.startswith(THUNKS) for m in plane.event_metadata
    )


def attribute(plane: Plane, lines: Sequence[CpuThread], markers: Sequence[Sequence[StepMarker]]) -> CpuExecutions:
    """Find device and execution of each op of a host; `markers` are the step markers of each line."""
    return _stated(plane, lines, markers) or follow_threads(plane, lines, markers)


def _stated(plane: Plane, lines: Sequence[CpuThread], markers: Sequence[Sequence[StepMarker]]) -> CpuExecutions | None:
    """Take device and launch of each op from its stats; None if no op states both.

    The devices are those that ran an op, sorted by ordinal. Launches with the same `run_id` count as one.
    """
    stated = [_ops(events) for _, events in lines]
    if not any(is_stated.any() for is_stated, _, _ in stated):
        return None
    ordinals = np.unique(np.concatenate([ordinal[is_stated] for is_stated, ordinal, _ in stated]))
    launches: dict[int, Execution] = {}
    for (_, events), thread_markers in zip(lines, markers, strict=True):
        steps = MarkedTime(thread_markers)
        for launch, start in _launches(events):
            if launch not in launches or start < launches[launch].start_ps:
                launches[launch] = Execution(start, steps.innermost(start))
    launches |= _unannounced(plane, lines, markers, stated, np.array(list(launches), np.int64))
    order = sorted(launches, key=lambda r: launches[r].start_ps)
    attributed = CpuExecutions(ordinals.tolist(), [launches[r] for r in order])
    numbers = {run_id: number for number, run_id in enumerate(order)}
    for (line, events), (is_stated, ordinal, run_id) in zip(lines, stated, strict=True):
        device, execution = np.full((2, len(events)), -1, np.int32)
        device[is_stated] = np.searchsorted(ordinals, ordinal[is_stated])
        distinct, inverse = np.unique(run_id[is_stated], return_inverse=True)
        execution[is_stated] = np.array([numbers[r] for r in distinct.tolist()], np.int32)[inverse]
        attributed.lines.append(CpuLine(line, events, is_op(events), device, execution))
    name_modules(attributed)
    return attributed


def _unannounced(
    plane: Plane,
    lines: Sequence[CpuThread],
    markers: Sequence[Sequence[StepMarker]],
    stated: Sequence[tuple[npt.NDArray[np.bool_], Int64, Int64]],
    seen: Int64,
) -> dict[int, Execution]:
    """Return the executions without a launch of their `run_id`, by that: they begin with their first op.

    The launch was before the capture, or on one device, where it states no `run_id`. Then the thread that runs the
    first op leads back to the one that scheduled it, and so to the mark.
    """
    first_ops: dict[int, tuple[int, int, int]] = {}
    for number, ((_, events), (is_stated, _, run_id)) in enumerate(zip(lines, stated, strict=True)):
        at = np.flatnonzero(is_stated & ~np.isin(run_id, seen))
        at = at[np.argsort(events.start_ps[at], kind="stable")]
        unseen, first = np.unique(run_id[at], return_index=True)
        for launch, row in zip(unseen.tolist(), at[first].tolist(), strict=True):
            place = int(events.start_ps[row]), number, row
            first_ops[launch] = min(place, first_ops.get(launch, place))
    if not first_ops or not any(markers):
        return {launch: Execution(start, None) for launch, (start, _, _) in first_ops.items()}
    walks = [Walk(plane, number, events) for number, (_, events) in enumerate(lines)]
    marks = LaunchMarks(walks, markers)
    executions = {}
    for launch, (start, number, row) in first_ops.items():
        region = int(walks[number].event_region[row])
        step = marks.at(number, start, region if region < len(walks[number].regions) else None)
        executions[launch] = Execution(start, step)
    return executions


def _ops(events: EventBatch) -> tuple[npt.NDArray[np.bool_], Int64, Int64]:
    """Return which events are ops that state both, and the ordinal of their device and the `run_id` of their launch."""
    stats = {s.name: s for s in events.stats}
    ordinal, has_ordinal = integers(stats.get("device_ordinal"), len(events))
    run_id, has_run_id = integers(stats.get("run_id"), len(events))
    is_device = has_ordinal & (ordinal >= 0) & (ordinal < _MOST_DEVICES)
    return is_op(events) & is_device & has_run_id, ordinal, run_id


def _launches(events: EventBatch) -> Iterator[tuple[int, int]]:
    """Yield `run_id` and start of the events that have a `run_id` and belong to no device."""
    stats = {s.name: s for s in events.stats}
    _, has_ordinal = integers(stats.get("device_ordinal"), len(events))
    run_id, has_run_id = integers(stats.get("run_id"), len(events))
    at = np.flatnonzero(has_run_id & ~has_ordinal & ~is_op(events))
    yield from zip(run_id[at].tolist(), events.start_ps[at].tolist(), strict=True)


def cpu_timelines(cpu: CpuExecutions) -> list[Timeline]:
    """Executions and steps of each virtual device, from the first to the last op of each execution."""
    ops = [(line, np.flatnonzero(line.ordinal >= 0)) for line in cpu.lines]
    ordinal, execution, start, end = (
        np.concatenate([np.empty(0, np.int64), *columns])
        for columns in (
            [line.ordinal[at].astype(np.int64) for line, at in ops],
            [line.execution[at].astype(np.int64) for line, at in ops],
            [line.events.start_ps[at] for line, at in ops],
            [(line.events.start_ps + line.events.duration_ps)[at] for line, at in ops],
        )
    )
    order = np.lexsort((execution, ordinal))
    ordinal, execution, start, end = ordinal[order], execution[order], start[order], end[order]
    first = np.flatnonzero(np.diff(ordinal, prepend=-1) | np.diff(execution, prepend=-1))
    timelines: list[list[tuple[Execution, int, int]]] = [[] for _ in cpu.ordinals]
    if len(first):
        low, high = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
        columns = (ordinal[first].tolist(), execution[first].tolist(), low.tolist(), high.tolist())
        for device, number, earliest, latest in zip(*columns, strict=True):
            timelines[device].append((cpu.executions[number], earliest, latest))
    return [_cpu_timeline(t) for t in timelines]


def _cpu_timeline(executions: Sequence[tuple[Execution, int, int]]) -> Timeline:
    members: dict[int, list[tuple[StepMarker, Run]]] = {}  # a step may launch several programs
    runs = []
    for execution, low, high in executions:
        run = Run(execution.module, execution.program_id, low, high)
        runs.append(run)
        if execution.step:
            members.setdefault(execution.step.step, []).append((execution.step, run))
    steps = []
    for number, ran in members.items():
        name, phase = _name_and_phase([m for m, _ in ran], [r.module for _, r in ran])
        start, end = min(r.start_ps for _, r in ran), max(r.end_ps for _, r in ran)
        steps.append(Step(number, phase, phase or name, start, end, "marker"))
    return Timeline(runs, steps)


def _name_and_phase(markers: Sequence[StepMarker], modules: Sequence[str]) -> tuple[str, str | None]:
    """The name of a step's first mark, and the phase that its marks name or, if they name none, its modules."""
    of_marks = [phase for m in markers if (phase := named_phase(m.name))]
    of_modules = {phase for m in modules if (phase := named_phase(m))}
    phase = of_marks[0] if of_marks else of_modules.pop() if len(of_modules) == 1 else None
    return markers[0].name, phase
