"""The lens on Spark: a temporary view for each table, model and metric that a query reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from tracewarehouse.definitions import missing
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.lens import all_values_sql, catalog_sql
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

    Args:
        spark: the session.
        lake: where the runs lie.
        runs: the runs that the tables hold.
        definitions: the models and metrics.
    """

    def __init__(self, spark: SparkSession, lake: Lake, runs: Sequence[RunVersion], definitions: Definitions) -> None:
        self._spark = spark
        self._root = lake.root
        self._runs = runs
        self._definitions = definitions
        self._made: set[str] = set()

    def create(self, names: Collection[str], types: Types) -> None:
        """Make the views that are missing.

        Args:
            names: qualified names of tables, models and metrics, with all that these read.
            types: the types of their columns in DuckDB.

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

    def _table(self, table: Table) -> None:
        columns = ", ".join(f"`{c.name}` {_TYPES[c.type]}" for c in table.columns)
        files = [_uri(f"{self._root}/{f}") for run in self._runs for f in run.files.get(table.name, ())]
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
