"""Sorts and counts rows by keys of several integer columns, packed into one integer each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int32, Int64

Integers = npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_]


def packed(columns: Sequence[Integers]) -> Int64:
    """Return one integer per row; they compare as the rows' values do, and the first column counts most."""
    key = np.zeros(len(columns[0]), np.int64)
    if not len(key):
        return key
    size = 1
    for column in columns:
        low = int(column.min())
        width = int(column.max()) - low + 1
        if width > 1 << 32:
            column = np.unique(column, return_inverse=True)[1]
            low, width = 0, int(column.max()) + 1
        if size * width > 1 << 62:
            key = np.unique(key, return_inverse=True)[1]
            size = int(key.max()) + 1
        key *= width
        key += column
        key -= low
        size *= width
    return key


def distinct(codes: Int32) -> tuple[Integers, Int32]:
    """Return the distinct values of small integers from -1 on, ascending, and each row's index among them; unsorted."""
    counts = np.bincount(codes + 1)
    used = np.flatnonzero(counts)
    index = np.empty(len(counts), np.int32)
    index[used] = np.arange(len(used))
    return used - 1, index[codes + 1]


def occurrence(key: Int64, start: Int64 | None = None) -> Int64:
    """Return each row's number among the rows of its key, from 0, in order of start or in the given order."""
    order = np.argsort(key, kind="stable") if start is None else np.lexsort((start, key))
    at = np.arange(len(order))
    count = np.empty(len(order), np.int64)
    count[order] = at - np.maximum.accumulate(np.where(is_new(key[order]), at, 0))
    return count


def rank(key: Int64, value: Integers) -> Int64:
    """Return the rank of each row's value among the distinct values of its key, from 0."""
    both = packed([key, value])
    order = np.argsort(both, kind="stable")
    new_key = is_new(key[order])
    dense = np.cumsum(is_new(both[order]))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = dense - np.maximum.accumulate(np.where(new_key, dense, 0))
    return ranks


def is_new(ordered: Integers) -> npt.NDArray[np.bool_]:
    """Return whether each of the ordered values differs from the one before; the first counts as new."""
    differs = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=differs[1:])
    return differs
