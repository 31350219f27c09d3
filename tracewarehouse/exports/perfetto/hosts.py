"""Writes the tracks of hosts: one for each thread."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.perfetto.columns import coded, integers
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.stats import of_events, stat_arguments, stats_of
from tracewarehouse.exports.perfetto.wire import Encoded
from tracewarehouse.queries.read_only import literal


def write_hosts(run: SelectedRun, writer: PacketWriter, parent: int) -> None:
    """Write all hosts of a run below a track."""
    hosts = run.rows(f"SELECT host FROM main.hosts WHERE {run.of_run} ORDER BY host_index")
    group = 0
    for (host,) in hosts:
        events = run.arrow(f"""
            SELECT event_id, name, start_ps, duration_ps
            FROM main.host_events
            WHERE {run.of_run} AND {run.within()} AND host = {literal(host)}
            ORDER BY event_id
        """)
        if not len(events):
            continue
        group = group or writer.track("3. Hosts", parent)
        of_host = writer.track(host, group)
        event_ids = integers(events, "event_id")
        stats = stats_of(run, event_ids)
        line = run.line_of(event_ids)
        firsts = np.flatnonzero(np.diff(line, prepend=-1))
        for first, last in pairwise([*firsts.tolist(), len(line)]):
            some = events.slice(first, last - first)
            _write_thread(writer, run.lines[line[first]].thread, of_host, some, of_events(stats, some))


def _write_thread(writer: PacketWriter, name: str, parent: int, events: pa.Table, stats: pa.Table) -> None:
    event_ids = integers(events, "event_id")
    texts, codes = coded(events.column("name"))
    of_stats = stat_arguments(writer, event_ids, stats)

    def arguments(some: Int64) -> list[Encoded]:
        return [
            writer.integers("event_id", event_ids[some]),
            *(stat.take(pa.array(some)) for stat in of_stats),
        ]

    writer.slices(
        name,
        parent,
        integers(events, "start_ps"),
        integers(events, "duration_ps"),
        writer.names(texts)[codes.to_numpy()],
        arguments,
    )
