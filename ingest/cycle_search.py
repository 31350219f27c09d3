"""Python's search for cycles of references, and how to do without."""

from __future__ import annotations

import gc
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
