"""Defines the columnar records that every reader returns, whatever the capture's format.

A trace is one file of one host: planes (a device, or the host's threads), each with lines (streams of
events) and event metadata (one row per distinct event name). Events never become Python objects: a line
is read as a sequence of batches of numpy columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]

OUTSIDE = "outside"
"""The phase of what runs before a device's first step or after its last."""
PHASES = ("prefill", "decode", "mixed", OUTSIDE)
"""The phases of inference; a batch that prefills and decodes is mixed. A column holds a phase as its index in this
tuple, -1 if unknown."""


class Columns:
    """Base of a dataclass of columns of one length."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all parts as one."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))  # type: ignore[arg-type]


class StatKind(IntEnum):
    """The type of a stat; its numbers are the field numbers of XStat."""

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
        rows: positions in the batch, ascending, shape (k,); if an event has a name twice, its row repeats.
        kinds: StatKind per value, shape (k,).
        bits: the 64 bits of a double or integer, otherwise an index into `texts`, shape (k,).
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
        metadata: index into the plane's `event_metadata`, -1 if the id names none, shape (n,).
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

    def moved(self, by_ps: int) -> EventBatch:
        """Return the events on another clock."""
        return EventBatch(self.metadata, self.start_ps + by_ps, self.duration_ps, self.stats)


@dataclass(frozen=True, slots=True)
class EventMetadata:
    """The facts that all events with one metadata id share: their name, and on TPU the HLO facts as stats.

    Planes of one trace share the object if its content is the same, so its facts are read once.
    """

    name: str
    display_name: str = ""
    stats: tuple[Stat, ...] = ()
    children: tuple[int, ...] = ()
    """Metadata ids of its children on the same plane."""


@dataclass
class Line:
    """One stream of events, such as a device's 'XLA Ops' or a host thread. `start` and `end` locate it for its reader.

    Attributes:
        has_events: False if the reader knows that it has none.
        display_name, display_id, duration_ps: fields that writers put after the events; known once those are read.
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


@dataclass
class Plane:
    """A device, or a host's threads, or the capture's metadata."""

    name: str
    plane_id: int = 0
    stats: tuple[Stat, ...] = ()
    lines: list[Line] = field(default_factory=list)
    event_metadata: list[EventMetadata] = field(default_factory=list)
    metadata_ids: list[int] = field(default_factory=list)
    """The ids of `event_metadata`, if the format has ids."""
    stat_descriptions: list[tuple[int, str, str]] = field(default_factory=list)
    """Id, name and description of the stats that the capture describes."""


class Trace(ABC):
    """One file of one host, opened by a reader.

    Attributes:
        format: name of the format.
        size: uncompressed bytes.
        planes: all planes, in file order.
        hostnames: hosts that the capture names; usually one.
        errors, warnings: what the profiler recorded.
        findings: quality flags that the reader can tell, each with a sentence.
        rank: the rank of the process that wrote the file, if it says so.
        origin_ns: the Unix time from which the trace's times count, if it follows from the lines themselves.
    """

    format: str
    size: int
    planes: Sequence[Plane]
    hostnames: Sequence[str] = ()
    errors: Sequence[str] = ()
    warnings: Sequence[str] = ()
    findings: Sequence[tuple[str, str]] = ()
    rank: int | None = None
    origin_ns: int | None = None

    @property
    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""

    @abstractmethod
    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield the events of a line, in file order."""


class DivisibleTrace(Trace):
    """A trace whose lines follow each other in its file, so that processes can share them.

    It is pickled without planes: a process that has inherited the file reads the lines of planes that it is given.
    """

    @abstractmethod
    def count(self, plane: Plane, line: Line) -> int:
        """Return the number of a line's events."""
