"""Puts the ranges of a Chrome trace together in file order.

What comes out follows from the file alone, whatever ranges it was cut into and whoever read them: lines and event
metadata are in the order of their first event, and a line's events come piece by piece.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.records import EventBatch, EventMetadata, Int64, Stat
from tracewarehouse.ingest.readers.chrome.events import Id
from tracewarehouse.ingest.readers.chrome.gather import Gathered, Key, check_lines, distinct

_NUMBER = (1 << 32) - 1


class Joined:
    """What the ranges hold.

    Attributes:
        codes, process_names, thread_names, left_out, counted, has_replaced, end, mark: see `Gathered`.
        metadata: the event metadata of all lines.
        origin_us: whole microseconds that times count from.
    """

    def __init__(self, ranges: Iterable[Gathered]) -> None:
        self.codes: dict[Key, int] = {}
        self.process_names: dict[Id, str] = {}
        self.thread_names: dict[tuple[Id, Id], str] = {}
        self.left_out: Counter[str] = Counter()
        self.counted: Counter[str] = Counter()
        self.has_replaced = False
        self._ranges: list[Gathered] = []
        self._numbers: list[Int64] = []
        known: dict[EventMetadata, int] = {}
        places, used = [np.zeros((5, 0), np.int64)], [np.zeros(0, np.int64)]
        for i, gathered in enumerate(ranges):
            lines = np.array([self.codes.setdefault(key, len(self.codes)) for key in gathered.codes], np.int64)
            numbers = np.array([known.setdefault(_metadata(*c), len(known)) for c in gathered.metadata()], np.int64)
            places += [np.stack([lines[p[0]], np.full(p.shape[1], i), *p[1:]]) for p in gathered.places]
            used += [lines[u >> 32] << 32 | numbers[u & _NUMBER] for u in gathered.used]
            gathered.places, gathered.used, gathered.codes = [], [], {}
            self._ranges.append(gathered)
            self._numbers.append(numbers)
            self.process_names.update(gathered.process_names)
            self.thread_names.update(gathered.thread_names)
            check_lines(self.codes, self.process_names, self.thread_names)
            self.left_out.update(gathered.left_out)
            self.counted.update(gathered.counted)
            self.has_replaced |= gathered.has_replaced
        self.end, self.mark, self.origin_us = gathered.end, gathered.mark, gathered.origin_us or 0
        self.metadata = [*known]
        self._places = np.concatenate(places, axis=1)
        self._places = self._places[:, np.argsort(self._places[0], kind="stable")]
        self._used = distinct(np.concatenate(used))

    def used(self, codes: Iterable[int]) -> Int64:
        """Numbers of the metadata that events of some lines have, ascending."""
        borders = [self._used.searchsorted([code << 32, code + 1 << 32]) for code in codes]
        return distinct(np.concatenate([self._used[:0], *(self._used[a:z] & _NUMBER for a, z in borders)]))

    def places(self, code: int) -> Int64:
        """Where the events of a line are."""
        a, z = self._places[0].searchsorted([code, code + 1])
        return self._places[1:, a:z].T

    def batches(self, code: int) -> Iterator[EventBatch]:
        """The events of a line, with numbers of `metadata`."""
        for i, piece, low, high in self.places(code).tolist():
            batch = self._ranges[i].batch(piece, low, high)
            yield replace(batch, metadata=self._numbers[i][batch.metadata].astype(np.int32))


def _metadata(name: str, display_name: str, stats: tuple[Any, ...]) -> EventMetadata:
    return EventMetadata(name, display_name, tuple(map(Stat._make, stats)))
