"""Writes the SQL that follows from all definitions together.

These are metrics.catalog, metrics.all_values and metrics.missing, the query behind `Warehouse.values`, and the audits
of the ranges that metrics state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.definition import AuditHeader, Metric, View
    from tracewarehouse.definitions.reading import Definitions

CATALOG, ALL_VALUES, MISSING = "metrics.catalog", "metrics.all_values", "metrics.missing"


@dataclass(frozen=True)
class DerivedView:
    """A view of a lens that is no file of sql/.

    Attributes:
        about: a sentence for its comment.
        columns: a sentence for each column.
        sql: writes its SELECT.
        reads: the qualified names of the tables and views that it reads.
    """

    about: str
    columns: dict[str, str]
    sql: Callable[[Definitions], str]
    reads: Callable[[Definitions], set[str]]


def catalog_sql(definitions: Definitions) -> str:
    """The SELECT of metrics.catalog."""
    rows = [_catalog_row(definitions, m) for m in definitions.metrics]
    names = ", ".join(f'"{c}"' for c in _CATALOG_COLUMNS)
    return f"SELECT {names} FROM (VALUES {', '.join(rows)}) AS catalog ({names})"  # noqa: S608


def _catalog_row(definitions: Definitions, metric: Metric) -> str:
    h = metric.header
    values = (
        h.metric,
        h.version,
        h.status,
        h.unit,
        h.polarity,
        h.scope,
        ", ".join(h.grain),
        h.value,
        " ".join(h.description.split()),
        " ".join(h.notes.split()) if h.notes else None,
        h.ccl_bench,
        definitions.fingerprint(metric.view),
        json.dumps(h.columns, ensure_ascii=False),
        " ".join(h.changed.split()),
        " ".join(h.deprecated.split()) if h.deprecated else None,
    )
    return f"({', '.join(map(literal, values))})"


def all_values_sql(definitions: Definitions) -> str:
    """The SELECT of metrics.all_values."""
    return " UNION ALL ".join([_stored(), *map(_evaluated, _compared(definitions))])


def values_query(
    definitions: Definitions, run_ids: Sequence[str] | None, metrics: Sequence[str] | None, version: int | None
) -> str:
    """The SQL of `Warehouse.values`; runs, names of metrics and a version limit it, unless they are None."""
    compared = _compared(definitions)
    now = compared if run_ids is None else []
    conditions = ["true"]
    in_runs = "true"
    if run_ids is not None:
        in_runs = in_these(run_ids)
        conditions.append(f"r.{in_runs}" if run_ids else in_runs)
    if metrics is not None:
        for name in metrics:
            definitions.metric(name, version)
        unstored = [m for m in definitions.metrics if not m.header.is_stored and version in (None, m.version)]
        now = [m for m in (*compared, *unstored) if m.name in metrics]
        names = ", ".join(map(literal, metrics))
        conditions.append(f"v.metric IN ({names})" if names else "false")
    if version is not None:
        conditions.append(f"v.version = {int(version)}")
    sources = [_stored(in_runs), *(_evaluated(m, in_runs) for m in now)]
    return (
        "SELECT v.run_id, r.name, v.metric, v.version, v.dimensions, v.value, v.unit, c.status, r.origin "  # noqa: S608  literals
        f"FROM ({' UNION ALL '.join(sources)}) AS v JOIN main.runs AS r ON r.run_id = v.run_id "
        "LEFT JOIN metrics.catalog AS c ON c.metric = v.metric AND c.version = v.version "
        f"WHERE {' AND '.join(conditions)} ORDER BY r.name, v.run_id, v.metric, v.version, v.dimensions"
    )


def in_these(run_ids: Sequence[str]) -> str:
    """The SQL condition that a row belongs to one of these runs.

    DuckDB skips the files of other runs only if the ids are literals, not parameters or a join.
    """
    return f"run_id IN ({', '.join(map(literal, run_ids))})" if run_ids else "false"


def _compared(definitions: Definitions) -> list[Metric]:
    return [m for m in definitions.metrics if m.view.compares_runs and m.header.is_stored]


def _stored(condition: str = "true") -> str:
    return f"SELECT {', '.join(_VALUE_COLUMNS)} FROM main.metric_values WHERE {condition}"  # noqa: S608


def _evaluated(metric: Metric, condition: str = "true") -> str:
    """SQL of the rows that a metric would have in the view, if its values were stored."""
    h = metric.header
    return (
        f"SELECT run_id, {literal(h.metric)}, {h.version}, {metric.dimensions_sql}, "  # noqa: S608
        f'CAST("{h.value}" AS DOUBLE), {literal(h.unit)} FROM {metric.view.qualified} '
        f'WHERE "{h.value}" IS NOT NULL AND {condition}'
    )


ALL_MET = "what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`."
UNTOLD = "the metric's file does not say under `needs` what it needs."


def _explained(definitions: Definitions) -> list[Metric]:
    from tracewarehouse.definitions.definition import UNSTORED

    return [m for m in definitions.metrics if m.header.status not in UNSTORED]


def _missing_reads(definitions: Definitions) -> set[str]:
    needed = {f"preconditions.{n.precondition}" for m in _explained(definitions) for n in definitions.needs(m)}
    return {"main.runs", "metrics.all_values", *needed}


def missing_sql(definitions: Definitions) -> str:
    """The SELECT of metrics.missing: the reason is the first of a metric's needs that the run does not meet.

    A metric with a row per instruction is stored with no run. To look up whether it has rows would mean reading all ops
    of all runs, so it counts as missing if a need is unmet.
    """
    metrics = _explained(definitions)
    wanted = [
        (
            literal(m.name),
            str(m.version),
            str(m.header.is_stored).lower(),
            literal(ALL_MET if m.header.needs else UNTOLD),
        )
        for m in metrics
    ]
    needs = [
        (literal(m.name), str(m.version), str(place), literal(need.precondition), literal(need.sentence))
        for m in metrics
        for place, need in enumerate(definitions.needs(m))
    ] or [("NULL", "NULL", "NULL", "NULL", "NULL")]
    names = sorted({n.precondition for m in metrics for n in definitions.needs(m)})
    met = " UNION ALL ".join(
        f"SELECT run_id, {literal(n)} AS precondition FROM preconditions.{n}"  # noqa: S608
        for n in names
    )
    return f"""
WITH wanted (metric, version, is_stored, otherwise) AS (VALUES {_rows(wanted)}),
needs (metric, version, place, precondition, sentence) AS (VALUES {_rows(needs)}),
holding AS ({met or "SELECT run_id, NULL AS precondition FROM main.runs WHERE false"}),
met AS (SELECT run_id, precondition FROM holding GROUP BY run_id, precondition),
unmet AS (
  SELECT r.run_id, n.metric, n.version, n.precondition, n.sentence
  FROM main.runs AS r
  CROSS JOIN needs AS n
  LEFT JOIN met AS m ON r.run_id = m.run_id AND n.precondition = m.precondition
  WHERE m.run_id IS NULL
  QUALIFY ROW_NUMBER() OVER (PARTITION BY r.run_id, n.metric, n.version ORDER BY n.place) = 1
),
valued AS (SELECT run_id, metric, version FROM metrics.all_values GROUP BY run_id, metric, version)
SELECT
  r.run_id,
  w.metric,
  w.version,
  u.precondition AS unmet,
  COALESCE(u.sentence, w.otherwise) AS reason
FROM main.runs AS r
CROSS JOIN wanted AS w
LEFT JOIN valued AS v ON r.run_id = v.run_id AND w.metric = v.metric AND w.version = v.version
LEFT JOIN unmet AS u ON r.run_id = u.run_id AND w.metric = u.metric AND w.version = u.version
WHERE v.run_id IS NULL AND (w.is_stored OR u.run_id IS NOT NULL)
"""  # noqa: S608  names are checked, texts are literals


def _rows(rows: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(f"({', '.join(row)})" for row in rows)


def range_header() -> AuditHeader:
    """The header of the audits of ranges."""
    from tracewarehouse.definitions.definition import AuditHeader

    return AuditHeader(
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
    from tracewarehouse.definitions.definition import View

    header = range_header()
    ranged = [m for m in definitions.metrics if m.header.ranges]
    return [*definitions.audits, *(View(m.view.path, "audits", header.audit, header, _ranges_sql(m)) for m in ranged)]


def _ranges_sql(metric: Metric) -> str:
    return " UNION ALL ".join(
        f"SELECT run_id, '{metric.name}' AS metric, {metric.version} AS version, "  # noqa: S608
        f"{metric.dimensions_sql} AS dimensions, "
        f"'{column}' AS \"column\", CAST({column} AS DOUBLE) AS value FROM {metric.view.qualified} "
        f"WHERE {column} < {least - _TOLERANCE!r} OR {column} > {greatest + _TOLERANCE!r}"
        for column, (least, greatest) in metric.header.ranges.items()
    )


def beyond_range(metric: Metric, values: Iterable[float | None]) -> Iterator[tuple[str, float]]:
    """The columns and values of a row that are outside the range of their column; `values` follow `ranges`."""
    for (column, (least, greatest)), value in zip(metric.header.ranges.items(), values, strict=True):
        if value is not None and not least - _TOLERANCE <= value <= greatest + _TOLERANCE:  # nor may it be NaN
            yield column, value


_CATALOG_COLUMNS = {
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "status": "experimental, stable, deprecated, or compatibility for the definition of another tool.",
    "unit": "Unit of the value.",
    "polarity": "higher_is_better, lower_is_better or none.",
    "scope": "run if each row comes from one run and is stored with it, warehouse if the metric compares runs.",
    "grain": "Columns that identify a row, separated by commas.",
    "value": "Column that holds the value.",
    "description": "What the metric means.",
    "notes": "Special cases, assumptions and sources; NULL if there are none.",
    "ccl_bench": "Name of the CCL-Bench metric that asks the same question.",
    "fingerprint": "Fingerprint of the SQL and of everything that it reads.",
    "columns": "One sentence per column, as a JSON object.",
    "changed": "What this version changed.",
    "deprecated": "Why not to use a deprecated version, and what to use instead; NULL for other versions.",
}
_VALUE_COLUMNS = {
    "run_id": "The run.",
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "dimensions": "The row's other grain columns as a JSON object.",
    "value": "The value.",
    "unit": "Unit of the value.",
}
_MISSING_COLUMNS = {
    "run_id": "The run.",
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "unmet": "The precondition that the run does not meet; NULL where it meets all that the metric names.",
    "reason": "Why the metric has no row, and what can be done about it.",
}
DERIVED: dict[str, DerivedView] = {
    MISSING: DerivedView(
        "Why a run has no row of a metric: a row for each run and metric without a value. Deprecated versions and the "
        "definitions of other tools are left out.",
        _MISSING_COLUMNS,
        missing_sql,
        _missing_reads,
    ),
    ALL_VALUES: DerivedView(
        "The values of all metrics of all runs, without deprecated versions. Values of one run were evaluated at its "
        "ingest; metrics that compare runs are evaluated now.",
        _VALUE_COLUMNS,
        all_values_sql,
        lambda d: {"main.metric_values", *(m.view.qualified for m in _compared(d))},
    ),
    CATALOG: DerivedView("Every version of every metric.", _CATALOG_COLUMNS, catalog_sql, lambda _: set()),
}
"""The views of a lens that are not files of sql/, each before those that it reads."""
