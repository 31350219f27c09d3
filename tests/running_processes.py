"""Processes of this machine, for tests that end some."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def running(*words: str) -> set[int]:
    """Ids of the processes whose command line has all of these words."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.add(int(entry.parent.name))
    return found


def cpu_seconds(process: int) -> float:
    """CPU time that a process has used, of its own and in the kernel."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.02)
