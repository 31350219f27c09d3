"""The lake: immutable Parquet files per run version, and one manifest per run that says what the run is now.

    <warehouse>/lake/run_id=<id>/v=<version>/<table>.parquet
                manifests/<id>.json

A version is written in a staging folder, moved into place as a whole, and becomes the run when its
manifest is replaced. Readers list files from the manifests alone, so they see a run whole or not at all,
and nothing ever blocks them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ingest.errors import WarehouseError
from ingest.schema import SCHEMA_VERSION

RUN_ID = re.compile(r"[0-9a-z][0-9a-z_-]{0,63}")
GRACE_SECONDS = 24 * 3600.0
"""How long files that no manifest names are kept, for readers that still hold an older list."""


@dataclass(frozen=True)
class RunVersion:
    """What a run is now: the version, and the files of its tables (paths relative to the warehouse)."""

    run_id: str
    version: str
    name: str
    schema_version: int
    ingest_version: str
    source_digest: str
    files: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    metrics_fingerprint: str | None = None
    """Fingerprint of all metric definitions that `metric_values` was evaluated with."""


class Lake:
    """The Parquet tables of a warehouse folder."""

    def __init__(self, warehouse: Path) -> None:
        self.warehouse = warehouse
        self._lake = warehouse / "lake"
        self._manifests = warehouse / "manifests"

    def runs(self) -> list[RunVersion]:
        """All runs as they are now, by run id.

        Raises:
            WarehouseError: a manifest cannot be read, or is of another schema version.
        """
        try:
            paths = sorted(p for p in self._manifests.iterdir() if p.suffix == ".json" and p.name[0] != ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise WarehouseError(f"{self._manifests}: cannot list the runs: {error}") from None
        found = (self._read(p) for p in paths)
        return [r for r in found if r is not None]

    def run(self, run_id: str) -> RunVersion | None:
        """The run as it is now, or None.

        Raises:
            WarehouseError: its manifest cannot be read, or is of another schema version.
        """
        return self._read(self._manifests / f"{_checked(run_id)}.json")

    def _read(self, path: Path) -> RunVersion | None:
        try:
            content = json.loads(path.read_bytes())
            version = RunVersion(**content)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise WarehouseError(f"{path}: not a run manifest ({error}); ingest the capture again") from None
        if version.schema_version != SCHEMA_VERSION:
            raise WarehouseError(
                f"run {version.run_id} ({version.name}) has table schema {version.schema_version}, this version of "
                f"tracewarehouse reads {SCHEMA_VERSION}; run `tw ingest` on its capture again"
            )
        return version

    def paths(self, run: RunVersion, table: str) -> list[Path]:
        """Absolute paths of a run's files of one table."""
        return [(self.warehouse / f).resolve() for f in run.files.get(table, [])]

    @contextmanager
    def stage(self, run_id: str, version: str) -> Iterator[Path]:
        """A folder to write a version's files in; it is removed unless `publish` has moved it.

        Its path has the run's partition in it already, so that the files can be queried before they are published.

        Raises:
            WarehouseError: the warehouse cannot be written.
        """
        root = self._lake / f".staging-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        staging = root / f"run_id={_checked(run_id)}" / f"v={_checked(version)}"
        try:
            staging.mkdir(parents=True)
            self._manifests.mkdir(exist_ok=True)
        except OSError as error:
            raise WarehouseError(f"{self.warehouse}: cannot write to this warehouse: {error}") from None
        try:
            yield staging
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def publish(self, staging: Path, run: RunVersion) -> RunVersion:
        """Move a staged version into place and make it what the run is.

        `run.files` names the staged files by table, relative to `staging`. When another writer has put the same
        version there first, theirs is kept: the same bytes give the same version.

        Raises:
            WarehouseError: the files cannot be moved or the manifest not be written.
        """
        target = self._lake / f"run_id={_checked(run.run_id)}" / f"v={_checked(run.version)}"
        try:
            for file in staging.iterdir():
                _sync(file)
            _sync(staging)
            target.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if target.exists() and not self._is_complete(target, run):
                    shutil.rmtree(target)  # left by a writer that was killed while files were being removed
                if not target.exists():
                    staging.rename(target)
                _sync(target.parent)
                folder = target.relative_to(self.warehouse)
                placed = replace(run, files={t: [str(folder / n) for n in names] for t, names in run.files.items()})
                self._write_manifest(placed)
        except OSError as error:
            raise WarehouseError(f"run {run.run_id}: cannot be published in {self.warehouse}: {error}") from None
        return placed

    def replace_metric_values(self, run: RunVersion, staged: Path, rows: int, fingerprint: str) -> RunVersion | None:
        """Put newly evaluated metric values in place of a run's; None when the run has changed meanwhile."""
        folder = self._lake / f"run_id={run.run_id}" / f"v={run.version}"
        name = f"metric_values-{fingerprint[:16]}-{uuid.uuid4().hex[:8]}.parquet"
        try:
            with self._locked():
                now = self.run(run.run_id)
                if now is None or now.version != run.version:
                    return None
                if rows:
                    _sync(staged)
                    staged.replace(folder / name)
                files = {t: f for t, f in now.files.items() if t != "metric_values"}
                if rows:
                    files["metric_values"] = [str((folder / name).relative_to(self.warehouse))]
                placed = replace(
                    now, files=files, rows=now.rows | {"metric_values": rows}, metrics_fingerprint=fingerprint
                )
                self._write_manifest(placed)
        except OSError as error:
            raise WarehouseError(f"run {run.run_id}: metric values cannot be written: {error}") from None
        return placed

    def remove(self, run_id: str) -> bool:
        """Forget a run; its files go with the next `collect_garbage`. False when there is no such run."""
        try:
            with self._locked():
                (self._manifests / f"{_checked(run_id)}.json").unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise WarehouseError(f"run {run_id}: cannot be removed: {error}") from None
        return True

    def collect_garbage(self, grace_seconds: float = GRACE_SECONDS) -> list[Path]:
        """Remove files that no manifest names and that are older than the grace time; returns what went."""
        removed = []
        with self._locked():
            named = {(self.warehouse / f) for run in self.runs() for files in run.files.values() for f in files}
            limit = time.time() - grace_seconds
            stale = [p for p in self._lake.glob(".staging-*") if p.stat().st_mtime <= limit]
            for folder in self._lake.glob("run_id=*/v=*"):
                files = list(folder.iterdir())
                if not any(f in named for f in files):
                    stale += [folder] if folder.stat().st_mtime <= limit else []
                else:
                    stale += [f for f in files if f not in named and f.stat().st_mtime <= limit]
            for path in stale:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                removed.append(path)
            for run in self._lake.glob("run_id=*"):
                if not any(run.iterdir()):
                    run.rmdir()
        return removed

    def _is_complete(self, target: Path, run: RunVersion) -> bool:
        return all((target / name).is_file() for names in run.files.values() for name in names)

    def _write_manifest(self, run: RunVersion) -> None:
        part = self._manifests / f".{run.run_id}.{uuid.uuid4().hex[:8]}"
        part.write_text(json.dumps(asdict(run), indent=1, sort_keys=True))
        _sync(part)
        part.replace(self._manifests / f"{run.run_id}.json")
        _sync(self._manifests)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Writers publish one after the other; the lock goes with its process, so a killed writer leaves none."""
        with (self._manifests / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _checked(name: str) -> str:
    if not RUN_ID.fullmatch(name):
        raise WarehouseError(f"{name!r} is not a run id or version: expected lower-case letters, digits, '-' and '_'")
    return name


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
