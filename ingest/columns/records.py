"""The columnar records that every reader gives, whatever the capture's format.

A trace is one file of one host: planes (a device, or the host's threads), each with lines (streams of
events) and event metadata (one row per distinct event name). Events never become Python objects: a line
is read as a sequence of batches of numpy columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.spill import Spill

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]


class Columns:
    """Base of a dataclass of columns of one length."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """All parts as one."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))  # type: ignore[arg-type]


class StatKind(IntEnum):
    """Type of a stat; the numbers are the field numbers of XStat."""

    DOUBLE = 2
    UINT64 = 3
    INT64 = 4
    STRING = 5
    BYTES = 6
    REF = 7


class Stat(NamedTuple):
    """A stat of a plane or of event metadata: strings decoded, references resolved."""

    name: str
    kind: StatKind
    value: float | int | str | bytes


@dataclass(frozen=True)
class StatColumn:
    """The values of one stat name for some events of a batch.

    Attributes:
        name: the stat's name.
        rows: positions in the batch, ascending, shape (k,); a name given twice on one event repeats its row.
        kinds: StatKind per value, shape (k,).
        bits: shape (k,); a double's or integer's 64 bits, or for the other kinds an index into `texts`.
        texts: distinct string and bytes values, as bytes; references are resolved.
    """

    name: str
    rows: Int64
    kinds: UInt8
    bits: UInt64
    texts: Sequence[bytes] = ()


@dataclass(frozen=True)
class EventBatch:
    """Consecutive events of one line, in file order.

    Attributes:
        metadata: index into the plane's `event_metadata`, -1 where the id names none, shape (n,).
        start_ps: picoseconds since the trace's profile start, shape (n,).
        duration_ps: picoseconds, shape (n,).
        stats: per-event stats by name.
    """

    metadata: Int32
    start_ps: Int64
    duration_ps: Int64
    stats: Sequence[StatColumn] = ()

    def __len__(self) -> int:
        return len(self.metadata)


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """The facts that all events with one metadata id share: their name, and on TPU the HLO facts as stats.

    Planes of one trace share the object if its content is the same, so its facts are found once.
    """

    name: str
    display_name: str = ""
    stats: tuple[Stat, ...] = ()
    children: tuple[int, ...] = ()
    """Metadata ids, on the same plane, of what it is made of."""


@dataclass
class Line:
    """One stream of events: a device's 'XLA Ops', or a host thread. `start`, `end` locate it for its reader.

    Attributes:
        places: where its events are, once its reader has counted them.
        has_events: False where the reader knows that it has none.
        display_name, display_id, duration_ps: what writers put behind the events; known once those have been read.
    """

    name: str
    line_id: int
    timestamp_ns: int = 0
    start: int = 0
    end: int = 0
    has_events: bool = True
    display_name: str = ""
    display_id: int = 0
    duration_ps: int = 0
    places: object = None


@dataclass
class Plane:
    """A device, or a host's threads, or the capture's metadata."""

    name: str
    plane_id: int = 0
    stats: tuple[Stat, ...] = ()
    lines: list[Line] = field(default_factory=list)
    event_metadata: list[EventMetadata] = field(default_factory=list)
    metadata_ids: list[int] = field(default_factory=list)
    """The ids of `event_metadata`, where the format has ids."""
    stat_descriptions: list[tuple[int, str, str]] = field(default_factory=list)
    """Id, name and description of the stats that the capture describes."""


class Trace(Protocol):
    """One file of one host, opened by a reader."""

    @property
    def format(self) -> str:
        """The format: xplane or chrome."""
        ...

    @property
    def hostnames(self) -> Sequence[str]:
        """Hosts that the capture names; usually one."""
        ...

    @property
    def errors(self) -> Sequence[str]:
        """The errors that the profiler recorded."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """The warnings that the profiler recorded."""
        ...

    @property
    def foreign(self) -> str | None:
        """If a profiler other than XLA's wrote the file: its name, and what is not read of the file; else None."""
        ...

    @property
    def planes(self) -> Sequence[Plane]:
        """All planes, in file order."""
        ...

    @property
    def origin_ns(self) -> int | None:
        """Unix time that the trace's times count from, where it follows from the lines themselves."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        ...

    @property
    def size(self) -> int:
        """Uncompressed bytes."""
        ...

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order.

        Raises:
            MalformedError: the bytes are not events.
        """
        ...


@runtime_checkable
class DivisibleTrace(Trace, Protocol):
    """A trace whose lines lie in its file one after the other, so that processes can share them.

    Pickled, it has no planes: a process that has inherited the file reads lines of planes that it is given.
    """

    def count(self, plane: Plane, line: Line, aside: Spill) -> tuple[int, object]:
        """The number of events of a line, and where they are, for `Line.places`, most of that put aside.

        Raises:
            MalformedError: the bytes are not events.
            OSError: the disk is full.
        """
        ...


def concatenate(batches: Sequence[EventBatch]) -> EventBatch:
    """One batch of all events; stats of one name become one column."""
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
    """A stat as int64 per event and whether it is there; text that is an integer counts, as exporters write it."""
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
    """A text stat as a code per event, -1 where absent, and the distinct texts."""
    found = np.full(count, -1, np.int32)
    if column is None:
        return found, []
    is_text = column.kinds >= StatKind.STRING
    found[column.rows[is_text]] = column.bits[is_text].astype(np.int32)
    return found, [t.decode("utf-8", "replace") for t in column.texts]
