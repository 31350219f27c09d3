"""Infers the executions of a TPU that lacks their line, from its ops and from the executions of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracewarehouse.ingest.columns.batches import concatenate
from tracewarehouse.ingest.columns.keys import is_new
from tracewarehouse.ingest.columns.nesting import Flags, nest
from tracewarehouse.ingest.columns.records import Int64, Plane
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.timeline import Run
from tracewarehouse.ingest.hlo.instructions import Instructions


@dataclass(frozen=True)
class _OutermostOps:
    """Ops of a device that no other op holds, by start; arrays of shape (n,)."""

    instruction: Int64
    start_ps: Int64
    end_ps: Int64


_Core = tuple[HostSurvey, Plane, DevicePlane]


def infer_executions(surveys: Sequence[HostSurvey], instructions: Instructions) -> list[Flag]:
    """Set the executions of TPUs that state none, if other devices of the run state executions of the same programs.

    A program runs each instruction outside of loops once, and always in the same order. So an execution begins with the
    op with which that program begins on the other devices. The profiler loses some ops, so an execution also begins
    where the program changes and where an instruction comes again.
    """
    cores = [(s, *tpu) for s in surveys for tpu in s.tpus]
    told, untold = ([c for c in cores if bool(c[2].timeline.runs) is has_runs] for has_runs in (True, False))
    if not told or not untold:
        return []
    ran = {r.program_id: r.module for *_, core in told for r in core.timeline.runs if r.program_id is not None}
    first_ops = _first_ops(told, instructions)
    flags = []
    for survey, plane, core in untold:
        ops = _outermost_ops(survey, plane, instructions)
        instructions.name_modules()
        rows = [instructions.rows[i] for i in ops.instruction.tolist()]
        programs = [r.program_id for r in rows]
        modules = {r.program_id: r.module for r in rows if r.program_id is not None and r.module} | ran
        if not programs or not modules.keys() >= set(programs):
            continue
        begins = is_new(np.unique(programs, return_inverse=True)[1]) | np.isin(ops.instruction, first_ops)
        at = _begins(ops.instruction, begins)
        ends = np.maximum.reduceat(ops.end_ps, at).tolist()
        runs = zip([programs[i] for i in at], ops.start_ps[at].tolist(), ends, strict=True)
        core.timeline.set_runs([Run(modules[p], p, start, end, source="op line") for p, start, end in runs])
        sentence = f"device {core.device.device_id} has no line of its executions: {len(at)} are inferred from its ops"
        flags.append(Flag("inferred_executions", sentence, survey.host.name))
    return flags


def _first_ops(told: Sequence[_Core], instructions: Instructions) -> list[int]:
    """Return the instruction with which the fullest execution of each program begins; of equal devices, one is read."""
    firsts: dict[int | None, tuple[int, int]] = {}
    for survey, plane, core in told:
        runs = core.timeline.runs
        if firsts.keys() >= {r.program_id for r in runs}:
            continue
        ops = _outermost_ops(survey, plane, instructions)
        execution = core.timeline.executions_at(ops.start_ps)
        at = np.flatnonzero(is_new(execution))
        count = np.diff(at, append=len(execution))
        for e, ran, first in zip(execution[at].tolist(), count.tolist(), ops.instruction[at].tolist(), strict=True):
            if e >= 0:
                firsts[runs[e].program_id] = max((ran, first), firsts.get(runs[e].program_id, (0, 0)))
    return [first for _, first in firsts.values()]


def _begins(instruction: Int64, begins: Flags) -> list[int]:
    """Return where executions begin: at the given places, and at each op that the execution has already had."""
    order = np.argsort(instruction, kind="stable")
    before = np.full(len(order), -1)
    is_again = ~is_new(instruction[order])
    before[order[is_again]] = order[np.flatnonzero(is_again) - 1]
    latest = np.maximum.accumulate(np.where(begins, np.arange(len(order)) - 1, before))
    at = [0]
    while (following := int(latest.searchsorted(at[-1]))) < len(latest):
        at.append(following)
    return at


def _outermost_ops(survey: HostSurvey, plane: Plane, instructions: Instructions) -> _OutermostOps:
    ops = concatenate([batch for batches in survey.op_lines(plane) for batch in batches])
    order = np.lexsort((-ops.duration_ps, ops.start_ps))
    start = ops.start_ps[order]
    end = start + ops.duration_ps[order]
    at = np.flatnonzero(nest(start, end).depth == 0)
    instruction = instructions.add_metadata(plane, survey.modules)[ops.metadata[order][at]]
    return _OutermostOps(instruction.astype(np.int64), start[at], end[at])
