"""Writes the events of device lines as main.ops: nested, attributed to execution, step and phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest.collectives import AsyncSpans, CollectiveOps
from ingest.event_stream import chunks
from ingest.instructions import Instructions
from ingest.nesting import nest
from ingest.parquet import Coded, TableWriter
from ingest.records import EventBatch, Int32, Int64, StatColumn, integers
from ingest.stat_rows import write_event_stats
from ingest.timeline import PHASES, Timeline

ASYNC_LINE = "Async XLA Ops"
COUNTER_LINE = "_counters_"
_OWN_COLUMN = frozenset({"device_offset_ps", "device_duration_ps"})


@dataclass(frozen=True)
class DeviceLine:
    """Where a device line's events belong."""

    host: str
    plane: str
    line: str
    device_id: int | None
    first_event_id: int
    is_op_line: bool
    clock_offset_ps: int = 0


@dataclass
class OpColumns:
    """Events of one device line; arrays of shape (n,)."""

    row: Int64
    """Position on the line, in file order."""
    instruction_id: Int32
    start_ps: Int64
    duration_ps: Int64
    execution: Int32
    step: Int32
    phase: Int32
    stats: list[StatColumn] = field(default_factory=list)


class OpWriter:
    """Writes device lines one after the other and keeps what the collectives are built from."""

    def __init__(self, ops: TableWriter, stats: TableWriter, counters: TableWriter, instructions: Instructions) -> None:
        self._ops, self._stats, self._counters = ops, stats, counters
        self._instructions = instructions
        self.collective_ops: list[CollectiveOps] = []
        self.async_spans: dict[int, list[AsyncSpans]] = {}
        self.last_end_ps = 0

    def write_line(self, line: DeviceLine, batches: Iterable[EventBatch], of_row: Int32, timeline: Timeline) -> int:
        """Write a whole line whose instructions follow from event metadata; returns its number of events."""
        count = 0
        for first, batch in chunks(batches):
            n = len(batch)
            start = batch.start_ps + line.clock_offset_ps
            execution = timeline.executions_at(start)
            step, phase = timeline.steps_at(start)
            instruction = of_row[batch.metadata]
            if line.is_op_line:
                self._assign_programs(instruction, execution, timeline)
            if line.line == COUNTER_LINE:
                self._write_counters(line, first, batch, instruction)
            rows = np.arange(first, first + n)
            self.write(
                line, OpColumns(rows, instruction, start, batch.duration_ps, execution, step, phase, list(batch.stats))
            )
            count = first + n
        return count

    def write(self, line: DeviceLine, events: OpColumns) -> None:
        """Write events of a line that nest among themselves."""
        n = len(events.row)
        if not n:
            return
        end = events.start_ps + events.duration_ps
        order = np.lexsort((-events.duration_ps, events.start_ps))
        event_id = line.first_event_id + events.row
        if line.line == ASYNC_LINE:  # its events overlap by nature and hold nothing
            depth, parent, self_ps = np.zeros(n, np.int32), np.full(n, -1, np.int64), events.duration_ps[order]
        else:
            found = nest(events.start_ps[order], end[order])
            depth, self_ps = found.depth, found.self_ps
            parent = np.where(found.parent >= 0, event_id[order][found.parent], -1)
        is_container, is_collective = self._instructions.flags()
        stats = {s.name: s for s in events.stats}
        self._ops.write(
            n,
            {
                "event_id": event_id[order],
                "host": line.host,
                "device_id": line.device_id,
                "plane": line.plane,
                "line": line.line,
                "instruction_id": events.instruction_id[order],
                "start_ps": events.start_ps[order],
                "duration_ps": events.duration_ps[order],
                "self_ps": self_ps,
                "depth": depth,
                "parent_event_id": np.ma.masked_less(parent, 0),
                "is_leaf": ~is_container[events.instruction_id[order]] if line.is_op_line else np.zeros(n, bool),
                "execution": np.ma.masked_less(events.execution[order], 0),
                "phase": Coded(events.phase[order], PHASES),
                "step": np.ma.masked_less(events.step[order], 0),
                **{name: _stat(stats.get(name), n, order) for name in _OWN_COLUMN},
            },
        )
        write_event_stats(self._stats, event_id, (_leftover(s) for s in events.stats), frozenset())
        self.last_end_ps = max(self.last_end_ps, int(end.max()))
        self._keep_collectives(line, events, event_id, end, np.flatnonzero(is_collective[events.instruction_id]))

    def _keep_collectives(self, line: DeviceLine, events: OpColumns, event_id: Int64, end: Int64, at: Int64) -> None:
        if line.device_id is None or not len(at):
            return
        if line.is_op_line:
            self.collective_ops.append(
                CollectiveOps(
                    line.device_id,
                    line.host,
                    event_id[at],
                    events.instruction_id[at],
                    events.start_ps[at],
                    end[at],
                    events.execution[at],
                    events.phase[at],
                    events.step[at],
                )
            )
        elif line.line == ASYNC_LINE:
            spans = AsyncSpans(events.instruction_id[at], events.start_ps[at], end[at])
            self.async_spans.setdefault(line.device_id, []).append(spans)

    def _assign_programs(self, instruction: Int32, execution: Int32, timeline: Timeline) -> None:
        used, first = np.unique(instruction, return_index=True)
        for number, at in zip(used.tolist(), first.tolist(), strict=True):
            if self._instructions.rows[number].program_id is None and execution[at] >= 0:
                run = timeline.runs[execution[at]]
                self._instructions.assign_program(number, run.module, run.program_id)

    def _write_counters(self, line: DeviceLine, first: int, batch: EventBatch, instruction: Int32) -> None:
        for s in batch.stats:
            for i, row in enumerate(s.rows.tolist()):
                name = self._instructions.rows[instruction[row]].name
                self._counters.write_rows(
                    [
                        {
                            "event_id": line.first_event_id + first + row,
                            "name": name if name == s.name else f"{name}: {s.name}",
                            "host": line.host,
                            "plane": line.plane,
                            "device_id": line.device_id,
                            "start_ps": int(batch.start_ps[row]) + line.clock_offset_ps,
                            "value": _number(s, i),
                        }
                    ]
                )


def _number(column: StatColumn, i: int) -> float | None:
    kind, bits = int(column.kinds[i]), column.bits[i : i + 1]
    if kind == 2:
        return float(bits.view(np.float64)[0])
    if kind in (3, 4):
        return float(bits[0]) if kind == 3 else float(bits.view(np.int64)[0])
    try:
        return float(column.texts[int(bits[0])])
    except ValueError:
        return None


def _stat(column: StatColumn | None, count: int, order: Int64) -> Any:
    """An integer stat as a nullable column in the given order."""
    if column is None:
        return None
    values, known = integers(column, count)
    return np.ma.masked_array(values[order], ~known[order])


def _leftover(column: StatColumn) -> StatColumn:
    """What of a stat has no column: all of it, or of one with a column the values that are not integers."""
    if column.name not in _OWN_COLUMN:
        return column
    at = np.flatnonzero((column.kinds != 3) & (column.kinds != 4))
    return StatColumn(column.name, column.rows[at], column.kinds[at], column.bits[at], column.texts)
