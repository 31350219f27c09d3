"""Starts processes that end with their parent, so that a killed collector leaves none behind; waits for threads."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tracewarehouse.collect.errors import CollectError

_PARENT = "TRACEWAREHOUSE_PARENT"


def start_process(
    command: Sequence[str], variables: Mapping[str, str] | None = None, **streams: int | IO[Any]
) -> subprocess.Popen[bytes]:
    """Start a Python program that calls `end_with_parent` first of all."""
    environment = os.environ | {_PARENT: str(os.getpid())} | dict(variables or {})
    return subprocess.Popen(command, env=environment, **streams)  # type: ignore[call-overload, no-any-return]  # noqa: S603


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; exit at once if it has already ended."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        sys.exit("error: the collector that started this process has ended")


def exit_code(work: Callable[[], None]) -> int:
    """Run the work of a process; return 0, or 1 after a line on stderr that starts with `error:`."""
    try:
        work()
    except CollectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print("error: the disk is full; make room, or choose another output", file=sys.stderr)
        return 1
    return 0


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
