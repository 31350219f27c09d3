"""Writes the op events of GPUs and virtual CPU devices, which name their HLO instruction in stats of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.event_stream import chunks
from tracewarehouse.ingest.columns.keys import Integers, packed
from tracewarehouse.ingest.columns.line_extent import LineExtent
from tracewarehouse.ingest.columns.phases import PHASES
from tracewarehouse.ingest.columns.plane_names import STREAM_PREFIX
from tracewarehouse.ingest.columns.records import EventBatch, Int32, Plane, StatColumn, Trace, codes, integers
from tracewarehouse.ingest.devices.cpu_devices import CpuExecutions, CpuLine
from tracewarehouse.ingest.devices.device import Device
from tracewarehouse.ingest.hlo.instructions import HloModules, Instructions
from tracewarehouse.ingest.tables.lines import LineTables, PlaneLines
from tracewarehouse.ingest.tables.ops import DeviceLine, OpColumns
from tracewarehouse.ingest.tables.stats import unheld


class NamedOpWriter:
    """Writes the planes whose instructions are only known when their events have been read."""

    def __init__(self, tables: LineTables, instructions: Instructions) -> None:
        self._tables = tables
        self._instructions = instructions

    def write_gpu(self, trace: Trace, of: PlaneLines, device_id: int, modules: HloModules, first_event_id: int) -> int:
        """Write the lines of a GPU; returns the id after their events."""
        for line in of.lines:
            is_op_line = line.name.startswith(STREAM_PREFIX)
            place = DeviceLine(of.host, of.plane.name, line.name, device_id, first_event_id, is_op_line)
            extent = LineExtent()
            for first, batch in chunks(extent.watch(trace, of.plane, line, of.clock_offset_ps)):
                n = len(batch)
                none = np.full(n, -1, np.int32)
                instruction, stats = self._instructions_of(modules, of.plane, batch)
                start = batch.start_ps + of.clock_offset_ps
                rows = np.arange(first, first + n)
                self._tables.ops.write(
                    place, OpColumns(rows, instruction, start, batch.duration_ps, none, none, none, stats)
                )
            self._tables.written.extents.append(extent)
            first_event_id += extent.count
        return first_event_id

    def write_cpu(
        self, of: PlaneLines, cpu: CpuExecutions, devices: list[Device], modules: HloModules, first_event_id: int
    ) -> tuple[int, int]:
        """Write the threads of virtual CPU devices; returns the id after their events, and ops without a device."""
        step = np.array([e.step.step if e.step else -1 for e in cpu.executions] + [-1], np.int32)
        phase = np.array([PHASES.index(e.phase) if e.phase else -1 for e in cpu.executions] + [-1], np.int32)
        unattributed = 0
        for line in cpu.lines:
            at = np.flatnonzero(~line.is_op)
            events = _select(line.events, at)
            self._tables.write_host_events(of, line.line, events, first_event_id + at)
            unattributed += int((line.is_op & (line.ordinal < 0)).sum())
            for ordinal in np.unique(line.ordinal[line.is_op]).tolist():
                device_id = devices[ordinal].device_id if ordinal >= 0 else None
                at = np.flatnonzero(line.is_op & (line.ordinal == ordinal))
                place = DeviceLine(
                    of.host, of.plane.name, line.line.name, device_id, first_event_id, device_id is not None
                )
                self._write_cpu_ops(place, modules, of.plane, line, at, step, phase)
            extent = LineExtent()
            extent.add(line.events)
            extent.describe(line.line)
            self._tables.written.extents.append(extent)
            first_event_id += extent.count
        return first_event_id, unattributed

    def _write_cpu_ops(
        self, place: DeviceLine, modules: HloModules, plane: Plane, line: CpuLine, at: Any, step: Int32, phase: Int32
    ) -> None:
        ops = _select(line.events, at)
        execution = line.execution[at]
        instruction, stats = self._instructions_of(modules, plane, ops)
        self._tables.ops.write(
            place,
            OpColumns(
                at, instruction, ops.start_ps, ops.duration_ps, execution, step[execution], phase[execution], stats
            ),
        )

    def _instructions_of(
        self, hlo_modules: HloModules, plane: Plane, batch: EventBatch
    ) -> tuple[Int32, list[StatColumn]]:
        """Instruction per event, from the stats that name its HLO op, module and program, and what it does not say."""
        n = len(batch)
        stats = {s.name: s for s in batch.stats}
        op, ops = codes(stats.get("hlo_op"), n)
        module, modules = codes(stats.get("hlo_module"), n)
        program, has_program = integers(stats.get("program_id"), n)
        columns: list[Integers] = [batch.metadata, op, module, program, has_program]
        _, first, inverse = np.unique(packed(columns), return_index=True, return_inverse=True)
        ids = []
        for m, o, h, p, has in zip(*(c[first].tolist() for c in columns), strict=True):
            event = plane.event_metadata[m].name if m >= 0 else "(unnamed)"
            if o < 0:
                ids.append(self._instructions.of_name(event))
            else:
                name = modules[h] if h >= 0 else None
                number = p % (1 << 64) if has else None
                ids.append(self._instructions.of_op(hlo_modules, ops[o], name, number, event))
        said = {"hlo_op": op >= 0, "hlo_module": (op >= 0) & (module >= 0), "program_id": (op >= 0) & has_program}
        left = [unheld(s, said[s.name][s.rows]) if s.name in said else s for s in batch.stats]
        return np.array(ids, np.int32)[inverse], left


def _select(batch: EventBatch, at: Any) -> EventBatch:
    """The events of a batch at ascending positions."""
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
