"""Holds what the writers of a run's files share, and writes the tables about the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.lake.parquet import TableWriter
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.processes.pool import Processes

TableFiles = dict[str, list[tuple[Path, int]]]
"""Path and number of rows of the files of each table that has rows."""


@dataclass(frozen=True)
class RunFolder:
    """The folder in which the files of a run are made."""

    path: Path
    run_id: str

    def writer(self, table: str, background: Executor | None = None, part: int | None = None) -> TableWriter:
        """Return a writer of a table's file; see `TableWriter`."""
        return TableWriter(self.path, self.run_id, TABLES[table], background, part)


@dataclass(frozen=True)
class Staging:
    """The making of a run's files, from the first row until the run is published.

    Attributes:
        folder: where the files are made.
        settling: is given files when they are complete.
        processes: share the work.
    """

    folder: RunFolder
    settling: Settling
    processes: Processes


class RunWriters:
    """A writer per table, given the names of the tables; a context manager that leaves complete files."""

    def __init__(self, staging: Staging, tables: Iterable[str], background: Executor | None = None) -> None:
        self._writers = {name: staging.folder.writer(name, background) for name in tables}
        self._settling = staging.settling
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for writer in self._writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            with self._stack:
                self.finish(*self._writers)
        else:
            self._stack.__exit__(*error)

    def __getitem__(self, table: str) -> TableWriter:
        return self._writers[table]

    def write_rows(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows given as mappings to a table."""
        self._writers[table].write_rows(rows)

    def finish(self, *tables: str) -> None:
        """Complete the files of these tables, in the background if there is one."""
        for name in tables:
            self._writers[name].finish(self._settling.add)

    def files(self) -> TableFiles:
        """The files, which are complete once the context has ended."""
        return {name: [(w.path, w.rows)] for name, w in self._writers.items() if w.rows}
