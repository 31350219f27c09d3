"""Limits the memory of a query: to a share of the machine's memory, or to what the user sets."""

from __future__ import annotations

import os

import duckdb

from tracewarehouse.ingest.errors import QueryError, shown

VARIABLE = "TRACEWAREHOUSE_MEMORY_LIMIT"
DEFAULT = "75%"
"""Share of the machine's memory; the rest is left for the rows of the answer and for other programs."""


def set_memory_limit(connection: duckdb.DuckDBPyConnection) -> None:
    """Set a database's memory limit from the environment variable, or to the default.

    Rows that exceed the limit are spilled to disk.

    Raises:
        QueryError: the variable's value is not a size.
    """
    limit = os.environ.get(VARIABLE) or DEFAULT
    try:
        connection.execute("SET memory_limit = $limit", {"limit": limit})
    except (duckdb.Error, UnicodeError):
        raise QueryError(
            f"memory limit {shown(limit)!r}: expected a size such as 8GB or 50%; change --memory-limit or {VARIABLE}"
        ) from None


def beyond_limit(connection: duckdb.DuckDBPyConnection) -> str:
    """The error message for a query that needs more memory than its limit."""
    row = connection.execute("SELECT current_setting('memory_limit')").fetchone()
    limit = row[0] if row else "unknown"
    return (
        f"the query needs more than its memory limit of {limit}; ask for less at once, or raise the limit with "
        f"`tw --memory-limit SIZE` or {VARIABLE}"
    )


def share_among(databases: int) -> None:
    """Give each of so many databases of this process an equal share of the memory that one would have.

    Raises:
        QueryError: the variable's value is not a size.
    """
    with duckdb.connect(":memory:") as connection:
        set_memory_limit(connection)
        row = connection.execute("SELECT current_setting('memory_limit')").fetchone()
    number, unit = str(row[0] if row else "").split()
    os.environ[VARIABLE] = f"{float(number) / databases:.2f} {unit}"
