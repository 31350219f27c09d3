"""Writes the tables of one run: every line of every plane, then what follows from all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import accumulate, islice
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self

from tracewarehouse.ingest.capture.mesh_axes import AXES
from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.capture.sources import stem
from tracewarehouse.ingest.collectives.axis_inference import InferredAxis
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.table import CollectiveWriter
from tracewarehouse.ingest.columns.line_extent import LineExtent
from tracewarehouse.ingest.columns.records import Line, Plane
from tracewarehouse.ingest.devices.clocks import align
from tracewarehouse.ingest.devices.device import Device, place_on_mesh, place_on_stages
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.markers import StepMarker, phase_of
from tracewarehouse.ingest.devices.quality import EVENT_CAPS, Flag, clock_jump, silent_devices, uneven_launches
from tracewarehouse.ingest.devices.survey import DevicePlane, HostSurvey, number_steps, survey
from tracewarehouse.ingest.devices.timeline import Step, Timeline, host_steps, step_rows
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instructions import MOST_MEMBERS, Instructions
from tracewarehouse.ingest.lake.lake import Settling
from tracewarehouse.ingest.lake.parquet import TableWriter
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.processes.pool import Processes
from tracewarehouse.ingest.tables.lines import EVENT_TABLES, DeviceEvents, LinesWritten, LineTables, PlaneLines
from tracewarehouse.ingest.tables.named_ops import NamedOpWriter
from tracewarehouse.ingest.tables.parts import Counting, Part, divide, divided, start_parts
from tracewarehouse.ingest.tables.planes import (
    line_row,
    metadata_stat_rows,
    plane_row,
    plane_stat_rows,
    stat_metadata_rows,
)
from tracewarehouse.ingest.tables.stats import write_instruction_stats

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Manifest, Mesh

_OP_LINES = frozenset({"XLA Ops"})


class RunTables:
    """The tables of a run in a folder; a context manager that leaves complete files.

    Args:
        folder: where the files are made.
        hosts: the hosts of the run.
        mesh: the device mesh, where it is known.
        manifest: the collector's manifest, where there is one.
        processes: what a large run is written with, see `tracewarehouse.ingest.tables.parts`.
        settling: is given files when they are complete.

    Attributes:
        devices: the devices of the run, after construction.
        flags: what a reader of the run must know, after `write`.
        event_count: events on all lines, after `write`.
        collective_counts: executions of collectives, after `write`.
        missing_devices: devices that HLO groups or the mesh name and that are not here, after `write`.
        missing_sentence: who names them, where there are any.
        written: the files of the tables of events, after `write`.
    """

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[Host],
        mesh: Mesh | None,
        manifest: Manifest | None,
        processes: Processes,
        settling: Settling,
    ) -> None:
        self.devices: list[Device] = []
        self.flags: list[Flag] = []
        self.event_count = 0
        self.collective_counts: Counter[CollectiveStep] = Counter()
        self.missing_devices = 0
        self.missing_sentence = ""
        self.written: list[LinesWritten] = []
        self._folder = folder
        self._processes = processes
        self._settling = settling
        self._divided = divided([h.trace for h in hosts])
        self._counting = Counting(folder, self._divided, processes) if self._divided else None
        self._encoder = ThreadPoolExecutor(2)
        self.writers = {
            n: TableWriter(folder, table, self._encoder) for n, table in TABLES.items() if n not in EVENT_TABLES
        }
        self._manifest = manifest
        self._mesh = mesh
        self._mesh_numbers: dict[int, int] = {}
        self._instructions = Instructions(max(MOST_MEMBERS, sum(h.trace.size for h in hosts) // 4))
        self._stack = ExitStack()
        self._surveys: list[HostSurvey] = []
        self._hlo_notes: list[str] = []
        self._instruction_flags: list[Flag] = []
        self._incomplete_instances = 0
        for host in hosts:
            found = survey(host, len(self.devices), self._hlo_notes)
            self._surveys.append(found)
            self.devices += found.devices
        counts = [len(f.host.trace.planes) for f in self._surveys]
        self._first_plane = [0, *accumulate(counts)]
        self._missing_names = self._number_by_manifest(mesh) if mesh and manifest else []
        self._coordinates = self._place(mesh) if mesh else None
        self.flags += align(self._surveys, self._instructions, self._groups)
        number_steps(self._surveys)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._encoder)
        for writer in self.writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            with self._stack:
                self._finish(*self.writers)
        else:
            self._stack.__exit__(*error)

    def _finish(self, *tables: str) -> None:
        """Complete these tables while this thread goes on."""
        for name in tables:
            self.writers[name].finish(self._settling.add)

    @property
    def backend(self) -> str:
        """tpu, gpu, cpu, or unknown without devices."""
        return self.devices[0].backend if self.devices else "unknown"

    def files(self) -> dict[str, list[tuple[Path, int]]]:
        """Path and rows of the files of each table that has rows, once they are complete."""
        found = {n: [(w.path, w.rows)] for n, w in self.writers.items() if w.rows}
        for written in self.written:
            for name, file in written.files.items():
                found.setdefault(name, []).append(file)
        return found

    def write(self) -> None:
        """Write every table but runs and metric_values."""
        planes = [lines for found in self._surveys for lines in self._plane_lines(found)]
        if self._counting:
            planes, parts = divide(planes)
            self.written = self._write_parts(planes, parts, self._counting)
        else:
            parts = [Part(0, tuple(range(len(planes))), 0)]
            self.written = [self._write_together(planes)]
            self._write_metadata()
        self._write_lines(planes, parts)
        if not self.writers["instructions"].rows:
            for number, (module, program_id) in (item for w in self.written for item in w.programs.items()):
                self._instructions.assign_program(number, module, program_id)
            self._write_instructions()
        self._write_collectives()
        self._finish("collectives")
        for found in self._surveys:
            self._write_phases(found)
        self.writers["hosts"].write_rows(f.host.row() for f in self._surveys)
        self._add_flags()

    def _place(self, mesh: Mesh) -> dict[int, dict[str, int]] | None:
        note = place_on_mesh(self.devices, mesh)
        self._note_missing(mesh.size, f"the mesh {mesh} has")
        if note:
            self.flags.append(Flag("mesh_mismatch", note))
            return None
        stages = self._manifest.stages if self._manifest else None
        if stages and len(stages) == mesh.axes.get("pp", 1):
            place_on_stages(self.devices, stages)
        return {d.device_id: {a: getattr(d, f"{a}_index") for a in AXES if a in mesh.axes} for d in self.devices}

    def _number_by_manifest(self, mesh: Mesh) -> list[str]:
        """Number the devices in the mesh where hosts of the manifest are missing; which devices those hosts had.

        Hosts hold equal shares of the mesh, in the manifest's order; where a host here does not, nothing is known.
        """
        names = self._manifest.hosts if self._manifest else []
        share = mesh.size // max(len(names), 1)
        place = {n: i for i, n in enumerate(names)}
        here = [place.get(stem(PurePath(f.host.file_name)), place.get(f.host.name)) for f in self._surveys]
        known = [i for i in here if i is not None]
        if len(known) != len(here) or len(known) >= len(names) or share * len(names) != mesh.size:
            return []
        if len(set(known)) != len(known) or any(len(f.devices) != share for f in self._surveys):
            return []
        for found, index in zip(self._surveys, known, strict=True):
            for number, device in enumerate(found.devices):
                device.global_id = index * share + number
        self._mesh_numbers = {d.global_id: d.device_id for d in self.devices if d.global_id is not None}
        return [
            f"{', '.join(str(i * share + k) for k in range(share))} of host {names[i]}"
            for i in range(len(names))
            if i not in known
        ]

    def _note_missing(self, wanted: int, who: str) -> None:
        """Note that `wanted` devices take part in the run."""
        missing = wanted - len(self.devices)
        if missing > self.missing_devices:
            self.missing_devices = missing
            which = "; ".join(self._missing_names) if self._missing_names else missing
            self.missing_sentence = f"{who} {wanted} devices, the capture {len(self.devices)}: {which} are missing"

    # --- events

    def _plane_lines(self, found: HostSurvey) -> Iterator[PlaneLines]:
        """The planes of a host that have lines; the instructions of its TPU planes get their numbers."""
        for position, plane in enumerate(found.host.trace.planes):
            if not plane.lines:
                continue
            core = found.planes.get(position)
            events = None
            if has_instructions(plane, core):
                events = DeviceEvents(
                    core.device.device_id if core else None,
                    core.timeline if core else Timeline(),
                    self._instructions.of_metadata(plane, found.modules),
                    _OP_LINES if core and not core.is_sparse_core else frozenset(),
                )
            host = found.host
            yield PlaneLines(host.index, host.name, host.clock_offset_ps, position, plane, plane.lines, events)

    def _write_parts(
        self, planes: Sequence[PlaneLines], parts: Sequence[Part], counting: Counting
    ) -> list[LinesWritten]:
        """Write all lines in parts; while the helpers begin, also what does not follow from events."""
        counts, facts = counting.of_planes(planes), self._instructions.facts
        with self._processes, counting:
            written = start_parts(
                self._folder, self._divided, facts, planes, parts, counts, self._processes, self._settle
            )
            self._write_metadata()
            if self._instructions.have_programs:
                self._write_instructions()
            return written()

    def _write_together(self, planes: Sequence[PlaneLines]) -> LinesWritten:
        """Write all lines here, one after the other."""
        owners = [self._owners(p) for p in planes]
        last = {device: i for i, devices in enumerate(owners) for device in devices}
        first = 0
        tables = self._stack.enter_context(LineTables(self._folder, self._instructions.facts, self._encoder))
        named = NamedOpWriter(tables, self._instructions)
        for i, lines in enumerate(planes):
            found = self._surveys[lines.host_index]
            core = found.planes.get(lines.position)
            if core and core.device.backend == "gpu":
                device_id = core.device.device_id
                first = named.write_gpu(found.host.trace, lines, device_id, found.modules, first)
            elif found.cpu and lines.position == found.cpu_position:
                first, lost = named.write_cpu(lines, found.cpu, found.devices, found.modules, first)
                if lost:
                    sentence = f"{lost} op events could not be given to a virtual device"
                    self.flags.append(Flag("unattributed_ops", sentence, lines.host))
            else:
                first = tables.write(found.host.trace, lines, first)
            for device in owners[i]:
                if last[device] == i:
                    tables.ops.finish_device(device)
        return tables.finish(self._settling.add)

    def _settle(self, part: LinesWritten) -> None:
        for path, _ in part.files.values():
            self._settling.add(path)

    def _owners(self, lines: PlaneLines) -> list[int]:
        """The devices whose events a plane may hold."""
        found = self._surveys[lines.host_index]
        if found.cpu:
            return [d.device_id for d in found.devices if d.plane == lines.plane.name]
        core = found.planes.get(lines.position)
        return [core.device.device_id] if core else []

    def _write_lines(self, planes: Sequence[PlaneLines], parts: Sequence[Part]) -> None:
        extents: dict[int, list[LineExtent]] = {}
        for part, written in zip(parts, self.written, strict=True):
            left = iter(written.extents)
            extents |= {i: list(islice(left, len(planes[i].lines))) for i in part.planes}
        rows: list[dict[str, Any]] = []
        for i, of in enumerate(planes):
            found = self._surveys[of.host_index]
            core = found.planes.get(of.position)
            for line, extent in zip(of.lines, extents[i], strict=True):
                row = line_row(self._first_plane[of.host_index] + of.position, of.host, of.plane, line, extent)
                place = {"line_index": len(rows), "first_event_id": self.event_count}
                rows.append(row | place | {"device_id": core.device.device_id if core else None})
                self.event_count += extent.count
                found.host.event_count += extent.count
                self._flag_line(found.host, of, line, extent)
        self.writers["lines"].write_rows(rows)

    def _flag_line(self, host: Host, of: PlaneLines, line: Line, extent: LineExtent) -> None:
        where = f"line {line.name!r} of {of.plane.name}"
        self.flags += clock_jump(where, extent, host.window_ps, host.name)
        if extent.count in EVENT_CAPS:
            self.flags.append(Flag("event_cap", f"{where} has {extent.count:,} events", host.name))

    # --- what is known of hosts

    def _write_metadata(self) -> None:
        """Write what planes, devices and instructions say of themselves."""
        self._instructions.complete()
        for found in self._surveys:
            for position, plane in enumerate(found.host.trace.planes):
                self._write_plane(found, position, plane)
        self.writers["devices"].write_rows(d.row() for d in self.devices)
        write_instruction_stats(self.writers["instruction_stats"], [row.stats for row in self._instructions.rows])
        self._instruction_flags = list(self._flags_of_instructions())
        self._finish("planes", "plane_stats", "stat_metadata", "metadata_stats", "devices", "instruction_stats")

    def _write_instructions(self) -> None:
        self._instructions.name_modules()
        self.writers["instructions"].write_rows(self._instructions.column_rows())
        self._finish("instructions")

    def _write_phases(self, found: HostSurvey) -> None:
        host = found.host
        for device, timeline in self._timelines(found):
            self.writers["phases"].write_rows(timeline.phase_rows(host.name, device.device_id))
        markers: list[StepMarker] = [*found.markers]
        for written in self.written:
            markers += written.markers.get(host.index, [])
        steps = host_steps(markers) or self._manifest_steps(host)
        self.writers["phases"].write_rows(step_rows(steps, {"host": host.name, "device_id": None}))

    def _write_plane(self, found: HostSurvey, position: int, plane: Plane) -> None:
        index, host = self._first_plane[found.host.index] + position, found.host.name
        core = found.planes.get(position)
        device_id = core.device.device_id if core else None
        self.writers["planes"].write_rows([plane_row(index, host, plane, device_id)])
        self.writers["plane_stats"].write_rows(plane_stat_rows(index, host, plane))
        self.writers["stat_metadata"].write_rows(stat_metadata_rows(index, plane))
        rows = metadata_stat_rows(index, plane, has_instructions=has_instructions(plane, core))
        self.writers["metadata_stats"].write_rows(rows)

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

    # --- collectives

    def _groups(self) -> CollectiveGroups:
        devices = [[d.device_id for d in f.devices] for f in self._surveys if f.devices]
        return CollectiveGroups(self._instructions.rows, devices, self._coordinates, self._mesh, self._mesh_numbers)

    def _write_collectives(self) -> None:
        groups = self._groups()
        with ExitStack() as stack:
            executions = [stack.enter_context(w.executions) for w in self.written]
            collectives = CollectiveWriter(self._instructions.rows, executions)
            collectives.write(self.writers["collectives"], groups)
        self.collective_counts = collectives.counts
        self._incomplete_instances = collectives.incomplete_instances
        self.writers["collective_groups"].write_rows(groups.group_rows())
        self.writers["traffic"].write_rows(groups.traffic_rows())
        self.writers["mesh_axes"].write_rows(self._axis_rows(groups.inferred))
        self._note_missing(len(self.devices) + groups.missing_devices, "replica groups count")

    def _axis_rows(self, inferred: Sequence[InferredAxis]) -> Iterator[dict[str, Any]]:
        """Rows of main.mesh_axes; says so where they are guesses."""
        if self._mesh and self._coordinates is not None:
            strides = self._mesh.strides()
            for position, (axis, size) in enumerate((a, n) for a, n in self._mesh.axes.items() if n > 1):
                place = {"position": position, "axis": axis, "size": size, "stride": strides[axis]}
                yield place | {"source": "mesh", "confidence": 1.0}
            return
        if inferred:
            self.flags.append(Flag("inferred_axes", f"{', '.join(map(str, inferred))}; `--mesh` at ingest tells them"))
        for position, found in enumerate(inferred):
            yield {
                "position": position,
                "axis": found.axis,
                "size": found.size,
                "stride": found.stride,
                "source": "inferred",
                "confidence": found.confidence,
                "evidence": found.evidence,
            }

    # --- quality

    def _flags_of_instructions(self) -> Iterator[Flag]:
        for row in self._instructions.rows:
            if row.is_unread:
                yield Flag("hlo_unreadable", f"{shown(row.name)}: its text is no HLO instruction")
            if row.lacks_groups:
                yield Flag("groups_left_out", shown(row.name))
            if shape := row.absurd_shape:
                yield Flag("absurd_sizes", f"{shown(row.name)}: {shown(shape)}")

    def _add_flags(self) -> None:
        self.flags += [Flag("hlo_unreadable", note) for note in self._hlo_notes]
        self.flags += self._instruction_flags
        compiled = Counter[tuple[int, str]]()
        for written in self.written:
            compiled += written.compilations
        for index in sorted({i for i, _ in compiled}):
            events = [f"{n} x {name}" for (i, name), n in compiled.items() if i == index]
            sentence = ", ".join(sorted(events))
            self.flags.append(Flag("compiled_in_capture", sentence, self._surveys[index].host.name))
        incomplete = self._incomplete_instances
        if incomplete:
            sentence = f"{incomplete} executions of collectives lack ranks whose devices are in the capture"
            self.flags.append(Flag("partial_collectives", sentence))
        programs = {p for r in self._instructions.rows if r.collective for p in (r.program_id, r.module)}
        self.flags += uneven_launches(self._all_timelines(), programs)
        self.flags += silent_devices(f.host for f in self._surveys)

    def _all_timelines(self) -> list[tuple[int, Timeline]]:
        return [(d.device_id, t) for f in self._surveys for d, t in self._timelines(f)]


def has_instructions(plane: Plane, core: DevicePlane | None) -> bool:
    """Whether a plane's event metadata are HLO instructions, or names of a device's events, themselves."""
    if core is not None:
        return core.device.backend != "gpu"
    return plane.name.startswith("/device:") and bool(plane.lines)
