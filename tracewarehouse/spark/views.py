"""Creates the lens on Spark: a temporary view for each table, model and metric that a query reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from tracewarehouse.database.lens import OWN_VIEWS
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.spark.translation import to_spark, view_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.ingest.lake.lake import Lake
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
