"""Turns the events of a Kineto trace into columns, piece by piece.

Times are decimal microseconds, read from their digits into integer picoseconds. Of the arguments only those are parsed
that are read, of many events at once: msgspec skips the others. Flows are not read, because kernels and launches share
a correlation.
Columns lie in a temporary file that is mapped, so that the system can take their memory back.
"""

from __future__ import annotations

import mmap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from itertools import compress, count, repeat
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.profiler_names import COLLECTIVE_MARK
from tracewarehouse.ingest.columns.records import Int8, Int32, Int64, StatColumn, StatKind
from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.readers.chrome.document import NOTHING, Id
from tracewarehouse.ingest.readers.chrome.values import PS_PER_US, exact_picoseconds, picoseconds
from tracewarehouse.ingest.readers.files import in_temporary_file, temporary_file
from tracewarehouse.ingest.readers.launches import integer_stat

_WIDEST = 1 << 62


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
_Value = tuple[_Number, ...] | int | float | str | None


class Args(msgspec.Struct, gc=False):
    """The arguments that are read; what is only passed on stays text."""

    correlation: _Number = None
    external: _Number = msgspec.field(default=None, name="External id")
    early_external: _Number = msgspec.field(default=None, name="external id")
    device: _Number = None
    stream: _Number = None
    bytes: _Number = None
    sequence: _Number = msgspec.field(default=None, name="Sequence number")
    forward_thread: _Number = msgspec.field(default=None, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    name: msgspec.Raw = NOTHING
    context: _Value = None
    grid: _Value = None
    block: _Value = None
    registers: _Value = msgspec.field(default=None, name="registers per thread")
    shared_memory: _Value = msgspec.field(default=None, name="shared memory")
    blocks_per_sm: _Value = msgspec.field(default=None, name="blocks per SM")
    warps_per_sm: _Value = msgspec.field(default=None, name="warps per SM")
    priority: _Value = None
    kind: _Value = None
    graph: _Value = msgspec.field(default=None, name="graph id")
    node: _Value = msgspec.field(default=None, name="graph node id")
    occupancy: msgspec.Raw = msgspec.field(default=NOTHING, name="est. achieved occupancy %")
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
    """One element of traceEvents; its arguments are parsed with those of its kind, if they are read."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: msgspec.Raw = NOTHING


decode_events = msgspec.json.Decoder(list[Event]).decode
_decode_args = msgspec.json.Decoder(list[Args | None]).decode
_WIRE = {f.name: f.encode_name for f in msgspec.structs.fields(Args)}
_SHAPE = ("context", "grid", "block", "registers", "shared_memory", "blocks_per_sm", "warps_per_sm", "priority", "kind",
          "graph", "node", "occupancy")  # fmt: skip
"""Arguments that say how a kernel was launched; the last one is kept as text."""
_MESSAGE = ("collective", "in_elements", "out_elements", "dtype", "group_size", "group", "group_description",
            "group_ranks", "in_splits", "out_splits", "source_rank", "target_rank")  # fmt: skip
"""Arguments that say what a collective moves, and among whom."""
SHAPE_NAMES = tuple(_WIRE[n] for n in _SHAPE)
MESSAGE_NAMES = tuple(_WIRE[n] for n in _MESSAGE)
DIMS, TYPES = _WIRE["dims"], _WIRE["types"]
_shape_of = attrgetter(*_SHAPE[:-1])
_message_of = attrgetter(*_MESSAGE)
_phase_of: Callable[[Event], str] = attrgetter("ph")
_category_of: Callable[[Event], str] = attrgetter("cat")
_name_of: Callable[[Event], str] = attrgetter("name")
_process_of, _thread_of = attrgetter("pid"), attrgetter("tid")
_NO_ARGS = Args()


_COLUMNS = [np.dtype(kind) for kind in (np.int64, np.int64, np.int64, np.int64, np.int32, np.int32, np.int32, np.int8)]
"""The types of start, duration, link, external, name, line, detail and family, the widest first."""
_SHORTEST = len('{"ph":"X","ts":1}')


def _numbered(*first: Any) -> defaultdict[Any, int]:
    """Return a mapping that numbers its keys in the order in which they are asked for."""
    numbers: defaultdict[Any, int] = defaultdict(count().__next__)
    for key in first:
        numbers[key]
    return numbers


class LineKey(NamedTuple):
    """A thread of a process, or a stream of a device."""

    is_device: bool
    process: Any
    """Process id, or number of the device as the profiler has it."""
    number: Any
    """Thread id, or number of the stream."""


class Table:
    """The events of a trace by column, in file order; arrays of shape (n,), once `finish` has been called.

    Args:
        size: bytes of the trace, which bound the number of its events.
        origin_us: the time from which times count; None for that of the first event.

    Attributes:
        family: what the event is, a Family.
        name: number of its name in `names`.
        line: number of its line in `lines`.
        start: picoseconds since `origin_us`.
        duration: picoseconds.
        link: correlation of a launch and of a device's event, sequence number of an operator; 0 if unknown.
        detail: of an operator and a collective's mark the number of its inputs in `inputs`, of a device's event that of
            its launch in `shapes`; 0 for none.
        message: number in `messages` of what a collective moves, by row of its kernel or its call; others are absent.
        instance: sequence number of a collective, by row.
        external: number of the operator, also of that which launched a device's event; 0 if unknown.
        bytes: bytes of copies and sets, and of calls that state them, by row.
        forward: rows of operators of the backward pass, which name the forward pass by `link`.
    """

    def __init__(self, size: int, origin_us: int | None = None) -> None:
        self.names: defaultdict[str, int] = _numbered()
        self.lines: defaultdict[tuple[bool, Any, Any], int] = _numbered()
        self.inputs: defaultdict[tuple[bytes, bytes], int] = _numbered((b"", b""))
        self.shapes: defaultdict[tuple[Any, ...], int] = _numbered(())
        self.messages: defaultdict[tuple[bytes, ...], int] = _numbered((b"",) * len(_MESSAGE))
        self.message: dict[int, int] = {}
        self.instance: dict[int, bytes] = {}
        self.bytes: dict[int, int] = {}
        self.backward: list[int] = []
        self.thread_names: dict[tuple[Any, Any], str] = {}
        self.counted: Counter[str] = Counter()
        self.origin_us = origin_us
        self.span: tuple[int, int] | None = None
        """Start and end of the profiler's own window."""
        self._held: list[Event] = []
        """The first events, as long as all have a time of 0."""
        self._count = 0
        self._room = size // _SHORTEST // 8 * 8 + 8  # so that each column begins where its type may
        with in_temporary_file():
            self._file = temporary_file(self)

    def add(self, events: Sequence[Event]) -> None:
        """Add the events of a piece of the file."""
        phases = list(map(_phase_of, events))
        self._held += compress(events, map("X".__eq__, phases))
        self._name_threads([e for e in compress(events, map("M".__eq__, phases)) if e.name == "thread_name"])
        for ph in set(phases).intersection(_LACKING):
            self.counted[f"events of phase {ph}, left out"] += phases.count(ph)
        if self.origin_us is None:
            first = next((t for e in self._held if (t := exact_picoseconds(bytes(e.ts)))), None)
            self.origin_us = None if first is None else first // PS_PER_US
        if self._held and self.origin_us is not None:
            kept, self._held = self._held, []
            self._add_timed(kept, self.origin_us)

    def _add_timed(self, kept: Sequence[Event], origin_us: int) -> None:
        """Add events; a time of 0 is none where others are far from it."""
        start, is_timed = picoseconds([e.ts for e in kept], origin_us)
        duration, _ = picoseconds([e.dur for e in kept])
        if origin_us > 1:
            is_timed &= start != -origin_us * PS_PER_US
        if not is_timed.all():
            self.counted["events without a time, left out"] += int((~is_timed).sum())
            at = np.flatnonzero(is_timed).tolist()
            kept, start, duration = [kept[i] for i in at], start[is_timed], duration[is_timed]
        self._add(kept, start, duration)

    def _add(self, events: Sequence[Event], start: Int64, duration: Int64) -> None:
        n, categories = len(events), list(map(_category_of, events))
        codes = {c: FAMILIES.get(c, Family.OTHER) for c in set(categories)}
        family = np.fromiter(map(codes.__getitem__, categories), np.int8, n)
        keys: list[tuple[bool, Any, Any]] = list(zip(repeat(False), map(_process_of, events), map(_thread_of, events)))
        link, external = np.zeros((2, n), np.int64)
        detail, row = np.zeros(n, np.int32), self._count
        shown: dict[int, Args] = {}
        said: dict[int, Args] = {}

        at = np.flatnonzero(family <= Family.SET)
        args, work = _arguments(events, at), at.tolist()
        for i, a in zip(work, args, strict=True):
            e = events[i]
            keys[i] = True, e.pid if a.device is None else a.device, e.tid if a.stream is None else a.stream
        link[at], external[at] = _integers([a.correlation for a in args]), _integers(list(map(_external, args)))
        detail[at] = [self.shapes[*_shape_of(a), bytes(a.occupancy)] for a in args]
        self.bytes |= {row + i: _integer(a.bytes) for i, a in zip(work, args, strict=True) if a.bytes is not None}
        said |= {i: a for i, a in zip(work, args, strict=True) if a.collective}
        self.instance |= {row + i: bytes(a.instance) for i, a in said.items() if a.instance}

        at = np.flatnonzero(family == Family.LAUNCH)
        args = _arguments(events, at)
        link[at] = _integers([a.correlation for a in args])
        calls = zip(at.tolist(), args, strict=True)
        self.bytes |= {row + i: _integer(a.bytes) for i, a in calls if a.bytes is not None}

        at = np.flatnonzero(family == Family.OPERATOR)
        args, operators = _arguments(events, at), at.tolist()
        external[at] = _integers(list(map(_external, args)))
        link[at] = [0 if a.sequence is None else _integer(a.sequence) + 1 for a in args]
        for i, a in zip(operators, args, strict=True):
            if a.sequence is not None and a.forward_thread:
                self.backward.append(row + i)
            if a.dims:
                shown[i] = a
            if a.collective:
                said[i] = a

        marks = np.flatnonzero(family == Family.ANNOTATION).tolist()
        marks = [i for i in marks if COLLECTIVE_MARK.match(events[i].name)]
        shown |= {i: a for i, a in zip(marks, _arguments(events, marks), strict=True) if a.dims}
        for i in sorted(shown):  # numbers follow the file, wherever a piece of it ends
            detail[i] = self.inputs[bytes(shown[i].dims), bytes(shown[i].types)]
        for i in sorted(said):
            self.message[row + i] = self.messages[tuple(map(bytes, _message_of(said[i])))]
        if self.span is None and SPAN in codes:
            first = categories.index(SPAN)
            self.span = int(start[first]), int(start[first] + duration[first])
        name = np.fromiter(map(self.names.__getitem__, map(_name_of, events)), np.int32, n)
        line = np.fromiter(map(self.lines.__getitem__, keys), np.int32, n)
        self._put(start, duration, link, external, name, line, detail, family)

    def join(self, part: Table) -> None:
        """Add the events of the next part of the file, which have numbers of their own."""
        numbered = {
            name: np.array([getattr(self, name)[key] for key in getattr(part, name)], np.int32)
            for name in ("names", "lines", "inputs", "shapes", "messages")
        }
        row, of_device = self._count, part.family <= Family.SET
        detail = np.zeros(len(of_device), np.int32)
        detail[of_device] = numbered["shapes"][part.detail[of_device]]
        detail[~of_device] = numbered["inputs"][part.detail[~of_device]]
        self.message |= {row + r: int(numbered["messages"][m]) for r, m in part.message.items()}
        self.instance |= {row + r: number for r, number in part.instance.items()}
        self.bytes |= {row + r: size for r, size in part.bytes.items()}
        self.backward += [row + r for r in part.backward]
        self.thread_names |= part.thread_names
        self.counted += part.counted
        self.span = self.span or part.span
        columns = part.start, part.duration, part.link, part.external
        self._put(*columns, numbered["names"][part.name], numbered["lines"][part.line], detail, part.family)

    def __getstate__(self) -> dict[str, Any]:
        """Return what `join` needs, for another process; the keys without their numbers, which are in their order."""
        kept = {n: list(v) if isinstance(v, defaultdict) else v for n, v in self.__dict__.items()}
        return {n: v for n, v in kept.items() if n != "_file"}

    def _put(self, *columns: Sequence[int] | npt.NDArray[Any]) -> None:
        """Add columns behind the others, in the order of _COLUMNS."""
        bounds.check(len(self.lines), bounds.LINES, "threads", "a program")
        bounds.check(len(self.names), bounds.NAMES, "names", "events")
        with in_temporary_file():
            for values, dtype, place in zip(columns, _COLUMNS, self._places(), strict=True):
                self._file.seek(place + self._count * dtype.itemsize)
                self._file.write(np.asarray(values, dtype).data)
        self._count += len(columns[0])

    def finish(self) -> None:
        """Map the columns; nothing can be added afterwards."""
        if self._held:  # all times are 0
            self._add_timed(self._held, 0)
        columns: list[npt.NDArray[Any]] = [np.zeros(0, dtype) for dtype in _COLUMNS]
        if self._count:
            with in_temporary_file():
                self._file.flush()
                mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            places = zip(_COLUMNS, self._places(), strict=True)
            columns = [np.frombuffer(mapped, dtype, self._count, place) for dtype, place in places]
        self._file.close()
        self.start: Int64 = columns[0]
        self.duration: Int64 = columns[1]
        self.link: Int64 = columns[2]
        self.external: Int64 = columns[3]
        self.name: Int32 = columns[4]
        self.line: Int32 = columns[5]
        self.detail: Int32 = columns[6]
        self.family: Int8 = columns[7]

    def _places(self) -> list[int]:
        """Return where each column begins in the file, which has holes."""
        return [self._room * sum(dtype.itemsize for dtype in _COLUMNS[:column]) for column in range(len(_COLUMNS))]

    def end(self, rows: Int32 | Int64) -> Int64:
        """Return the ends of some rows, in picoseconds."""
        return self.start[rows] + self.duration[rows]

    def shift_to_start(self) -> int:
        """Let times count from the first event, and return its time before, in whole nanoseconds as picoseconds."""
        zero_ps = int(self.start.min()) // 1000 * 1000
        self.start = self.start - zero_ps
        if self.span:
            self.span = self.span[0] - zero_ps, self.span[1] - zero_ps
        return zero_ps

    def shape_stats(self, rows: Int64) -> list[StatColumn]:
        """Return the stats of events of a device: how each was launched, its bytes, and a collective's number."""
        stats: list[StatColumn] = []
        code = self.detail[rows]
        shapes = list(self.shapes)
        used = np.unique(code)
        for column, name in enumerate(SHAPE_NAMES):
            values = {c: shapes[c][column] for c in used.tolist() if c and shapes[c][column] not in (None, b"")}
            values = {c: msgspec.json.decode(v) if isinstance(v, bytes) else v for c, v in values.items()}
            stats.append(_column(name, code, values))
        return [*stats, *self.number_stats(rows)]

    def number_stats(self, rows: Int64) -> list[StatColumn]:
        """Return the stats that few events have: bytes of copies, sets and their calls, and a collective's number."""
        stats: list[StatColumn] = []
        for name, known in (("bytes", self.bytes), ("Seq", self.instance)):
            at = np.flatnonzero(np.isin(rows, np.fromiter(known, np.int64, len(known)))) if known else rows[:0]
            numbers = [_integer(text_of(v) if isinstance(v, bytes) else v) for v in map(known.get, rows[at].tolist())]
            stats.append(integer_stat(name, at, np.array(numbers, np.int64)))
        return stats

    def rows(self, *families: Family) -> Int64:
        """Return the rows of events of some families, ascending."""
        return np.flatnonzero(np.isin(self.family, [int(f) for f in families]))

    def _name_threads(self, events: Sequence[Event]) -> None:
        for e, args in zip(events, _arguments(events, range(len(events))), strict=True):
            if args.name:
                with suppress(msgspec.MsgspecError):
                    self.thread_names[e.pid, e.tid] = msgspec.json.decode(args.name, type=str)


def _arguments(events: Sequence[Event], at: Iterable[int]) -> list[Args]:
    """Return the arguments of events at some places; an event may have none."""
    texts = [events[i].args or b"null" for i in at]
    try:
        return [a or _NO_ARGS for a in _decode_args(b"[%b]" % b",".join(texts))]
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$[")
        raise MalformedError(
            "no Kineto trace: looked for events with numbers and lists as arguments, "
            f"found {shown(bytes(texts[int(place.split(']')[0])]).decode())}: {said}"
        ) from None


def _external(args: Args) -> _Number:
    return args.external if args.early_external is None else args.early_external


def _integers(values: Sequence[_Number]) -> Int64:
    """Return `_integer` of each value."""
    if None in values:
        values = [v or 0 for v in values]
    if set(map(type, values)) == {int}:
        with suppress(OverflowError):
            read = np.array(values, np.int64)
            return np.where((read > -_WIDEST) & (read < _WIDEST), read, 0)
    return np.array([_integer(v) for v in values], np.int64)


def _integer(value: _Number) -> int:
    """Return a whole number in 64 bits; 0 for anything else."""
    if type(value) is int:
        return value if -_WIDEST < value < _WIDEST else 0
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < _WIDEST else 0
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19 else 0


def _column(name: str, code: Int32, values: Mapping[int, Any]) -> StatColumn:
    """Return a stat by the number of each event's value: whole numbers, numbers, or texts."""
    at = np.flatnonzero(np.isin(code, list(values)))
    kinds = {type(v) for v in values.values()}
    texts: dict[bytes, int] = {}
    lookup = np.zeros(max(values, default=0) + 1, np.uint64)
    if kinds <= {int} and all(abs(v) < 1 << 63 for v in values.values()):
        kind, lookup = StatKind.INT64, lookup.view(np.int64)
        lookup[list(values)] = list(values.values())
    elif kinds <= {int, float}:
        kind, lookup = StatKind.DOUBLE, lookup.view(np.float64)
        lookup[list(values)] = list(values.values())
    else:
        kind = StatKind.STRING
        for c, value in values.items():
            lookup[c] = texts.setdefault(_text(value).encode(), len(texts))
    return StatColumn(name, at, np.full(len(at), int(kind), np.uint8), lookup.view(np.uint64)[code[at]], tuple(texts))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def text_of(value: bytes) -> str:
    """Return a JSON value as text: a string as it is, anything else as compact JSON."""
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    return msgspec.json.encode(msgspec.json.decode(value)).decode() if value[:1] in b"[{" else value.decode()
