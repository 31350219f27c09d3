"""Writes runs as one Perfetto trace: a run's counters, then its devices, then its hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.files import naming_the_unwritable, whole_file
from tracewarehouse.exports.perfetto.devices import Devices, Flows
from tracewarehouse.exports.perfetto.packets import PacketWriter, compressing
from tracewarehouse.exports.perfetto.selected_run import SelectedRun, Selection, coded, integers, stat_arguments
from tracewarehouse.exports.perfetto.wire import Encoded, Int64
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".perfetto-trace.gz")
_PICOSECONDS = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}


def export_perfetto(
    warehouse: Warehouse,
    runs: Sequence[str],
    target: Path,
    selection: Selection | None = None,
    *,
    flows: Flows = "slow",
    force: bool = False,
) -> Path:
    """Write runs as one Perfetto trace; returns the file.

    The trace of one run has its tracks at the top; a trace of several runs has a track per run above them. Time 0 is
    the profile start of each run or, with a selection, its first event.

    Args:
        runs: run ids, beginnings of ids, or names.
        target: a file that ends in .pftrace or .perfetto-trace; with a further .gz, the file is gzipped. Without, its
            packets are compressed, which Perfetto's tools can read.
        selection: the part of each run to write; None for all.
        flows: which executions of collectives get arrows from rank to rank: none, those that are slow for their
            instruction (see the macro selected_collectives), or all.
        force: also write runs of hosts whose clocks are not aligned.
    """
    if not target.name.endswith(ENDINGS):
        raise TracewarehouseError(f"{target}: a Perfetto trace ends in one of {', '.join(ENDINGS)}; name such a file")
    entries = list({entry.run_id: entry for entry in map(warehouse.run, runs)}.values())
    for run in entries:
        if "clock_unaligned" in run.flags and not force:
            raise TracewarehouseError(
                f"run {run.name}: the clocks of its hosts are not aligned, so events of the same moment would be drawn "
                "at different times; --force writes the trace anyway"
            )
    with naming_the_unwritable(target), whole_file(target, 4) as file:
        packing = nullcontext(file.write) if target.suffix == ".gz" else compressing(file.write)
        with packing as write:
            writer = PacketWriter(write)
            first_flow = 1
            for run in entries:
                selected = SelectedRun(warehouse, run.run_id, selection or Selection())
                title = f"{run.name} (predicted)" if selected.is_predicted else run.name
                parent = writer.track(title) if len(entries) > 1 or selected.is_predicted else 0
                writer.origin_ps, _ = selected.hull
                _write_counters(selected, writer, parent)
                Devices(selected, writer, flows, first_flow).write(parent)
                _write_hosts(selected, writer, parent)
                [(instances,)] = selected.rows(
                    f"SELECT coalesce(max(instance), -1) + 1 FROM main.collectives WHERE {selected.in_run}"
                )
                first_flow += instances
    return target


def opening_window(warehouse: Warehouse, run: str) -> tuple[int, int] | None:
    """The first whole step of a run in the trace of all of it, in ns; None if it has no such step."""
    entry = warehouse.run(run)
    steps = warehouse.query(
        f"""SELECT start_ps, until_ps FROM models.run_steps
            WHERE run_id = {literal(entry.run_id)} AND is_timed ORDER BY is_last, start_ps LIMIT 1"""
    ).rows()
    if not steps:
        return None
    origin, _ = SelectedRun(warehouse, entry.run_id, Selection()).hull
    [(start, end)] = steps
    return (start - origin) // 1000, (end - origin) // 1000


def _write_counters(run: SelectedRun, writer: PacketWriter, parent: int) -> None:
    in_flight = run.arrow(f"SELECT * FROM macros.collectives_in_flight({run.arguments}) ORDER BY at_ps")
    counters = run.arrow(
        "SELECT plane, host, name, start_ps, value FROM main.counters "
        f"WHERE {run.in_hull} AND value IS NOT NULL ORDER BY host, plane, name, start_ps"
    )
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
            writer.samples(track, integers(in_flight, "at_ps"), integers(in_flight, column))
    places = counters.select(["host", "plane", "name"]).to_pylist()
    planes: dict[tuple[str, str], int] = {}
    firsts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1]]
    for first, last in pairwise([*firsts, len(places)]):
        host, plane, name = places[first].values()
        if (host, plane) not in planes:
            planes[host, plane] = writer.track(run.with_host(plane, host), group)
        some = counters.slice(first, last - first)
        track = writer.counter_track(name, planes[host, plane], "", name)
        writer.samples(track, integers(some, "start_ps"), some.column("value").to_numpy())


def _write_hosts(run: SelectedRun, writer: PacketWriter, parent: int) -> None:
    group = 0
    for host in run.hosts:
        events = run.arrow(
            "SELECT event_id, name, start_ps, duration_ps FROM main.host_events "
            f"WHERE {run.in_hull} AND host = {literal(host)} ORDER BY event_id"
        )
        if not len(events):
            continue
        group = group or writer.track("3. Hosts", parent)
        track = writer.track(host, group)
        event_ids = integers(events, "event_id")
        stats = run.stats(event_ids)
        line = run.line_numbers(event_ids)
        firsts = np.flatnonzero(np.diff(line, prepend=-1))
        for first, last in pairwise([*firsts.tolist(), len(line)]):
            _write_thread(writer, run.lines[line[first]].thread, track, events.slice(first, last - first), stats)


def _write_thread(writer: PacketWriter, name: str, parent: int, events: pa.Table, stats: pa.Table) -> None:
    event_ids = integers(events, "event_id")
    texts, codes = coded(events.column("name"))
    columns = stat_arguments(writer, event_ids, stats)

    def arguments(some: Int64) -> list[Encoded]:
        return [writer.integers("event_id", event_ids[some]), *(column.take(pa.array(some)) for column in columns)]

    names = writer.names(texts)[codes.to_numpy()]
    writer.slices(name, parent, integers(events, "start_ps"), integers(events, "duration_ps"), names, arguments)


def picoseconds(text: str) -> int:
    """Read a time with its unit, such as `1.5ms`."""
    match = re.fullmatch(r"(-?\d+(?:\.\d+)?)(ps|ns|us|ms|s)", text.strip())
    if not match:
        raise TracewarehouseError(f"{text!r} is not a time; write a number and ps, ns, us, ms or s, such as 1.5ms")
    return round(float(match[1]) * _PICOSECONDS[match[2]])


def steps(text: str) -> tuple[int, int]:
    """Read a step, or a range of steps such as `3-5`, as its first and its last one."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise TracewarehouseError(f"{text!r} is not a step; write its number, or the first and last of several as 3-5")
    return first, last
