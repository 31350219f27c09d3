"""States the most of each kind that a capture may have: far more than any profiler writes.

A small file can hold millions of planes, lines, names, instructions or nested events, and each costs memory or time.
Readers count them as they read, and refuse the capture before its memory grows.
"""

from __future__ import annotations

from typing import Final

from tracewarehouse.ingest.errors import TooManyError

PLANES: Final = 1 << 16
LINES: Final = 1 << 17
"""Lines of all planes of a file, such as threads of a program."""
DEVICE_LINES: Final = 1 << 14
"""Lines of all devices of a file, such as streams; each has tables, executions and clocks of its own."""
NAMES: Final = 1 << 19
"""Distinct descriptions of events: a name and the facts that go with it."""
ARGUMENTS: Final = 1 << 13
"""Names of arguments that events of a piece of a file may have; each is a column."""
INSTRUCTIONS: Final = 1 << 18
"""Distinct instructions and kernels of a run; each has the facts of its text, some 4 kB."""
PROGRAM: Final = 1 << 19
"""Instructions and computations of an embedded program, whether they ran or not."""
NESTED: Final = 64
"""Depth in which ops of a device hold each other where they are in loops; computations of HLO nest no deeper either."""
RANGES: Final = 1 << 10
"""Depth in which NVTX ranges of a thread nest; Python's own calls nest no deeper."""
PICOSECONDS: Final = 1 << 62
"""Time from a run's first event to its last: 53 days. Differences of times, and sums of two, then fit 64 bits."""


def check(found: int, most: int, what: str, of: str) -> None:
    """Refuse a capture that has more of something than it may have, such as "threads" of "a program".

    Raises:
        TooManyError: it has.
    """
    if found > most:
        raise TooManyError(f"not a profiler's trace: looked for the {what} of {of}, found more than {most:,} {what}")
