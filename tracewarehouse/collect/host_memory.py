"""Reads the memory of this host."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Return the bytes that this host can still give processes, as Linux estimates, within a container's limit."""
    available = _memory_info("MemAvailable")
    try:
        limit, used = (int((CGROUP / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
    except (OSError, ValueError):  # no such file; or `max`, which is no limit
        return available
    return min(available, limit - used)


def installed_memory() -> int:
    """Return this host's memory in bytes, which is the same on all hosts of a slice, whatever else runs there."""
    return _memory_info("MemTotal")


def _memory_info(field: str) -> int:
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(facts[field].split()[0]) * 1024
