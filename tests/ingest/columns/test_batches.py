from __future__ import annotations

import numpy as np

from tracewarehouse.ingest.columns.batches import codes, integers
from tracewarehouse.ingest.columns.records import StatColumn, StatKind


def stat(rows: list[int], kinds: list[StatKind], bits: list[int], texts: tuple[bytes, ...] = ()) -> StatColumn:
    return StatColumn("n", np.array(rows, np.int64), np.array(kinds, np.uint8), np.array(bits, np.uint64), texts)


def test_integers_of_both_kinds_and_texts_of_digits_count() -> None:
    kinds = [StatKind.UINT64, StatKind.INT64, StatKind.DOUBLE, StatKind.STRING, StatKind.STRING, StatKind.STRING]
    column = stat([0, 1, 2, 3, 4, 6], kinds, [7, 2**64 - 3, 1, 0, 1, 2], (b"-12", b"1e3", b"1" * 19))
    values, known = integers(column, 7)
    assert values.tolist() == [7, -3, 0, -12, 0, 0, 0]
    assert known.tolist() == [True, True, False, True, False, False, False]


def test_an_event_with_a_stat_twice_has_the_last() -> None:
    values, known = integers(stat([0, 0], [StatKind.INT64, StatKind.UINT64], [1, 2]), 2)
    assert (values.tolist(), known.tolist()) == ([2, 0], [True, False])


def test_texts_have_codes_and_other_kinds_none() -> None:
    column = stat([0, 1, 3], [StatKind.STRING, StatKind.UINT64, StatKind.REF], [1, 0, 0], (b"a", b"\xff"))
    found, texts = codes(column, 4)
    assert (found.tolist(), texts) == ([1, -1, -1, 0], ["a", "\ufffd"])
    assert (codes(None, 2)[0].tolist(), codes(None, 2)[1]) == ([-1, -1], [])
