"""Keeps the places of a line's events in its file between counting and decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from tracewarehouse.ingest.columns.records import UInt8
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.readers.xplane.wire import PADDING, EventWindow, Others, Words


@dataclass
class EventPlaces:
    """The places of a line's events, most of them stored on disk.

    Attributes:
        aside: the bytes from each event to the next, by the position of their window in the file.
        windows: first byte and end of each window with events.
        others: see `wire.event_windows`.
        count: number of events.
    """

    aside: Spill
    windows: list[tuple[int, int]] = field(default_factory=list)
    others: Others = field(default_factory=dict)
    count: int = 0

    def put(self, windows: Iterable[EventWindow]) -> None:
        """Store the places of the events of these windows.

        Raises:
            OSError: the disk is full.
        """
        for window in windows:
            steps = np.diff(window.starts, prepend=0)
            self.aside.put(window.low, {"steps": steps.astype(np.min_scalar_type(int(steps.max())))})
            self.windows.append((window.low, window.high))
            self.count += len(steps)

    def read(self, read: Callable[[int, int, int], UInt8]) -> Iterator[EventWindow]:
        """Yield the windows again; see `wire.event_windows`."""
        with closing(self.aside):
            for low, high in self.windows:
                starts = self.aside.get(low, "steps").astype(np.int64)
                np.cumsum(starts, out=starts)
                yield EventWindow(Words.over(read(low, high, PADDING)), starts, low, high)
