"""Reads virtual CPU devices whose op events state their device and launch, as in captures of JAX.

Since 2025, XLA's CPU runtime writes `device_ordinal` and `run_id` to every op event. An event with the same `run_id`
on the thread that called the program is the launch; the step follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Line, Plane
from tracewarehouse.ingest.devices.cpu_devices import THUNKS, CpuExecutions, CpuLine, Execution, is_op, name_modules
from tracewarehouse.ingest.devices.markers import MarkedTime, StepMarker

_MOST_DEVICES = 1 << 16
"""Maximum number of virtual devices on a host; a larger number means damage."""


def has_thunks(plane: Plane) -> bool:
    """Whether programs of XLA's CPU runtime ran on the plane's threads."""
    return any(m.name.startswith(THUNKS) for m in plane.event_metadata)


def attribute(
    lines: Sequence[tuple[Line, EventBatch]], markers: Sequence[Sequence[StepMarker]]
) -> CpuExecutions | None:
    """Take device and launch of each op from its stats; the devices are those that ran an op, sorted by ordinal.

    `markers` are the step markers of each line, in the order of `lines`. Launches with the same `run_id` count as one.
    Returns None if no op states device and launch.
    """
    stated = [_ops(events) for _, events in lines]
    if not any(is_stated.any() for is_stated, _, _ in stated):
        return None
    ordinals = np.unique(np.concatenate([ordinal[is_stated] for is_stated, ordinal, _ in stated]))
    launches: dict[int, Execution] = {}
    for (_, events), of_line in zip(lines, markers, strict=True):
        steps = MarkedTime(of_line)
        for launch, start in _launches(events):
            _keep_first(launches, launch, Execution(start, steps.innermost(start)))
    seen = np.array(list(launches), np.int64)
    for (_, events), (is_stated, _, run_id) in zip(lines, stated, strict=True):
        at = np.flatnonzero(is_stated & ~np.isin(run_id, seen))  # launched before the capture
        at = at[np.argsort(events.start_ps[at])]
        unseen, first = np.unique(run_id[at], return_index=True)
        for launch, start in zip(unseen.tolist(), events.start_ps[at[first]].tolist(), strict=True):
            _keep_first(launches, launch, Execution(start, None))
    order = sorted(launches, key=lambda r: launches[r].start_ps)
    attributed = CpuExecutions(len(ordinals), executions=[launches[r] for r in order], ordinals=ordinals.tolist())
    number_of = {run_id: number for number, run_id in enumerate(order)}
    for (line, events), (is_stated, ordinal, run_id) in zip(lines, stated, strict=True):
        device, execution = np.full((2, len(events)), -1, np.int32)
        device[is_stated] = np.searchsorted(ordinals, ordinal[is_stated])
        distinct, inverse = np.unique(run_id[is_stated], return_inverse=True)
        execution[is_stated] = np.array([number_of[r] for r in distinct.tolist()], np.int32)[inverse]
        attributed.lines.append(CpuLine(line, events, is_op(events), device, execution))
    name_modules(attributed)
    return attributed


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


def _keep_first(launches: dict[int, Execution], run_id: int, launch: Execution) -> None:
    known = launches.get(run_id)
    if known is None or launch.start_ps < known.start_ps:
        launches[run_id] = launch
