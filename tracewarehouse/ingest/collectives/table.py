"""Writes main.collectives: the executions on each device, with the instance that all ranks of an execution share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.instances import Instances
from tracewarehouse.ingest.collectives.numbering import OVERLAPPING, RankTimes
from tracewarehouse.ingest.collectives.participants import Membership, Participants
from tracewarehouse.ingest.collectives.windows import START_ONLY, WINDOW_SOURCES, CollectiveExecutions
from tracewarehouse.ingest.columns.keys import distinct, packed
from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import PHASES, Int32, Int64
from tracewarehouse.ingest.hlo.collectives import SYNCHRONISING, Collective
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

_SECOND = ("second_event_id", "second_done_event_id")
_EXPOSED = ("exposed_ps", "exposed_added_ps", "hidden_ps")
"""The parts of a window that every execution with times has."""
SLICE = 1 << 16
"""Number of rows that are described and written together."""


class CollectiveWriter:
    """Describes and joins the executions of all devices, and writes them.

    Args:
        instructions: all instructions of the run.
        link: gives the class of the links between devices, None for one outside the capture.
        clocks: a number for each device, equal for those whose times can be compared.
        offsets: launches that devices lack, as of `Instances`.
        doubted: devices whose clocks shared collectives contradict.
        is_timed: False for a compiled program, whose executions have an order but no times.

    Attributes:
        counts: executions by device, step, kind and axis, after `write`.
        incomplete_instances: instances without a row of some device that is in the run, after `write`.
    """

    def __init__(
        self,
        instructions: Sequence[InstructionRow],
        parts: Sequence[CollectiveExecutions],
        link: Callable[[Sequence[int | None]], str | None],
        clocks: Mapping[int, int],
        offsets: Mapping[int, Int64] | None = None,
        *,
        doubted: Collection[int] = (),
        is_timed: bool = True,
    ) -> None:
        self._instructions = instructions
        self._doubted = doubted
        self._link = link
        self._links: dict[tuple[int, int | None], str | None] = {}
        self._clocks = clocks
        self._offsets = offsets
        self._is_timed = is_timed
        self.counts: Counter[CollectiveStep] = Counter()
        self.incomplete_instances = 0
        self._hosts = {device: host for p in parts for device, host in p.hosts.items()}
        self._rows = {device: p.rows for p in parts for device in p.rows}
        self._devices = sorted(self._rows)

    def write(self, writer: TableWriter, groups: CollectiveGroups) -> None:
        """Write all rows, by device and start, once every device is finished and every instruction known."""
        if self._is_timed:
            groups.confirm(self._times)
            groups.assume_world()
        numbers, is_partial = self._joined(groups)
        if self._is_timed and (late := self._late(numbers)):
            groups.doubt(late)
            numbers, is_partial = self._joined(groups)
        first = 0
        for device in self._devices:
            rows = self._rows[device].rows(device)
            for low in range(0, rows, SLICE):
                high = min(low + SLICE, rows)
                at = slice(first + low, first + high)
                joined = {"instance": numbers[at], "is_partial": is_partial[at]}
                writer.write(high - low, self._columns(device, low, high, groups) | joined)
            first += rows

    def _joined(self, groups: CollectiveGroups) -> tuple[Int32, Flags]:
        """Return the number of each row's instance, and whether that lacks a member."""
        instances = Instances(self._instructions, self._offsets)
        for device in self._devices:
            names = ("instruction_id", "execution", "sequence")
            instruction, execution, sequence = (self._rows[device].get(device, n) for n in names)
            instances.add(device, instruction, groups.components(instruction, device), execution, sequence)
        of_channel: dict[int, list[int]] = {}
        for i, channel in enumerate(instances.channels.tolist()):
            of_channel.setdefault(channel, []).append(i)

        def expected(channel: int, component: int) -> int | None:
            sizes = (groups.participants(i).component_size for i in of_channel[channel])
            return next((of_one[component] for of_one in sizes if component < len(of_one)), None)

        joined = instances.joined(
            lambda: self._of_all("start_ps"),
            expected,
            (lambda: self._of_all("end_ps")) if self._is_timed else None,
            self._clocks,
            self._doubted,
        )
        self.incomplete_instances = instances.incomplete
        return joined

    def _late(self, numbers: Int32) -> dict[str, tuple[int, int]]:
        """Find communicators whose joined ranks do not overlap in time.

        Returns:
            By their names, pairs of a rank and the first of its instance to leave, of which one begins after the other
            has ended, and all such pairs.
        """
        called = [r.collective.communicator if r.collective else None for r in self._instructions]
        names = list(dict.fromkeys(name for name in called if name is not None))
        if not names:
            return {}
        kinds = [r.collective.kind if r.collective else "" for r in self._instructions]
        code = np.array(
            [names.index(n) if n is not None and k in SYNCHRONISING else -1 for n, k in zip(called, kinds, strict=True)]
        )[self._of_all("instruction_id")]
        clock = np.repeat([self._clocks[d] for d in self._devices], [self._rows[d].rows(d) for d in self._devices])
        at = np.flatnonzero(code >= 0)
        _, first, which = np.unique(packed([numbers[at], clock[at]]), return_index=True, return_inverse=True)
        left = np.full(len(first), np.iinfo(np.int64).max)
        np.minimum.at(left, which, self._of_all("end_ps")[at])
        late = np.bincount(code[at][self._of_all("start_ps")[at] > left[which]], minlength=len(names))
        pairs = np.bincount(code[at], minlength=len(names)) - np.bincount(code[at][first], minlength=len(names))
        return {
            name: (apart, tried)
            for name, apart, tried in zip(names, late.tolist(), pairs.tolist(), strict=True)
            if apart > (1 - OVERLAPPING) * tried
        }

    def _times(self) -> RankTimes:
        instances, times = Instances(self._instructions, self._offsets), RankTimes(self._clocks)
        for device in self._devices:
            high = min(self._rows[device].rows(device), SLICE)
            names = ("instruction_id", "execution", "start_ps", "end_ps", "window_source")
            instruction, execution, start, end, source = (self._rows[device].get(device, n, 0, high) for n in names)
            launch, count = instances.matched(device, instruction, execution)
            at = np.flatnonzero(source != START_ONLY)
            times.add(device, instruction[at], ((launch << 31) + count)[at], start[at], end[at])
        return times

    def _of_all(self, column: str) -> Int64:
        return np.concatenate([self._rows[device].get(device, column) for device in self._devices])

    def _link_of(
        self, instruction: int, facts: Collective | None, participants: Participants, member: Membership | None
    ) -> str | None:
        """The class of links of a member's group, which is found once for all its members."""
        if facts and facts.link:
            return facts.link
        key = instruction, member.group_index if member else None
        if key not in self._links:
            of = () if member is None or participants.groups is None else participants.groups[member.group_index]
            self._links[key] = self._link(of)
        return self._links[key]

    def _columns(self, device: int, low: int, high: int, groups: CollectiveGroups) -> dict[str, Any]:
        names = ("event_id", "instruction_id", "is_async", "start_ps", "end_ps", *_EXPOSED)
        spill = self._rows[device]
        columns: dict[str, Any] = {n: spill.get(device, n, low, high) for n in names}
        done, exposed_done, source, phase, step = (
            spill.get(device, n, low, high)
            for n in ("done_event_id", "exposed_done_ps", "window_source", "phase", "step")
        )
        previous, previous_end, previous_phase, previous_step = (
            spill.get(device, f"previous_{n}", low, high) for n in ("instruction_id", "end_ps", "phase", "step")
        )
        before, of_previous = distinct(previous)
        used, of_row = distinct(columns["instruction_id"])
        facts = [self._instructions[i].collective for i in used.tolist()]
        participants = [groups.participants(i) for i in used.tolist()]
        members = [p.members.get(device) for p in participants]
        used_by = list(zip(facts, participants, members, strict=True))
        self._count(device, facts, [p.axis for p in participants], of_row, phase, step)
        described = columns | {
            "done_event_id": Nullable.from_zero(done),
            **{n: Nullable.from_zero(spill.get(device, n, low, high)) for n in _SECOND},
            "exposed_done_ps": Nullable.from_zero(exposed_done),
            "host": self._hosts[device],
            "device_id": device,
            "kind": Coded(of_row, [f.kind if f else "" for f in facts]),
            "axis": Coded(of_row, [p.axis for p in participants]),
            "axis_source": Coded(of_row, [p.axis_source for p in participants]),
            "link": Coded(of_row, [self._link_of(i, *by) for i, by in zip(used.tolist(), used_by, strict=True)]),
            "channel_id": Nullable.of(f.channel_id if f else None for f in facts)[of_row],
            "group_index": Nullable.of(m.group_index if m else None for m in members)[of_row],
            "group_size": Nullable.of(p.group_size for p in participants)[of_row],
            "rank_in_group": Nullable.of(m.rank if m else None for m in members)[of_row],
            "message_bytes": Nullable.of(f.message_bytes if f else None for f in facts)[of_row],
            "wire_bytes": Nullable.of(p.wire_bytes(device) for p in participants)[of_row],
            "dtype": Coded(of_row, [f.dtype if f else None for f in facts]),
            "window_source": Coded(source, WINDOW_SOURCES),
            "iteration": Nullable.from_zero(spill.get(device, "iteration", low, high)),
            "phase": Coded(phase, PHASES),
            "step": Nullable.from_zero(step),
            "previous_axis": Coded(
                of_previous, [groups.participants(i).axis if i >= 0 else None for i in before.tolist()]
            ),
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
    unknown = Nullable(np.zeros(rows, np.int64), np.zeros(rows, bool))
    nothing = Coded(np.full(rows, -1, np.int8), ("",))
    return {
        **dict.fromkeys(("start_ps", "end_ps", *_EXPOSED, "exposed_done_ps", "previous_end_ps"), unknown),
        **dict.fromkeys(("previous_axis", "previous_phase"), nothing),
        "previous_step": unknown,
        "window_source": Coded(np.full(rows, WINDOW_SOURCES.index("program"), np.int8), WINDOW_SOURCES),
    }
