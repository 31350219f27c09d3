"""Writes main.copies: each copy on a device, from its start to the end of its done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.keys import distinct
from tracewarehouse.ingest.columns.records import PHASES, Columns, Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

SLICE = 1 << 16
"""Number of rows that are written together."""

_ROLES: dict[str | None, int] = {None: 0, "start": 1, "update": 2, "done": 3}


@dataclass
class CopyOps(Columns):
    """Leaf ops of one device that copy, or are halves of a copy; columns of shape (n,).

    `work_before_ps` is the time before the op in which the device computes or communicates, `work_during_ps` such time
    in the op. `phase` is a code into columns.phases.PHASES; phase and step are -1 if unknown.
    """

    event_id: Int64
    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64
    work_before_ps: Int64
    work_during_ps: Int64
    phase: Int32
    step: Int32


class CopyWriter:
    """Gathers the copies of devices, and writes those of a device once all its events have been added."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._hosts: dict[int, str] = {}
        self._ops: dict[int, list[CopyOps]] = {}

    def add_ops(self, device_id: int, host: str, ops: CopyOps) -> None:
        """Add ops of a device; they may come in several chunks, or from several lines."""
        self._hosts[device_id] = host
        self._ops.setdefault(device_id, []).append(ops)

    def finish_device(self, device_id: int, facts: Sequence[OpFacts], programs: Mapping[int, int | None]) -> None:
        """Write the copies of a device; see `windows`.

        Raises:
            OSError: the file cannot be written.
        """
        if device_id not in self._ops:
            return
        copies = windows(facts, programs, CopyOps.joined(self._ops.pop(device_id)))
        count = len(copies["event_id"])
        for low in range(0, count, SLICE):
            rows = {name: values[low : low + SLICE] for name, values in copies.items()}
            columns = {
                "done_event_id": Nullable.from_zero(rows["done_event_id"]),
                "host": self._hosts[device_id],
                "device_id": device_id,
                "phase": Coded(rows["phase"], PHASES),
                "step": Nullable.from_zero(rows["step"]),
            }
            self._writer.write(min(SLICE, count - low), rows | columns)


def windows(facts: Sequence[OpFacts], programs: Mapping[int, int | None], ops: CopyOps) -> dict[str, npt.NDArray[Any]]:
    """Return one row per copy on a device, sorted by start: a copy of one op, or a start joined with its done.

    A done ends the last start of its instruction before it; a start or a done without a partner has no row.

    Args:
        facts: the facts of all instructions so far.
        programs: for instructions that do not name their program, the program in which they were seen.
        ops: the device's ops.
    """
    used, inverse = distinct(ops.instruction_id)
    roles = np.array([_ROLES[facts[i].role] for i in used.tolist()], np.int8)[inverse]
    pair = np.array(_pair_numbers(facts, programs, used.tolist()), np.int32)[inverse]
    halves = np.flatnonzero((roles == _ROLES["start"]) | (roles == _ROLES["done"]))
    halves = halves[np.lexsort((ops.event_id[halves], ops.start_ps[halves], pair[halves]))]
    starts, dones = halves[:-1], halves[1:]
    is_pair = (pair[starts] == pair[dones]) & (roles[starts] == _ROLES["start"]) & (roles[dones] == _ROLES["done"])
    starts, dones = starts[is_pair], dones[is_pair]
    end, work_until = ops.end_ps.copy(), ops.work_before_ps + ops.work_during_ps
    done_event_id = np.full(len(end), -1, np.int64)
    end[starts], work_until[starts], done_event_id[starts] = ops.end_ps[dones], work_until[dones], ops.event_id[dones]
    kept = np.concatenate([np.flatnonzero(roles == _ROLES[None]), starts])
    order = kept[np.lexsort((ops.event_id[kept], ops.start_ps[kept]))]
    start = ops.start_ps[order]
    return {
        "event_id": ops.event_id[order],
        "done_event_id": done_event_id[order],
        "instruction_id": ops.instruction_id[order],
        "is_async": roles[order] == _ROLES["start"],
        "start_ps": start,
        "end_ps": end[order],
        "exposed_added_ps": _added(start - ops.work_before_ps[order], end[order] - work_until[order]),
        "phase": ops.phase[order],
        "step": ops.step[order],
    }


def _added(start: Int64, end: Int64) -> Int64:
    """Return the time that each window adds to the windows before it, shape (n,).

    Args:
        start: starts on a clock that stands still while the device computes or communicates, in order of the windows.
        end: ends on that clock.
    """
    begin = start.copy()
    begin[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
    added: Int64 = np.maximum(end - begin, 0)
    return added


def _pair_numbers(facts: Sequence[OpFacts], programs: Mapping[int, int | None], used: Sequence[int]) -> list[int]:
    """Return a number per instruction, which a start shares with the dones that name it."""
    numbers: dict[tuple[int | None, str | None], int] = {}
    partners = []
    for i in used:
        name = facts[i].start_name if facts[i].role == "done" else facts[i].name
        partners.append(numbers.setdefault((programs.get(i, facts[i].program_id), name), len(numbers)))
    return partners
