"""Writes the tables of a run: first every line of every plane, then the tables derived from all lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.quality import (
    damaged_instructions,
    missing_hlo,
    silent_devices,
    uneven_launches,
    uneven_steps,
    unrecorded_executions,
)
from tracewarehouse.ingest.devices.run_survey import MissingDevices, RunSurvey
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.tables.derived import (
    CollectivesWritten,
    give_costs,
    kernel_communication,
    place_in_layers,
    unsized_time,
    write_collectives,
    write_instructions,
    write_phases,
)
from tracewarehouse.ingest.tables.events import plane_lines, write_in_parts, write_lines, write_together
from tracewarehouse.ingest.tables.lines import EVENT_TABLES, LinesWritten, LineTables
from tracewarehouse.ingest.tables.parts import Counting
from tracewarehouse.ingest.tables.planes import write_metadata
from tracewarehouse.ingest.tables.staging import RunWriters, Staging, TableFiles

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
    planes = plane_lines(survey)
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
        lines = write_lines(writers, survey, events)
        for number, (module, program_id) in (item for p in events.parts for item in p.programs.items()):
            survey.instructions.assign_program(number, module, program_id)
        instruction_flags += place_in_layers(
            survey, (e for p in events.parts for e in p.sampled), [p.time_ps for p in events.parts]
        )
        instruction_flags += give_costs(survey.instructions.rows, survey.costs)
        write_instructions(writers, survey)
        collectives = write_collectives(writers, survey, events.parts)
        instruction_flags += write_phases(writers, survey, events.parts)
        writers.write_rows("predictions", survey.prediction.rows() if survey.prediction else ())
        writers.write_rows("step_batches", (b.row() for b in survey.batches))
        rows = (s.host.row(n) for s, n in zip(survey.hosts, lines.host_events, strict=True))
        writers.write_rows("hosts", rows)
    files = writers.files()
    for part in events.parts:
        for table, file in part.files.items():
            files.setdefault(table, []).append(file)
    flags = [*events.flags, *lines.flags, *_flags(survey, instruction_flags, events.parts, collectives)]
    return Written(files, lines.host_events, collectives.counts, collectives.missing, tuple(flags))


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
