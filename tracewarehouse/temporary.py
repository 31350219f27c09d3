"""Folders among the system's temporary files, for spilled rows and for the warehouse of a single question.

Each holds a lock for as long as its process lives, so that those of killed processes can be told from those in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from tracewarehouse.ingest.lake.lake import GRACE_SECONDS, Leftover, size_on_disk

_PREFIX = "tracewarehouse-"
_LOCK = ".lock"


class TemporaryFolder:
    """A folder at `path`, with nothing in it but its lock; it goes with `close`, or at the latest with the process.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self) -> None:
        self.path, lock = _made()
        self.close = weakref.finalize(self, _remove, self.path, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def abandoned() -> Iterator[Leftover]:
    """The folders of killed processes; each may be removed until the next is asked for."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        if _is_unlocked(folder):
            yield Leftover(folder, "temporary folder of a process that was killed", 0)
        with suppress(OSError), (folder / _LOCK).open("r+") as lock:  # another user's, or no folder of ours
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Leftover(folder, "temporary folder of a process that was killed", size_on_disk(folder))


def remove_abandoned() -> list[Leftover]:
    """Remove what `abandoned` gives; returns what went."""
    removed = []
    for leftover in abandoned():
        shutil.rmtree(leftover.path, ignore_errors=True)
        if not leftover.path.exists():
            removed.append(leftover)
    return removed


def _is_unlocked(folder: Path) -> bool:
    """Whether it is empty and has been so for so long that nobody will put a lock there."""
    try:
        return not any(folder.iterdir()) and time.time() - folder.stat().st_mtime > GRACE_SECONDS
    except OSError:  # another user's, or just removed
        return False


def _made() -> tuple[Path, IO[str]]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        lock = (folder / _LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # taken for abandoned before the lock was held
            if os.path.samestat(os.fstat(lock.fileno()), (folder / _LOCK).stat()):
                return folder, lock
        lock.close()


def _remove(folder: Path, lock: IO[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
