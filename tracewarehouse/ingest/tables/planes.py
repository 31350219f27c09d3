"""Writes the tables about planes, devices and metadata, which need no events, and makes the rows of lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import DEVICE_PREFIX, line_kind, plane_kind
from tracewarehouse.ingest.columns.records import Line, Plane, Stat, StatKind
from tracewarehouse.ingest.devices.host_survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.tables.staging import RunWriters
from tracewarehouse.ingest.tables.stats import stat_row, write_instruction_stats


def has_instructions(plane: Plane, core: DevicePlane | None) -> bool:
    """Return whether a plane's event metadata are themselves HLO instructions, or names of a device's events."""
    if core is not None:
        return core.device.backend != "gpu"
    return plane.name.startswith(DEVICE_PREFIX) and bool(plane.lines)


def plane_row(index: int, host: str, plane: Plane, device_id: int | None) -> dict[str, Any]:
    """The row of main.planes."""
    return {
        "plane_index": index,
        "host": host,
        "plane": plane.name,
        "plane_id": plane.plane_id,
        "kind": plane_kind(plane.name),
        "device_id": device_id,
        "line_count": len(plane.lines),
    }


def line_row(plane_index: int, host: str, plane: Plane, line: Line, extent: LineExtent) -> dict[str, Any]:
    """The row of main.lines without its numbers in the run."""
    return {
        "plane_index": plane_index,
        "host": host,
        "plane": plane.name,
        "line": line.name,
        "kind": line_kind(plane.name, line.name),
        "line_id": line.line_id,
        "display_name": extent.display_name or None,
        "display_id": extent.display_id or None,
        "timestamp_ns": line.timestamp_ns,
        "duration_ps": extent.duration_ps or None,
        "first_start_ps": extent.first_ps,
        "last_end_ps": extent.last_ps,
        "event_count": extent.count,
    }


def plane_stat_rows(index: int, host: str, plane: Plane) -> Iterator[dict[str, Any]]:
    """Rows of main.plane_stats."""
    for stat in plane.stats:
        yield {"plane_index": index, "host": host, "plane": plane.name, **stat_row(stat)}


def stat_metadata_rows(index: int, plane: Plane) -> Iterator[dict[str, Any]]:
    """Rows of main.stat_metadata."""
    for stat_id, name, description in plane.stat_descriptions:
        yield {"plane_index": index, "stat_id": stat_id, "name": name, "description": description}


def metadata_stat_rows(index: int, plane: Plane, *, has_instructions: bool) -> Iterator[dict[str, Any]]:
    """Rows of main.metadata_stats; if the metadata are instructions, only children: instructions hold the stats."""
    ids = plane.metadata_ids or range(len(plane.event_metadata))
    names: dict[int, str] | None = None
    for metadata_id, m in zip(ids, plane.event_metadata, strict=True):
        if not m.children and (has_instructions or not (m.stats or m.display_name)):
            continue
        rows: list[Any] = []
        if not has_instructions:
            shown = [Stat("display_name", StatKind.STRING, m.display_name)] if m.display_name else []
            rows += map(stat_row, [*m.stats, *shown])
        for child in m.children:
            if names is None:
                names = {i: x.name for i, x in zip(ids, plane.event_metadata, strict=True)}
            rows.append(stat_row(Stat("child_id", StatKind.INT64, child)) | {"string_value": names.get(child)})
        for position, row in enumerate(rows):
            yield {"plane_index": index, "metadata_id": metadata_id, "index": position, "event": m.name, **row}


def first_planes(survey: RunSurvey) -> list[int]:
    """Number in the run of the first plane of each host."""
    return [0, *accumulate(len(s.host.trace.planes) for s in survey.hosts)][:-1]


def write_metadata(writers: RunWriters, survey: RunSurvey) -> None:
    """Write planes, their stats and metadata, and the stats of instructions."""
    survey.instructions.complete()
    for first, of_host in zip(first_planes(survey), survey.hosts, strict=True):
        for position, plane in enumerate(of_host.host.trace.planes):
            _write_plane(writers, first + position, of_host, position, plane)
    write_instruction_stats(writers["instruction_stats"], [row.stats for row in survey.instructions.rows])
    writers.finish("planes", "plane_stats", "stat_metadata", "metadata_stats", "instruction_stats")


def _write_plane(writers: RunWriters, index: int, of_host: HostSurvey, position: int, plane: Plane) -> None:
    host, core = of_host.host.name, of_host.planes.get(position)
    writers.write_rows("planes", [plane_row(index, host, plane, core.device.device_id if core else None)])
    writers.write_rows("plane_stats", plane_stat_rows(index, host, plane))
    writers.write_rows("stat_metadata", stat_metadata_rows(index, plane))
    rows = metadata_stat_rows(index, plane, has_instructions=has_instructions(plane, core))
    writers.write_rows("metadata_stats", rows)
