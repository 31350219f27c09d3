"""Joins the files of many small runs into packs: one file for a table of some hundred runs.

    <warehouse>/cache/packs/<digest>/<table>.parquet
                                     contents

A query over all runs opens packs instead of the files of their runs. A pack has the rows of its runs, one run after the
other, unchanged. The runs' own files stay, and stay the truth: a pack stands for a run as long as it was made from the
files that the run's manifest names now. A run that was replaced or removed since is left out of the pack by its id, and
read from its own files if it has any. So no change of a run waits for a pack, an unfinished pack is never read, and
all packs can be deleted at any time.

The name of a pack is the digest of its contents: the runs with the digests of their files, and the digest and size of
each file of the pack. The small tables of runs, devices and metric values have caches of their own, see `consolidated`.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import msgspec

from tracewarehouse.database.file_sources import reading, table_source
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import Settling, file_digest, is_locked, locked
from tracewarehouse.ingest.lake.garbage import Leftover, size_on_disk
from tracewarehouse.ingest.lake.lake import CACHE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.manifest_index import DIGESTED
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.memory_limit import set_memory_limit
from tracewarehouse.queries.read_only import literal

FOLDER = "packs"
PACKED = tuple(t for t in TABLES if t not in DIGESTED)
LARGEST_RUN = 32 << 20
"""A run whose files have more bytes is not packed: opening them takes little time beside reading them."""
PACK = 256 << 20
"""About how many bytes the runs of a pack have; a pack of less than half of that is joined with the next runs."""
_CONTENTS, _DROPPED, _PART = "contents", "dropped", ".part-"
_ROW_GROUP = 1 << 17


class Contents(msgspec.Struct, frozen=True):
    """The contents of a pack.

    Attributes:
        runs: the runs, with the digest of their files, see `RunVersion.packed_digest`.
        files: size and SHA-256 of each file, by table.
    """

    runs: dict[str, bytes]
    files: dict[str, tuple[int, bytes]]


@dataclass(frozen=True)
class Pack:
    """A pack.

    Attributes:
        path: its folder.
        contents: its contents.
    """

    path: Path
    contents: Contents

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(size for size, _ in self.contents.files.values())

    def file(self, table: str) -> Path:
        """The file of a table."""
        return self.path / f"{table}.parquet"

    def has_whole(self, table: str) -> bool:
        """Whether the file of a table is there, with the size that was written."""
        with suppress(OSError):
            return self.file(table).stat().st_size == self.contents.files[table][0]
        return False


def source(lake: Lake, runs: Sequence[RunVersion], table: str) -> str | None:
    """SQL that reads a table of all runs, from packs as far as they go; None if there are no files.

    Args:
        lake: the warehouse.
        runs: the current versions of all its runs.
        table: name of the table.
    """
    packs = read(lake) if table in PACKED else []
    if not packs:
        return table_source(lake.root, runs, table)
    used, rest = _divided(packs, runs, table)
    columns = TABLES[table].names_sql
    parts = []
    if whole := [p.file(table) for p, without in used if not without]:
        parts.append(f"SELECT {columns} FROM {reading(whole)}")  # noqa: S608  names of the schema
    for pack, without in used:
        if without:
            ids = ", ".join(map(literal, without))
            parts.append(f"SELECT {columns} FROM {reading([pack.file(table)])} WHERE run_id NOT IN ({ids})")  # noqa: S608
    if own := table_source(lake.root, rest, table):
        parts.append(f"SELECT {columns} FROM {own}")  # noqa: S608
    return f"({' UNION ALL '.join(parts)})" if parts else None


def files(lake: Lake, runs: Sequence[RunVersion], table: str) -> list[str]:
    """Files that hold a table of all runs and no other row: packs whose runs are all current, else the runs' own."""
    packs = read(lake) if table in PACKED else []
    used, _ = _divided(packs, runs, table)
    whole = [p for p, without in used if not without]
    packed = {run_id for p in whole for run_id in p.contents.runs}
    own = (f"{lake.root}/{file}" for r in runs if r.run_id not in packed for file in r.files.get(table, ()))
    return [*(str(p.file(table)) for p in whole), *own]


def read(lake: Lake) -> list[Pack]:
    """The packs of a warehouse that may be read, sorted by name."""
    folder = _folder(lake)
    return [p for p in map(_read, _listed(folder)) if p and not (p.path / _DROPPED).exists()] if folder else []


def compact(lake: Lake) -> Iterator[Pack]:
    """Write packs of the small runs that are in none, and yield each once readers may use it.

    Packs with runs that were replaced or removed since, and small packs, are written anew. The old packs are kept for
    readers until `leftovers` lists them.

    Raises:
        WarehouseError: the warehouse cannot be written, or a file of a run is damaged.
    """
    try:
        with _alone(lake) as folder:
            runs = lake.runs()
            current = {r.run_id: r.packed_digest() for r in runs}
            packs = read(lake)
            sizes = {r.run_id: size for r in runs if (size := _size(lake, r)) <= LARGEST_RUN}
            whole = [p for p in packs if _is_whole(p, current)]
            replaced = [p for p in packs if p not in whole]
            small = [p for p in whole if sum(sizes.get(r, 0) for r in p.contents.runs) < PACK // 2]
            waiting = sizes.keys() - {run_id for p in whole for run_id in p.contents.runs}
            if waiting or len(small) > 1:
                waiting |= {run_id for p in small for run_id in p.contents.runs}
                replaced += small
            written = set()
            for group in _groups([r for r in runs if r.run_id in waiting], sizes):
                pack = _write(lake, folder, group)
                written.add(pack.path)
                yield pack
            for pack in replaced:
                if pack.path not in written:
                    (pack.path / _DROPPED).touch()
    except OSError as error:
        raise WarehouseError(f"{lake.warehouse}: runs cannot be compacted: {error.strerror or error}") from None


def leftovers(lake: Lake, grace_seconds: float) -> list[Leftover]:
    """List what may be removed: packs that were replaced before the grace time, damaged ones, and unfinished ones.

    Raises:
        WarehouseError: the folder cannot be listed.
    """
    folder, limit = lake.warehouse / CACHE / FOLDER, time.time() - grace_seconds
    left = []
    try:
        if _folder(lake) and folder.is_dir():
            is_written = is_locked(folder)
            for path in sorted(folder.iterdir()):
                if path.is_symlink() or not path.is_dir():
                    continue
                if path.name.startswith(_PART):
                    what = None if is_written else "an interrupted compaction"
                elif _read(path) is None:
                    what = "a damaged pack"
                else:
                    dropped = path / _DROPPED
                    what = "a replaced pack" if dropped.exists() and dropped.stat().st_mtime <= limit else None
                if what:
                    left.append(Leftover(path, what, size_on_disk(path)))
    except OSError as error:
        raise WarehouseError(f"{folder}: cannot be listed: {error.strerror or error}") from None
    return left


def damaged(lake: Lake) -> list[Path]:
    """The files of packs whose bytes are not those that were written; reads every byte."""
    return [
        pack.file(table)
        for pack in read(lake)
        for table, (_, digest) in pack.contents.files.items()
        if not pack.has_whole(table) or bytes.fromhex(file_digest(pack.file(table))) != digest
    ]


def _divided(
    packs: Sequence[Pack], runs: Sequence[RunVersion], table: str
) -> tuple[list[tuple[Pack, list[str]]], list[RunVersion]]:
    """The packs of a table, each with the runs to leave out of it, and the runs that no pack stands for."""
    current = {r.run_id: r.packed_digest() for r in runs} if packs else {}
    packed = set[str]()
    used = []
    for pack in packs:
        stands_for = {r for r, digest in pack.contents.runs.items() if current.get(r) == digest} - packed
        if not stands_for or (table in pack.contents.files and not pack.has_whole(table)):
            continue
        packed |= stands_for
        if table in pack.contents.files:
            used.append((pack, sorted(pack.contents.runs.keys() - stands_for)))
    return used, [r for r in runs if r.run_id not in packed]


def _is_whole(pack: Pack, current: Mapping[str, bytes]) -> bool:
    """Whether all runs of a pack are as they were, and its files are there."""
    return all(current.get(r) == d for r, d in pack.contents.runs.items()) and all(
        map(pack.has_whole, pack.contents.files)
    )


def _groups(runs: Sequence[RunVersion], sizes: Mapping[str, int]) -> Iterator[list[RunVersion]]:
    """Yield the runs of each pack; a single run that does not fill a pack gets none."""
    group: list[RunVersion] = []
    size = 0
    for run in runs:
        group.append(run)
        size += sizes[run.run_id]
        if size >= PACK:
            yield group
            group, size = [], 0
    if len(group) > 1:
        yield group


def _write(lake: Lake, folder: Path, runs: Sequence[RunVersion]) -> Pack:
    """Write a pack, and move it into place.

    Raises:
        WarehouseError: a file of a run is damaged.
        OSError: the pack cannot be written.
    """
    part = folder / f"{_PART}{uuid.uuid4().hex[:8]}"
    try:
        part.mkdir()
        with TemporaryFolder() as spill, duckdb.connect(":memory:") as connection:
            set_memory_limit(connection)
            connection.execute(f"SET enable_progress_bar = false; SET temp_directory = {literal(str(spill.path))}")
            tables = [t for t in PACKED if _write_table(lake, connection, runs, t, part)]
        written = [part / f"{t}.parquet" for t in tables]
        with Settling() as settling:
            digests = settling.digests(written)
        contents = Contents(
            {r.run_id: r.packed_digest() for r in runs},
            {t: (f.stat().st_size, bytes.fromhex(d)) for t, f, d in zip(tables, written, digests, strict=True)},
        )
        encoded = msgspec.msgpack.encode(contents)
        (part / _CONTENTS).write_bytes(encoded)
        path = folder / _name(encoded)
        pack = Pack(path, contents)
        if _read(path) == pack and all(map(pack.has_whole, contents.files)):  # it was dropped, or is the only small one
            (path / _DROPPED).unlink(missing_ok=True)
        else:
            if path.exists():
                path.rename(folder / f"{_PART}{uuid.uuid4().hex[:8]}")
            part.rename(path)
    except duckdb.Error as error:
        raise WarehouseError(f"{lake.root}: runs cannot be compacted: {error}; `tw fsck` says what is wrong") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return pack


def _write_table(
    lake: Lake, connection: duckdb.DuckDBPyConnection, runs: Sequence[RunVersion], table: str, folder: Path
) -> bool:
    """Write a table of runs as one file, if they have any row of it.

    Raises:
        WarehouseError: the runs' files are not as they were published.
    """
    own = [(r, f) for r in runs for f in r.files.get(table, ())]
    if not own:
        return False
    for run, file in own:
        if file_digest(lake.warehouse / file) != run.digests.get(file):
            raise WarehouseError(f"run {run.run_id} ({run.name}): {file} is damaged; `tw fsck` says what to do")
    target = folder / f"{table}.parquet"
    connection.execute(
        f"COPY (SELECT {TABLES[table].typed_sql} FROM {reading([lake.warehouse.resolve() / f for _, f in own])}) "  # noqa: S608
        f"TO {literal(str(target))} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})"
    )
    counted = connection.execute(f"SELECT run_id, count(*) FROM {reading([target])} GROUP BY ALL").fetchall()  # noqa: S608
    if dict(counted) != {r.run_id: r.rows[table] for r, _ in own}:
        raise WarehouseError(f"{lake.root}: a pack lacks rows of {table}; please report this")
    return True


def _folder(lake: Lake) -> Path | None:
    """The folder of the packs, by its resolved path; None if the lake is remote or the folder is a link."""
    cache = lake.warehouse.resolve() / CACHE
    is_foreign = lake.filesystem is not None or cache.is_symlink() or (cache / FOLDER).is_symlink()
    return None if is_foreign else cache / FOLDER


def _listed(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(p for p in folder.iterdir() if not p.name.startswith(".") and not p.is_symlink())
    return []


def _read(path: Path) -> Pack | None:
    try:
        encoded = (path / _CONTENTS).read_bytes()
        contents = msgspec.msgpack.decode(encoded, type=Contents)
    except (OSError, msgspec.MsgspecError):
        return None
    return Pack(path, contents) if path.name == _name(encoded) and contents.files.keys() <= set(PACKED) else None


def _name(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:24]


def _size(lake: Lake, run: RunVersion) -> int:
    size = 0
    for path in run.paths:
        with suppress(FileNotFoundError):
            size += (lake.warehouse / path).stat().st_size
    return size


@contextmanager
def _alone(lake: Lake) -> Iterator[Path]:
    """The folder of the packs, locked against other compactions.

    Raises:
        WarehouseError: it is not a folder of this machine.
        OSError: it cannot be written.
    """
    folder = _folder(lake)
    if folder is None:
        raise WarehouseError(f"{lake.root}: packs can be written only to a folder of the warehouse itself")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield folder
