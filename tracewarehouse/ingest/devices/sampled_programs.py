"""Samples a few executions of each program, whose ops tell which programs hold layers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tracewarehouse.ingest.columns.batches import chunks, part
from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.nesting import Flags, nest
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Int64, Plane
from tracewarehouse.ingest.devices.host_survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.timeline import Run
from tracewarehouse.ingest.hlo.instructions import Instructions
from tracewarehouse.ingest.layers.inference import programs_with_layers
from tracewarehouse.ingest.layers.loops import LoopPlaces, loop_facts, places_in_containers
from tracewarehouse.ingest.layers.sequence import Execution

EXECUTIONS = 3
"""Number of executions of a program that are kept on each device."""
MOST_OPS = 1 << 16
"""Most ops of an execution that are kept; a program that runs more has loops."""
_LACKING, _LACKING_AT_EDGE = 5, 50
"""An execution is cut if more than a fifth of it lies before its ops, or after; at the profile's edges, a fiftieth."""
FIRST_EVENTS = 1 << 17
"""Number of the first op events of a device that are read."""
Program = tuple[str, int | None]
"""Module and program id."""


class SampledExecutions:
    """The leaf ops of some executions of a device.

    Args:
        runs: its executions, by start.
    """

    def __init__(self, device_id: int, runs: Sequence[Run]) -> None:
        self._device_id = device_id
        self._runs = runs
        self._is_wanted = np.zeros(len(runs) + 1, bool)  # the last one is for ops in no execution
        self._is_wanted[_chosen(runs)] = True
        self._ops: defaultdict[int, list[tuple[Int32, Int64, Int64, Int32, Int32]]] = defaultdict(list)
        self._count = np.zeros(len(runs), np.int64)
        self._last_end = np.zeros(len(runs), np.int64)

    def follow(
        self, execution: Int32, instruction: Int32, start: Int64, self_ps: Int64, is_leaf: Flags, loops: LoopPlaces
    ) -> None:
        """Keep the wanted ones among some events of an op line; arrays of shape (n,), times in ps."""
        at = np.flatnonzero(self._is_wanted[execution])
        at = at[is_leaf[at]]
        if not len(at):
            return
        self._count += np.bincount(execution[at], minlength=len(self._runs))
        np.maximum.at(self._last_end, execution[at], start[at] + self_ps[at])
        for number in np.unique(execution[at]).tolist():
            own = at[execution[at] == number]
            places = loops[own]
            self._ops[number].append((instruction[own], start[own], self_ps[own], places.loop, places.iteration))
            if self._count[number] > MOST_OPS:
                self._join_rounds(number)

    def _join_rounds(self, number: int) -> None:
        """Keep each op of an iteration once, if there are many ops: a loop over tokens runs the layers again."""
        columns = [np.concatenate(column) for column in zip(*self._ops[number], strict=True)]
        order = np.argsort(columns[1], kind="stable")
        instruction, start, self_ps, loop, iteration = (column[order] for column in columns)
        is_free = np.where(loop < 0, np.arange(len(loop)), -1)
        key = packed([instruction, loop, iteration, is_free])
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        self._count[number] = len(first)
        if len(first) > MOST_OPS // 2:
            self._is_wanted[number] = False
            self._ops[number].clear()
            return
        total = np.bincount(inverse, self_ps).astype(np.int64)
        self._ops[number] = [(instruction[first], start[first], total, loop[first], iteration[first])]

    def executions(self) -> list[Execution]:
        """The executions that were kept; complete once `follow` has seen all ops of the device."""
        return [self._execution(number, ops) for number, ops in sorted(self._ops.items())]

    def _execution(self, number: int, ops: list[tuple[Int32, Int64, Int64, Int32, Int32]]) -> Execution:
        run = self._runs[number]
        if not ops:
            none = np.zeros(0, np.int64)
            return Execution(run.module, run.program_id, self._device_id, none.astype(np.int32), none, has_loop=True)
        instruction, start, self_ps, loop, iteration = (np.concatenate(columns) for columns in zip(*ops, strict=True))
        order = np.argsort(start, kind="stable")
        loops = LoopPlaces(loop[order], iteration[order])
        lacking = max(int(start.min()) - run.start_ps, run.end_ps - int(self._last_end[number]))
        is_edge = number in (0, len(self._runs) - 1)
        is_cut = lacking * (_LACKING_AT_EDGE if is_edge else _LACKING) > run.end_ps - run.start_ps
        ids = instruction[order]
        return Execution(run.module, run.program_id, self._device_id, ids, self_ps[order], is_cut, loops=loops)


def sampled_until(runs: Sequence[Run]) -> int:
    """Return the end of the last execution that is kept of a device, which has at least one."""
    return max(runs[i].end_ps for i in _chosen(runs))


def _chosen(runs: Sequence[Run]) -> list[int]:
    """Return the first executions of each program; those at the profile's edges, which may be cut, only if need be."""
    chosen: defaultdict[tuple[str, int | None], list[int]] = defaultdict(list)
    edges = (0, len(runs) - 1)
    for i in sorted(range(len(runs)), key=lambda i: (i in edges, i)):
        sampled = chosen[runs[i].module, runs[i].program_id]
        if len(sampled) < EXECUTIONS:
            sampled.append(i)
    return [i for sampled in chosen.values() for i in sampled]


def layered_programs(surveys: Sequence[HostSurvey], instructions: Instructions) -> set[str]:
    """Find the modules that hold layers, and number their instructions; of TPUs with the same programs, one is read."""
    executions: list[Execution] = []
    read: set[frozenset[str]] = set()
    for survey in surveys:
        for plane, core in survey.tpus:
            modules = frozenset(r.module for r in core.timeline.runs)
            if modules and modules not in read:
                read.add(modules)
                executions += _executions(survey, plane, core, instructions)
    return {module for module, _ in programs_with_layers(executions, instructions.rows)}


def _executions(survey: HostSurvey, plane: Plane, core: DevicePlane, instructions: Instructions) -> list[Execution]:
    row_instruction = instructions.add_metadata(plane, survey.modules)
    is_leaf = np.array([f.op_class != "container" for f in instructions.facts], bool)
    facts = loop_facts(instructions.facts)
    samples = SampledExecutions(core.device.device_id, core.timeline.runs)
    until = sampled_until(core.timeline.runs)
    for batches in survey.op_lines(plane):
        for first, batch in chunks(_begun_by(until, batches), is_nested=True):
            order = np.lexsort((-batch.duration_ps, batch.start_ps))
            start = batch.start_ps[order]
            nesting = nest(start, start + batch.duration_ps[order])
            instruction = row_instruction[batch.metadata[order]]
            loops = places_in_containers(nesting, instruction, facts)
            executions = core.timeline.executions_at(start)
            samples.follow(executions, instruction, start, nesting.self_ps, is_leaf[instruction], loops)
            if first + len(batch) >= FIRST_EVENTS:
                break
    return samples.executions()


def _begun_by(time_ps: int, batches: Iterable[EventBatch]) -> Iterator[EventBatch]:
    """Yield a line's events that begin before a time, or inside such an event; more if out of order."""
    for batch in batches:
        start = batch.start_ps
        end = (start + batch.duration_ps)[start < time_ps].max(initial=time_ps)
        yield part(batch, 0, int(np.flatnonzero(start <= end).max(initial=-1)) + 1)
        if len(batch) and start[-1] >= time_ps:
            return
