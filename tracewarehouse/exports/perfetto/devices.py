"""Writes the tracks of devices: their lines, and the steps, layers and collectives that ingest found."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.selected_run import SelectedRun, coded, integers, optional, stat_arguments
from tracewarehouse.exports.perfetto.wire import Encoded, Int64, joined
from tracewarehouse.ingest.columns.profiler_names import LAUNCH_LINE, MODULE_LINE
from tracewarehouse.queries.read_only import literal

Flows = Literal["none", "slow", "all"]

_DEVICES = {"tpu": "2. TPUs", "gpu": "2. GPUs", "cpu": "2. CPUs"}


class Devices:
    """The devices of a run.

    Args:
        writer: writes the trace.
        flows: which executions of collectives get arrows from rank to rank.
        first_flow: number of the first arrow.
    """

    def __init__(self, run: SelectedRun, writer: PacketWriter, flows: Flows, first_flow: int) -> None:
        self._run = run
        self._writer = writer
        self._instructions = _Instructions(run, writer)
        self._flows = flows
        self._first_flow = first_flow

    def write(self, parent: int) -> None:
        """Write all devices below a track."""
        devices = self._run.rows(
            "SELECT device_id, plane, host, upper(coalesce(backend, 'unknown')) FROM main.devices "
            f"WHERE {self._run.in_run} ORDER BY device_id"
        )
        names = [plane for _, plane, _, _ in devices]
        [(backend,)] = self._run.rows(f"SELECT backend FROM main.runs WHERE {self._run.in_run}")
        group = self._writer.track(_DEVICES.get(backend, "2. Devices"), parent)
        for device_id, plane, host, kind in devices:
            name = plane if names.count(plane) == 1 else f"/device:{kind}:{device_id}"
            track = self._writer.track(name, group, description=f"device {device_id}, on host {host}")
            self._write_device(track, device_id)
        elsewhere = f"FROM main.ops WHERE {self._run.in_selection} AND device_id IS NULL"
        for plane, host in self._run.rows(f"SELECT DISTINCT plane, host {elsewhere} ORDER BY ALL"):
            track = self._writer.track(self._run.with_host(plane, host), group)
            where = f"device_id IS NULL AND plane = {literal(plane)} AND host = {literal(host)}"
            self._write_lines(track, self._ops(where), {})

    def _write_device(self, parent: int, device_id: int) -> None:
        ops = self._ops(f"device_id = {device_id}")
        tracks = self._write_lines(parent, ops, self._run_ids(device_id))
        for name, kind in (("1. Steps", "step"), ("2. XLA Modules", "module")):
            if not any(track.startswith(name[:3]) for track in tracks):
                self._write_phases(parent, name, device_id, kind)
        self._write_name_scope(parent, ops)
        self._write_collectives(parent, device_id)

    def _ops(self, where: str) -> pa.Table:
        return self._run.arrow(
            "SELECT event_id, instruction_id, start_ps, duration_ps, phase, step, execution, iteration, "
            "is_leaf, layer "
            f"FROM (SELECT * FROM main.ops WHERE {self._run.in_selection} AND {where}) AS o "
            f"LEFT JOIN (SELECT event_id, layer FROM models.op_layers WHERE {self._run.in_run}) AS l USING (event_id) "
            "ORDER BY event_id"
        )

    def _run_ids(self, device_id: int) -> dict[int, int]:
        """The profiler's own number for each execution on a device; hosts share these numbers."""
        run_ids = self._run.rows(f"""
            SELECT o.execution, s.int_value
            FROM main.ops AS o
            INNER JOIN main.event_stats AS s USING (run_id, event_id)
            WHERE {self._run.in_run} AND o.device_id = {device_id}
              AND o.line IN ({literal(MODULE_LINE)}, {literal(LAUNCH_LINE)})
              AND o.execution IS NOT NULL AND s.name = 'run_id' AND s.int_value IS NOT NULL
        """)
        return dict(run_ids)

    def _write_lines(self, parent: int, ops: pa.Table, run_ids: dict[int, int]) -> set[str]:
        """Write the events of a device line by line; returns the names of the tracks."""
        lines = self._run.lines
        event_ids = integers(ops, "event_id")
        line = self._run.line_numbers(event_ids)
        stats = self._run.stats(event_ids)
        by_track: dict[str, list[int]] = {}
        for index in np.unique(line).tolist():
            by_track.setdefault(lines[index].track, []).append(index)
        for name in sorted(by_track, key=lambda n: (not n[:1].isdigit(), n)):
            is_here = np.isin(line, by_track[name])
            if all(lines[index].is_counter for index in by_track[name]):
                is_here &= integers(ops, "duration_ps") != 0  # samples are on the tracks of counters
            some = ops.filter(pa.array(is_here))
            if len(some):
                # modules have their run_id as a stat of their own
                self._write_events(name, parent, some, {} if name.startswith("2. ") else run_ids, stats)
        return set(by_track)

    def _write_events(self, name: str, parent: int, ops: pa.Table, run_ids: dict[int, int], stats: pa.Table) -> None:
        w = self._writer
        instructions = ops.column("instruction_id").combine_chunks()
        event_ids = integers(ops, "event_id")
        phases, phase_codes = coded(ops.column("phase"))
        phase = w.texts("phase", phases)
        step, no_step = optional(ops, "step")
        layer, no_layer = optional(ops, "layer")
        iteration, no_iteration = optional(ops, "iteration")
        execution, no_execution = optional(ops, "execution")
        run_id = np.array([run_ids.get(e, -1) for e in range(int(execution.max(initial=0)) + 1)], np.int64)[execution]
        no_run_id = no_execution | (run_id == -1)
        columns = stat_arguments(w, event_ids, stats)

        def arguments(some: Int64) -> list[Encoded]:
            place = pa.array(some)
            return [
                self._instructions.arguments.take(instructions.take(place)),
                w.integers("layer", layer[some], no_layer[some]),
                w.integers("iteration", iteration[some], no_iteration[some]),
                phase.take(phase_codes.take(place)),
                w.integers("step", step[some], no_step[some]),
                w.integers("run_id", run_id[some], no_run_id[some]),
                w.integers("event_id", event_ids[some]),
                *(column.take(place) for column in columns),
            ]

        names = self._instructions.names[integers(ops, "instruction_id")]
        w.slices(name, parent, integers(ops, "start_ps"), integers(ops, "duration_ps"), names, arguments)

    def _write_phases(self, parent: int, name: str, device_id: int, kind: str) -> None:
        """Write the steps or modules that ingest found for a device without a line of them."""
        is_selected = self._run.selection.steps("name", '"index"') if kind == "step" else "true"
        spans = self._run.arrow(
            f'SELECT name, "index", start_ps, end_ps FROM main.phases WHERE {self._run.in_hull} '
            f"AND device_id = {device_id} AND kind = {literal(kind)} AND {is_selected} "
            'ORDER BY start_ps, "index"'
        )
        texts = spans.column("name").to_pylist()
        index, no_index = optional(spans, "index")
        shown = [
            t if kind == "module" or absent else f"{i} {t or ''}".strip()
            for t, i, absent in zip(texts, index.tolist(), no_index.tolist(), strict=True)
        ]

        def arguments(some: Int64) -> list[Encoded]:
            return [self._writer.integers("index" if kind == "module" else "step", index[some], no_index[some])]

        start = integers(spans, "start_ps")
        names = self._writer.names(shown)
        self._writer.slices(name, parent, start, integers(spans, "end_ps") - start, names, arguments)

    def _write_name_scope(self, parent: int, ops: pa.Table) -> None:
        """Write a slice for each stretch of leaf ops of one layer, and in it one for each part of the model."""
        leaf = ops.filter(ops.column("is_leaf")).sort_by("start_ps")
        if not len(leaf):
            return
        layer, no_layer = optional(leaf, "layer")
        layer[no_layer] = -1
        parts, part = self._instructions.parts
        part = part[integers(leaf, "instruction_id")]
        execution, _ = optional(leaf, "execution")
        start = integers(leaf, "start_ps")
        end = start + integers(leaf, "duration_ps")
        by_layer = (np.diff(execution, prepend=-2) != 0) | (np.diff(layer, prepend=-2) != 0)
        by_part = by_layer | (np.diff(part, prepend=-2) != 0)
        stretches = []
        for is_first, scope in ((by_layer, layer), (by_part, part)):
            first = np.flatnonzero(is_first)
            stretch = np.stack([start[first], np.maximum.reduceat(end, first), scope[first], layer[first]])
            stretches.append(stretch[:, scope[first] >= 0])
        layers, layer_parts = stretches
        texts = [f"layer {number}" for number in layers[2].tolist()]
        texts += [parts[code] for code in layer_parts[2].tolist()]
        starts, ends, _, slice_layers = np.concatenate(stretches, axis=1)

        def arguments(some: Int64) -> list[Encoded]:
            return [self._writer.integers("layer", slice_layers[some], slice_layers[some] < 0)]

        names = self._writer.names(texts)
        self._writer.slices("5. Name Scope", parent, starts, ends - starts, names, arguments)

    def _write_collectives(self, parent: int, device_id: int) -> None:
        collectives = self._collectives.filter(pc.equal(self._collectives.column("device_id"), device_id))
        if not len(collectives):
            return
        group = self._writer.track("6. Collectives", parent)
        for track in sorted(set(collectives.column("track").to_pylist())):
            some = collectives.filter(pc.equal(collectives.column("track"), track))
            self._write_collective_track(track, group, some)

    def _write_collective_track(self, track: str, parent: int, collectives: pa.Table) -> None:
        w = self._writer
        texts = []
        for name in ("kind", "axis", "dtype", "phase"):
            values, codes = coded(collectives.column(name))
            texts.append((w.texts(name, values), codes))
        numbers = {
            name: optional(collectives, name)
            for name in (
                "group_size", "rank_in_group", "message_bytes", "wire_bytes", "exposed_ps", "instance", "step",
                "layer", "event_id",
            )
        }  # fmt: skip

        def arguments(some: Int64) -> list[Encoded]:
            place = pa.array(some)
            return [
                *(values.take(codes.take(place)) for values, codes in texts),
                *(w.integers(name, values[some], absent[some]) for name, (values, absent) in numbers.items()),
            ]

        start = integers(collectives, "start_ps")
        duration = integers(collectives, "end_ps") - start
        names = self._instructions.names[integers(collectives, "instruction_id")]
        instance, is_alone = numbers["instance"]
        is_linked = {"none": np.False_, "slow": collectives.column("is_slow").to_numpy(), "all": np.True_}[self._flows]
        flows = np.where(is_linked & ~is_alone, self._first_flow + instance, 0)
        w.slices(track, parent, start, duration, names, arguments, flows)

    @cached_property
    def _collectives(self) -> pa.Table:
        return self._run.arrow(
            f"SELECT * FROM macros.selected_collectives({self._run.arguments}) ORDER BY device_id, start_ps, event_id"
        )


class _Instructions:
    def __init__(self, run: SelectedRun, writer: PacketWriter) -> None:
        self._run = run
        self._writer = writer

    @cached_property
    def names(self) -> Int64:
        return self._writer.names(self._rows.column("name").to_pylist())

    @cached_property
    def parts(self) -> tuple[list[str], Int64]:
        parts, codes = coded(self._rows.column("part"))
        return parts, codes.fill_null(-1).to_numpy().copy()

    @cached_property
    def arguments(self) -> Encoded:
        """The arguments that each instruction has on every device."""
        w, instructions = self._writer, self._rows
        texts = {"hlo_category": "category", "long_name": "hlo_text", "tf_op": "op_name", "source": "source",
                 "op_class": "op_class", "part": "part", "shape_with_layout": "shape_with_layout"}  # fmt: skip
        return joined(
            *(w.texts(name, instructions.column(column).to_pylist()) for name, column in texts.items()),
            *(
                w.integers(name, *optional(instructions, name))
                for name in ("flops", "model_flops", "bytes_accessed", "program_id")
            ),
        )

    @cached_property
    def _rows(self) -> pa.Table:
        return self._run.arrow(
            "SELECT instruction_id, name, category, hlo_text, op_name, source, op_class, part, flops, model_flops, "
            "bytes_accessed, program_id, "
            # the layout of the result names its memory space too, as S(1)
            "nullif(regexp_extract(hlo_text, '^%?[^ ]+ = (.+?) [a-z][a-z0-9-]*[(]', 1), '') AS shape_with_layout "
            f"FROM main.instructions WHERE {self._run.in_run} ORDER BY instruction_id"
        )
