"""Surveys a host before its events are written: its devices, their timelines, and the embedded HLO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tracewarehouse.ingest.columns.batches import codes, concatenate, integers
from tracewarehouse.ingest.columns.profiler_names import (
    GPU_PREFIX,
    LAUNCH_LINE,
    MODULE_LINE,
    OP_LINE,
    RANK,
    SEQUENCE,
    STEP_LINE,
    STREAM_PREFIX,
    device_plane,
)
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Line, Plane
from tracewarehouse.ingest.devices.compiled_program import CompiledProgram
from tracewarehouse.ingest.devices.cpu_devices import attribute, cpu_timelines, has_cpu_ops
from tracewarehouse.ingest.devices.cpu_threads import CpuExecutions
from tracewarehouse.ingest.devices.hosts import Device, Host, accelerator
from tracewarehouse.ingest.devices.timeline import (
    Run,
    Step,
    StepMarker,
    Timeline,
    step_markers,
    steps_launched,
    steps_marked,
    steps_of_line,
)
from tracewarehouse.ingest.hlo.modules import HloModules, module_and_program


@dataclass(frozen=True)
class DevicePlane:
    """A plane whose events belong to a device."""

    device: Device
    timeline: Timeline
    is_sparse_core: bool


@dataclass
class HostSurvey:
    """One host: planes of its devices, or executions of its virtual CPU devices, or a program instead of a capture."""

    host: Host
    modules: HloModules
    devices: list[Device] = field(default_factory=list)
    """Its devices, in order of their ordinals."""
    planes: dict[int, DevicePlane] = field(default_factory=dict)
    """Device planes by position in `host.trace.planes`."""
    cpu: CpuExecutions | None = None
    cpu_position: int | None = None
    """Position of the plane with the threads of virtual CPU devices."""
    timelines: list[Timeline] = field(default_factory=list)
    """Timelines of virtual CPU devices, in order of `devices`."""
    markers: list[StepMarker] = field(default_factory=list)
    """Step markers, if they had to be read before the events."""
    program: CompiledProgram | None = None

    @property
    def device_timelines(self) -> list[tuple[Device, Timeline]]:
        """Each device with its timeline."""
        if self.cpu:
            return list(zip(self.devices, self.timelines, strict=True))
        return [(p.device, p.timeline) for p in self.planes.values() if not p.is_sparse_core]

    @property
    def tpus(self) -> list[tuple[Plane, DevicePlane]]:
        """The planes of its TPUs."""
        planes = self.host.trace.planes
        return [(planes[i], p) for i, p in self.planes.items() if p.device.backend == "tpu" and not p.is_sparse_core]

    @property
    def ranks(self) -> list[tuple[Plane, DevicePlane]]:
        """The planes of GPUs that a rank of a job used; the metadata of their events tell their collectives."""
        planes = self.host.trace.planes
        return [(planes[i], p) for i, p in self.planes.items() if any(s.name == RANK for s in planes[i].stats)]

    def op_lines(self, plane: Plane) -> Iterator[Iterator[EventBatch]]:
        """Yield the events of each op line of a TPU or GPU, on the run's clock, with the numbers of collectives."""
        for line in plane.lines:
            if line.name == OP_LINE or line.name.startswith(STREAM_PREFIX):
                yield (
                    replace(b.moved(self.host.clock_offset_ps), stats=[s for s in b.stats if s.name == SEQUENCE])
                    for b in self.host.trace.batches(plane, line)
                )


def survey_host(host: Host, first_device_id: int, hlo_notes: list[str]) -> HostSurvey:
    """Find the devices of a host, number them from `first_device_id`, and add unreadable HLO to `hlo_notes`."""
    planes = host.trace.planes
    survey = HostSurvey(host, HloModules([p for p in planes if not p.lines], hlo_notes))
    named = [(position, device_plane(p.name)) for position, p in enumerate(planes) if p.lines]
    cores = sorted((d.ordinal, position, d) for position, d in named if d and not d.is_sparse_core)
    by_ordinal: dict[int, DevicePlane] = {}
    for ordinal, position, d in cores:
        device = accelerator(first_device_id + len(survey.devices), host.name, planes[position], d.backend, ordinal)
        survey.devices.append(device)
        by_ordinal[ordinal] = survey.planes[position] = DevicePlane(device, _timeline(host, planes[position]), False)
    for position, other in named:
        if other and other.is_sparse_core and other.ordinal in by_ordinal:
            core = by_ordinal[other.ordinal]
            survey.planes[position] = DevicePlane(core.device, core.timeline, True)
    if not survey.devices:
        for position in [i for i, plane in enumerate(planes) if has_cpu_ops(plane)][:1]:
            _survey_cpu(survey, position, first_device_id)
    return survey


def _timeline(host: Host, plane: Plane) -> Timeline:
    runs: list[Run] = []
    for line, source in ((MODULE_LINE, "module run"), (LAUNCH_LINE, "launches")):
        for names, start, end, run_id in _events(host, plane, line):
            programs = [module_and_program(n) for n in names]
            columns = programs, start.tolist(), end.tolist(), run_id
            runs += [Run(*p, s, e, r, source) for p, s, e, r in zip(*columns, strict=True)]
    if not runs and plane.name.startswith(GPU_PREFIX):
        runs = launches(_shifted(host, plane, line) for line in plane.lines if line.name.startswith(STREAM_PREFIX))
    steps: list[Step] = []
    for names, start, end, numbers in _events(host, plane, STEP_LINE, "step_num"):
        if None in numbers:
            steps += steps_of_line(names, start, end, runs)
        else:
            steps += steps_launched(names, start, end, numbers)
    return Timeline(runs, steps)


def _events(
    host: Host, plane: Plane, line_name: str, stat: str = "run_id"
) -> Iterator[tuple[list[str], Int64, Int64, list[int | None]]]:
    for line in plane.lines:
        if line.name != line_name:
            continue
        batches = list(host.trace.batches(plane, line))
        batch = concatenate([EventBatch(b.metadata, b.start_ps, b.duration_ps) for b in batches])
        if len(batch):
            run_id = [number for b in batches for number in _numbers(b, stat)]
            names = [plane.event_metadata[i].name if i >= 0 else "" for i in batch.metadata.tolist()]
            start = batch.start_ps + host.clock_offset_ps
            yield names, start, start + batch.duration_ps, run_id


def _numbers(batch: EventBatch, stat: str) -> list[int | None]:
    values, known = integers(next((s for s in batch.stats if s.name == stat), None), len(batch))
    return [number if has else None for number, has in zip(values.tolist(), known.tolist(), strict=True)]


def _shifted(host: Host, plane: Plane, line: Line) -> EventBatch:
    return concatenate(list(host.trace.batches(plane, line))).moved(host.clock_offset_ps)


def _survey_cpu(survey: HostSurvey, position: int, first_device_id: int) -> None:
    host = survey.host
    plane = host.trace.planes[position]
    lines = [(line, _shifted(host, plane, line)) for line in plane.lines]
    marked = steps_marked(m for thread, (_, events) in enumerate(lines) for m in step_markers(plane, events, thread))
    markers: list[list[StepMarker]] = [[] for _ in lines]
    for m in marked:
        markers[m.thread].append(m)
    cpu = attribute(plane, lines, markers)
    if not cpu.ordinals:  # nothing was launched while it was recorded
        return
    survey.cpu, survey.cpu_position = cpu, position
    survey.markers = marked
    survey.devices = [
        Device(first_device_id + k, host.name, plane.name, ordinal, "cpu", kind="virtual CPU device")
        for k, ordinal in enumerate(cpu.ordinals)
    ]
    survey.timelines = cpu_timelines(cpu)


def launches(batches: Iterable[EventBatch]) -> list[Run]:
    """Find the executions on one GPU, sorted by start.

    A new execution of a program begins after another program has run, and whenever the program's first op runs again.
    An op in a loop runs several times in one execution. The first op is therefore the earliest among the ops that run
    least often, or once more than these, as the end of the capture may cut off an execution. If it is in a replay of a
    CUDA graph, whose ops share a correlation, the execution begins with the replay.
    """
    columns: list[list[Int64]] = [[], [], [], [], []]
    programs: dict[tuple[str, int | None], int] = {}
    ops: dict[str, int] = {}
    for batch in batches:
        n = len(batch)
        stats = {s.name: s for s in batch.stats}
        op, op_names = codes(stats.get("hlo_op"), n)
        module, module_names = codes(stats.get("hlo_module"), n)
        number, has_number = integers(stats.get("program_id"), n)
        at = np.flatnonzero((op >= 0) & (module >= 0))
        if not len(at):
            continue
        keys = zip(module[at].tolist(), number[at].tolist(), has_number[at].tolist(), strict=True)
        program = [
            programs.setdefault((module_names[m], p % (1 << 64) if has else None), len(programs)) for m, p, has in keys
        ]
        op_code = np.array([ops.setdefault(name, len(ops)) for name in op_names] or [0], np.int64)[op[at]]
        kernel = (op_code << 31) + batch.metadata[at]
        start = batch.start_ps[at]
        correlation, is_known = integers(stats.get("correlation_id"), n)
        launch = np.where(is_known, correlation, -1)[at]
        found = np.array(program, np.int64), kernel, start, start + batch.duration_ps[at], launch
        for column, values in zip(columns, found, strict=True):
            column.append(values)
    if not columns[0]:
        return []
    order = np.argsort(np.concatenate(columns[2]), kind="stable")
    program_of, kernel_of, start, end, launch = (np.concatenate(c)[order] for c in columns)
    is_first = np.diff(program_of, prepend=-1) != 0
    for code in range(len(programs)):
        at = np.flatnonzero(program_of == code)
        _, first_of, replay = np.unique(launch[at], return_index=True, return_inverse=True)
        begins = _delimiters(kernel_of[at])
        begins = np.where(launch[at[begins]] >= 0, first_of[replay[begins]], begins)
        is_first[at[begins]] = True
    first = np.flatnonzero(is_first)
    last = np.maximum.reduceat(end, first)
    names = [list(programs)[p] for p in program_of[first].tolist()]
    edges = zip(names, start[first].tolist(), last.tolist(), strict=True)
    return [Run(module, number, low, high) for (module, number), low, high in edges]


def _delimiters(kernel: Int64) -> Int64:
    """Return the positions of a program's first op among its ops in order of start, without its very first event."""
    _, first, count = np.unique(kernel, return_index=True, return_counts=True)
    least = int(count.min())
    often = count <= (least + 1 if least > 1 else 1)
    chosen = int(first[often].min())
    at: Int64 = np.flatnonzero(kernel == kernel[chosen])
    return at[1:]
