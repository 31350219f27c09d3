"""Which columns and mark a chart takes by itself, and what it draws."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import altair as alt
import pyarrow as pa
import pytest

from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.quick_chart import MARKS, MOST_ROWS, quick_chart


def result(**columns: Any) -> QueryResult:
    return QueryResult(pa.table(columns))


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"name": ["a", "b"], "ms": [1.0, 2.0]}, ("ms", "name", "", "bar")),
        ({"run_id": ["r1", "r2"], "name": ["a", "b"], "ms": [1.0, 2.0]}, ("ms", "name", "run_id", "bar")),
        ({"name": ["a", "a", "b", "b"], "kind": ["x", "y"] * 2, "n": [1, 2, 3, 4]}, ("n", "name", "kind", "bar")),
        ({"step": [1, 2, 3], "step_ms": [3.0, 2.0, 1.0]}, ("step", "step_ms", "", "point")),
        ({"device_id": [0, 1], "busy_ms": [1.5, 2.5]}, ("device_id", "busy_ms", "", "point")),
        ({"phase": ["p"] * 9 + ["d"], "step": range(10), "ms": range(10)}, ("step", "ms", "phase", "point")),
        ({"at": pa.array([1, 2], pa.timestamp("us")), "ms": [1, 2]}, ("at", "ms", "", "line")),
        ({"name": ["a", "b"]}, ("", "", "", "bar")),
        ({"n": [1, 2]}, ("", "", "", "bar")),
    ],
)
def test_columns_are_chosen_by_what_they_hold(columns: dict[str, Any], expected: tuple[str, ...]) -> None:
    chart = quick_chart(result(**columns), {})
    assert (chart.x, chart.y, chart.color, chart.mark) == expected
    assert (chart.specification is None) == (not chart.x)
    assert bool(chart.said) == (not chart.x)


def test_what_is_chosen_is_drawn_and_what_is_unknown_is_not() -> None:
    rows = result(name=["a", "b"], kind=["x", None], ms=[1.0, None], n=[Decimal("1.5"), Decimal("2.5")])
    chart = quick_chart(rows, {"x": "n", "y": "ms", "color": "kind", "mark": "line"})
    assert chart.specification is not None
    assert chart.specification["datasets"]["rows"] == [
        {"c0": 1.5, "c1": 1.0, "c2": "x"},
        {"c0": 2.5, "c1": None, "c2": "NULL"},
    ]
    assert chart.specification["encoding"]["color"]["scale"]["domain"] == ["x", "NULL"]
    unknown = quick_chart(rows, {"x": "nix", "color": "-", "mark": "pie"})
    assert (unknown.x, unknown.color, unknown.mark) == ("n", "", "bar")


@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_is_valid(mark: str) -> None:
    rows = result(**{"a.b[c]": ["x", "y"], "time_ps": [1, 2], "share (ratio)": [0.5, 0.25]})
    for chosen in ({}, {"x": "time_ps", "y": "share (ratio)", "color": "a.b[c]"}, {"x": "a.b[c]", "y": "time_ps"}):
        chart = quick_chart(rows, chosen | {"mark": mark})
        assert chart.specification is not None
        alt.Chart.from_dict(chart.specification)


def test_the_rest_of_many_rows_is_said() -> None:
    many = quick_chart(result(i=range(MOST_ROWS + 1), n=range(MOST_ROWS + 1)), {})
    assert many.specification is not None
    assert len(many.specification["datasets"]["rows"]) == MOST_ROWS
    assert many.said == "The chart draws the first 5,000 rows."
