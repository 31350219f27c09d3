"""A short, fixed part of the fuzzing that `python -m tests.fuzz` does for as long as one likes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fuzz.chrome import ChromeTarget
from fuzz.hlo_text import HloTextTarget
from fuzz.judging import Target, judge, judge_all, make, minimised, run
from fuzz.targets import SHARES, TARGETS
from fuzz.xplane import XPlaneTarget
from xplane_builder import Space, integer
from xplane_reference import Contents, reference

from tracewarehouse.ingest.errors import MalformedError

ROOT = Path(__file__).resolve().parent.parent
# Queries have a fixed part of their own, in tests/tracewarehouse/queries/test_effects.py.
INPUTS = {
    "xplane": 300,
    "xplane-counted": 150,
    "hlo-text": 1000,
    "hlo-proto": 1000,
    "chrome": 60,
    "nsys": 40,
    "kineto": 120,
    "card": 60,
    "manifest": 300,
    "ingest": 1,
    "ingest-divided": 1,
    "ingest-chrome": 12,
}

# The random generator is hypothesis' own source of choices, so that a failure shrinks.


@pytest.mark.parametrize("name", INPUTS)
def test_a_fixed_part_of_the_long_run(name: str) -> None:
    report = run(TARGETS[name](None), seed=1, numbers=range(INPUTS[name]))
    assert not report.failures
    assert report.inputs == INPUTS[name]
    assert 0.2 * report.inputs < report.accepted  # most changes of bytes are rightly refused
    same = sum(n for (_, category), n in report.counts.items() if category == "same rows")
    assert same > 0.2 * report.inputs
    assert report.largest[0] > 0


@pytest.mark.parametrize(
    ("name", "inputs"), [("batches", 100), ("costs", 100), ("experiment", 30), ("definitions", 30)]
)
def test_a_fixed_part_of_descriptions(name: str, inputs: int) -> None:
    report = run(TARGETS[name](None), seed=1, numbers=range(inputs))
    assert not report.failures
    assert 0 < report.accepted < report.inputs == inputs


def test_the_shares_of_all_targets_are_a_whole() -> None:
    assert set(SHARES) == set(TARGETS)
    assert sum(SHARES.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", TARGETS)
def test_an_input_is_repeated_by_its_number(name: str) -> None:
    one, other = (TARGETS[name](None) for _ in range(2))
    assert make(one, 7, 12) == make(other, 7, 12) != make(other, 7, 13)


XPLANE = XPlaneTarget()


# A judge that never finds fault would let everything pass.


def test_the_judge_sees_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space()
    space.plane("p").line("l").raw_event(integer(1, 1), integer(2, 5))
    data = space.to_bytes()
    assert judge(XPLANE, data).category == "same rows"

    def tampered(raw: bytes) -> Contents:
        found = reference(raw)
        found.events[0][0].pop()
        return found

    monkeypatch.setattr("fuzz.xplane.reference", tampered)
    assert judge(XPLANE, data).category == "other rows"


class Faulty(Target):
    """A reader that does what its input says."""

    name = "faulty"

    def make(self, r: random.Random) -> tuple[str, bytes]:
        return "none", b"....crash...."

    def read(self, data: bytes) -> Any:
        if b"crash" in data:
            raise KeyError("crash")
        if b"lines" in data:
            raise MalformedError("two\nlines")
        if b"slow" in data:
            begin = time.thread_time()
            while time.thread_time() - begin < 0.1:
                pass
        if b"large" in data:
            bytes(20 << 20)
        if b"refuse" in data:
            raise MalformedError("refused")
        return data

    def reference(self, data: bytes) -> Any:
        return data


@pytest.mark.parametrize(
    ("data", "category"),
    [
        (b"crash", "exception"),
        (b"lines", "error"),
        (b"slow", "slow"),
        (b"large", "memory"),
        (b"refuse", "refused, legal"),
        (b"", "same rows"),
    ],
)
def test_the_judge_sees_every_kind_of_fault(data: bytes, category: str) -> None:
    bound = 0.001 if category == "slow" else None  # no bound on time but where the input makes sure to pass it
    outcome, _ = judge_all(Faulty(), data, is_traced=True, pace=bound)
    assert outcome.category == category
    assert bool(outcome.failure) == (category != "same rows")


def test_time_has_no_bound_where_no_pace_is_given() -> None:
    assert judge(Faulty(), b"slow").category == "same rows"


def test_a_failing_input_is_minimised() -> None:
    report = run(Faulty(), seed=1, numbers=range(2), keep=1)
    assert report.failed == 2
    assert [f.data for f in report.failures] == [b"crash"]
    assert minimised(b"aaxaa", lambda d: b"x" in d) == b"x"


def test_the_references_differ_from_readers_that_are_wrong() -> None:
    """What each reference says is not taken from the reader."""
    text, chrome = HloTextTarget(), ChromeTarget()
    got = text.read(b"%a = f32[2] all-reduce(%x), replica_groups=[1,2]<=[2]")
    want = text.reference(b"%a = f32[2] all-reduce(%x), replica_groups=[2,1]<=[2]")
    assert "replica_groups" in text.difference(got, want)
    trace = b'[{"ph":"X","ts":%d,"dur":1,"name":"a"}]'
    assert chrome.difference(chrome.read(trace % 1), chrome.reference(trace % 2))


def test_the_command_reports_and_exits_0(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--target", "hlo-proto", "--inputs", "60", "--jobs", "2"]
    done = subprocess.run(
        [*command, "--report", tmp_path / "r.json"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "hlo-proto: 60 inputs of seed 1" in done.stdout
    assert '"inputs": 60' in (tmp_path / "r.json").read_text()
