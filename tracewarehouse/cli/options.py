"""Defines the options that stand before the verb and those that several commands share, and completes names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.queries.output import Format

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class WarehouseOptions:
    """The warehouse's folder or URI, and the folder of the user's own metrics or None."""

    warehouse: str
    sql: Path | None = None

    def __str__(self) -> str:
        return self.warehouse

    def open(self, *, create: bool = False) -> Warehouse:
        """The warehouse; see `open_warehouse`."""
        from tracewarehouse.warehouse import open_warehouse

        return open_warehouse(self.warehouse, create=create, sql=self.sql)

    def open_spark(self, master: str | None) -> Warehouse:
        """The warehouse, with Spark to answer its queries; see `tracewarehouse.spark.warehouse.open_spark`."""
        from tracewarehouse.spark.warehouse import open_spark

        return open_spark(self.warehouse, sql=self.sql, master=master)

    def definitions(self) -> Definitions:
        """The package's metrics and the user's own.

        Raises:
            MetricError: a definition is not valid.
        """
        from tracewarehouse.definitions.reading import load_with

        return load_with(self.sql)


def complete_runs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the runs that begin with what was typed; none if there is no warehouse."""
    from tracewarehouse.ingest.errors import TracewarehouseError
    from tracewarehouse.ingest.lake.lake import Lake

    try:
        listed, _ = Lake(Path(str(context.find_root().params.get("warehouse")))).listing()
    except TracewarehouseError:
        return []
    return sorted({r.name for r in listed if r.name.startswith(incomplete)})


def complete_metrics(incomplete: str) -> list[str]:
    """Names of the package's metrics that complete a name, or the last name of a list such as `ttft,tp`."""
    from tracewarehouse.definitions.reading import SQL

    before, comma, last = incomplete.rpartition(",")
    names = {p.stem.rpartition("_v")[0] for p in SQL.rglob("*_v[0-9]*.sql")}
    return sorted(f"{before}{comma}{n}" for n in names if n.startswith(last))


def complete_charts(incomplete: str) -> list[str]:
    """Names of the charts that begin with what was typed."""
    from tracewarehouse.dashboards.registry import CHARTS

    return sorted(name for name in CHARTS if name.startswith(incomplete))


def _standard_output(path: Path | None) -> Path | None:
    return None if str(path) == "-" else path


_FILES = {".arrow", ".csv", ".db", ".duckdb", ".gz", ".html", ".json", ".jsonl", ".md", ".ndjson", ".parquet", ".pb",
          ".pdf", ".pftrace", ".png", ".svg", ".txt", ".xlsx", ".yaml", ".zip"}  # fmt: skip


def a_folder(path: Path | None) -> Path | None:
    """The folder that an option names."""
    if path is not None and path.suffix.lower() in _FILES and not path.is_dir():
        raise typer.BadParameter(f"{path} would become a folder, and its ending is that of a file; name a folder")
    return path


FormatOption = Annotated[
    Format | None, typer.Option("--format", help="Default: table, or the format that the ending of -o names.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write to this file; its ending names the format.", callback=_standard_output),
]


class Engine(StrEnum):
    """The engine that runs SQL and ingest."""

    DUCKDB = "duckdb"
    SPARK = "spark"


EngineOption = Annotated[
    Engine, typer.Option(help="The engine that does the work: DuckDB in this process, or Apache Spark (see --master).")
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        envvar="SPARK_MASTER",
        metavar="URL",
        help="Where Spark runs, such as spark://HOST:7077 or sc://HOST:15002; by default on this machine.",
        show_default=False,
    ),
]


def _separate(names: list[str] | None) -> list[str] | None:
    return [n for text in names for n in text.split(",") if n] if names else names


MetricsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        "-m",
        metavar="NAME,...",
        help="Only these metrics. You can repeat the option.",
        callback=_separate,
        autocompletion=complete_metrics,
    ),
]
RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Run ids, beginnings of ids, names, or patterns of names such as 'llama-*'; default: all runs.",
        autocompletion=complete_runs,
    ),
]
