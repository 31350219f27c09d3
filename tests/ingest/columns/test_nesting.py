"""Nesting and coverage against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pytest import MonkeyPatch

from tracewarehouse.ingest.columns import nesting
from tracewarehouse.ingest.columns.nesting import Coverage, nest

intervals = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12)), max_size=30)


def ordered(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    rows = sorted(((s, s + d) for s, d in pairs), key=lambda p: (p[0], -p[1]))
    array = np.array(rows, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def test_loop_holds_its_body() -> None:
    #  0         10        20        30
    #  |while....................|
    #    |fusion.....|  |dot...|     |copy|
    #      |inner|
    start = np.array([0, 2, 4, 16, 30])
    end = np.array([26, 14, 10, 24, 35])
    found = nest(start, end)
    assert found.depth.tolist() == [0, 1, 2, 1, 0]
    assert found.parent.tolist() == [-1, 0, 1, 0, -1]
    assert found.self_ps.tolist() == [26 - 12 - 8, 12 - 6, 6, 8, 5]


def test_events_that_overlap_in_part_are_siblings() -> None:
    found = nest(np.array([0, 5]), np.array([10, 12]))
    assert found.parent.tolist() == [-1, -1]
    assert found.self_ps.tolist() == [10, 7]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=25), st.randoms(use_true_random=False))
def test_a_random_tree_is_found_again(durations: list[int], random) -> None:  # type: ignore[no-untyped-def]
    """Intervals built as a tree give back its parents, depths and self times."""
    rows: list[tuple[int, int, int, int]] = []  # start, end, parent, depth

    def grow(start: int, end: int, parent: int, depth: int, budget: list[int]) -> None:
        at = start
        while budget and at < end:
            width = min(budget.pop(), end - at)
            gap = random.choice([0, 0, 1])
            if at + gap + width > end:
                return
            index = len(rows)
            rows.append((at + gap, at + gap + width, parent, depth))
            if width > 1 and random.random() < 0.5 and (at + gap, at + gap + width) != (start, end):
                grow(at + gap, at + gap + width, index, depth + 1, budget)
            at += gap + width

    grow(0, 10_000, -1, 0, [d * random.choice([1, 5, 20]) for d in durations])
    order = sorted(range(len(rows)), key=lambda i: (rows[i][0], -rows[i][1], rows[i][3]))
    place = {old: new for new, old in enumerate(order)} | {-1: -1}
    found = nest(np.array([rows[i][0] for i in order]), np.array([rows[i][1] for i in order]))
    assert found.parent.tolist() == [place[rows[i][2]] for i in order]
    assert found.depth.tolist() == [rows[i][3] for i in order]
    held = [sum(r[1] - r[0] for r in rows if r[2] == i) for i in order]
    assert found.self_ps.tolist() == [rows[i][1] - rows[i][0] - h for i, h in zip(order, held, strict=True)]


@given(intervals)
def test_a_parent_holds_its_children(pairs: list[tuple[int, int]]) -> None:
    start, end = ordered(pairs)
    found = nest(start, end)
    for i, p in enumerate(found.parent.tolist()):
        assert p < i
        if p >= 0:
            assert start[p] <= start[i]
            assert end[i] <= end[p]
            assert found.depth[i] == found.depth[p] + 1
        else:
            assert found.depth[i] == 0
    assert (found.self_ps >= 0).all()
    assert (found.self_ps <= end - start).all()


@given(intervals, st.integers(0, 3))
def test_deep_events_nest_as_shallow_ones(pairs: list[tuple[int, int]], rounds: int) -> None:
    """The walk that finds deep events gives what rounds give, event by event."""
    start, end = ordered(pairs)
    by_rounds = nest(start, end)
    with MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_ROUNDS", rounds)
        by_walk = nest(start, end)
    for name, values in vars(by_rounds).items():
        assert getattr(by_walk, name).tolist() == values.tolist(), name


def test_events_may_nest_in_any_depth() -> None:
    """The work grows with the events, not with events times depths: rounds for these would take an hour."""
    count = 200_000
    start, end = np.arange(count), 2 * count - np.arange(count)
    found = nest(start, end)
    assert (found.depth == start).all()
    assert (found.parent == start - 1).all()
    assert (found.self_ps[:-1] == 2).all()


@given(intervals, intervals)
def test_coverage_equals_sets_of_points(pairs: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    start, end = ordered(pairs)
    points = {t for s, e in zip(start.tolist(), end.tolist(), strict=True) for t in range(s, e)}
    covered = Coverage(start, end)
    assert covered.total == len(points)
    a, b = ordered(windows)
    expected = [len(points & set(range(s, e))) for s, e in zip(a.tolist(), b.tolist(), strict=True)]
    assert covered.within(a, b).tolist() == expected
