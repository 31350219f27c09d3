"""Writes main.collectives: the executions on each device, with the instance that all ranks of an execution share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.capture.promises import CollectiveStep
from tracewarehouse.ingest.collectives.groups import CollectiveGroups
from tracewarehouse.ingest.collectives.numbering import RankTimes
from tracewarehouse.ingest.collectives.participants import OUTSIDE, Membership, Participants
from tracewarehouse.ingest.collectives.windows import START_ONLY, WINDOW_SOURCES, CollectiveExecutions
from tracewarehouse.ingest.columns.keys import distinct, is_new, occurrence, packed, rank
from tracewarehouse.ingest.columns.records import PHASES, Int32, Int64
from tracewarehouse.ingest.hlo.collectives import Collective
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

_ALONE, _OUTSIDE = -(1 << 31), -(1 << 30)


class Instances:
    """Joins the executions of collectives over all devices; holds 16 bytes of each until they are joined.

    Ranks of an instance share the instruction, the component, the launch of the program and the occurrence in it; both
    launch and occurrence are counted on each device, launches from the first that any device has. If a device lacks
    occurrences in a launch, such as those before its profile began, their ends tell which are the same. If groups are
    unknown, no ranks can be joined, and each row is an instance of its own.

    Kernels of one communicator share no instruction and no program: sizes and kernels differ between ranks. They share
    the number in its sequence or, if some lack it, the place among its executions, counted from the last: profiles end
    together more often than they begin. A place joins only devices whose times can be compared.

    Args:
        instructions: all instructions of the run.
        offsets: launches that a device lacks before those of each execution's program, by device; none by default.

    Attributes:
        incomplete: instances that lack a device of the run, after `joined`.
        channels: by instruction, the first one that its ranks may run instead of it, shape (instructions,).
    """

    def __init__(self, instructions: Sequence[InstructionRow], offsets: Mapping[int, Int64] | None = None) -> None:
        self._offsets = offsets or {}
        programs = {p: i for i, p in enumerate(dict.fromkeys(r.program_id for r in instructions))}
        self._program = np.array([programs[r.program_id] for r in instructions], np.int32)
        called = [r.collective.communicator if r.collective else None for r in instructions]
        first = {name: i for i, name in reversed(list(enumerate(called)))}
        self.channels = np.array([i if n is None else first[n] for i, n in enumerate(called)], np.int32)
        self._has_communicator = np.array([n is not None for n in called], bool)
        self.incomplete = 0
        self._columns: tuple[list[Int32], ...] = ([], [], [], [])
        self._sequences: list[Int32] = []
        self._rows: list[tuple[int, int]] = []
        """Device and number of rows of each `add`."""

    def add(
        self, device: int, instruction: Int32, component: Int32, execution: Int32, sequence: Int32 | None = None
    ) -> None:
        """Add the rows of a device, ordered by start.

        `component` may be NOT_KNOWN or OUTSIDE, and `sequence` is the number in the communicator, -1 if unknown.
        """
        launch, count = self.matched(device, instruction, execution)
        of_its_own = np.where(component == OUTSIDE, np.int32(_OUTSIDE + device), np.int32(_ALONE + device))
        self._rows.append((device, len(instruction)))
        channel = self.channels[instruction] if len(instruction) else instruction
        row: tuple[npt.NDArray[Any], ...] = channel, np.where(component < 0, of_its_own, component), launch, count
        for parts, values in zip(self._columns, row, strict=True):
            parts.append(values.astype(np.int32, copy=False))
        if self._has_communicator.any():
            stated = np.full(len(channel), -1, np.int32) if sequence is None else sequence
            self._sequences.append(_sequence(channel, count, stated))

    def matched(self, device: int, instruction: Int32, execution: Int32) -> tuple[Int64, Int64]:
        """Return the launch of the program and the occurrence in it of each row of a device, ordered by start.

        A row of a communicator has launch 0, and the occurrence counts from the last, which is -1.
        """
        launch = rank(packed([self._program[instruction]]), execution)
        count = occurrence(packed([instruction, launch]))
        offsets = self._offsets.get(device)
        if offsets is not None:
            launch = launch + np.where(execution >= 0, offsets[execution], 0)
        at = np.flatnonzero(self._has_communicator[instruction]) if len(instruction) else instruction
        if len(at):
            launch[at], count[at] = 0, -1 - occurrence(self.channels[instruction[at]][::-1].astype(np.int64))[::-1]
        return launch, count

    def joined(
        self,
        starts: Callable[[], Int64],
        expected: Callable[[int, int], int | None],
        ends: Callable[[], Int64] | None = None,
        clocks: Mapping[int, int] | None = None,
    ) -> tuple[Int32, npt.NDArray[np.bool_]]:
        """Return the number of each row's instance, and whether that lacks a member; rows in the order of `add`.

        The rows are released afterwards.

        Args:
            starts: returns the start of every row.
            expected: returns the devices of an instruction's component; None if some are outside the capture.
            ends: returns the end of every row; None if times cannot be compared.
            clocks: a number for each device, equal for those whose times can be compared.
        """
        if not self._columns[0]:
            return np.zeros(0, np.int32), np.zeros(0, bool)
        instruction, component, launch, count = map(_emptied, self._columns)
        is_counted = self._number_in_communicators(instruction, launch, count, clocks)
        order, first, expected_here = _by_instance((instruction, component, launch, count), expected)
        present = np.diff(first, append=len(order)).astype(np.int32)
        is_incomplete = (present != expected_here) & (expected_here > 0)
        if ends and clocks and is_incomplete.any():
            group = packed([instruction, component, launch])
            at = np.flatnonzero(np.isin(group, group[order[first[is_incomplete]]]) & is_counted)
            if count[at].any():
                device = np.repeat(*np.array(self._rows, np.int64).reshape(-1, 2).T)[at]
                count[at] = _matched_by_ends(group[at], device, ends()[at], count[at], clocks)
                order, first, expected_here = _by_instance((instruction, component, launch, count), expected)
                present = np.diff(first, append=len(order)).astype(np.int32)
                is_incomplete = (present != expected_here) & (expected_here > 0)
            del group, at
        del instruction, component, launch, count
        self.incomplete = int(is_incomplete.sum())
        start = np.minimum.reduceat(starts()[order], first)
        del first
        number = np.empty(len(start), np.int32)
        number[np.argsort(start, kind="stable")] = np.arange(len(start), dtype=np.int32)
        numbers, is_partial = np.empty(len(order), np.int32), np.empty(len(order), bool)
        numbers[order] = np.repeat(number, present)
        is_partial[order] = np.repeat(present != expected_here, present)
        return numbers, is_partial

    def _number_in_communicators(
        self, channel: Int32, launch: Int32, count: Int32, clocks: Mapping[int, int] | None
    ) -> npt.NDArray[np.bool_]:
        """Number executions of communicators by their sequences, or else keep apart devices whose clocks differ.

        Launch and occurrence, `count`, are changed. The result says which rows are counted and not numbered.
        """
        is_counted = np.ones(len(channel), bool)
        at = np.flatnonzero(self._has_communicator[channel])
        if not len(at):
            return is_counted
        sequence = _emptied(self._sequences)[at]
        lacks = np.zeros(len(self.channels), bool)
        lacks[channel[at[sequence < 0]]] = True
        is_counted[at] = lacks[channel[at]]
        numbered, counted = at[~is_counted[at]], at[is_counted[at]]
        count[numbered] = sequence[~is_counted[at]]
        if clocks is not None:
            of_clock = {clock: i for i, clock in enumerate(dict.fromkeys(clocks.values()))}
            device = np.repeat(*np.array(self._rows, np.int64).reshape(-1, 2).T)[counted]
            launch[counted] = [of_clock[clocks[d]] for d in device.tolist()]
        return is_counted


def _sequence(channel: Int32, count: Int64, sequence: Int32) -> Int32:
    """Return the number of each row in its communicator, also of rows that lack it if those around them tell; else -1.

    Args:
        channel: the communicator of each row of a device, in order.
        count: its place among the executions of that communicator.
        sequence: the number that it states; -1 if none.
    """
    found = sequence.copy()
    for code in np.unique(channel[sequence >= 0]).tolist():
        at = np.flatnonzero(channel == code)
        is_stated = sequence[at] >= 0
        ahead = np.unique((sequence[at] - count[at])[is_stated])
        if len(ahead) == 1:
            found[at] = np.maximum(count[at] + ahead[0], -1)
        elif len(np.unique(sequence[at][is_stated])) < is_stated.sum():
            found[at] = -1  # calls that were joined share a number
    return found


def _by_instance(columns: Sequence[Int32], expected: Callable[[int, int], int | None]) -> tuple[Int64, Int64, Int32]:
    """Return rows in the order of their instances, the place of each instance's first, and the devices expected in it.

    Args:
        columns: instruction, component, launch and occurrence of each row.
        expected: as in `Instances.joined`.
    """
    key = packed(columns)
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(is_new(key[order]))
    of_first = order[first]
    return order, first, _sizes(columns[0][of_first], columns[1][of_first], expected)


def _matched_by_ends(group: Int64, device: Int64, end: Int64, count: Int32, clocks: Mapping[int, int]) -> Int32:
    """Return the occurrence of each row, by its end where devices of its group have different numbers of rows.

    All ranks leave a collective at about the same time. Rows belong together whose ends lie closer than half of what
    lies between two of one device. Where that joins two rows of a device, or most of the rows lack a partner, nothing
    shows, and the occurrences stay as they were counted.

    Args:
        group: the rows that belong to one instruction, component and launch share a number, shape (n,).
        device: their devices.
        end: their ends in ps.
        count: their occurrences as counted on each device.
        clocks: as in `Instances.joined`.
    """
    matched = count.copy()
    order = np.lexsort((end, group))
    for at in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        devices, of_device, rows = np.unique(device[at], return_inverse=True, return_counts=True)
        if len(devices) < 2 or rows.min() == rows.max() or len({clocks.get(d) for d in devices.tolist()}) > 1:
            continue
        apart = [np.diff(end[at[of_device == d]]).min() for d in range(len(devices)) if rows[d] > 1]
        number = np.cumsum(np.diff(end[at], prepend=end[at[0]]) * 2 >= max(min(apart), 1))
        members = np.bincount(number)
        is_clear = len(np.unique(packed([number, of_device]))) == len(at)
        if is_clear and 2 * (members == len(devices)).sum() >= len(members):
            matched[at] = number
    return matched


def _emptied(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return all parts as one array; the list is empty afterwards, so that no row is held twice for long."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole


def _sizes(instruction: Int32, component: Int32, expected: Callable[[int, int], int | None]) -> Int32:
    """Return the devices expected in each instance, by its instruction and component; 0 if not known.

    A device outside every pair of a permute waits for nobody: its instance has one device.
    """
    first = np.flatnonzero(is_new(instruction) | is_new(component))
    pairs = zip(instruction[first].tolist(), component[first].tolist(), strict=True)
    sizes = np.array([(expected(i, c) or 0) if c >= 0 else int(c >= _OUTSIDE) for i, c in pairs], np.int32)
    return np.repeat(sizes, np.diff(first, append=len(instruction)))


_SECOND = ("second_event_id", "second_done_event_id")
_EXPOSED = ("exposed_ps", "exposed_added_ps", "hidden_ps")
"""The parts of a window that every execution with times has."""
SLICE = 1 << 16
"""Number of rows that are described and written together."""


class CollectiveWriter:
    """Describes and joins the executions of all devices, and writes them.

    Args:
        instructions: all instructions of the run.
        parts: the executions.
        link: gives the class of the links between devices, None for one outside the capture.
        clocks: a number for each device, equal for those whose times can be compared.
        offsets: launches that devices lack, as of `Instances`.
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
        is_timed: bool = True,
    ) -> None:
        self._instructions = instructions
        self._link = link
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
        instances = Instances(self._instructions, self._offsets)
        if self._is_timed:
            groups.confirm(lambda: self._times(instances))
        for device in self._devices:
            instruction = self._rows[device].get(device, "instruction_id")
            component = groups.components(instruction, device)
            execution, sequence = (self._rows[device].get(device, n) for n in ("execution", "sequence"))
            instances.add(device, instruction, component, execution, sequence)
        numbers, is_partial = instances.joined(
            lambda: self._times_of("start_ps"),
            lambda i, c: groups.participants(i).component_size[c],
            (lambda: self._times_of("end_ps")) if self._is_timed else None,
            self._clocks,
        )
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

    def _times(self, instances: Instances) -> RankTimes:
        """The first executions of collectives on each device whose windows are known."""
        times = RankTimes(self._clocks)
        for device in self._devices:
            high = min(self._rows[device].rows(device), SLICE)
            names = ("instruction_id", "execution", "start_ps", "end_ps", "window_source")
            instruction, execution, start, end, source = (self._rows[device].get(device, n, 0, high) for n in names)
            launch, count = instances.matched(device, instruction, execution)
            at = np.flatnonzero(source != START_ONLY)
            times.add(device, instances.channels[instruction[at]], ((launch << 31) + count)[at], start[at], end[at])
        return times

    def _times_of(self, column: str) -> Int64:
        return np.concatenate([self._rows[device].get(device, column) for device in self._devices])

    def _columns(self, device: int, low: int, high: int, groups: CollectiveGroups) -> dict[str, Any]:
        """Rows low to high of a device, without their instances."""
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
            "link": Coded(of_row, [f.link if f and f.link else self._link(_group(p, m)) for f, p, m in used_by]),
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


def _group(participants: Participants, member: Membership | None) -> Sequence[int | None]:
    """Return the group of a member; empty if it is not known."""
    return () if member is None or participants.groups is None else participants.groups[member.group_index]


def _untimed(rows: int) -> dict[str, Any]:
    unknown = Nullable(np.zeros(rows, np.int64), np.zeros(rows, bool))
    nothing = Coded(np.full(rows, -1, np.int8), ("",))
    return {
        **dict.fromkeys(("start_ps", "end_ps", *_EXPOSED, "exposed_done_ps", "previous_end_ps"), unknown),
        **dict.fromkeys(("previous_axis", "previous_phase"), nothing),
        "previous_step": unknown,
        "window_source": Coded(np.full(rows, WINDOW_SOURCES.index("program"), np.int8), WINDOW_SOURCES),
    }
