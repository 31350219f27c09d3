"""Finds the call that captured each kernel of a CUDA graph's replay, where the trace has the capture.

A replay launches all its kernels by one call, around which are no modules. While a stream is captured, the calls that
launch run nothing: the graph keeps their kernels, in their order. So the n-th kernel of a replay is that of the n-th
call of a capture with as many calls. What captured calls and calls that ran at once say of kernels must agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.readers.kineto.events import SHAPE_NAMES, Family, Table

_BEGINS = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture")
_ENDS = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")
_WORKS = re.compile(r"(?:cuda|cu|hip)\w*(?:Launch\w*Kernel|Memcpy\w*Async|Memset\w*Async)")
_NODE = SHAPE_NAMES.index("graph node id")
_AGREEING = 0.9
"""Least share of a replay's kernels, of those that also ran without a graph, that the same operators launched there."""


def captured_calls(table: Table, rows: Int64, launch: Int64, is_graph: Flags) -> Iterator[tuple[Int64, list[Int64]]]:
    """Yield the events of each replayed graph, and the captures that may be its own.

    Args:
        rows: the rows of the device's events.
        launch: row of the call that launched each, -1 for none, shape of `rows`.
        is_graph: whether that call replays a graph, shape of `rows`.

    Yields:
        Places in `rows` of the events of all replays of a graph, shape (replays, n), each in the order of the graph.
        For each capture of n calls their rows, shape (n,).
    """
    replayed = np.flatnonzero(is_graph)
    captures = _captures(table, rows) if len(replayed) else []
    if not captures:
        return
    node = _nodes(table, rows[replayed])
    replayed = replayed[np.lexsort((table.start[rows[replayed]], node, launch[replayed]))]
    graphs: dict[bytes, list[Int64]] = {}
    for own in np.split(replayed, np.flatnonzero(np.diff(launch[replayed])) + 1):
        graphs.setdefault(table.name[rows[own]].tobytes(), []).append(own)
    for replays in graphs.values():
        if fitting := [calls for calls in captures if len(calls) == len(replays[0])]:
            yield np.stack(replays), fitting


def agrees(kernel: Int64, operator: Int64, eager: Mapping[int, set[int]]) -> bool:
    """Return whether the operators of a capture launch such kernels where no graph does.

    Args:
        kernel: numbers of the names of a replay's kernels, shape (n,).
        operator: numbers of the names of the operators around the captured calls, shape (n,).
        eager: by kernel the operators that launched it without a graph.
    """
    pairs = [(eager[k], op) for k, op in zip(kernel.tolist(), operator.tolist(), strict=True) if k in eager]
    return sum(op in known for known, op in pairs) >= _AGREEING * len(pairs)


def _captures(table: Table, rows: Int64) -> list[Int64]:
    """Return the rows of the calls of each capture, in their order."""
    calls = table.rows(Family.LAUNCH)
    calls = calls[np.argsort(table.start[calls], kind="stable")]
    begins, ends, works = (_called(table, pattern)[table.name[calls]] for pattern in (_BEGINS, _ENDS, _WORKS))
    if not ends.any():
        return []
    ran = np.isin(table.link[calls], table.link[rows]) & (table.link[calls] > 0)
    is_captured, found = works & ~ran, []
    begun: dict[int, int] = {}
    for place in np.flatnonzero(begins | ends).tolist():
        line = int(table.line[calls[place]])
        if begins[place]:
            begun[line] = place
        elif (first := begun.pop(line, None)) is not None:
            found.append(calls[first:place][is_captured[first:place]])
    return found


def _called(table: Table, pattern: re.Pattern[str]) -> Flags:
    """Return which of the names of a trace a pattern matches."""
    return np.array([bool(pattern.match(name)) for name in table.names] or [False], bool)


def _nodes(table: Table, rows: Int64) -> Int64:
    """Return the number of each event's node in its graph, which counts in the order of the capture; 0 for unknown."""
    nodes = [shape[_NODE] if shape else None for shape in table.shapes]
    known = np.array([n if type(n) is int and 0 <= n < 1 << 62 else -1 for n in nodes], np.int64)[table.detail[rows]]
    return known if (known >= 0).all() else np.zeros(len(rows), np.int64)
