"""Watches the threads of virtual CPU devices, as Linux sees them."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")
_LONGEST_S = 2.0


def wait_until_asleep(tasks: Path = _TASKS) -> None:
    """Wait until no other thread of this process has work left.

    The thread with the last result of a program may lose its processor before it reports the end of the program. If
    another program starts meanwhile, it runs inside the old one's scheduling, and the profile cannot tell which device
    its ops belong to. The wait ends after 2 s, because some threads may never sleep.
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
