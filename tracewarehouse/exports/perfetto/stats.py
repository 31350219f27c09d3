"""Turns stats that have no column of their own into arguments of events."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.columns import integers, optional
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.wire import Encoded
from tracewarehouse.queries.read_only import literal

_LEFT_OUT = ("flow", "program_id", "symbol_id", "device_offset_ps", "device_duration_ps")
"""Stats that link events to each other for the profiler's own tools, or repeat times."""


def stats_of(run: SelectedRun, event_ids: Int64) -> pa.Table:
    """The stats of these events that have no column of their own."""
    left_out = ", ".join(map(literal, _LEFT_OUT))
    low, high = (int(event_ids[0]), int(event_ids[-1])) if len(event_ids) else (0, -1)
    return run.arrow(f"""
        SELECT event_id, name, int_value, coalesce(string_value, CAST(double_value AS VARCHAR)) AS text
        FROM main.event_stats
        WHERE {run.of_run} AND event_id >= {low} AND event_id <= {high} AND kind <> 'bytes'
          AND name NOT IN ({left_out}) AND name NOT LIKE '\\_%' ESCAPE '\\'
        ORDER BY event_id, name
    """)


def of_events(stats: pa.Table, events: pa.Table) -> pa.Table:
    """The stats of these events and of the events between them, ordered by event."""
    event_ids = integers(events, "event_id")
    low, high = np.searchsorted(integers(stats, "event_id"), [event_ids[0], event_ids[-1] + 1])
    return stats.slice(low, high - low)


def stat_arguments(writer: PacketWriter, event_ids: Int64, stats: pa.Table) -> list[Encoded]:
    """The stats as arguments of the events, in one array per stat."""
    of_event = integers(stats, "event_id")
    place = np.searchsorted(event_ids, of_event)
    place[place == len(event_ids)] = 0
    placed = stats.append_column("place", pa.array(place)).filter(pa.array(event_ids[place] == of_event))
    columns = []
    for name in pc.unique(placed.column("name")).to_pylist():
        some = placed.filter(pc.equal(placed.column("name"), name))
        value, is_text = optional(some, "int_value")
        texts = writer.texts(name, some.column("text").to_pylist())
        numbers = writer.integers(name, value, is_text)
        where = np.full(len(event_ids), -1, np.int64)
        where[integers(some, "place")] = np.arange(len(some))
        columns.append(pc.coalesce(numbers, texts).take(pa.array(where, mask=where < 0)))
    return columns
