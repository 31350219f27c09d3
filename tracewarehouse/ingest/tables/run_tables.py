"""Writes the tables of a run: first every line of every plane, then the tables derived from all lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import OP_LINE
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.quality import (
    clock_jump,
    damaged_instructions,
    event_cap,
    missing_hlo,
    silent_devices,
    uneven_launches,
    uneven_steps,
    unrecorded_executions,
)
from tracewarehouse.ingest.devices.run_survey import MissingDevices, RunSurvey
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.tables.derived import (
    CollectivesWritten,
    give_costs,
    kernel_communication,
    place_in_layers,
    unsized_time,
    write_collectives,
    write_phases,
)
from tracewarehouse.ingest.tables.lines import EVENT_TABLES, DeviceEvents, LinesWritten, LineTables, PlaneLines
from tracewarehouse.ingest.tables.named_ops import NamedOpWriter
from tracewarehouse.ingest.tables.parts import Counting, divide, start_parts
from tracewarehouse.ingest.tables.staging import RunWriters, Staging, TableFiles
from tracewarehouse.ingest.tables.stats import first_planes, has_instructions, line_row, write_metadata

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
    with staging.processes:
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
    host = survey.hosts[lines.host_index]
    if host.cpu:
        return [d.device_id for d in host.devices if d.plane == lines.plane.name]
    core = host.planes.get(lines.position)
    return [core.device.device_id] if core else []


def write_lines(writers: RunWriters, survey: RunSurvey, events: EventsWritten) -> tuple[tuple[int, ...], list[Flag]]:
    """Write one row per line, by its number; return the events of each host, and flags about their times."""
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
    return tuple(counts), flags


_TABLES = [name for name in TABLES if name not in (*EVENT_TABLES, "runs", "quality_flags", "metric_values")]


@dataclass(frozen=True)
class Written:
    """The files of every table but runs, quality_flags and metric_values, and facts about the run from them."""

    files: TableFiles
    host_events: tuple[int, ...]
    """Events on all lines of each host."""
    collective_counts: Mapping[CollectiveStep, int]
    """Executions of collectives by device, step, kind and axis."""
    missing: MissingDevices
    """Devices that replica groups count and the capture lacks."""
    flags: tuple[Flag, ...]
    """Quality flags, besides those of the survey."""

    @property
    def event_count(self) -> int:
        """Events on all lines."""
        return sum(self.host_events)


def write_tables(staging: Staging, survey: RunSurvey, counting: Counting | None) -> Written:
    """Write every table but runs, quality_flags and metric_values.

    Args:
        staging: where the files are made; its helpers end once the events are written.
        survey: the survey of the run; its instructions are completed.
        counting: counts the events of a run that is written in parts; None to write one line after the other.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
        HelperError: a process was ended from outside.
        OSError: the files cannot be written.
    """
    planes = [lines for host in survey.hosts for lines in _host_lines(survey, host)]
    instruction_flags: list[Flag] = []
    with ExitStack() as stack:
        encoder = stack.enter_context(ThreadPoolExecutor(2))
        writers = stack.enter_context(RunWriters(staging, _TABLES, encoder))

        def describe() -> None:
            write_metadata(writers, survey)
            instruction_flags.extend(damaged_instructions(survey.instructions.rows))

        if counting:
            events = write_in_parts(staging, survey, planes, counting, describe)
        else:
            tables = stack.enter_context(LineTables(staging.folder, survey.instructions.facts, encoder))
            events = write_together(tables, survey, planes, staging.settling)
            describe()
        host_events, line_flags = write_lines(writers, survey, events)
        for number, (module, program_id) in (item for p in events.parts for item in p.programs.items()):
            survey.instructions.assign_program(number, module, program_id)
        instruction_flags += place_in_layers(
            survey, (e for p in events.parts for e in p.sampled), [p.time_ps for p in events.parts]
        )
        instruction_flags += give_costs(survey.instructions.rows, survey.costs)
        survey.instructions.name_modules()
        writers.write_rows("instructions", survey.instructions.column_rows())
        writers.finish("instructions")
        collectives = write_collectives(writers, survey, events.parts)
        instruction_flags += write_phases(writers, survey, events.parts)
        writers.write_rows("predictions", survey.prediction.rows() if survey.prediction else ())
        writers.write_rows("step_batches", (b.row() for b in survey.batches))
        rows = (s.host.row(n) for s, n in zip(survey.hosts, host_events, strict=True))
        writers.write_rows("hosts", rows)
    files = writers.files()
    for part in events.parts:
        for table, file in part.files.items():
            files.setdefault(table, []).append(file)
    flags = [*events.flags, *line_flags, *_flags(survey, instruction_flags, events.parts, collectives)]
    return Written(files, host_events, collectives.counts, collectives.missing, tuple(flags))


def _flags(
    survey: RunSurvey,
    instruction_flags: Sequence[Flag],
    parts: Sequence[LinesWritten],
    collectives: CollectivesWritten,
) -> Iterator[Flag]:
    """Return the flags that only all tables together can tell."""
    if collectives.inferred:
        axes = ", ".join(map(str, collectives.inferred))
        yield Flag("inferred_axes", f"{axes}; give them with `--mesh` at ingest")
    yield from collectives.flags
    yield from (Flag("hlo_unreadable", note) for note in survey.hlo_notes)
    yield from instruction_flags
    time_ps = [p.time_ps for p in parts]
    yield from unsized_time(survey.instructions.rows, time_ps, [p.sized_ps for p in parts])
    yield from kernel_communication(survey.instructions.rows, time_ps)
    if len(survey.devices) > 1:
        yield from missing_hlo(survey.instructions.rows, time_ps)
    compiled = sum((p.compilations for p in parts), Counter[tuple[int, str]]())
    for index in sorted({i for i, _ in compiled}):
        sentences = [f"{n} x {name}" for (i, name), n in compiled.items() if i == index]
        yield Flag("compiled_in_capture", ", ".join(sorted(sentences)), survey.hosts[index].host.name)
    if incomplete := collectives.incomplete_instances:
        sentence = f"{incomplete} executions of collectives lack ranks whose devices are in the capture"
        yield Flag("partial_collectives", sentence)
    programs = {p for r in survey.instructions.rows if r.collective for p in (r.program_id, r.module)}
    yield from uneven_launches(survey.timelines, programs)
    yield from uneven_steps(survey.timelines)
    leaf_ops = sum((p.leaf_ops for p in parts), Counter[tuple[int, bool]]())
    tpus = {d.device_id for d in survey.devices if d.backend == "tpu"}  # on others, copies run in no program
    yield from unrecorded_executions([t for t in survey.timelines if t[0] in tpus], leaf_ops)
    yield from silent_devices([s.host for s in survey.hosts])
