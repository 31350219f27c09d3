"""Writes warehouse.duckdb, a lens in a file beside the lake that any DuckDB opens, and checks if it is up to date."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from tracewarehouse.database.file_sources import run_sources
from tracewarehouse.database.lens import add_tables, comment_on_tables, create_lens
from tracewarehouse.database.session import files_error
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, unread_sentence
from tracewarehouse.ingest.lake.schema import TABLES, Table
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions

STORAGE_VERSION = "v1.5.0"
"""Storage format of DuckDB files that are written: the newest one that the DuckDB CLI on PyPI can open."""

MARK = ".if-this-is-missing-run-tw-build.parquet"
"""A file without rows beside warehouse.duckdb. The database's views name its whole path before any file of a run.

DuckDB resolves relative paths against the reader's folder, so the views have absolute ones. If the warehouse has been
moved, DuckDB names the first file that it misses: this one, whose name says what to do.
"""
_FILE = re.compile(r"'((?:[^']|'')+\.parquet)'")


class DatabaseFile:
    """The database file of a warehouse, which need not exist.

    Args:
        lake: the runs, in a local folder.
        definitions: gives the models and metrics; it is called when they are needed.

    Attributes:
        path: the file.
    """

    def __init__(self, lake: Lake, definitions: Callable[[], Definitions]) -> None:
        self._lake = lake
        self._definitions = definitions
        self.path = lake.warehouse / DATABASE

    def build(self) -> Path:
        """Write the file, and return its path; see `Warehouse.build`.

        Raises:
            WarehouseError: the file cannot be written, or a file of a run is missing.
            MetricError: DuckDB refuses a definition.
        """
        lake = self._lake
        try:
            with lake.exclusive():  # so that the later of two builds has the newer runs
                runs = lake.runs()
                if lost := lake.lacking(runs):  # DuckDB would miss a file only at the first query
                    raise WarehouseError(f"the database cannot be built: {lake.root}: {unread_sentence(lost)}")
                return write_database(lake.warehouse, runs, self._definitions())
        except duckdb.Error as error:
            raise WarehouseError(f"the database cannot be built: {files_error(lake, lake.runs(), error)}") from None
        except OSError as error:
            raise WarehouseError(f"{lake.warehouse}: the database cannot be built: {error}") from None

    def holds(self, runs: Iterable[RunVersion]) -> bool:
        """Whether the file is what `build` would write now for these runs: the same files and the same definitions.

        Raises:
            WarehouseError: the file is not a database with the lens.
        """
        root = self._lake.warehouse.resolve()
        wanted = {root / f for run in runs for t, files in run.files.items() if t in TABLES for f in files}
        catalog = self._read("SELECT fingerprint FROM metrics.catalog")
        definitions = self._definitions()
        fingerprints = sorted(definitions.fingerprint(m.view) for m in definitions.metrics)
        if not (root / MARK).exists():
            return False
        return self._files() == wanted and sorted(f for (f,) in catalog) == fingerprints

    @property
    def is_current(self) -> bool:
        """Whether the file holds the current runs and definitions; True if there is no file."""
        try:
            return not self.path.exists() or self.holds(self._lake.runs())
        except WarehouseError:  # it is damaged, or no run can be read
            return False

    def update(self) -> bool:
        """Build the file anew if there is one and it is not current; returns whether it was built.

        Raises:
            WarehouseError: it cannot be built, or it holds metrics that are not defined here.
        """
        if self.is_current:
            return False
        try:
            foreign = self._foreign_metrics()
        except WarehouseError:  # it is damaged, so nothing in it can be lost
            foreign = []
        if foreign:
            raise WarehouseError(
                f"{self._lake.warehouse}: {DATABASE} is older than the runs, and has metrics that are not defined here "
                f"({', '.join(foreign)}); run `tw build`, with --sql if they are your own"
            )
        self.build()
        return True

    @contextmanager
    def following_runs(self) -> Iterator[None]:
        """Update the file after a change of the runs in this context; see `Warehouse.followed_by_database`."""
        before = self._lake.listing()[0]
        try:
            yield
        except Exception:
            with suppress(WarehouseError):
                self._update_after(before)
            raise
        self._update_after(before)

    def _update_after(self, before: Sequence[RunVersion]) -> None:
        if self._lake.listing()[0] != before:
            self.update()

    def files_of_runs(self) -> set[str]:
        """The files in the warehouse that the file reads, relative to it; empty if there is no such file.

        Raises:
            WarehouseError: the file is not a database with the lens.
        """
        root = self._lake.warehouse.resolve()
        if not self.path.exists():
            return set()
        return {str(f.relative_to(root)) for f in self._files() if f.is_relative_to(root)}

    def _files(self) -> set[Path]:
        views = self._read("SELECT sql FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal")
        files = (Path(name.replace("''", "'")) for (sql,) in views for name in _FILE.findall(sql))
        return {file for file in files if file.name != MARK}

    def _foreign_metrics(self) -> list[str]:
        """The metrics in the file that are not defined here, such as a user's own."""
        names = {name for (name,) in self._read("SELECT metric FROM metrics.catalog")}
        return sorted(names - {m.name for m in self._definitions().metrics})

    def _read(self, sql: str) -> list[tuple[str]]:
        """Rows of a query on the file; works even while another program has it open for writing."""
        try:
            with TemporaryFolder() as folder:
                copy = shutil.copy(self.path, folder.path / DATABASE)
                with duckdb.connect(str(copy), read_only=True) as connection:
                    return connection.execute(sql).fetchall()
        except (duckdb.Error, OSError) as error:
            why = " ".join(str(error).split())
            raise WarehouseError(f"{self.path}: cannot be read ({why}); run `tw build`") from None


def write_database(warehouse: Path, runs: Iterable[RunVersion], definitions: Definitions) -> Path:
    """Write warehouse.duckdb anew, replace the old file by it in one step, and return its path.

    Args:
        warehouse: the warehouse's folder.
        runs: the current versions of the runs.
        definitions: the models and metrics.

    Raises:
        MetricError: DuckDB refuses a definition.
        duckdb.Error: a file of a run cannot be read.
    """
    target, root = warehouse / DATABASE, warehouse.resolve()
    with placed_whole(target) as part:
        try:
            with duckdb.connect(str(part), config={"storage_compatibility_version": STORAGE_VERSION}) as connection:
                if not (root / MARK).exists():
                    connection.execute(f"COPY (SELECT 1 AS mark WHERE false) TO {literal(str(root / MARK))}")
                sources = {t: _marked(TABLES[t], root, source) for t, source in run_sources(str(root), runs).items()}
                # first without files, as creating each view would look at every file beneath it
                create_lens(connection, {}, definitions)
                add_tables(connection, sources)
                comment_on_tables(connection)
        finally:
            part.with_name(f"{part.name}.wal").unlink(missing_ok=True)
    return target


def _marked(table: Table, root: Path, source: str | None) -> str | None:
    """The source, after a part without rows that reads `MARK`; DuckDB drops this part when it plans a query."""
    if source is None:
        return None
    empty = f"SELECT {table.nulls_sql} FROM read_parquet({literal(str(root / MARK))}) WHERE false"  # noqa: S608
    return f"({empty} UNION ALL SELECT {table.names_sql} FROM {source})"  # noqa: S608
