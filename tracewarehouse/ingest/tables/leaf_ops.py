"""Follows the leaf ops of a device in order of start: the columns that depend on it, and main.copies.

SQL would have to sort the ops for these columns; here one pass computes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.keys import distinct
from tracewarehouse.ingest.columns.nesting import Coverage
from tracewarehouse.ingest.columns.records import PHASES, Columns, Int8, Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

NO_LEAF = OP_CLASSES.index("container")
"""Class of an event that is not a leaf op, such as a container."""
_WORK = (OP_CLASSES.index("compute"), OP_CLASSES.index("communication"))


@dataclass(frozen=True)
class LeafTimes:
    """The columns of events that depend on all leaf ops of their device, each of shape (n,); see main.ops."""

    idle_before: Nullable
    overlap: Nullable
    class_overlap: Nullable
    work_before: Nullable
    work_during: Nullable

    def __getitem__(self, at: Any) -> LeafTimes:
        return LeafTimes(**{name: column[at] for name, column in self.columns().items()})

    def columns(self) -> dict[str, Nullable]:
        """The columns by name, without their unit."""
        return dict(vars(self))


class LeafOrder:
    """The leaf ops of a device in order of start, chunk by chunk.

    The values of an op are exact if no op of a later chunk starts before the op ends.
    """

    def __init__(self) -> None:
        self._busy_until: int | None = None
        self._class_until: dict[int, int] = {}
        self._work_until: int | None = None
        self._work_ps = 0

    def follow(self, start: Int64, end: Int64, op_class: Int8) -> LeafTimes:
        """Compute the columns of the next events.

        Args:
            start: starts, shape (n,), ascending.
            end: ends, shape (n,).
            op_class: places in OP_CLASSES, shape (n,); containers are no leaf ops.
        """
        is_leaf = op_class != NO_LEAF
        leaf = slice(None) if is_leaf.all() else np.flatnonzero(is_leaf)
        times = self._follow_leaves(start[leaf], end[leaf], op_class[leaf])
        if isinstance(leaf, slice):
            return times
        return LeafTimes(**{name: _spread(column, leaf, len(start)) for name, column in times.columns().items()})

    def _follow_leaves(self, start: Int64, end: Int64, op_class: Int8) -> LeafTimes:
        overlap, class_overlap, during = (np.zeros(len(start), np.int64) for _ in range(3))
        is_work, is_known, is_preceded = np.isin(op_class, _WORK), np.ones(len(start), bool), np.ones(len(start), bool)
        if not len(start):
            return LeafTimes(*(Nullable(overlap, is_known) for _ in range(5)))
        is_preceded[0] = self._busy_until is not None
        until = _reached(end, int(start[0]) if self._busy_until is None else self._busy_until)
        idle = start - until[:-1]
        self._busy_until = int(until[-1])
        work_until = int(start[0]) if self._work_until is None else self._work_until
        reached_by_work = _reached(np.where(is_work, end, work_until), work_until)
        self._work_until = int(reached_by_work[-1])
        still = np.maximum(reached_by_work[:-1] - start, 0)
        if (idle >= 0).all():
            self._class_until[int(op_class[-1])] = int(end[-1])  # an op that ended earlier cannot overlap a later one
        else:
            overlap = np.clip(-idle, 0, end - start)
            idle = np.maximum(idle, 0)
            begun = np.append(min(work_until, int(start[0])), start[is_work])
            during = Coverage(begun, np.append(work_until, end[is_work])).within(start, end)
            for code in np.unique(op_class).tolist():
                at = np.flatnonzero(op_class == code)
                reached = _reached(end[at], self._class_until.get(code, int(start[0])))
                class_overlap[at] = np.clip(reached[:-1] - start[at], 0, (end - start)[at])
                self._class_until[code] = int(reached[-1])
        work = np.append(self._work_ps, np.maximum(end - start - still, 0) * is_work)
        np.cumsum(work, out=work)
        self._work_ps = int(work[-1])
        return LeafTimes(
            Nullable(idle, is_preceded),
            Nullable(overlap, is_known),
            Nullable(class_overlap, is_known),
            Nullable(work[:-1] - still, ~is_work),
            Nullable(during, ~is_work),
        )


def lines_leaf_times(lines: Sequence[tuple[Int64, Int64, Int8]]) -> list[LeafTimes]:
    """Return the columns of the events of each line of a device whose leaf ops are on several lines.

    Args:
        lines: starts, ends and classes of a line's events, shape (n,) each, in the order of their event ids.
    """
    start, end, op_class = (np.concatenate(columns) for columns in zip(*lines, strict=True))
    order = np.argsort(start, kind="stable")
    times = LeafOrder().follow(start[order], end[order], op_class[order])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    cuts = [0, *accumulate(len(line[0]) for line in lines)]
    return [times[place[a:z]] for a, z in pairwise(cuts)]


def _reached(end: Int64, before: int) -> Int64:
    """Latest end before each event and after the last, shape (n + 1,)."""
    until = np.append(before, end)
    np.maximum.accumulate(until, out=until)
    return until


def _spread(column: Nullable, at: Int64, count: int) -> Nullable:
    values, is_known = np.zeros(count, np.int64), np.zeros(count, bool)
    values[at], is_known[at] = column.values, column.is_known
    return Nullable(values, is_known)


SLICE = 1 << 16
"""Number of rows that are written together."""

_ROLES: dict[str | None, int] = {None: 0, "start": 1, "update": 2, "done": 3}


@dataclass
class CopyOps(Columns):
    """Leaf ops of one device that copy, or are halves of a copy; columns of shape (n,).

    `work_before_ps` is the time before the op in which the device computes or communicates, `work_during_ps` such time
    in the op. `phase` is a code into columns.records.PHASES; phase and step, and the `bytes` that an event states, are
    -1 if unknown.
    """

    event_id: Int64
    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64
    work_before_ps: Int64
    work_during_ps: Int64
    phase: Int32
    step: Int32
    bytes: Int64


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
        """Write the copies of a device; see `copy_windows`."""
        if device_id not in self._ops:
            return
        copies = copy_windows(facts, programs, CopyOps.joined(self._ops.pop(device_id)))
        count = len(copies["event_id"])
        for low in range(0, count, SLICE):
            rows = {name: values[low : low + SLICE] for name, values in copies.items()}
            columns = {
                "done_event_id": Nullable.from_zero(rows["done_event_id"]),
                "host": self._hosts[device_id],
                "device_id": device_id,
                "phase": Coded(rows["phase"], PHASES),
                "step": Nullable.from_zero(rows["step"]),
                "bytes": Nullable.from_zero(rows["bytes"]),
            }
            self._writer.write(min(SLICE, count - low), rows | columns)


def copy_windows(
    facts: Sequence[OpFacts], programs: Mapping[int, int | None], ops: CopyOps
) -> dict[str, npt.NDArray[Any]]:
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
        "bytes": ops.bytes[order],
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
