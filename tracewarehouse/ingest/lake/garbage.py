"""Finds and removes files that nothing in a lake uses any more: those of dead writers and of replaced versions."""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from tracewarehouse.ingest.errors import SkippedEntryWarning, WarehouseError, shown, system_refusals
from tracewarehouse.ingest.lake.durable_files import LOCK, is_locked
from tracewarehouse.ingest.lake.lake import STAGING, Lake
from tracewarehouse.ingest.lake.manifest import RUN_ID, TABLE_FILE, read_manifest

GRACE_SECONDS = 24 * 3600.0
"""Seconds for which files that no manifest names are kept, for readers that still hold an older list."""
_PART = re.compile(r"\.part-[0-9a-f]{8}(\.wal)?")
_ANY = re.compile(r"(?s).*")


@dataclass(frozen=True)
class Leftover:
    """A file or folder that nothing uses any more."""

    path: Path
    what: str
    """Its kind, such as an interrupted ingest."""
    bytes: int
    """Its size on disk."""


def leftovers(lake: Lake, grace_seconds: float = GRACE_SECONDS, in_use: Collection[str] = ()) -> list[Leftover]:
    """List unused files: those of dead writers, and those of replaced versions after the grace time.

    The list leaves out files that tracewarehouse did not write, and all files of a run whose manifest cannot be
    read. A version counts as written by tracewarehouse if a manifest names one of its files, or if the footer of a
    file says that it belongs to the run.

    Args:
        grace_seconds: seconds for which a version is kept after it was replaced, for readers that hold an older list.
        in_use: files, relative to the warehouse, that something other than a manifest names.
    """
    with system_refusals(f"{lake.warehouse}: cannot be listed", WarehouseError), ExitStack() as stack:
        with suppress(OSError):  # nobody writes to a read-only warehouse
            stack.enter_context(lake.exclusive())
        return list(_leftovers(lake, grace_seconds, set(in_use)))


def collect_garbage(lake: Lake, grace_seconds: float = GRACE_SECONDS, in_use: Collection[str] = ()) -> list[Leftover]:
    """Remove the files that `leftovers` lists, and return them."""
    with system_refusals(f"{lake.warehouse}: cannot be cleaned", WarehouseError), lake.exclusive():
        gone = removed(list(_leftovers(lake, grace_seconds, set(in_use))))
        for run in _listed(lake.runs_folder, RUN_ID):
            with suppress(OSError):  # not empty, or no folder
                run.rmdir()
    return gone


def removed(left: Sequence[Leftover]) -> list[Leftover]:
    """Remove files, and return those that are gone."""
    for leftover in left:
        with system_refusals(f"{leftover.path}: cannot be removed", WarehouseError):
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path, ignore_errors=True)
            else:
                leftover.path.unlink(missing_ok=True)
    return [x for x in left if not x.path.exists()]


def remove_staging(lake: Lake, processes: Collection[int]) -> None:
    """Remove at once the files of these processes, which have ended too early to do it themselves."""
    for path in _listed(lake.runs_folder, STAGING):
        match = STAGING.fullmatch(path.name)
        if match and int(match[1]) in processes and _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True)


def remove_abandoned_staging(lake: Lake) -> None:
    """Remove at once the files of writers that have ended, on any machine: their locks have ended with them."""
    with suppress(OSError), lake.exclusive():
        for path in filter(_is_abandoned, _listed(lake.runs_folder, STAGING)):
            shutil.rmtree(path, ignore_errors=True)


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if another process has just removed it."""
    total = 0
    with suppress(FileNotFoundError):
        for file in path.rglob("*") if path.is_dir() else [path]:
            with suppress(FileNotFoundError):
                total += file.lstat().st_size
    return total


def _leftovers(lake: Lake, grace_seconds: float, used: set[str]) -> Iterator[Leftover]:
    limit = time.time() - grace_seconds
    for folder in (lake.warehouse, lake.manifests_folder):
        for path in _listed(folder, _PART):
            yield Leftover(path, "an unfinished file of a dead process", size_on_disk(path))
    for path in filter(_is_abandoned, _listed(lake.runs_folder, STAGING)):
        yield Leftover(path, "an interrupted ingest", size_on_disk(path))
    unreadable: set[str] = set()
    for manifest in lake.manifests():
        try:
            run = read_manifest(manifest)
        except WarehouseError:
            unreadable.add(manifest.stem)
        else:
            used |= run.paths if run else set()
    for folder in _listed(lake.runs_folder, RUN_ID):
        if folder.name not in unreadable and folder.is_dir() and not folder.is_symlink():
            for version in _listed(folder, RUN_ID):
                try:
                    yield from _leftovers_of_version(lake, version, used, limit)
                except FileNotFoundError:  # its writer, which needs no lock for it, has just removed it
                    pass
                except OSError as error:
                    _warn_of(version, error)


def _leftovers_of_version(lake: Lake, version: Path, used: set[str], limit: float) -> Iterator[Leftover]:
    if version.is_symlink() or not version.is_dir():
        return
    place = version.relative_to(lake.warehouse)
    if (names := os.listdir(version)) and used.issuperset(f"{place}/{name}" for name in names):  # noqa: PTH208
        return  # as for nearly every version; making a Path of each file takes many times as long
    files = _listed(version, _ANY)
    tables = [f for f in files if TABLE_FILE.fullmatch(f.name) and f.is_file() and not f.is_symlink()]
    unused = [f for f in tables if str(f.relative_to(lake.warehouse)) not in used]
    if len(unused) == len(tables) > 0 and not _is_of_run(tables):
        return
    is_over = {f: f.lstat().st_mtime <= limit for f in unused}
    if len(unused) == len(files) and all(is_over.values()) and version.stat().st_mtime <= limit:
        yield Leftover(version, "a replaced or unpublished version", size_on_disk(version))
    else:
        yield from (Leftover(f, "a replaced file", size_on_disk(f)) for f in unused if is_over[f])


def _is_of_run(files: Sequence[Path]) -> bool:
    """Return whether a file of a version says that it belongs to the run after which the folder is named."""
    run_id = files[0].parent.parent.name
    return any(_is_table_of(run_id, f) for f in files)


def _is_table_of(run_id: str, path: Path) -> bool:
    """Return whether a file's footer names the table after which it is named, and only this run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path.absolute()) as file:
            table = (file.schema_arrow.metadata or {}).get(b"table", b"").decode(errors="replace")
            names, groups = file.schema_arrow.names, range(file.num_row_groups)
            if re.split("[-.]", path.name)[0] != table or "run_id" not in names:
                return False
            at = names.index("run_id")
            statistics = [file.metadata.row_group(i).column(at).statistics for i in groups]
            named = {run for s in statistics for run in ((s.min, s.max) if s and s.has_min_max else (None,))}
            return named == {run_id}
    except (OSError, pa.ArrowException):
        return False


def _is_abandoned(staging: Path) -> bool:
    """Return whether a folder holds only files that `Lake.stage` creates, and its writer has ended."""
    if staging.is_symlink() or not staging.is_dir():
        return False
    try:
        is_ours = all(
            not p.is_symlink() and (p.name == LOCK or (p.is_dir() and RUN_ID.fullmatch(p.name)))
            for p in staging.iterdir()
        )
        return is_ours and not is_locked(staging)
    except OSError:  # its writer has just removed it, or it is none of ours
        return False


def _listed(folder: Path, names: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if names.fullmatch(p.name))
    except FileNotFoundError:
        return []
    except OSError as error:
        _warn_of(folder, error)
        return []


def _warn_of(path: Path, error: OSError) -> None:
    warnings.warn(f"left alone: {shown(str(path))}: {error.strerror or error}", SkippedEntryWarning, stacklevel=2)
