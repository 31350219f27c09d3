"""Reads a capture the plain way, one event at a time, with protobuf's own parser and Python's json.

This is slow, and separate from the other readers: the proof of a run from its capture's bytes must not share their
mistakes. They share only the file itself, uncompressed and digested.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tracewarehouse.ingest.columns.records import StatKind

PlainStat = tuple[str, StatKind, int | float | bytes]
"""Name, kind and value; text as bytes, references resolved."""
PlainEvent = tuple[int | None, int, int, list[PlainStat]]
"""Id of its metadata in the plane, start and duration in ps on the file's clock, and its own stats."""


@dataclass(frozen=True)
class PlainLine:
    """A line of a plane; `events` reads its events, in file order.

    `says` has display name, display id, timestamp and duration, if the format has them.
    """

    name: str
    line_id: int
    events: Callable[[], Iterator[PlainEvent]]
    says: tuple[str, int, int, int] | None = None


@dataclass(frozen=True)
class PlainMetadata:
    """Event metadata: its id, its content, and the ids of its children."""

    metadata_id: int
    name: str
    display_name: str
    stats: list[PlainStat]
    children: list[int]


@dataclass
class PlainPlane:
    """A plane: its stats and its lines; id, event metadata and described stats if the format has them."""

    name: str
    stats: list[PlainStat] = field(default_factory=list)
    lines: list[PlainLine] = field(default_factory=list)
    plane_id: int | None = None
    metadata: list[PlainMetadata] = field(default_factory=list)
    descriptions: list[tuple[int, str, str]] = field(default_factory=list)


def bits_of(value: float) -> int:
    """Return the 64 bits of a double."""
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
