"""Writes the files of the tables about the whole run; other writers write the events, line by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tracewarehouse.ingest.lake.durable_files import Settling
from tracewarehouse.ingest.lake.parquet import TableWriter
from tracewarehouse.ingest.lake.schema import TABLES

FilesOfTables = dict[str, list[tuple[Path, int]]]
"""Path and number of rows of the files of each table that has rows."""


class RunWriters:
    """A writer per table; a context manager that leaves complete files.

    Args:
        folder: where the files are made.
        run_id: the run.
        tables: names of the tables.
        settling: is given files when they are complete.
        background: see `TableWriter`.
    """

    def __init__(
        self, folder: Path, run_id: str, tables: Iterable[str], settling: Settling, background: Executor | None = None
    ) -> None:
        self._writers = {name: TableWriter(folder, run_id, TABLES[name], background) for name in tables}
        self._settling = settling
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

    def files(self) -> FilesOfTables:
        """The files, which are complete once the context has ended."""
        return {name: [(w.path, w.rows)] for name, w in self._writers.items() if w.rows}
