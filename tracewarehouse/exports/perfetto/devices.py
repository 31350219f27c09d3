"""Writes the tracks of devices: their lines, and the steps, layers and collectives that ingest found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.perfetto.collectives import Collectives
from tracewarehouse.exports.perfetto.columns import coded, integers, optional
from tracewarehouse.exports.perfetto.instructions import Instructions
from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.name_scope import write_name_scope
from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun
from tracewarehouse.exports.perfetto.stats import of_events, stat_arguments, stats_of
from tracewarehouse.exports.perfetto.wire import Encoded
from tracewarehouse.queries.read_only import literal

_DEVICES = {"tpu": "2. TPUs", "gpu": "2. GPUs", "cpu": "2. CPUs"}


class Devices:
    """The devices of a run.

    Args:
        run: the run.
        writer: writes the trace.
        instructions: the instructions of the run.
        collectives: its collectives.
    """

    def __init__(
        self, run: SelectedRun, writer: PacketWriter, instructions: Instructions, collectives: Collectives
    ) -> None:
        self._run = run
        self._writer = writer
        self._instructions = instructions
        self._collectives = collectives

    def write(self, parent: int) -> None:
        """Write all devices below a track."""
        devices = self._run.rows(
            "SELECT device_id, plane, host, upper(coalesce(backend, 'unknown')) FROM main.devices "
            f"WHERE {self._run.of_run} ORDER BY device_id"
        )
        names = [plane for _, plane, _, _ in devices]
        [(backend,)] = self._run.rows(f"SELECT backend FROM main.runs WHERE {self._run.of_run}")
        group = self._writer.track(_DEVICES.get(backend, "2. Devices"), parent)
        for device_id, plane, host, kind in devices:
            name = plane if names.count(plane) == 1 else f"/device:{kind}:{device_id}"
            track = self._writer.track(name, group, description=f"device {device_id}, on host {host}")
            self._write_device(track, device_id)
        for plane, host in self._run.rows(
            f"SELECT DISTINCT plane, host FROM main.ops WHERE {self._run.of_ops} AND device_id IS NULL ORDER BY ALL"
        ):
            track = self._writer.track(self._run.with_host(plane, host), group)
            where = f"device_id IS NULL AND plane = {literal(plane)} AND host = {literal(host)}"
            self._write_lines(track, self._ops(where), self._instructions.arguments(None), {})

    def _write_device(self, parent: int, device_id: int) -> None:
        where = f"device_id = {device_id}"
        ops = self._ops(where)
        tracks = self._write_lines(parent, ops, self._instructions.arguments(device_id), self._run_ids(device_id))
        for name, kind in (("1. Steps", "step"), ("2. XLA Modules", "module")):
            if name not in tracks:
                self._write_phases(parent, name, device_id, kind)
        write_name_scope(self._writer, parent, ops, self._instructions, device_id)
        self._collectives.write(parent, device_id)

    def _ops(self, where: str) -> pa.Table:
        return self._run.arrow(f"""
            SELECT event_id, instruction_id, start_ps, duration_ps, phase, step, execution, is_leaf
            FROM main.ops
            WHERE {self._run.of_ops} AND {where}
            ORDER BY event_id
        """)

    def _write_lines(self, parent: int, ops: pa.Table, of_instructions: Encoded, run_ids: dict[int, int]) -> set[str]:
        """Write the events of a device line by line; returns the names of the tracks."""
        lines = self._run.lines
        event_ids = integers(ops, "event_id")
        line = self._run.line_of(event_ids)
        stats = stats_of(self._run, event_ids)
        by_track: dict[str, list[int]] = {}
        for index in np.unique(line).tolist():
            by_track.setdefault(lines[index].track, []).append(index)
        for name in sorted(by_track, key=lambda n: (not n[:1].isdigit(), n)):
            is_here = np.isin(line, by_track[name])
            if all(lines[index].is_counter for index in by_track[name]):
                is_here &= integers(ops, "duration_ps") != 0  # samples are on the tracks of counters
            some = ops.filter(pa.array(is_here))
            if len(some):
                self._write_events(name, parent, some, of_instructions, run_ids, of_events(stats, some))
        return set(by_track)

    def _write_events(
        self,
        name: str,
        parent: int,
        ops: pa.Table,
        of_instructions: Encoded,
        run_ids: dict[int, int],
        stats: pa.Table,
    ) -> None:
        w = self._writer
        instructions = ops.column("instruction_id").combine_chunks()
        event_ids = integers(ops, "event_id")
        phases, phase_codes = coded(ops.column("phase"))
        phase = w.texts("phase", phases)
        step, no_step = optional(ops, "step")
        execution, no_execution = optional(ops, "execution")
        run_id = np.array([run_ids.get(e, -1) for e in range(int(execution.max(initial=0)) + 1)], np.int64)[execution]
        no_run_id = no_execution | (run_id == -1)
        if name == "2. XLA Modules":  # modules have it as a stat of their own
            no_run_id[:] = True
        of_stats = stat_arguments(w, event_ids, stats)

        def arguments(some: Int64) -> list[Encoded]:
            place = pa.array(some)
            return [
                of_instructions.take(instructions.take(place)),
                phase.take(phase_codes.take(place)),
                w.integers("step", step[some], no_step[some]),
                w.integers("run_id", run_id[some], no_run_id[some]),
                w.integers("event_id", event_ids[some]),
                *(stat.take(place) for stat in of_stats),
            ]

        names = self._instructions.names[integers(ops, "instruction_id")]
        w.slices(name, parent, integers(ops, "start_ps"), integers(ops, "duration_ps"), names, arguments)

    def _write_phases(self, parent: int, name: str, device_id: int, kind: str) -> None:
        """Write the steps or modules that ingest found for a device without a line of them."""
        is_selected = self._run.selection.of_steps("name", '"index"') if kind == "step" else "true"
        spans = self._run.arrow(f"""
            SELECT name, "index", start_ps, end_ps
            FROM main.phases
            WHERE {self._run.of_run} AND device_id = {device_id} AND kind = {literal(kind)} AND {self._run.within()}
              AND {is_selected}
            ORDER BY start_ps, "index"
        """)
        texts = spans.column("name").to_pylist()
        index, no_index = optional(spans, "index")
        shown = [
            t if kind == "module" or absent else f"{i} {t or ''}".strip()
            for t, i, absent in zip(texts, index.tolist(), no_index.tolist(), strict=True)
        ]

        def arguments(some: Int64) -> list[Encoded]:
            return [self._writer.integers("index" if kind == "module" else "step", index[some], no_index[some])]

        start = integers(spans, "start_ps")
        self._writer.slices(
            name, parent, start, integers(spans, "end_ps") - start, self._writer.names(shown), arguments
        )

    def _run_ids(self, device_id: int) -> dict[int, int]:
        """The profiler's own number for each execution on a device; hosts share these numbers."""
        run_ids = self._run.rows(f"""
            SELECT o.execution, s.int_value
            FROM main.ops AS o
            INNER JOIN main.event_stats AS s USING (run_id, event_id)
            WHERE {self._run.of_run} AND o.device_id = {device_id} AND o.line = 'XLA Modules'
              AND o.execution IS NOT NULL AND s.name = 'run_id' AND s.int_value IS NOT NULL
        """)
        return dict(run_ids)
