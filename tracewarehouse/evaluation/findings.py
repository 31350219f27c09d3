"""What metrics and audits find in a run; without DuckDB, so that who only receives it need not import that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.result import QueryResult

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Finding:
    """What one audit found.

    Attributes:
        audit: name of the audit.
        description: what should not be.
        columns: names of the columns.
        rows: the rows that violate it, at most as many as were asked for.
    """

    audit: str
    description: str
    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]

    def result(self) -> QueryResult:
        """The rows as the result of a query."""
        import pyarrow as pa

        columns = zip(*self.rows, strict=True)
        return QueryResult(pa.table(dict(zip(self.columns, map(list, columns), strict=True))))


@dataclass(frozen=True)
class Evaluation:
    """What the definitions find in one run.

    Attributes:
        columns: of main.metric_values without run_id, for every version of every metric that the run has, in order of
            metric, version and dimensions. A metric whose numbers do not fit their type has one row, without
            dimensions, whose value is None.
        beyond_range: the views of metrics whose numbers do not fit, with what DuckDB says of them.
        findings: the audits that something violates, with one row each.
    """

    columns: dict[str, list[Any]]
    beyond_range: dict[str, str]
    findings: list[Finding]

    def values(self) -> pa.Table:
        """The rows of main.metric_values, without run_id."""
        import pyarrow as pa

        return pa.table(self.columns, schema=TABLES["metric_values"].arrow_of_run)
