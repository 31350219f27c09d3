"""Events of a Chrome trace between being read and being asked for: its lines lie mixed in the file."""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, StatColumn
from tracewarehouse.ingest.errors import CaptureError

IN_MEMORY = 32 << 20
"""Bytes of events that stay in memory; from there on all are in a temporary file that has no name."""

Place = tuple[int, int]
"""Where a batch starts in a file, and its bytes."""


class Spill:
    """Batches of events by line, kept in a file once they are many.

    Args:
        file: a file of its own, which the caller closes; None for a temporary one.
        in_memory: bytes of a temporary file that stay in memory.
        others: files of other spills, whose batches can be put behind those of lines; it closes them.

    Attributes:
        places: where the batches of each line are.
    """

    def __init__(
        self, file: IO[bytes] | None = None, in_memory: int = IN_MEMORY, others: Sequence[IO[bytes]] = ()
    ) -> None:
        own = file or tempfile.SpooledTemporaryFile(in_memory)  # noqa: SIM115  closed below
        self._files = [own, *others]
        for closed in self._files[file is not None :]:
            weakref.finalize(self, closed.close)  # as batches are read for as long as the spill lives
        self._end = 0
        self._batches: dict[int, list[tuple[int, Place]]] = {}

    @property
    def lines(self) -> set[int]:
        """Lines that have events."""
        return set(self._batches)

    @property
    def places(self) -> Mapping[int, Sequence[Place]]:
        """Where the batches of each line are in its own file."""
        return {line: [place for _, place in found] for line, found in self._batches.items()}

    def add(self, line: int, batch: EventBatch) -> None:
        """Put events of a line behind those that it has.

        Raises:
            CaptureError: the temporary file cannot be written.
        """
        content = _packed(batch)
        try:
            self._files[0].seek(self._end)
            self._files[0].write(content)
        except OSError as error:
            raise _no_room(error) from None
        self._batches.setdefault(line, []).append((0, (self._end, len(content))))
        self._end += len(content)

    def flush(self) -> None:
        """Make the file complete for others who read it.

        Raises:
            CaptureError: it cannot be written.
        """
        try:
            self._files[0].flush()
        except OSError as error:
            raise _no_room(error) from None

    def include(self, line: int, file: int, places: Sequence[Place]) -> None:
        """Put batches of another file, the first of which is 1, behind those that a line has."""
        if places:
            self._batches.setdefault(line, []).extend((file, place) for place in places)

    def read(self, line: int) -> Iterator[tuple[int, EventBatch]]:
        """The batches of a line, in the order of their adding, each with the number of the file that it was in.

        Raises:
            CaptureError: the temporary file cannot be read.
        """
        for number, (at, size) in self._batches.get(line, ()):
            try:
                self._files[number].seek(at)
                content = self._files[number].read(size)
            except OSError as error:
                raise CaptureError(f"a temporary file cannot be read: {error.strerror or error}; try again") from None
            yield number, _unpacked(content)


def _packed(batch: EventBatch) -> bytes:
    """A batch as bytes; those of its arrays alone, as pickling arrays takes longer than making them."""
    stats = [(s.name, s.rows.tobytes(), s.kinds.tobytes(), s.bits.tobytes(), s.texts) for s in batch.stats]
    return pickle.dumps((batch.metadata.tobytes(), batch.start_ps.tobytes(), batch.duration_ps.tobytes(), stats), 5)


def _unpacked(content: bytes) -> EventBatch:
    metadata, start_ps, duration_ps, stats = pickle.loads(content)  # noqa: S301  our own file, which has no name
    return EventBatch(
        np.frombuffer(metadata, np.int32),
        np.frombuffer(start_ps, np.int64),
        np.frombuffer(duration_ps, np.int64),
        [
            StatColumn(
                name,
                np.frombuffer(rows, np.int64),
                np.frombuffer(kinds, np.uint8),
                np.frombuffer(bits, np.uint64),
                texts,
            )
            for name, rows, kinds, bits, texts in stats
        ],
    )


def _no_room(error: OSError) -> CaptureError:
    return CaptureError(
        f"the events read so far need a temporary file, and {tempfile.gettempdir()} cannot take it: "
        f"{error.strerror or error}; make room there, or name another folder in TMPDIR"
    )


__all__ = ["IN_MEMORY", "Place", "Spill"]
