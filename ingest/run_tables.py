"""Writes the tables of one run: every line of every plane, then what follows from all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from ingest.collective_groups import CollectiveGroups
from ingest.collectives import CollectiveWriter
from ingest.cpu_devices import CpuExecutions, CpuLine
from ingest.devices import Device, place_on_mesh
from ingest.event_stream import chunks
from ingest.hosts import Host
from ingest.instructions import Instructions
from ingest.keys import Integers, distinct, packed
from ingest.manifest import AXES, Manifest, Mesh
from ingest.markers import StepMarker, phase_of, step_markers
from ingest.ops import DeviceLine, OpColumns, OpWriter
from ingest.parquet import Coded, TableWriter
from ingest.promises import CollectiveStep
from ingest.records import EventBatch, Int32, Line, Plane, StatColumn, codes, integers
from ingest.schema import TABLES
from ingest.stat_rows import stat_row, unheld, write_event_stats
from ingest.survey import DevicePlane, HostSurvey, number_steps, survey
from ingest.timeline import PHASES, Step, Timeline, host_steps, step_rows

_OP_LINE = "XLA Ops"
_GPU_OP_LINE = "Stream #"


class RunTables:
    """The tables of a run in a folder; a context manager that leaves complete files.

    Attributes:
        devices: the devices of the run, after construction.
        notes: what was noticed, one sentence each, after `write`.
        event_count: events on all lines, after `write`.
        missing_devices: devices that HLO groups or the mesh name and that are not here, after `write`.
    """

    def __init__(self, folder: Path, hosts: Sequence[Host], mesh: Mesh | None, manifest: Manifest | None) -> None:
        self.devices: list[Device] = []
        self.notes: list[str] = []
        self.event_count = 0
        self.missing_devices = 0
        self._encoder = ThreadPoolExecutor(1)
        self.writers = {name: TableWriter(folder, table, self._encoder) for name, table in TABLES.items()}
        self._manifest = manifest
        self._instructions = Instructions()
        self._collectives = CollectiveWriter(folder, self._instructions.rows)
        self._ops = OpWriter(self.writers, self._instructions, self._collectives)
        self._lines: list[dict[str, Any]] = []
        self._stack = ExitStack()
        self._surveys: list[HostSurvey] = []
        for host in hosts:
            found = survey(host, len(self.devices), self.notes)
            self._surveys.append(found)
            self.devices += found.devices
        number_steps(self._surveys)
        self._coordinates = self._place(mesh) if mesh else None

    def __enter__(self) -> Self:
        self._stack.enter_context(self._encoder)
        self._stack.enter_context(self._collectives)
        for writer in self.writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def backend(self) -> str:
        """tpu, gpu, cpu, or unknown without devices."""
        return self.devices[0].backend if self.devices else "unknown"

    @property
    def last_event_end_ps(self) -> int:
        """End of the last device event."""
        return self._ops.last_end_ps

    @property
    def collective_counts(self) -> Counter[CollectiveStep]:
        """Executions of collectives, after `write`."""
        return self._collectives.counts

    def write(self) -> None:
        """Write every table but runs and metric_values."""
        for found in self._surveys:
            before = self.event_count
            self._write_host(found)
            found.host.event_count = self.event_count - before
        self._instructions.name_modules()
        self._write_collectives()
        self.writers["lines"].write_rows(self._lines)
        self.writers["hosts"].write_rows(f.host.row() for f in self._surveys)
        self.writers["devices"].write_rows(d.row() for d in self.devices)
        self.writers["instructions"].write_rows(self._instructions.column_rows())
        self.writers["instruction_stats"].write_rows(
            {"instruction_id": number, **stat_row(s)}
            for number, row in enumerate(self._instructions.rows)
            for s in row.stats
        )
        self.notes += self._instructions.notes

    def _place(self, mesh: Mesh) -> dict[int, dict[str, int]] | None:
        note = place_on_mesh(self.devices, mesh)
        self.missing_devices = max(self.missing_devices, mesh.size - len(self.devices))
        if note:
            self.notes.append(note)
            return None
        return {d.device_id: {a: getattr(d, f"{a}_index") for a in AXES if a in mesh.axes} for d in self.devices}

    # --- hosts

    def _write_host(self, found: HostSurvey) -> None:
        host = found.host
        markers = list(found.markers)
        last_plane = {p.device.device_id: position for position, p in found.planes.items()}
        for position, plane in enumerate(host.trace.planes):
            rows = ({"host": host.name, "plane": plane.name, **stat_row(s)} for s in plane.stats)
            self.writers["plane_stats"].write_rows(rows)
            of_device = found.planes.get(position)
            if of_device or (plane.name.startswith("/device:") and plane.lines):
                self._write_device_plane(found, plane, of_device)
                if of_device and last_plane[of_device.device.device_id] == position:
                    self._collectives.finish_device(of_device.device.device_id)
            elif found.cpu and plane.name == found.devices[0].plane:
                self._write_cpu_plane(found, found.cpu, plane)
                for device in found.devices:
                    self._collectives.finish_device(device.device_id)
            else:
                for line in plane.lines:
                    markers += self._write_host_line(host, plane, line)
        for device, timeline in self._timelines(found):
            self.writers["phases"].write_rows(timeline.phase_rows(host.name, device.device_id))
        steps = host_steps(markers) or self._manifest_steps(host)
        self.writers["phases"].write_rows(step_rows(steps, {"host": host.name, "device_id": None}))

    def _timelines(self, found: HostSurvey) -> list[tuple[Device, Timeline]]:
        if found.cpu:
            return list(zip(found.devices, found.timelines, strict=True))
        return [(p.device, p.timeline) for p in found.planes.values() if not p.is_sparse_core]

    def _manifest_steps(self, host: Host) -> list[Step]:
        """Steps as the collector's clock saw them, for a capture without markers."""
        if not self._manifest or host.start_ns is None:
            return []
        zero = host.start_ns - host.clock_offset_ps // 1000
        return [
            Step(m.step, phase_of(m.name), m.name, (m.start_ns - zero) * 1000, (m.end_ns - zero) * 1000, "manifest")
            for m in self._manifest.phases
        ]

    def _add_line(self, host: Host, plane: Plane, line: Line, device_id: int | None, count: int) -> None:
        self._lines.append(
            {
                "line_index": len(self._lines),
                "host": host.name,
                "plane": plane.name,
                "line": line.name,
                "line_id": line.line_id,
                "device_id": device_id,
                "event_count": count,
                "first_event_id": self.event_count,
            }
        )
        self.event_count += count

    # --- lines of accelerators

    def _write_device_plane(self, found: HostSurvey, plane: Plane, of_device: DevicePlane | None) -> None:
        host = found.host
        device_id = of_device.device.device_id if of_device else None
        timeline = of_device.timeline if of_device else Timeline()
        is_gpu = of_device is not None and of_device.device.backend == "gpu"
        of_row = None if is_gpu else self._instructions.of_metadata(plane, found.modules)
        for line in plane.lines:
            is_core = of_device is not None and not of_device.is_sparse_core
            is_op_line = is_core and (line.name.startswith(_GPU_OP_LINE) if is_gpu else line.name == _OP_LINE)
            place = DeviceLine(
                host.name, plane.name, line.name, device_id, self.event_count, is_op_line, host.clock_offset_ps
            )
            batches = host.trace.batches(plane, line)
            if of_row is None:
                count = self._write_gpu_line(found, place, plane, line)
            else:
                count = self._ops.write_line(place, batches, of_row, timeline)
            self._add_line(host, plane, line, device_id, count)

    def _write_gpu_line(self, found: HostSurvey, place: DeviceLine, plane: Plane, line: Line) -> int:
        count = 0
        for first, batch in chunks(found.host.trace.batches(plane, line)):
            n = len(batch)
            none = np.full(n, -1, np.int32)
            instruction, stats = self._instructions_of_ops(found, plane, batch)
            start = batch.start_ps + place.clock_offset_ps
            rows = np.arange(first, first + n)
            self._ops.write(place, OpColumns(rows, instruction, start, batch.duration_ps, none, none, none, stats))
            count = first + n
        return count

    def _instructions_of_ops(
        self, found: HostSurvey, plane: Plane, batch: EventBatch
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
                ids.append(self._instructions.of_op(found.modules, ops[o], name, number, event))
        said = {"hlo_op": op >= 0, "hlo_module": (op >= 0) & (module >= 0), "program_id": (op >= 0) & has_program}
        left = [unheld(s, said[s.name][s.rows]) if s.name in said else s for s in batch.stats]
        return np.array(ids, np.int32)[inverse], left

    # --- lines of virtual CPU devices

    def _write_cpu_plane(self, found: HostSurvey, cpu: CpuExecutions, plane: Plane) -> None:
        host = found.host
        step = np.array([e.step.step if e.step else -1 for e in cpu.executions] + [-1], np.int32)
        phase = np.array([PHASES.index(e.phase) if e.phase else -1 for e in cpu.executions] + [-1], np.int32)
        unattributed = 0
        for of_line in cpu.lines:
            is_op = of_line.is_op
            self._write_host_events(host, plane, of_line.line, of_line.events, np.flatnonzero(~is_op))
            unattributed += int((is_op & (of_line.ordinal < 0)).sum())
            for ordinal in np.unique(of_line.ordinal[is_op]).tolist():
                device_id = found.devices[ordinal].device_id if ordinal >= 0 else None
                at = np.flatnonzero(is_op & (of_line.ordinal == ordinal))
                self._write_cpu_ops(found, plane, of_line, at, device_id, step, phase)
            self._add_line(host, plane, of_line.line, None, len(of_line.events))
        if unattributed:
            self.notes.append(f"{unattributed} op events on {host.name} could not be given to a virtual device")

    def _write_cpu_ops(
        self, found: HostSurvey, plane: Plane, line: CpuLine, at: Any, device_id: int | None, step: Int32, phase: Int32
    ) -> None:
        ops = _select(line.events, at)
        place = DeviceLine(
            found.host.name, plane.name, line.line.name, device_id, self.event_count, device_id is not None
        )
        execution = line.execution[at]
        instruction, stats = self._instructions_of_ops(found, plane, ops)
        self._ops.write(
            place,
            OpColumns(
                at, instruction, ops.start_ps, ops.duration_ps, execution, step[execution], phase[execution], stats
            ),
        )

    # --- lines of host threads

    def _write_host_line(self, host: Host, plane: Plane, line: Line) -> list[StepMarker]:
        markers: list[StepMarker] = []
        count = 0
        for batch in host.trace.batches(plane, line):
            shifted = EventBatch(batch.metadata, batch.start_ps + host.clock_offset_ps, batch.duration_ps, batch.stats)
            self._write_host_events(host, plane, line, shifted, np.arange(len(batch)), count)
            markers += step_markers(plane, shifted)
            count += len(batch)
        self._add_line(host, plane, line, None, count)
        return markers

    def _write_host_events(
        self, host: Host, plane: Plane, line: Line, events: EventBatch, at: Any, first: int = 0
    ) -> None:
        if not len(at):
            return
        chosen = events if len(at) == len(events) else _select(events, at)
        event_id = self.event_count + first + at
        used, code = distinct(chosen.metadata)
        names = [plane.event_metadata[i].name if i >= 0 else "(unnamed)" for i in used.tolist()]
        self.writers["host_events"].write(
            len(at),
            {
                "event_id": event_id,
                "host": host.name,
                "plane": plane.name,
                "thread": line.name,
                "thread_id": line.line_id,
                "name": Coded(code, names),
                "start_ps": chosen.start_ps,
                "duration_ps": chosen.duration_ps,
            },
        )
        write_event_stats(self.writers["event_stats"], event_id, chosen.stats)

    # --- collectives

    def _write_collectives(self) -> None:
        devices = [[d.device_id for d in f.devices] for f in self._surveys if f.devices]
        groups = CollectiveGroups(self._instructions.rows, devices, self._coordinates)
        self._collectives.write(self.writers["collectives"], groups)
        self.writers["collective_groups"].write_rows(groups.group_rows())
        self.writers["traffic"].write_rows(groups.traffic_rows())
        self.missing_devices = max(self.missing_devices, groups.missing_devices)


def _select(batch: EventBatch, at: Any) -> EventBatch:
    """The events of a batch at ascending positions."""
    place = np.full(len(batch), -1, np.int64)
    place[at] = np.arange(len(at))
    stats = []
    for s in batch.stats:
        kept = np.flatnonzero(place[s.rows] >= 0)
        if len(kept):
            stats.append(type(s)(s.name, place[s.rows[kept]], s.kinds[kept], s.bits[kept], s.texts))
    return EventBatch(batch.metadata[at], batch.start_ps[at], batch.duration_ps[at], stats)
