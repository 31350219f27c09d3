"""Writes whole files safely to disk, digests them on the way, and locks folders.

A lock ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

LOCK = ".lock"
"""Name of the lock file in the folder."""


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
        self._digests[file] = self._threads.submit(settled, file)

    def digests(self, files: Sequence[Path]) -> list[str]:
        """Return the SHA-256 of each file, in hex, once all of them are on disk."""
        for file in files:
            if file not in self._digests:
                self.add(file)
        return [self._digests[f].result() for f in files]


def settled(file: Path) -> str:
    """Sync a file to disk and return its digest."""
    digest = file_digest(file)
    sync_to_disk(file)
    return digest


@contextmanager
def placed_whole(target: Path) -> Iterator[Path]:
    """Yield a path to write a file at; afterwards it is synced and replaces `target`, or is removed after an error."""
    part = target.with_name(f".part-{uuid.uuid4().hex[:8]}")
    try:
        yield part
        sync_to_disk(part)
        part.replace(target)
        sync_to_disk(target.parent)
    finally:
        part.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex.

    Raises:
        OSError: it cannot be read, or is no file.
    """
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _opened(path: Path, flags: int) -> int:
    """Open a file; anything else, such as a pipe, which could block, is an OSError."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{path.name} is not a file")
    return descriptor


def sync_to_disk(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_names_above(folder: Path) -> None:
    """Sync to disk the name of a folder, and of each folder above it that may be read."""
    for above in folder.absolute().parents:
        with suppress(OSError):
            sync_to_disk(above)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, after waiting until it is free.

    Raises:
        OSError: there cannot be a lock in this folder.
    """
    try:
        descriptor = _opened(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except PermissionError:  # another user's
        descriptor = _opened(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a living process holds the lock of a folder.

    Raises:
        OSError: what stands in place of the lock is none.
    """
    try:
        descriptor = _opened(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
