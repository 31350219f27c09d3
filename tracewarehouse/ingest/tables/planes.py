"""Makes the rows about a plane besides its events: the plane itself, its lines, its stats, and its metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import line_kind, plane_kind
from tracewarehouse.ingest.columns.records import Line, Plane, Stat, StatKind
from tracewarehouse.ingest.tables.stats import stat_row


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
