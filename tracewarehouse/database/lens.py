"""The lens: views for a warehouse's tables, models and metrics, and its macros, each with a comment.

A view names tables by schema only, never by database, so it works under any name that the database is attached as.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from tracewarehouse.database.kept_views import copy_views
from tracewarehouse.definitions import missing
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions, Metric, View

_SCHEMAS = ("models", "preconditions", "metrics", "macros")
_BEGIN = "; ".join(f"CREATE SCHEMA {s}" for s in _SCHEMAS)

_CATALOG_COLUMNS = {
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "status": "experimental, stable, deprecated, or compatibility for the definition of another tool.",
    "unit": "Unit of the value.",
    "polarity": "higher_is_better, lower_is_better or none.",
    "scope": "run if each row comes from one run and is stored with it, warehouse if the metric compares runs.",
    "grain": "Columns that identify a row, separated by commas.",
    "value": "Column that holds the value.",
    "description": "What the metric means.",
    "ccl_bench": "Name of the CCL-Bench metric that asks the same question.",
    "fingerprint": "Fingerprint of the SQL and of everything that it reads.",
    "columns": "One sentence per column, as a JSON object.",
    "changed": "What this version changed.",
    "deprecated": "Why not to use a deprecated version, and what to use instead; NULL for other versions.",
}
_ALL_VALUES_COLUMNS = {
    "run_id": "The run.",
    "metric": "Name of the metric.",
    "version": "Version of the definition.",
    "dimensions": "The row's other grain columns as a JSON object.",
    "value": "The value.",
    "unit": "Unit of the value.",
}


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

    Raises:
        MetricError: DuckDB refuses a definition; the message names its file.
    """
    for statement in _tables(tables):  # apart from the views, so that no view is blamed for a bad file
        connection.execute(statement)
    add_all_views(connection, definitions)


def begin_lens(connection: duckdb.DuckDBPyConnection) -> None:
    """Create the empty schemas of a lens; `add_tables` and `add_views` fill them."""
    connection.execute(_BEGIN)


def add_tables(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, str | None]) -> None:
    """Add tables to a lens, with their sources as for `create_lens`."""
    for table, source in tables.items():
        connection.execute(f"CREATE OR REPLACE VIEW main.{table} AS {_select(TABLES[table], source)}")


def add_views(
    connection: duckdb.DuckDBPyConnection,
    definitions: Definitions,
    views: Iterable[View],
    *,
    catalog: bool = False,
    all_values: bool = False,
    missing_metrics: bool = False,
    macros: Sequence[View] = (),
) -> None:
    """Add parts to a lens that it lacks: views of sql/, metrics.catalog and the like, or macros.

    Args:
        connection: a database that `begin_lens` or `create_lens` was called on.
        definitions: the models and metrics.
        views: the models and metrics to add; each must come after what it reads.
        catalog: add metrics.catalog.
        all_values: add metrics.all_values.
        missing_metrics: add metrics.missing.
        macros: the macros to add.

    Raises:
        MetricError: DuckDB refuses a definition; the message names its file.
    """
    views = list(views)
    statements = [_catalog(definitions)] if catalog else []
    statements += _views(definitions, views)
    if all_values:
        statements.append(_all_values(definitions))
    if missing_metrics:
        statements.append(_missing(definitions))
    statements += _macros(macros)
    try:
        connection.execute(";\n".join(statements))
    except duckdb.Error:
        _name_refused(connection, views, macros)
        raise


def add_all_views(connection: duckdb.DuckDBPyConnection, definitions: Definitions) -> None:
    """Put all views and macros, with their comments, in place of those that the lens has; it may lack tables.

    Raises:
        MetricError: DuckDB refuses a definition; the message names its file.
    """
    statements = [
        _BEGIN,
        _catalog(definitions),
        *_views(definitions, definitions.ordered),
        _all_values(definitions),
        _missing(definitions),
        *_macros(definitions.macros),
        *_comments_on_views(definitions),
    ]
    without_tables = [f"DROP VIEW main.{t}" for t in TABLES]
    try:
        copy_views(connection, [*_tables({}), *statements, *without_tables], _SCHEMAS)
    except duckdb.InterruptException:
        raise
    except (OSError, RuntimeError, duckdb.Error):  # no folder for the copy, or a definition that DuckDB refuses
        pass
    else:
        return
    in_main = "table_catalog = current_database() AND table_schema = 'main'"
    had = connection.execute(f"SELECT table_name FROM information_schema.tables WHERE {in_main}").fetchall()  # noqa: S608
    add_tables(connection, {t: None for t in TABLES if (t,) not in had})
    drops = [f"DROP SCHEMA IF EXISTS {s} CASCADE" for s in _SCHEMAS]
    try:
        # one transaction for each of 1,500 comments would take longer than the comments
        connection.execute(";\n".join(("BEGIN", *drops, *statements, "COMMIT")))
    except duckdb.Error:
        connection.execute("ROLLBACK")
        connection.execute(";\n".join((*drops, _BEGIN)))
        _name_refused(connection, definitions.ordered, definitions.macros)
        raise


def comment_on_tables(connection: duckdb.DuckDBPyConnection, tables: Mapping[str, str | None] | None = None) -> None:
    """Write the comments on every table and its columns.

    A transaction holds a copy of a view for each comment on it, and the view of a table names the files of all runs: in
    one transaction, the copies take a gigabyte for 10,000 runs. So each table has its own.

    Args:
        connection: a database that has all tables.
        tables: their sources, as for `create_lens`, if some are tables rather than views.
    """
    for statements in _comments_on_tables(tables or {}):
        connection.begin()
        connection.execute(";\n".join(statements))
        connection.commit()


def _name_refused(connection: duckdb.DuckDBPyConnection, views: Iterable[View], macros: Sequence[View]) -> None:
    """Raise for the first view or macro that DuckDB refuses; return if it refuses none of them."""
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


def parquet_source(files: Iterable[str | Path]) -> str | None:
    """Return SQL that reads a table's files; None if there are no files.

    The SQL states that every row's run_id is the folder of its file. If a query names one run, DuckDB can therefore
    skip the files of all other runs; opening a file takes 0.1 ms even if no row of it is wanted. If a query lists
    several runs, DuckDB opens all files, and skips the row groups of other runs by their statistics; so a session asks
    such a query of a lens over these runs alone.
    """
    quoted = ", ".join(literal(str(f)) for f in files)
    if not quoted:
        return None
    read = f"read_parquet([{quoted}], filename = true, hive_partitioning = false)"
    return f"(SELECT * FROM {read} WHERE run_id = split_part(filename, '/', -3))"  # noqa: S608  literals


def reading(files: Iterable[Path]) -> str:
    """SQL that reads files that hold rows of several runs."""
    return f"read_parquet([{', '.join(literal(str(f)) for f in files)}], hive_partitioning = false)"


def run_sources(root: str, runs: Iterable[RunVersion]) -> dict[str, str | None]:
    """Return the source of every table over the files of all runs.

    Args:
        root: folder or URI that the runs' file names are relative to, as `Lake.root`.
        runs: the current versions of the runs.
    """
    listed = list(runs)
    return {t: table_source(root, listed, t) for t in TABLES}


def table_source(root: str, runs: Iterable[RunVersion], table: str) -> str | None:
    """Return the source of one table over the files of all runs; see `run_sources`."""
    return parquet_source(f"{root}/{n}" for r in runs for n in r.files.get(table, ()))


def _tables(tables: Mapping[str, str | None]) -> Iterator[str]:
    for table in TABLES.values():
        source = tables.get(table.name)
        if source != f"main.{table.name}":
            yield f"CREATE VIEW main.{table.name} AS {_select(table, source)}"


def _select(table: Table, source: str | None) -> str:
    if source is None:
        empty = ", ".join(f'CAST(NULL AS {c.type}) AS "{c.name}"' for c in table.columns)
        return f"SELECT {empty} WHERE false"
    names = ", ".join(f'"{c.name}"' for c in table.columns)
    return f"SELECT {names} FROM {source}"  # noqa: S608, the names are the schema's


def _views(definitions: Definitions, views: Iterable[View]) -> Iterator[str]:
    aliases = {metric.view.qualified: name for name, metric in definitions.aliases().items()}
    for view in views:
        yield f"CREATE VIEW {view.qualified} AS {view.sql}"
        if name := aliases.get(view.qualified):
            columns = ", ".join(view.header.columns)
            yield f"CREATE VIEW metrics.{name} AS SELECT {columns} FROM {view.qualified}"  # noqa: S608


def _catalog(definitions: Definitions) -> str:
    return f"CREATE VIEW metrics.catalog AS {catalog_sql(definitions)}"


def catalog_sql(definitions: Definitions) -> str:
    """The SELECT of metrics.catalog."""
    rows = [_catalog_row(definitions, m) for m in definitions.metrics]
    names = ", ".join(f'"{c}"' for c in _CATALOG_COLUMNS)
    values = ", ".join(rows)
    return f"SELECT {names} FROM (VALUES {values}) AS catalog ({names})"  # noqa: S608


def _catalog_row(definitions: Definitions, metric: Metric) -> str:
    h = metric.header
    values = (
        h.metric,
        h.version,
        h.status,
        h.unit,
        h.polarity,
        h.scope,
        ", ".join(h.grain),
        h.value,
        h.description,
        h.ccl_bench,
        definitions.fingerprint(metric.view),
        json.dumps(h.columns, ensure_ascii=False),
        " ".join(h.changed.split()),
        " ".join(h.deprecated.split()) if h.deprecated else None,
    )
    return f"({', '.join(_literal(v) for v in values)})"


def _all_values(definitions: Definitions) -> str:
    return f"CREATE VIEW metrics.all_values AS {all_values_sql(definitions)}"


def all_values_sql(definitions: Definitions) -> str:
    """The SELECT of metrics.all_values."""
    live = [values_now(m) for m in definitions.metrics if m.view.compares_runs and m.header.is_stored]
    return " UNION ALL ".join([stored_values(), *live])


def _missing(definitions: Definitions) -> str:
    return f"CREATE VIEW {missing.MISSING} AS {missing.missing_sql(definitions)}"


def stored_values(condition: str = "true") -> str:
    """SQL of the stored rows of metrics.all_values for which a condition holds."""
    return f"SELECT {', '.join(_ALL_VALUES_COLUMNS)} FROM main.metric_values WHERE {condition}"  # noqa: S608


def values_now(metric: Metric, condition: str = "true") -> str:
    """SQL of the rows that a metric would have in metrics.all_values, if its values were stored.

    Args:
        metric: the metric.
        condition: what must hold for a row of its view.
    """
    h = metric.header
    return (
        f"SELECT run_id, {literal(h.metric)}, {h.version}, {metric.dimensions_sql}, "  # noqa: S608
        f'CAST("{h.value}" AS DOUBLE), {literal(h.unit)} FROM {metric.view.qualified} '
        f'WHERE "{h.value}" IS NOT NULL AND {condition}'
    )


def _macros(macros: Iterable[View]) -> Iterator[str]:
    from tracewarehouse.definitions.reading import MacroHeader

    for view in macros:
        parameters = ", ".join(view.header.signature) if isinstance(view.header, MacroHeader) else ""
        yield f"CREATE MACRO {view.qualified}({parameters}) AS TABLE {view.sql}"


def _comments_on_tables(tables: Mapping[str, str | None]) -> Iterator[Iterator[str]]:
    """The comments of each table."""
    for table in TABLES.values():
        kind = "TABLE" if tables.get(table.name) == f"main.{table.name}" else "VIEW"
        columns = {c.name: f"{c.doc} [{c.unit}]" if c.unit else c.doc for c in table.columns}
        yield _comment(kind, f"main.{table.name}", table.doc, columns)


def _comments_on_views(definitions: Definitions) -> Iterator[str]:
    for view in definitions.ordered:
        yield from _comment("VIEW", view.qualified, _summary(view), view.header.columns)
    for name, metric in definitions.aliases().items():
        about = f"Stands for metrics.{metric.view.name}. {_summary(metric.view)}"
        yield from _comment("VIEW", f"metrics.{name}", about, metric.header.columns)
    for view in definitions.macros:
        yield f"COMMENT ON MACRO TABLE {view.qualified} IS {literal(_summary(view))}"
    yield from _comment("VIEW", "metrics.catalog", "Every version of every metric.", _CATALOG_COLUMNS)
    about = (
        "The values of all metrics of all runs, without deprecated versions. Values of one run were evaluated at its "
        "ingest; metrics that compare runs are evaluated now."
    )
    yield from _comment("VIEW", "metrics.all_values", about, _ALL_VALUES_COLUMNS)
    yield from _comment("VIEW", missing.MISSING, missing.ABOUT, missing.COLUMNS)


def _summary(view: View) -> str:
    return " ".join(view.header.description.split())


def _comment(kind: str, name: str, about: str, columns: Mapping[str, str]) -> Iterator[str]:
    yield f"COMMENT ON {kind} {name} IS {literal(about)}"
    for column, sentence in columns.items():
        yield f'COMMENT ON COLUMN {name}."{column}" IS {literal(" ".join(sentence.split()))}'


def _literal(value: str | int | None) -> str:
    if value is None:
        return "CAST(NULL AS VARCHAR)"
    return str(value) if isinstance(value, int) else literal(value)
