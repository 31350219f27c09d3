"""Says which events of a run go to which track, with which arguments.

Tracks and arguments have the names of XProf's own Perfetto export (of Megascale traces), so that PerfettoSQL that is
written for it works here: `1. Global Counters`, and below `2. TPUs` each device with `1. Steps`, `2. XLA Modules`,
`3. XLA Ops` and `4. XLA TraceMe`. Beyond those there are `5. Name Scope` (layers and parts of the model) and
`6. Collectives` (one track per kind and mesh axis) on every device, its other lines, and `3. Hosts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.wire import Encoded, joined
from tracewarehouse.ingest.columns.plane_names import CPU_PLANE, OP_LINE
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

Flows = Literal["none", "slow", "all"]
Int64 = npt.NDArray[np.int64]
Arguments = Callable[[Int64], Sequence[Encoded]]

SLOW = 1.5
"""An execution of a collective is slow if it lasts longer than this many times the median of its instruction."""
_TRACK_OF_LINE = {
    "steps": "1. Steps",
    "modules": "2. XLA Modules",
    "thread": "3. XLA Ops",
    "trace_me": "4. XLA TraceMe",
}
"""Tracks of the kinds of lines; the ops of a virtual device are on threads, and all on one track."""
_DEVICES = {"tpu": "2. TPUs", "gpu": "2. GPUs", "cpu": "2. CPUs"}
_LEFT_OUT = ("flow", "program_id", "symbol_id", "device_offset_ps", "device_duration_ps")
"""Stats that link events to each other for the profiler's own tools, or are times once more."""


@dataclass(frozen=True)
class Selection:
    """What part of a run to write: events that start in it.

    Attributes:
        start_ps: earliest start since the profile start.
        end_ps: end of the starts, exclusive.
        phase: only this phase; of threads of the host what starts between its first and its last event.
        first_step: first step; of threads of the host in the same way.
        last_step: last step, inclusive.
    """

    start_ps: int | None = None
    end_ps: int | None = None
    phase: str | None = None
    first_step: int | None = None
    last_step: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole run."""
        return self == Selection()

    def of_times(self, column: str = "start_ps") -> str:
        """SQL for the times alone."""
        terms = [f"{column} >= {self.start_ps}"] if self.start_ps is not None else []
        terms += [f"{column} < {self.end_ps}"] if self.end_ps is not None else []
        return " AND ".join(["true", *terms])

    def of_steps(self, phase: str = "phase", step: str = "step") -> str:
        """SQL for phase and steps alone."""
        terms = [f"{phase} = {literal(self.phase)}"] if self.phase is not None else []
        terms += [f"{step} >= {self.first_step}"] if self.first_step is not None else []
        terms += [f"{step} <= {self.last_step}"] if self.last_step is not None else []
        return " AND ".join(["true", *terms])


@dataclass(frozen=True)
class _Line:
    """Where the events of a line are, and the tracks that they go to: those of devices, and those of threads."""

    first_event_id: int
    track: str
    thread: str
    is_counter: bool


class RunTracks:
    """Writes the tracks of one run."""

    def __init__(
        self,
        warehouse: Warehouse,
        run_id: str,
        writer: PacketWriter,
        selection: Selection,
        flows: Flows,
        first_flow: int,
    ) -> None:
        self._warehouse = warehouse
        self._run_id = run_id
        self._writer = writer
        self._selection = selection
        self._flows = flows
        self._first_flow = first_flow

    def write(self, parent: int) -> None:
        """Write all tracks below a track, or at the top if `parent` is 0.

        Raises:
            TracewarehouseError: nothing of the run is selected.
            WarehouseError: the run cannot be read.
        """
        start, _ = self._hull
        self._writer.origin_ps = start
        self._write_counters(parent)
        self._write_devices(parent)
        self._write_hosts(parent)

    @cached_property
    def _hull(self) -> tuple[int, int]:
        """First start and last end of what is selected; of the whole run at most 0 and the last end."""
        ops = f"{self._of_run} AND {self._selection.of_times()} AND {self._selection.of_steps()}"
        steps = (
            f"{self._of_run} AND kind = 'step' AND device_id IS NOT NULL AND {self._selection.of_times()} "
            f"AND {self._selection.of_steps('name', chr(34) + 'index' + chr(34))}"
        )
        parts = [
            f"SELECT min(start_ps) AS start_ps, max(start_ps + duration_ps) AS end_ps FROM main.ops WHERE {ops}",
            f"SELECT min(start_ps), max(end_ps) FROM main.phases WHERE {steps}",
        ]
        if self._selection.of_steps() == "true":
            hosts = f"{self._of_run} AND {self._selection.of_times()}"
            parts.append(f"SELECT min(start_ps), max(start_ps + duration_ps) FROM main.host_events WHERE {hosts}")
        [(start, end)] = self._rows(f"SELECT min(start_ps), max(end_ps) FROM ({' UNION ALL '.join(parts)})")
        if start is None:
            raise TracewarehouseError(f"run {self._run_id} has no event in what is selected; {self._there_is()}")
        return (min(0, start) if self._selection.is_whole else start), end

    def _there_is(self) -> str:
        [(first, last, phases, end)] = self._rows(
            "SELECT min(step), max(step), string_agg(DISTINCT phase, ', ' ORDER BY phase), "
            f"max(start_ps + duration_ps) FROM main.ops WHERE {self._of_run}"
        )
        steps = "no steps" if first is None else f"steps {first} to {last}"
        lasts = "" if end is None else f", and its ops end at {end / 1e9:.3f} ms"
        return f"it has {steps}, {'no phases' if phases is None else 'phases ' + phases}{lasts}"

    # counters

    def _write_counters(self, parent: int) -> None:
        in_flight = self._arrow(f"""
            WITH ranks AS (
              SELECT coalesce(instance, -1 - event_id) AS instance, start_ps, end_ps, coalesce(wire_bytes, 0) AS bytes
              FROM main.collectives
              WHERE {self._of_run} AND {self._selection.of_times()} AND {self._selection.of_steps()}
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
        counters = self._arrow(f"""
            SELECT plane, host, name, start_ps, value
            FROM main.counters
            WHERE {self._of_run} AND value IS NOT NULL AND {self._within()}
            ORDER BY host, plane, name, start_ps
        """)
        if not len(in_flight) and not len(counters):
            return
        group = self._writer.track("1. Global Counters", parent)
        if len(in_flight):
            collectives = self._writer.track("Collectives", group)
            for name, unit, column in (
                ("In-flight collectives", "count", "collectives"),
                ("In-flight bytes", "bytes", "bytes"),
            ):
                track = self._writer.counter_track(name, collectives, unit, column)
                self._writer.samples(track, _integers(in_flight, "start_ps"), _integers(in_flight, column))
        places = counters.select(["host", "plane", "name"]).to_pylist()
        groups: dict[tuple[str, str], int] = {}
        firsts = [i for i, place in enumerate(places) if i == 0 or place != places[i - 1]]
        for first, last in pairwise([*firsts, len(places)]):
            place = places[first]
            where = place["host"], place["plane"]
            if where not in groups:
                groups[where] = self._writer.track(self._with_host(place["plane"], place["host"]), group)
            some = counters.slice(first, last - first)
            track = self._writer.counter_track(place["name"], groups[where], "", place["name"])
            self._writer.samples(track, _integers(some, "start_ps"), some.column("value").to_numpy())

    # devices

    def _write_devices(self, parent: int) -> None:
        devices = self._rows(
            "SELECT device_id, plane, host, upper(coalesce(backend, 'unknown')) FROM main.devices "
            f"WHERE {self._of_run} ORDER BY device_id"
        )
        names = [plane for _, plane, _, _ in devices]
        [(backend,)] = self._rows(f"SELECT backend FROM main.runs WHERE {self._of_run}")
        group = self._writer.track(_DEVICES.get(backend, "2. Devices"), parent)
        for device_id, plane, host, kind in devices:
            name = plane if names.count(plane) == 1 else f"/device:{kind}:{device_id}"
            track = self._writer.track(name, group, description=f"device {device_id}, on host {host}")
            self._write_device(track, device_id)
        for plane, host in self._rows(
            f"SELECT DISTINCT plane, host FROM main.ops WHERE {self._of_ops} AND device_id IS NULL ORDER BY ALL"
        ):
            track = self._writer.track(self._with_host(plane, host), group)
            where = f"device_id IS NULL AND plane = {literal(plane)} AND host = {literal(host)}"
            self._write_lines(track, self._ops(where), self._instruction_arguments(None), {})

    def _write_device(self, parent: int, device_id: int) -> None:
        where = f"device_id = {device_id}"
        ops = self._ops(where)
        tracks = self._write_lines(parent, ops, self._instruction_arguments(device_id), self._run_ids(device_id))
        for name, kind in (("1. Steps", "step"), ("2. XLA Modules", "module")):
            if name not in tracks:
                self._write_phases(parent, name, device_id, kind)
        self._write_name_scope(parent, ops, device_id)
        self._write_collectives(parent, device_id)

    def _ops(self, where: str) -> pa.Table:
        return self._arrow(f"""
            SELECT event_id, instruction_id, start_ps, duration_ps, phase, step, execution, is_leaf
            FROM main.ops
            WHERE {self._of_ops} AND {where}
            ORDER BY event_id
        """)

    def _write_lines(self, parent: int, ops: pa.Table, of_instructions: Encoded, run_ids: dict[int, int]) -> set[str]:
        """Write the events of a device line by line; returns the names of the tracks."""
        lines = self._lines
        event_ids = _integers(ops, "event_id")
        line = self._line_of(event_ids)
        stats = self._stats(event_ids)
        by_track: dict[str, list[int]] = {}
        for index in np.unique(line).tolist():
            by_track.setdefault(lines[index].track, []).append(index)
        for name in sorted(by_track, key=lambda n: (not n[:1].isdigit(), n)):
            is_here = np.isin(line, by_track[name])
            if all(lines[index].is_counter for index in by_track[name]):
                is_here &= _integers(ops, "duration_ps") != 0  # the samples are counters
            some = ops.filter(pa.array(is_here))
            if len(some):
                self._write_events(name, parent, some, of_instructions, run_ids, _of_events(stats, some))
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
        event_ids = _integers(ops, "event_id")
        phases, phase_codes = _coded(ops.column("phase"))
        phase = w.texts("phase", phases)
        step, no_step = _optional(ops, "step")
        execution, no_execution = _optional(ops, "execution")
        run_id = np.array([run_ids.get(e, -1) for e in range(int(execution.max(initial=0)) + 1)], np.int64)[execution]
        no_run_id = no_execution | (run_id == -1)
        if name == "2. XLA Modules":  # has it as a stat of its own
            no_run_id[:] = True
        of_stats = self._stat_arguments(event_ids, stats)

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

        names = self._instruction_names[_integers(ops, "instruction_id")]
        w.slices(name, parent, _integers(ops, "start_ps"), _integers(ops, "duration_ps"), names, arguments)

    def _stats(self, event_ids: Int64) -> pa.Table:
        """The stats of events that have no column."""
        left_out = ", ".join(map(literal, _LEFT_OUT))
        low, high = (int(event_ids[0]), int(event_ids[-1])) if len(event_ids) else (0, -1)
        return self._arrow(f"""
            SELECT event_id, name, int_value, coalesce(string_value, CAST(double_value AS VARCHAR)) AS text
            FROM main.event_stats
            WHERE {self._of_run} AND event_id >= {low} AND event_id <= {high} AND kind <> 'bytes'
              AND name NOT IN ({left_out}) AND name NOT LIKE '\\_%' ESCAPE '\\'
            ORDER BY event_id, name
        """)

    def _stat_arguments(self, event_ids: Int64, stats: pa.Table) -> list[Encoded]:
        """Stats as arguments of the events; one array per stat."""
        of_event = _integers(stats, "event_id")
        place = np.searchsorted(event_ids, of_event)
        place[place == len(event_ids)] = 0
        of_events = stats.append_column("place", pa.array(place)).filter(pa.array(event_ids[place] == of_event))
        columns = []
        for name in pc.unique(of_events.column("name")).to_pylist():
            some = of_events.filter(pc.equal(of_events.column("name"), name))
            value, is_text = _optional(some, "int_value")
            texts = self._writer.texts(name, some.column("text").to_pylist())
            integers = self._writer.integers(name, value, is_text)
            where = np.full(len(event_ids), -1, np.int64)
            where[_integers(some, "place")] = np.arange(len(some))
            columns.append(pc.coalesce(integers, texts).take(pa.array(where, mask=where < 0)))
        return columns

    def _write_phases(self, parent: int, name: str, device_id: int, kind: str) -> None:
        """Steps or modules of a device that has no line of them: those that ingest found."""
        is_selected = self._selection.of_steps("name", '"index"') if kind == "step" else "true"
        spans = self._arrow(f"""
            SELECT name, "index", start_ps, end_ps
            FROM main.phases
            WHERE {self._of_run} AND device_id = {device_id} AND kind = {literal(kind)} AND {self._within()}
              AND {is_selected}
            ORDER BY start_ps, "index"
        """)
        texts = spans.column("name").to_pylist()
        index, no_index = _optional(spans, "index")
        shown = [
            t if kind == "module" or absent else f"{i} {t or ''}".strip()
            for t, i, absent in zip(texts, index.tolist(), no_index.tolist(), strict=True)
        ]

        def arguments(some: Int64) -> list[Encoded]:
            return [self._writer.integers("index" if kind == "module" else "step", index[some], no_index[some])]

        start = _integers(spans, "start_ps")
        self._writer.slices(
            name, parent, start, _integers(spans, "end_ps") - start, self._writer.names(shown), arguments
        )

    def _write_name_scope(self, parent: int, ops: pa.Table, device_id: int) -> None:
        """A slice for each stretch of leaf ops of one layer, and in it one for each part of the model."""
        leaf = ops.filter(ops.column("is_leaf")).sort_by("start_ps")
        if not len(leaf):
            return
        layer_of, parts, part_of = self._scopes(device_id)
        instructions = _integers(leaf, "instruction_id")
        layer, part = layer_of[instructions], part_of[instructions]
        execution, _ = _optional(leaf, "execution")
        start = _integers(leaf, "start_ps")
        end = start + _integers(leaf, "duration_ps")
        by_layer = (np.diff(execution, prepend=-2) != 0) | (np.diff(layer, prepend=-2) != 0)
        by_part = by_layer | (np.diff(part, prepend=-2) != 0)
        stretches = []
        for is_first, scope in ((by_layer, layer), (by_part, part)):
            first = np.flatnonzero(is_first)
            stretch = np.stack([start[first], np.maximum.reduceat(end, first), scope[first], layer[first]])
            stretches.append(stretch[:, scope[first] >= 0])
        layers, parts_of_layers = stretches
        texts = [f"layer {number}" for number in layers[2].tolist()] + [
            parts[code] for code in parts_of_layers[2].tolist()
        ]
        starts, ends, _, of_layer = np.concatenate(stretches, axis=1)

        def arguments(some: Int64) -> list[Encoded]:
            return [self._writer.integers("layer", of_layer[some], of_layer[some] < 0)]

        self._writer.slices("5. Name Scope", parent, starts, ends - starts, self._writer.names(texts), arguments)

    def _scopes(self, device_id: int) -> tuple[Int64, list[str], Int64]:
        """Layer of each instruction on a device, the parts, and which of them it is; -1 for none."""
        instructions = self._arrow(
            f"SELECT instruction_id, layer, part FROM models.instruction_layers WHERE {self._of_run} "
            f"AND device_id = {device_id} ORDER BY instruction_id"
        )
        layer = np.full(len(self._instruction_names), -1, np.int64)
        part = layer.copy()
        numbers, no_layer = _optional(instructions, "layer")
        where = _integers(instructions, "instruction_id")
        layer[where] = np.where(no_layer, -1, numbers)
        parts, codes = _coded(instructions.column("part"))
        part[where] = codes.fill_null(-1).to_numpy()
        return layer, parts, part

    def _write_collectives(self, parent: int, device_id: int) -> None:
        collectives = self._collectives
        collectives = collectives.filter(pc.equal(collectives.column("device_id"), device_id))
        if not len(collectives):
            return
        group = self._writer.track("6. Collectives", parent)
        for track in sorted(set(collectives.column("track").to_pylist())):
            self._write_collectives_of(track, group, collectives.filter(pc.equal(collectives.column("track"), track)))

    def _write_collectives_of(self, track: str, parent: int, collectives: pa.Table) -> None:
        w = self._writer
        texts = []
        for name in ("kind", "axis", "dtype", "phase"):
            values, codes = _coded(collectives.column(name))
            texts.append((w.texts(name, values), codes))
        numbers = {
            name: _optional(collectives, name)
            for name in (
                "group_size", "rank_in_group", "message_bytes", "wire_bytes", "exposed_ps", "instance", "step",
                "event_id",
            )
        }  # fmt: skip

        def arguments(some: Int64) -> list[Encoded]:
            place = pa.array(some)
            return [
                *(values.take(codes.take(place)) for values, codes in texts),
                *(w.integers(name, values[some], absent[some]) for name, (values, absent) in numbers.items()),
            ]

        start = _integers(collectives, "start_ps")
        w.slices(
            track,
            parent,
            start,
            _integers(collectives, "end_ps") - start,
            self._instruction_names[_integers(collectives, "instruction_id")],
            arguments,
            _integers(collectives, "flow"),
        )

    @cached_property
    def _collectives(self) -> pa.Table:
        is_linked = {"none": "false", "slow": f"i.last_ps > {SLOW} * m.last_ps", "all": "true"}[self._flows]
        return self._arrow(f"""
            WITH ranks AS (
              SELECT *
              FROM main.collectives
              WHERE {self._of_run} AND {self._selection.of_times()} AND {self._selection.of_steps()}
            ),
            instances AS (
              SELECT instance, min(instruction_id) AS instruction_id, max(end_ps) - min(start_ps) AS last_ps
              FROM ranks
              GROUP BY instance
              HAVING count(*) > 1 AND instance IS NOT NULL
            ),
            medians AS (SELECT instruction_id, median(last_ps) AS last_ps FROM instances GROUP BY instruction_id)
            SELECT
              r.event_id, r.device_id, r.instruction_id, r.instance, r.kind, r.axis, r.group_size, r.rank_in_group,
              r.message_bytes, r.wire_bytes, r.exposed_ps, r.dtype, r.phase, r.step, r.start_ps, r.end_ps,
              concat_ws(' ', r.kind, r.axis) AS track,
              CAST(CASE WHEN {is_linked} THEN {self._first_flow} + r.instance ELSE 0 END AS BIGINT) AS flow
            FROM ranks AS r
            LEFT JOIN instances AS i USING (instance)
            LEFT JOIN medians AS m ON m.instruction_id = i.instruction_id
            ORDER BY r.device_id, r.start_ps, r.event_id
        """)

    # instructions

    @cached_property
    def _instructions(self) -> pa.Table:
        """The instructions, each at the place of its number."""
        return self._arrow(f"""
            SELECT
              instruction_id, name, category, hlo_text, op_name, source, op_class, flops, model_flops, bytes_accessed
            FROM main.instructions
            WHERE {self._of_run}
            ORDER BY instruction_id
        """)

    @cached_property
    def _instruction_names(self) -> Int64:
        return self._writer.names(self._instructions.column("name").to_pylist())

    @cached_property
    def _described(self) -> Encoded:
        """The arguments that an instruction has on every device."""
        w, instructions = self._writer, self._instructions
        texts = {"hlo_category": "category", "long_name": "hlo_text", "tf_op": "op_name", "source": "source",
                 "op_class": "op_class"}  # fmt: skip
        return joined(
            *(w.texts(name, instructions.column(column).to_pylist()) for name, column in texts.items()),
            *(w.integers(name, *_optional(instructions, name)) for name in ("flops", "model_flops", "bytes_accessed")),
        )

    def _instruction_arguments(self, device_id: int | None) -> Encoded:
        """The arguments of each instruction on a device."""
        if device_id is None:
            return self._described
        layer, parts, part = self._scopes(device_id)
        of_part = self._writer.texts("part", parts)
        return joined(
            self._described,
            self._writer.integers("layer", layer, layer < 0),
            of_part.take(pa.array(part, mask=part < 0)),
        )

    def _run_ids(self, device_id: int) -> dict[int, int]:
        """The profiler's own number of each execution on a device, which hosts share."""
        run_ids = self._rows(f"""
            SELECT o.execution, s.int_value
            FROM main.ops AS o
            INNER JOIN main.event_stats AS s USING (run_id, event_id)
            WHERE {self._of_run} AND o.device_id = {device_id} AND o.line = 'XLA Modules' AND o.execution IS NOT NULL
              AND s.name = 'run_id' AND s.int_value IS NOT NULL
        """)
        return dict(run_ids)

    # hosts

    def _write_hosts(self, parent: int) -> None:
        hosts = self._rows(f"SELECT host FROM main.hosts WHERE {self._of_run} ORDER BY host_index")
        group = 0
        for (host,) in hosts:
            events = self._arrow(f"""
                SELECT event_id, name, start_ps, duration_ps
                FROM main.host_events
                WHERE {self._of_run} AND {self._within()} AND host = {literal(host)}
                ORDER BY event_id
            """)
            if not len(events):
                continue
            group = group or self._writer.track("3. Hosts", parent)
            of_host = self._writer.track(host, group)
            event_ids = _integers(events, "event_id")
            stats = self._stats(event_ids)
            line = self._line_of(event_ids)
            firsts = np.flatnonzero(np.diff(line, prepend=-1))
            for first, last in pairwise([*firsts.tolist(), len(line)]):
                some = events.slice(first, last - first)
                self._write_thread(self._lines[line[first]].thread, of_host, some, _of_events(stats, some))

    def _write_thread(self, name: str, parent: int, events: pa.Table, stats: pa.Table) -> None:
        event_ids = _integers(events, "event_id")
        texts, codes = _coded(events.column("name"))
        of_stats = self._stat_arguments(event_ids, stats)

        def arguments(some: Int64) -> list[Encoded]:
            return [
                self._writer.integers("event_id", event_ids[some]),
                *(stat.take(pa.array(some)) for stat in of_stats),
            ]

        self._writer.slices(
            name,
            parent,
            _integers(events, "start_ps"),
            _integers(events, "duration_ps"),
            self._writer.names(texts)[codes.to_numpy()],
            arguments,
        )

    # the run

    @cached_property
    def _lines(self) -> list[_Line]:
        """The lines in the order of their events; empty ones have none."""
        rows = self._rows(
            f"SELECT first_event_id, line, kind, plane FROM main.lines WHERE {self._of_run} AND event_count > 0 "
            "ORDER BY first_event_id"
        )
        lines = []
        for first, line, kind, plane in rows:
            is_tpu_ops = kind == "ops" and line == OP_LINE
            track = "3. XLA Ops" if is_tpu_ops else _TRACK_OF_LINE.get(kind, line)
            thread = line if plane == CPU_PLANE else f"{plane} {line}"
            lines.append(_Line(first, track, thread, kind == "counters"))
        return lines

    def _line_of(self, event_ids: Int64) -> Int64:
        """Position in `_lines` of the line of each event."""
        firsts = np.array([line.first_event_id for line in self._lines], np.int64)
        return np.searchsorted(firsts, event_ids, side="right") - 1

    @cached_property
    def _has_several_hosts(self) -> bool:
        return len(self._rows(f"SELECT host FROM main.hosts WHERE {self._of_run}")) > 1

    def _with_host(self, plane: str, host: str) -> str:
        return f"{host} {plane}" if self._has_several_hosts else plane

    @property
    def _of_run(self) -> str:
        return f"run_id = {literal(self._run_id)}"

    @property
    def _of_ops(self) -> str:
        return f"{self._of_run} AND {self._selection.of_times()} AND {self._selection.of_steps()}"

    def _within(self) -> str:
        """SQL for what starts in the selected times, where it has no phase or step."""
        if self._selection.is_whole:
            return "true"
        start, end = self._hull
        return f"start_ps >= {start} AND start_ps < {end} AND {self._selection.of_times()}"

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self._warehouse.query(sql).rows()

    def _arrow(self, sql: str) -> pa.Table:
        return self._warehouse.query(sql).arrow()


def _integers(table: pa.Table, column: str) -> Int64:
    values: Int64 = table.column(column).to_numpy().astype(np.int64, copy=False)
    return values


def _of_events(stats: pa.Table, events: pa.Table) -> pa.Table:
    """The stats, ordered by event, of these events and of those between them."""
    event_ids = _integers(events, "event_id")
    low, high = np.searchsorted(_integers(stats, "event_id"), [event_ids[0], event_ids[-1] + 1])
    return stats.slice(low, high - low)


def _optional(table: pa.Table, column: str) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A column of integers, 0 where it is NULL, and where that is."""
    values = table.column(column)
    filled: Int64 = pc.fill_null(values, 0).to_numpy().astype(np.int64, copy=False)
    return filled, np.array(values.is_null().to_numpy(), bool)


def _coded(column: pa.ChunkedArray) -> tuple[list[str], pa.Array]:
    """The texts of a column, and for each row which of them it has; NULL for none."""
    coded = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
    if isinstance(coded, pa.ChunkedArray):  # a column without rows
        coded = pa.array([], pa.string()).dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.cast(pa.int64())
