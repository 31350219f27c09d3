"""Writes the events of all lines of a run: one line after the other, or in parts by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import DEVICE_PREFIX, OP_LINE
from tracewarehouse.ingest.columns.records import Plane
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.devices.survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.processes.pool import Processes
from tracewarehouse.ingest.tables.lines import DeviceEvents, LinesWritten, LineTables, PlaneLines
from tracewarehouse.ingest.tables.named_ops import NamedOpWriter
from tracewarehouse.ingest.tables.parts import Counting, divide, start_parts

_OP_LINES = frozenset({OP_LINE})


@dataclass(frozen=True)
class EventsWritten:
    """The events of a run, in files.

    Attributes:
        planes: all lines in the order of their numbers, by plane.
        extents: extent of each line of each of `planes`.
        parts: results of writing the lines, by part.
        flags: flags that a reader of the run must know.
    """

    planes: Sequence[PlaneLines]
    extents: Sequence[Sequence[LineExtent]]
    parts: Sequence[LinesWritten]
    flags: tuple[Flag, ...] = ()


def plane_lines(survey: RunSurvey) -> list[PlaneLines]:
    """The planes of a run that have lines; numbers the instructions of its TPU planes."""
    return [lines for of_host in survey.hosts for lines in _of_host(survey, of_host)]


def has_instructions(plane: Plane, core: DevicePlane | None) -> bool:
    """Return whether a plane's event metadata are themselves HLO instructions, or names of a device's events."""
    if core is not None:
        return core.device.backend != "gpu"
    return plane.name.startswith(DEVICE_PREFIX) and bool(plane.lines)


def _of_host(survey: RunSurvey, of_host: HostSurvey) -> Iterator[PlaneLines]:
    host = of_host.host
    for position, plane in enumerate(host.trace.planes):
        if not plane.lines:
            continue
        core = of_host.planes.get(position)
        events = None
        if has_instructions(plane, core):
            events = DeviceEvents(
                core.device.device_id if core else None,
                core.timeline if core else Timeline(),
                survey.instructions.add_metadata(plane, of_host.modules),
                _OP_LINES if core and not core.is_sparse_core else frozenset(),
            )
        yield PlaneLines(host.index, host.name, host.clock_offset_ps, position, plane, plane.lines, events)


def write_in_parts(
    folder: Path,
    run_id: str,
    survey: RunSurvey,
    planes: Sequence[PlaneLines],
    counting: Counting,
    processes: Processes,
    settling: Settling,
    meanwhile: Callable[[], None],
) -> EventsWritten:
    """Write all lines in parts; this process runs `meanwhile` while the helpers start. The helpers end afterwards.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
        HelperError: a process was ended from outside.
        OSError: the files cannot be written.
    """

    def settle(part: LinesWritten) -> None:
        for path, _ in part.files.values():
            settling.add(path)

    pieces, parts = divide(planes)
    counts, facts = counting.of_planes(pieces), survey.instructions.facts
    with processes, counting:
        written = start_parts(folder, run_id, counting.traces, facts, pieces, parts, counts, processes, settle)
        meanwhile()
        lines_of_parts = written()
    extents: dict[int, list[LineExtent]] = {}
    for part, lines in zip(parts, lines_of_parts, strict=True):
        left = iter(lines.extents)
        extents |= {i: list(islice(left, len(pieces[i].lines))) for i in part.planes}
    return EventsWritten(pieces, [extents[i] for i in range(len(pieces))], lines_of_parts)


def write_together(
    tables: LineTables, survey: RunSurvey, planes: Sequence[PlaneLines], settling: Settling
) -> EventsWritten:
    """Write all lines in this process, one after the other; nothing can be added to the tables afterwards.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
        OSError: the files cannot be written.
    """
    owners = [_owners(survey, p) for p in planes]
    last = {device: i for i, devices in enumerate(owners) for device in devices}
    first, flags = 0, []
    named = NamedOpWriter(tables, survey.instructions)
    for i, lines in enumerate(planes):
        of_host = survey.hosts[lines.host_index]
        core = of_host.planes.get(lines.position)
        if core and core.device.backend == "gpu":
            device, timeline = core.device.device_id, core.timeline
            first = named.write_gpu(of_host.host.trace, lines, device, timeline, of_host.modules, first)
        elif of_host.cpu and lines.position == of_host.cpu_position:
            first, lost = named.write_cpu(lines, of_host.cpu, of_host.device_timelines, of_host.modules, first)
            if lost:
                sentence = f"{lost} op events could not be given to a virtual device"
                flags.append(Flag("unattributed_ops", sentence, lines.host))
        else:
            first = tables.write(of_host.host.trace, lines, first)
        for device in owners[i]:
            if last[device] == i:
                tables.ops.finish_device(device)
    for of_host in survey.hosts:
        if of_host.program:
            of_host.program.add_executions(survey.instructions, of_host.devices, tables.written.executions)
    written = tables.finish(settling.add)
    left = iter(written.extents)
    return EventsWritten(planes, [list(islice(left, len(p.lines))) for p in planes], [written], tuple(flags))


def _owners(survey: RunSurvey, lines: PlaneLines) -> list[int]:
    """Return the devices whose events a plane can hold."""
    of_host = survey.hosts[lines.host_index]
    if of_host.cpu:
        return [d.device_id for d in of_host.devices if d.plane == lines.plane.name]
    core = of_host.planes.get(lines.position)
    return [core.device.device_id] if core else []
