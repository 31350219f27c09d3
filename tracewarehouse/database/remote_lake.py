"""Reads a lake in an object store or on a web server: manifests are copied here, Parquet files are read remotely."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.capture.remote import mirror, open_store
from tracewarehouse.ingest.errors import CaptureError, WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, UnreadRun


class RemoteLake(Lake):
    """The runs of a warehouse at a URI."""

    def __init__(self, uri: str) -> None:
        try:
            self._store = open_store(uri)
        except CaptureError as error:
            raise WarehouseError(str(error)) from None
        key = hashlib.sha256(self._store.uri.encode()).hexdigest()[:16]
        super().__init__(cache_folder() / "warehouses" / key / self._store.name)
        self.root = str(self._store.filesystem.unstrip_protocol(self._store.path))
        self.folder = f"{self.root}/lake"

    @cached_property
    def filesystem(self) -> Any:
        """The filesystem through which DuckDB reads the files; it checks for no changes, as lake files never change."""
        shared = open_store(self._store.uri).filesystem
        own = type(shared)(*shared.storage_args, **{**shared.storage_options, "skip_instance_cache": True})
        own.modified = lambda path: datetime.fromtimestamp(0, UTC)
        return own

    def sync(self) -> None:
        """Bring the local copies of the manifests up to date."""
        try:
            manifests = [f for f in self._store.files("manifests") if f.place.suffix == ".json"]
            if not manifests:
                raise WarehouseError(f"no warehouse at {self._store.uri}: there are no manifests of runs below it")
            mirror(self._store, manifests, self.warehouse / "manifests")
        except CaptureError as error:
            raise WarehouseError(f"{self._store.uri}: the runs cannot be listed: {error}") from None

    def runs(self) -> list[RunVersion]:
        """The current versions of all runs; see `Lake.runs`."""
        self.sync()
        return super().runs()

    def lacking(self, runs: Iterable[RunVersion]) -> list[UnreadRun]:
        """No runs: asking the store for every file takes long, and reading a missing file fails with a message."""
        return []
