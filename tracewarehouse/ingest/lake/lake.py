"""Publishes and lists runs: immutable Parquet files per version, and a manifest per run that names its current version.

A writer writes a version in a staging folder, moves the folder into place as a whole, syncs it to disk, and then
replaces the manifest. Readers find files only through manifests, so they see a run completely or not at all, also after
a loss of power, and nothing ever blocks them.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tracewarehouse.ingest.errors import UnreadRunWarning, WarehouseError, printable, shown, system_refusals
from tracewarehouse.ingest.lake.durable_files import (
    Settling,
    file_digest,
    locked,
    placed_whole,
    settled,
    sync_names_above,
    sync_to_disk,
)
from tracewarehouse.ingest.lake.manifest import (
    RUN_ID,
    RunVersion,
    UnreadRun,
    checked,
    manifest_text,
    outdated,
    read_manifest,
    unread_error,
    unread_sentence,
)
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search

DATABASE = "warehouse.duckdb"
"""The database file in the folder of a warehouse."""
STAGING = re.compile(r"\.staging-(\d+)-[0-9a-f]{8}")
"""The folder in which a writer prepares a version; the number is the id of its process."""

Stamp = tuple[int, int, int, int]
"""A manifest file: its inode, size, and times of the last changes of content and of inode, in ns."""
State = dict[str, Stamp]
"""The manifest files by run id."""
KnownRuns = dict[str, tuple[Stamp, RunVersion | UnreadRun]]
"""What manifests held when they were read, by run id."""
MANY_RUNS = 64
"""The fewest runs for which a catalogue pays; reading the manifests and files of fewer takes some milliseconds."""
_MAY_LAG = 1000
"""With more runs than this, the catalogue may lack one in a hundred: a copy takes longer than to read those runs."""


class Lake:
    """The Parquet tables of a warehouse folder."""

    filesystem: Any = None
    """The fsspec file system that reads `root`, if DuckDB cannot read it alone."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self.runs_folder = warehouse / "lake"
        """The folder of all files, with a folder for each run."""
        self.manifests_folder = warehouse / "manifests"
        self.root = str(warehouse.resolve())
        """The path or URI to which the runs' file names are relative."""
        self.folder = str(self.runs_folder.resolve())
        """`runs_folder`, resolved; it differs from `lake` below `root` only if that is a link."""
        self.catalogue: Callable[[], KnownRuns] = dict
        """Gives runs that were read before; asked once, if there are many."""
        self._warned: set[UnreadRun] = set()
        self._known: KnownRuns | None = None
        self._listed: tuple[State, list[RunVersion], list[UnreadRun]] | None = None

    def sync(self) -> None:
        """Fetch the changes of other writers; a local folder has nothing to fetch."""

    def runs(self) -> list[RunVersion]:
        """Return the current versions of all runs, sorted by run id.

        Runs that cannot be read are left out, and named once in an `UnreadRunWarning`.

        Raises:
            WarehouseError: the runs cannot be listed, or there are runs but none can be read.
        """
        return self.readable(*self.listing())

    def readable(self, runs: list[RunVersion], unread: list[UnreadRun]) -> list[RunVersion]:
        """Return the runs of a `listing`, after a warning that names those that cannot be read; see `runs`."""
        if unread and not runs:
            raise WarehouseError(f"{self.root}: {unread_sentence(unread)}")
        if new := [r for r in unread if r not in self._warned]:
            self._warned.update(new)
            warnings.warn(f"left out: {unread_sentence(new)}", UnreadRunWarning, stacklevel=2)
        return runs

    def listing(self, state: State | None = None) -> tuple[list[RunVersion], list[UnreadRun]]:
        """Return the current versions of all runs, and the runs that cannot be read, each sorted by run id.

        Args:
            state: the result of `state`, if the caller has just asked for it.

        Raises:
            WarehouseError: the runs cannot be listed.
        """
        state = self.state() if state is None else state
        if self._listed is None or self._listed[0] != state:
            with without_cycle_search():  # for ten thousand runs the search would take as long again
                found = self._read(state)
            runs = [r for r in found if isinstance(r, RunVersion)]
            self._listed = state, runs, [r for r in found if isinstance(r, UnreadRun)]
        _, runs, unread = self._listed
        return list(runs), list(unread)

    def state(self) -> State:
        """Return the manifest files by run id, which change whenever a run is published, replaced or removed.

        Raises:
            WarehouseError: their folder cannot be listed.
        """
        stamps = {}
        for entry in self._manifest_files():
            with suppress(FileNotFoundError):  # removed meanwhile
                stamps[entry.name.removesuffix(".json")] = _stamp(entry)
        return stamps

    def changed_ns(self) -> int:
        """Return when the folder of manifests changed last; 0 if there is none."""
        with suppress(OSError):
            return self.manifests_folder.stat().st_mtime_ns
        return 0

    def is_large(self) -> bool:
        """Return whether there are so many runs that a catalogue pays."""
        return next(islice(self._manifest_files(), MANY_RUNS - 1, None), None) is not None

    def wants_catalogue(self) -> bool:
        """Return whether a change of the runs is a reason to extend the catalogue, or to begin one."""
        try:
            made_ns = (self.warehouse / DATABASE).stat().st_mtime_ns
        except OSError:
            return self.is_large()
        later = [stamp[3] > made_ns for stamp in self.state().values()]
        return len(later) <= _MAY_LAG or sum(later) > len(later) // 100

    def _manifest_files(self) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.manifests_folder) as entries:
                yield from (e for e in entries if e.name.endswith(".json") and e.name[0] != ".")
        except FileNotFoundError:
            pass
        except OSError as error:
            raise WarehouseError(f"{self.manifests_folder}: cannot list the runs: {error.strerror or error}") from None

    def _read(self, state: State) -> list[RunVersion | UnreadRun]:
        """Return the runs of these manifests, sorted; only those are read that have changed since they were read."""
        if self._known is None:
            self._known = dict(self.catalogue()) if len(state) >= MANY_RUNS else {}
        found = []
        for run_id in sorted(state):
            known = self._known.get(run_id)
            if known is None or known[0] != state[run_id]:
                if (run := self.read(run_id)) is None:
                    continue
                known = self._known[run_id] = state[run_id], run
            found.append(known[1])
        return found

    def runs_of(self, run_ids: Collection[str]) -> list[RunVersion]:
        """Return the current versions of those of these runs that exist; read no manifest of another run.

        Runs that cannot be read are left out and named, as in `runs`.
        """
        runs, unread = [], []
        for run_id in sorted(run_ids):
            run = self.read(run_id) if RUN_ID.fullmatch(run_id) else None
            if isinstance(run, RunVersion):
                runs.append(run)
            elif run:
                unread.append(run)
        return self.readable(runs, unread)

    def state_of(self, run_ids: Collection[str]) -> State:
        """Return the manifest files of those of these runs that exist, by run id; see `state`."""
        stamps = {}
        for run_id in run_ids:
            with suppress(OSError, WarehouseError):
                stamps[run_id] = _stamp(self._manifest(checked(run_id)))
        return stamps

    def read(self, run_id: str) -> RunVersion | UnreadRun | None:
        """Return the current version of a run, or why it cannot be read; None if there is no such run."""
        try:
            run = read_manifest(self._manifest(run_id))
        except WarehouseError as error:
            name = printable(run_id)  # a file may have any name
            return UnreadRun(name, name, str(error).partition("; ")[0], is_outdated=False)
        return run and (outdated(run) or run)

    def is_empty(self) -> bool:
        """Return whether there is no run, readable or not."""
        return next(self._manifest_files(), None) is None

    def lacking(self, runs: Iterable[RunVersion]) -> list[UnreadRun]:
        """Return the runs with missing files; unlike `listing`, this lists the folders of their files."""
        incomplete = []
        for run in runs:
            files = run.paths
            gone = sorted(files - self._present(files))
            if gone:
                lacks = f"{shown(run.name)} lacks {', '.join(f.rpartition('/')[2] for f in gone)}"
                incomplete.append(UnreadRun(run.run_id, run.name, lacks, is_outdated=False))
        return incomplete

    def _present(self, files: Collection[str]) -> set[str]:
        """Return those that are files; each folder is listed once, because asking for each file takes far longer."""
        present = set[str]()
        for folder in {f.rpartition("/")[0] for f in files}:
            with suppress(OSError), os.scandir(f"{self.warehouse}/{folder}") as entries:
                present.update(f"{folder}/{e.name}" for e in entries if e.is_file())
        return present

    def run(self, run_id: str) -> RunVersion | None:
        """Return the current version of a run; None if there is no such run.

        Raises:
            WarehouseError: its manifest cannot be read, or has another schema version.
        """
        run = read_manifest(self._manifest(checked(run_id)))
        if run and (unread := outdated(run)):
            raise unread_error(unread)
        return run

    def manifests(self) -> list[Path]:
        """Return the manifests of all runs, readable or not, sorted by run id."""
        return [self._manifest(run_id) for run_id in sorted(self.state())]

    def _manifest(self, run_id: str) -> Path:
        return self.manifests_folder / f"{run_id}.json"

    def paths(self, run: RunVersion, table: str) -> list[Path]:
        """Return the absolute paths of a run's files of one table."""
        return [(self.warehouse / f).resolve() for f in run.files.get(table, [])]

    def is_whole(self, run: RunVersion) -> bool:
        """Return whether every file of a run exists and is unchanged since it was written; read every byte."""
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
        """
        # absolute, because pyarrow takes a relative path such as wh:test/lake for a URI, and ~ for the user's home
        root = self.runs_folder.absolute() / f".staging-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        staging = root / checked(run_id) / checked(version)
        with ExitStack() as held:
            try:  # begins before the folder is created, because a signal may come at any time
                # without the lock, garbage collection could remove the folder before it is locked itself
                refusals = system_refusals(f"{self.warehouse}: cannot write to this warehouse", WarehouseError)
                with refusals, self.exclusive():
                    staging.mkdir(parents=True)
                    held.enter_context(locked(root))
                yield staging
            finally:
                shutil.rmtree(root, ignore_errors=True)

    def publish(self, staging: Path, run: RunVersion, settling: Settling | None = None) -> RunVersion:
        """Move a staged version into place and make it the current version of its run.

        If another writer has published the same version meanwhile, that one is kept: the same bytes give the same
        version.

        Args:
            staging: the folder of the version.
            run: the version; `files` names the staged files by table, relative to `staging`.
            settling: syncs some of the files to disk already.
        """
        of_run = self.runs_folder / checked(run.run_id)
        with system_refusals(f"run {run.run_id}: cannot be published in {self.warehouse}", WarehouseError):
            names = sorted(run.paths)
            with settling or Settling() as started:
                digests = started.digests([staging / n for n in names])
            sync_to_disk(staging)
            with self.exclusive():
                before = self.readable_run(run.run_id)
                if before and before.version == run.version and self.is_whole(before):
                    self.settle()
                    return before
                of_run.mkdir(exist_ok=True)
                target = of_run / checked(run.version)
                if target.exists():  # damaged, or of a writer that died before its manifest: some reader may use it
                    target = of_run / f"{run.version}-{uuid.uuid4().hex[:8]}"
                staging.rename(target)
                with self._taken_back(run.run_id, target):
                    sync_to_disk(of_run)
                    sync_to_disk(self.runs_folder)
                    if self.is_empty():  # the folders may be of a writer that died before it synced their names
                        sync_names_above(self.manifests_folder)
                    folder = target.relative_to(self.warehouse)
                    placed = replace(
                        run,
                        files={t: [str(folder / n) for n in files] for t, files in run.files.items()},
                        digests={str(folder / n): d for n, d in zip(names, digests, strict=True)},
                    )
                    self._replace(before, placed)
        return placed

    def replace_metric_values(self, run: RunVersion, staged: Path, rows: int, fingerprint: str) -> RunVersion | None:
        """Replace a run's metric values by newly evaluated ones; return None if the run has changed meanwhile."""
        name = f"metric_values-{fingerprint[:16]}-{uuid.uuid4().hex[:8]}.parquet"
        with system_refusals(f"run {run.run_id}: metric values cannot be written", WarehouseError):
            digest = settled(staged) if rows else ""
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
                    sync_to_disk(file.parent)
                    placed = replace(
                        now,
                        files=files,
                        rows={**now.rows, "metric_values": rows},
                        metrics_fingerprint=fingerprint,
                        digests=digests,
                    )
                    self._replace(now, placed)
        return placed

    def settle(self) -> None:
        """Sync the names of the manifests to disk: a writer may have died after it gave one, and before it did."""
        with suppress(OSError):
            sync_to_disk(self.manifests_folder)

    def remove(self, run_id: str) -> bool:
        """Remove a run; a later `collect_garbage` deletes its files. Return False if there is no such run."""
        manifest = self._manifest(checked(run_id))
        try:
            with self.exclusive():
                self._start_grace(self.readable_run(run_id), frozenset())
                manifest.unlink()
                sync_to_disk(self.manifests_folder)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise WarehouseError(f"run {run_id}: cannot be removed: {error.strerror or error}") from None
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the warehouse, so that writers publish one after the other; a killed process leaves no lock.

        Raises:
            OSError: the warehouse cannot be written.
        """
        self.manifests_folder.mkdir(parents=True, exist_ok=True)
        self.runs_folder.mkdir(exist_ok=True)
        with locked(self.manifests_folder):
            yield

    def readable_run(self, run_id: str) -> RunVersion | None:
        """Return the current version of a run; None if there is none that can be read."""
        try:
            return self.run(run_id)
        except WarehouseError:
            return None

    def _replace(self, before: RunVersion | None, now: RunVersion) -> None:
        self._start_grace(before, now.paths)
        with placed_whole(self._manifest(now.run_id)) as part:
            part.write_text(manifest_text(now))

    @contextmanager
    def _taken_back(self, run_id: str, path: Path) -> Iterator[None]:
        """Remove a file or folder again if the code inside fails before the run's manifest names it."""
        try:
            yield
        except BaseException:
            with suppress(WarehouseError):  # a manifest that cannot be read may name it
                now = read_manifest(self._manifest(run_id))
                name = str(path.relative_to(self.warehouse))
                if now is None or not any(f == name or f.startswith(f"{name}/") for f in now.paths):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            raise

    def _start_grace(self, before: RunVersion | None, kept: Collection[str]) -> None:
        """Start the grace time of files that are about to be replaced, however old they are."""
        for path in before.paths.difference(kept) if before else ():
            with suppress(FileNotFoundError):
                os.utime(self.warehouse / path)


def _stamp(manifest: Path | os.DirEntry[str]) -> Stamp:
    """Return the stamp of a manifest; of a link, which is damage, the link's own.

    Raises:
        FileNotFoundError: there is no such file.
    """
    found = manifest.stat(follow_symlinks=False)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
