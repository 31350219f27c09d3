"""A short part of the fuzzing that tests/fuzz/fuzz_xplane.py does for as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fuzz.xplane_mutations import MUTATIONS, judge, mutated, random_space, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from xplane_builder import Space, content, integer
from xplane_reference import reference

# The random generator is hypothesis' own source of choices, so that a failure shrinks.
PROPERTY = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@PROPERTY
@given(r=st.randoms(use_true_random=False))
def test_generated_captures_equal_protobufs(r: random.Random, tmp_path: Path) -> None:
    outcome = judge(random_space(r), tmp_path / "x.pb")
    assert outcome.category in {"same rows", "refused, legal: times beyond int64"}, outcome


@PROPERTY
@given(r=st.randoms(use_true_random=False), mutation=st.sampled_from(MUTATIONS), inside=st.booleans())
def test_damaged_captures_equal_protobufs_or_are_refused(
    r: random.Random, mutation: str, inside: bool, tmp_path: Path
) -> None:
    data = random_space(r, mutation) if inside else mutated(r, random_space(r), mutation)
    outcome = judge(data, tmp_path / "x.pb")
    assert not outcome.failure, outcome
    assert "OTHER" not in outcome.category, outcome


@PROPERTY
@given(data=st.binary(max_size=200))
def test_bytes_that_are_no_capture(data: bytes, tmp_path: Path) -> None:
    assert not judge(data, tmp_path / "x.pb").failure


@PROPERTY
@given(line=st.binary(max_size=100))
def test_bytes_that_are_no_line(line: bytes, tmp_path: Path) -> None:
    assert not judge(content(1, content(3, line)), tmp_path / "x.pb").failure


def test_a_fixed_part_of_the_long_run() -> None:
    report = run(seed=1, first=0, count=1500)
    assert not report.failures
    categories = {category for _, category in report.counts}
    assert {"same rows", "both refuse"} <= categories
    assert sum(n for (_, category), n in report.counts.items() if category == "same rows") > 300


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_damage_is_repeatable(mutation: str) -> None:
    a, b = (mutated(random.Random(5), random_space(random.Random(4)), mutation) for _ in range(2))
    assert a == b


def test_the_judge_sees_a_wrong_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that never finds fault would let everything pass."""
    space = Space()
    space.plane("p").line("l").raw_event(integer(1, 1), integer(2, 5))
    data = space.to_bytes()
    assert judge(data, tmp_path / "x.pb").category == "same rows"

    def tampered(raw: bytes) -> object:
        found = reference(raw)
        found.events[0][0].pop()
        return found

    monkeypatch.setattr("fuzz.xplane_mutations.reference", tampered)
    assert judge(data, tmp_path / "x.pb").category == "other rows"
