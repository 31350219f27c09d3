"""Writes the packets of a Perfetto trace: tracks, slices on tracks where they nest, flows and counters.

Field numbers are those of perfetto_trace.proto, https://perfetto.dev/docs/reference/trace-packet-proto. All packets
belong to one sequence, so that each text is in the file once.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracewarehouse.exports.perfetto.wire import (
    FIXED64,
    LENGTH,
    VARINT,
    Encoded,
    Int64,
    fixed64s,
    joined,
    joined_bytes,
    key,
    messages,
    repeated,
    varints,
)
from tracewarehouse.ingest.protobuf import Field, message_classes, varint

AT_ONCE = 1 << 17
"""Packets whose bytes are in memory at once."""
_AT_LEAST = 1 << 20
"""Bytes of packets from which on a compressed packet is worth it."""

_MESSAGES = {
    "Trace": [Field(1, "packet", "TracePacket", is_repeated=True)],
    "TracePacket": [
        Field(10, "trusted_packet_sequence_id", "int32"),
        Field(12, "interned_data", "InternedData"),
        Field(13, "sequence_flags", "int32"),
        Field(60, "track_descriptor", "TrackDescriptor"),
    ],
    "InternedData": [
        Field(2, "event_names", "Interned", is_repeated=True),
        Field(3, "debug_annotation_names", "Interned", is_repeated=True),
        Field(29, "debug_annotation_string_values", "Interned", is_repeated=True),
    ],
    "Interned": [Field(1, "iid", "uint64"), Field(2, "text", "bytes")],
    "TrackDescriptor": [
        Field(1, "uuid", "uint64"),
        Field(2, "name", "bytes"),
        Field(3, "process", "ProcessDescriptor"),
        Field(5, "parent_uuid", "uint64"),
        Field(8, "counter", "CounterDescriptor"),
        Field(11, "child_ordering", "int32"),
        Field(12, "sibling_order_rank", "int32"),
        Field(14, "description", "bytes"),
    ],
    "ProcessDescriptor": [Field(1, "pid", "int32"), Field(6, "process_name", "bytes")],
    "CounterDescriptor": [Field(6, "unit_name", "bytes"), Field(7, "y_axis_share_key", "bytes")],
}
_CLASSES = message_classes("tracewarehouse.perfetto", _MESSAGES)
_SEQUENCE = 1
_STATE_CLEARED, _NEEDS_STATE = 1, 2
_EXPLICIT = 3
"""Child tracks are in the order of sibling_order_rank."""
_SLICE_BEGIN, _SLICE_END, _INSTANT, _COUNTER = 1, 2, 3, 4

_PACKET = 1
_COMPRESSED = key(50, LENGTH)
_TIMESTAMP = key(8, VARINT)
_OF_SEQUENCE = key(10, VARINT) + varint(_SEQUENCE) + key(13, VARINT) + varint(_NEEDS_STATE)
_TRACK_EVENT = 11
_TYPE, _NAME, _TRACK = key(9, VARINT), key(10, VARINT), key(11, VARINT)
_ANNOTATION, _ANNOTATION_NAME, _INT_VALUE, _STRING_VALUE = 4, key(1, VARINT), key(4, VARINT), key(17, VARINT)
_COUNTER_VALUE, _DOUBLE_COUNTER_VALUE = key(30, VARINT), key(44, FIXED64)
_FLOW = key(47, FIXED64)


@contextmanager
def compressing(write: Callable[[bytes], object]) -> Iterator[Callable[[bytes | memoryview], object]]:
    """Take whole packets, and write them as the compressed packets that Perfetto's own tools know.

    The file is as small as a gzipped one, and still consists of packets.
    """
    waiting = bytearray()

    def compressed() -> None:
        content = zlib.compress(waiting, 4)
        inner = _COMPRESSED + varint(len(content)) + content
        write(key(_PACKET, LENGTH) + varint(len(inner)) + inner)
        waiting.clear()

    def add(packets: bytes | memoryview) -> None:
        waiting.extend(packets)
        if len(waiting) >= _AT_LEAST:
            compressed()

    yield add
    if waiting:
        compressed()


class PacketWriter:
    """Writes one trace to `write`, which takes bytes."""

    def __init__(self, write: Callable[[bytes | memoryview], object]) -> None:
        self.origin_ps = 0
        """Time of the run that is 0 in the trace; nothing that is written may be before it."""
        self._write = write
        self._is_first = True
        self._last_track = 0
        self._children: dict[int, int] = {}
        self._texts: dict[str, dict[str, int]] = {}

    def track(self, name: str, parent: int = 0, *, description: str = "") -> int:
        """Write a track and return its number.

        Tracks of one parent are shown in the order of the numbers before their names, as in `2. TPUs`, and then in the
        order in which they are written; those of one name are shown as one.
        """
        return self._track(name, parent, description=description.encode())

    def counter_track(self, name: str, parent: int, unit: str, scale: str) -> int:
        """Write a track of a counter and return its number; counters with the same `scale` share their y axis."""
        counter = _CLASSES["CounterDescriptor"](unit_name=unit.encode(), y_axis_share_key=scale.encode())
        return self._track(name, parent, counter=counter)

    def _track(self, name: str, parent: int, **more: Any) -> int:
        self._last_track += 1
        numbered = re.match(r"(\d{1,3})\. ", name)
        rank = self._children[parent] = self._children.get(parent, 1000) + 1
        described = _CLASSES["TrackDescriptor"](
            uuid=self._last_track,
            name=_encoded(name),
            child_ordering=_EXPLICIT,
            sibling_order_rank=int(numbered[1]) if numbered else rank,
            **more,
        )
        if parent:
            described.parent_uuid = parent
        else:
            described.process.pid, described.process.process_name = self._last_track, _encoded(name)
        self._packet(track_descriptor=described)
        return self._last_track

    def _packet(self, **content: Any) -> None:
        flags = _NEEDS_STATE | (_STATE_CLEARED if self._is_first else 0)
        self._is_first = False
        packet = _CLASSES["TracePacket"](trusted_packet_sequence_id=_SEQUENCE, sequence_flags=flags, **content)
        self._write(_CLASSES["Trace"](packet=[packet]).SerializeToString())

    def names(self, texts: Sequence[str]) -> Int64:
        """Numbers of names of slices, shape (n,)."""
        return np.array(self._numbers("event_names", texts), np.int64)

    def _numbers(self, kind: str, texts: Sequence[str | None]) -> list[int]:
        known = self._texts.setdefault(kind, {})
        new = [t for t in dict.fromkeys(texts) if t is not None and t not in known]
        for first in range(0, len(new), 1000):
            entries = []
            for text in new[first : first + 1000]:
                known[text] = len(known) + 1
                entries.append(_CLASSES["Interned"](iid=known[text], text=_encoded(text)))
            self._packet(interned_data=_CLASSES["InternedData"](**{kind: entries}))
        return [0 if t is None else known[t] for t in texts]

    def texts(self, name: str, texts: Sequence[str | None]) -> Encoded:
        """An argument with a text for each of n slices; None for a slice without the argument."""
        numbers = np.array(self._numbers("debug_annotation_string_values", texts), np.int64)
        return self._arguments(name, _STRING_VALUE, numbers, numbers == 0)

    def integers(self, name: str, values: Int64, is_absent: npt.NDArray[np.bool_] | None = None) -> Encoded:
        """An argument with an integer for each of n slices."""
        return self._arguments(name, _INT_VALUE, values, is_absent)

    def _arguments(self, name: str, prefix: bytes, values: Int64, is_absent: npt.NDArray[np.bool_] | None) -> Encoded:
        [number] = self._numbers("debug_annotation_names", [name])
        return messages(_ANNOTATION, varints(_ANNOTATION_NAME + varint(number) + prefix, values, is_absent))

    def slices(
        self,
        name: str,
        parent: int,
        start_ps: Int64,
        duration_ps: Int64,
        names: Int64,
        arguments: Callable[[Int64], Sequence[Encoded]],
        flows: Int64 | None = None,
    ) -> None:
        """Write slices as a track, or as several of the same name where they overlap without nesting.

        A slice without length is an instant. Times are cut to nanoseconds, so each slice also has the exact ones as
        arguments `start_ps` and `duration_ps`.

        Args:
            parent: number of its parent.
            start_ps: starts, shape (n,).
            names: numbers of the slices' names.
            arguments: gives the arguments of the slices with these indices.
            flows: the flow that each slice is part of, 0 for none: an arrow leads from each slice to the next one.
        """
        end_ps = start_ps + duration_ps
        order = np.lexsort((-end_ps, start_ps))
        lanes = nesting_lanes(start_ps[order], end_ps[order])
        for lane in range(int(lanes.max(initial=-1)) + 1):
            members = order[lanes == lane]
            n = len(members)
            track = self.track(name, parent)
            slice_end = _TYPE + varint(_SLICE_END) + _TRACK + varint(track)
            sequence = begins_and_ends(start_ps[members], end_ps[members])
            for first in range(0, len(sequence), AT_ONCE):
                some = sequence[first : first + AT_ONCE]
                is_end = some >= n
                begun, ended = members[some[~is_end]], members[some[is_end] - n]
                starts, durations = start_ps[begun], duration_ps[begun]
                kinds = np.where(durations == 0, _INSTANT, _SLICE_BEGIN)
                fields = [
                    varints(_TRACK + varint(track) + _TYPE, kinds),
                    varints(_NAME, names[begun]),
                    *arguments(begun),
                    self.integers("start_ps", starts),
                    self.integers("duration_ps", durations),
                ]
                if flows is not None:
                    fields.append(fixed64s(_FLOW, flows[begun], flows[begun] == 0))
                begins = self._events(starts, joined(*fields))
                ends = self._events(end_ps[ended], repeated(slice_end, len(ended)))
                place = np.empty(len(some), np.int64)
                place[~is_end] = np.arange(len(begun))
                place[is_end] = len(begun) + np.arange(len(ended))
                self._write(joined_bytes(pa.concat_arrays([begins, ends]).take(pa.array(place))))

    def samples(self, track: int, time_ps: Int64, values: npt.NDArray[Any]) -> None:
        """Write the samples of a counter: integers or doubles, shape (n,)."""
        kind = _TYPE + varint(_COUNTER) + _TRACK + varint(track)
        for first in range(0, len(time_ps), AT_ONCE):
            some = values[first : first + AT_ONCE]
            if some.dtype.kind == "f":
                fields = fixed64s(kind + _DOUBLE_COUNTER_VALUE, some)
            else:
                fields = varints(kind + _COUNTER_VALUE, some)
            self._write(joined_bytes(self._events(time_ps[first : first + AT_ONCE], fields)))

    def _events(self, time_ps: Int64, event: Encoded) -> Encoded:
        time_ns = (time_ps - self.origin_ps) // 1000
        return messages(_PACKET, joined(varints(_OF_SEQUENCE + _TIMESTAMP, time_ns), messages(_TRACK_EVENT, event)))


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def nesting_lanes(start: Int64, end: Int64) -> Int64:
    """The lane of each slice, shape (n,): the first on which it lies within, before or after all others.

    Args:
        start: starts, in ascending order; of slices that start together, longer ones first.
        end: ends, exclusive.
    """
    if _nests(start, end):
        return np.zeros(len(start), np.int64)
    lanes = np.empty(len(start), np.int64)
    open_ends: list[list[int]] = []
    for index, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        lane = 0
        while lane < len(open_ends) and not _fits(open_ends[lane], begin, stop):
            lane += 1
        if lane == len(open_ends):
            open_ends.append([])
        open_ends[lane].append(stop)
        lanes[index] = lane
    return lanes


def begins_and_ends(start: Int64, end: Int64) -> Int64:
    """The order in which slices of one lane begin and end, as numbers: i where slice i begins, n + i where it ends.

    At one time, ends come before begins, inner ends before outer ones and outer begins before inner ones. A slice
    without length has no end.

    Args:
        start: starts, shape (n,), ordered as for `nesting_lanes`.
        end: ends, exclusive.
    """
    n = len(start)
    index = np.arange(n)
    lasting = np.flatnonzero(end > start)
    times = np.concatenate([start, end[lasting]])
    is_begin = np.concatenate([np.ones(n, bool), np.zeros(len(lasting), bool)])
    order = np.lexsort((np.concatenate([index, -lasting]), is_begin, times))
    return np.concatenate([index, n + lasting])[order]


def _fits(open_ends: list[int], begin: int, stop: int) -> bool:
    """Whether a slice lies within the last open one of a lane, or none is open; closes those that have ended."""
    while open_ends and open_ends[-1] <= begin:
        open_ends.pop()
    return not open_ends or stop <= open_ends[-1]


def _nests(start: Int64, end: Int64) -> bool:
    """Whether no slice ends between the begin and the end of another that began after it."""
    if (start[1:] >= end[:-1]).all():
        return True
    n = len(start)
    order = begins_and_ends(start, end)
    is_lasting = (end > start)[order % n]
    order = order[is_lasting]
    is_begin = order < n
    depth = np.cumsum(np.where(is_begin, 1, -1))
    begin_depth = np.empty(n, np.int64)
    begin_depth[order[is_begin]] = depth[is_begin]
    return bool((begin_depth[order[~is_begin] - n] == depth[~is_begin] + 1).all())
