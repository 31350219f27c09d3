"""A warehouse of the captures in data/, and a Spark on this machine that is asked beside DuckDB."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracewarehouse as tw
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pyspark warn: of a newer pandas, and of files that Java keeps open."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for ignored in ("FutureWarning", "ResourceWarning", "DeprecationWarning", "UserWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{ignored}"))


@pytest.fixture(scope="session")
def spark_installed() -> None:
    """Skips where Spark cannot run."""
    if importlib.util.find_spec("pyspark") is None:
        pytest.skip("pyspark is not installed: make spark installs it and runs these tests")
    from tracewarehouse.spark.connection import check_java

    try:
        check_java()
    except WarehouseError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def duckdb_warehouse(all_captures: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    # Spark and Hadoop take some of these characters for a pattern
    folder = tmp_path_factory.mktemp("spark") / "a {b} [c], % d"
    with open_warehouse(shutil.copytree(all_captures.path, folder)) as warehouse:
        yield warehouse


@pytest.fixture(scope="session")
def spark_warehouse(spark_installed: None, duckdb_warehouse: Warehouse) -> Iterator[Warehouse]:
    with tw.open(duckdb_warehouse.path, engine="spark", master="local[2,4]") as warehouse:
        yield warehouse
