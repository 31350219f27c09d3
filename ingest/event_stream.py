"""Cuts a line's batches into chunks that can be ordered and nested on their own, so that no line is held whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ingest.records import EventBatch, StatColumn, concatenate

CHUNK = 1 << 17


def chunks(batches: Iterable[EventBatch], size: int = CHUNK) -> Iterator[tuple[int, EventBatch]]:
    """Chunks of about `size` events, each with the position of its first event on the line.

    A chunk ends where every event before has ended and no later event starts earlier, as far as the events read
    by then show; a line without such a place is one chunk.
    """
    pending: list[EventBatch] = []
    first = held = 0
    for batch in batches:
        pending.append(batch)
        held += len(batch)
        if held >= size:
            whole = concatenate(pending)
            cut = _last_break(whole)
            if cut:
                yield first, part(whole, 0, cut)
                first += cut
            pending = [part(whole, cut, len(whole))]
            held = len(whole) - cut
            size = max(size, 2 * held)  # an event that spans everything: look again when there is twice as much
    if held:
        yield first, concatenate(pending)


def part(batch: EventBatch, low: int, high: int) -> EventBatch:
    """Events low to high of a batch."""
    stats = []
    for s in batch.stats:
        a, z = s.rows.searchsorted([low, high])
        if z > a:
            stats.append(StatColumn(s.name, s.rows[a:z] - low, s.kinds[a:z], s.bits[a:z], s.texts))
    return EventBatch(batch.metadata[low:high], batch.start_ps[low:high], batch.duration_ps[low:high], stats)


def _last_break(batch: EventBatch) -> int:
    """The last position before which all has ended when the rest starts; 0 for none."""
    ended = np.maximum.accumulate(batch.start_ps + batch.duration_ps)
    begins = np.minimum.accumulate(batch.start_ps[::-1])[::-1]
    breaks = np.flatnonzero(ended[:-1] <= begins[1:])
    return int(breaks[-1]) + 1 if len(breaks) else 0
