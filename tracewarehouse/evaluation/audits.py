"""Runs the audits: queries that return a row for each fact that must never be true.

The audits are those of sql/, and one that looks for values outside the ranges that metrics state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.definitions.definition import View
from tracewarehouse.definitions.derived import all_audits
from tracewarehouse.definitions.reading import Definitions, load_definitions
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    pass

BEYOND_RANGE = (duckdb.ConversionException, duckdb.OutOfRangeException)
"""DuckDB's errors if the numbers of a run, not the SQL, are at fault: for example, a sum beyond 64 bits."""


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


def run_audits(
    connection: duckdb.DuckDBPyConnection,
    run_id: str | None = None,
    definitions: Definitions | None = None,
    *,
    audits: Sequence[View] | None = None,
    limit: int = 20,
) -> list[Finding]:
    """Run the audits, and return those that some row violates; empty if all is well.

    Args:
        connection: a database with the lens.
        run_id: audit only this run.
        definitions: models and audits; by default those of the package.
        audits: run only these of them.
        limit: maximum number of rows to return per audit.

    Raises:
        MetricError: an audit fails.
    """
    parameters = {"run_id": run_id} if run_id is not None else None
    findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
    for audit in all_audits(definitions or load_definitions()) if audits is None else audits:
        finding = run_audit(connection, audit, audit_sql(audit, limit, of_run=run_id is not None), parameters)
        if finding is None:
            continue
        key = (finding.audit, finding.columns)
        if of_others := findings.get(key):  # the audits of the ranges share a name
            finding = replace(finding, rows=tuple(sorted((*of_others.rows, *finding.rows))[:limit]))
        findings[key] = finding
    return list(findings.values())


def violating_runs(connection: duckdb.DuckDBPyConnection, definitions: Definitions) -> set[str]:
    """The ids of the runs of a lens that violate an audit; DuckDB plans each audit only once for all of them.

    Raises:
        MetricError: an audit fails, or the numbers of some run do not fit 64 bits.
    """
    violating: set[str] = set()
    for audit in all_audits(definitions):
        try:
            rows = connection.execute(f"SELECT DISTINCT run_id FROM ({audit.sql})").fetchall()  # noqa: S608
        except duckdb.Error as error:
            raise MetricError(f"{audit.path}: {error}") from None
        violating |= {run_id for (run_id,) in rows}
    return violating


def audit_sql(audit: View, limit: int, *, of_run: bool = False) -> str:
    """SQL of the first rows that violate an audit, of all runs or only of the run in the parameter run_id."""
    where = "WHERE run_id = $run_id" if of_run else ""
    return f"SELECT * FROM ({audit.sql}) {where} ORDER BY ALL LIMIT {int(limit)}"  # noqa: S608


def run_audit(
    connection: duckdb.DuckDBPyConnection,
    audit: View,
    sql: str | duckdb.Statement,
    parameters: Mapping[str, str] | None = None,
) -> Finding | None:
    """Run one audit; returns None if all is well. Numbers that do not fit 64 bits count as a finding.

    Args:
        connection: a database with the tables and models that the audit reads.
        sql: the SQL from `audit_sql`, as text or parsed.
        parameters: the parameters of the SQL.
    """
    try:
        rows = connection.execute(sql, parameters).fetchall()
    except BEYOND_RANGE as error:
        return beyond_range(audit, str(error))
    except duckdb.Error as error:
        raise MetricError(f"{audit.path}: {error}") from None
    if not rows:
        return None
    description = " ".join(audit.header.description.split())
    return Finding(audit.name, description, tuple(audit.header.columns), tuple(rows))


def beyond_range(audit: View, error: str) -> Finding:
    """The finding that a run's numbers are too large for an audit, with DuckDB's message."""
    description = "Numbers do not fit 64 bits, so this audit cannot run."
    return Finding(audit.name, description, ("error",), ((error.partition("\n")[0],),))
