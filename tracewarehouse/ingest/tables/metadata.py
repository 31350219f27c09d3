"""Writes the tables about planes, devices and instructions that need no events."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate

from tracewarehouse.ingest.columns.records import Plane
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.tables.events import has_instructions
from tracewarehouse.ingest.tables.planes import metadata_stat_rows, plane_row, plane_stat_rows, stat_metadata_rows
from tracewarehouse.ingest.tables.stats import write_instruction_stats
from tracewarehouse.ingest.tables.writers import RunWriters


def first_planes(survey: RunSurvey) -> list[int]:
    """Number in the run of the first plane of each host."""
    return [0, *accumulate(len(s.host.trace.planes) for s in survey.hosts)][:-1]


def write_metadata(writers: RunWriters, survey: RunSurvey) -> None:
    """Write planes, their stats and metadata, devices, and the stats of instructions."""
    survey.instructions.complete()
    for first, of_host in zip(first_planes(survey), survey.hosts, strict=True):
        for position, plane in enumerate(of_host.host.trace.planes):
            _write_plane(writers, first + position, of_host, position, plane)
    writers.write_rows("devices", map(asdict, survey.devices))
    write_instruction_stats(writers["instruction_stats"], [row.stats for row in survey.instructions.rows])
    writers.finish("planes", "plane_stats", "stat_metadata", "metadata_stats", "devices", "instruction_stats")


def _write_plane(writers: RunWriters, index: int, of_host: HostSurvey, position: int, plane: Plane) -> None:
    host, core = of_host.host.name, of_host.planes.get(position)
    writers.write_rows("planes", [plane_row(index, host, plane, core.device.device_id if core else None)])
    writers.write_rows("plane_stats", plane_stat_rows(index, host, plane))
    writers.write_rows("stat_metadata", stat_metadata_rows(index, plane))
    rows = metadata_stat_rows(index, plane, has_instructions=has_instructions(plane, core))
    writers.write_rows("metadata_stats", rows)


def write_instructions(writers: RunWriters, survey: RunSurvey) -> None:
    """Write main.instructions; each instruction must know its program by now."""
    survey.instructions.name_modules()
    writers.write_rows("instructions", survey.instructions.column_rows())
    writers.finish("instructions")
