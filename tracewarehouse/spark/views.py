"""The lens on Spark: a temporary view for each table, model and metric that a query reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tracewarehouse.database import compacted
from tracewarehouse.database.lens import all_values_sql, catalog_sql
from tracewarehouse.definitions import missing
from tracewarehouse.definitions.reading import ModelHeader
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.spark.translation import to_spark, view_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.ingest.lake.lake import Lake, RunVersion
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
"""Spark's type of each type of the schema; it reads unsigned integers of Parquet as decimals."""


class SparkViews:
    """The views of some runs in a session of Spark; they are made when they are asked for.

    Spark computes a view anew wherever it is read. So it is told to keep the rows of a model as soon as a second
    definition or query reads it: in its own memory and, beyond that, on its workers' disks. `close` lets them go.
    Models with a row per op are not kept.

    Args:
        spark: the session.
        lake: where the runs lie.
        runs: the runs that the tables hold.
        definitions: the models and metrics.
    """

    def __init__(self, spark: SparkSession, lake: Lake, runs: Sequence[RunVersion], definitions: Definitions) -> None:
        self._spark = spark
        self._lake = lake
        self._runs = runs
        self._definitions = definitions
        self._made: set[str] = set()
        self._readers: Counter[str] = Counter()
        self._kept: set[str] = set()

    def create(self, names: Collection[str], types: Types, queried: Collection[str] = ()) -> None:
        """Make the views that are missing.

        Args:
            names: qualified names of tables, models and metrics, with all that these read.
            types: the types of their columns in DuckDB.
            queried: those of them that the query itself reads.

        Raises:
            QueryError: a definition of the user's own is not what Spark computes alike.
        """
        wanted = set(names) - self._made
        for table in TABLES.values():
            if f"main.{table.name}" in wanted:
                self._table(table)
        for qualified, sql in self._selects(wanted):
            self._spark.sql(to_spark(sql, types)).createOrReplaceTempView(view_name(qualified))
        self._made |= wanted
        self._keep(names, queried)

    def close(self) -> None:
        """Let go the rows that Spark keeps."""
        for name in self._kept:
            with suppress(Exception):  # of pyspark, py4j or grpc: Spark has ended, and they with it
                self._spark.catalog.uncacheTable(name)
        self._kept.clear()

    def _keep(self, names: Collection[str], queried: Collection[str]) -> None:
        """Keep the models behind a query that have had a reader before it, or have several in it."""
        behind = [v for v in self._definitions.ordered if v.qualified in names]
        self._readers.update([*queried, *(n for v in behind for n in v.depends_on)])
        for view in behind:
            name = view_name(view.qualified)
            is_model = isinstance(view.header, ModelHeader) and not view.header.inline
            if is_model and self._readers[view.qualified] > 1 and name not in self._kept:
                self._spark.catalog.cacheTable(name)
                self._kept.add(name)

    def _table(self, table: Table) -> None:
        columns = ", ".join(f"`{c.name}` {_TYPES[c.type]}" for c in table.columns)
        files = [_uri(f) for f in compacted.files(self._lake, self._runs, table.name)]
        rows = self._spark.read.schema(columns).parquet(*files) if files else self._spark.createDataFrame([], columns)
        rows.createOrReplaceTempView(view_name(f"main.{table.name}"))

    def _selects(self, wanted: Collection[str]) -> Iterator[tuple[str, str]]:
        """The name and SELECT of each wanted view, after what it reads."""
        if "metrics.catalog" in wanted:
            yield "metrics.catalog", catalog_sql(self._definitions)
        aliases = {m.view.qualified: name for name, m in self._definitions.aliases().items()}
        for view in self._definitions.ordered:
            if view.qualified in wanted:
                yield view.qualified, view.sql
                if name := aliases.get(view.qualified):
                    columns = ", ".join(view.header.columns)
                    yield f"metrics.{name}", f"SELECT {columns} FROM {view.qualified}"  # noqa: S608  names are checked
        if "metrics.all_values" in wanted:
            yield "metrics.all_values", all_values_sql(self._definitions)
        if missing.MISSING in wanted:
            yield missing.MISSING, missing.missing_sql(self._definitions)


def _uri(path: str) -> str:
    """A file as Spark takes it: with its file system, and so that no character of its name is a pattern."""
    escaped = re.sub(r"([][{}*?\\])", r"\\\1", path)
    if escaped.startswith("s3://"):  # the name of Hadoop's connector
        return f"s3a{escaped.removeprefix('s3')}"
    return escaped if "://" in escaped else f"file://{escaped}"
