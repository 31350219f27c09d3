"""Cuts, joins and reads batches of events, so that no line is held in memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import EventBatch, Int32, Int64, Line, Plane, StatColumn, StatKind, Trace

CHUNK = 1 << 16
_TAIL = 1 << 10
"""Events at the end of a batch that are searched first for the last cut; nearly all batches have it there."""


def chunks(batches: Iterable[EventBatch], *, is_nested: bool = True) -> Iterator[tuple[int, EventBatch]]:
    """Yield chunks of about `CHUNK` events, each with the position of its first event on the line.

    A chunk ends where all later events start later, so that sorted chunks make a sorted line. If the line's events
    nest, all events before have also ended there. Both hold as far as the events read so far show. A line without such
    a place is one chunk.
    """
    pending: list[EventBatch] = []
    first = held = 0
    size = CHUNK
    for batch in batches:
        pending.append(batch)
        held += len(batch)
        if held >= size:
            whole = concatenate(pending)
            cut = _last_break(whole, is_nested)
            if cut:
                yield first, part(whole, 0, cut)
                first += cut
            pending = [part(whole, cut, len(whole))] if cut < len(whole) else []
            held = len(whole) - cut
            size = max(CHUNK, 2 * held)  # an event spans everything: look again when there is twice as much
    if held:
        yield first, concatenate(pending)


def part(batch: EventBatch, low: int, high: int) -> EventBatch:
    """Return the events low to high of a batch."""
    stats = []
    for s in batch.stats:
        a, z = s.rows.searchsorted([low, high])
        if z > a:
            stats.append(
                _without_spare_texts(StatColumn(s.name, s.rows[a:z] - low, s.kinds[a:z], s.bits[a:z], s.texts))
            )
    return EventBatch(batch.metadata[low:high], batch.start_ps[low:high], batch.duration_ps[low:high], stats)


def _without_spare_texts(column: StatColumn) -> StatColumn:
    """Return the column without the texts of other events, if these are many, so that the rest does not keep them."""
    if len(column.texts) <= 2 * len(column.rows):
        return column
    bits = column.bits.copy()
    is_text = column.kinds >= StatKind.STRING
    used, codes = np.unique(bits[is_text], return_inverse=True)
    bits[is_text] = codes
    return StatColumn(column.name, column.rows, column.kinds, bits, [column.texts[i] for i in used.tolist()])


def _last_break(batch: EventBatch, is_nested: bool) -> int:
    """Return the last position at which all events before it have begun, and ended, when the rest starts; 0 if none."""
    over = batch.start_ps + (np.maximum(batch.duration_ps, 1) if is_nested else 1)
    for low in (max(0, len(batch) - _TAIL), 0):
        latest = np.maximum.accumulate(np.append(over[: low + 1].max(), over[low + 1 :]))
        begins = np.minimum.accumulate(batch.start_ps[low:][::-1])[::-1]
        breaks = np.flatnonzero(latest[:-1] <= begins[1:])
        if len(breaks):
            return low + int(breaks[-1]) + 1
    return 0


def concatenate(batches: Sequence[EventBatch]) -> EventBatch:
    """Join batches to one; stats of one name become one column."""
    if len(batches) == 1:
        return batches[0]
    columns: dict[str, list[StatColumn]] = {}
    first = 0
    for batch in batches:
        for s in batch.stats:
            columns.setdefault(s.name, []).append(StatColumn(s.name, s.rows + first, s.kinds, s.bits, s.texts))
        first += len(batch)
    return EventBatch(
        np.concatenate([b.metadata for b in batches]) if batches else np.zeros(0, np.int32),
        np.concatenate([b.start_ps for b in batches]) if batches else np.zeros(0, np.int64),
        np.concatenate([b.duration_ps for b in batches]) if batches else np.zeros(0, np.int64),
        [_joined(parts) for parts in columns.values()],
    )


def _joined(parts: list[StatColumn]) -> StatColumn:
    codes: dict[bytes, int] = {}
    bits = []
    for p in parts:
        values = p.bits
        if p.texts:
            to_shared = np.array([codes.setdefault(t, len(codes)) for t in p.texts], np.uint64)
            is_text = p.kinds >= StatKind.STRING
            values = values.copy()
            values[is_text] = to_shared[values[is_text]]
        bits.append(values)
    return StatColumn(
        parts[0].name,
        np.concatenate([p.rows for p in parts]),
        np.concatenate([p.kinds for p in parts]),
        np.concatenate(bits),
        list(codes),
    )


def integers(column: StatColumn | None, count: int) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Return a stat as int64 per event, and whether it is there; integers as text count, as exporters write them."""
    if column is None:
        return np.zeros(count, np.int64), np.zeros(count, bool)
    is_int = (column.kinds == StatKind.INT64) | (column.kinds == StatKind.UINT64)
    if len(column.rows) == count and is_int.all() and (column.rows[1:] > column.rows[:-1]).all():
        return column.bits.view(np.int64), is_int  # every event has one
    values, known = np.zeros(count, np.int64), np.zeros(count, bool)
    rows = column.rows[is_int]
    values[rows], known[rows] = column.bits[is_int].view(np.int64), True
    for code, text in enumerate(column.texts):
        if text.removeprefix(b"-").isdigit() and len(text) < 19:
            rows = column.rows[(column.bits == code) & (column.kinds >= StatKind.STRING)]
            values[rows], known[rows] = int(text), True
    return values, known


def codes(column: StatColumn | None, count: int) -> tuple[Int32, list[str]]:
    """Return a text stat as a code per event, -1 if absent, and the distinct texts."""
    codes = np.full(count, -1, np.int32)
    if column is None:
        return codes, []
    is_text = column.kinds >= StatKind.STRING
    codes[column.rows[is_text]] = column.bits[is_text].astype(np.int32)
    return codes, [t.decode("utf-8", "replace") for t in column.texts]


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
