"""Runs one SQL query, read-only by construction.

Three things together keep a query from changing or reading anything but the warehouse, whatever it looks like:

1. `checked_select` lets DuckDB parse the text and accepts one statement whose syntax tree holds only SELECT nodes
   (DuckDB takes COPY and INSERT inside WITH, and behind EXPLAIN) and only table functions that are known to read.
2. `restrict` closes the connection: no files outside the lake, no extensions, no Python variables, settings locked.
3. The connection is an in-memory database of views, so there is no table to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.memory_limit import beyond_limit
from tracewarehouse.quality import in_scope
from tracewarehouse.result import QueryResult
from tracewarehouse.stuck_query import leave_unless_done
from tracewarehouse.tables_read import TablesRead, kind_of, split_explain, syntax_tree, tables_read

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.ingest.lake.lake import RunVersion

_SELECT_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})

ROW_FUNCTIONS = frozenset(
    {
        "unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree", "query_table",
        "read_parquet", "parquet_scan", "parquet_metadata", "parquet_schema", "parquet_file_metadata",
        "parquet_kv_metadata", "read_csv", "read_csv_auto", "read_json", "read_json_auto", "read_ndjson",
        "read_ndjson_auto", "read_text", "read_blob", "glob", "sniff_csv", "test_vector_types",
    }
)  # fmt: skip
"""Table functions that only read: their arguments, or files of the lake (the others are closed by `restrict`)."""

_CATALOGUE_FUNCTIONS = frozenset(
    {
        "duckdb_columns", "duckdb_constraints", "duckdb_databases", "duckdb_functions", "duckdb_keywords",
        "duckdb_memory", "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_temporary_files",
        "duckdb_types", "duckdb_variables", "duckdb_views", "pragma_database_size", "pragma_table_info",
        "pragma_version", "pragma_show",
    }
)  # fmt: skip
"""Table functions that only read the catalogue."""

_TABLE_FUNCTIONS = ROW_FUNCTIONS | _CATALOGUE_FUNCTIONS
"""Not here is what runs SQL from a text (`query`, `json_execute_serialized_sql`), changes a state (`checkpoint`), or
never ends (`summary` of a table of rows; SUMMARIZE does not need it).
"""

_LIFT = "`tw query --unrestricted` or wh.query(..., read_only=False) lifts this"


def restrict(connection: duckdb.DuckDBPyConnection, folders: Sequence[str], spill: Path) -> None:
    """Close a connection: from here on it reads files of these folders only and its settings cannot change.

    Args:
        connection: an in-memory database.
        folders: the only folders whose files can be read, as absolute paths without links, or as URIs; links that
            lead out of them are refused.
        spill: folder for what does not fit in memory.
    """
    for setting, value in {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": literal(str(spill.resolve())),
        "allowed_directories": f"[{', '.join(literal(f + '/') for f in folders)}]",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }.items():
        connection.execute(f"SET {setting} = {value}")


def run_query(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Any] | None = None,
    *,
    read_only: bool = True,
    runs: Sequence[RunVersion] = (),
    prepare: Callable[[TablesRead], None] | None = None,
) -> QueryResult:
    """Run a query and materialise its rows.

    Args:
        connection: for a read-only query, one that `restrict` has closed.
        sql: one SELECT, with parameters as `$name`; any statements when not read-only.
        parameters: values of the parameters by name.
        read_only: refuse everything but a query that reads.
        runs: the runs that the tables hold; the result tells which of them are flagged.
        prepare: makes what a query reads, before it is asked.

    Raises:
        QueryError: the query was refused or failed; the message is DuckDB's.
    """
    try:
        sql.encode()  # half a surrogate pair has no UTF-8
        read = tables_read(connection, sql)
        if prepare:
            prepare(read)
        statement = checked_select(connection, sql) if read_only else sql
        table = _interruptible(connection, lambda: _materialise(connection, statement, parameters))
        return QueryResult(table, in_scope(read, parameters, table, runs))
    except duckdb.OutOfMemoryException:
        raise QueryError(beyond_limit(connection)) from None
    except (duckdb.Error, UnicodeError, RecursionError, OverflowError) as error:
        raise QueryError(_sentence(error)) from None


def _materialise(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None) -> pa.Table:
    import pyarrow as pa

    relation = connection.sql(sql, params=dict(parameters) if parameters else None)
    return relation.to_arrow_table() if relation is not None else pa.table({})


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], pa.Table]) -> pa.Table:
    """Do the work in a thread, because DuckDB looks for Ctrl-C between some of its steps only.

    A function of SQL that works on one long value looks for it at its end alone: `tw` ends without it.
    """
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        try:
            return done.result()
        except (KeyboardInterrupt, SystemExit) as end:  # the latter when the process is told to end
            connection.interrupt()
            leave_unless_done(done, end)
            raise


def checked_select(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The statement to run for a query that was found to do nothing but read.

    Raises:
        QueryError: not exactly one statement, or one that is not a SELECT all through.
        duckdb.Error: it cannot be parsed.
    """
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        found = f"{len(statements)} statements" if statements else "none"
        raise QueryError(f"expected one SELECT statement, found {found}")
    kind = kind_of(statements[0])
    if kind == "EXPLAIN":
        prefix, inner = split_explain(sql)
        return f"{prefix} {checked_select(connection, inner)}"
    if kind == "MULTI":
        raise QueryError("a read-only query cannot PIVOT over values that it must look up first; name them: IN (...)")
    if kind != "SELECT":
        raise QueryError(f"a query may only read: expected SELECT, found {kind.replace('_', ' ')}; {_LIFT}")
    _check_tree(connection, sql)
    return sql


def _check_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Refuse a syntax tree that holds anything but SELECT nodes and table functions that read."""
    tree = syntax_tree(connection, sql)
    if tree.get("error"):
        raise QueryError(
            f"a query may only read, and this one cannot be checked ({tree.get('error_message')}); {_LIFT}"
        )
    own: frozenset[str] | None = None
    for node in _dicts(tree):
        kind = str(node.get("type", ""))
        if ("cte_map" in node or kind.endswith("_NODE")) and kind not in _SELECT_NODES:
            verb = kind.split("_")[0]
            raise QueryError(f"a query may only read: found {verb} inside it; {_LIFT}")
        if kind == "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                own = own if own is not None else _table_macros(connection)
                if name not in own:
                    raise QueryError(f"the table function {name}() is not for read-only queries; {_LIFT}")


def _dicts(tree: Any) -> Iterator[dict[str, Any]]:
    """All JSON objects of a tree, without recursion: hostile SQL nests deeply."""
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _table_macros(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The table macros that the warehouse itself defines, less those that hide a built-in function's name."""
    found = connection.execute(
        """
        SELECT function_name FROM duckdb_functions() WHERE function_type = 'table_macro' AND NOT internal
        EXCEPT SELECT function_name FROM duckdb_functions() WHERE internal
        """
    ).fetchall()
    return frozenset(name.lower() for (name,) in found)


def _sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, duckdb.PermissionException):
        return f"{text}\nA read-only query sees only this warehouse; {_LIFT}."
    if isinstance(error, RecursionError):
        return "the query is nested too deeply"
    return text


def literal(text: str) -> str:
    """The text as an SQL string."""
    return "'" + text.replace("'", "''") + "'"
