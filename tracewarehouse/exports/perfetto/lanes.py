"""Divides slices into lanes on which they nest, and orders their begins and ends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


def lanes_of(start: Int64, end: Int64) -> Int64:
    """The lane of each slice, shape (n,): the first on which it lies within, before or after all others.

    Args:
        start: starts, in ascending order; of slices that start together, longer ones first.
        end: ends, exclusive.
    """
    if _nests(start, end):
        return np.zeros(len(start), np.int64)
    lanes = np.empty(len(start), np.int64)
    open_ends: list[list[int]] = []
    for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], begin, stop):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(stop)
        lanes[index] = lane
    return lanes


def begins_and_ends(start: Int64, end: Int64) -> Int64:
    """The order in which slices of one lane begin and end, as numbers: i where slice i begins, n + i where it ends.

    At one time, ends come before begins, inner ends before outer ones and outer begins before inner ones. A slice
    without length has no end.

    Args:
        start: starts, shape (n,), ordered as for `lanes_of`.
        end: ends, exclusive.
    """
    n = len(start)
    index = np.arange(n)
    lasting = np.flatnonzero(end > start)
    times = np.concatenate([start, end[lasting]])
    is_begin = np.concatenate([np.ones(n, bool), np.zeros(len(lasting), bool)])
    order = np.lexsort((np.concatenate([index, -lasting]), is_begin, times))
    return np.concatenate([index, n + lasting])[order]


def _fits(open_ends: list[int], begin: int, stop: int) -> bool:
    """Whether a slice lies within the last open one of a lane, or none is open; closes those that have ended."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or stop <= open_ends[-1]


def _nests(start: Int64, end: Int64) -> bool:
    """Whether no slice ends between the begin and the end of another that began after it."""
    if (start[1:] >= end[:-1]).all():
        return True
    n = len(start)
    order = begins_and_ends(start, end)
    is_lasting = (end > start)[order % n]
    order = order[is_lasting]
    is_begin = order < n
    depth = np.cumsum(np.where(is_begin, 1, -1))
    begin_depth = np.empty(n, np.int64)
    begin_depth[order[is_begin]] = depth[is_begin]
    return bool((begin_depth[order[~is_begin] - n] == depth[~is_begin] + 1).all())
