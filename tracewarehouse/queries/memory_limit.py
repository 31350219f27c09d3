"""Limits the memory of a query: to a share of the machine's memory, or to what the user sets."""

from __future__ import annotations

import os
import re
import resource

import duckdb

from tracewarehouse.ingest.errors import QueryError, shown

VARIABLE = "TRACEWAREHOUSE_MEMORY_LIMIT"
DEFAULT = "50%"
"""Share of the machine's memory; the rest is left for the rows of the answer and for other programs."""
bounds_process = False
"""`tw` sets this before a command that only answers questions, so that the next limit bounds the process as well.

DuckDB does not count a value that a function makes in one piece, such as `range(1000000000)`.
"""
_BEYOND, _BEYOND_BYTES = 1.25, 2 << 30
"""What a process has beyond its queries' limit, for the rows of answers and for libraries."""
_OWN_PERCENTAGE = 80
"""Percentage of the machine's memory that DuckDB takes if nothing is set."""
_PERCENTAGE = re.compile(r"(100|[1-9]?[0-9](?:\.[0-9]+)?) ?%")


def set_memory_limit(connection: duckdb.DuckDBPyConnection) -> None:
    """Set a database's memory limit from the environment variable, or to the default.

    Rows that exceed the limit are spilled to disk.

    Raises:
        QueryError: the variable's value is not a size.
    """
    limit = os.environ.get(VARIABLE) or DEFAULT
    try:
        limit.encode()  # half a surrogate pair cannot be
        size = limit
        if percentage := _PERCENTAGE.fullmatch(limit):  # DuckDB itself accepts percentages since 2.0
            connection.execute("RESET memory_limit")
            size = _limit_share(connection, float(percentage[1]) / _OWN_PERCENTAGE)
        connection.execute("SET memory_limit = $size", {"size": size})
        limit_as_set = _limit(connection)  # fails if the limit is too small to work with
    except (duckdb.Error, UnicodeError):
        raise QueryError(
            f"memory limit {shown(limit)!r}: expected a size such as 8GB or 50%; change --memory-limit or {VARIABLE}"
        ) from None
    if bounds_process:
        _bound_process(limit_as_set)


def _bound_process(limit: str) -> None:
    """Bound the memory of this process, once, by the limit of all its queries together, such as 7.4 GiB."""
    global bounds_process
    bounds_process = False
    number, unit = limit.split()
    most = int(float(number) * 1024 ** "bKMGTP".index(unit[0]) * _BEYOND) + _BEYOND_BYTES
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def beyond_limit(connection: duckdb.DuckDBPyConnection) -> str:
    """The error message for a query that needs more memory than its limit."""
    return (
        f"the query needs more than its memory limit of {_limit(connection)}; ask for less at once, or raise the limit "
        f"with `tw --memory-limit SIZE` or {VARIABLE}"
    )


def share_among(databases: int) -> None:
    """Give each of the databases of this process an equal share of the memory that one would have."""
    with duckdb.connect(":memory:") as connection:
        set_memory_limit(connection)
        os.environ[VARIABLE] = _limit_share(connection, 1 / databases)


def _limit(connection: duckdb.DuckDBPyConnection) -> str:
    row = connection.execute("SELECT current_setting('memory_limit')").fetchone()
    return str(row[0] if row else "unknown")


def _limit_share(connection: duckdb.DuckDBPyConnection, part: float) -> str:
    number, unit = _limit(connection).split()
    return f"{float(number) * part:.2f} {unit}"
