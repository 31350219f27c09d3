"""Gathers the extent of a line in time while its events are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracewarehouse.ingest.columns.records import EventBatch, Line, Plane, Trace


@dataclass
class LineExtent:
    """The time that a line's events span on the run's clock (None without any), and the line's fields after them."""

    count: int = 0
    first_ps: int | None = None
    last_ps: int | None = None
    negative: int = 0
    display_name: str = ""
    display_id: int = 0
    duration_ps: int = 0

    def add(self, batch: EventBatch, clock_offset_ps: int = 0) -> None:
        """Add events, whose times are still on their host's clock."""
        if not len(batch):
            return
        first = int(batch.start_ps.min()) + clock_offset_ps
        last = int((batch.start_ps + batch.duration_ps).max()) + clock_offset_ps
        self.count += len(batch)
        self.first_ps = first if self.first_ps is None else min(first, self.first_ps)
        self.last_ps = last if self.last_ps is None else max(last, self.last_ps)
        if int(batch.duration_ps.min()) < 0:
            self.negative += int((batch.duration_ps < 0).sum())

    def describe(self, line: Line) -> None:
        """Take the facts that the line states about itself, once its events have been read."""
        self.display_name, self.display_id, self.duration_ps = line.display_name, line.display_id, line.duration_ps

    def watch(self, trace: Trace, plane: Plane, line: Line, clock_offset_ps: int) -> Iterator[EventBatch]:
        """Yield the batches of a line, and add each as it passes."""
        for batch in trace.batches(plane, line):
            self.add(batch, clock_offset_ps)
            yield batch
        self.describe(line)
