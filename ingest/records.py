"""The columnar records that every reader gives, whatever the capture's format.

A trace is one file of one host: planes (a device, or the host's threads), each with lines (streams of
events) and event metadata (one row per distinct event name). Events never become Python objects: a line
is read as a sequence of batches of numpy columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
UInt64 = npt.NDArray[np.uint64]
UInt8 = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]


class StatKind(IntEnum):
    """Type of a stat; the numbers are the field numbers of XStat."""

    DOUBLE = 2
    UINT64 = 3
    INT64 = 4
    STRING = 5
    BYTES = 6
    REF = 7


@dataclass(frozen=True)
class Stat:
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


@dataclass(frozen=True)
class EventMetadata:
    """What all events of one metadata id share: name, and on TPU the HLO facts as stats.

    Planes of one trace share the object where the content is the same, so its facts are found once.
    """

    name: str
    display_name: str = ""
    stats: tuple[Stat, ...] = ()


@dataclass(frozen=True)
class Line:
    """One stream of events: a device's 'XLA Ops', or a host thread. `start`, `end` locate it for its reader."""

    name: str
    line_id: int
    timestamp_ns: int = 0
    start: int = 0
    end: int = 0


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


class Trace(Protocol):
    """One file of one host, opened by a reader."""

    format: str
    """xplane or chrome."""
    hostnames: Sequence[str]
    errors: Sequence[str]
    warnings: Sequence[str]
    planes: Sequence[Plane]
    digest: str
    """SHA-256 of the uncompressed bytes, in hex."""
    size: int
    """Uncompressed bytes."""

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """The events of a line, in file order.

        Raises:
            MalformedError: the bytes are not events.
        """
        ...
