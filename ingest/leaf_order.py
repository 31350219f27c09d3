"""What the order of a device's leaf ops tells of each of them, in one pass: SQL would have to sort them for it."""

from __future__ import annotations

import numpy as np

from ingest.nesting import Flags
from ingest.parquet import Nullable
from ingest.records import Int64


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
        at = np.flatnonzero(is_leaf)
        idle, compute = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
        is_known = is_leaf.copy()
        if len(at):
            until = np.maximum.accumulate(end[at])
            if self._busy_until is None:
                is_known[at[0]] = False
            else:
                np.maximum(until, self._busy_until, out=until)
                idle[at[0]] = start[at[0]] - self._busy_until
            idle[at[1:]] = start[at[1:]] - until[:-1]
            self._busy_until = int(until[-1])
            own = np.where(is_compute[at], end[at] - start[at], 0)
            total = self._compute_ps + np.cumsum(own)
            compute[at] = total - own
            self._compute_ps = int(total[-1])
        return Nullable(idle, is_known), Nullable(compute, is_leaf & ~is_compute)
