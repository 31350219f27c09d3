"""A client of the pages of `tw serve`, without a network, and names of runs that must stay text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.testclient import TestClient

from tracewarehouse.queries.read_only import Limits
from tracewarehouse.serve.application import application
from tracewarehouse.serve.warehouses import Warehouses
from tracewarehouse.warehouse import open_warehouse

PORT = 8765
OWN = f"http://127.0.0.1:{PORT}"

HOSTILE = (
    "<script>alert('x')</script>",
    "../../etc/passwd",
    '名前 / é {{ 7 * 7 }} x\'; DROP TABLE runs; -- " onmouseover="alert(1)',
)


@contextmanager
def client_of(folder: Path, limits: Limits | None = None) -> Iterator[TestClient]:
    """A client of a server of a warehouse, without a network."""
    warehouses = Warehouses(lambda: open_warehouse(folder), limits or Limits(30, 1000))
    with TestClient(application(warehouses, "test", PORT), base_url=OWN) as client:
        yield client
    warehouses.close()
