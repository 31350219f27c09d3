"""Turns off Python's search for reference cycles where it only costs time."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_cycle_search() -> Iterator[None]:
    """Keep Python from looking for cycles of references.

    There are none, but so many small objects that looking through them takes a twentieth of the time of an ingest.
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
    """Spare a process that ends soon most searches for cycles of references, and the ones at its end.

    At its end the system takes back all memory anyway, and searching the objects of numpy and Arrow takes 30 ms. If
    DuckDB was imported, the last search is kept, as DuckDB would report objects that are not freed as a leak.
    """
    gc.set_threshold(200_000)
    atexit.register(lambda: None if "duckdb" in sys.modules else gc.freeze())
