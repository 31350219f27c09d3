"""Reads a Perfetto trace with nothing but the wire format, and checks the rules that its slices must keep."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Value = int | float | str
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@dataclass
class Slice:
    """A slice or an instant, in nanoseconds."""

    name: str
    start: int
    end: int
    depth: int
    arguments: dict[str, Value]
    flows: list[int]


@dataclass
class Track:
    """A track with its slices in the order in which they begin, and the samples of a counter."""

    uuid: int
    name: str
    parent: int
    rank: int
    unit: str = ""
    slices: list[Slice] = field(default_factory=list)
    samples: list[tuple[int, int | float]] = field(default_factory=list)


@dataclass
class Trace:
    """All tracks by number."""

    tracks: dict[int, Track]

    def path(self, track: Track) -> str:
        """Names from the top to the track."""
        above = self.path(self.tracks[track.parent]) + " > " if track.parent else ""
        return above + track.name

    def slices(self, end_of_path: str) -> list[Slice]:
        """The slices of all tracks whose path ends so."""
        return [s for t in self.tracks.values() if self.path(t).endswith(end_of_path) for s in t.slices]

    def links(self) -> int:
        """Arrows: from each slice of a flow to the next one."""
        flows = [flow for track in self.tracks.values() for s in track.slices for flow in s.flows]
        return len(flows) - len(set(flows))


def read_trace(path: Path) -> Trace:
    """The trace; an AssertionError where a slice does not nest, a text is not known, or a packet is out of place."""
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    tracks: dict[int, Track] = {}
    texts: dict[int, dict[int, str]] = {2: {}, 3: {}, 29: {}}
    is_open: dict[int, list[Slice]] = {}
    last: dict[int, int] = {}
    for count, (number, raw) in enumerate(_packets(data)):
        assert number == 1
        assert isinstance(raw, bytes)
        packet = dict(wire_fields(raw))
        assert packet[10] == 1
        assert packet[13] == (3 if count == 0 else 2)
        for kind, entry in wire_fields(_bytes(packet.get(12, b""))):
            named = dict(wire_fields(_bytes(entry)))
            assert _integer(named[1]) not in texts[kind]
            texts[kind][_integer(named[1])] = _bytes(named[2]).decode()
        if 60 in packet:
            found = dict(wire_fields(_bytes(packet[60])))
            uuid, parent = _integer(found[1]), _integer(found.get(5, 0))
            assert uuid not in tracks
            assert found[11] == 3  # children are in the order of their ranks
            assert parent == 0 or parent in tracks
            counter = dict(wire_fields(_bytes(found.get(8, b""))))
            unit = _bytes(counter.get(6, b"")).decode()
            tracks[uuid] = Track(uuid, _bytes(found[2]).decode(), parent, _integer(found[12]), unit)
        if 11 in packet:
            event = list(wire_fields(_bytes(packet[11])))
            of_event = dict(event)
            time = _integer(packet.get(8, 0))
            track = tracks[_integer(of_event[11])]
            assert time >= last.get(track.uuid, 0)
            last[track.uuid] = time
            stack = is_open.setdefault(track.uuid, [])
            if of_event[9] in (BEGIN, INSTANT):
                arguments = dict(_argument(_bytes(a), texts) for n, a in event if n == 4)
                flows = [_integer(f) for n, f in event if n == 47]
                begun = Slice(texts[2][_integer(of_event[10])], time, time, len(stack), arguments, flows)
                track.slices.append(begun)
                if of_event[9] == BEGIN:
                    stack.append(begun)
            elif of_event[9] == END:
                stack.pop().end = time
            else:
                assert of_event[9] == COUNTER
                sample = of_event.get(30, of_event.get(44))
                assert isinstance(sample, int | float)
                track.samples.append((time, sample))
    assert not any(is_open.values())
    return Trace(tracks)


def _packets(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The packets, those in compressed ones too."""
    for number, raw in wire_fields(data):
        fields = list(wire_fields(_bytes(raw)))
        if [n for n, _ in fields] == [50]:
            yield from wire_fields(zlib.decompress(_bytes(fields[0][1])))
        else:
            yield number, raw


def _argument(raw: bytes, texts: dict[int, dict[int, str]]) -> tuple[str, Value]:
    content = dict(wire_fields(raw))
    name = texts[3][_integer(content[1])]
    if 4 in content:
        value = _integer(content[4])
        return name, value - (1 << 64) if value >> 63 else value
    return name, texts[29][_integer(content[17])]


def wire_fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Numbers and values of the fields of a message."""
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        match tag & 7:
            case 0:
                value, at = read_varint(data, at)
                yield tag >> 3, value
            case 1:
                kind = "<d" if tag >> 3 == 44 else "<Q"
                yield tag >> 3, struct.unpack_from(kind, data, at)[0]
                at += 8
            case 2:
                size, at = read_varint(data, at)
                assert at + size <= len(data)
                yield tag >> 3, data[at : at + size]
                at += size
            case other:
                raise AssertionError(f"wire type {other}")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _integer(value: int | float | bytes) -> int:
    assert isinstance(value, int)
    return value


def _bytes(value: int | float | bytes) -> bytes:
    assert isinstance(value, bytes)
    return value
