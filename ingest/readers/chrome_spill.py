"""Events of a Chrome trace between being read and being asked for: its lines lie mixed in the file."""

from __future__ import annotations

import pickle
import tempfile
import weakref
from collections.abc import Iterator

from ingest.errors import CaptureError
from ingest.records import EventBatch, concatenate

IN_MEMORY = 32 << 20
"""Bytes of events that stay in memory; from there on all are in a temporary file that has no name."""
_BATCH = 1 << 15  # events that are handed out together, at least, but for the last


class Spill:
    """Batches of events by line, kept in a file once they are many."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        # closed by the finalizer, as batches are read for as long as the spill lives
        self._file = tempfile.SpooledTemporaryFile(in_memory)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._places: dict[int, list[tuple[int, int]]] = {}
        self._end = 0

    @property
    def lines(self) -> set[int]:
        """Lines that have events."""
        return set(self._places)

    def add(self, line: int, batch: EventBatch) -> None:
        """Put events of a line behind those that it has.

        Raises:
            CaptureError: the temporary file cannot be written.
        """
        content = pickle.dumps(batch, protocol=5)
        try:
            self._file.seek(self._end)
            self._file.write(content)
        except OSError as error:
            raise CaptureError(
                f"the events read so far need a temporary file, and {tempfile.gettempdir()} cannot take it: "
                f"{error.strerror or error}; make room there, or name another folder in TMPDIR"
            ) from None
        self._places.setdefault(line, []).append((self._end, len(content)))
        self._end += len(content)

    def read(self, line: int) -> Iterator[EventBatch]:
        """The events of a line, in the order of their adding, many at a time.

        Raises:
            CaptureError: the temporary file cannot be read.
        """
        waiting: list[EventBatch] = []
        for at, size in self._places.get(line, ()):
            try:
                self._file.seek(at)
                content = self._file.read(size)
            except OSError as error:
                raise CaptureError(f"a temporary file cannot be read: {error.strerror or error}; try again") from None
            waiting.append(pickle.loads(content))  # noqa: S301  our own file, which has no name
            if sum(map(len, waiting)) >= _BATCH:
                yield concatenate(waiting)
                waiting = []
        if waiting:
            yield concatenate(waiting)


__all__ = ["IN_MEMORY", "Spill"]
