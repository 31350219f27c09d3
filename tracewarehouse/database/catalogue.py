"""Keeps warehouse.duckdb, the catalogue: manifests and small tables of all runs, and all views, in one file.

The manifests stay the truth. An entry counts as long as the manifest is still the file that was read, with the same
inode, size and times; a run without such an entry is read from its own files. Writers hold the lock of the warehouse,
extend a copy, and put it in the file's place, so readers go on with the file that they opened. A query writes nothing.
docs/architecture.md says when the file is brought up to date.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from tracewarehouse.database.catalogue_store import KEPT, MADE, STORE, encoded_lists, known_runs, known_stamps
from tracewarehouse.database.lens import add_tables, comment_on_tables, new_lens_file, table_source
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest, placed_whole
from tracewarehouse.ingest.lake.lake import DATABASE, KnownRuns, Lake, State
from tracewarehouse.ingest.lake.manifest import RunVersion, unread_sentence
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.ingest.version import VERSION
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions

MARK = ".if-this-is-missing-run-tw-build.parquet"
"""A file without rows beside warehouse.duckdb. The database's views name its whole path before any file of a run.

DuckDB resolves relative paths against the reader's folder, so the views have absolute ones. If the warehouse has been
moved, DuckDB names the first file that it misses: this one, whose name says what to do.
"""

_ALIAS = "warehouse_catalogue"
_FORMAT = 1
_LONG, _COMPRESSED = ("card", "manifest", "lists"), "USING COMPRESSION zstd"
_AT_ONCE = 500
"""Runs whose files are read at once; the time and memory that DuckDB takes for each grow with their number."""
_TICK_NS = 20_000_000
"""A file could change twice unseen within a tick of the file system's clock; this is longer than any."""
_LISTS = f"""
WITH listed AS (
  SELECT table_name, string_agg(file, chr(10) ORDER BY run_id, file) AS names FROM store.files GROUP BY table_name
),
macros AS (
  SELECT DISTINCT replace(function_name, '_files', '') AS table_name FROM duckdb_functions() WHERE schema_name = 'store'
)
SELECT table_name, names, m.table_name IS NOT NULL
FROM listed FULL JOIN macros AS m USING (table_name)
WHERE table_name NOT IN {KEPT}
"""  # noqa: S608  names of the schema
"""The tables that have files, or had some, with the names of the files, one a line."""


class Catalogue:
    """The file warehouse.duckdb of a warehouse, which need not exist.

    Args:
        lake: the runs.
        sql: the folder of the user's own definitions, or None.
        definitions: gives the models and metrics; it is called when they are needed.

    Attributes:
        path: the file.
    """

    def __init__(self, lake: Lake, sql: Path | None, definitions: Callable[[], Definitions]) -> None:
        self._lake = lake
        self._sql = sql
        self._definitions = definitions
        self._root = str(lake.warehouse.resolve())
        self.path = lake.warehouse / DATABASE
        self._left_out: os.stat_result | None = None

    def runs(self) -> KnownRuns:
        """The runs that it holds, each with the stamp of the manifest that was read; empty if it cannot be used."""
        with duckdb.connect(":memory:", config={"threads": 1}) as connection:
            return self.attach(connection)

    def attach(self, connection: duckdb.DuckDBPyConnection) -> KnownRuns:
        """Attach it to a database, out of its users' sight, and return `runs`; do nothing if it cannot be used."""
        if not self._is_file():
            return {}
        try:
            connection.execute(f"ATTACH {literal(self.readable_paths[0])} AS {_ALIAS} (READ_ONLY, HIDDEN)")
            found = self._made(connection, f"{_ALIAS}.")
            if found and found[:2] == (_FORMAT, SCHEMA_VERSION):
                return known_runs(connection, _ALIAS)
            connection.execute(f"DETACH {_ALIAS}")
        except duckdb.InterruptException:
            raise
        except (duckdb.Error, msgspec.MsgspecError):
            pass
        return {}

    @property
    def readable_paths(self) -> list[str]:
        """The files that a restricted database must be allowed to read for `attach`."""
        path = f"{self._root}/{DATABASE}"
        return [path, f"{path}.wal"]

    def _is_file(self) -> bool:
        if self._lake.filesystem is not None or not self.path.is_file() or self.path.is_symlink():
            return False
        return self._left_out is None or not os.path.samestat(self._left_out, self.path.stat())

    def leave_out(self) -> None:
        """Do without the file, which is damaged, until another takes its place."""
        with suppress(OSError):
            self._left_out = self.path.stat()

    @cached_property
    def _wanted(self) -> tuple[int, int, str, str, str]:
        package = f"{VERSION} {_digest(Path(__file__).resolve().parents[1] / 'sql')}"
        return _FORMAT, SCHEMA_VERSION, self._root, package, _digest(self._sql) if self._sql else ""

    def _can_extend(self, made: tuple[Any, ...] | None) -> bool:
        """Whether a file with this row of `store.made` has the right views; it may have a user's own ones besides."""
        wanted = self._wanted
        is_same = made == wanted or (made is not None and self._sql is None and made[:-1] == wanted[:-1])
        return is_same and (Path(self._root) / MARK).exists()

    def _made(self, connection: duckdb.DuckDBPyConnection, database: str = "") -> tuple[Any, ...] | None:
        return connection.execute(f"SELECT {MADE.names_sql} FROM {database}store.made").fetchone()  # noqa: S608

    def build(self) -> Path:
        """Write the file anew, and return its path; see `Warehouse.build`."""
        runs = self._lake.runs()
        if lost := self._lake.lacking(runs):  # DuckDB would miss a file only at the first query
            raise WarehouseError(f"the database cannot be built: {self._lake.root}: {unread_sentence(lost)}")
        self.write(is_new=True)
        return self.path

    @property
    def is_current(self) -> bool:
        """Whether the file has the definitions of now and every run that can be read; True if there is no file."""
        if not self.path.exists():
            return True
        try:
            state = self._lake.state()
            with self._opened() as connection:
                made, held = self._made(connection), known_stamps(connection)
        except WarehouseError:  # it is damaged, or the runs cannot be listed
            return False
        return (
            self._can_extend(made)
            and all(state.get(r) == stamp for r, stamp in held.items())
            and not any(isinstance(self._lake.read(r), RunVersion) for r in state.keys() - held.keys())
        )

    def update(self) -> bool:
        """Extend the file, if there is one and it is not current; returns whether it was."""
        if self.is_current:
            return False
        self.write()
        return True

    def replaced_files(self) -> set[str]:
        """The files, relative to the warehouse, that it reads for runs that have been replaced or removed since.

        Raises:
            WarehouseError: the file is not a catalogue.
        """
        if not self.path.exists():
            return set()
        state = self._lake.state()
        with self._opened() as connection:
            gone = [r for r, stamp in known_stamps(connection).items() if state.get(r) != stamp]
            where = f"WHERE {_among(gone)}" if gone else "WHERE false"
            files = connection.execute(f"SELECT file FROM store.files {where}").fetchall()  # noqa: S608
        return {f"lake/{name}" for (name,) in files}

    def check(self) -> None:
        """Read every row that it holds, and with it the checksums of all blocks.

        Raises:
            WarehouseError: the file is damaged.
        """
        with self._opened() as connection:
            for table in STORE:
                connection.execute(f"SELECT bit_xor(hash(t)) FROM store.{table.name} AS t").fetchall()  # noqa: S608

    @contextmanager
    def _opened(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The file, for reading; if another program has it open for writing, a copy of it.

        Raises:
            WarehouseError: the file is not a catalogue, or a statement inside fails.
        """
        try:
            with TemporaryFolder() as folder:
                copy = folder.path / DATABASE  # DuckDB has one database for all connections of a process to a file
                shutil.copyfile(self.path, copy)
                with duckdb.connect(str(copy), read_only=True) as connection:
                    yield connection
        except (duckdb.Error, OSError, msgspec.MsgspecError) as error:
            why = " ".join(str(error).split())
            raise WarehouseError(f"{self.path}: cannot be read ({why}); run `tw build`") from None

    def write(self, *, is_new: bool = False) -> None:
        """Put an extended copy in the place of the file; a new one if there is none or `is_new`."""
        lake = self._lake
        try:
            with lake.exclusive(), placed_whole(self.path) as part:  # so that the later of two has the newer runs
                state = _settled(lake.state())
                try:
                    with TemporaryFolder() as spill, self._started(part, is_new=is_new) as connection:
                        connection.execute(f"SET temp_directory = {literal(str(spill.path))}")
                        connection.execute("SET threads = 1; SET enable_progress_bar = false")
                        self._extend(connection, state)
                finally:
                    part.with_name(f"{part.name}.wal").unlink(missing_ok=True)
        except duckdb.Error as error:
            told = files_error(lake, lake.listing()[0], error)
            raise WarehouseError(f"the database cannot be built: {told}") from None
        except OSError as error:
            what = "the disk is full; free some space and try again" if error.errno == errno.ENOSPC else str(error)
            raise WarehouseError(f"{lake.warehouse}: the database cannot be built: {what}") from None

    def _started(self, part: Path, *, is_new: bool) -> duckdb.DuckDBPyConnection:
        if not is_new and self._is_file():
            shutil.copyfile(self.path, part)
            with suppress(duckdb.Error):
                connection = duckdb.connect(str(part))
                with suppress(duckdb.Error):
                    if self._can_extend(self._made(connection)):
                        return connection
                    self._refuse_foreign_metrics(connection)
                connection.close()
            part.unlink()
        return self._begun(part)

    def _refuse_foreign_metrics(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Refuse to lose metrics that are not defined here, such as a user's own."""
        found = {name for (name,) in connection.execute("SELECT metric FROM metrics.catalog").fetchall()}
        if foreign := sorted(found - {m.name for m in self._definitions().metrics}):
            raise WarehouseError(
                f"{self._lake.warehouse}: {DATABASE} is older than the runs, and has metrics that are not defined here "
                f"({', '.join(foreign)}); run `tw build`, with --sql if they are your own"
            )

    def _begun(self, part: Path) -> duckdb.DuckDBPyConnection:
        mark = Path(self._root) / MARK
        if not mark.exists():
            with placed_whole(mark) as whole, duckdb.connect(":memory:") as writer:
                writer.execute(f"COPY (SELECT 1 AS mark WHERE false) TO {literal(str(whole))} (FORMAT parquet)")
        connection = new_lens_file(part, self._definitions())
        connection.execute("CREATE SCHEMA store")
        for table in STORE:
            columns = (f'"{c.name}" {c.type} {_COMPRESSED if c.name in _LONG else ""}' for c in table.columns)
            connection.execute(f"CREATE TABLE store.{table.name} ({', '.join(columns)})")
        connection.execute(f"INSERT INTO store.made VALUES ({', '.join(literal(v) for v in self._wanted)})")  # noqa: S608
        add_tables(connection, {t: f"store.{t}" if t in KEPT else None for t in TABLES})
        comment_on_tables(connection)
        comment_on_tables(connection, {t.name: f"store.{t.name}" for t in STORE}, STORE, "store")
        return connection

    def _extend(self, connection: duckdb.DuckDBPyConnection, state: State) -> None:
        held = known_stamps(connection)
        gone = [r for r, stamp in held.items() if state.get(r) != stamp]
        missing = sorted(state.keys() - (held.keys() - gone))
        connection.begin()
        if gone:
            for table in STORE[1:]:
                connection.execute(f"DELETE FROM store.{table.name} WHERE {_among(gone)}")  # noqa: S608
        for first in range(0, len(missing), _AT_ONCE):
            read = map(self._lake.read, missing[first : first + _AT_ONCE])
            self._add(connection, [r for r in read if isinstance(r, RunVersion) and self._is_whole(r)], state)
        connection.commit()
        for table, names, is_listed in connection.execute(_LISTS).fetchall():
            self._list_files(connection, table, names, is_listed=is_listed)

    def _list_files(
        self, connection: duckdb.DuckDBPyConnection, table: str, names: str | None, *, is_listed: bool
    ) -> None:
        """Let the view of a table read these files of the folder lake, one a line, or none."""
        if names:
            lake = literal(f"{self._root}/lake/")
            paths = f"string_split({lake} || replace({literal(names)}, chr(10), chr(10) || {lake}), chr(10))"
            connection.execute(f"CREATE OR REPLACE MACRO store.{table}_files() AS {paths}")
        else:
            connection.execute(f"DROP MACRO store.{table}_files")
        if is_listed and names:
            return
        source = None
        if names:
            read = f"read_parquet(store.{table}_files(), filename = true, hive_partitioning = false)"
            mark = literal(f"{self._root}/{MARK}")
            source = (
                f"(SELECT {TABLES[table].nulls_sql} FROM read_parquet({mark}) WHERE false "  # noqa: S608
                f"UNION ALL SELECT {TABLES[table].names_sql} FROM {read} WHERE run_id = split_part(filename, '/', -3))"
            )
        add_tables(connection, {table: source})
        comment_on_tables(connection, tables=[TABLES[table]])

    def _add(self, connection: duckdb.DuckDBPyConnection, runs: Sequence[RunVersion], state: State) -> None:
        if not runs:
            return
        for table in KEPT:
            if source := table_source(self._lake.root, runs, table):
                connection.execute(f"INSERT INTO store.{table} SELECT {TABLES[table].typed_sql} FROM {source}")  # noqa: S608
        manifests, files = [], []
        for r in runs:
            facts = (*state[r.run_id], r.version, r.name, r.ingest_version, r.source_digest, r.metrics_fingerprint)
            lists = f"CAST({literal(r.flags)} AS VARCHAR[]), unhex('{encoded_lists(r).hex()}')"
            manifests.append(f"({', '.join(map(literal, (r.run_id, *facts)))}, {lists})")
            named = [(r.run_id, t, f.removeprefix("lake/")) for t, in_table in r.files.items() for f in in_table]
            files += [f"({', '.join(map(literal, row))})" for row in named]
        connection.execute(f"INSERT INTO store.manifests VALUES {', '.join(manifests)}")  # noqa: S608  literals
        connection.execute(f"INSERT INTO store.files VALUES {', '.join(files)}")  # noqa: S608

    def _is_whole(self, run: RunVersion) -> bool:
        if self._lake.lacking([run]):
            return False
        with suppress(OSError):
            kept = (f for t in KEPT for f in run.files.get(t, ()))
            return all(file_digest(self._lake.warehouse / f) == run.digests.get(f) for f in kept)
        return False


def _digest(folder: Path) -> str:
    """Digest of the names and texts of the definitions in a folder: SQL, and YAML of preconditions and columns."""
    digest = hashlib.sha256()
    for file in sorted([*folder.rglob("*.sql"), *folder.rglob("*.yaml")]):
        digest.update(f"{file.relative_to(folder)}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def kept_source(lake: Lake, runs: Sequence[RunVersion], known: KnownRuns, state: State, table: str) -> str | None:
    """SQL that reads a table of `KEPT`: from an attached catalogue what is valid there, the rest from runs' own files.

    Args:
        lake: the warehouse.
        runs: the current versions of all its runs.
        known: what `Catalogue.attach` returned.
        state: the manifests of the runs.
        table: name of the table.
    """
    gone = [r for r, (stamp, _) in known.items() if state.get(r) != stamp]
    kept = known.keys() - gone
    columns = TABLES[table].names_sql
    where = f"WHERE NOT {_among(gone)}" if gone else ""
    parts = [f"SELECT {columns} FROM {_ALIAS}.store.{table} {where}"]  # noqa: S608
    if own := table_source(lake.root, (r for r in runs if r.run_id not in kept), table):
        parts.append(f"SELECT {columns} FROM {own}")  # noqa: S608
    return f"({' UNION ALL '.join(parts)})"


def files_error(lake: Lake, runs: Sequence[RunVersion], error: Exception) -> str:
    """The message for an error of DuckDB with the files of runs: which run it concerns, and what to do."""
    said = str(error).partition("\n")[0]
    if os.strerror(errno.ENOSPC) in said:
        return f"{lake.root}: the disk is full; free some space and try again ({said})"
    lost = lake.lacking(runs)
    what = unread_sentence(lost) if lost else f"{said}; `tw fsck` says which run is damaged and what to do"
    return f"{lake.root}: {what}"


def _among(run_ids: Iterable[str]) -> str:
    return f"run_id IN ({', '.join(map(literal, run_ids))})"


def _settled(state: State) -> State:
    """The manifests that cannot change any more without a trace, after waiting for those that changed just now."""
    newest = max((max(stamp[2:]) for stamp in state.values()), default=0)
    time.sleep(min(max(newest + _TICK_NS - time.time_ns(), 0), _TICK_NS) / 1e9)
    limit = time.time_ns() - _TICK_NS
    return {r: stamp for r, stamp in state.items() if max(stamp[2:]) <= limit}
