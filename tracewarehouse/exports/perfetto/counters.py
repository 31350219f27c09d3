"""Writes the track of counters: collectives in flight, and what the profiler counted."""

from __future__ import annotations

from itertools import pairwise

from tracewarehouse.exports.perfetto.columns import integers
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun


def write_counters(run: SelectedRun, writer: PacketWriter, parent: int) -> None:
    """Write all counters of a run below a track."""
    in_flight = run.arrow(f"""
        WITH ranks AS (
          SELECT coalesce(instance, -1 - event_id) AS instance, start_ps, end_ps, coalesce(wire_bytes, 0) AS bytes
          FROM main.collectives
          WHERE {run.of_run} AND {run.selection.of_times()} AND {run.selection.of_steps()}
        ),
        changes AS (
          SELECT min(start_ps) AS start_ps, 1 AS collectives, 0 AS bytes FROM ranks GROUP BY instance
          UNION ALL
          SELECT max(end_ps), -1, 0 FROM ranks GROUP BY instance
          UNION ALL
          SELECT start_ps, 0, bytes FROM ranks
          UNION ALL
          SELECT end_ps, 0, -bytes FROM ranks
        ),
        at_once AS (
          SELECT start_ps, sum(collectives) AS collectives, sum(bytes) AS bytes FROM changes GROUP BY start_ps
        )
        SELECT
          start_ps,
          CAST(sum(collectives) OVER (ORDER BY start_ps) AS BIGINT) AS collectives,
          CAST(sum(bytes) OVER (ORDER BY start_ps) AS BIGINT) AS bytes
        FROM at_once
        ORDER BY start_ps
    """)
    counters = run.arrow(f"""
        SELECT plane, host, name, start_ps, value
        FROM main.counters
        WHERE {run.of_run} AND value IS NOT NULL AND {run.within()}
        ORDER BY host, plane, name, start_ps
    """)
    if not len(in_flight) and not len(counters):
        return
    group = writer.track("1. Global Counters", parent)
    if len(in_flight):
        collectives = writer.track("Collectives", group)
        for name, unit, column in (
            ("In-flight collectives", "count", "collectives"),
            ("In-flight bytes", "bytes", "bytes"),
        ):
            track = writer.counter_track(name, collectives, unit, column)
            writer.samples(track, integers(in_flight, "start_ps"), integers(in_flight, column))
    places = counters.select(["host", "plane", "name"]).to_pylist()
    groups: dict[tuple[str, str], int] = {}
    firsts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1]]
    for first, last in pairwise([*firsts, len(places)]):
        place = places[first]
        where = place["host"], place["plane"]
        if where not in groups:
            groups[where] = writer.track(run.with_host(place["plane"], place["host"]), group)
        some = counters.slice(first, last - first)
        track = writer.counter_track(place["name"], groups[where], "", place["name"])
        writer.samples(track, integers(some, "start_ps"), some.column("value").to_numpy())
