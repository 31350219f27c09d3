"""Joins the executions of collectives on all devices: the ranks of one execution share an instance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.collectives.participants import OUTSIDE
from tracewarehouse.ingest.columns.keys import is_new, occurrence, packed, rank
from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow

_ALONE, _OUTSIDE = -(1 << 31), -(1 << 30)


class Instances:
    """Joins the executions of collectives over all devices; holds 16 bytes of each until they are joined.

    Ranks of an instance share the instruction, the component, the launch of the program and the occurrence in it; both
    launch and occurrence are counted on each device, launches from the first that any device has. If a device lacks
    occurrences in a launch, such as those before its profile began, their ends tell which are the same. If groups are
    unknown, no ranks can be joined, and each row is an instance of its own.

    Kernels of one communicator share no instruction and no program: sizes and kernels differ between ranks. They share
    the number in its sequence or, if some lack it, the place among its executions, counted from the last: profiles end
    together more often than they begin. A place does not join devices whose clocks collectives contradict, nor those
    with different numbers of executions if their times cannot be compared.

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
        doubted: Collection[int] = (),
    ) -> tuple[Int32, Flags]:
        """Return the number of each row's instance, and whether that lacks a member; rows in the order of `add`.

        The rows are released afterwards.

        Args:
            starts: returns the start of every row.
            expected: returns the devices of an instruction's component; None if some are outside the capture.
            ends: returns the end of every row; None if times cannot be compared.
            clocks: a number for each device, equal for those whose times can be compared.
            doubted: devices whose clocks shared collectives contradict.
        """
        if not self._columns[0]:
            return np.zeros(0, np.int32), np.zeros(0, bool)
        instruction, component, launch, count = map(_emptied, self._columns)
        is_counted = self._number_in_communicators(instruction, launch, count, clocks, doubted)
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
        self,
        channel: Int32,
        launch: Int32,
        count: Int32,
        clocks: Mapping[int, int] | None,
        doubted: Collection[int],
    ) -> Flags:
        """Number executions of communicators by their sequences, or else keep devices apart as the class says.

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
            device = np.repeat(*np.array(self._rows, np.int64).reshape(-1, 2).T)[counted]
            places = {place: i for i, place in enumerate(dict.fromkeys(clocks.values()))}
            for code in np.unique(channel[counted]).tolist():
                of_channel = np.flatnonzero(channel[counted] == code)
                devices, which, rows = np.unique(device[of_channel], return_inverse=True, return_counts=True)
                is_even = rows.min() == rows.max()
                apart = [0 if is_even and d not in doubted else 1 + places[clocks[d]] for d in devices.tolist()]
                launch[counted[of_channel]] = np.array(apart)[which]
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
        end: their ends in ps.
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
