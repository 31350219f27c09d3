"""Surveys a host before its events are written: its devices, their timelines, and the embedded HLO."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracewarehouse.ingest.columns.batches import concatenate, integers
from tracewarehouse.ingest.columns.profiler_names import (
    CPU_PLANE,
    GPU_PREFIX,
    MODULE_LINE,
    STEP_LINE,
    STREAM_PREFIX,
    device_plane,
)
from tracewarehouse.ingest.columns.records import EventBatch, Int64, Line, Plane
from tracewarehouse.ingest.devices import cpu_devices, cpu_launches
from tracewarehouse.ingest.devices.compiled_program import CompiledProgram
from tracewarehouse.ingest.devices.device import Device, accelerator
from tracewarehouse.ingest.devices.gpu_launches import launches
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.markers import StepMarker, step_markers
from tracewarehouse.ingest.devices.timeline import Run, Step, Timeline, steps_of_line
from tracewarehouse.ingest.hlo.modules import HloModules, module_and_program


@dataclass(frozen=True)
class DevicePlane:
    """A plane whose events belong to a device."""

    device: Device
    timeline: Timeline
    is_sparse_core: bool


@dataclass
class HostSurvey:
    """One host: planes of its devices by position in the trace, or the executions of its virtual CPU devices.

    Attributes:
        host: the host.
        modules: the HLO modules that its capture embeds.
        devices: its devices, in order of their ordinals.
        planes: device planes by position in `host.trace.planes`.
        cpu: op events of virtual devices; None if there are none.
        cpu_position: position in `host.trace.planes` of the plane that has them.
        timelines: timelines of virtual CPU devices, in order of `devices`.
        markers: step markers, if they had to be read before the events.
        program: the compiled program, if the file is one instead of a capture.
    """

    host: Host
    modules: HloModules
    devices: list[Device] = field(default_factory=list)
    planes: dict[int, DevicePlane] = field(default_factory=dict)
    cpu: cpu_devices.CpuExecutions | None = None
    cpu_position: int | None = None
    timelines: list[Timeline] = field(default_factory=list)
    markers: list[StepMarker] = field(default_factory=list)
    program: CompiledProgram | None = None

    @property
    def device_timelines(self) -> list[tuple[Device, Timeline]]:
        """Each device with its timeline."""
        if self.cpu:
            return list(zip(self.devices, self.timelines, strict=True))
        return [(p.device, p.timeline) for p in self.planes.values() if not p.is_sparse_core]


def survey_host(host: Host, first_device_id: int, hlo_notes: list[str]) -> HostSurvey:
    """Find the devices of a host, number them from `first_device_id`, and add unreadable HLO to `hlo_notes`."""
    planes = host.trace.planes
    survey = HostSurvey(host, HloModules([p for p in planes if not p.lines], hlo_notes))
    named = [(position, device_plane(p.name)) for position, p in enumerate(planes) if p.lines]
    cores = sorted((d.ordinal, position, d) for position, d in named if d and not d.is_sparse_core)
    of_ordinal: dict[int, DevicePlane] = {}
    for ordinal, position, d in cores:
        device = accelerator(first_device_id + len(survey.devices), host.name, planes[position], d.backend, ordinal)
        survey.devices.append(device)
        of_ordinal[ordinal] = survey.planes[position] = DevicePlane(device, _timeline(host, planes[position]), False)
    for position, other in named:
        if other and other.is_sparse_core and other.ordinal in of_ordinal:
            core = of_ordinal[other.ordinal]
            survey.planes[position] = DevicePlane(core.device, core.timeline, True)
    if not survey.devices:
        for position in [i for i, plane in enumerate(planes) if has_cpu_ops(plane)][:1]:
            _survey_cpu(survey, position, first_device_id)
    return survey


def has_cpu_ops(plane: Plane) -> bool:
    """Return whether a plane has the host threads that execute the ops of virtual CPU devices."""
    return plane.name == CPU_PLANE and (cpu_devices.is_cpu_capture(plane) or cpu_launches.has_thunks(plane))


def _timeline(host: Host, plane: Plane) -> Timeline:
    runs: list[Run] = []
    for names, start, end, run_id in _events(host, plane, MODULE_LINE):
        programs = [module_and_program(n) for n in names]
        columns = programs, start.tolist(), end.tolist(), run_id
        runs += [Run(*p, s, e, r) for p, s, e, r in zip(*columns, strict=True)]
    if not runs and plane.name.startswith(GPU_PREFIX):
        runs = launches(_shifted(host, plane, line) for line in plane.lines if line.name.startswith(STREAM_PREFIX))
    steps: list[Step] = []
    for names, start, end, _ in _events(host, plane, STEP_LINE):
        steps += steps_of_line(names, start, end, runs)
    return Timeline(runs, steps)


def _events(host: Host, plane: Plane, line_name: str) -> Iterator[tuple[list[str], Int64, Int64, list[int | None]]]:
    """Names, starts, ends and `run_id`s of all events of the plane's lines of that name."""
    for line in plane.lines:
        if line.name != line_name:
            continue
        batches = [(b, *_run_ids(b)) for b in host.trace.batches(plane, line)]
        batch = concatenate([EventBatch(b.metadata, b.start_ps, b.duration_ps) for b, _, _ in batches])
        if len(batch):
            run_id = [n if has else None for _, ns, known in batches for n, has in zip(ns, known, strict=True)]
            names = [plane.event_metadata[i].name if i >= 0 else "" for i in batch.metadata.tolist()]
            start = batch.start_ps + host.clock_offset_ps
            yield names, start, start + batch.duration_ps, run_id


def _run_ids(batch: EventBatch) -> tuple[list[int], list[bool]]:
    """The `run_id` of each event, and whether it has one."""
    values, known = integers(next((s for s in batch.stats if s.name == "run_id"), None), len(batch))
    return values.tolist(), known.tolist()


def _shifted(host: Host, plane: Plane, line: Line) -> EventBatch:
    """All events of a line, on the run's clock."""
    batch = concatenate(list(host.trace.batches(plane, line)))
    return EventBatch(batch.metadata, batch.start_ps + host.clock_offset_ps, batch.duration_ps, batch.stats)


def _survey_cpu(survey: HostSurvey, position: int, first_device_id: int) -> None:
    host = survey.host
    plane = host.trace.planes[position]
    lines = [(line, _shifted(host, plane, line)) for line in plane.lines]
    markers = [step_markers(plane, events) for _, events in lines]
    cpu = cpu_launches.attribute(lines, markers) or cpu_devices.attribute(plane, lines, markers)
    if not cpu.ordinals:  # nothing was launched while it was recorded
        return
    survey.cpu, survey.cpu_position = cpu, position
    survey.markers = [m for of_line in markers for m in of_line]
    for k, ordinal in enumerate(cpu.ordinals):
        survey.devices.append(
            Device(first_device_id + k, host.name, plane.name, ordinal, "cpu", kind="virtual CPU device")
        )
    survey.timelines = _cpu_timelines(cpu)


def _cpu_timelines(cpu: cpu_devices.CpuExecutions) -> list[Timeline]:
    """Executions and steps of each virtual device, from the first to the last op of each execution."""
    ops = [(line, np.flatnonzero(line.ordinal >= 0)) for line in cpu.lines]
    ordinal, execution, start, end = (
        np.concatenate([np.empty(0, np.int64), *columns])
        for columns in (
            [line.ordinal[at].astype(np.int64) for line, at in ops],
            [line.execution[at].astype(np.int64) for line, at in ops],
            [line.events.start_ps[at] for line, at in ops],
            [(line.events.start_ps + line.events.duration_ps)[at] for line, at in ops],
        )
    )
    order = np.lexsort((execution, ordinal))
    ordinal, execution, start, end = ordinal[order], execution[order], start[order], end[order]
    first = np.flatnonzero(np.diff(ordinal, prepend=-1) | np.diff(execution, prepend=-1))
    timelines: list[list[tuple[cpu_devices.Execution, int, int]]] = [[] for _ in range(cpu.device_count)]
    if len(first):
        low, high = np.minimum.reduceat(start, first), np.maximum.reduceat(end, first)
        columns = (ordinal[first].tolist(), execution[first].tolist(), low.tolist(), high.tolist())
        for device, number, earliest, latest in zip(*columns, strict=True):
            timelines[device].append((cpu.executions[number], earliest, latest))
    return [_cpu_timeline(t) for t in timelines]


def _cpu_timeline(executions: Sequence[tuple[cpu_devices.Execution, int, int]]) -> Timeline:
    runs: list[Run] = []
    steps: dict[int, Step] = {}
    for execution, low, high in executions:
        runs.append(Run(execution.module, None, low, high))
        marker = execution.step
        if marker is None:
            continue
        phase = execution.phase
        known = steps.get(marker.step)  # a step may launch several programs
        steps[marker.step] = Step(
            marker.step,
            phase,
            phase or marker.name,
            min(low, known.start_ps) if known else low,
            max(high, known.end_ps) if known else high,
            "marker",
        )
    return Timeline(runs, list(steps.values()))
