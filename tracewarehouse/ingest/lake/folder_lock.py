"""Locks a folder by a file in it; the lock ends with the process that holds it, however it ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = ".lock"
"""Name of the lock file in the folder."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, after waiting until it is free.

    Raises:
        OSError: the folder cannot be written.
    """
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def is_locked(folder: Path) -> bool:
    """Return whether a living process holds the lock of a folder."""
    try:
        with (folder / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False
