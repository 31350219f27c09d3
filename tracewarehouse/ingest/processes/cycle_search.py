"""Turns off Python's search for reference cycles where it only costs time."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Keep Python from searching for reference cycles.

    An ingest makes no cycles, but so many small objects that searching them takes a twentieth of its time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def search_seldom() -> None:
    """Spare a short-lived process most searches for reference cycles, including those at its end.

    At its end the system takes back all memory anyway, and searching the objects of numpy and Arrow takes 30 ms. If
    DuckDB was imported, the last search is kept, because DuckDB would report objects that are not freed as a leak.
    """
    gc.set_threshold(200_000)
    atexit.register(lambda: None if "duckdb" in sys.modules else gc.freeze())
