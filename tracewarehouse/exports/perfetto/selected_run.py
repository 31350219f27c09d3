"""Queries the selected rows of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tracewarehouse.exports.perfetto.lanes import Int64
from tracewarehouse.exports.perfetto.selection import Selection
from tracewarehouse.ingest.columns.profiler_names import CPU_PLANE, OP_LINE
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


@dataclass(frozen=True)
class Line:
    """The place of a line's events in the run, and the names of its track on a device and as a thread."""

    first_event_id: int
    track: str
    thread: str
    is_counter: bool


class SelectedRun:
    """The selected part of one run.

    Args:
        warehouse: the warehouse.
        run_id: the run.
        selection: the part.

    Attributes:
        selection: the part.
        of_run: SQL condition for all rows of the run.
        of_ops: SQL condition for the selected rows of a table with phases and steps.
    """

    def __init__(self, warehouse: Warehouse, run_id: str, selection: Selection) -> None:
        self._warehouse = warehouse
        self._run_id = run_id
        self.selection = selection
        self.of_run = f"run_id = {literal(run_id)}"
        self.of_ops = f"{self.of_run} AND {selection.of_times()} AND {selection.of_steps()}"

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._warehouse.query(sql).rows()

    def arrow(self, sql: str) -> pa.Table:
        """The rows of a query as a table."""
        return self._warehouse.query(sql).arrow()

    @cached_property
    def hull(self) -> tuple[int, int]:
        """First start and last end of the selected events; for the whole run, the start is at most 0.

        Raises:
            TracewarehouseError: no event of the run is selected.
        """
        steps = (
            f"{self.of_run} AND kind = 'step' AND device_id IS NOT NULL AND {self.selection.of_times()} "
            f"AND {self.selection.of_steps('name', chr(34) + 'index' + chr(34))}"
        )
        parts = [
            "SELECT min(start_ps) AS start_ps, max(start_ps + duration_ps) AS end_ps "
            f"FROM main.ops WHERE {self.of_ops}",
            f"SELECT min(start_ps), max(end_ps) FROM main.phases WHERE {steps}",
        ]
        if self.selection.of_steps() == "true":
            hosts = f"{self.of_run} AND {self.selection.of_times()}"
            parts.append(f"SELECT min(start_ps), max(start_ps + duration_ps) FROM main.host_events WHERE {hosts}")
        [(start, end)] = self.rows(f"SELECT min(start_ps), max(end_ps) FROM ({' UNION ALL '.join(parts)})")
        if start is None:
            raise TracewarehouseError(f"run {self._run_id} has no event in the selection; {self._there_is()}")
        return (min(0, start) if self.selection.is_whole else start), end

    def _there_is(self) -> str:
        [(first, last, phases, end)] = self.rows(
            "SELECT min(step), max(step), string_agg(DISTINCT phase, ', ' ORDER BY phase), "
            f"max(start_ps + duration_ps) FROM main.ops WHERE {self.of_run}"
        )
        steps = "no steps" if first is None else f"steps {first} to {last}"
        lasts = "" if end is None else f", and its ops end at {end / 1e9:.3f} ms"
        return f"it has {steps}, {'no phases' if phases is None else 'phases ' + phases}{lasts}"

    def within(self) -> str:
        """SQL condition for the selected rows of a table without phases and steps."""
        if self.selection.is_whole:
            return "true"
        start, end = self.hull
        return f"start_ps >= {start} AND start_ps < {end} AND {self.selection.of_times()}"

    @cached_property
    def lines(self) -> list[Line]:
        """The lines in the order of their events, without empty ones."""
        rows = self.rows(
            f"SELECT first_event_id, line, kind, plane FROM main.lines WHERE {self.of_run} AND event_count > 0 "
            "ORDER BY first_event_id"
        )
        lines = []
        for first, line, kind, plane in rows:
            is_tpu_ops = kind == "ops" and line == OP_LINE
            track = "3. XLA Ops" if is_tpu_ops else _TRACK_OF_LINE.get(kind, line)
            thread = line if plane == CPU_PLANE else f"{plane} {line}"
            lines.append(Line(first, track, thread, kind == "counters"))
        return lines

    def line_of(self, event_ids: Int64) -> Int64:
        """Position in `lines` of the line of each event."""
        firsts = np.array([line.first_event_id for line in self.lines], np.int64)
        return np.searchsorted(firsts, event_ids, side="right") - 1

    def with_host(self, plane: str, host: str) -> str:
        """The name of a plane, with its host if the run has several."""
        return f"{host} {plane}" if self._has_several_hosts else plane

    @cached_property
    def _has_several_hosts(self) -> bool:
        return len(self.rows(f"SELECT host FROM main.hosts WHERE {self.of_run}")) > 1
