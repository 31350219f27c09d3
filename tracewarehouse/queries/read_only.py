"""Runs one SQL query, read-only by construction.

Four measures together keep any query from changing anything, and from reading anything but the warehouse:

1. `checked_select` lets DuckDB parse the text. It accepts one statement whose syntax tree holds only SELECT nodes
   (DuckDB also allows COPY and INSERT inside WITH and after EXPLAIN) and only table functions that are known to read,
   with options that are known to read.
2. `restrict` closes the connection: no files outside the lake, no extensions, no Python variables, locked settings.
3. The connection is an in-memory database of views, so there is no table to change.
4. Each query runs on a connection of its own to that database, in a read-only transaction. Whatever it could make
   there, such as a temporary table that hides a view, ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import local
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from tracewarehouse.ingest.errors import QueryError, SlowQueryError, StuckQueryError
from tracewarehouse.queries.memory_limit import beyond_limit
from tracewarehouse.queries.result import ARROW_TYPES, QueryResult, TypedRows
from tracewarehouse.queries.runs_read import in_scope
from tracewarehouse.queries.stuck_query import PATIENCE_SECONDS, leave_unless_done
from tracewarehouse.queries.tables_read import ParsedSql, TablesRead, arguments, lower, split_explain

if TYPE_CHECKING:
    import pyarrow as pa

    from tracewarehouse.ingest.lake.manifest import RunVersion

_Rows = TypeVar("_Rows")

_SELECT_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})

ROW_FUNCTIONS = frozenset(
    {
        "unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree", "query_table",
        "read_parquet", "parquet_scan", "parquet_metadata", "parquet_schema", "parquet_file_metadata",
        "parquet_kv_metadata", "glob", "test_vector_types",
    }
)  # fmt: skip
"""Table functions that only read: their arguments, or Parquet files of the lake (`restrict` closes all other files)."""

_OPTIONS = frozenset(
    {"binary_as_string", "file_row_number", "filename", "hive_partitioning", "hive_types", "recursive", "union_by_name"}
)
"""Arguments by name that a table function may have. Others could do more than read, as `store_rejects` of read_csv."""

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
"""The table functions that read-only queries may call. Functions are left out that run SQL from a text (`query`,
`json_execute_serialized_sql`), change a state (`checkpoint`), or never end (`summary` of a table of rows; SUMMARIZE
does not need it).
"""


@dataclass(frozen=True)
class Limits:
    """Limits of a query; `tracewarehouse.queries.memory_limit` bounds its memory.

    Attributes:
        seconds: time after which it is interrupted; None for no limit.
        rows: rows that its result has at most; None for all. The result says whether there are more.
        unwanted: is done once nobody waits for the result any more; the query then ends as beyond its time.
    """

    seconds: float | None = None
    rows: int | None = None
    unwanted: Future[None] | None = None


NO_LIMITS = Limits()
_INTERRUPT_SECONDS = 0.05


class _Asking(local):
    """For each thread that asks, one that does its queries; Python may wait for ever for one that begins."""

    def __init__(self) -> None:
        self.thread = ThreadPoolExecutor(1)


_asking = _Asking()
os.register_at_fork(after_in_child=lambda: vars(_asking).update(thread=ThreadPoolExecutor(1)))  # it stays behind

LIFT = "`tw query --unrestricted` or wh.query(..., read_only=False) lifts this"
"""The end of the message of a refused query: how to run it anyway."""


def restrict(
    connection: duckdb.DuckDBPyConnection, folders: Sequence[str], spill: Path, files: Sequence[str] = ()
) -> None:
    """Restrict a connection: from now on it can read only files in these folders, and its settings cannot change.

    Args:
        connection: an in-memory database.
        folders: the only folders whose files can be read, as absolute paths without links, or as URIs; a link that
            leads out of them is refused.
        spill: folder for rows that do not fit in memory.
        files: further files that can be read.
    """
    for setting, value in {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "allow_community_extensions": "false",
        "python_enable_replacements": "false",
        "temp_directory": literal(str(spill.resolve())),
        "allowed_directories": f"[{', '.join(literal(f + '/') for f in folders)}]",
        "allowed_paths": literal(list(files)) if files else "[]",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }.items():
        connection.execute(f"SET GLOBAL {setting} = {value}")  # for the connections of single queries too


def run_query(
    connection: duckdb.DuckDBPyConnection,
    sql: str | ParsedSql,
    parameters: Mapping[str, Any] | None = None,
    *,
    read_only: bool = True,
    runs: Sequence[RunVersion] = (),
    prepare: Callable[[TablesRead], Callable[[], None] | None] | None = None,
    limits: Limits = NO_LIMITS,
    as_values: bool = False,
) -> QueryResult:
    """Run a query and load its rows into memory.

    Args:
        connection: the database; for a read-only query, call `restrict` on it first. Such a query runs on a connection
            of its own to it.
        sql: one SELECT, with parameters written as `$name`; any statements if `read_only` is False. SQL that was parsed
            before is not parsed again.
        parameters: values of the parameters by name.
        read_only: refuse every statement that does more than read.
        runs: the runs that the tables hold; the result names those of them that are flagged.
        prepare: called before the query runs, to create the views that it reads. What it returns is called next, under
            the limits of the query.
        limits: the limits of the query; the connection stays usable when the query takes too long.
        as_values: hold the rows as Python values, if these lose nothing and all rows are wanted. This does without
            pyarrow, which takes a tenth of a second to load, but is slower for many rows that end as Arrow.

    Raises:
        QueryError: the query was refused or failed; a failure has DuckDB's message.
        StuckQueryError: the query takes too long and does not stop, so the connection is lost.
    """
    parsed = sql if isinstance(sql, ParsedSql) else ParsedSql(sql)
    try:
        parsed.sql.encode()  # half a surrogate pair cannot be encoded
        read = parsed.tables(connection)
        if prepare and (work := prepare(read)):
            _interruptible(connection, work, limits)
        is_plain = as_values and read_only and limits.rows is None  # what changes something must not run twice
        materialise = _values if is_plain else partial(_materialise, most=limits.rows)
        statement = checked_select(connection, _named_pivot(connection, parsed, limits)) if read_only else parsed.sql
        with _own_connection(connection) if read_only else nullcontext(connection) as asked:
            result = QueryResult(_interruptible(asked, lambda: materialise(asked, statement, parameters), limits))
        is_cut = limits.rows is not None and len(result) > limits.rows
        if is_cut:
            result = result.part(0, limits.rows or 0)
        return result.noted(in_scope(read, parameters, result, runs), is_cut=is_cut)
    except duckdb.OutOfMemoryException:
        raise QueryError(beyond_limit(connection)) from None
    except (duckdb.Error, UnicodeError, RecursionError, OverflowError) as error:
        raise QueryError(_sentence(error)) from None


@contextmanager
def _own_connection(connection: duckdb.DuckDBPyConnection) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the same database that one query may use, in a read-only transaction."""
    own = connection.cursor()
    own.execute("BEGIN TRANSACTION READ ONLY")
    try:
        yield own
    except StuckQueryError:  # to close it would wait for the query
        raise
    except BaseException:
        own.close()
        raise
    own.close()


def _named_pivot(connection: duckdb.DuckDBPyConnection, query: ParsedSql, limits: Limits) -> ParsedSql:
    """The query, with the values of a PIVOT that must look them up; other queries are unchanged."""
    kinds = [kind for kind, _ in query.statements(connection)]
    if kinds not in (["MULTI"], ["CREATE", "SELECT"]):  # DuckDB 1.5 makes one of these two of it
        return query
    from tracewarehouse.queries.tables_read import with_values

    def look_up(select: str) -> list[str]:
        statement = checked_select(connection, ParsedSql(select))
        with _own_connection(connection) as asked:
            found = _interruptible(asked, lambda: asked.sql(statement).fetchall(), limits)
        return [str(v) for (v,) in found]

    named = with_values(query.sql, look_up)
    return ParsedSql(named) if named else query


def _values(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None
) -> TypedRows | pa.Table:
    """The rows of a SELECT as Python values, or as an Arrow table where these would lose something.

    A relation alone gives Arrow without a copy, but binds the query once more, which takes a quarter of the time of a
    short question over nested views. So it is made only where Arrow is needed.
    """
    connection.execute(sql, dict(parameters) if parameters else None)
    columns = connection.description or []
    types = [str(type_) for _, type_, *_ in columns]
    if ARROW_TYPES.keys() >= {*types}:
        return TypedRows([name for name, *_ in columns], types, connection.fetchall())
    if hasattr(connection, "abort"):  # from DuckDB 2 on, a result that nobody fetched blocks the connection
        connection.abort()
    return _materialise(connection, sql, parameters)


def _materialise(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None, most: int | None = None
) -> pa.Table:
    """The rows; if there are more than `most`, at least one more than that."""
    import pyarrow as pa

    relation = connection.sql(sql, params=dict(parameters) if parameters else None)
    if most is None or relation is None:
        return relation.to_arrow_table() if relation is not None else pa.table({})
    # relation.limit() writes its own SQL around the text, and fails where a comment follows the semicolon
    reader = relation.to_arrow_reader(most + 1)
    batches: list[pa.RecordBatch] = []
    for batch in reader:
        batches.append(batch)
        if sum(b.num_rows for b in batches) > most:
            break
    reader.close()  # else the connection would still be giving rows at the next query
    return pa.Table.from_batches(batches, reader.schema)


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], _Rows], limits: Limits) -> _Rows:
    """Do the work in a thread, because DuckDB checks for Ctrl-C only between some of its steps.

    An SQL function that works on one long value does not check before it has finished; `tw` then exits without it.
    """
    unwanted: list[Future[Any]] = [limits.unwanted] if limits.unwanted else []
    done = _asking.thread.submit(work)
    try:
        wait([done, *unwanted], limits.seconds, return_when=FIRST_COMPLETED)
        if done.done():
            return done.result()
        is_unwanted = any(u.done() for u in unwanted)
        why = f"the query takes longer than its time limit of {limits.seconds or 0:g} s; ask for less at once"
        if is_unwanted:
            why = "nobody waits for the query any more"
        until = monotonic() + PATIENCE_SECONDS
        while not done.done():
            connection.interrupt()  # again and again, as a query that is about to begin does not notice
            if monotonic() > until:
                _asking.thread = ThreadPoolExecutor(1)
                raise StuckQueryError(why)
            wait([done], _INTERRUPT_SECONDS)
        raise (QueryError if is_unwanted else SlowQueryError)(why)
    except (KeyboardInterrupt, SystemExit) as end:  # SystemExit if the process is told to end
        connection.interrupt()
        leave_unless_done(done, end)
        while wait([done], _INTERRUPT_SECONDS).not_done:
            connection.interrupt()
        raise


def checked_select(connection: duckdb.DuckDBPyConnection, query: ParsedSql) -> str:
    """Check that a query only reads, and return the statement to run.

    Raises:
        QueryError: the text is not exactly one statement, or some part of the statement is not a SELECT.
        duckdb.Error: the text cannot be parsed.
    """
    statements = query.statements(connection)
    if len(statements) != 1:
        found = f"{len(statements)} statements" if statements else "none"
        raise QueryError(f"expected one SELECT statement, found {found}")
    [(kind, _)] = statements
    if kind == "EXPLAIN":
        prefix, inner = split_explain(query.sql)
        return f"{prefix} {checked_select(connection, ParsedSql(inner))}"
    if kind == "MULTI":
        raise QueryError(
            "the values of this PIVOT cannot be looked up; name them (ON ... IN (...)), or write SELECT * FROM "
            "(PIVOT ...) and put ORDER BY and LIMIT after it"
        )
    if kind != "SELECT":
        raise QueryError(f"a query may only read: expected SELECT, found {kind.replace('_', ' ')}; {LIFT}")
    _check_tree(connection, query.tree(connection))
    return query.sql


def _check_tree(connection: duckdb.DuckDBPyConnection, tree: dict[str, Any]) -> None:
    """Refuse a syntax tree that holds anything other than SELECT nodes and table functions that read."""
    if tree.get("error"):
        raise QueryError(f"a query may only read, and this one cannot be checked ({tree.get('error_message')}); {LIFT}")
    own: frozenset[str] | None = None
    for node in _dicts(tree):
        kind = str(node.get("type", ""))
        if ("cte_map" in node or kind.endswith("_NODE")) and kind not in _SELECT_NODES:
            verb = kind.split("_")[0]
            raise QueryError(f"a query may only read: found {verb} inside it; {LIFT}")
        if kind == "TABLE_FUNCTION":
            function = node.get("function") or {}
            name = lower(function, "function_name")
            if name not in _TABLE_FUNCTIONS:
                own = own if own is not None else _table_macros(connection)
                if name not in own:
                    raise QueryError(f"the table function {name}() is not for read-only queries; {LIFT}")
            elif refused := sorted(_options(function) - _OPTIONS):
                raise QueryError(f"{refused[0]} of {name}() is not for read-only queries; {LIFT}")


def _options(function: dict[str, Any]) -> set[str]:
    named = {lower(a, "name") for a in function.get("arguments") or ()}
    for argument in arguments(function):
        named.add(lower(argument, "alias"))
        if argument.get("type") == "COMPARE_EQUAL":
            named.update(str(n).lower() for n in (argument.get("left") or {}).get("column_names") or ("",))
    return named - {""}


def _dicts(tree: Any) -> Iterator[dict[str, Any]]:
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            yield node
            stack.extend(node.values())
        elif isinstance(node, list):
            stack.extend(node)


def _table_macros(connection: duckdb.DuckDBPyConnection) -> frozenset[str]:
    """The table macros that the warehouse itself defines, except those with the name of a built-in function."""
    macros = connection.execute(
        """
        SELECT function_name FROM duckdb_functions() GROUP BY function_name
        HAVING bool_or(function_type = 'table_macro') AND NOT bool_or(internal)
        """
    ).fetchall()
    return frozenset(name.lower() for (name,) in macros)


def _sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    if isinstance(error, duckdb.PermissionException):
        return f"{text}\nA read-only query sees only this warehouse; {LIFT}."
    if isinstance(error, RecursionError):
        return "the query is nested too deeply"
    return text


def literal(value: str | float | list[Any] | tuple[Any, ...] | None) -> str:
    """A text, number, list or missing text as SQL."""
    if value is None:
        return "CAST(NULL AS VARCHAR)"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return f"[{', '.join(map(literal, value))}]" if isinstance(value, list | tuple) else repr(value)
