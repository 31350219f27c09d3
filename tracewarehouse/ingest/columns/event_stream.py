"""Cuts a line's batches into chunks that can be sorted and nested separately, so no line is held in memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, StatColumn, StatKind, concatenate

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
