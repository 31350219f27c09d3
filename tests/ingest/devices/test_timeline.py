"""What a timeline says of times, against a look at each of its intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.records import PHASES
from tracewarehouse.ingest.devices import timeline
from tracewarehouse.ingest.devices.timeline import (
    MarkedTime,
    Run,
    Step,
    StepMarker,
    Timeline,
    launch_offsets,
    steps_marked,
)

_TIMES = st.lists(st.integers(-5, 40), max_size=30)


@given(
    intervals=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8, unique_by=lambda i: i[0]),
    times=st.one_of(_TIMES, _TIMES.map(sorted)),
)
def test_an_execution_holds_a_time_until_it_ends_and_a_step_until_the_next_begins(
    intervals: list[tuple[int, int]], times: list[int]
) -> None:
    intervals.sort()
    placed = [(i, start, start + size) for i, (start, size) in enumerate(intervals)]
    runs = [Run("m", None, start, end) for _, start, end in placed]
    steps = [Step(10 + i, ("prefill", "decode", None)[i % 3], "s", start, end, "") for i, start, end in placed]
    timeline = Timeline(runs, steps)
    at = np.array(times, np.int64)
    step, phase = timeline.steps_at(at)
    for found, number, code, time in zip(timeline.executions_at(at), step, phase, times, strict=True):
        begun = [i for i, (start, _) in enumerate(intervals) if start <= time]
        last = begun[-1] if begun and time < sum(intervals[begun[-1]]) else None
        assert found == (-1 if last is None else last)
        is_owned = begun and (begun[-1] + 1 < len(intervals) or time < sum(intervals[-1]))
        owner = begun[-1] if is_owned else None
        assert number == (-1 if owner is None else 10 + owner)
        outside = "outside" if intervals else None
        expected = outside if owner is None else ("prefill", "decode", None)[owner % 3]
        assert (PHASES[code] if code >= 0 else None) == expected


def test_without_steps_nothing_is_outside_unless_another_device_has_some() -> None:
    timeline = Timeline([Run("m", None, 0, 10)], [])
    assert [column.tolist() for column in timeline.steps_at(np.array([5]))] == [[-1], [-1]]
    timeline.set_run_has_steps()
    assert [column.tolist() for column in timeline.steps_at(np.array([5]))] == [[-1], [PHASES.index("outside")]]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8))
def test_the_innermost_marker_is_that_of_a_search_through_all(spans: list[tuple[int, int]]) -> None:
    """It is the last to begin of those that last, however they overlap."""
    markers = [StepMarker("decode", step, start, start + length) for step, (start, length) in enumerate(spans)]
    marked = MarkedTime(markers)
    for at in range(45):
        lasting = [m for m in markers if m.start_ps <= at <= m.end_ps]
        expected = max(lasting, key=lambda m: (m.start_ps, m.step), default=None)
        assert marked.innermost(at) is expected


def last_end(source: str, runs: list[tuple[str, int]]) -> int:
    """End of the last of two steps, at 0 and 100, of a device whose programs each take 10."""
    steps = [Step(i, None, "s", 100 * i, 100 * i + 20, source) for i in (0, 1)]
    return Timeline([Run(name, None, at, at + 10) for name, at in runs], steps).steps[-1].end_ps


def test_the_last_step_lasts_until_what_follows_it_has_ended() -> None:
    assert last_end("step line", [("f", 0), ("f", 100)]) == 120
    assert last_end("step line", [("f", 0), ("g", 50), ("f", 100), ("g", 150)]) == 160
    assert last_end("step line", [("f", 0), ("f", 100), ("g", 150)]) == 160


def test_what_follows_the_last_mark_counts_if_it_follows_earlier_ones_too() -> None:
    """The program h, which checks the result, follows none."""
    assert last_end("marker", [("f", 0), ("f", 100), ("h", 150)]) == 120
    assert last_end("marker", [("f", 0), ("g", 50), ("f", 100), ("g", 150), ("h", 170), ("g", 200)]) == 160


def test_all_that_follows_moves_with_its_step() -> None:
    timeline = Timeline([Run("f", None, 0, 10), Run("g", None, 50, 60)], [Step(0, None, "s", 0, 20, "step line")])
    timeline.move(1000)
    assert [(s.start_ps, s.end_ps) for s in timeline.steps] == [(1000, 1060)]


def marked(*spans: tuple[str, int, int, int], thread: int = 0) -> list[StepMarker]:
    return [StepMarker(name, step, start, end, thread) for name, step, start, end in spans]


def kept(markers: list[StepMarker]) -> list[tuple[str, int, int]]:
    return [(m.name, m.step, m.start_ps) for m in steps_marked(markers)]


def test_the_mark_that_names_a_phase_wins_over_those_around_it_and_inside_it() -> None:
    inside = marked(("decode", 0, 0, 20), ("forward", 10, 1, 19), ("inner", 20, 2, 18), ("decode", 1, 30, 50))
    assert kept(inside) == [("decode", 0, 0), ("decode", 1, 30)]
    around = marked(("request", 0, 0, 90), ("prefill", 5, 1, 9), ("decode", 6, 10, 19), ("warmup", 3, 100, 110))
    assert kept(around) == [("prefill", 5, 1), ("decode", 6, 10), ("warmup", 3, 100)]
    neutral = marked(("train", 4, 0, 20), ("forward", 0, 1, 9), ("backward", 0, 10, 19), ("train", 5, 20, 40))
    assert kept(neutral) == [("train", 4, 0), ("train", 5, 20)]


def test_numbers_that_count_anew_are_further_steps() -> None:
    """Prefill and decode that both count from 0, and a second request; but not two marks of one step."""
    phases = marked(("prefill", 0, 0, 9), ("decode", 0, 10, 19), ("decode", 1, 20, 29))
    assert kept(phases) == [("prefill", 0, 0), ("decode", 1, 10), ("decode", 2, 20)]
    requests = marked(("decode", 0, 0, 9), ("decode", 1, 10, 19), ("decode", 0, 20, 29), ("decode", 1, 30, 39))
    assert [step for _, step, _ in kept(requests)] == [0, 1, 2, 3]
    halves = marked(("forward", 7, 0, 9), ("sample", 7, 10, 19), ("forward", 8, 20, 29), ("sample", 8, 30, 39))
    assert [step for _, step, _ in kept(halves)] == [7, 7, 8, 8]


def test_threads_that_mark_the_same_steps_number_them_alike() -> None:
    one = marked(("prefill", 0, 0, 9), ("decode", 0, 10, 19))
    other = marked(("prefill", 0, 3, 9), ("decode", 0, 13, 19), thread=1)
    assert kept([*one, *other]) == [("prefill", 0, 0), ("decode", 1, 10), ("prefill", 0, 3), ("decode", 1, 13)]
    assert kept(steps_marked([*one, *other])) == kept([*one, *other])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from((0, 0, 3, 40))), max_size=6))
def test_launches_that_devices_lack_are_those_that_overlap_best(devices: list[tuple[int, int, int]]) -> None:
    """Each device has launches of a period of 10 from one to another, some on a clock of their own."""
    own = {
        d: [(10 * i + shift, 10 * i + shift + 7) for i in range(a, b + 1)] for d, (a, b, shift) in enumerate(devices)
    }
    found = launch_offsets(
        [(d, Timeline([Run("m", 1, *t) for t in ts], [])) for d, ts in own.items()], dict.fromkeys(own, 0)
    )
    placed: list[tuple[list[tuple[int, int]], int]] = []
    for device in sorted((d for d in own if own[d]), key=lambda d: -len(own[d])):
        mine, offset = own[device], 0
        for other, of in sorted(placed, key=lambda p: len(p[0])):
            together = [
                sum(a < end and start < b for (a, b), (start, end) in zip(mine, other[lacks:], strict=False))
                for lacks in range(len(other) - len(mine) + 1)
            ]
            if max(together) >= 0.9 * len(mine):
                offset = of + together.index(max(together))
                break
        placed.append((mine, offset))
        assert found[device].tolist() == [offset] * len(mine) if offset else device not in found


def test_a_device_is_compared_with_so_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a capture of many devices that ran at different times would take the square of their number."""
    compared: list[int] = []
    together = timeline._together
    monkeypatch.setattr(timeline, "_COMPARED", 4)
    monkeypatch.setattr(timeline, "_together", lambda *of: compared.append(1) or together(*of))
    apart = [(d, Timeline([Run("m", 1, 10 * d, 10 * d + 1)], [])) for d in range(50)]
    assert launch_offsets(apart, dict.fromkeys(range(50), 0)) == {}
    assert len(compared) == 4 * 50 - (4 + 3 + 2 + 1)
