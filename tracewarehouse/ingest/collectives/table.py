"""Writes main.collectives: the executions on each device, with the instances that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.collectives.executions import CollectiveExecutions
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.instances import Instances
from tracewarehouse.ingest.collectives.windows import WINDOW_SOURCES
from tracewarehouse.ingest.columns.keys import distinct, packed
from tracewarehouse.ingest.columns.phases import PHASES
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.collectives import Collective
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

SLICE = 1 << 16
"""Number of rows that are described and written together."""


class CollectiveWriter:
    """Describes and joins the executions of all devices, and writes them.

    Args:
        instructions: all instructions of the run.
        parts: the executions.
        is_timed: False for a compiled program, whose executions have an order but no times.

    Attributes:
        counts: executions by device, step, kind and axis, after `write`.
        incomplete_instances: instances without a row of some device that is in the run, after `write`.
    """

    def __init__(
        self, instructions: Sequence[InstructionRow], parts: Sequence[CollectiveExecutions], *, is_timed: bool = True
    ) -> None:
        self._instructions = instructions
        self._is_timed = is_timed
        self.counts: Counter[CollectiveStep] = Counter()
        self.incomplete_instances = 0
        self._hosts = {device: host for p in parts for device, host in p.hosts.items()}
        self._rows = {device: p.rows for p in parts for device in p.rows}
        self._devices = sorted(self._rows)

    def write(self, writer: TableWriter, groups: CollectiveGroups) -> None:
        """Write all rows, by device and start, once every device is finished and every instruction known."""
        instances = Instances(self._instructions)
        for device in self._devices:
            instruction = self._rows[device].get(device, "instruction_id")
            component = groups.components(instruction, device)
            instances.add(device, instruction, component, self._rows[device].get(device, "execution"))
        numbers, is_partial = instances.joined(self._starts, lambda i, c: groups.of(i).component_size[c])
        self.incomplete_instances = instances.incomplete
        first = 0
        for device in self._devices:
            rows = self._rows[device].rows(device)
            for low in range(0, rows, SLICE):
                high = min(low + SLICE, rows)
                at = slice(first + low, first + high)
                joined = {"instance": numbers[at], "is_partial": is_partial[at]}
                writer.write(high - low, self._columns(device, low, high, groups) | joined)
            first += rows

    def _starts(self) -> Int64:
        """The start of every row."""
        return np.concatenate([self._rows[device].get(device, "start_ps") for device in self._devices])

    def _columns(self, device: int, low: int, high: int, groups: CollectiveGroups) -> dict[str, Any]:
        """Rows low to high of a device, without their instances."""
        names = ("event_id", "instruction_id", "is_async", "start_ps", "end_ps", "exposed_ps", "exposed_added_ps")
        spill = self._rows[device]
        columns: dict[str, Any] = {n: spill.get(device, n, low, high) for n in names}
        done, source, phase, step = (
            spill.get(device, n, low, high) for n in ("done_event_id", "window_source", "phase", "step")
        )
        previous, previous_end, previous_phase, previous_step = (
            spill.get(device, f"previous_{n}", low, high) for n in ("instruction_id", "end_ps", "phase", "step")
        )
        before, of_previous = distinct(previous)
        used, of_row = distinct(columns["instruction_id"])
        facts = [self._instructions[i].collective for i in used.tolist()]
        participants = [groups.of(i) for i in used.tolist()]
        members = [p.members.get(device) for p in participants]
        self._count(device, facts, [p.axis for p in participants], of_row, phase, step)
        described = columns | {
            "done_event_id": Nullable.from_zero(done),
            "host": self._hosts[device],
            "device_id": device,
            "kind": Coded(of_row, [f.kind if f else "" for f in facts]),
            "axis": Coded(of_row, [p.axis for p in participants]),
            "axis_source": Coded(of_row, [p.axis_source for p in participants]),
            "channel_id": Nullable.of(f.channel_id if f else None for f in facts)[of_row],
            "group_index": Nullable.of(m.group_index if m else None for m in members)[of_row],
            "group_size": Nullable.of(p.group_size for p in participants)[of_row],
            "rank_in_group": Nullable.of(m.rank if m else None for m in members)[of_row],
            "message_bytes": Nullable.of(f.message_bytes if f else None for f in facts)[of_row],
            "wire_bytes": Nullable.of(p.wire_bytes(device) for p in participants)[of_row],
            "dtype": Coded(of_row, [f.dtype if f else None for f in facts]),
            "window_source": Coded(source, WINDOW_SOURCES),
            "phase": Coded(phase, PHASES),
            "step": Nullable.from_zero(step),
            "previous_axis": Coded(of_previous, [groups.of(i).axis if i >= 0 else None for i in before.tolist()]),
            "previous_end_ps": Nullable(previous_end, previous >= 0),
            "previous_phase": Coded(previous_phase, PHASES),
            "previous_step": Nullable.from_zero(previous_step),
        }
        return described if self._is_timed else described | _untimed(high - low)

    def _count(
        self,
        device: int,
        facts: Sequence[Collective | None],
        axes: list[str],
        of_row: Int32,
        phase: Int32,
        step: Int32,
    ) -> None:
        """Count the executions; one that the compiler joined from several counts as several."""
        kinds = [(f.kind, f.joined) if f else ("", 1) for f in facts]
        pairs = list(zip(kinds, axes, strict=True))
        known = list(dict.fromkeys(pairs))
        pair = np.array([known.index(p) for p in pairs], np.int32)[of_row]  # far fewer than instructions
        key = packed([pair, phase, step])
        key = key.astype(np.min_scalar_type(int(key.max())))  # 16 bits are sorted in a tenth of the time
        _, first, counts = np.unique(key, return_index=True, return_counts=True)
        for i, n in zip(first.tolist(), counts.tolist(), strict=True):
            place = PHASES[phase[i]] if phase[i] >= 0 else None, int(step[i]) if step[i] >= 0 else None
            (kind, joined), axis = known[pair[i]]
            self.counts[CollectiveStep(device, *place, kind, axis)] += n * joined


def _untimed(rows: int) -> dict[str, Any]:
    """The columns of rows that have no times."""
    unknown = Nullable(np.zeros(rows, np.int64), np.zeros(rows, bool))
    nothing = Coded(np.full(rows, -1, np.int8), ("",))
    return {
        **dict.fromkeys(("start_ps", "end_ps", "exposed_ps", "exposed_added_ps", "previous_end_ps"), unknown),
        **dict.fromkeys(("previous_axis", "previous_phase"), nothing),
        "previous_step": unknown,
        "window_source": Coded(np.full(rows, WINDOW_SOURCES.index("program"), np.int8), WINDOW_SOURCES),
    }
