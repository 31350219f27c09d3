"""Answers the queries of a warehouse with Spark."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.database.lens import OWN_VIEWS
from tracewarehouse.database.session import Session, behind, lens_names
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.capture.locations import is_remote
from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.queries.read_only import run_query
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.queries.runs_read import in_scope
from tracewarehouse.queries.tables_read import ParsedSql, TablesRead
from tracewarehouse.spark.connection import connect, is_local
from tracewarehouse.spark.kinds import Types
from tracewarehouse.spark.translation import to_spark, view_name
from tracewarehouse.warehouse import Warehouse, open_warehouse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.ingest.lake.lake import Lake, State
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.spark.kinds import Types

_TYPES = {
    "VARCHAR": "STRING",
    "BOOLEAN": "BOOLEAN",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "UBIGINT": "DECIMAL(20,0)",
    "DOUBLE": "DOUBLE",
    "BLOB": "BINARY",
}
"""Spark's type for each type of the schema; Spark reads unsigned integers of Parquet as decimals."""


class SparkViews:
    """The views of some runs in a session of Spark, created when they are needed.

    Spark computes a view anew wherever it is read, and the plan of a metric contains those of all models behind it. So
    a model that several definitions read is computed once, when the first view above it is made. Its rows are kept in
    Parquet files of a temporary folder, or, if the workers are on other machines, in their memory and on their disks.
    `close` releases them. Models with a row per op are not kept.

    Args:
        runs: the runs that the tables hold.
        is_local: whether Spark's workers see the temporary folders of this machine.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        runs: Sequence[RunVersion],
        definitions: Definitions,
        *,
        is_local: bool,
    ) -> None:
        self._spark = spark
        self._lake = lake
        self._runs = runs
        self._definitions = definitions
        self._made: set[str] = set()
        self._folder = TemporaryFolder() if is_local else None
        self._in_memory: list[DataFrame] = []

    def create(self, names: Collection[str], types: Types) -> None:
        """Create the views that are missing.

        Args:
            names: qualified names of tables, models and metrics, with all that these read.
            types: the types of their columns in DuckDB.

        Raises:
            QueryError: Spark would not compute a definition of the user's own as DuckDB does.
        """
        wanted = set(names) - self._made
        for table in TABLES.values():
            if f"main.{table.name}" in wanted:
                self._table(table)
        for qualified, sql in self._selects(wanted):
            name, rows = view_name(qualified), self._spark.sql(to_spark(sql, types))
            if qualified in self._shared:
                rows = self._keep(rows, name)
            rows.createOrReplaceTempView(name)
            self._made.add(qualified)
        self._made |= wanted

    def close(self) -> None:
        """Release the rows that are kept."""
        if self._folder:
            self._folder.close()
        for rows in self._in_memory:
            with suppress(Exception):  # of pyspark, py4j or grpc: Spark has ended, and the rows with it
                rows.unpersist()
        self._in_memory.clear()

    @cached_property
    def _shared(self) -> set[str]:
        """The models that several definitions read, without those with a row per op."""
        readers = Counter(n for v in self._definitions.ordered for n in v.depends_on)
        models = (v for v in self._definitions.ordered if v.is_kept)
        return {v.qualified for v in models if readers[v.qualified] > 1}

    def _keep(self, rows: DataFrame, name: str) -> DataFrame:
        if self._folder is None:
            self._in_memory.append(rows.persist())
            return rows
        path = str(self._folder.path / name)
        rows.write.mode("overwrite").parquet(path)  # over what a failed attempt has left
        return self._spark.read.schema(rows.schema).parquet(path)

    def _table(self, table: Table) -> None:
        columns = ", ".join(f"`{c.name}` {_TYPES[c.type]}" for c in table.columns)
        files = [_uri(f"{self._lake.root}/{f}") for r in self._runs for f in r.files.get(table.name, ())]
        rows = self._spark.read.schema(columns).parquet(*files) if files else self._spark.createDataFrame([], columns)
        rows.createOrReplaceTempView(view_name(f"main.{table.name}"))

    def _selects(self, wanted: Collection[str]) -> Iterator[tuple[str, str]]:
        aliases = {m.view.qualified: name for name, m in self._definitions.aliases.items()}
        for view in self._definitions.ordered:
            if view.qualified in wanted:
                yield view.qualified, view.sql
                if name := aliases.get(view.qualified):
                    columns = ", ".join(view.header.columns)
                    yield f"metrics.{name}", f"SELECT {columns} FROM {view.qualified}"  # noqa: S608  names are checked
        for name, select in OWN_VIEWS.items():
            if name in wanted:
                yield name, select(self._definitions)


def _uri(path: str) -> str:
    """The URI of a file for Spark: with its file system, and with characters of patterns escaped."""
    escaped = re.sub(r"([][{}*?\\])", r"\\\1", path)
    if escaped.startswith("s3://"):  # the name of Hadoop's connector
        return f"s3a{escaped.removeprefix('s3')}"
    return escaped if "://" in escaped else f"file://{escaped}"


def open_spark(
    path: str | os.PathLike[str], *, sql: str | os.PathLike[str] | None = None, master: str | None = None
) -> SparkWarehouse:
    """Open a warehouse whose queries Spark answers; see `SparkWarehouse`.

    Args:
        path: the folder, which all workers of Spark must see under the same path; or a URI.
        sql: a folder with your own metrics and models.
        master: where Spark runs; see `tracewarehouse.spark.connection.connect`.
    """
    open_warehouse(path, sql=sql).close()  # says what is wrong with the path
    return SparkWarehouse(path, sql, master)


class SparkWarehouse(Warehouse):
    """A folder of runs whose queries run on Spark, with the rows and types that DuckDB gives.

    `query`, and what uses it (`runs`, `metric`, `metrics`, `values`), asks Spark. DuckDB answers everything else, such
    as `summary`. It also checks each query, on a database without rows, and says which types its columns have.

    Args:
        path: as for `Warehouse`.
        sql: as for `Warehouse`.
    """

    def __init__(
        self, path: str | os.PathLike[str], sql: str | os.PathLike[str] | None = None, master: str | None = None
    ) -> None:
        super().__init__(path if is_remote(path) else Path(path).resolve(), sql)
        self.spark: SparkSession = connect(master)
        self._is_local = is_local(master)
        self._planner: Session | None = None
        self._views: SparkViews | None = None
        self._shown: tuple[State, frozenset[str] | None] | None = None

    def close(self) -> None:
        """Close DuckDB, and forget the views. The session of Spark stays open, as others may use it."""
        super().close()
        if self._views:
            self._views.close()
        if self._planner:
            self._planner.close()
        self._planner = self._views = self._shown = None

    def query(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run SQL of DuckDB's dialect on Spark; see `Warehouse.query`.

        Raises:
            QueryError: the query was refused or failed; Spark would not answer it as DuckDB does, and the message names
                the part; or numbers do not fit 64 bits.
            WarehouseError: the runs cannot be listed or read.
        """
        if not read_only:
            raise QueryError("Spark runs only queries that read; for others leave the engine out, and DuckDB runs them")
        planner = self._planner = self._planner or Session(
            self.lake, lambda: self.definitions, is_restricted=True, only=()
        )
        read = TablesRead()

        def prepare(tables: TablesRead) -> None:
            nonlocal read
            read = tables
            planner.prepare(tables)

        query = ParsedSql(sql)
        expected = run_query(planner.connection, query, parameters, prepare=prepare).arrow()
        names, _ = lens_names(self.definitions, read)
        types = _types(planner)
        translated = to_spark(sql, types, parameters)
        views = self._run_views(planner.runs_read(query, parameters))
        try:
            views.create(behind(self.definitions, names), types)
            frame = self.spark.sql(translated)
            answer = frame.toDF(*(f"c{n}" for n in range(len(frame.columns)))).toArrow()
        except (QueryError, WarehouseError):
            raise
        except Exception as error:  # pyspark's errors, and those of py4j and grpc if Spark has ended
            raise _ended(error) or _told(error) from None
        result = QueryResult(conform(answer, expected.schema))
        return result.noted(in_scope(read, parameters, result, self.lake.runs()), is_cut=False)

    def rows(self, sql: str, /, *, read_only: bool = True, **parameters: Any) -> QueryResult:
        """Run a query as `query` does, since Spark gives Arrow in any case."""
        return self.query(sql, read_only=read_only, **parameters)

    def _run_views(self, run_ids: frozenset[str] | None) -> SparkViews:
        """The views of the runs that suffice for a query, with the files that they have now."""
        self.lake.sync()
        shown = self.lake.state(), run_ids
        if self._views is None or shown != self._shown:
            runs = [r for r in self.lake.runs() if run_ids is None or r.run_id in run_ids]
            if self._views:
                self._views.close()
            self._views = SparkViews(self.spark, self.lake, runs, self.definitions, is_local=self._is_local)
            self._shown = shown
        return self._views


def conform(answer: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The rows of Spark with the names and types that DuckDB gives them."""
    import pyarrow as pa

    if answer.num_columns != len(wanted):
        raise QueryError(f"Spark gives {answer.num_columns} columns where DuckDB gives {len(wanted)}")
    columns = []
    for field, column in zip(wanted, answer.columns, strict=True):
        if column.type != field.type:
            if not _is_same(column.type, field.type):
                raise QueryError(
                    f"column {field.name} is {field.type} in DuckDB, but Spark computes {column.type}; cast it"
                )
            column = column.cast(field.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=pa.schema([pa.field(f.name, f.type) for f in wanted]))


def _is_same(spark: pa.DataType, duckdb: pa.DataType) -> bool:
    """Whether two types hold the same values of a query: whole numbers of any width, text, bytes, or NULL alone."""
    from pyarrow import types

    def is_whole(t: pa.DataType) -> bool:
        return bool(types.is_integer(t) or (types.is_decimal(t) and t.scale == 0))

    return bool(
        (is_whole(spark) and is_whole(duckdb))
        or (types.is_null(spark))
        or (types.is_string(spark) and types.is_large_string(duckdb))
        or (types.is_binary(spark) and types.is_large_binary(duckdb))
    )


def _types(planner: Session) -> Types:
    types: Types = {}
    for schema, table, column, type_ in planner.connection.execute(
        "SELECT schema_name, table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal"
    ).fetchall():
        types.setdefault(schema, {}).setdefault(table, {})[column] = type_
    return types


def _ended(error: BaseException | None) -> BaseException | None:
    """The Ctrl-C or the exit that made Spark cancel the query and raise an error; None if there was neither."""
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        error = error.__context__
    return error


def _told(error: Exception) -> QueryError:
    said = str(error)
    if "ARITHMETIC_OVERFLOW" in said:
        return QueryError(
            "a number does not fit 64 bits on Spark, where DuckDB may have 128 bits for a sum; take differences, or "
            "CAST(x AS DOUBLE)"
        )
    if "FAILED_READ_FILE" in said or "PATH_NOT_FOUND" in said:
        return QueryError(
            f"Spark cannot read a file of a run, which all its workers must see: {_line(said)}; `tw fsck` says which "
            "run is damaged and what to do"
        )
    return QueryError(f"Spark: {_line(said)}")


def _line(text: str) -> str:
    """Spark's own message, which py4j puts below a line of its own, without the error's class and state."""
    told = re.search(r"^.*?\[[A-Z][A-Z0-9_.]+\] *(\S.*)", text, re.MULTILINE)
    first = told[1] if told else next((line for line in text.splitlines() if line.strip()), "no reason given")
    return first.partition(" SQLSTATE")[0][:500]
