"""Audits the ranges that metrics state for their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracewarehouse.definitions.headers import AuditHeader
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.definitions.view import Metric, View

HEADER = AuditHeader(
    audit="value_beyond_range",
    description="A value outside the range that its metric states, such as a share of a whole above 1.",
    columns={
        "run_id": "The run.",
        "metric": "The metric.",
        "version": "Its version.",
        "dimensions": "The row's other grain columns as a JSON object.",
        "column": "The column of the value.",
        "value": "The value.",
    },
)
_TOLERANCE = 1e-9
"""The distance that a value may lie outside its range, since doubles are rounded."""


def all_audits(definitions: Definitions) -> list[View]:
    """The audits of the definitions, and an audit for each metric that states ranges; these audits share a name.

    DuckDB would need several times as long to plan the union of these.
    """
    ranged = [m for m in definitions.metrics if m.header.ranges]
    return [*definitions.audits, *(View(m.view.path, "audits", HEADER.audit, HEADER, _sql(m)) for m in ranged)]


def _sql(metric: Metric) -> str:
    return " UNION ALL ".join(
        f"SELECT run_id, '{metric.name}' AS metric, {metric.version} AS version, "  # noqa: S608
        f"{metric.dimensions_sql} AS dimensions, "
        f"'{column}' AS \"column\", CAST({column} AS DOUBLE) AS value FROM {metric.view.qualified} "
        f"WHERE {column} < {least - _TOLERANCE!r} OR {column} > {greatest + _TOLERANCE!r}"
        for column, (least, greatest) in metric.header.ranges.items()
    )


def beyond_range(metric: Metric, values: Iterable[float | None]) -> Iterator[tuple[str, float]]:
    """The columns and values of a row that are outside the range of their column.

    Args:
        metric: the metric.
        values: the row's values in the columns that have a range, in the order of `ranges`.
    """
    for (column, (least, greatest)), value in zip(metric.header.ranges.items(), values, strict=True):
        if value is not None and not least - _TOLERANCE <= value <= greatest + _TOLERANCE:  # nor may it be NaN
            yield column, value
