"""The threads that virtual CPU devices run on, as Linux sees them."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_POOL = "tf_XLAPjRtCpuCl"
"""Names of threads are cut to 15 characters."""
_LONGEST_S = 5.0


def wait_until_asleep(tasks: Path = _TASKS) -> None:
    """Wait until no thread of the CPU client has work left; at once where there are none, as on TPU.

    A thread that gives the last result of a program may lose its processor before it has said that the program is
    over. A program that was started meanwhile then runs inside the old one's scheduling, so that the profile tells its
    ops from nobody's. Waits at most 5 s, for a pool that never sleeps.
    """
    threads = [task for task in _list(tasks) if _read(task / "comm").strip() == _POOL]
    deadline = time.monotonic() + _LONGEST_S
    while any(_is_runnable(task) for task in threads) and time.monotonic() < deadline:
        time.sleep(50e-6)


def _is_runnable(task: Path) -> bool:
    _, _, facts = _read(task / "stat").rpartition(")")
    return facts.split()[:1] == ["R"]


def _list(tasks: Path) -> list[Path]:
    with suppress(OSError):
        return list(tasks.iterdir())
    return []


def _read(file: Path) -> str:
    with suppress(OSError):  # the thread has ended
        return file.read_text(encoding="utf-8", errors="replace")
    return ""
