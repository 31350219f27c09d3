"""Numbers the instances of collectives, by first start: all ranks of one execution share an instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.keys import is_new, occurrence, packed, rank
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow

NOT_KNOWN, OUTSIDE = -1, -2
"""Values in place of a component's number: it is unknown, or the device takes part without moving anything."""
_ALONE, _OUTSIDE = -(1 << 31), -(1 << 30)


class Instances:
    """Joins the executions of collectives over all devices; holds 16 bytes of each until they are joined.

    Ranks of an instance share the instruction, the component, the launch of the program and the occurrence in it; both
    launch and occurrence are counted on each device. If groups are unknown, no ranks can be joined, and each row is an
    instance of its own.

    Args:
        instructions: all instructions of the run.

    Attributes:
        incomplete: instances that lack a device of the run, after `joined`.
    """

    def __init__(self, instructions: Sequence[InstructionRow]) -> None:
        programs = {p: i for i, p in enumerate(dict.fromkeys(r.program_id for r in instructions))}
        self._program = np.array([programs[r.program_id] for r in instructions], np.int32)
        self.incomplete = 0
        self._columns: tuple[list[Int32], ...] = ([], [], [], [])

    def add(self, device: int, instruction: Int32, component: Int32, execution: Int32) -> None:
        """Add the rows of a device, ordered by start; `component` may be NOT_KNOWN or OUTSIDE."""
        launch = rank(packed([self._program[instruction]]), execution)
        count = occurrence(packed([instruction, launch]))
        of_its_own = np.where(component == OUTSIDE, np.int32(_OUTSIDE + device), np.int32(_ALONE + device))
        row: tuple[npt.NDArray[Any], ...] = instruction, np.where(component < 0, of_its_own, component), launch, count
        for parts, values in zip(self._columns, row, strict=True):
            parts.append(values.astype(np.int32, copy=False))

    def joined(
        self, starts: Callable[[], Int64], expected: Callable[[int, int], int | None]
    ) -> tuple[Int32, npt.NDArray[np.bool_]]:
        """Return the number of each row's instance, and whether that lacks a member; rows in the order of `add`.

        The rows are released afterwards.

        Args:
            starts: returns the start of every row.
            expected: returns the devices of an instruction's component; None if some are outside the capture.
        """
        if not self._columns[0]:
            return np.zeros(0, np.int32), np.zeros(0, bool)
        instruction, component, launch, count = map(_emptied, self._columns)
        key = packed([instruction, component, launch, count])
        del launch, count
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(is_new(key[order]))
        del key
        of_first = order[first]
        expected_here = _sizes(instruction[of_first], component[of_first], expected)
        del instruction, component, of_first
        present = np.diff(first, append=len(order)).astype(np.int32)
        self.incomplete = int(((present != expected_here) & (expected_here > 0)).sum())
        start = np.minimum.reduceat(starts()[order], first)
        del first
        number = np.empty(len(start), np.int32)
        number[np.argsort(start, kind="stable")] = np.arange(len(start), dtype=np.int32)
        numbers, is_partial = np.empty(len(order), np.int32), np.empty(len(order), bool)
        numbers[order] = np.repeat(number, present)
        is_partial[order] = np.repeat(present != expected_here, present)
        return numbers, is_partial


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
