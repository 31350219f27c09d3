"""Watches a folder in which captures appear, and ingests each capture once it is complete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.capture.remote import local_copy
from tracewarehouse.ingest.capture.run_options import DEFAULT_OPTIONS, RunOptions
from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures
from tracewarehouse.ingest.errors import CaptureError, NoCaptureError, TracewarehouseError

if TYPE_CHECKING:
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.warehouse import Warehouse

Stamp = tuple[tuple[str, int, int], ...]
"""Name, size and time of the last change of each file of a capture."""


@dataclass
class _Seen:
    stamp: Stamp
    since: float
    """The time at which the capture was first seen in this state, on the monotonic clock."""
    is_done: bool = False


@dataclass(frozen=True)
class Ingested:
    """A capture was ingested as a run."""

    result: IngestResult
    replaces: str | None
    """The run that this watcher made earlier from an incomplete state of the same capture, if any."""


@dataclass(frozen=True)
class Failed:
    """A capture could not be ingested; the watcher retries when its files change or the warehouse becomes writable."""

    error: TracewarehouseError


@dataclass(frozen=True)
class Waiting:
    """One scan of the folder has ended."""

    pending: tuple[str, ...]
    """Names of captures that are not complete yet."""
    idle_seconds: float
    """Seconds since something last changed or was ingested."""


class Watcher:
    """Scans a folder or URI again and again.

    A capture is complete if none of its files has changed for `settle` seconds and, if a manifest names its hosts, each
    host has a file. If a host's file does not arrive, the capture is ingested without it after `patience` seconds. The
    watcher keeps no state outside the warehouse: after a restart, it finds the runs that are already there.

    Args:
        warehouse: the warehouse to ingest into.
        location: the folder, which need not exist yet, or its URI.
        settle: seconds without a change after which a capture counts as complete.
        patience: seconds to wait for missing hosts.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        location: str,
        options: RunOptions = DEFAULT_OPTIONS,
        *,
        settle: float = 5.0,
        patience: float = 600.0,
    ) -> None:
        self._warehouse = warehouse
        self._location = location
        self._options = options
        self._settle = settle
        self._patience = patience
        self._seen: dict[tuple[Path, str], _Seen] = {}
        self._runs: dict[tuple[Path, str], str] = {}
        self._last_event = time.monotonic()

    def follow(self, interval: float) -> Iterator[Ingested | Failed | Waiting]:
        """Scan the folder every `interval` seconds, for ever, and yield what happens."""
        while True:
            yield from self.look()
            time.sleep(interval)

    def look(self) -> Iterator[Ingested | Failed | Waiting]:
        """Scan the folder once and yield what happens; a `Waiting` comes last."""
        pending = []
        is_changed = False
        captures: list[Capture] = []
        try:
            captures = find_whole_captures(local_copy(self._location))
        except NoCaptureError:
            pass  # nothing has been written yet
        except CaptureError as error:
            yield Failed(error)
        for capture in captures:
            key = capture.files[0].parent, capture.name
            seen = self._noted(key, capture)
            if seen is None or seen.is_done:
                continue
            if not self._is_complete(capture, seen):
                pending.append(capture.name)
                continue
            yield self._ingest(key, capture, seen)
            self._last_event = time.monotonic()
            is_changed = True
        if is_changed:
            try:
                self._warehouse.update_database()
            except TracewarehouseError as error:
                yield Failed(error)
        yield Waiting(tuple(pending), time.monotonic() - self._last_event)

    def _noted(self, key: tuple[Path, str], capture: Capture) -> _Seen | None:
        stamp = _stamp(capture)
        if stamp is None:
            return None
        seen = self._seen.get(key)
        if seen is None or seen.stamp != stamp:
            age = time.time() - max(changed for _, _, changed in stamp) / 1e9
            # a file that was written long before the watcher started has already settled
            since = time.monotonic() - (max(age, 0.0) if seen is None else 0.0)
            if seen is not None or age < self._settle:
                self._last_event = time.monotonic()
            seen = self._seen[key] = _Seen(stamp, since)
        return seen

    def _is_complete(self, capture: Capture, seen: _Seen) -> bool:
        quiet = time.monotonic() - seen.since
        return quiet >= self._settle and (quiet >= self._patience or not _lacks_hosts(capture))

    def _ingest(self, key: tuple[Path, str], capture: Capture, seen: _Seen) -> Ingested | Failed:
        try:
            result = self._warehouse.ingest_capture(capture, self._options)
        except TracewarehouseError as error:
            seen.is_done = isinstance(error, CaptureError)
            seen.since = time.monotonic()
            return Failed(error)
        seen.is_done = True
        before = self._runs.get(key)
        self._runs[key] = result.run_id
        return Ingested(result, before if before != result.run_id else None)


def _stamp(capture: Capture) -> Stamp | None:
    """The stamp of a capture's files; None if a file was deleted meanwhile."""
    files = [
        *capture.files,
        *(p for p in (capture.manifest, capture.card) if p),
        *(f.path for f in capture.batch_files),
    ]
    try:
        stats = [(str(p), p.stat()) for p in files]
    except OSError:
        return None
    return tuple((name, s.st_size, s.st_mtime_ns) for name, s in stats)


def _lacks_hosts(capture: Capture) -> bool:
    try:
        manifest = load_manifest(capture.manifest) if capture.manifest else None
    except CaptureError:
        return False  # ingest reports what is wrong with the manifest
    return manifest is not None and len(manifest.hosts) > len(capture.files)
