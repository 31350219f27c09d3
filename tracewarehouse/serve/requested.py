"""Reads requests: the run that they name, the first row to show, and the warehouses of the server."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.serve.warehouses import Warehouses
from tracewarehouse.warehouse import Warehouse


def warehouses_of(request: Request) -> Warehouses:
    """The warehouses of the server."""
    warehouses: Warehouses = request.app.state.warehouses
    return warehouses


def run_of(warehouse: Warehouse, reference: str) -> RunVersion:
    """A run by its id, the beginning of its id, or its name.

    Raises:
        HTTPException: there is no such run, or several fit.
    """
    try:
        return warehouse.run(reference)
    except WarehouseError as error:
        raise HTTPException(404, str(error)) from None


def first_row(request: Request) -> int:
    """The first row to show, counted from 0.

    Raises:
        HTTPException: the address does not give a number.
    """
    text = request.query_params.get("from") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HTTPException(400, f"from={text[:40]} in the address is not the number of a row.")
    return int(text)
