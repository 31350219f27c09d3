"""Writes the tables about planes and metadata, which need no events, and stats that have no column of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import DEVICE_PREFIX, line_kind, plane_kind
from tracewarehouse.ingest.columns.records import Int64, Line, Plane, Stat, StatColumn, StatKind
from tracewarehouse.ingest.devices.host_survey import DevicePlane, HostSurvey
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter
from tracewarehouse.ingest.tables.staging import RunWriters

_INT64_END = 1 << 63
_KIND_NAME = ["", "", *(k.name.lower() for k in StatKind)]


def write_event_stats(writer: TableWriter, event_ids: Int64, columns: Iterable[StatColumn]) -> None:
    """Append the stats of a batch whose events have the ids `event_ids`."""
    for column in columns:
        kinds = np.flatnonzero(np.bincount(column.kinds)).tolist()
        for kind in kinds:
            at = np.flatnonzero(column.kinds == kind) if len(kinds) > 1 else slice(None)
            ids = event_ids[column.rows[at]]
            base = {"event_id": ids, "name": column.name, "kind": _KIND_NAME[kind]}
            writer.write(len(ids), base | _values(kind, column.bits[at], column))


COSTS = ("flops", "model_flops", "bytes_accessed")
"""Stats that say what an op costs; of the events on a line of ops they are columns of main.ops too."""


def write_instruction_stats(writer: TableWriter, stats_of: Sequence[Sequence[Stat]]) -> None:
    """Append the stats of instructions; `stats_of` has those of each in the order of their numbers."""
    stats = [stat for one in stats_of for stat in one]
    counts = [len(one) for one in stats_of]
    instruction_id = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    writer.write(len(stats), {"instruction_id": instruction_id, **_columns(stats)})


def unheld(column: StatColumn, is_held: npt.NDArray[np.bool_]) -> StatColumn:
    """Return the values that need rows: those that nothing else holds; if an event repeats a name, all but the last."""
    is_last = np.append(column.rows[1:] != column.rows[:-1], True)
    at = np.flatnonzero(~(is_held & is_last))
    return StatColumn(column.name, column.rows[at], column.kinds[at], column.bits[at], column.texts)


def _values(kind: int, bits: np.ndarray[Any, np.dtype[np.uint64]], column: StatColumn) -> dict[str, Any]:
    if kind == StatKind.DOUBLE:
        return {"double_value": bits.view(np.float64)}
    if kind == StatKind.INT64:
        return {"int_value": bits.view(np.int64)}
    if kind == StatKind.UINT64:
        is_wide = bits >= np.uint64(_INT64_END)
        if not is_wide.any():
            return {"int_value": bits.view(np.int64)}
        return {
            "int_value": Nullable(bits.view(np.int64), ~is_wide),
            "string_value": [str(b) if w else None for b, w in zip(bits.tolist(), is_wide.tolist(), strict=True)],
        }
    if kind == StatKind.BYTES:
        return {"bytes_value": [column.texts[i] for i in bits.tolist()]}
    codes = bits.view(np.int64)
    used = np.flatnonzero(np.bincount(codes))
    place = np.empty(len(column.texts), np.int32)
    place[used] = np.arange(len(used))
    return {"string_value": Coded(place[codes], [column.texts[i].decode("utf-8", "replace") for i in used.tolist()])}


def _columns(stats: Sequence[Stat]) -> dict[str, list[Any]]:
    """Many stats of metadata as columns for name, kind and values; value columns without a value are left out."""
    columns: dict[str, list[Any]] = {"name": [s.name for s in stats], "kind": [_KIND_NAME[s.kind] for s in stats]}
    for i, stat in enumerate(stats):
        column, value = _value(stat.value)
        if column not in columns:
            columns[column] = [None] * len(stats)
        columns[column][i] = value
    return columns


def stat_row(stat: Stat) -> dict[str, Any]:
    """One stat of a plane or of metadata, as columns for name, kind and value."""
    column, value = _value(stat.value)
    return {"name": stat.name, "kind": _KIND_NAME[stat.kind], column: value}


def _value(value: float | int | str | bytes) -> tuple[str, float | int | str | bytes]:
    if isinstance(value, str):
        return "string_value", value
    if isinstance(value, bytes):
        return "bytes_value", value
    if isinstance(value, float):
        return "double_value", value
    return ("int_value", value) if -_INT64_END <= value < _INT64_END else ("string_value", str(value))


def has_instructions(plane: Plane, core: DevicePlane | None) -> bool:
    """Return whether a plane's event metadata are themselves HLO instructions, or names of a device's events."""
    if core is not None:
        return core.device.backend != "gpu"
    return plane.name.startswith(DEVICE_PREFIX) and bool(plane.lines)


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


def _metadata_stat_rows(index: int, plane: Plane, *, has_instructions: bool) -> Iterator[dict[str, Any]]:
    """Yield rows of main.metadata_stats: of instructions only children, as their stats have rows of their own."""
    ids = plane.metadata_ids or range(len(plane.event_metadata))
    names = {i: m.name for i, m in zip(ids, plane.event_metadata, strict=True)}
    for metadata_id, m in zip(ids, plane.event_metadata, strict=True):
        stats = [] if has_instructions else list(m.stats)
        if m.display_name and not has_instructions:
            stats.append(Stat("display_name", StatKind.STRING, m.display_name))
        rows = [stat_row(stat) for stat in stats]
        children = [(stat_row(Stat("child_id", StatKind.INT64, child)), names.get(child)) for child in m.children]
        rows += [row | {"string_value": name} for row, name in children]
        for position, row in enumerate(rows):
            yield {"plane_index": index, "metadata_id": metadata_id, "index": position, "event": m.name, **row}


def first_planes(survey: RunSurvey) -> list[int]:
    """Number in the run of the first plane of each host."""
    return [0, *accumulate(len(s.host.trace.planes) for s in survey.hosts)][:-1]


def write_metadata(writers: RunWriters, survey: RunSurvey) -> None:
    """Write planes, their stats and metadata, and the stats of instructions."""
    for first, of_host in zip(first_planes(survey), survey.hosts, strict=True):
        for position, plane in enumerate(of_host.host.trace.planes):
            _write_plane(writers, first + position, of_host, position, plane)
    write_instruction_stats(writers["instruction_stats"], [row.stats for row in survey.instructions.rows])
    writers.finish("planes", "plane_stats", "stat_metadata", "metadata_stats", "instruction_stats")


def _write_plane(writers: RunWriters, index: int, of_host: HostSurvey, position: int, plane: Plane) -> None:
    core = of_host.planes.get(position)
    place = {"plane_index": index, "host": of_host.host.name, "plane": plane.name}
    device = {"device_id": core.device.device_id if core else None, "line_count": len(plane.lines)}
    kind = {"plane_id": plane.plane_id, "kind": plane_kind(plane.name)}
    writers.write_rows("planes", [place | kind | device])
    writers.write_rows("plane_stats", (place | stat_row(stat) for stat in plane.stats))
    described = ({"stat_id": i, "name": name, "description": text} for i, name, text in plane.stat_descriptions)
    writers.write_rows("stat_metadata", ({"plane_index": index} | row for row in described))
    rows = _metadata_stat_rows(index, plane, has_instructions=has_instructions(plane, core))
    writers.write_rows("metadata_stats", rows)
