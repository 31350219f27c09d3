"""Keys against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.keys import distinct, occurrence, packed, rank

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
rows = st.lists(st.tuples(st.one_of(st.integers(-2, 2), INT64), st.integers(0, 3), INT64, INT64), max_size=20)


@given(rows)
def test_packed_keys_are_ordered_and_equal_as_their_rows(found: list[tuple[int, ...]]) -> None:
    key = packed([np.array([r[i] for r in found], np.int64) for i in range(4)]).tolist()
    for i, a in enumerate(found):
        for j, b in enumerate(found):
            assert (a < b, a == b) == (key[i] < key[j], key[i] == key[j])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=20))
def test_occurrence_counts_equal_keys_by_start(found: list[tuple[int, int]]) -> None:
    key, start = (np.array([r[i] for r in found], np.int64) for i in (0, 1))
    expected = [
        sum(k == key[i] and (start[j], j) < (start[i], i) for j, k in enumerate(key)) for i in range(len(found))
    ]
    assert occurrence(key, start).tolist() == expected
    assert occurrence(key).tolist() == [sum(k == key[i] for k in key[:i]) for i in range(len(found))]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 5)), max_size=20))
def test_rank_is_among_the_distinct_values_of_a_key(found: list[tuple[int, int]]) -> None:
    key, value = (np.array([r[i] for r in found], np.int64) for i in (0, 1))
    expected = [sorted({v for k, v in found if k == key[i]}).index(value[i]) for i in range(len(found))]
    assert rank(key, value).tolist() == expected


@given(st.lists(st.integers(-1, 9), min_size=1, max_size=20))
def test_distinct_is_unique(codes: list[int]) -> None:
    used, index = distinct(np.array(codes, np.int32))
    assert used.tolist() == sorted(set(codes))
    assert used[index].tolist() == codes
