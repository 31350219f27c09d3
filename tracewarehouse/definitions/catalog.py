"""Writes the SQL of metrics.catalog, which lists every version of every metric."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.definitions.view import Metric

CATALOG = "metrics.catalog"
"""Qualified name of the view."""

COLUMNS = {
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "status": "experimental, stable, deprecated, or compatibility for the definition of another tool.",
    "unit": "Unit of the value.",
    "polarity": "higher_is_better, lower_is_better or none.",
    "scope": "run if each row comes from one run and is stored with it, warehouse if the metric compares runs.",
    "grain": "Columns that identify a row, separated by commas.",
    "value": "Column that holds the value.",
    "description": "What the metric means.",
    "ccl_bench": "Name of the CCL-Bench metric that asks the same question.",
    "fingerprint": "Fingerprint of the SQL and of everything that it reads.",
    "columns": "One sentence per column, as a JSON object.",
    "changed": "What this version changed.",
    "deprecated": "Why not to use a deprecated version, and what to use instead; NULL for other versions.",
}
ABOUT = "Every version of every metric."


def catalog_sql(definitions: Definitions) -> str:
    """The SELECT of the view."""
    rows = [_row(definitions, m) for m in definitions.metrics]
    names = ", ".join(f'"{c}"' for c in COLUMNS)
    values = ", ".join(rows)
    return f"SELECT {names} FROM (VALUES {values}) AS catalog ({names})"  # noqa: S608


def _row(definitions: Definitions, metric: Metric) -> str:
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
        h.description,
        h.ccl_bench,
        definitions.fingerprint(metric.view),
        json.dumps(h.columns, ensure_ascii=False),
        " ".join(h.changed.split()),
        " ".join(h.deprecated.split()) if h.deprecated else None,
    )
    return f"({', '.join(map(literal, values))})"
