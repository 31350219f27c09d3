"""The threads that virtual CPU devices run on, as Linux sees them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LONGEST_S = 2.0


def wait_until_asleep(tasks: Path = _TASKS) -> None:
    """Wait until no other thread of this process has work left.

    A thread that gives the last result of a program may lose its processor before it has said that the program is
    over. A program that is started meanwhile then runs inside the old one's scheduling, and the profile tells nobody
    whose its ops are. Waits at most 2 s, for threads that never sleep.
    """
    own = str(threading.get_native_id())
    deadline = time.monotonic() + _LONGEST_S
    with suppress(OSError):  # not Linux
        others = [task for task in tasks.iterdir() if task.name != own]
        while any(map(_is_runnable, others)) and time.monotonic() < deadline:
            time.sleep(50e-6)


def _is_runnable(task: Path) -> bool:
    with suppress(OSError):  # the thread has ended
        _, _, facts = (task / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        return facts.split()[:1] == ["R"]
    return False
