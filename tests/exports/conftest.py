"""Captures that several tests export: each is ingested once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse


@pytest.fixture(scope="session")
def taken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Warehouse]:
    """A warehouse of one capture, without metric values, which no trace shows."""

    def ingested(capture: Path) -> Warehouse:
        folder = tmp_path_factory.mktemp("taken")
        ingest_one(capture, folder)
        return open_warehouse(folder)

    return cache(ingested)
