"""What ingest tells of the order of leaf ops is what all ops before each of them give, however the line is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.lake.parquet import Nullable
from tracewarehouse.ingest.tables.leaf_order import LeafOrder

_EVENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12), st.booleans(), st.booleans(), st.booleans()), max_size=40
)


def _values(column: Nullable) -> list[int | None]:
    return [int(v) if known else None for v, known in zip(column.values, column.is_known, strict=True)]


@given(events=_EVENTS)
def test_each_leaf_op_against_all_before_it(events: list[Any]) -> None:
    events.sort(key=lambda e: e[0])
    idle: list[int | None] = []
    compute: list[int | None] = []
    order = LeafOrder()
    begin = 0
    for at, (*_, is_cut) in enumerate(events):
        if is_cut or at == len(events) - 1:
            start, length, leaf, computes = (np.array(c) for c in list(zip(*events[begin : at + 1], strict=True))[:4])
            found = order.follow(start, start + length, leaf, computes)
            idle += _values(found[0])
            compute += _values(found[1])
            begin = at + 1
    for at, (start, _, is_leaf, is_compute, _) in enumerate(events):
        before = [e for e in events[:at] if e[2]]
        assert idle[at] == (start - max(s + n for s, n, *_ in before) if is_leaf and before else None)
        expected = sum(n for _, n, _, computes, _ in before if computes)
        assert compute[at] == (expected if is_leaf and not is_compute else None)


@given(events=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25))
def test_an_event_overlaps_where_one_of_its_depth_has_not_ended(events: list[tuple[int, int]]) -> None:
    events.sort(key=lambda e: (e[0], -e[1]))
    start, length = (np.array(c, np.int64) for c in (zip(*events, strict=True) if events else ((), ())))
    found = nest(start, start + length)
    for at, (begin, _) in enumerate(events):
        before = [sum(e) for e, depth in zip(events[:at], found.depth, strict=False) if depth == found.depth[at]]
        assert found.is_overlapping[at] == any(end > begin for end in before)
