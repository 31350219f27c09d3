"""Writes main.lines: every line of the run, with its number and that of its first event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.quality import clock_jump, event_cap
from tracewarehouse.ingest.devices.run_survey import RunSurvey
from tracewarehouse.ingest.tables.events import EventsWritten
from tracewarehouse.ingest.tables.metadata import first_planes
from tracewarehouse.ingest.tables.planes import line_row
from tracewarehouse.ingest.tables.writers import RunWriters


@dataclass(frozen=True)
class LinesCounted:
    """The number of events on each line of a run, and the flags about their times.

    Attributes:
        events_of_host: events on all lines of each host.
        flags: flags that a reader of the run must know.
    """

    events_of_host: tuple[int, ...]
    flags: tuple[Flag, ...]


def write_lines(writers: RunWriters, survey: RunSurvey, events: EventsWritten) -> LinesCounted:
    """Write one row per line, sorted by the number of the line."""
    first_plane = first_planes(survey)
    counts = [0] * len(survey.hosts)
    rows: list[dict[str, Any]] = []
    flags: list[Flag] = []
    for of_plane, extents in zip(events.planes, events.extents, strict=True):
        of_host = survey.hosts[of_plane.host_index]
        core = of_host.planes.get(of_plane.position)
        plane_index = first_plane[of_plane.host_index] + of_plane.position
        for line, extent in zip(of_plane.lines, extents, strict=True):
            row = line_row(plane_index, of_plane.host, of_plane.plane, line, extent)
            place = {"line_index": len(rows), "first_event_id": sum(counts)}
            rows.append(row | place | {"device_id": core.device.device_id if core else None})
            counts[of_plane.host_index] += extent.count
            where = f"line {line.name!r} of {of_plane.plane.name}"
            flags += clock_jump(where, extent, of_host.host.window_ps, of_plane.host)
            flags += event_cap(where, extent.count, of_plane.host)
    writers.write_rows("lines", rows)
    return LinesCounted(tuple(counts), tuple(flags))
