"""Writes SQL that reads the Parquet files of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import literal


def parquet_source(files: Iterable[str | Path]) -> str | None:
    """Return SQL that reads a table's files; None if there are no files.

    The SQL states that every row's run_id is the folder of its file. If a query names one run, DuckDB can therefore
    skip the files of all other runs; opening a file takes 0.1 ms even if no row of it is wanted. If a query lists
    several runs, DuckDB opens all files, and skips the row groups of other runs by their statistics; so a session
    answers such a query with a lens over only these runs.
    """
    quoted = ", ".join(literal(str(f)) for f in files)
    if not quoted:
        return None
    read = f"read_parquet([{quoted}], filename = true, hive_partitioning = false)"
    return f"(SELECT * FROM {read} WHERE run_id = split_part(filename, '/', -3))"  # noqa: S608  literals


def reading(files: Iterable[Path]) -> str:
    """SQL that reads files that hold rows of several runs."""
    return f"read_parquet([{', '.join(literal(str(f)) for f in files)}], hive_partitioning = false)"


def run_sources(root: str, runs: Iterable[RunVersion]) -> dict[str, str | None]:
    """Return the source of every table over the files of all runs.

    Args:
        root: folder or URI that the runs' file names are relative to, as `Lake.root`.
        runs: the current versions of the runs.
    """
    listed = list(runs)
    return {t: table_source(root, listed, t) for t in TABLES}


def table_source(root: str, runs: Iterable[RunVersion], table: str) -> str | None:
    """Return the source of one table over the files of all runs; see `run_sources`."""
    return parquet_source(f"{root}/{n}" for r in runs for n in r.files.get(table, ()))
