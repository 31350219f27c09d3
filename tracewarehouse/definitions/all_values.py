"""Writes the SQL of metrics.all_values, and that of the query behind `Warehouse.values`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.definitions.view import Metric

ALL_VALUES = "metrics.all_values"
"""Qualified name of the view."""

COLUMNS = {
    "run_id": "The run.",
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "dimensions": "The row's other grain columns as a JSON object.",
    "value": "The value.",
    "unit": "Unit of the value.",
}
ABOUT = (
    "The values of all metrics of all runs, without deprecated versions. Values of one run were evaluated at its "
    "ingest; metrics that compare runs are evaluated now."
)


def reads(definitions: Definitions) -> set[str]:
    """Qualified names of the tables and views that the view reads."""
    return {"main.metric_values", *(m.view.qualified for m in _compared(definitions))}


def all_values_sql(definitions: Definitions) -> str:
    """The SELECT of the view."""
    return " UNION ALL ".join([_stored(), *map(_evaluated, _compared(definitions))])


def values_query(
    definitions: Definitions, run_ids: Sequence[str] | None, metrics: Sequence[str] | None, version: int | None
) -> str:
    """The SQL of `Warehouse.values`; each argument limits it, unless it is None.

    Args:
        definitions: the models and metrics.
        run_ids: the runs.
        metrics: names of metrics.
        version: one version of each metric.

    Raises:
        MetricError: a metric or version does not exist.
    """
    compared = _compared(definitions)
    now = compared if run_ids is None else []
    conditions = ["true"]
    of_runs = "true"
    if run_ids is not None:
        of_runs = of_these(run_ids)
        conditions.append(f"r.{of_runs}" if run_ids else of_runs)
    if metrics is not None:
        for name in metrics:
            definitions.metric(name, version)
        unstored = [m for m in definitions.metrics if not m.header.is_stored and version in (None, m.version)]
        now = [m for m in (*compared, *unstored) if m.name in metrics]
        names = ", ".join(map(literal, metrics))
        conditions.append(f"v.metric IN ({names})" if names else "false")
    if version is not None:
        conditions.append(f"v.version = {int(version)}")
    sources = [_stored(of_runs), *(_evaluated(m, of_runs) for m in now)]
    return (
        "SELECT v.run_id, r.name, v.metric, v.version, v.dimensions, v.value, v.unit, c.status "  # noqa: S608  literals
        f"FROM ({' UNION ALL '.join(sources)}) AS v JOIN main.runs AS r ON r.run_id = v.run_id "
        "LEFT JOIN metrics.catalog AS c ON c.metric = v.metric AND c.version = v.version "
        f"WHERE {' AND '.join(conditions)} ORDER BY r.name, v.run_id, v.metric, v.version, v.dimensions"
    )


def of_these(run_ids: Sequence[str]) -> str:
    """The SQL condition that a row belongs to one of these runs.

    DuckDB skips the files of other runs only if the ids are literals, not parameters or a join.
    """
    return f"run_id IN ({', '.join(map(literal, run_ids))})" if run_ids else "false"


def _compared(definitions: Definitions) -> list[Metric]:
    """The metrics of the view that are evaluated when it is read, because they compare runs."""
    return [m for m in definitions.metrics if m.view.compares_runs and m.header.is_stored]


def _stored(condition: str = "true") -> str:
    """SQL of the stored rows of the view for which a condition holds."""
    return f"SELECT {', '.join(COLUMNS)} FROM main.metric_values WHERE {condition}"  # noqa: S608


def _evaluated(metric: Metric, condition: str = "true") -> str:
    """SQL of the rows that a metric would have in the view, if its values were stored.

    Args:
        metric: the metric.
        condition: the SQL condition on the rows of its view.
    """
    h = metric.header
    return (
        f"SELECT run_id, {literal(h.metric)}, {h.version}, {metric.dimensions_sql}, "  # noqa: S608
        f'CAST("{h.value}" AS DOUBLE), {literal(h.unit)} FROM {metric.view.qualified} '
        f'WHERE "{h.value}" IS NOT NULL AND {condition}'
    )
