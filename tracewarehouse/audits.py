"""Runs the audits of sql/audits: queries that return a row for each thing that must never be so."""

from __future__ import annotations

import duckdb

from ingest.errors import MetricError
from tracewarehouse.definitions import Definitions, View, load_definitions
from tracewarehouse.findings import Finding


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
    audits = (definitions or load_definitions()).audits
    return [f for view in audits if (f := run_audit(connection, view, run_id, limit=limit))]


def run_audit(
    connection: duckdb.DuckDBPyConnection, audit: View, run_id: str | None = None, *, limit: int = 20
) -> Finding | None:
    """What one audit finds; None when all is well. See `run_audits`.

    Raises:
        MetricError: it fails.
    """
    where = "WHERE run_id = $run_id" if run_id is not None else ""
    sql = f"SELECT * FROM ({audit.sql}) {where} ORDER BY ALL LIMIT {int(limit)}"  # noqa: S608
    try:
        rows = connection.execute(sql, {"run_id": run_id} if run_id is not None else None).fetchall()
    except duckdb.Error as error:
        raise MetricError(f"{audit.path}: {error}") from None
    if not rows:
        return None
    description = " ".join(audit.header.description.split())
    return Finding(audit.name, description, tuple(audit.header.columns), tuple(rows))
