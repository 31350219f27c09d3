"""Holds the results of metrics and audits for a run, without DuckDB, so that receivers need not import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Finding:
    """The result of one audit that was violated.

    Attributes:
        audit: name of the audit.
        description: what must never be true.
        columns: names of the columns.
        rows: the rows that violate the audit, up to the requested limit.
    """

    audit: str
    description: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def result(self) -> QueryResult:
        """The rows as a query result."""
        import pyarrow as pa

        columns = zip(*self.rows, strict=True)
        return QueryResult(pa.table(dict(zip(self.columns, map(list, columns), strict=True))))


@dataclass(frozen=True)
class Evaluation:
    """The results of all definitions for one run.

    Attributes:
        columns: the columns of main.metric_values without run_id. They hold every version of every metric that the run
            has, in order of metric, version and dimensions. A metric whose numbers do not fit their type has one row,
            without dimensions, whose value is None.
        beyond_range: the views of metrics whose numbers do not fit, with DuckDB's message.
        findings: the audits that some row violates, with one such row each.
    """

    columns: dict[str, list[Any]]
    beyond_range: dict[str, str]
    findings: list[Finding]

    def values(self) -> pa.Table:
        """The rows of main.metric_values, without run_id."""
        import pyarrow as pa

        return pa.table(self.columns, schema=TABLES["metric_values"].arrow_of_run)
