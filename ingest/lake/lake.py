"""The lake: immutable Parquet files per run version, and one manifest per run that names its current version.

    <warehouse>/lake/<run id>/<version>/<table>.parquet
                manifests/<run id>.json

Each file holds its run as a column, so the folders are not named `key=value`: a reader would find the column twice.
A writer writes a version in a staging folder, moves the folder into place as a whole, and then replaces the manifest;
this makes the version current. Readers find files only through manifests, so they see a run completely or not at all,
and nothing ever blocks them.

Files and folders are synced to disk before the manifest that names them. After a loss of power, a run is therefore
either in its old state or in its new one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
import uuid
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import replace

from tracewarehouse.ingest.errors import UnreadRunWarning, WarehouseError, shown
from tracewarehouse.ingest.lake import manifest_index
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search

RUN_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
DATABASE = "warehouse.duckdb"
"""The database file in the folder of a warehouse."""
CACHE = "cache"
"""The folder of what is derived from the runs, in the folder of a warehouse."""
GRACE_SECONDS = 24 * 3600.0
"""How long files that no manifest names are kept, for readers that still hold an older list."""
_STAGING, _PART = re.compile(r"\.staging-(\d+)-[0-9a-f]{8}"), re.compile(r"\.part-[0-9a-f]{8}(\.wal)?")
_KEY = "run_id="  # in the folders of schema 3 and older: run_id=<id>/v=<version>
_RUN_FOLDER, _VERSION_FOLDER = re.compile(rf"({_KEY})?{RUN_ID.pattern}"), re.compile(rf"(v=)?{RUN_ID.pattern}")
_ANY = re.compile(r"(?s).*")
_LOCK = ".lock"
_TABLE_FILE = re.compile(r"[a-z_]+(-\d{4,}|-[0-9a-f]{16}-[0-9a-f]{8})?\.parquet")
_FILE_IN_LAKE = re.compile(
    rf"lake/({_KEY})?(?P<run_id>{RUN_ID.pattern})/(?(1)v=){RUN_ID.pattern}/{_TABLE_FILE.pattern}"
)


State = dict[str, manifest_index.Stamp]
"""The manifest files by run id."""


class RunVersion(msgspec.Struct, frozen=True):
    """The current version of a run, and the files of its tables (paths relative to the warehouse).

    A dataclass would take four times as long to make, and a question over all runs makes thousands.
    """

    run_id: str
    version: str
    name: str
    schema_version: int
    ingest_version: str
    source_digest: str
    files: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    rows: Mapping[str, int] = msgspec.field(default_factory=dict)
    metrics_fingerprint: str | None = None
    """Fingerprint of all the metric definitions with which `metric_values` was evaluated."""
    flags: list[str] = msgspec.field(default_factory=list)
    """Names of the run's quality flags, so that every answer can name them without reading a file."""
    digests: Mapping[str, str] = msgspec.field(default_factory=dict)
    """SHA-256 of each file, in hex, by its path."""

    def digests_of(self, table: str) -> bytes:
        """SHA-256 of each file of a table, one after the other."""
        if isinstance(self.digests, manifest_index.IndexedDigests) and table in manifest_index.DIGESTED:
            return self.digests.of_table(table)
        return bytes.fromhex("".join(self.digests.get(f, "") for f in self.files.get(table, ())))

    def packed_digest(self) -> bytes:
        """Digest of the digests of all files but those of `manifest_index.DIGESTED`."""
        if isinstance(self.digests, manifest_index.IndexedDigests):
            return self.digests.packed
        return manifest_index.packed_digest(self.files, self.digests)

    @property
    def paths(self) -> set[str]:
        """All files, relative to the warehouse."""
        return {f for files in self.files.values() for f in files}


@dataclass(frozen=True)
class UnreadRun:
    """A run that has a manifest and cannot be read.

    Attributes:
        run_id: the run id, from the name of the manifest file.
        name: its name for people; the run id if the name cannot be read.
        why: what is wrong.
        is_outdated: nothing is wrong except that its table schema has another version.
    """

    run_id: str
    name: str
    why: str
    is_outdated: bool

    def __str__(self) -> str:
        return (
            f"{self.run_id} ({self.name}) {self.why}"
            if self.is_outdated
            else f"{self.run_id} cannot be read: {self.why}"
        )


@dataclass(frozen=True)
class Leftover:
    """Files that nothing uses any more.

    Attributes:
        path: the file or folder.
        what: what it is, such as an interrupted ingest.
        bytes: its size on disk.
    """

    path: Path
    what: str
    bytes: int


class Lake:
    """The Parquet tables of a warehouse folder."""

    filesystem: Any = None
    """The fsspec file system that reads `root`, if DuckDB cannot read it alone."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self._lake = warehouse / "lake"
        self.root = str(warehouse.resolve())
        """The path or URI that the runs' file names are relative to."""
        self.folder = str(self._lake.resolve())
        """The resolved folder of all files; it differs from `lake` below `root` only if that is a link."""
        self._manifests = warehouse / "manifests"
        self._warned: set[UnreadRun] = set()
        self._listed: tuple[State, list[RunVersion], list[UnreadRun]] | None = None

    def sync(self) -> None:
        """Fetch the changes of other writers; a local folder has nothing to fetch."""

    def runs(self) -> list[RunVersion]:
        """The current versions of all runs, sorted by run id.

        Runs that cannot be read are left out, and named once in an `UnreadRunWarning`.

        Raises:
            WarehouseError: the runs cannot be listed, or there are runs but none can be read.
        """
        return self.readable(*self.listing())

    def readable(self, runs: list[RunVersion], unread: list[UnreadRun]) -> list[RunVersion]:
        """The runs of a `listing`, after a warning that names those which cannot be read; see `runs`.

        Raises:
            WarehouseError: there are runs but none can be read.
        """
        if unread and not runs:
            raise WarehouseError(f"{self.root}: {unread_sentence(unread)}")
        if new := [r for r in unread if r not in self._warned]:
            self._warned.update(new)
            warnings.warn(f"left out: {unread_sentence(new)}", UnreadRunWarning, stacklevel=2)
        return runs

    def listing(self) -> tuple[list[RunVersion], list[UnreadRun]]:
        """The current versions of all runs, and the runs that cannot be read, each sorted by run id.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        state = self.state()
        if self._listed is None or self._listed[0] != state:
            with without_cycle_search():  # it would take as long again for ten thousand runs
                self._listed = state, *self._read_all(state)
        _, runs, unread = self._listed
        return list(runs), list(unread)

    @property
    def listed_state(self) -> State:
        """The `state` of the runs that were last listed; empty if none were."""
        return self._listed[0] if self._listed else {}

    def state(self) -> State:
        """The manifest files by run id; changes whenever a run is published, replaced or removed.

        Raises:
            WarehouseError: their folder cannot be listed.
        """
        stamps = {}
        for entry in self._manifest_files():
            try:
                stamps[entry.name.removesuffix(".json")] = manifest_index.stamp_of(entry.stat())
            except FileNotFoundError:  # removed meanwhile
                continue
        return stamps

    def _manifest_files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self._manifests) as entries:
                yield from (e for e in entries if e.name.endswith(".json") and e.name[0] != ".")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise WarehouseError(f"{self._manifests}: cannot list the runs: {error.strerror or error}") from None

    def _read_all(self, state: State) -> tuple[list[RunVersion], list[UnreadRun]]:
        """The runs of these manifests, as the index or they themselves have them, and those that cannot be read."""
        folder = self.warehouse / CACHE
        is_indexed = len(state) >= manifest_index.FEWEST and not folder.is_symlink()
        index = manifest_index.read(folder) if is_indexed else {}
        runs: list[RunVersion] = []
        unread: list[UnreadRun] = []
        entries = {}
        read = 0
        for run_id in sorted(state):
            entry = index.get(run_id)
            if entry and entry.stamp == state[run_id] and entry.schema_version == SCHEMA_VERSION:
                entries[run_id] = entry
                runs.append(_of_index(run_id, entry))
                continue
            read += 1
            run = self._listed_run(run_id)
            if isinstance(run, RunVersion):
                runs.append(run)
                if known := _for_index(run, state[run_id]):
                    entries[run_id] = known
            elif run:
                unread.append(run)
        if (
            len(state) >= manifest_index.FEWEST
            and read - len(unread) >= manifest_index.FEWEST
            and not folder.is_symlink()
        ):
            manifest_index.write(folder, entries)
        return runs, unread

    def runs_of(self, run_ids: Collection[str]) -> list[RunVersion]:
        """The current versions of these runs, as far as there are such runs; reads no manifest of another run.

        Those that cannot be read are left out, and named as `runs` does.

        Raises:
            WarehouseError: none of them can be read.
        """
        runs, unread = [], []
        for run_id in sorted(run_ids):
            run = self._listed_run(run_id) if RUN_ID.fullmatch(run_id) else None
            if isinstance(run, RunVersion):
                runs.append(run)
            elif run:
                unread.append(run)
        return self.readable(runs, unread)

    def state_of(self, run_ids: Collection[str]) -> State:
        """The manifest files of these runs by run id, as far as there are such runs; see `state`."""
        stamps = {}
        for run_id in run_ids:
            with suppress(OSError, WarehouseError):
                stamps[run_id] = manifest_index.stamp_of((self._manifests / f"{_checked(run_id)}.json").stat())
        return stamps

    def _listed_run(self, run_id: str) -> RunVersion | UnreadRun | None:
        try:
            run = _parsed(self._manifests / f"{run_id}.json")
        except WarehouseError as error:
            return UnreadRun(run_id, run_id, str(error).partition("; ")[0], is_outdated=False)
        if run is not None and run.schema_version != SCHEMA_VERSION:
            return UnreadRun(run.run_id, run.name, _outdated(run), is_outdated=True)
        return run

    def is_empty(self) -> bool:
        """Whether there is no run, readable or not.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        return next(self._manifest_files(), None) is None

    def lacking(self, runs: Iterable[RunVersion]) -> list[UnreadRun]:
        """The runs with missing files; unlike `listing`, this lists the folders of their files."""
        incomplete = []
        for run in runs:
            files = run.paths
            gone = sorted(files - self._present(files))
            if gone:
                lacks = f"{shown(run.name)} lacks {', '.join(f.rpartition('/')[2] for f in gone)}"
                incomplete.append(UnreadRun(run.run_id, run.name, lacks, is_outdated=False))
        return incomplete

    def _present(self, files: Collection[str]) -> set[str]:
        """The files that are there; a folder is listed once, as asking for each of its files takes far longer."""
        present = set[str]()
        for folder in {f.rpartition("/")[0] for f in files}:
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{self.warehouse}/{folder}") as entries:
                present.update(f"{folder}/{e.name}" for e in entries)
        return present

    def run(self, run_id: str) -> RunVersion | None:
        """The current version of a run; None if there is no such run.

        Raises:
            WarehouseError: its manifest cannot be read, or has another schema version.
        """
        return self._read(self._manifests / f"{_checked(run_id)}.json")

    def manifests(self) -> list[Path]:
        """The manifests of all runs, readable or not, sorted by run id.

        Raises:
            WarehouseError: their folder cannot be listed.
        """
        return [self._manifests / f"{run_id}.json" for run_id in sorted(self.state())]

    def _read(self, path: Path) -> RunVersion | None:
        version = _parsed(path)
        if version is not None and version.schema_version != SCHEMA_VERSION:
            raise WarehouseError(f"run {version.run_id} ({version.name}) {_outdated(version)}; {_INGEST_AGAIN}")
        return version

    def paths(self, run: RunVersion, table: str) -> list[Path]:
        """Absolute paths of a run's files of one table."""
        return [(self.warehouse / f).resolve() for f in run.files.get(table, [])]

    def is_whole(self, run: RunVersion) -> bool:
        """Whether every file of a run exists and is unchanged since it was written; reads every byte."""
        paths = sorted(run.paths)
        try:
            with ThreadPoolExecutor(2) as pool:
                digests = list(pool.map(lambda f: file_digest(self.warehouse / f), paths))
        except OSError:
            return False
        return dict(zip(paths, digests, strict=True)) == run.digests

    @contextmanager
    def stage(self, run_id: str, version: str) -> Iterator[Path]:
        """Create a folder for the files of a version, and remove it at the end unless `publish` has moved it.

        Its path already ends in <run id>/<version>, so the files can be queried before they are published.

        Raises:
            WarehouseError: the warehouse cannot be written.
        """
        root = self._lake / f".staging-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        staging = root / _checked(run_id) / _checked(version)
        held = None
        try:  # begins before the folder is created, as a signal may come at any time
            try:
                with self.exclusive():  # else garbage collection could remove the folder before it is locked
                    staging.mkdir(parents=True)
                    held = (root / _LOCK).open("w")
                    fcntl.flock(held, fcntl.LOCK_EX)
            except OSError as error:
                raise WarehouseError(
                    f"{self.warehouse}: cannot write to this warehouse: {error.strerror or error}"
                ) from None
            yield staging
        finally:
            shutil.rmtree(root, ignore_errors=True)
            if held:
                held.close()

    def publish(self, staging: Path, run: RunVersion, settling: Settling | None = None) -> RunVersion:
        """Move a staged version into place and make it the current version of its run.

        If another writer has published the same version meanwhile, that one is kept: the same bytes give the same
        version.

        Args:
            staging: the folder of the version.
            run: the version; `files` names the staged files by table, relative to `staging`.
            settling: already syncs some of the files to disk.

        Raises:
            WarehouseError: the files cannot be moved, or the manifest cannot be written.
        """
        of_run = self._lake / _checked(run.run_id)
        try:
            names = sorted(run.paths)
            with settling or Settling() as settled:
                digests = settled.digests([staging / n for n in names])
            _sync(staging)
            with self.exclusive():
                before = self._before(run.run_id)
                if before and before.version == run.version and self.is_whole(before):
                    return before
                of_run.mkdir(exist_ok=True)
                target = of_run / _checked(run.version)
                if target.exists():  # damaged, or of a writer that died before its manifest: some reader may use it
                    target = of_run / f"{run.version}-{uuid.uuid4().hex[:8]}"
                staging.rename(target)
                with self._taken_back(run.run_id, target):
                    _sync(of_run)
                    _sync(self._lake)
                    folder = target.relative_to(self.warehouse)
                    placed = replace(
                        run,
                        files={t: [str(folder / n) for n in files] for t, files in run.files.items()},
                        digests={str(folder / n): d for n, d in zip(names, digests, strict=True)},
                    )
                    self._replace(before, placed)
        except OSError as error:
            raise WarehouseError(
                f"run {run.run_id}: cannot be published in {self.warehouse}: {error.strerror or error}"
            ) from None
        return placed

    def replace_metric_values(self, run: RunVersion, staged: Path, rows: int, fingerprint: str) -> RunVersion | None:
        """Replace a run's metric values by newly evaluated ones; returns None if the run has changed meanwhile.

        Raises:
            WarehouseError: the values cannot be written.
        """
        name = f"metric_values-{fingerprint[:16]}-{uuid.uuid4().hex[:8]}.parquet"
        try:
            digest = _settled(staged) if rows else ""
            with self.exclusive():
                now = self.run(run.run_id)
                if now is None or now.version != run.version:
                    return None
                files = {t: f for t, f in now.files.items() if t != "metric_values"}
                kept = {f for named in files.values() for f in named}
                digests = {f: d for f, d in now.digests.items() if f in kept}
                file = self.warehouse / Path(min(kept)).with_name(name)
                if rows:
                    staged.replace(file)
                    files["metric_values"] = [str(file.relative_to(self.warehouse))]
                    digests[files["metric_values"][0]] = digest
                with self._taken_back(run.run_id, file):
                    _sync(file.parent)
                    placed = replace(
                        now,
                        files=files,
                        rows={**now.rows, "metric_values": rows},
                        metrics_fingerprint=fingerprint,
                        digests=digests,
                    )
                    self._replace(now, placed)
        except OSError as error:
            raise WarehouseError(
                f"run {run.run_id}: metric values cannot be written: {error.strerror or error}"
            ) from None
        return placed

    def remove(self, run_id: str) -> bool:
        """Remove a run; a later `collect_garbage` deletes its files. Returns False if there is no such run.

        Raises:
            WarehouseError: the warehouse cannot be written.
        """
        manifest = self._manifests / f"{_checked(run_id)}.json"
        try:
            with self.exclusive():
                self._start_grace(self._before(run_id), frozenset())
                manifest.unlink()
                _sync(self._manifests)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise WarehouseError(f"run {run_id}: cannot be removed: {error.strerror or error}") from None
        return True

    def leftovers(self, grace_seconds: float = GRACE_SECONDS, in_use: Collection[str] = ()) -> list[Leftover]:
        """List unused files: those of dead writers, and those of replaced versions after the grace time.

        The list leaves out files that tracewarehouse did not write, and all files of a run whose manifest cannot be
        read. A version counts as written by tracewarehouse if a manifest names one of its files, or if the footer of a
        file says that it belongs to the run.

        Args:
            grace_seconds: how long a version is kept after it was replaced, for readers that hold an older list.
            in_use: files, relative to the warehouse, that something other than a manifest names.

        Raises:
            WarehouseError: the warehouse cannot be listed.
        """
        try:
            with ExitStack() as stack:
                with suppress(OSError):  # nobody writes to a read-only warehouse
                    stack.enter_context(self.exclusive())
                return list(self._leftovers(grace_seconds, set(in_use)))
        except OSError as error:
            raise WarehouseError(f"{self.warehouse}: cannot be listed: {error.strerror or error}") from None

    def collect_garbage(self, grace_seconds: float = GRACE_SECONDS, in_use: Collection[str] = ()) -> list[Leftover]:
        """Remove the files that `leftovers` lists, and return them.

        Raises:
            WarehouseError: the warehouse cannot be written.
        """
        try:
            with self.exclusive():
                leftovers = list(self._leftovers(grace_seconds, set(in_use)))
                for leftover in leftovers:
                    if leftover.path.is_dir():
                        shutil.rmtree(leftover.path, ignore_errors=True)
                    else:
                        leftover.path.unlink(missing_ok=True)
                for run in _listed(self._lake, _RUN_FOLDER):
                    with suppress(OSError):  # not empty, or no folder
                        run.rmdir()
        except OSError as error:
            raise WarehouseError(f"{self.warehouse}: cannot be cleaned: {error.strerror or error}") from None
        return [x for x in leftovers if not x.path.exists()]

    def remove_staging_of(self, processes: Collection[int]) -> None:
        """Remove at once what writers left that ended before they could; `collect_garbage` would find it later.

        Args:
            processes: ids of processes that have ended.
        """
        for path in _listed(self._lake, _STAGING):
            match = _STAGING.fullmatch(path.name)
            if match and int(match[1]) in processes and _is_staging(path) and not is_locked(path):
                shutil.rmtree(path, ignore_errors=True)

    def remove_abandoned_staging(self) -> None:
        """Remove at once what writers left that have ended, on whatever machine: their lock has ended with them."""
        with suppress(OSError), self.exclusive():
            for path in _listed(self._lake, _STAGING):
                if _is_staging(path) and not is_locked(path):
                    shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the warehouse, so that writers publish one after the other; a killed process leaves no lock.

        Raises:
            OSError: the warehouse cannot be written.
        """
        if not self._manifests.is_dir() or not self._lake.is_dir():
            self._manifests.mkdir(parents=True, exist_ok=True)
            self._lake.mkdir(exist_ok=True)
            _sync(self.warehouse)
        with (self._manifests / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _before(self, run_id: str) -> RunVersion | None:
        """The current version of the run; None if there is none or its manifest is damaged."""
        try:
            return self.run(run_id)
        except WarehouseError:
            return None

    def _replace(self, before: RunVersion | None, now: RunVersion) -> None:
        self._start_grace(before, now.paths)
        with placed_whole(self._manifests / f"{now.run_id}.json") as part:
            part.write_text(manifest_text(now))

    @contextmanager
    def _taken_back(self, run_id: str, path: Path) -> Iterator[None]:
        """Remove a file or folder again if the code inside fails before the run's manifest names it."""
        try:
            yield
        except BaseException:
            with suppress(WarehouseError):  # a manifest that cannot be read may name it
                now = _parsed(self._manifests / f"{run_id}.json")
                name = str(path.relative_to(self.warehouse))
                if now is None or not any(f == name or f.startswith(f"{name}/") for f in now.paths):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            raise

    def _start_grace(self, before: RunVersion | None, kept: Collection[str]) -> None:
        """Start the grace time of files that are about to be replaced, however old they are."""
        for path in before.paths.difference(kept) if before else ():
            with suppress(FileNotFoundError):
                os.utime(self.warehouse / path)

    def _leftovers(self, grace_seconds: float, used: set[str]) -> Iterator[Leftover]:
        limit = time.time() - grace_seconds
        for folder in (self.warehouse, self._manifests):
            for path in _listed(folder, _PART):
                yield Leftover(path, "an unfinished file of a dead process", size_on_disk(path))
        for path in _listed(self._lake, _STAGING):
            if _is_staging(path) and not is_locked(path):
                yield Leftover(path, "an interrupted ingest", size_on_disk(path))
        unreadable: set[str] = set()
        for manifest in self.manifests():
            try:
                run = _parsed(manifest)
            except WarehouseError:
                unreadable |= {manifest.stem, f"{_KEY}{manifest.stem}"}
            else:
                used |= run.paths if run else set()
        for folder in _listed(self._lake, _RUN_FOLDER):
            if folder.name not in unreadable and folder.is_dir() and not folder.is_symlink():
                for version in _listed(folder, _VERSION_FOLDER):
                    yield from self._leftovers_of_version(version, used, limit)

    def _leftovers_of_version(self, version: Path, used: set[str], limit: float) -> Iterator[Leftover]:
        if version.is_symlink() or not version.is_dir():
            return
        place = version.relative_to(self.warehouse)
        if (names := os.listdir(version)) and used.issuperset(f"{place}/{name}" for name in names):  # noqa: PTH208
            return  # as nearly every version: a Path of each file takes many times as long
        files = _listed(version, _ANY)
        tables = [f for f in files if _TABLE_FILE.fullmatch(f.name) and f.is_file() and not f.is_symlink()]
        unused = [f for f in tables if str(f.relative_to(self.warehouse)) not in used]
        if len(unused) == len(tables) > 0 and not _is_of_run(tables):
            return
        is_over = {f: f.lstat().st_mtime <= limit for f in unused}
        if len(unused) == len(files) and all(is_over.values()) and version.stat().st_mtime <= limit:
            yield Leftover(version, "a replaced or unpublished version", size_on_disk(version))
        else:
            yield from (Leftover(f, "a replaced file", size_on_disk(f)) for f in unused if is_over[f])


class Settling:
    """Syncs complete files to disk and digests them while others are still being written; a context manager."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(2)
        self._digests: dict[Path, Future[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def add(self, file: Path) -> None:
        """Start to sync and digest a file."""
        self._digests[file] = self._threads.submit(_settled, file)

    def digests(self, files: Sequence[Path]) -> list[str]:
        """SHA-256 of each file, in hex, once all of them are on disk.

        Raises:
            OSError: a file cannot be read or synced to disk.
        """
        for file in files:
            if file not in self._digests:
                self.add(file)
        return [self._digests[f].result() for f in files]


@contextmanager
def placed_whole(target: Path) -> Iterator[Path]:
    """Yield a path to write a file at; afterwards it is synced and replaces `target`, or is removed after an error.

    Raises:
        OSError: the file cannot be moved into place.
    """
    part = target.with_name(f".part-{uuid.uuid4().hex[:8]}")
    try:
        yield part
        _sync(part)
        part.replace(target)
        _sync(target.parent)
    finally:
        part.unlink(missing_ok=True)


def manifest_text(run: RunVersion) -> str:
    """The text of a run's manifest."""
    content = msgspec.structs.asdict(run)
    content |= {name: dict(content[name]) for name in ("files", "rows", "digests")}
    return json.dumps(content | {"checksum": _checksum(content)}, indent=1, sort_keys=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parsed(path: Path) -> RunVersion | None:
    """A manifest of any schema version; None if there is none."""
    try:
        content = json.loads(path.read_bytes())
        is_sealed = content.pop("checksum", None) == _checksum(content)
        run = RunVersion(**content)
        is_typed = isinstance(content["name"], str) and isinstance(content["schema_version"], int)
        outside = [f for f in run.paths if not _is_in_lake(f, run.run_id)]
        bytes.fromhex("".join(run.digests.values()))  # a ValueError if they are none
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = str(error)
    else:
        if not is_sealed and run.schema_version == SCHEMA_VERSION:  # schema 1 knew no checksum
            why = "its checksum does not match its content"
        elif f"{run.run_id}.json" != path.name:
            why = f"it is of run {shown(str(run.run_id))}"
        elif not is_typed:
            why = "its name is not text, or its schema version is not a number"
        elif outside:
            why = f"it names {shown(outside[0])!r}, outside the run's folder"
        else:
            return run
    raise WarehouseError(f"{path}: not a run manifest ({why}); ingest the capture again, or remove the file")


def _of_index(run_id: str, entry: manifest_index.Entry) -> RunVersion:
    lists = manifest_index.IndexedLists(run_id, entry)
    return RunVersion(
        run_id,
        entry.version,
        entry.name,
        entry.schema_version,
        entry.ingest_version,
        entry.source_digest,
        manifest_index.IndexedFiles(lists),
        manifest_index.IndexedRows(lists),
        entry.metrics_fingerprint,
        entry.flags,
        manifest_index.IndexedDigests(lists),
    )


def _for_index(run: RunVersion, stamp: manifest_index.Stamp) -> manifest_index.Entry | None:
    encoded = manifest_index.encoded(run.run_id, run.files, run.rows, run.digests)
    if not encoded:
        return None
    digests, lists = encoded
    return manifest_index.Entry(
        stamp,
        run.name,
        run.version,
        run.schema_version,
        run.ingest_version,
        run.source_digest,
        run.metrics_fingerprint,
        run.flags,
        digests,
        run.packed_digest(),
        lists,
    )


def _is_in_lake(file: str, run_id: str) -> bool:
    match = _FILE_IN_LAKE.fullmatch(file)
    return match is not None and match["run_id"] == run_id


def _is_of_run(files: Sequence[Path]) -> bool:
    """Whether a file of a version says that it belongs to the run that the folder is named after."""
    from tracewarehouse.ingest.lake.origin import is_file_of

    version = files[0].parent
    is_old = version.parent.name.startswith(_KEY)
    if is_old != version.name.startswith("v="):
        return False
    return any(is_file_of(None if is_old else version.parent.name, f) for f in files)


_INGEST_AGAIN = "run `tw ingest` on its capture again"
_MOST_NAMED = 10


def _outdated(run: RunVersion) -> str:
    return f"has table schema {run.schema_version}, this version of tracewarehouse reads {SCHEMA_VERSION}"


def unread_sentence(runs: Sequence[UnreadRun]) -> str:
    """A sentence that names runs, what is wrong with them, and what to do."""
    groups: dict[str, list[UnreadRun]] = {}
    for run in runs:
        groups.setdefault(run.why if run.is_outdated else "cannot be read", []).append(run)
    parts = []
    for why, same in groups.items():
        named = [f"{r.run_id} ({shown(r.name) if r.is_outdated else r.why})" for r in same[:_MOST_NAMED]]
        more = f" and {len(same) - _MOST_NAMED} more" if len(same) > _MOST_NAMED else ""
        parts.append(f"{why}: {', '.join(named)}{more}")
    which = "its capture" if len(runs) == 1 else "their captures"
    return f"{'; '.join(parts)}; run `tw ingest` on {which} again, or `tw remove` what is not needed"


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checked(name: str) -> str:
    if not RUN_ID.fullmatch(name):
        raise WarehouseError(f"{name!r} is not a run id or version: expected lower-case letters, digits, '-' and '_'")
    return name


def _is_staging(folder: Path) -> bool:
    """Whether a folder holds only what `Lake.stage` creates."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    return all(
        not p.is_symlink() and (p.name == _LOCK or (p.is_dir() and RUN_ID.fullmatch(p.name))) for p in folder.iterdir()
    )


def is_locked(folder: Path) -> bool:
    """Whether the process that holds the lock of a folder still lives; its lock ends with it."""
    try:
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def _listed(folder: Path, names: re.Pattern[str]) -> list[Path]:
    try:
        return sorted(p for p in folder.iterdir() if names.fullmatch(p.name))
    except FileNotFoundError:
        return []


def size_on_disk(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(f.lstat().st_size for f in files)


def _settled(file: Path) -> str:
    """Sync a file to disk and return its digest."""
    digest = file_digest(file)
    _sync(file)
    return digest


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
