"""Asks for the selected rows of one run, and turns their columns into arrays and arguments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.packets import PacketWriter
from tracewarehouse.exports.perfetto.wire import Encoded, Int64
from tracewarehouse.ingest.columns.profiler_names import CPU_PLANE, LAUNCH_LINE, OP_LINE
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_TRACK_OF_LINE = {
    "steps": "1. Steps",
    "modules": "2. XLA Modules",
    "thread": "3. XLA Ops",
    "trace_me": "4. XLA TraceMe",
}
"""The track of each kind of line; the ops of a virtual device are on several threads, which share one track."""
_UNSHOWN_STATS = ", ".join(map(literal, ("flow", "program_id", "symbol_id", "device_offset_ps", "device_duration_ps")))
"""Stats that link events to each other for the profiler's own tools, or repeat times."""


@dataclass(frozen=True)
class Selection:
    """The part of a run to write: the events that start in it.

    Attributes:
        start_ps: earliest start since the profile start.
        end_ps: end of the starts, exclusive.
        phase: only this phase; on threads of the host, events that start between its first and its last event.
        first_step: first step; on threads of the host, in the same way.
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

    @property
    def times(self) -> str:
        """SQL condition on the start."""
        terms = [f"start_ps >= {self.start_ps}"] if self.start_ps is not None else []
        terms += [f"start_ps < {self.end_ps}"] if self.end_ps is not None else []
        return " AND ".join(["true", *terms])

    @property
    def bounds(self) -> str:
        """The selection as the arguments of macros, after the run."""
        bounds = (self.start_ps, self.end_ps, self.phase, self.first_step, self.last_step)
        return ", ".join("NULL" if bound is None else literal(bound) for bound in bounds)

    def steps(self, phase: str = "phase", step: str = "step") -> str:
        """SQL condition on the columns of phase and step."""
        terms = [f"{phase} = {literal(self.phase)}"] if self.phase is not None else []
        terms += [f"{step} >= {self.first_step}"] if self.first_step is not None else []
        terms += [f"{step} <= {self.last_step}"] if self.last_step is not None else []
        return " AND ".join(["true", *terms])


@dataclass(frozen=True)
class Line:
    """The place of a line's events in the run, and the names of its track on a device and as a thread."""

    first_event_id: int
    track: str
    thread: str
    is_counter: bool


class SelectedRun:
    """The selected part of one run.

    Attributes:
        in_run: SQL condition for all rows of the run.
        in_selection: SQL condition for the selected rows of a table with phases and steps.
        arguments: the run and the part as the arguments of macros.
    """

    def __init__(self, warehouse: Warehouse, run_id: str, selection: Selection) -> None:
        self._warehouse = warehouse
        self._run_id = run_id
        self.selection = selection
        self.in_run = f"run_id = {literal(run_id)}"
        self.arguments = f"{literal(run_id)}, {selection.bounds}"
        self.in_selection = f"{self.in_run} AND {selection.times} AND {selection.steps()}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._warehouse.query(sql).rows()

    def arrow(self, sql: str) -> pa.Table:
        """The rows of a query as a table."""
        return self._warehouse.query(sql).arrow()

    @cached_property
    def hull(self) -> tuple[int, int]:
        """First start and last end of the selected events; for the whole run, the start is at most 0."""
        steps = (
            f"{self.in_run} AND kind = 'step' AND device_id IS NOT NULL AND {self.selection.times} "
            f"AND {self.selection.steps('name', chr(34) + 'index' + chr(34))}"
        )
        parts = [
            "SELECT min(start_ps) AS start_ps, max(start_ps + duration_ps) AS end_ps "
            f"FROM main.ops WHERE {self.in_selection}",
            f"SELECT min(start_ps), max(end_ps) FROM main.phases WHERE {steps}",
        ]
        if self.selection.steps() == "true":
            hosts = f"{self.in_run} AND {self.selection.times}"
            parts.append(f"SELECT min(start_ps), max(start_ps + duration_ps) FROM main.host_events WHERE {hosts}")
        [(start, end)] = self.rows(f"SELECT min(start_ps), max(end_ps) FROM ({' UNION ALL '.join(parts)})")
        if start is None:
            raise TracewarehouseError(f"run {self._run_id} has no event in the selection; {self._there_is()}")
        return (min(0, start) if self.selection.is_whole else start), end

    def _there_is(self) -> str:
        [(first, last, phases, end)] = self.rows(
            "SELECT min(step), max(step), string_agg(DISTINCT phase, ', ' ORDER BY phase), "
            f"max(start_ps + duration_ps) FROM main.ops WHERE {self.in_run}"
        )
        steps = "no steps" if first is None else f"steps {first} to {last}"
        lasts = "" if end is None else f", and its ops end at {end / 1e9:.3f} ms"
        return f"it has {steps}, {'no phases' if phases is None else 'phases ' + phases}{lasts}"

    @property
    def in_hull(self) -> str:
        """SQL condition for the selected rows of a table without phases and steps."""
        if self.selection.is_whole:
            return self.in_run
        start, end = self.hull
        return f"{self.in_run} AND start_ps >= {start} AND start_ps < {end} AND {self.selection.times}"

    @cached_property
    def lines(self) -> list[Line]:
        """The lines in the order of their events, without empty ones."""
        rows = self.rows(
            f"SELECT first_event_id, line, kind, plane FROM main.lines WHERE {self.in_run} AND event_count > 0 "
            "ORDER BY first_event_id"
        )
        lines = []
        for first, line, kind, plane in rows:
            is_tpu_ops = kind == "ops" and line == OP_LINE
            track = "3. XLA Ops" if is_tpu_ops else _TRACK_OF_LINE.get(kind, line)
            track = f"2. {LAUNCH_LINE}" if line == LAUNCH_LINE else track
            thread = line if plane == CPU_PLANE else f"{plane} {line}"
            lines.append(Line(first, track, thread, kind == "counters"))
        return lines

    def line_numbers(self, event_ids: Int64) -> Int64:
        """Position in `lines` of the line of each event."""
        firsts = np.array([line.first_event_id for line in self.lines], np.int64)
        return np.searchsorted(firsts, event_ids, side="right") - 1

    def with_host(self, plane: str, host: str) -> str:
        """The name of a plane, with its host if the run has several, or if the host says that it is predicted."""
        return f"{host} {plane}" if len(self.hosts) > 1 or self.is_predicted else plane

    @cached_property
    def is_predicted(self) -> bool:
        """Whether the run is predicted."""
        return bool(self.rows(f"SELECT 1 FROM main.runs WHERE {self.in_run} AND origin = 'predicted'"))

    @cached_property
    def hosts(self) -> list[str]:
        """The names of the hosts, in order."""
        return [host for (host,) in self.rows(f"SELECT host FROM main.hosts WHERE {self.in_run} ORDER BY host_index")]

    def stats(self, event_ids: Int64) -> pa.Table:
        """The stats of these events, which are in order, that have no column of their own."""
        low, high = (int(event_ids[0]), int(event_ids[-1])) if len(event_ids) else (0, -1)
        return self.arrow(f"""
            SELECT event_id, name, int_value, coalesce(string_value, CAST(double_value AS VARCHAR)) AS text
            FROM main.event_stats
            WHERE {self.in_run} AND event_id >= {low} AND event_id <= {high} AND kind <> 'bytes'
              AND name NOT IN ({_UNSHOWN_STATS}) AND name NOT LIKE '\\_%' ESCAPE '\\'
            ORDER BY event_id, name
        """)


def stat_arguments(writer: PacketWriter, event_ids: Int64, stats: pa.Table) -> list[Encoded]:
    """Those of the stats that belong to the events, as arguments of these, in one array per stat."""
    low, high = np.searchsorted(integers(stats, "event_id"), [event_ids[0], event_ids[-1] + 1])
    stats = stats.slice(low, high - low)
    owners = integers(stats, "event_id")
    place = np.searchsorted(event_ids, owners)
    place[place == len(event_ids)] = 0
    placed = stats.append_column("place", pa.array(place)).filter(pa.array(event_ids[place] == owners))
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


def integers(table: pa.Table, column: str) -> Int64:
    """A column of integers without NULL."""
    values: Int64 = table.column(column).to_numpy().astype(np.int64, copy=False)
    return values


def optional(table: pa.Table, column: str) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A column of integers, with 0 for NULL, and a mask that is true where it is NULL."""
    values = table.column(column)
    filled: Int64 = pc.fill_null(values, 0).to_numpy().astype(np.int64, copy=False)
    return filled, np.array(values.is_null().to_numpy(), bool)


def coded(column: pa.ChunkedArray) -> tuple[list[str], pa.Array]:
    """The distinct texts of a column, and for each row the index of its text; NULL for none."""
    found = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # a column without rows
        found = pa.array([], pa.string()).dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.cast(pa.int64())
