"""The lens: views for a warehouse's tables, models and metrics, and its macros, each with a comment.

A view names tables by schema only, never by database, so it works under any name that the database is attached as.

DuckDB binds a view when it is created, and with it every view beneath: for all of sql/ this takes a second. Views that
are copied from a database are not bound again. So a file in the user's cache folder keeps the bound views of the
definitions in use.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from tracewarehouse.definitions.derived import DERIVED
from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.definition import View
    from tracewarehouse.definitions.reading import Definitions

OWN_VIEWS = {name: view.sql for name, view in reversed(DERIVED.items())}
"""The views of a lens that are not files of sql/, each with the function that writes its SELECT."""

STORAGE_VERSION = "v1.2.0"
"""Storage format of DuckDB files that are written: DuckDB 1.2 and later open it."""

_SCHEMAS = ("models", "preconditions", "metrics", "macros")
_BEGIN = "; ".join(f"CREATE SCHEMA {s}" for s in _SCHEMAS)
_SLOW_OPTIMIZER = "projection_pullup"
"""The step of DuckDB 2.0 that takes most of the time to plan a deep nest of views; it changes no row."""
_MOST_FILES = 8
"""The most files of bound views to keep, of 1 MB each: one for each set of definitions that is in use."""


def table_source(root: str, runs: Iterable[RunVersion], table: str) -> str | None:
    """SQL that reads a table from the files of runs; None if they have none.

    The SQL states that every row's run_id is the folder of its file. If a query names one run, DuckDB can therefore
    skip the files of all other runs; opening a file takes 0.1 ms even if no row of it is wanted. If a query lists
    several runs, DuckDB opens all files, and skips the row groups of other runs by their statistics; so a session
    answers such a query with a lens over only these runs.

    Args:
        root: folder or URI that the runs' file names are relative to, as `Lake.root`.
        runs: the current versions of the runs.
    """
    quoted = ", ".join(literal(f"{root}/{n}") for r in runs for n in r.files.get(table, ()))
    if not quoted:
        return None
    read = f"read_parquet([{quoted}], filename = true, hive_partitioning = false)"
    return f"(SELECT * FROM {read} WHERE run_id = split_part(filename, '/', -3))"  # noqa: S608  literals


def run_sources(root: str, runs: Iterable[RunVersion]) -> dict[str, str | None]:
    """The source of every table over the files of runs; see `table_source`."""
    listed = list(runs)
    return {t: table_source(root, listed, t) for t in TABLES}


def create_lens(
    connection: duckdb.DuckDBPyConnection, tables: Mapping[str, str | None], definitions: Definitions
) -> None:
    """Create the lens over the given tables in the connection's current database, with comments on all but the tables.

    Args:
        connection: an open database that holds none of the views yet.
        tables: maps each table of the schema to the SQL of its source, such as `read_parquet([...])` or the name of a
            table. A table without an entry, or with None, has no rows. A source that is the table itself
            (`main.ops`) is used as it is.
        definitions: the models and metrics.
    """
    _plan_fast(connection)
    for statement in _tables(tables):  # apart from the views, so that no view is blamed for a bad file
        connection.execute(statement)
    add_all_views(connection, definitions)


def lens_text(tables: Mapping[str, str | None], definitions: Definitions) -> str:
    """The statements of `create_lens` without the comments, for a DuckDB that knows nothing of a warehouse."""
    return ";\n\n".join([*_tables(tables), *_all_views(definitions, with_comments=False), ""])


def begin_lens(connection: duckdb.DuckDBPyConnection, *disabled: str) -> None:
    """Create the empty schemas of a lens; `add_tables` and `add_views` fill them.

    Args:
        connection: gets the lens.
        disabled: names of DuckDB's optimizers that do not run, beside the slow one.
    """
    _plan_fast(connection, *disabled)
    connection.execute(_BEGIN)


def _plan_fast(connection: duckdb.DuckDBPyConnection, *disabled: str) -> None:
    known = {name for (name,) in connection.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
    names = [n for n in (_SLOW_OPTIMIZER, *disabled) if n in known]  # DuckDB refuses a name that it does not know
    connection.execute(f"SET disabled_optimizers = {literal(','.join(names))}")


def add_tables(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, str | None]) -> None:
    """Add tables to a lens, with their sources as for `create_lens`."""
    for table, source in tables.items():
        connection.execute(f"CREATE OR REPLACE VIEW main.{table} AS {_select(TABLES[table], source)}")


def add_views(
    connection: duckdb.DuckDBPyConnection,
    definitions: Definitions,
    views: Iterable[View],
    *,
    own: Collection[str] = (),
    macros: Sequence[View] = (),
) -> None:
    """Add parts to a lens that it lacks: views of sql/, those of `OWN_VIEWS`, or macros.

    Args:
        connection: a database that `begin_lens` or `create_lens` was called on.
        definitions: the models and metrics.
        views: the models and metrics to add; each must come after what it reads.
        own: names of `OWN_VIEWS` to add.
    """
    views = list(views)
    statements = [*_views(definitions, views), *_own_views(definitions, own), *_macros(macros)]
    try:
        connection.execute(";\n".join(statements))
    except duckdb.Error:
        _name_refused(connection, views, macros)
        raise


def add_all_views(connection: duckdb.DuckDBPyConnection, definitions: Definitions) -> None:
    """Create all views and macros, with their comments, in place of those that the lens has; it may lack tables.

    Other cursors see either the old views or the new ones.
    """
    statements = list(_all_views(definitions))
    drops = [f"DROP SCHEMA IF EXISTS {s} CASCADE" for s in _SCHEMAS]
    if file := _bound(statements):
        [(target,)] = connection.execute("SELECT current_database()").fetchall()
        try:
            connection.execute(f"ATTACH {literal(str(file))} AS bound_views (READ_ONLY)")
            try:
                copy = f'COPY FROM DATABASE bound_views TO "{target}" (SCHEMA)'
                connection.execute(";\n".join(("BEGIN", *drops, copy, "COMMIT")))
            finally:
                with suppress(duckdb.TransactionException):
                    connection.execute("ROLLBACK")
                connection.execute("DETACH bound_views")
        except duckdb.InterruptException:
            raise
        except duckdb.Error:
            file.unlink(missing_ok=True)
        else:
            return
    in_main = "table_catalog = current_database() AND table_schema = 'main'"
    had = connection.execute(f"SELECT table_name FROM information_schema.tables WHERE {in_main}").fetchall()  # noqa: S608
    add_tables(connection, {t: None for t in TABLES if (t,) not in had})
    try:
        # 1,500 transactions, one per comment, would take longer than the comments
        connection.execute(";\n".join(("BEGIN", *drops, *statements, "COMMIT")))
    except duckdb.Error:
        connection.execute("ROLLBACK")
        connection.execute(";\n".join((*drops, _BEGIN)))
        _name_refused(connection, definitions.ordered, definitions.macros)
        raise


def new_lens_file(path: Path, definitions: Definitions) -> duckdb.DuckDBPyConnection:
    """Create a database file with all views and macros, and without the tables, and return it open."""
    if file := _bound(list(_all_views(definitions))):
        shutil.copyfile(file, path)
        return duckdb.connect(str(path))
    connection = new_file(path)
    add_all_views(connection, definitions)
    return connection


def new_file(path: Path) -> duckdb.DuckDBPyConnection:
    """Create an empty database file in the format of `STORAGE_VERSION`."""
    return duckdb.connect(str(path), config={"storage_compatibility_version": STORAGE_VERSION})


def bound_views_folder() -> Path | None:
    """The folder of the files of bound views, as an absolute path without links; None without a home folder."""
    with suppress(RuntimeError):
        return (cache_folder() / "views").resolve()
    return None


def _bound(statements: Sequence[str]) -> Path | None:
    """The file that has what these statements create, made now if it is missing; None if it cannot be made."""
    if (folder := bound_views_folder()) is None:
        return None
    try:
        made_by = "\n".join((duckdb.__version__, STORAGE_VERSION, *statements))
        file = folder / f"{hashlib.sha256(made_by.encode()).hexdigest()[:16]}.duckdb"
        if file.exists():
            with suppress(OSError):  # it may belong to another user
                os.utime(file)
            return file
        folder.mkdir(parents=True, exist_ok=True)
        without_tables = [f"DROP VIEW main.{t}" for t in TABLES]
        made = (*_tables({}), *statements, *without_tables)
        with placed_whole(file) as part, new_file(part) as connection:
            connection.execute(";\n".join(("BEGIN", *made, "COMMIT")))
        by_last_use = sorted(folder.glob("*.duckdb"), key=lambda f: f.stat().st_mtime, reverse=True)
        for old in by_last_use[_MOST_FILES:]:
            old.unlink(missing_ok=True)
    except duckdb.InterruptException:
        raise
    except (OSError, duckdb.Error):  # no folder for it, or a definition that DuckDB refuses
        return None
    return file


def _all_views(definitions: Definitions, *, with_comments: bool = True) -> Iterator[str]:
    yield _BEGIN
    yield from _views(definitions, definitions.ordered)
    yield from _own_views(definitions, OWN_VIEWS)
    yield from _macros(definitions.macros)
    if with_comments:
        yield from _comments_on_views(definitions)


def comment_on_tables(
    connection: duckdb.DuckDBPyConnection,
    sources: Mapping[str, str | None] | None = None,
    tables: Iterable[Table] = TABLES.values(),
    schema: str = "main",
) -> None:
    """Write the comments on tables and their columns.

    A transaction holds a copy of a view for each comment on it, and the view of a table may name the files of all runs:
    in one transaction, the copies take a gigabyte for 10,000 runs. So each table has its own.

    Args:
        connection: a database that has the tables.
        sources: their sources, as for `create_lens`, if some are tables rather than views.
    """
    for table in tables:
        name = f"{schema}.{table.name}"
        kind = "TABLE" if (sources or {}).get(table.name) == name else "VIEW"
        columns = {c.name: f"{c.doc} [{c.unit}]" if c.unit else c.doc for c in table.columns}
        connection.execute(";\n".join(("BEGIN", *_comment(kind, name, table.doc, columns), "COMMIT")))


def _name_refused(connection: duckdb.DuckDBPyConnection, views: Iterable[View], macros: Sequence[View]) -> None:
    if not connection.execute("SELECT 1 FROM duckdb_schemas() WHERE schema_name = 'metrics'").fetchall():
        return
    for view in views:
        columns = ", ".join(f'"{c}"' for c in view.header.columns)
        try:
            connection.execute(f"CREATE OR REPLACE VIEW {view.qualified} AS {view.sql}")
            connection.execute(f"SELECT {columns} FROM {view.qualified} LIMIT 0")  # noqa: S608  names are checked
        except duckdb.Error as error:
            raise MetricError(f"{view.path}: {error}") from None
    for view, macro in zip(macros, _macros(macros), strict=True):
        try:
            connection.execute(macro.replace("CREATE", "CREATE OR REPLACE", 1))
        except duckdb.Error as error:
            raise MetricError(f"{view.path}: {error}") from None


def _tables(tables: Mapping[str, str | None]) -> Iterator[str]:
    for table in TABLES.values():
        source = tables.get(table.name)
        if source != f"main.{table.name}":
            yield f"CREATE VIEW main.{table.name} AS {_select(table, source)}"


def _select(table: Table, source: str | None) -> str:
    if source is None:
        return f"SELECT {table.nulls_sql} WHERE false"
    return f"SELECT {table.names_sql} FROM {source}"  # noqa: S608, the names are the schema's


def _views(definitions: Definitions, views: Iterable[View]) -> Iterator[str]:
    aliases = {metric.view.qualified: name for name, metric in definitions.aliases.items()}
    for view in views:
        yield f"CREATE VIEW {view.qualified} AS {view.sql}"
        if name := aliases.get(view.qualified):
            columns = ", ".join(view.header.columns)
            yield f"CREATE VIEW metrics.{name} AS SELECT {columns} FROM {view.qualified}"  # noqa: S608


def _own_views(definitions: Definitions, names: Collection[str]) -> Iterator[str]:
    for name, select in OWN_VIEWS.items():
        if name in names:
            yield f"CREATE VIEW {name} AS {select(definitions)}"


def _macros(macros: Iterable[View]) -> Iterator[str]:
    from tracewarehouse.definitions.definition import MacroHeader

    for view in macros:
        parameters = ", ".join(view.header.signature) if isinstance(view.header, MacroHeader) else ""
        yield f"CREATE MACRO {view.qualified}({parameters}) AS TABLE {view.sql}"


def _comments_on_views(definitions: Definitions) -> Iterator[str]:
    for view in definitions.ordered:
        yield from _comment("VIEW", view.qualified, view.header.about, view.header.columns)
    for name, metric in definitions.aliases.items():
        about = f"Stands for metrics.{metric.view.name}. {metric.header.about}"
        yield from _comment("VIEW", f"metrics.{name}", about, metric.header.columns)
    for view in definitions.macros:
        yield f"COMMENT ON MACRO TABLE {view.qualified} IS {literal(view.header.about)}"
    for name, derived in DERIVED.items():
        yield from _comment("VIEW", name, derived.about, derived.columns)


def _comment(kind: str, name: str, about: str, columns: Mapping[str, str]) -> Iterator[str]:
    yield f"COMMENT ON {kind} {name} IS {literal(about)}"
    for column, sentence in columns.items():
        yield f'COMMENT ON COLUMN {name}."{column}" IS {literal(" ".join(sentence.split()))}'
