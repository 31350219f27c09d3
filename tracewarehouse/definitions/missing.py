"""Writes the SQL of metrics.missing, which says why a run has no row of a metric.

A metric names in `needs` what a run must have, as preconditions. The reason is the first of them
that the run does not meet. A metric whose needs are all met and that still has no row says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.definitions.view import Metric

MISSING = "metrics.missing"
"""Qualified name of the view."""

COLUMNS = {
    "run_id": "The run.",
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "unmet": "The precondition that the run does not meet; NULL where it meets all that the metric names.",
    "reason": "Why the metric has no row, and what can be done about it.",
}
ABOUT = (
    "Why a run has no row of a metric: a row for each run and metric without a value. Deprecated versions and the "
    "definitions of other tools are left out."
)

ALL_MET = "what it needs is there, but it gave no row; if the metric is newer than the run, run `tw metrics refresh`."
UNTOLD = "the metric's file does not say under `needs` what it needs."


def explained(definitions: Definitions) -> list[Metric]:
    """The versions of metrics that metrics.missing explains."""
    from tracewarehouse.definitions.headers import UNSTORED

    return [m for m in definitions.metrics if m.header.status not in UNSTORED]


def reads(definitions: Definitions) -> set[str]:
    """Qualified names of the tables and views that the view reads."""
    needed = {f"preconditions.{n.precondition}" for m in explained(definitions) for n in definitions.needs(m)}
    return {"main.runs", "metrics.all_values", *needed}


def missing_sql(definitions: Definitions) -> str:
    """The SELECT of the view.

    A metric with a row per instruction is stored with no run. To look up whether it has rows would mean reading all ops
    of all runs, so it counts as missing if a need is unmet.
    """
    metrics = explained(definitions)
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
