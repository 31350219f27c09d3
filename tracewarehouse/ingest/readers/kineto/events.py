"""Turns the events of a Kineto trace into columns, piece by piece.

Times are decimal microseconds, read from their digits into integer picoseconds. Of the arguments only those are parsed
that are read: msgspec skips the others. Flows are not read, because kernels and launches share a correlation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.profiler_names import COLLECTIVE_MARK
from tracewarehouse.ingest.columns.records import Int8, Int32, Int64, StatColumn, StatKind
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.document import NOTHING, Id
from tracewarehouse.ingest.readers.chrome.values import PS_PER_US, exact_picoseconds, picoseconds

MOST_LINES = 1 << 17
"""Most threads and streams of a trace."""


class Family(IntEnum):
    """What an event is, by its category."""

    KERNEL = 0
    COPY = 1
    SET = 2
    LAUNCH = 3
    """A call of the CUDA or HIP runtime or driver."""
    OPERATOR = 4
    ANNOTATION = 5
    FRAME = 6
    """A call of a Python function, or of a module."""
    ON_STREAM = 7
    """Says something of a stream, but no work of the device: an annotation or a synchronisation."""
    OTHER = 8


FAMILIES = {
    "kernel": Family.KERNEL,
    "Kernel": Family.KERNEL,
    "gpu_memcpy": Family.COPY,
    "Memcpy": Family.COPY,
    "gpu_memset": Family.SET,
    "Memset": Family.SET,
    "cuda_runtime": Family.LAUNCH,
    "cuda_driver": Family.LAUNCH,
    "Runtime": Family.LAUNCH,
    "cpu_op": Family.OPERATOR,
    "Operator": Family.OPERATOR,
    "user_annotation": Family.ANNOTATION,
    "python_function": Family.FRAME,
    "gpu_user_annotation": Family.ON_STREAM,
    "cuda_sync": Family.ON_STREAM,
}
"""The family of each category; early versions have other names."""
_LACKING = "BECbe"
"""Phases of events with a duration or a value, which Kineto does not write."""
SPAN = "Trace"
"""Category of the event that is the profiler's own window."""

_Number = int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments that are read; lists and what is only passed on stay text."""

    correlation: _Number = None
    device: _Number = None
    stream: _Number = None
    bytes: _Number = None
    sequence: _Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: _Number = msgspec.field(default=None, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    name: msgspec.Raw = NOTHING
    context: msgspec.Raw = NOTHING
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    registers: msgspec.Raw = msgspec.field(default=NOTHING, name="registers per thread")
    shared_memory: msgspec.Raw = msgspec.field(default=NOTHING, name="shared memory")
    blocks_per_sm: msgspec.Raw = msgspec.field(default=NOTHING, name="blocks per SM")
    warps_per_sm: msgspec.Raw = msgspec.field(default=NOTHING, name="warps per SM")
    occupancy: msgspec.Raw = msgspec.field(default=NOTHING, name="est. achieved occupancy %")
    priority: msgspec.Raw = NOTHING
    kind: msgspec.Raw = NOTHING
    graph: msgspec.Raw = msgspec.field(default=NOTHING, name="graph id")
    node: msgspec.Raw = msgspec.field(default=NOTHING, name="graph node id")
    collective: msgspec.Raw = msgspec.field(default=NOTHING, name="Collective name")
    in_elements: msgspec.Raw = msgspec.field(default=NOTHING, name="In msg nelems")
    out_elements: msgspec.Raw = msgspec.field(default=NOTHING, name="Out msg nelems")
    dtype: msgspec.Raw = NOTHING
    group_size: msgspec.Raw = msgspec.field(default=NOTHING, name="Group size")
    group: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Name")
    group_description: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Description")
    group_ranks: msgspec.Raw = msgspec.field(default=NOTHING, name="Process Group Ranks")
    in_splits: msgspec.Raw = msgspec.field(default=NOTHING, name="In split size")
    out_splits: msgspec.Raw = msgspec.field(default=NOTHING, name="Out split size")
    source_rank: msgspec.Raw = msgspec.field(default=NOTHING, name="Src Rank")
    target_rank: msgspec.Raw = msgspec.field(default=NOTHING, name="Dst Rank")
    instance: msgspec.Raw = msgspec.field(default=NOTHING, name="Seq")


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None


decode_events = msgspec.json.Decoder(list[Event]).decode
_WIRE = {f.name: f.encode_name for f in msgspec.structs.fields(Args)}
SHAPE = ("context", "grid", "block", "registers", "shared_memory", "blocks_per_sm", "warps_per_sm", "occupancy",
         "priority", "kind", "graph", "node")  # fmt: skip
"""Arguments that say how a kernel was launched."""
MESSAGE = ("collective", "in_elements", "out_elements", "dtype", "group_size", "group", "group_description",
           "group_ranks", "in_splits", "out_splits", "source_rank", "target_rank")  # fmt: skip
"""Arguments that say what a collective moves, and among whom."""
SHAPE_NAMES = tuple(_WIRE[n] for n in SHAPE)
MESSAGE_NAMES = tuple(_WIRE[n] for n in MESSAGE)
DIMS, TYPES = _WIRE["dims"], _WIRE["types"]


class LineKey(NamedTuple):
    """A thread of a process, or a stream of a device."""

    is_device: bool
    process: Any
    """Process id, or number of the device as the profiler has it."""
    number: Any
    """Thread id, or number of the stream."""


class Table:
    """The events of a trace by column, in file order; arrays of shape (n,).

    Attributes:
        family: what the event is, a Family.
        name: number of its name in `names`.
        line: number of its line in `lines`.
        start: picoseconds since `origin_us`.
        duration: picoseconds.
        link: correlation of a launch and of a device's event, sequence number of an operator; 0 if unknown.
        detail: of an operator and a collective's mark the number of its inputs in `inputs`, of a device's event that of
            its launch in `shapes`; 0 for none.
        message: number in `messages` of what a collective moves, by row; rows without one are absent.
        instance: sequence number of a collective, by row.
        bytes: bytes of copies and sets, by row.
        forward: rows of operators of the backward pass, which name the forward pass by `link`.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.lines: dict[LineKey, int] = {}
        self.inputs: dict[tuple[bytes, bytes], int] = {(b"", b""): 0}
        self.shapes: dict[tuple[bytes, ...], int] = {(b"",) * len(SHAPE): 0}
        self.messages: dict[tuple[bytes, ...], int] = {(b"",) * len(MESSAGE): 0}
        self.message: dict[int, int] = {}
        self.instance: dict[int, bytes] = {}
        self.bytes: dict[int, int] = {}
        self.backward: list[int] = []
        self.process_names: dict[Any, str] = {}
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.counted: Counter[str] = Counter()
        self.origin_us: int | None = None
        self.span: tuple[int, int] | None = None
        """Start and end of the profiler's own window."""
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []
        self._count = 0

    def add(self, events: Sequence[Event]) -> None:
        """Add the events of a piece of the file."""
        kept: list[Event] = []
        for e in events:
            if e.ph == "X":
                kept.append(e)
            elif e.ph == "M":
                self._name(e)
            elif e.ph in _LACKING:
                self.counted[f"events of phase {e.ph}, left out"] += 1
        if not kept:
            return
        if self.origin_us is None:
            first = next((t for e in kept if (t := exact_picoseconds(bytes(e.ts)))), 0)
            self.origin_us = first // PS_PER_US
        start, is_timed = picoseconds([e.ts for e in kept], self.origin_us)
        duration, _ = picoseconds([e.dur for e in kept])
        is_timed &= start != -self.origin_us * PS_PER_US if self.origin_us > 1 else True  # a zero is no time
        if not is_timed.all():
            self.counted["events without a time, left out"] += int((~is_timed).sum())
            at = np.flatnonzero(is_timed).tolist()
            kept, start, duration = [kept[i] for i in at], start[is_timed], duration[is_timed]
        names, other = self.names, Family.OTHER
        family = [FAMILIES.get(e.cat, other) for e in kept]
        name = [names.setdefault(e.name, len(names)) for e in kept]
        line, link, detail = [0] * len(kept), [0] * len(kept), [0] * len(kept)
        lines, first_row = self.lines, self._count
        for i, (e, f) in enumerate(zip(kept, family, strict=True)):
            args = e.args
            if f <= Family.SET:
                line[i] = self._device_event(first_row + i, e, args or Args(), link, detail, i)
                continue
            line[i] = lines.setdefault(LineKey(False, e.pid, e.tid), len(lines))
            if args is None:
                continue
            if f == Family.LAUNCH:
                link[i] = _integer(args.correlation)
            elif f == Family.OPERATOR:
                link[i] = _integer(args.sequence) + 1 if args.sequence is not None else 0
                if args.dims or args.types:
                    key = bytes(args.dims), bytes(args.types)
                    detail[i] = self.inputs.setdefault(key, len(self.inputs))
                if args.forward_thread and args.sequence is not None:
                    self.backward.append(first_row + i)
            elif f == Family.ANNOTATION and args.dims and COLLECTIVE_MARK.match(e.name):
                detail[i] = self.inputs.setdefault((bytes(args.dims), bytes(args.types)), len(self.inputs))
        if len(lines) > MOST_LINES:
            raise MalformedError(
                f"not a profiler's trace: looked for the threads of a program, found more than {MOST_LINES:,} threads"
            )
        for i, e in enumerate(kept):
            if e.cat == SPAN and self.span is None:
                self.span = int(start[i]), int(start[i] + duration[i])
        self._parts.append((
            np.array(family, np.int8), np.array(name, np.int32), np.array(line, np.int32), start, duration,
            np.array(link, np.int64), np.array(detail, np.int32),
        ))  # fmt: skip
        self._count += len(kept)

    def finish(self) -> None:
        """Join the pieces; nothing can be added afterwards."""
        empty = [np.zeros(0, t) for t in (np.int8, np.int32, np.int32, np.int64, np.int64, np.int64, np.int32)]
        columns = [np.concatenate(c) for c in zip(*self._parts, strict=True)] if self._parts else empty
        self._parts.clear()
        self.family: Int8
        self.name: Int32
        self.line: Int32
        self.start: Int64
        self.duration: Int64
        self.link: Int64
        self.detail: Int32
        self.family, self.name, self.line, self.start, self.duration, self.link, self.detail = columns
        self.end: Int64 = self.start + self.duration

    def shift_to_start(self) -> int:
        """Let times count from the first event, and return its time before, in whole nanoseconds as picoseconds."""
        zero_ps = int(self.start.min()) // 1000 * 1000
        self.start -= zero_ps
        self.end -= zero_ps
        if self.span:
            self.span = self.span[0] - zero_ps, self.span[1] - zero_ps
        return zero_ps

    def shape_stats(self, rows: Int64) -> list[StatColumn]:
        """Return the stats of events of a device: how each was launched, its bytes, and a collective's number."""
        stats = []
        code = self.detail[rows]
        shapes = list(self.shapes)
        used = np.unique(code)
        for column, name in enumerate(SHAPE_NAMES):
            texts = {c: text_of(shapes[c][column]).encode() for c in used.tolist() if shapes[c][column]}
            stats.append(_texts(name, code, texts))
        for name, known in (("bytes", self.bytes), ("Seq", self.instance)):
            at = np.flatnonzero(np.isin(rows, np.fromiter(known, np.int64, len(known)))) if known else rows[:0]
            values = [_integer(text_of(v) if isinstance(v, bytes) else v) for v in map(known.get, rows[at].tolist())]
            kinds = np.full(len(at), int(StatKind.INT64), np.uint8)
            stats.append(StatColumn(name, at, kinds, np.array(values, np.int64).view(np.uint64)))
        return stats

    def rows(self, *families: Family) -> Int64:
        """Return the rows of events of some families, ascending."""
        return np.flatnonzero(np.isin(self.family, [int(f) for f in families]))

    def _device_event(self, row: int, e: Event, args: Args, link: list[int], detail: list[int], i: int) -> int:
        link[i] = _integer(args.correlation)
        shape = tuple([bytes(getattr(args, n)) for n in SHAPE])
        detail[i] = self.shapes.setdefault(shape, len(self.shapes))
        if args.bytes is not None:
            self.bytes[row] = _integer(args.bytes)
        if args.collective:
            message = tuple([bytes(getattr(args, n)) for n in MESSAGE])
            self.message[row] = self.messages.setdefault(message, len(self.messages))
            if args.instance:
                self.instance[row] = bytes(args.instance)
        device = e.pid if args.device is None else args.device
        stream = e.tid if args.stream is None else args.stream
        return self.lines.setdefault(LineKey(True, device, stream), len(self.lines))

    def _name(self, e: Event) -> None:
        if e.args is None or not e.args.name or e.name not in ("process_name", "thread_name"):
            return
        try:
            name = msgspec.json.decode(e.args.name, type=str)
        except msgspec.MsgspecError:
            return
        if e.name == "process_name":
            self.process_names[e.pid] = name
        else:
            self.thread_names[e.pid, e.tid] = name


def _integer(value: _Number) -> int:
    """Return a whole number in 64 bits; 0 for anything else."""
    if isinstance(value, int):
        return value if abs(value) < 1 << 62 else 0
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1 << 62 else 0
    return int(value) if value and value.isascii() and value.isdigit() and len(value) < 19 else 0


def _texts(name: str, code: Int32, texts: dict[int, bytes]) -> StatColumn:
    """Return a stat by the number of each event's text; those that are whole numbers become such."""
    at = np.flatnonzero(np.isin(code, list(texts)))
    is_number = all(t.isdigit() and len(t) < 19 for t in texts.values())
    distinct = list(dict.fromkeys(texts.values()))
    of_code = {c: int(t) if is_number else distinct.index(t) for c, t in texts.items()}
    lookup = np.zeros(max(of_code, default=0) + 1, np.uint64)
    lookup[list(of_code)] = list(of_code.values())
    kind = StatKind.INT64 if is_number else StatKind.STRING
    kinds = np.full(len(at), int(kind), np.uint8)
    return StatColumn(name, at, kinds, lookup[code[at]], () if is_number else tuple(distinct))


def text_of(value: bytes) -> str:
    """Return a JSON value as text: a string as it is, anything else as compact JSON."""
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    return msgspec.json.encode(msgspec.json.decode(value)).decode() if value[:1] in b"[{" else value.decode()
