"""Shares a large Chrome trace among processes: each reads ranges of it, which are then put together in file order.

A range begins at what looks like the border of two events. That it is one follows from the range before, which must
have been read as whole events up to there; what does not prove right is read again, by the process that began.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.processes.pool import Processes
from tracewarehouse.ingest.readers.chrome.args import Content
from tracewarehouse.ingest.readers.chrome.chunks import Chunks, NotJsonError
from tracewarehouse.ingest.readers.chrome.gather import OWN, Gathered, Gatherer
from tracewarehouse.ingest.readers.chrome.helpers import Helpers
from tracewarehouse.ingest.readers.chrome.spill import Spill
from tracewarehouse.ingest.readers.chrome.templates import Piece, TemplateParser
from tracewarehouse.ingest.readers.files import CaptureFile

FIRST = 3 << 20
"""Bytes of events read before, so that processes need not learn one by one what repeats."""
REST = 1 << 17
"""Bytes at the end that are in no range, as the events end there."""


@dataclass(frozen=True)
class Range:
    """The bytes [low:high]; its events go to the helpers' output of this number, an open file."""

    low: int
    high: int
    number: int
    descriptor: int


@dataclass(frozen=True)
class Read:
    """A range that was read.

    Attributes:
        worker: who read it.
        contents: event metadata that the worker met since it last told.
        has_replaced: bytes that are not UTF-8 were replaced.
    """

    gathered: Gathered
    worker: int
    contents: list[Content]
    has_replaced: bool


@dataclass
class Shared:
    """What all processes read, and what each learns of it."""

    file: CaptureFile
    parse: TemplateParser
    chunk: int
    origin_us: int
    known: int
    """Event metadata that the worker need not tell of."""
    chunks: Chunks[Piece]
    """Of the process itself; a helper makes its own, as what it is told holds none."""
    worker: int = OWN

    def __getstate__(self) -> dict[str, Any]:
        return {n: v for n, v in self.__dict__.items() if n != "chunks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.chunks = Chunks(self.file.read_into, self.file.size, self.parse, self.chunk)
        self.worker = os.getpid()


class Ranges:
    """The ranges of a trace, which processes read.

    Args:
        file: the trace.
        helpers: the processes.
        chunk: bytes of events parsed together.
    """

    def __init__(self, file: CaptureFile, helpers: Helpers, chunk: int) -> None:
        self._file, self._helpers, self._chunk = file, helpers, chunk
        self._begin: int | None = None
        self._is_done = False
        self._ranges: list[Range] = []
        self._read: dict[int, Read] = {}
        self._contents: dict[int, list[Content]] = {}

    def follow(self, chunks: Chunks[Piece], at: int, gatherer: Gatherer) -> tuple[int, int]:
        """Take what ranges hold from an event on; returns where to go on, and where the next range begins.

        Raises:
            CaptureError: the file changed, or there is no room for its events.
            HelperError: a process was ended from outside.
        """
        if self._begin is None:
            self._begin = at
        processes = self._helpers.processes
        if processes and not self._is_done and gatherer.origin_us is not None and at - self._begin >= FIRST:
            self._is_done = True
            if not gatherer.has_pairs:  # which may begin in one range and end in another
                self._share(processes, at, chunks, gatherer)
            self._helpers.dismiss()
        while self._ranges and self._ranges[0].low <= at:
            known = self._ranges.pop(0)
            read = self._read.pop(known.low, None)
            if read and known.low == at and self._join(known, read, gatherer):
                at = known.high
        return at, self._ranges[0].low if self._ranges else self._file.size

    def _share(self, processes: Processes, at: int, chunks: Chunks[Piece], gatherer: Gatherer) -> None:
        """Have all ranges read from an event on."""
        outputs = self._helpers.outputs
        count, rest = len(outputs), max(0, self._file.size - REST - at)
        # each smaller than the one before, so that all processes end at about the same time
        shares = [1 - (1 - i / count) ** 1.5 for i in range(1, count + 1)]
        borders = [at, *chunks.borders(at, [at + int(rest * share) for share in shares])]
        self._ranges = [
            Range(low, high, i, output.fileno())
            for i, ((low, high), output) in enumerate(zip(pairwise(borders), outputs, strict=False))
        ]
        contents = gatherer.arguments.contents
        known = len(contents)
        processes.share(Shared(self._file, gatherer.parse, self._chunk, gatherer.origin_us or 0, known, chunks))
        for range_, read in zip(self._ranges, processes.start(work, self._ranges).results(), strict=True):
            if read is not None:
                self._read[range_.low] = read
                if read.worker != OWN:
                    self._contents.setdefault(read.worker, contents[:known]).extend(read.contents)

    def _join(self, known: Range, read: Read, gatherer: Gatherer) -> bool:
        contents = gatherer.arguments.contents if read.worker == OWN else self._contents[read.worker]
        if not gatherer.join(read.gathered, known.number + 1, read.worker, contents):
            return False
        gatherer.parse.has_replaced |= read.has_replaced
        return True


def work(shared: Shared, task: Range) -> Read | None:
    """What a range holds; None where it does not hold whole events."""
    parse = shared.parse
    had_replaced, parse.has_replaced = parse.has_replaced, False
    try:
        with os.fdopen(os.dup(task.descriptor), "wb") as output:
            gatherer = Gatherer(parse, Spill(output), shared.origin_us)
            for piece in shared.chunks.range(task.low, task.high):
                gatherer.add(piece)
            gathered = gatherer.gathered()
        has_replaced = parse.has_replaced
    except (NotJsonError, MalformedError):
        return None
    finally:
        parse.has_replaced = had_replaced
    new = parse.arguments.contents[shared.known :] if shared.worker != OWN else []
    shared.known += len(new)
    return Read(gathered, shared.worker, new, has_replaced)


__all__ = ["FIRST", "REST", "Ranges", "work"]
