"""The marker of a time is the last to begin of those that last, however they overlap."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tracewarehouse.ingest.devices.timeline import MarkedTime, StepMarker

MARKERS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8)


@settings(deadline=None)
@given(MARKERS)
def test_the_innermost_marker_is_that_of_a_search_through_all(spans: list[tuple[int, int]]) -> None:
    markers = [StepMarker("decode", step, start, start + length) for step, (start, length) in enumerate(spans)]
    marked = MarkedTime(markers)
    for at in range(45):
        lasting = [m for m in markers if m.start_ps <= at <= m.end_ps]
        expected = max(lasting, key=lambda m: (m.start_ps, m.step), default=None)
        assert marked.innermost(at) is expected
