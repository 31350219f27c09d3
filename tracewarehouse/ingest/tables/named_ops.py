"""Writes the op events of GPUs and virtual CPU devices, whose own stats name their HLO instruction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.batches import LineExtent, chunks, codes, integers
from tracewarehouse.ingest.columns.keys import Integers, packed
from tracewarehouse.ingest.columns.profiler_names import STREAM_PREFIX
from tracewarehouse.ingest.columns.records import (
    PHASES,
    EventBatch,
    EventMetadata,
    Int8,
    Int32,
    Int64,
    Plane,
    StatColumn,
)
from tracewarehouse.ingest.devices.cpu_threads import CpuExecutions, CpuLine
from tracewarehouse.ingest.devices.host_survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.sampled_programs import SampledExecutions
from tracewarehouse.ingest.devices.timeline import Run, Timeline
from tracewarehouse.ingest.hlo.instructions import UNNAMED, Instructions
from tracewarehouse.ingest.hlo.modules import HloModules
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.hlo.text import is_meant_as_instruction
from tracewarehouse.ingest.layers.loops import LoopPlaces, loop_chains, places_in_programs
from tracewarehouse.ingest.layers.shared_kernels import place_in_repetition
from tracewarehouse.ingest.tables.leaf_ops import LeafTimes, lines_leaf_times
from tracewarehouse.ingest.tables.lines import LineTables, PlaneLines, leaf_times
from tracewarehouse.ingest.tables.ops import DeviceLine, OpColumns
from tracewarehouse.ingest.tables.stats import unheld

_COMPUTE = OP_CLASSES.index("compute")


@dataclass(frozen=True)
class _CpuOps:
    """Ops of a virtual device on one thread; arrays of shape (n,). Device -1 means unknown."""

    ordinal: int
    at: Int64
    instruction: Int32
    stats: list[StatColumn]
    start: Int64
    end: Int64


class NamedOpWriter:
    """Writes the planes whose instructions are known only after their events have been read."""

    def __init__(self, tables: LineTables, instructions: Instructions) -> None:
        self._tables = tables
        self._instructions = instructions

    def write_gpu(self, host: HostSurvey, lines: PlaneLines, gpu: DevicePlane, first_event_id: int) -> int:
        """Write the lines of a GPU, whose streams are read twice; return the id after their events."""
        trace, timeline, device_id = host.host.trace, gpu.timeline, gpu.device.device_id
        streams = [line for line in lines.lines if line.name.startswith(STREAM_PREFIX)]
        self._tables.ops.sampled[device_id] = SampledExecutions(device_id, timeline.runs)

        compute: list[tuple[Int64, Int64]] = []
        executed: list[tuple[Int32, Int64, Int32]] = []

        def op_class(batch: EventBatch) -> Int8:
            instruction, _ = self._name_instructions(host.modules, lines.plane, batch)
            classes = self._tables.ops.op_classes()[instruction]
            start = batch.start_ps + lines.clock_offset_ps
            executed.append((timeline.launched(batch, start)[0], start, instruction))
            at = classes == _COMPUTE
            start = start[at]
            compute.append((start, start + batch.duration_ps[at]))
            return classes

        columns = leaf_times(trace, lines, streams, op_class) if streams else []
        times, places = iter(columns), iter(self._loops(executed, [len(c.overlap.values) for c in columns]))
        if compute:
            starts, ends = (np.concatenate(edges) for edges in zip(*compute, strict=True))
            self._tables.written.executions.add_compute(device_id, starts, ends)
        for line in lines.lines:
            is_op_line = line.name.startswith(STREAM_PREFIX)
            line_times, line_loops = (next(times), next(places)) if is_op_line else (None, None)
            place = DeviceLine(
                lines.host, lines.plane.name, line.name, device_id, first_event_id, is_op_line, lines.clock_offset_ps
            )
            extent = LineExtent()
            for first, batch in chunks(extent.watch(trace, lines.plane, line, lines.clock_offset_ps)):
                instruction, stats = self._name_instructions(host.modules, lines.plane, batch)
                self._tables.ops.write_chunk(place, first, batch, instruction, stats, timeline, line_times, line_loops)
            self._tables.written.extents.append(extent)
            first_event_id += extent.count
        return first_event_id

    def write_cpu(
        self, host: HostSurvey, lines: PlaneLines, cpu: CpuExecutions, first_event_id: int
    ) -> tuple[int, int]:
        """Write the threads of virtual CPU devices; return the id after their events, and how many ops have no device.

        An execution's step follows from the mark under which it was launched, if marks are the steps of its device, or
        else from its time.
        """
        step = np.array([e.step.step if e.step else -1 for e in cpu.executions] + [-1], np.int32)
        ops = [self._cpu_ops(lines.plane, host.modules, line) for line in cpu.lines]
        devices = host.device_timelines
        for ordinal, (virtual, _) in enumerate(devices):
            sampled = SampledExecutions(virtual.device_id, _runs_by_number(cpu, ordinal))
            self._tables.ops.sampled[virtual.device_id] = sampled
        columns_of = self._cpu_columns(cpu, ops)
        unattributed = 0
        for line, line_ops in zip(cpu.lines, ops, strict=True):
            at = np.flatnonzero(~line.is_op)
            events = _select(line.events, at)
            self._tables.write_host_events(lines, line.line, events, first_event_id + at)
            unattributed += int((line.is_op & (line.ordinal < 0)).sum())
            for device_ops in line_ops:
                device, timeline = devices[device_ops.ordinal] if device_ops.ordinal >= 0 else (None, Timeline())
                device_id = device.device_id if device else None
                has_device = device_id is not None
                place = DeviceLine(lines.host, lines.plane.name, line.line.name, device_id, first_event_id, has_device)
                execution = line.execution[device_ops.at]
                events = _select(line.events, device_ops.at)
                step_then, phase_then = timeline.steps_at(events.start_ps)
                phases = {s.index: PHASES.index(s.phase) if s.phase else -1 for s in timeline.steps if s.is_marked}
                is_marked = np.isin(step[execution], list(phases))
                phase = np.array([phases.get(i, -1) for i in step.tolist()], np.int32)
                columns = OpColumns(
                    device_ops.at,
                    device_ops.instruction,
                    events.start_ps,
                    events.duration_ps,
                    execution,
                    np.where(is_marked, step[execution], step_then),
                    np.where(is_marked, phase[execution], phase_then),
                    device_ops.stats,
                    *next(columns_of[device_ops.ordinal]),
                )
                self._tables.ops.write(place, columns)
            extent = LineExtent()
            extent.add(line.events)
            extent.describe(line.line)
            self._tables.written.extents.append(extent)
            first_event_id += extent.count
        return first_event_id, unattributed

    def _cpu_ops(self, plane: Plane, modules: HloModules, line: CpuLine) -> list[_CpuOps]:
        by_device = []
        for ordinal in np.unique(line.ordinal[line.is_op]).tolist():
            at = np.flatnonzero(line.is_op & (line.ordinal == ordinal))
            events = _select(line.events, at)
            start = events.start_ps
            end = start + events.duration_ps
            by_device.append(_CpuOps(ordinal, at, *self._name_instructions(modules, plane, events), start, end))
        return by_device

    def _cpu_columns(
        self, cpu: CpuExecutions, ops: list[list[_CpuOps]]
    ) -> dict[int, Iterator[tuple[LeafTimes, LoopPlaces]]]:
        """Return the leaf-op columns and the places in loops of each virtual device's ops, thread by thread."""
        op_class = self._tables.ops.op_classes()
        threads: dict[int, list[tuple[Int32, _CpuOps]]] = {}
        for line, line_ops in zip(cpu.lines, ops, strict=True):
            for own in line_ops:
                threads.setdefault(own.ordinal, []).append((line.execution[own.at], own))
        found: dict[int, Iterator[tuple[LeafTimes, LoopPlaces]]] = {}
        for ordinal, of_device in threads.items():
            times = lines_leaf_times([(own.start, own.end, op_class[own.instruction]) for _, own in of_device])
            executed = [(execution, own.start, own.instruction) for execution, own in of_device]
            places = self._loops(executed, [len(own.at) for _, own in of_device])
            found[ordinal] = zip(times, places, strict=True)
        return found

    def _loops(self, executed: Sequence[tuple[Int32, Int64, Int32]], lengths: Sequence[int]) -> list[LoopPlaces]:
        """Return the places in loops of a device's ops, in pieces of these lengths.

        Args:
            executed: execution, start and instruction of ops, in several pieces of shape (n,).
            lengths: numbers of ops, which add up to those of `executed`.
        """
        if not executed:
            return [LoopPlaces.nowhere(0) for _ in lengths]
        self._instructions.tell_loops()
        chains, loops = loop_chains(self._instructions.rows)
        execution, start, instruction = (np.concatenate(columns) for columns in zip(*executed, strict=True))
        places = places_in_programs(execution, start, instruction, chains, loops, self._tables.ops.loop_facts())
        place_in_repetition(places, execution, start, instruction, self._instructions.rows)
        edges = [0, *accumulate(lengths)]
        return [places[low:high] for low, high in pairwise(edges)]

    def _name_instructions(
        self, hlo_modules: HloModules, plane: Plane, batch: EventBatch
    ) -> tuple[Int32, list[StatColumn]]:
        """Return each event's instruction, by the stats that name HLO op, module and program, and the other stats."""
        n = len(batch)
        stats = {s.name: s for s in batch.stats}
        op, ops = codes(stats.get("hlo_op"), n)
        module, modules = codes(stats.get("hlo_module"), n)
        program, has_program = integers(stats.get("program_id"), n)
        columns: list[Integers] = [batch.metadata, op, module, program, has_program]
        _, first, inverse = np.unique(packed(columns), return_index=True, return_inverse=True)
        ids = []
        for m, o, h, p, has in zip(*(c[first].tolist() for c in columns), strict=True):
            metadata = plane.event_metadata[m] if m >= 0 else UNNAMED
            event, hlo_text = _named(metadata)
            if o < 0:
                ids.append(self._instructions.add_kernel(metadata, plane))
            else:
                name = modules[h] if h >= 0 else None
                number = p % (1 << 64) if has else None
                ids.append(self._instructions.add_op(hlo_modules, ops[o], name, number, event, hlo_text))
        said = {"hlo_op": op >= 0, "hlo_module": (op >= 0) & (module >= 0), "program_id": (op >= 0) & has_program}
        left = [unheld(s, said[s.name][s.rows]) if s.name in said else s for s in batch.stats]
        return np.array(ids, np.int32)[inverse], left


def _runs_by_number(cpu: CpuExecutions, ordinal: int) -> list[Run]:
    """Return the executions on a virtual device by their number on the host; those that it did not run lack a name."""
    count = len(cpu.executions)
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    for line in cpu.lines:
        at = np.flatnonzero(line.is_op & (line.ordinal == ordinal) & (line.execution >= 0))
        np.minimum.at(start, line.execution[at], line.events.start_ps[at])
        np.maximum.at(end, line.execution[at], line.events.start_ps[at] + line.events.duration_ps[at])
    columns = zip(cpu.executions, start.tolist(), end.tolist(), strict=True)
    return [Run(e.module, None, first, last) if first <= last else Run("", None, 0, 0) for e, first, last in columns]


def _named(metadata: EventMetadata) -> tuple[str, str | None]:
    if metadata.display_name and is_meant_as_instruction(metadata.name):
        return metadata.display_name, metadata.name
    return metadata.name, None


def _select(batch: EventBatch, at: Any) -> EventBatch:
    if len(at) == len(batch):
        return batch
    place = np.full(len(batch), -1, np.int64)
    place[at] = np.arange(len(at))
    stats = []
    for s in batch.stats:
        kept = np.flatnonzero(place[s.rows] >= 0)
        if len(kept):
            stats.append(StatColumn(s.name, place[s.rows[kept]], s.kinds[kept], s.bits[kept], s.texts))
    return EventBatch(batch.metadata[at], batch.start_ps[at], batch.duration_ps[at], stats)
