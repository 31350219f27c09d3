"""Fixtures that ingest captures and read the tables back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from xplane_builder import Space

from tracewarehouse.ingest.capture.manifest import Mesh
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.pipeline import IngestResult, ingest_one
from tracewarehouse.warehouse import Warehouse

Query = Callable[..., list[tuple[Any, ...]]]


def open_tables(warehouse: Path) -> Query:
    """A function that runs SQL over the tables of a warehouse; a table is a view by its name."""
    connection = duckdb.connect()
    lake = Lake(warehouse)
    runs = lake.runs()
    for name, table in TABLES.items():
        files = [str(p) for run in runs for p in lake.paths(run, name)]
        if files:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({files}, hive_partitioning=false)")
        else:
            columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
            connection.execute(f"CREATE TABLE {name} ({columns})")

    def query(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return connection.execute(sql, parameters).fetchall()

    return query


@pytest.fixture(scope="session")
def shared_runs(shared_captures: Warehouse) -> dict[str, RunVersion]:
    """The runs of all real captures by their names."""
    return {run.name: run for run in shared_captures.lake.runs()}


@pytest.fixture(scope="session")
def shared_tables(shared_captures: Warehouse) -> Query:
    """SQL over the tables of all real captures."""
    return open_tables(Path(shared_captures.path))


@pytest.fixture(scope="session")
def tables_in() -> Callable[[Path], Query]:
    """Opens the tables of a warehouse for SQL."""
    return open_tables


@pytest.fixture
def ingest(tmp_path: Path, tables_in: Callable[[Path], Query]) -> Callable[..., tuple[IngestResult, Query]]:
    """Write a space as a capture of one host or more, ingest it, and open its tables."""

    def run(*spaces: Space, mesh: str | None = None, step: str | None = None) -> tuple[IngestResult, Query]:
        folder = tmp_path / "capture" / "plugins" / "profile" / "now"
        for i, space in enumerate(spaces):
            space.write(folder / f"host{i}.xplane.pb")
        parsed = Mesh.parse(mesh) if mesh else None
        result = ingest_one(folder, tmp_path / "warehouse", RunOptions(parsed, step_program=step))
        return result, tables_in(tmp_path / "warehouse")

    return run
