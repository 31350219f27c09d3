"""Writes the events of device lines as main.ops: nested, attributed to execution, step and phase."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.collectives.windows import AsyncSpans, CollectiveExecutions, CollectiveOps, sequences
from tracewarehouse.ingest.columns.batches import chunks, codes, integers
from tracewarehouse.ingest.columns.nesting import Flags, nest
from tracewarehouse.ingest.columns.profiler_names import (
    ASYNC_LINE,
    LAUNCH_EXECUTION,
    LAUNCH_STEP,
    OWN_STATS,
    PREDICTED_STATS,
    line_kind,
)
from tracewarehouse.ingest.columns.records import PHASES, EventBatch, Int8, Int32, Int64, StatColumn, StatKind
from tracewarehouse.ingest.devices.sampled_programs import SampledExecutions
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter
from tracewarehouse.ingest.layers.loops import LoopFacts, LoopPlaces, loop_facts, places_in_containers
from tracewarehouse.ingest.tables.leaf_ops import NO_LEAF, CopyOps, CopyWriter, LeafOrder, LeafTimes
from tracewarehouse.ingest.tables.stats import COSTS, unheld, write_event_stats

_COMMUNICATION, _COPY = OP_CLASSES.index("communication"), OP_CLASSES.index("copy")
_ORDERED = ("idle_before", "overlap", "class_overlap")
"""The leaf-op columns of main.ops, without their unit."""


@dataclass(frozen=True)
class DeviceLine:
    """The host, plane and device to which a device line's events belong."""

    host: str
    plane: str
    line: str
    device_id: int | None
    first_event_id: int
    is_op_line: bool
    clock_offset_ps: int = 0


@dataclass
class OpColumns:
    """Events of one device line; arrays of shape (n,)."""

    row: Int64
    """Position on the line, in file order."""
    instruction_id: Int32
    start_ps: Int64
    duration_ps: Int64
    execution: Int32
    step: Int32
    phase: Int32
    stats: list[StatColumn] = field(default_factory=list)
    leaf_times: LeafTimes | None = None
    """The leaf-op columns, set if the leaf ops of the device lie on several lines."""
    loops: LoopPlaces | None = None
    """The places in loops, set if the program tells them."""


class OpWriter:
    """Writes device lines one after the other, and passes on the events from which collectives and copies are built."""

    def __init__(
        self, writers: Mapping[str, TableWriter], facts: Sequence[OpFacts], executions: CollectiveExecutions
    ) -> None:
        self._ops, self._stats, self._counters = writers["ops"], writers["event_stats"], writers["counters"]
        self._facts = facts
        self._op_class: Int8 = np.zeros(0, np.int8)
        self._has_collective: Flags = np.zeros(0, bool)
        self._lacks_program: Flags = np.zeros(0, bool)
        self._is_custom_call: Flags = np.zeros(0, bool)
        self._is_memset: Flags = np.zeros(0, bool)
        self._loop_facts = loop_facts(())
        self._executions = executions
        self._copies = CopyWriter(writers["copies"])
        self.programs: dict[int, tuple[str, int | None]] = {}
        """Module and program of instructions that name none, from the first execution in which they run."""
        self.sampled: dict[int, SampledExecutions] = {}
        """Some executions of each device whose timeline has any, by device id."""
        self.time_ps: npt.NDArray[np.float64] = np.zeros(0)
        """Self time of the ops of each instruction on all devices, by instruction id."""
        self.sized_ps: dict[str, npt.NDArray[np.float64]] = {}
        """The part of `time_ps` in ops whose events state flops, and in those whose events state bytes."""
        self.leaf_ops: Counter[tuple[int, bool]] = Counter()
        """Number of leaf ops, by device id and whether an execution holds them."""
        self._order = LeafOrder()
        self._has_windows = False
        """Whether the line at hand has asynchronous collectives, whose windows hold idle time."""

    def write_line(
        self,
        line: DeviceLine,
        batches: Iterable[EventBatch],
        row_instruction: Int32,
        timeline: Timeline,
        leaf_times: LeafTimes | None = None,
    ) -> None:
        """Write a whole line whose instructions are known from event metadata.

        `row_instruction` is the instruction id by row of that metadata. `leaf_times` are the leaf-op columns of all
        events, if this is not the device's only op line.
        """
        self._order = LeafOrder()
        if line.is_op_line and line.device_id is not None and line.device_id not in self.sampled:
            self.sampled[line.device_id] = SampledExecutions(line.device_id, timeline.runs)
        homeless = self._homeless(row_instruction) if line.is_op_line else []
        self._has_windows = line.is_op_line and self._begins_collectives(row_instruction)
        for first, batch in chunks(batches, is_nested=line.line != ASYNC_LINE):
            instruction = row_instruction[batch.metadata]
            execution = self.write_chunk(line, first, batch, instruction, list(batch.stats), timeline, leaf_times)
            if homeless:
                self._assign_programs(homeless, instruction, execution, timeline)
        self._has_windows = False

    def write_chunk(
        self,
        line: DeviceLine,
        first: int,
        batch: EventBatch,
        instruction: Int32,
        stats: list[StatColumn],
        timeline: Timeline,
        leaf_times: LeafTimes | None,
        loops: LoopPlaces | None = None,
    ) -> Int32:
        """Write the events of a line from number `first` on, with those stats; return the execution of each."""
        start = batch.start_ps + line.clock_offset_ps
        execution, step, phase = timeline.launched(batch, start)
        end = first + len(batch)
        rows = np.arange(first, end)
        columns = OpColumns(rows, instruction, start, batch.duration_ps, execution, step, phase, stats)
        columns.leaf_times = leaf_times[first:end] if leaf_times else None
        columns.loops = loops[first:end] if loops else None
        self.write(line, columns)
        if line_kind(line.plane, line.line) == "counters":
            self._write_counters(line, first, batch, instruction)
        return execution

    def write(self, line: DeviceLine, events: OpColumns) -> None:
        """Write events of a line that nest among themselves."""
        n = len(events.row)
        if not n:
            return
        end = events.start_ps + events.duration_ps
        order = _order(events.start_ps, events.duration_ps)
        event_id = line.first_event_id + events.row
        start, duration, instruction = events.start_ps[order], events.duration_ps[order], events.instruction_id[order]
        depth: Any = 0
        parent, self_ps, is_overlapping = None, duration, None
        if line.line != ASYNC_LINE:  # its events overlap by nature and hold nothing
            nesting = nest(start, end[order])
            depth, self_ps, is_overlapping = nesting.depth, nesting.self_ps, nesting.is_overlapping
            if depth.any():
                parent = Nullable(event_id[order][nesting.parent], nesting.parent >= 0)
        op_class = self.op_classes()
        leaf_times, is_leaf = None, op_class[instruction] != NO_LEAF
        stats = {s.name: s for s in events.stats}
        costs: dict[str, Nullable | None] = {}
        loops = events.loops[order] if events.loops else LoopPlaces.nowhere(n)
        if line.is_op_line:
            times = events.leaf_times
            leaf_times = times[order] if times else self._order.follow(start, end[order], op_class[instruction])
            if not events.loops and parent:
                loops = places_in_containers(nesting, instruction, self._loop_facts)
            costs = {name: _stat(stats.get(name), n, order, lowest=0) for name in COSTS}
            if line.device_id is not None:
                self._count(line.device_id, events.execution[order], instruction, start, self_ps, is_leaf, loops)
                self._count_sized(instruction, self_ps, costs)
                if self._has_windows:
                    self._executions.add_busy(line.device_id, start[is_leaf], end[order][is_leaf])
        self._ops.write(
            n,
            {
                "event_id": event_id[order],
                "host": line.host,
                "device_id": line.device_id,
                "plane": line.plane,
                "line": line.line,
                "instruction_id": instruction,
                "start_ps": start,
                "duration_ps": duration,
                "self_ps": self_ps,
                "depth": depth,
                "parent_event_id": parent,
                "is_overlapping": is_overlapping,
                "is_leaf": is_leaf if line.is_op_line else False,
                **({f"{name}_ps": getattr(leaf_times, name) for name in _ORDERED} if leaf_times else {}),
                "execution": Nullable.from_zero(events.execution[order]),
                "iteration": Nullable.from_zero(loops.iteration),
                "phase": Coded(events.phase[order], PHASES),
                "step": Nullable.from_zero(events.step[order]),
                **costs,
                **{name: _stat(stats.get(name), n, order) for name in OWN_STATS},
                **_prediction(stats, n, order),
            },
        )
        write_event_stats(self._stats, event_id, (_leftover(s) for s in events.stats))
        if line.device_id is None:
            return
        collectives = np.flatnonzero(self._has_collective[events.instruction_id])
        if len(collectives):
            iteration = np.empty(n, np.int32)
            iteration[order] = loops.iteration
            self._keep_collectives(line, line.device_id, events, event_id, end, iteration, collectives)
        copies = np.flatnonzero((op_class[instruction] == _COPY) & ~self._is_memset[instruction]) if leaf_times else ()
        if leaf_times and len(copies):
            moved = _stat(stats.get("bytes"), n, order)
            ops = CopyOps(
                event_id[order][copies],
                instruction[copies],
                start[copies],
                end[order][copies],
                leaf_times.work_before.values[copies],
                leaf_times.work_during.values[copies],
                events.phase[order][copies],
                events.step[order][copies],
                (np.where(moved.is_known, moved.values, -1) if moved else np.full(n, -1))[copies],
            )
            self._copies.add_ops(line.device_id, line.host, ops)

    def _count(
        self,
        device_id: int,
        execution: Int32,
        instruction: Int32,
        start: Int64,
        self_ps: Int64,
        is_leaf: Flags,
        loops: LoopPlaces,
    ) -> None:
        if sampled := self.sampled.get(device_id):
            sampled.follow(execution, instruction, start, self_ps, is_leaf, loops)
        for is_held in (True, False):
            self.leaf_ops[device_id, is_held] += int(np.count_nonzero(is_leaf & ((execution >= 0) == is_held)))
        self.time_ps = _with_times(self.time_ps, instruction, self_ps)

    def _count_sized(self, instruction: Int32, self_ps: Int64, costs: Mapping[str, Nullable | None]) -> None:
        for what, names in (("flops", ("flops", "model_flops")), ("bytes", ("bytes_accessed",))):
            stated = [cost for name in names if (cost := costs[name])]
            if stated:
                of_kernel = self._is_custom_call[instruction]
                is_sized = np.any([c.is_known & ~(of_kernel & (c.values == 0)) for c in stated], axis=0)
                before = self.sized_ps.get(what, np.zeros(0))
                self.sized_ps[what] = _with_times(before, instruction[is_sized], self_ps[is_sized])

    def _keep_collectives(
        self,
        line: DeviceLine,
        device_id: int,
        events: OpColumns,
        event_id: Int64,
        end: Int64,
        iteration: Int32,
        at: Int64,
    ) -> None:
        instruction, start = events.instruction_id[at], events.start_ps[at]
        if line.is_op_line:
            sequence = sequences(events.stats, len(end))[at]
            where = events.execution[at], events.phase[at], events.step[at], iteration[at], sequence
            self._executions.add_ops(
                device_id, line.host, CollectiveOps(event_id[at], instruction, start, end[at], *where)
            )
        elif line.line == ASYNC_LINE:
            self._executions.add_spans(device_id, AsyncSpans(instruction, start, end[at]))

    def finish_device(self, device_id: int) -> None:
        """Pair the starts and dones of a device whose events have all been written."""
        programs = {i: p for i, (_, p) in self.programs.items()}
        self._executions.finish_device(device_id, self._facts, programs)
        self._copies.finish_device(device_id, self._facts, programs)

    def op_classes(self) -> Int8:
        """Index into OP_CLASSES by instruction id."""
        if len(self._op_class) != len(self._facts):
            self._op_class = np.array([OP_CLASSES.index(f.op_class) for f in self._facts], np.int8)
            self._has_collective = np.array([f.has_collective for f in self._facts], bool)
            self._lacks_program = np.array([f.is_hlo and f.program_id is None for f in self._facts], bool)
            self._is_custom_call = np.array([f.is_custom_call for f in self._facts], bool)
            self._is_memset = np.array([f.is_memset for f in self._facts], bool)
            self._loop_facts = loop_facts(self._facts)
        return self._op_class

    def loop_facts(self) -> LoopFacts:
        """The facts of all instructions that loops are counted by."""
        self.op_classes()
        return self._loop_facts

    def _begins_collectives(self, row_instruction: Int32) -> bool:
        used = np.unique(row_instruction[self.op_classes()[row_instruction] == _COMMUNICATION])
        return any(self._facts[i].role == "start" for i in used.tolist())

    def _homeless(self, row_instruction: Int32) -> list[int]:
        self.op_classes()
        lacking = np.flatnonzero(np.bincount(row_instruction[self._lacks_program[row_instruction]])).tolist()
        return [i for i in lacking if self.programs.get(i, ("", None))[1] is None]

    def _assign_programs(self, homeless: list[int], instruction: Int32, execution: Int32, timeline: Timeline) -> None:
        is_homeless = np.zeros(len(self._facts), bool)
        is_homeless[homeless] = True
        at = np.flatnonzero(is_homeless[instruction] & (execution >= 0))
        used, first = np.unique(instruction[at], return_index=True)
        for number, i in zip(used.tolist(), at[first].tolist(), strict=True):
            run = timeline.runs[execution[i]]
            self.programs[number] = run.module, run.program_id
            if run.program_id is not None:
                homeless.remove(number)

    def _write_counters(self, line: DeviceLine, first: int, batch: EventBatch, instruction: Int32) -> None:
        base = {"host": line.host, "plane": line.plane, "device_id": line.device_id}
        for s in batch.stats:
            names = [self._facts[i].name for i in instruction[s.rows].tolist()]
            columns = {
                "event_id": line.first_event_id + first + s.rows,
                "name": [n if n == s.name else f"{n}: {s.name}" for n in names],
                "start_ps": batch.start_ps[s.rows] + line.clock_offset_ps,
                "value": [_number(s, i) for i in range(len(s.rows))],
            }
            self._counters.write(len(s.rows), base | columns)


def _with_times(time_ps: npt.NDArray[np.float64], instruction: Int32, self_ps: Int64) -> npt.NDArray[np.float64]:
    total = np.bincount(instruction, self_ps, len(time_ps)).astype(np.float64)
    total[: len(time_ps)] += time_ps
    return total


def _order(start: Int64, duration: Int64) -> Int64 | slice:
    """Sorts events by start, longer ones first; most lines are already in that order."""
    is_later, is_tie = start[1:] > start[:-1], start[1:] == start[:-1]
    if (is_later | (is_tie & (duration[1:] <= duration[:-1]))).all():
        return slice(None)
    return np.lexsort((-duration, start))


def _number(column: StatColumn, i: int) -> float | None:
    kind, bits = int(column.kinds[i]), column.bits[i : i + 1]
    if kind == 2:
        return float(bits.view(np.float64)[0])
    if kind in (3, 4):
        return float(bits[0]) if kind == 3 else float(bits.view(np.int64)[0])
    try:
        return float(column.texts[int(bits[0])])
    except ValueError:
        return None


def _stat(column: StatColumn | None, count: int, order: Int64 | slice, lowest: int = -(1 << 63)) -> Nullable | None:
    if column is None:
        return None
    values, is_known = integers(column, count)
    return Nullable(values[order], (is_known & (values >= lowest))[order])


def _prediction(stats: Mapping[str, StatColumn], count: int, order: Int64 | slice) -> dict[str, Any]:
    """The columns of predicted ops, in the given order; none of ops that were recorded."""
    made: dict[str, Any] = {}
    for name, column in PREDICTED_STATS.items():
        stat = stats.get(name)
        if stat is not None and column == "basis":
            code, texts = codes(stat, count)
            made[column] = Coded(code[order], texts)
        elif stat is not None:
            values = _stat(stat, count, order)
            made[column] = values if column != "is_extrapolated" or values is None else _truth(values)
    return made


def _truth(values: Nullable) -> list[bool | None]:
    return [bool(v) if known else None for v, known in zip(values.values, values.is_known, strict=True)]


def _leftover(column: StatColumn) -> StatColumn:
    """The values of a stat that no column holds: all, or, if the stat has a column, those that do not fit it."""
    if column.name not in (*OWN_STATS, LAUNCH_STEP, LAUNCH_EXECUTION, *PREDICTED_STATS):
        return column
    if PREDICTED_STATS.get(column.name) == "basis":
        return unheld(column, (column.kinds == StatKind.STRING) | (column.kinds == StatKind.REF))
    return unheld(column, (column.kinds == StatKind.UINT64) | (column.kinds == StatKind.INT64))
