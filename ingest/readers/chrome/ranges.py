"""Reads a Chrome trace range by range; of a large one several processes read ranges at once.

A range begins where an event seems to begin. That it does follows from the range before, if that was read as whole
events up to there; what does not prove right is read again, from where it proved right on.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator
from itertools import pairwise

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.processes.pool import Processes, start_helpers
from tracewarehouse.ingest.readers.chrome.document import Document
from tracewarehouse.ingest.readers.chrome.events import Event
from tracewarehouse.ingest.readers.chrome.gather import Gathered, Key, no_room

DIVIDED = 64 << 20
"""Bytes from which processes share a trace: below, another process costs more time than it saves."""
RANGES = 4
"""Ranges for each process; what several of them have in common is found by each."""

Range = tuple[int, int, int]
"""The bytes from and to, and the descriptor of an open file for the events."""
Shared = tuple[Document, int | None]
"""The trace, and what its times count from."""


class Ranges:
    """The ranges of a trace; a context manager that leaves no process behind.

    Their files are open for as long as it lives.

    Args:
        document: the trace.
        jobs: processes, this one included.
    """

    def __init__(self, document: Document, jobs: int) -> None:
        self._document = document
        low, size = document.start, document.file.size
        limits = [low, size]
        if jobs > 1 and size >= DIVIDED:
            first = document.border(low)  # tells what times count from
            # each smaller than the one before, so that all processes end at about the same time
            count = RANGES * jobs
            shares = [1 - (1 - i / count) ** 1.5 for i in range(count)]
            borders = {first, *(document.border(first + int((size - first) * share)) for share in shares)}
            limits[1:1] = sorted(borders - {size})
        self._ranges: list[Range] = [(a, z, self._temporary()) for a, z in pairwise(limits)]
        self._processes: Processes | None = None
        if len(self._ranges) > 1:
            files = [document.file.descriptor, *(descriptor for _, _, descriptor in self._ranges)]
            self._processes = start_helpers(jobs - 1, files, [__name__])

    def __enter__(self) -> Iterator[Gathered]:
        return self._read()

    def __exit__(self, *_: object) -> None:
        if self._processes:
            self._processes.__exit__()

    def _read(self) -> Iterator[Gathered]:
        """What the ranges hold, in file order.

        Raises:
            CaptureError: it is malformed, the file changed, or there is no room for its events.
            HelperError: a process was ended from outside.
        """
        at, begun, origin_us = self._document.start, dict[Key, list[Event]](), None
        known: dict[int, Gathered | None] = {}
        for i, (low, high, descriptor) in enumerate(self._ranges):
            if at >= high and i + 1 < len(self._ranges):
                continue
            if self._processes and origin_us is not None and not begun and not known:
                ranges = self._ranges[i:]
                self._processes.share((self._document, origin_us))
                reads = self._processes.start(read_range, ranges).results()
                known = {r[0]: gathered for r, gathered in zip(ranges, reads, strict=True)}
            gathered = known.get(low) if at == low and not begun else None
            if gathered is None:
                gathered = Gathered(descriptor, origin_us, begun)
                gathered.read(self._document, at, high)
            at, origin_us = gathered.end, gathered.origin_us
            yield gathered
            if gathered.mark != b",":
                return

    def _temporary(self) -> int:
        """Descriptor of a file that has no name."""
        try:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        except OSError as error:
            raise no_room(error) from None
        weakref.finalize(self, os.close, descriptor)
        return descriptor


def read_range(shared: Shared, task: Range) -> Gathered | None:
    """What a range holds, as a task; None where it does not hold whole events, or halves of pairs."""
    (document, origin_us), (low, high, descriptor) = shared, task
    gathered = Gathered(descriptor, origin_us, {})
    try:
        gathered.read(document, low, high, is_alone=True)
    except MalformedError:
        return None
    return None if gathered.has_pairs else gathered
