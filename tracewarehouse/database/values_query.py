"""Writes the query behind `Warehouse.values`: stored values of metrics, and those that are evaluated when asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tracewarehouse.database.lens import stored_values, values_now
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.queries.read_only import literal


def values_query(
    definitions: Definitions, run_ids: Sequence[str] | None, metrics: Sequence[str] | None, version: int | None
) -> str:
    """The SQL; the arguments limit it, and None does not.

    Args:
        definitions: the models and metrics.
        run_ids: the runs.
        metrics: names of metrics.
        version: one version of each metric.

    Raises:
        MetricError: a metric or version does not exist.
    """
    compared = [m for m in definitions.metrics if m.view.compares_runs and m.header.is_stored]
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
    sources = [stored_values(of_runs), *(values_now(m, of_runs) for m in now)]
    return (
        "SELECT v.run_id, r.name, v.metric, v.version, v.dimensions, v.value, v.unit, c.status "  # noqa: S608  literals
        f"FROM ({' UNION ALL '.join(sources)}) AS v JOIN main.runs AS r ON r.run_id = v.run_id "
        "LEFT JOIN metrics.catalog AS c ON c.metric = v.metric AND c.version = v.version "
        f"WHERE {' AND '.join(conditions)} ORDER BY r.name, v.run_id, v.metric, v.version, v.dimensions"
    )


def of_these(run_ids: Sequence[str]) -> str:
    """The condition that a row is of one of these runs.

    DuckDB skips the files of other runs only if the ids are literals, not parameters or a join.
    """
    return f"run_id IN ({', '.join(map(literal, run_ids))})" if run_ids else "false"
