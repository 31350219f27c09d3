"""What the order of a device's leaf ops tells of each of them, in one pass: SQL would have to sort them for it."""

from __future__ import annotations

import numpy as np

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.lake.parquet import Nullable


class LeafOrder:
    """The leaf ops of a device with one op line, in order of start, chunk by chunk."""

    def __init__(self) -> None:
        self._busy_until: int | None = None
        self._compute_ps = 0

    def follow(self, start: Int64, end: Int64, is_leaf: Flags, is_compute: Flags) -> tuple[Nullable, Nullable]:
        """`idle_before_ps` and `compute_before_ps` of the next events of the line; see main.ops.

        Args:
            start: starts, shape (n,), ascending.
            end: ends, shape (n,).
            is_leaf: which of the events are leaf ops, shape (n,).
            is_compute: which of them, if they are leaf ops, neither communicate nor copy, shape (n,).
        """
        idle, compute = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
        is_known = is_leaf.copy()
        if is_leaf.any():
            leaf = slice(None) if is_leaf.all() else np.flatnonzero(is_leaf)
            start, end = start[leaf], end[leaf]
            if self._busy_until is None:
                is_known[is_leaf.argmax()] = False
            until = np.append(start[0] if self._busy_until is None else self._busy_until, end)
            np.maximum.accumulate(until, out=until)
            idle[leaf] = start - until[:-1]
            self._busy_until = int(until[-1])
            total = np.append(self._compute_ps, (end - start) * is_compute[leaf])
            np.cumsum(total, out=total)
            compute[leaf] = total[:-1]
            self._compute_ps = int(total[-1])
        return Nullable(idle, is_known), Nullable(compute, is_leaf & ~is_compute)
