"""Writes the events of all lines of a run: one line after the other, or in parts by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import OP_LINE
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.quality import clock_jump, event_cap
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.tables.lines import DeviceEvents, LinesWritten, LineTables, PlaneLines
from tracewarehouse.ingest.tables.named_ops import NamedOpWriter
from tracewarehouse.ingest.tables.parts import Counting, divide, start_parts
from tracewarehouse.ingest.tables.planes import first_planes, has_instructions, line_row
from tracewarehouse.ingest.tables.staging import RunWriters, Staging

_OP_LINES = frozenset({OP_LINE})


@dataclass(frozen=True)
class EventsWritten:
    """The events of a run, in files."""

    planes: Sequence[PlaneLines]
    """All lines in the order of their numbers, by plane."""
    extents: Sequence[Sequence[LineExtent]]
    """Extent of each line of each of `planes`."""
    parts: Sequence[LinesWritten]
    flags: tuple[Flag, ...] = ()


def plane_lines(survey: RunSurvey) -> list[PlaneLines]:
    """The planes of a run that have lines; numbers the instructions of its TPU planes."""
    return [lines for host in survey.hosts for lines in _host_lines(survey, host)]


def _host_lines(survey: RunSurvey, surveyed: HostSurvey) -> Iterator[PlaneLines]:
    host = surveyed.host
    for position, plane in enumerate(host.trace.planes):
        if not plane.lines:
            continue
        core = surveyed.planes.get(position)
        events = None
        if has_instructions(plane, core):
            events = DeviceEvents(
                core.device.device_id if core else None,
                core.timeline if core else Timeline(),
                survey.instructions.add_metadata(plane, surveyed.modules),
                _OP_LINES if core and not core.is_sparse_core else frozenset(),
            )
        yield PlaneLines(host.index, host.name, host.clock_offset_ps, position, plane, plane.lines, events)


def write_in_parts(
    staging: Staging,
    survey: RunSurvey,
    planes: Sequence[PlaneLines],
    counting: Counting,
    meanwhile: Callable[[], None],
) -> EventsWritten:
    """Write all lines in parts; this process runs `meanwhile` while the helpers start. The helpers end afterwards."""
    pieces, parts = divide(planes)
    with staging.processes, counting:
        written = start_parts(staging, counting, survey.instructions.facts, pieces, parts)
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
    """Write all lines in this process, one after the other; nothing can be added to the tables afterwards."""
    owners = [_owners(survey, p) for p in planes]
    last = {device: i for i, devices in enumerate(owners) for device in devices}
    first, flags = 0, []
    named = NamedOpWriter(tables, survey.instructions)
    for i, lines in enumerate(planes):
        host = survey.hosts[lines.host_index]
        core = host.planes.get(lines.position)
        if core and core.device.backend == "gpu":
            first = named.write_gpu(host, lines, core, first)
        elif host.cpu and lines.position == host.cpu_position:
            first, lost = named.write_cpu(host, lines, host.cpu, first)
            if lost:
                sentence = f"{lost} op events could not be given to a virtual device"
                flags.append(Flag("unattributed_ops", sentence, lines.host))
        else:
            first = tables.write(host.host.trace, lines, first)
        for device in owners[i]:
            if last[device] == i:
                tables.ops.finish_device(device)
    for host in survey.hosts:
        if host.program:
            host.program.add_executions(survey.instructions, host.devices, tables.written.executions)
    written = tables.finish(settling.add)
    left = iter(written.extents)
    return EventsWritten(planes, [list(islice(left, len(p.lines))) for p in planes], [written], tuple(flags))


def _owners(survey: RunSurvey, lines: PlaneLines) -> list[int]:
    """Return the devices whose events a plane can hold."""
    host = survey.hosts[lines.host_index]
    if host.cpu:
        return [d.device_id for d in host.devices if d.plane == lines.plane.name]
    core = host.planes.get(lines.position)
    return [core.device.device_id] if core else []


@dataclass(frozen=True)
class LinesCounted:
    """The number of events on all lines of each host, and flags about their times."""

    host_events: tuple[int, ...]
    flags: tuple[Flag, ...]


def write_lines(writers: RunWriters, survey: RunSurvey, events: EventsWritten) -> LinesCounted:
    """Write one row per line, sorted by the number of the line."""
    first_plane = first_planes(survey)
    counts = [0] * len(survey.hosts)
    rows: list[dict[str, Any]] = []
    flags: list[Flag] = []
    for lines, extents in zip(events.planes, events.extents, strict=True):
        host = survey.hosts[lines.host_index]
        core = host.planes.get(lines.position)
        plane_index = first_plane[lines.host_index] + lines.position
        for line, extent in zip(lines.lines, extents, strict=True):
            row = line_row(plane_index, lines.host, lines.plane, line, extent)
            place = {"line_index": len(rows), "first_event_id": sum(counts)}
            rows.append(row | place | {"device_id": core.device.device_id if core else None})
            counts[lines.host_index] += extent.count
            where = f"line {line.name!r} of {lines.plane.name}"
            flags += clock_jump(where, extent, host.host.window_ps, lines.host)
            flags += event_cap(where, extent.count, lines.host)
    times = [ps for r in rows if r["first_start_ps"] is not None for ps in (r["first_start_ps"], r["last_end_ps"])]
    if times:
        bounds.check(max(times) - min(times), bounds.PICOSECONDS, "picoseconds", "all events")
    writers.write_rows("lines", rows)
    return LinesCounted(tuple(counts), tuple(flags))
