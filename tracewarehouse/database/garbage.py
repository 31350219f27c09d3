"""Finds and removes what a warehouse no longer uses, in its lake and among the files that are derived from it."""

from __future__ import annotations

from tracewarehouse.database import compacted, consolidated
from tracewarehouse.database.database_file import DatabaseFile
from tracewarehouse.ingest.lake import garbage
from tracewarehouse.ingest.lake.garbage import Leftover
from tracewarehouse.ingest.lake.lake import Lake


def leftovers(lake: Lake, database: DatabaseFile, grace_seconds: float) -> list[Leftover]:
    """List what `collect_garbage` would remove.

    Raises:
        WarehouseError: the warehouse cannot be listed, or its database cannot be read.
    """
    left = garbage.leftovers(lake, grace_seconds, database.files_of_runs())
    return left + _of_caches(lake, grace_seconds)


def collect_garbage(lake: Lake, database: DatabaseFile, grace_seconds: float) -> list[Leftover]:
    """Remove unused files, and return them; those that warehouse.duckdb names are kept.

    Raises:
        WarehouseError: the warehouse cannot be written, or its database cannot be read.
    """
    gone = garbage.collect_garbage(lake, grace_seconds, database.files_of_runs())
    return gone + garbage.removed(_of_caches(lake, grace_seconds))


def _of_caches(lake: Lake, grace_seconds: float) -> list[Leftover]:
    return consolidated.leftovers(lake, grace_seconds) + compacted.leftovers(lake, grace_seconds)
