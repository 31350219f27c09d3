"""What ingest tells of the order of leaf ops is what all ops of the device give, however its lines are cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES
from tracewarehouse.ingest.lake.parquet import Nullable
from tracewarehouse.ingest.tables.leaf_ops import LeafOrder, LeafTimes, lines_leaf_times

_CLASSES = st.sampled_from(OP_CLASSES)
_EVENTS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), _CLASSES, st.booleans()), max_size=40)
_LINES = st.lists(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 15), _CLASSES), max_size=12), min_size=1, max_size=4
)
Event = tuple[int, int, str]
"""Start, duration and class."""


def _columns(events: list[Event]) -> tuple[Any, Any, Any]:
    start = np.array([e[0] for e in events], np.int64)
    return start, start + np.array([e[1] for e in events], np.int64), _codes(events)


def _codes(events: list[Event]) -> Any:
    return np.array([OP_CLASSES.index(e[2]) for e in events], np.int8)  # type: ignore[arg-type]


def _rows(times: LeafTimes) -> list[dict[str, int | None]]:
    columns = {name: _values(column) for name, column in times.columns().items()}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(column: Nullable) -> list[int | None]:
    return [int(v) if known else None for v, known in zip(column.values, column.is_known, strict=True)]


def _moments(events: list[Event]) -> set[int]:
    return {t for start, duration, _ in events for t in range(start, start + duration)}


def _expected(events: list[Event]) -> list[dict[str, int | None]]:
    """By brute force over moments, of events in order of start."""
    leaves = [e for e in events if e[2] != "container"]
    working = ("compute", "communication")
    work = _moments([e for e in leaves if e[2] in working])
    rows = []
    for at, event in enumerate(events):
        start, _, kind = event
        row: dict[str, int | None] = dict.fromkeys(
            ("idle_before", "overlap", "class_overlap", "work_before", "work_during")
        )
        if kind != "container":
            before = [e for e in events[:at] if e[2] != "container"]
            own = _moments([event])
            if before:
                row["idle_before"] = max(start - max(s + n for s, n, _ in before), 0)
            row["overlap"] = len(own & _moments(before))
            row["class_overlap"] = len(own & _moments([e for e in before if e[2] == kind]))
            if kind not in working:
                row["work_before"] = len({t for t in work if t < start})
                row["work_during"] = len(own & work)
        rows.append(row)
    return rows


@given(events=_EVENTS)
def test_a_line_in_chunks_that_nothing_crosses(events: list[Any]) -> None:
    events.sort(key=lambda e: e[0])
    found: list[dict[str, int | None]] = []
    order = LeafOrder()
    begin = 0
    for at, (*_, is_cut) in enumerate(events):
        is_last = at == len(events) - 1
        is_break = is_last or max(s + n for s, n, *_ in events[: at + 1]) <= events[at + 1][0]
        if is_last or (is_cut and is_break and events[at + 1][0] > events[at][0]):
            found += _rows(order.follow(*_columns([e[:3] for e in events[begin : at + 1]])))
            begin = at + 1
    assert found == _expected([e[:3] for e in events])


@given(events=_EVENTS)
def test_cut_anywhere_the_durations_without_overlap_add_up_to_the_union(events: list[Any]) -> None:
    events.sort(key=lambda e: e[0])
    order = LeafOrder()
    overlap = class_overlap = 0
    for event in events:
        [row] = _rows(order.follow(*_columns([event[:3]])))
        overlap += row["overlap"] or 0
        class_overlap += row["class_overlap"] or 0
    leaves = [e[:3] for e in events if e[2] != "container"]
    assert sum(n for _, n, _ in leaves) - overlap == len(_moments(leaves))
    of_classes = [len(_moments([e for e in leaves if e[2] == kind])) for kind in OP_CLASSES]
    assert sum(n for _, n, _ in leaves) - class_overlap == sum(of_classes)


@given(lines=_LINES)
def test_lines_of_one_device_are_merged(lines: list[list[Event]]) -> None:
    found = [row for times in lines_leaf_times([_columns(events) for events in lines]) for row in _rows(times)]
    events = [event for events in lines for event in events]
    order = sorted(range(len(events)), key=lambda i: (events[i][0], i))
    expected = _expected([events[i] for i in order])
    assert [found[i] for i in order] == expected


@given(events=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25))
def test_an_event_overlaps_where_one_of_its_depth_has_not_ended(events: list[tuple[int, int]]) -> None:
    events.sort(key=lambda e: (e[0], -e[1]))
    start, length = (np.array(c, np.int64) for c in (zip(*events, strict=True) if events else ((), ())))
    found = nest(start, start + length)
    for at, (begin, _) in enumerate(events):
        before = [sum(e) for e, depth in zip(events[:at], found.depth, strict=False) if depth == found.depth[at]]
        assert found.is_overlapping[at] == any(end > begin for end in before)
