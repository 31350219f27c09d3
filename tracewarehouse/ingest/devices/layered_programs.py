"""Finds the programs of a run that hold the layers of a model, before the run's events are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tracewarehouse.ingest.columns.batches import chunks, part
from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.columns.profiler_names import OP_LINE
from tracewarehouse.ingest.columns.records import EventBatch
from tracewarehouse.ingest.devices.sampled_executions import SampledExecutions, sampled_until
from tracewarehouse.ingest.devices.survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.hlo.instructions import Instructions
from tracewarehouse.ingest.layers.inference import programs_with_layers
from tracewarehouse.ingest.layers.sequence import Execution

_FIRST_EVENTS = 1 << 17
"""Number of the first op events of a device that are read."""


def layered_programs(surveys: Sequence[HostSurvey], instructions: Instructions) -> set[str]:
    """Find the modules that hold layers, and number their instructions; of TPUs with the same programs, one is read.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
    """
    executions: list[Execution] = []
    read: set[frozenset[str]] = set()
    for survey in surveys:
        for position, core in survey.planes.items():
            modules = frozenset(r.module for r in core.timeline.runs)
            if core.is_sparse_core or core.device.backend == "gpu" or not modules or modules in read:
                continue
            read.add(modules)
            executions += _executions(survey, position, core, instructions)
    instructions.complete()
    return {module for module, _ in programs_with_layers(executions, instructions.rows)}


def _executions(survey: HostSurvey, position: int, core: DevicePlane, instructions: Instructions) -> list[Execution]:
    plane = survey.host.trace.planes[position]
    of_row = instructions.add_metadata(plane, survey.modules)
    is_leaf = np.array([f.op_class != "container" for f in instructions.facts], bool)
    samples = SampledExecutions(core.device.device_id, core.timeline.runs)
    until = sampled_until(core.timeline.runs)
    for line in plane.lines:
        if line.name != OP_LINE:
            continue
        batches = _begun_by(until - survey.host.clock_offset_ps, survey.host.trace.batches(plane, line))
        for first, batch in chunks(batches, is_nested=True):
            order = np.lexsort((-batch.duration_ps, batch.start_ps))
            start = batch.start_ps[order] + survey.host.clock_offset_ps
            self_ps = nest(start, start + batch.duration_ps[order]).self_ps
            instruction = of_row[batch.metadata[order]]
            samples.follow(core.timeline.executions_at(start), instruction, start, self_ps, is_leaf[instruction])
            if first + len(batch) >= _FIRST_EVENTS:
                break
    return samples.executions()


def _begun_by(time_ps: int, batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """Yield a line's events that begin before a time on its clock, or inside such an event; more if out of order."""
    for batch in batches:
        start = batch.start_ps
        end = (start + batch.duration_ps)[start < time_ps].max(initial=time_ps)
        yield part(batch, 0, int(np.flatnonzero(start <= end).max(initial=-1)) + 1)
        if len(batch) and start[-1] >= time_ps:
            return
