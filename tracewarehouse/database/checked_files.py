"""Finds damaged files of runs before a question reads them.

A manifest holds the SHA-256 of each file of its run. A file is digested when a question first needs it, and again
whenever it has changed: the inode, size and times that it had are remembered in the user's cache folder. Damage that
changes none of these, as a failing disk may do to a file that was once read, is found by `tw fsck` alone.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion

_RECORD = struct.Struct("<QQqq16s")
"""A file that was found whole: inode, size, times of the last changes of content and of inode, half of its digest."""
_MOST_BYTES = 4 << 20
_TICK_NS = 20_000_000
"""A file could change twice unseen within a tick of the file system's clock; this is longer than any."""


class CheckedFiles:
    """The files of a warehouse's runs that are known to be as they were written.

    They are remembered in one file for all runs whose ids begin alike.

    Args:
        lake: the warehouse; nothing is checked if it is remote.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._known: dict[str, set[bytes]] = {}
        try:
            key = hashlib.sha256(os.fsencode(lake.root)).hexdigest()[:16]
            self._folder: Path | None = cache_folder() / "checked" / key
        except RuntimeError:  # the user has no home folder
            self._folder = None

    def check(self, runs: Iterable[RunVersion], tables: Collection[str] | None = None) -> None:
        """Check the files of some tables of runs, or of all tables; leave out files that are missing.

        Raises:
            WarehouseError: a file's bytes are not those that were written; the message names it and its run.
        """
        for run, file in self.damaged(runs, tables):
            raise WarehouseError(
                f"{self._lake.root}: run {run.run_id} ({run.name}) is damaged: the bytes of {file} are not "
                "those that were written; run `tw ingest` on its capture again, or `tw remove` it"
            )

    def damaged(
        self, runs: Iterable[RunVersion], tables: Collection[str] | None = None
    ) -> list[tuple[RunVersion, str]]:
        """The files of some tables of runs, or of all tables, that are not as they were written, each with its run."""
        if self._lake.filesystem is not None:
            return []
        root, unknown = self._lake.root, []
        for run in runs:
            known = self._known_of(run.run_id[:3])
            for table in run.files if tables is None else tables:
                for file in run.files.get(table, ()):
                    try:
                        record = _record(f"{root}/{file}", run.digests.get(file, ""))
                    except OSError:  # DuckDB names it
                        continue
                    if record not in known:
                        unknown.append((run, file, record))
        if not unknown:
            return []
        now_ns = time.time_ns()
        damaged, found = [], dict[str, list[bytes]]()
        with ThreadPoolExecutor(2) as pool:
            digests = pool.map(lambda u: _digest(f"{root}/{u[1]}"), unknown)
            for (run, file, record), digest in zip(unknown, digests, strict=True):
                if digest != run.digests.get(file):
                    damaged.append((run, file))
                elif max(_RECORD.unpack(record)[2:4]) < now_ns - _TICK_NS:
                    found.setdefault(run.run_id[:3], []).append(record)
        for beginning, records in found.items():
            self._remember(beginning, records)
        return damaged

    def _known_of(self, beginning: str) -> set[bytes]:
        if beginning not in self._known:
            size = _RECORD.size
            data = self._remembered(beginning)
            self._known[beginning] = {data[i : i + size] for i in range(0, len(data), size)}
        return self._known[beginning]

    def _remembered(self, beginning: str) -> bytes:
        """The records of a file of the cache folder; none if it is missing, or not a file as it should be."""
        with suppress(OSError):
            if self._folder is not None:
                descriptor = os.open(self._folder / beginning, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                with os.fdopen(descriptor, "rb") as file:
                    if _is_usable(os.fstat(file.fileno())):
                        return file.read(_MOST_BYTES)
        return b""

    def _remember(self, beginning: str, records: list[bytes]) -> None:
        self._known_of(beginning).update(records)
        with suppress(OSError):  # it is then digested again next time
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(self._folder / beginning, flags, 0o600)
                with os.fdopen(descriptor, "ab") as file:
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        if not _is_usable(os.fstat(descriptor)):
                            file.truncate(0)
                        file.write(b"".join(records))


def _is_usable(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size % _RECORD.size == 0 and found.st_size <= _MOST_BYTES


def _record(path: str, digest: str) -> bytes:
    found = os.stat(path)  # noqa: PTH116  a Path of each of thousands of files takes many times as long
    return _RECORD.pack(
        found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, bytes.fromhex(digest[:32]).ljust(16)
    )


def _digest(path: str) -> str | None:
    """The SHA-256 of a file; None if it is no file or cannot be read."""
    try:
        return file_digest(Path(path))
    except OSError:
        return None
