"""A table of many runs in one file, so that a question over all of them opens one file and not one per run.

    <warehouse>/cache/<table>-<key>-<digest>.parquet

The key is of the run's files that went in, the digest of the file's own bytes: a file is read only where both hold, so
one that is stale or damaged, or another's, is passed over. Everything in the folder is derived and may be deleted.
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

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.lake import Lake, Leftover, RunVersion, file_digest
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES
from tracewarehouse.lens import table_source
from tracewarehouse.query import literal

FOLDER = "cache"
CONSOLIDATED = frozenset(("runs", "devices", "metric_values"))
"""The tables that questions over many runs read: a few rows per run."""
FEWEST_RUNS = 64
"""Below it the files of the runs themselves are read: that takes some milliseconds and leaves nothing behind."""

_FILE = re.compile(rf"({'|'.join(sorted(CONSOLIDATED))})-[0-9a-f]{{16}}-[0-9a-f]{{16}}\.parquet")
_SOURCES = "sources"

Sources = dict[str, list[str]]
"""By run id, the digests of the run's files of the table."""


def source(lake: Lake, runs: Sequence[RunVersion], table: str) -> str | None:
    """SQL that reads a table of all runs from one file, which is written where there is none yet.

    None where the runs' own files are to be read: few runs, another table, a warehouse that cannot be written, a run's
    file that is not as it was published.

    Args:
        lake: the warehouse.
        runs: what all its runs are now.
        table: name of the table.
    """
    if table not in CONSOLIDATED or len(runs) < FEWEST_RUNS or not folders(lake):
        return None
    folder = lake.warehouse.resolve() / FOLDER
    sources = _sources(runs, table)
    try:
        file = _current(folder, table, sources) or _write(lake, folder, runs, table, sources)
    except OSError:
        return None
    return _reading(file) if file else None


def folders(lake: Lake) -> list[str]:
    """The folder that the files of `source` lie in, without links; none for a lake that is mirrored."""
    folder = lake.warehouse.resolve() / FOLDER
    return [] if lake.filesystem is not None or folder.is_symlink() else [str(folder)]


def leftovers(lake: Lake, grace_seconds: float) -> list[Leftover]:
    """The files that are of older runs than now for longer than the grace time, or damaged.

    Raises:
        WarehouseError: the folder cannot be listed.
    """
    try:
        return list(_leftovers(lake, time.time() - grace_seconds))
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse / FOLDER}: cannot be listed: {error.strerror or error}") from None


def collect_garbage(lake: Lake, grace_seconds: float) -> list[Leftover]:
    """Remove what `leftovers` gives; returns what went.

    Raises:
        WarehouseError: the folder cannot be listed, or a file not be removed.
    """
    found = leftovers(lake, grace_seconds)
    for leftover in found:
        try:
            leftover.path.unlink(missing_ok=True)
        except OSError as error:
            raise WarehouseError(f"{leftover.path}: cannot be removed: {error.strerror or error}") from None
    return found


def _leftovers(lake: Lake, limit: float) -> Iterator[Leftover]:
    folder = lake.warehouse / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return
    runs, unread = lake.listing()
    if unread:  # what the runs are now cannot be told, so nothing can be called old
        limit = 0.0
    for table in sorted(CONSOLIDATED):
        key = _key(table, _sources(runs, table))
        replaced_at = (lake.warehouse / "manifests").stat().st_mtime
        for at, file in _listed(folder, table):
            if not _is_whole(file):
                yield Leftover(file, "a damaged file of the cache", file.stat().st_size)
                continue
            if not file.name.startswith(key) and replaced_at <= limit:
                yield Leftover(file, "a file of the cache, of older runs", file.stat().st_size)
            replaced_at = at  # of the next one, which this one replaced
    for part in folder.glob(".part-*"):
        if part.stat().st_mtime <= limit:
            yield Leftover(part, "a file that a dead process began", part.stat().st_size)


def _sources(runs: Sequence[RunVersion], table: str) -> Sources:
    return {r.run_id: [r.digests.get(f, "") for f in r.files[table]] for r in runs if r.files.get(table)}


def _key(table: str, sources: Sources) -> str:
    text = json.dumps([SCHEMA_VERSION, [c.name for c in TABLES[table].columns], sources], sort_keys=True)
    return f"{table}-{hashlib.sha256(text.encode()).hexdigest()[:16]}-"


def _current(folder: Path, table: str, sources: Sources) -> Path | None:
    key = _key(table, sources)
    return next((f for _, f in _listed(folder, table) if f.name.startswith(key) and _is_whole(f)), None)


def _is_whole(file: Path) -> bool:
    return file.stem.rpartition("-")[2] == file_digest(file)[:16]


def _listed(folder: Path, table: str) -> list[tuple[float, Path]]:
    """Times and paths of a table's files, newest first."""
    found = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in folder.iterdir():
            match = _FILE.fullmatch(path.name)
            if match and match[1] == table and path.is_file() and not path.is_symlink():
                with suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime, path))
    return sorted(found, reverse=True)


def _write(lake: Lake, folder: Path, runs: Sequence[RunVersion], table: str, sources: Sources) -> Path | None:
    """Write the file of now, from the newest one and the runs that it lacks; None where a run's file is damaged."""
    folder.mkdir(exist_ok=True)
    part = folder / f".part-{uuid.uuid4().hex[:8]}"
    columns = ", ".join(f'CAST("{c.name}" AS {c.type}) AS "{c.name}"' for c in TABLES[table].columns)
    try:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET enable_progress_bar = false")  # it would stand between the rows on standard output
            before, known = _kept(connection, folder, table, sources)
            fresh = [r for r in runs if r.run_id in sources.keys() - known]
            if not all(_is_as_published(lake, r, table) for r in fresh):
                return None
            parts = []
            if before and known:
                names = ", ".join(f"'{r}'" for r in sorted(known))
                parts.append(f"SELECT {columns} FROM {before} WHERE run_id IN ({names})")  # noqa: S608  checked ids
            if rows := table_source(lake.root, fresh, table):
                parts.append(f"SELECT {columns} FROM {rows}")  # noqa: S608
            if not parts:
                return None
            about = json.dumps(sources)
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
    """SQL that reads the newest file, and the runs in it that are still the same."""
    for _, path in _listed(folder, table)[:1]:
        if _is_whole(path):
            sql = f"SELECT value FROM parquet_kv_metadata({literal(str(path))}) WHERE key = '{_SOURCES}'"  # noqa: S608
            [(about,)] = connection.execute(sql).fetchall()
            before: Sources = json.loads(about)
            return _reading(path), {r for r, digests in sources.items() if before.get(r) == digests}
    return None, set()


def _is_as_published(lake: Lake, run: RunVersion, table: str) -> bool:
    return all(file_digest(lake.warehouse / f) == run.digests.get(f) for f in run.files[table])


def _reading(file: Path) -> str:
    return f"read_parquet([{literal(str(file))}], hive_partitioning = false)"
