"""Finds in numpy which event holds which other, and how much of a window intervals cover."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int32, Int64

Flags = npt.NDArray[np.bool_]

_ROUNDS = 64
"""Depths that are found one by one. Each costs a look at all events below, so deeper ones are found in one walk."""


@dataclass(frozen=True)
class Nesting:
    """The nesting of the events of one line; arrays of shape (n,) in the order given to `nest`.

    Attributes:
        depth: 0 for an event that no other holds.
        parent: index of the event that directly holds this one, -1 for none.
        self_ps: duration without the events that it directly holds, never below 0.
        is_overlapping: whether it begins before an earlier event of its depth has ended.
    """

    depth: Int32
    parent: Int64
    self_ps: Int64
    is_overlapping: Flags


def nest(start: Int64, end: Int64) -> Nesting:
    """Nest intervals that are ordered by start, longer ones first.

    An interval inside another is held by it; intervals that overlap in part are siblings. Each round finds one depth:
    among the intervals left, no other holds those that reach beyond all before them.
    """
    n = len(start)
    depth = np.zeros(n, np.int32)
    parent = np.full(n, -1, np.int64)
    is_overlapping = np.zeros(n, bool)
    if (start[1:] >= end[:-1]).all():  # one after the other, as on most lines
        return Nesting(depth, parent, end - start, is_overlapping)
    left = np.arange(n)
    level = 0
    while len(left) and level < _ROUNDS:
        starts, ends = start[left], end[left]
        reach = np.empty_like(ends)
        reach[:1] = np.iinfo(np.int64).min
        np.maximum.accumulate(ends[:-1], out=reach[1:])
        is_top = (starts >= reach) | (ends > reach)
        last_top = np.maximum.accumulate(np.where(is_top, np.arange(len(left)), 0))
        is_top |= parent[left] != parent[left[last_top]]
        depth[left] = level
        is_overlapping[left[is_top]] = (starts < reach)[is_top]
        if is_top.all():
            left = left[:0]
            break
        held = np.flatnonzero(~is_top)
        last_top = np.maximum.accumulate(np.where(is_top, np.arange(len(left)), 0))
        parent[left[held]] = left[last_top[held]]
        left = left[held]
        level += 1
    _nest_deep(Nesting(depth, parent, start, is_overlapping), start, end, left, level)
    self_ps = end - start
    child = np.flatnonzero(parent >= 0)
    if len(child):
        np.subtract.at(self_ps, parent[child], (end - start)[child])
        np.maximum(self_ps, 0, out=self_ps)
    return Nesting(depth, parent, self_ps, is_overlapping)


def _nest_deep(found: Nesting, start: Int64, end: Int64, left: Int64, level: int) -> None:
    """Set the nesting of the events left at a depth, as further rounds would, in time n log n however deep they nest.

    The latest end of the events below a depth never grows with the depth, so the first depth beyond whose events an
    event reaches is found by bisection. The first event in a parent belongs to the next depth, wherever it ends.
    """
    reach: list[int] = []  # latest end of the events at each depth or below, negative, so that it ascends
    latest: list[int] = []  # event of each depth
    is_new: list[bool] = []  # whether the latest event of the depth above holds none that reaches beyond
    new: list[int] = []  # heap of these depths
    owner = -1
    parents = found.parent[left].tolist()
    for i, begin, stop, own in zip(left.tolist(), start[left].tolist(), end[left].tolist(), parents, strict=True):
        first = bisect_right(reach, -max(stop, begin + 1))
        reaches = True
        while new and not is_new[new[0]]:
            heappop(new)
        if first and own != owner:
            first, reaches = 0, False
        elif new and new[0] < first:
            first, reaches = new[0], False
        if first == len(reach):
            reach.append(-stop)
            latest.append(i)
            is_new.append(False)
        else:
            found.is_overlapping[i] = begin < -reach[first]
            reach[first] = min(reach[first], -stop)
            latest[first] = i
        if reaches:
            is_new[first] = False
            owner = own if first == 0 else owner
        if first:
            found.parent[i] = latest[first - 1]
        found.depth[i] = level + first
        if first + 1 < len(reach) and not is_new[first + 1]:
            is_new[first + 1] = True
            heappush(new, first + 1)


def outermost(intervals: Sequence[tuple[int, int]], is_first: Sequence[bool] | None = None) -> list[int]:
    """Return the places of the intervals that begin in no kept earlier one, by start; of equal starts the longest.

    Args:
        intervals: start and end of each.
        is_first: those that are kept first; of the others only those that overlap none of these. By default all.
    """
    by_start = sorted(range(len(intervals)), key=lambda i: (intervals[i][0], -intervals[i][1]))
    if is_first is None:
        return _kept(intervals, by_start)
    kept = _kept(intervals, [i for i in by_start if is_first[i]])
    ends = [intervals[i][1] for i in kept]

    def is_apart(i: int) -> bool:
        after = bisect_right(ends, intervals[i][0])  # the first kept one that ends later
        return after == len(kept) or intervals[kept[after]][0] >= intervals[i][1]

    others = _kept(intervals, [i for i in by_start if not is_first[i] and is_apart(i)])
    return sorted([*kept, *others], key=lambda i: (intervals[i][0], i))


def _kept(intervals: Sequence[tuple[int, int]], by_start: Sequence[int]) -> list[int]:
    kept: list[int] = []
    for i in by_start:
        if not kept or intervals[i][0] >= intervals[kept[-1]][1]:
            kept.append(i)
    return kept


class Coverage:
    """The union of intervals, which can tell how much of any window it covers."""

    def __init__(self, start: Int64, end: Int64) -> None:
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
        reach = np.maximum.accumulate(end) if len(end) else end
        is_first = np.ones(len(start), bool)
        is_first[1:] = start[1:] > reach[:-1]
        first = np.flatnonzero(is_first)
        self.start = start[first]
        self.end = reach[np.append(first[1:] - 1, len(start) - 1)] if len(first) else end
        self._before = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.end - self.start)])

    @classmethod
    def of(cls, parts: Sequence[Coverage]) -> Coverage | None:
        """Return the union of some coverages; None if there is none."""
        if not parts:
            return None
        return cls(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))

    def joined(self, other: Coverage) -> Coverage:
        """Return the union of both."""
        return Coverage(np.concatenate([self.start, other.start]), np.concatenate([self.end, other.end]))

    @property
    def total(self) -> int:
        """Length of the union."""
        return int(self._before[-1])

    def up_to(self, at: Int64) -> Int64:
        """Return the length of the union before each point, shape (k,)."""
        i = self.start.searchsorted(at, side="right") - 1
        known = np.maximum(i, 0)
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        inside = np.minimum(at, self.end[known]) - self.start[known]
        return np.where(i < 0, 0, self._before[known] + inside)

    def within(self, start: Int64, end: Int64) -> Int64:
        """Return the length of the union inside each window [start, end), shape (k,)."""
        return self.up_to(end) - self.up_to(start)
