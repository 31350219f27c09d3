"""Creates temporary folders, for spilled rows and for a warehouse that serves one query.

Each folder holds a lock as long as its process lives, so folders of killed processes can be told from those in use.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

from tracewarehouse.ingest.lake.garbage import Leftover, size_on_disk

_PREFIX = "tracewarehouse-"
_LOCK = ".lock"
_MOST_READ = 1000


class TemporaryFolder:
    """A new folder at `path` that holds only its lock; `close` or, at the latest, the end of the process removes it.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self) -> None:
        lock = None
        while lock is None:
            # named before it is made, so that a signal's exception, which may come after any step, leaves nothing
            self.path = Path(tempfile.gettempdir()).absolute() / f"{_PREFIX}{secrets.token_hex(8)}"
            try:
                lock = _made(self.path)
                if lock is not None:
                    self.close = weakref.finalize(self, _remove, self.path, lock)
            except BaseException:
                shutil.rmtree(self.path, ignore_errors=True)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def abandoned() -> Iterator[Leftover]:
    """Yield the folders of killed processes; the caller may remove each one before it asks for the next."""
    for folder in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(OSError, UnicodeError):  # the folder is in use, another user's, or not ours
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "r+", encoding="utf-8") as lock:
                if folder.is_symlink() or lock.read(_MOST_READ) != _sign(folder):
                    continue
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield Leftover(folder, "temporary folder of a process that was killed", size_on_disk(folder))


def remove_abandoned() -> list[Leftover]:
    """Remove the folders that `abandoned` yields, and return them."""
    removed = []
    for leftover in abandoned():
        shutil.rmtree(leftover.path, ignore_errors=True)
        if not leftover.path.exists():
            removed.append(leftover)
    return removed


def _sign(folder: Path) -> str:
    """The text that marks a lock as ours. It names the folder, so a copy with another name does not count as ours."""
    return f"temporary folder {folder.name} of tracewarehouse, removed with its process or by tw gc\n"


def _made(folder: Path) -> IO[str] | None:
    """Make a folder and return its lock; None if another process removed it as abandoned before the lock was held."""
    folder.mkdir(0o700)
    lock = (folder / _LOCK).open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.write(_sign(folder))
    lock.flush()
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(lock.fileno()), (folder / _LOCK).stat()):
            return lock
    lock.close()
    return None


def _remove(folder: Path, lock: IO[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()
