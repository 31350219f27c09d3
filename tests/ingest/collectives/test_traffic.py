from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracewarehouse.ingest.collectives import participants
from tracewarehouse.ingest.collectives.participants import traffic_edges, wire_bytes
from tracewarehouse.ingest.errors import MalformedError

GROUPED = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


@pytest.mark.parametrize(
    ("kind", "groups", "size", "expected"),
    [
        ("all-reduce", [(0, 1, 2, 3)], 1000, [(0, 1, 1500), (1, 2, 1500), (2, 3, 1500), (3, 0, 1500)]),
        ("all-gather", [(5, 1, 3)], 300, [(5, 1, 200), (1, 3, 200), (3, 5, 200)]),  # in the order of the group
        ("all-to-all", [(0, 2), (1, 3)], 100, [(0, 2, 50), (2, 0, 50), (1, 3, 50), (3, 1, 50)]),
        ("collective-permute", [(0, 2), (2, 0), (1, 1)], 7, [(0, 2, 7), (2, 0, 7)]),
        ("send", [(0, 1)], 7, [(0, 1, 7)]),
        ("recv", [(0, 1)], 7, []),  # which its send counts
    ],
)
def test_bytes_from_device_to_device(
    kind: str, groups: list[tuple[int, ...]], size: int, expected: list[tuple[int, int, int]]
) -> None:
    assert traffic_edges(kind, groups, size) == expected
    assert wire_bytes("recv", 2, 7) == 0


@pytest.mark.parametrize("kind", ["ragged-all-to-all", "collective-broadcast", "fusion"])
def test_no_model_no_edges(kind: str) -> None:
    assert traffic_edges(kind, [(0, 1)], 100) == []
    assert wire_bytes(kind, 2, 100) is None


def test_edges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(participants, "MAX_EDGES", 100)
    assert len(traffic_edges("all-to-all", [range(10)], 100)) == 90
    with pytest.raises(MalformedError, match="pairs of devices"):
        traffic_edges("all-to-all", [range(11)], 110)


GROUPS = st.permutations(range(12)).flatmap(
    lambda devices: st.lists(st.integers(0, 12), min_size=2, max_size=4).map(
        lambda cuts: [tuple(devices[a:b]) for a, b in zip(sorted(cuts), sorted(cuts)[1:], strict=False) if b > a]
    )
)


@given(st.sampled_from(GROUPED), GROUPS, st.integers(0, 1 << 60))
def test_wire_bytes_are_the_row_and_column_sums(kind: str, groups: list[tuple[int, ...]], size: int) -> None:
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for source, target, moved in traffic_edges(kind, groups, size):
        assert source != target
        assert moved > 0
        assert any(source in group and target in group for group in groups)
        sent[source] += moved
        received[target] += moved
    for group in groups:
        for device in group:
            assert sent[device] == received[device] == wire_bytes(kind, len(group), size)


@given(st.permutations(range(6)), st.integers(0, 1 << 60))
def test_wire_bytes_of_a_permute(targets: list[int], size: int) -> None:
    pairs = list(enumerate(targets))
    sent = {source: moved for source, _, moved in traffic_edges("collective-permute", pairs, size)}
    for source, target in pairs:
        expected = 0 if source == target else wire_bytes("collective-permute", 2, size)
        assert sent.get(source, 0) == expected


@given(st.sampled_from(GROUPED), st.integers(1, 64), st.integers(0, 1 << 60))
def test_wire_bytes_are_the_share_of_the_model_rounded_down(kind: str, n: int, size: int) -> None:
    share = Fraction(n - 1, n) * (2 if kind == "all-reduce" else 1)
    exact = share * size
    found = wire_bytes(kind, n, size)
    assert found is not None
    # all-to-all rounds down what goes to each of the n - 1 others
    assert found == (floor(Fraction(size, n)) * (n - 1) if kind == "all-to-all" else floor(exact))
    if size % n == 0:
        assert found == exact


def test_no_devices_no_value() -> None:
    assert wire_bytes("all-reduce", 0, 10) is None
    assert wire_bytes("all-reduce", 1, 10) == 0
