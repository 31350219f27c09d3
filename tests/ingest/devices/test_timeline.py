"""What a timeline says of times, against a look at each of its intervals."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.records import PHASES
from tracewarehouse.ingest.devices.timeline import MarkedTime, Run, Step, StepMarker, Timeline

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
