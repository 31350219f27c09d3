"""Computes the columns that depend on the order of a device's leaf ops, in one pass; SQL would have to sort them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.nesting import Coverage
from tracewarehouse.ingest.columns.records import Int8, Int64
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.lake.parquet import Nullable

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
        of_leaves = self._of_leaves(start[leaf], end[leaf], op_class[leaf])
        if isinstance(leaf, slice):
            return of_leaves
        return LeafTimes(**{name: _spread(column, leaf, len(start)) for name, column in of_leaves.columns().items()})

    def _of_leaves(self, start: Int64, end: Int64, op_class: Int8) -> LeafTimes:
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


def of_lines(lines: Sequence[tuple[Int64, Int64, Int8]]) -> list[LeafTimes]:
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
