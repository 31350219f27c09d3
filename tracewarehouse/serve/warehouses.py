"""Gives each request what it needs: a free warehouse of the server, the run that it names, the first row to show."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import LifoQueue
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tracewarehouse.ingest.errors import StuckQueryError, WarehouseError
from tracewarehouse.ingest.lake.lake import State
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.queries.read_only import Limits
from tracewarehouse.warehouse import Warehouse

FOR_PAGES, FOR_QUESTIONS, FOR_LONG_QUESTIONS = 2, 2, 2
"""The most requests at a time: those for pages and their charts, queries that people write in SQL, and long ones.

Queries have places of their own, so that they do not block pages; nor do long ones block short ones.
"""
_PLACES = FOR_PAGES + FOR_QUESTIONS + FOR_LONG_QUESTIONS

_MOST_KEPT = 200
_Made = TypeVar("_Made")


class Warehouses:
    """Several open warehouses over the same folder, and results that are kept as long as no run changes.

    Args:
        limits: the limits of each query.
    """

    def __init__(self, open_one: Callable[[], Warehouse], limits: Limits) -> None:
        self.limits = limits
        self._open = open_one
        self._free: LifoQueue[Warehouse] = LifoQueue()  # last in, first out: the one used last has its views ready
        for _ in range(_PLACES):
            self._free.put(open_one())
        self._lock = threading.Lock()
        self._state: State | None = None
        self._kept: dict[Hashable, object] = {}

    @contextmanager
    def one(self, unwanted: Future[None] | None = None) -> Iterator[Warehouse]:
        """A warehouse for one request, whose queries have the limit of time; waits until one is free.

        Args:
            unwanted: is done once the client has left; its queries then end.
        """
        warehouse = self._free.get()
        try:
            with warehouse.limited(Limits(self.limits.seconds, None, unwanted)):
                yield warehouse
        except StuckQueryError:
            warehouse = self._open()  # the old one is left to its query
            raise
        finally:
            self._free.put(warehouse)

    def kept(self, warehouse: Warehouse, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """The result of `make`, which is kept until a run comes, goes or changes."""
        warehouse.lake.sync()
        state = warehouse.lake.state()
        with self._lock:
            if state != self._state:
                self._state, self._kept = state, {}
            if key in self._kept:
                return self._kept[key]  # type: ignore[return-value]
        made = make()
        with self._lock:
            if state == self._state:
                self._kept[key] = made
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]  # the oldest
        return made

    def close(self) -> bool:
        """Close the warehouses that are free; returns whether all are."""
        closed = 0
        while not self._free.empty():
            self._free.get().close()
            closed += 1
        return closed == _PLACES


def served_warehouses(request: Request) -> Warehouses:
    """The warehouses of the server."""
    warehouses: Warehouses = request.app.state.warehouses
    return warehouses


def requested_run(warehouse: Warehouse, reference: str) -> RunVersion:
    """A run by its id, the beginning of its id, or its name."""
    try:
        return warehouse.run(reference)
    except WarehouseError as error:
        raise HTTPException(404, str(error)) from None


def first_row(request: Request) -> int:
    """The first row to show, counted from 0."""
    text = request.query_params.get("from") or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HTTPException(400, f"from={text[:40]} in the address is not the number of a row.")
    return int(text)
