"""Cuts a line's batches into chunks that can be sorted and nested separately, so no line is in memory whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, StatColumn, StatKind, concatenate

CHUNK = 1 << 16
_TAIL = 1 << 10
"""Events at the end of a batch among which nearly all have their last break, so that it is looked for there first."""


def chunks(batches: Iterable[EventBatch], *, is_nested: bool = True) -> Iterator[tuple[int, EventBatch]]:
    """Chunks of about `CHUNK` events, each with the position of its first event on the line.

    A chunk ends where all later events start later, so that chunks in order of start make a line in order of start,
    and where every event before has ended, unless the line's events do not nest. Both as far as the events read by
    then show; a line without such a place is one chunk.
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
            size = max(CHUNK, 2 * held)  # an event that spans everything: look again when there is twice as much
    if held:
        yield first, concatenate(pending)


def part(batch: EventBatch, low: int, high: int) -> EventBatch:
    """Events low to high of a batch."""
    stats = []
    for s in batch.stats:
        a, z = s.rows.searchsorted([low, high])
        if z > a:
            stats.append(
                _without_spare_texts(StatColumn(s.name, s.rows[a:z] - low, s.kinds[a:z], s.bits[a:z], s.texts))
            )
    return EventBatch(batch.metadata[low:high], batch.start_ps[low:high], batch.duration_ps[low:high], stats)


def _without_spare_texts(column: StatColumn) -> StatColumn:
    """The column without texts of other events, where they are many: a rest would carry them through its line."""
    if len(column.texts) <= 2 * len(column.rows):
        return column
    bits = column.bits.copy()
    is_text = column.kinds >= StatKind.STRING
    used, codes = np.unique(bits[is_text], return_inverse=True)
    bits[is_text] = codes
    return StatColumn(column.name, column.rows, column.kinds, bits, [column.texts[i] for i in used.tolist()])


def _last_break(batch: EventBatch, is_nested: bool) -> int:
    """The last position before which all has begun, and ended, when the rest starts; 0 for none."""
    over = batch.start_ps + (np.maximum(batch.duration_ps, 1) if is_nested else 1)
    for low in (max(0, len(batch) - _TAIL), 0):
        latest = np.maximum.accumulate(np.append(over[: low + 1].max(), over[low + 1 :]))
        begins = np.minimum.accumulate(batch.start_ps[low:][::-1])[::-1]
        breaks = np.flatnonzero(latest[:-1] <= begins[1:])
        if len(breaks):
            return low + int(breaks[-1]) + 1
    return 0
