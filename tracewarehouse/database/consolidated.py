"""Caches a table of many runs in one file, so that a query over all runs opens one file instead of one per run.

    <warehouse>/cache/<table>-<key>-<digest>.parquet

The key is a hash of the run files that went into the file; the digest is a hash of the file's own bytes. A file is read
only if both match, so a stale, damaged or foreign file is ignored. Everything in the folder can be derived again and
may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb

from tracewarehouse.database.file_sources import reading, table_source
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.garbage import Leftover
from tracewarehouse.ingest.lake.lake import CACHE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.manifest_index import DIGESTED
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.queries.read_only import literal

CONSOLIDATED = frozenset(DIGESTED)
"""The tables that are cached: queries over many runs read them, and they have only a few rows per run."""
FEWEST_RUNS = 64
"""The fewest runs with a cached file; reading the files of fewer takes some milliseconds and leaves no file behind."""

_AT_ONCE = 500
"""Files that are joined at once; the time and memory that DuckDB takes for each grow with their number."""

_FILE = re.compile(rf"({'|'.join(sorted(CONSOLIDATED))})-[0-9a-f]{{16}}-[0-9a-f]{{16}}\.parquet")
_SOURCES = "sources"

Sources = dict[str, bytes]
"""Maps a run id to the digests of the run's files for the table, one after the other."""


def source(lake: Lake, runs: Sequence[RunVersion], table: str) -> str | None:
    """Return SQL that reads a table of all runs from one cached file, and write that file if there is none yet.

    Returns None if the caller must read the runs' own files instead: there are few runs, the table is not cached, the
    warehouse cannot be written, or a file of a run differs from what was published.

    Args:
        lake: the warehouse.
        runs: the current versions of all its runs.
        table: name of the table.
    """
    if table not in CONSOLIDATED or len(runs) < FEWEST_RUNS or not folders(lake):
        return None
    folder = lake.warehouse.resolve() / CACHE
    sources = _sources(runs, table)
    try:
        file = _current(folder, table, sources) or _write(lake, folder, runs, table, sources)
    except OSError:
        return None
    return reading([file]) if file else None


def folders(lake: Lake) -> list[str]:
    """The folder of the cached files, as a resolved path; empty if the lake is remote or the folder is a link."""
    folder = lake.warehouse.resolve() / CACHE
    return [] if lake.filesystem is not None or folder.is_symlink() else [str(folder)]


def leftovers(lake: Lake, grace_seconds: float) -> list[Leftover]:
    """List cached files that are damaged, or that have been out of date for longer than the grace time.

    Raises:
        WarehouseError: the folder cannot be listed.
    """
    try:
        return list(_leftovers(lake, time.time() - grace_seconds))
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse / CACHE}: cannot be listed: {error.strerror or error}") from None


def _leftovers(lake: Lake, limit: float) -> Iterator[Leftover]:
    folder = lake.warehouse / CACHE
    if folder.is_symlink() or not folder.is_dir():
        return
    runs, unread = lake.listing()
    if unread:  # some runs cannot be read, so no file can be called out of date
        limit = 0.0
    for table in sorted(CONSOLIDATED):
        key = _key(table, _sources(runs, table))
        replaced_at = (lake.warehouse / "manifests").stat().st_mtime
        for at, file in _listed(folder, table):
            if not _is_whole(file):
                yield Leftover(file, "a damaged cached file", file.stat().st_size)
                continue
            if not file.name.startswith(key) and replaced_at <= limit:
                yield Leftover(file, "a cached file of older runs", file.stat().st_size)
            replaced_at = at  # this file replaced the next one in the list
    for part in folder.glob(".part-*"):
        if part.stat().st_mtime <= limit:
            yield Leftover(part, "an unfinished file of a dead process", part.stat().st_size)


def _sources(runs: Sequence[RunVersion], table: str) -> Sources:
    return {r.run_id: digests for r in runs if (digests := r.digests_of(table))}


def _key(table: str, sources: Sources) -> str:
    hasher = hashlib.sha256(json.dumps([SCHEMA_VERSION, [c.name for c in TABLES[table].columns]]).encode())
    for run_id in sorted(sources):
        hasher.update(f"\n{run_id} ".encode() + sources[run_id])
    return f"{table}-{hasher.hexdigest()[:16]}-"


def _current(folder: Path, table: str, sources: Sources) -> Path | None:
    key = _key(table, sources)
    return next((f for _, f in _listed(folder, table) if f.name.startswith(key) and _is_whole(f)), None)


def _is_whole(file: Path) -> bool:
    return file.stem.rpartition("-")[2] == file_digest(file)[:16]


def _listed(folder: Path, table: str) -> list[tuple[float, Path]]:
    """Times and paths of a table's files, newest first."""
    dated = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match and match[1] == table and path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError):
                    dated.append((path.stat().st_mtime, path))
    return sorted(dated, reverse=True)


def _write(lake: Lake, folder: Path, runs: Sequence[RunVersion], table: str, sources: Sources) -> Path | None:
    """Write the current file from the newest one and the runs that it lacks; None if a file of a run is damaged."""
    folder.mkdir(exist_ok=True)
    part = folder / f".part-{uuid.uuid4().hex[:8]}"
    columns = TABLES[table].typed_sql
    try:
        with TemporaryFolder() as aside, duckdb.connect(":memory:") as connection:
            connection.execute("SET enable_progress_bar = false")  # it would appear between rows on standard output
            connection.execute("SET threads = 1")  # two take half as much CPU time again, and twice the memory
            before, known = _kept(connection, folder, table, sources)
            fresh = [r for r in runs if r.run_id in sources.keys() - known]
            if not all(_is_as_published(lake, r, table) for r in fresh):
                return None
            parts = []
            if before and known:
                names = ", ".join(f"'{r}'" for r in sorted(known))
                parts.append(f"SELECT {columns} FROM {before} WHERE run_id IN ({names})")  # noqa: S608  checked ids
            some = []
            for first in range(0, len(fresh), _AT_ONCE):
                rows = table_source(lake.root, fresh[first : first + _AT_ONCE], table)
                joined = aside.path / f"{first}.parquet"
                some.append(joined)
                connection.execute(f"COPY (SELECT {columns} FROM {rows}) TO {literal(str(joined))} (FORMAT parquet)")  # noqa: S608
            if some:
                parts.append(f"SELECT * FROM {reading(some)}")  # noqa: S608
            if not parts:
                return None
            about = json.dumps({r: digests.hex() for r, digests in sources.items()})
            connection.execute(
                f"COPY ({' UNION ALL '.join(parts)}) TO {literal(str(part))} "
                f"(FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{_SOURCES}: {literal(about)}}})"
            )
        file = folder / f"{_key(table, sources)}{file_digest(part)[:16]}.parquet"
        part.replace(file)
    except duckdb.Error:
        return None
    finally:
        part.unlink(missing_ok=True)
    return file


def _kept(
    connection: duckdb.DuckDBPyConnection, folder: Path, table: str, sources: Sources
) -> tuple[str | None, set[str]]:
    """SQL that reads the newest file, and the ids of the runs in it that are unchanged."""
    for _, path in _listed(folder, table)[:1]:
        if _is_whole(path):
            sql = f"SELECT value FROM parquet_kv_metadata({literal(str(path))}) WHERE key = '{_SOURCES}'"  # noqa: S608
            [(about,)] = connection.execute(sql).fetchall()
            before: dict[str, str] = json.loads(about)
            return reading([path]), {r for r, digests in sources.items() if before.get(r) == digests.hex()}
    return None, set()


def _is_as_published(lake: Lake, run: RunVersion, table: str) -> bool:
    return all(file_digest(lake.warehouse / f) == run.digests.get(f) for f in run.files[table])
