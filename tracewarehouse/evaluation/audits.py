"""Runs the audits of sql/audits: queries that return a row for each thing that must never be so."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from tracewarehouse.definitions.reading import Definitions, View, load_definitions
from tracewarehouse.evaluation.findings import Finding
from tracewarehouse.ingest.errors import MetricError

BEYOND_RANGE = (duckdb.ConversionException, duckdb.OutOfRangeException)
"""What DuckDB raises where the numbers of a run, and not the SQL, are at fault: a sum beyond 64 bits."""


def run_audits(
    connection: duckdb.DuckDBPyConnection,
    run_id: str | None = None,
    definitions: Definitions | None = None,
    *,
    limit: int = 20,
) -> list[Finding]:
    """The audits that something violates; empty when all is well.

    Args:
        connection: a database with the lens.
        run_id: audit this run only.
        definitions: models and audits; by default those of the package.
        limit: most rows to return of one audit.

    Raises:
        MetricError: an audit fails.
    """
    parameters = {"run_id": run_id} if run_id is not None else None
    return [
        finding
        for audit in (definitions or load_definitions()).audits
        if (finding := run_audit(connection, audit, audit_sql(audit, limit, of_run=run_id is not None), parameters))
    ]


def audit_sql(audit: View, limit: int, *, of_run: bool = False) -> str:
    """SQL of the first rows that violate an audit; of those of the run that the parameter run_id names, or of all."""
    where = "WHERE run_id = $run_id" if of_run else ""
    return f"SELECT * FROM ({audit.sql}) {where} ORDER BY ALL LIMIT {int(limit)}"  # noqa: S608


def run_audit(
    connection: duckdb.DuckDBPyConnection,
    audit: View,
    sql: str | duckdb.Statement,
    parameters: Mapping[str, str] | None = None,
) -> Finding | None:
    """What one audit finds; None when all is well. Numbers that do not fit 64 bits are found too.

    Args:
        connection: a database with what the audit reads.
        audit: the audit.
        sql: as `audit_sql` gives it, or that parsed.
        parameters: those of the SQL.

    Raises:
        MetricError: it fails.
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
    """The finding that the numbers of a run are too large for an audit, with what DuckDB says of them."""
    description = "Numbers do not fit 64 bits, so that this audit cannot be asked."
    return Finding(audit.name, description, ("error",), ((error.partition("\n")[0],),))
