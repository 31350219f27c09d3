"""Reads the traces of PyTorch's profiler (Kineto): JSON, plain or gzipped, of NVIDIA and AMD GPUs.

Each GPU is a plane with a line for each stream, a line of its steps and a line of what the host launched. A step is the
time of the kernels that were launched under its mark (`launches.py`); the mark itself is an event of its thread. What
ran without a launch in the file belongs to no step.

Events keep the arguments in `SHAPE` and `MESSAGE`, their correlation, bytes and sequence number; how a kernel is called
for, by which operator with which inputs in which module, is told by its event metadata, which makes the instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from tracewarehouse.ingest.columns.profiler_names import (
    CPU_PLANE,
    GRAPH_LAUNCH,
    PROFILE_START,
    PROFILE_STOP,
    RANK,
    STREAM_PREFIX,
    TASK_PLANE,
    WORLD_SIZE,
)
from tracewarehouse.ingest.columns.records import (
    EventBatch,
    EventMetadata,
    Int64,
    Line,
    Plane,
    Stat,
    StatColumn,
    StatKind,
    Trace,
)
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.processes.pool import Processes
from tracewarehouse.ingest.readers.chrome.document import NO_JSON, NOTHING, Document
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.kineto.devices import Gpu, GpuPlanes, device_facts
from tracewarehouse.ingest.readers.kineto.events import Event, Family, LineKey, Table, decode_events
from tracewarehouse.ingest.readers.kineto.links import link
from tracewarehouse.ingest.readers.kineto.ranks import only_process_group, rank_in_name
from tracewarehouse.ingest.readers.launches import integer_stat

_FROM_1970_US = 10**15
"""Microseconds above which the times of a trace that states no base count from 1970."""
_BATCH = 1 << 16
_PART = 4 << 20
"""Bytes of events that a process reads at once, if several read a trace."""


class _Members(msgspec.Struct, gc=False, rename="camel"):
    """The members that are read; versions and settings have names of their own."""

    trace_events: msgspec.Raw = NOTHING
    base_time_nanoseconds: msgspec.Raw = NOTHING
    device_properties: msgspec.Raw = NOTHING
    distributed_info: msgspec.Raw = NOTHING
    hip_runtime_version: msgspec.Raw = msgspec.field(default=NOTHING, name="hip_runtime_version")
    roctracer_version: msgspec.Raw = msgspec.field(default=NOTHING, name="roctracer_version")


_members = msgspec.json.Decoder(_Members).decode


class KinetoTrace(Trace):
    """One Kineto trace: the events of one process, and of the GPUs that it used.

    Attributes:
        rank: the rank of the process; None if the trace does not tell.
        world_size: number of ranks; None likewise.
        distributed: the member distributedInfo.

    Args:
        file: the file.
        processes: those that read a large trace together.
        chunk: bytes that are parsed at once; None for the usual number.

    Raises:
        CaptureError: the file is not readable.
        MalformedError: it is not a Kineto trace, or ends too early.
    """

    format = "kineto"

    def __init__(self, file: CaptureFile, processes: Processes | None = None, chunk: int | None = None) -> None:
        self._file = file
        self.size = file.size
        table = self._table = Table(file.size)
        try:
            document = Document(file, chunk, decode_events)
            for events in document.pieces():
                table.add(events)
                if processes:
                    self._join_parts(document, chunk, processes)
            members: _Members = document.members(_members)
        except MalformedError as error:
            raise MalformedError(f"{file.path}: {error}") from None
        except NO_JSON as error:
            found = "values nested too deeply" if isinstance(error, RecursionError) else error
            raise MalformedError(
                f"{file.path}: no Kineto trace: looked for events with numbers and lists as arguments, found {found}"
            ) from None
        table.finish()
        if not len(table.family):
            raise MalformedError(f"{file.path}: a Kineto trace without events; nothing was profiled, record it again")
        stated = _read(members.distributed_info)
        self.distributed: dict[str, Any] = stated if isinstance(stated, dict) else {}
        self.rank, self.world_size = _count(self.distributed.get("rank")), _count(self.distributed.get("world_size"))
        if self.rank is None:
            self.rank = rank_in_name(file.path.name)
        self._is_rocm = bool(members.hip_runtime_version or members.roctracer_version)
        properties = _read(members.device_properties)
        self._properties = [p for p in properties if isinstance(p, dict)] if isinstance(properties, list) else []
        zero_ps = table.shift_to_start()
        self._keys, self._names = [LineKey(*key) for key in table.lines], list(table.names)
        self._order = np.argsort(table.line, kind="stable").astype(np.int32)
        self._edges = np.append(0, np.cumsum(np.bincount(table.line, minlength=len(self._keys))))
        self._links = link(table)
        self._gpus = GpuPlanes(table, self._links, self._names, only_process_group(self.distributed))
        self._of_plane: dict[str, Gpu] = {}
        self.planes = [*self._make_planes(), *self._task_plane(bytes(members.base_time_nanoseconds), zero_ps)]
        self.findings = list(self._flags())
        self.warnings = [f"{count} {what}" for what, count in sorted(table.counted.items()) if count]
        launched = self._links.launch[self._links.launch >= 0]
        if by_id := int((table.family[launched] == Family.OPERATOR).sum()):
            self.warnings.append(
                f"{by_id} kernels, copies and sets lack their call: it counts from its operator's start"
            )
        if not document.is_ended:
            self.warnings.append("the array of events has no end; the trace may be truncated")

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield the events of a line, in file order."""
        gpu = self._of_plane.get(plane.name)
        if gpu and line.name in gpu.made:
            yield gpu.made[line.name]
            return
        for low in range(line.start, line.end, _BATCH):
            rows = self._order[low : min(low + _BATCH, line.end)].astype(np.int64)
            if gpu:
                yield self._gpus.batch(plane, rows)
            else:
                metadata = self._host_metadata[self._table.name[rows]]
                yield EventBatch(metadata, self._table.start[rows], self._table.duration[rows], self._host_stats(rows))

    def _join_parts(self, document: Document[Event], chunk: int | None, processes: Processes) -> None:
        """Add what processes read together, up to the last events, or to those that only one can read."""
        if (origin_us := self._table.origin_us) is None:
            return
        parts = document.parts(_PART)
        work = processes.start(read_part, [(self._file, chunk, part, origin_us) for part in parts])
        with closing(work.in_order()) as tables:
            for (_, end), part in zip(parts, tables, strict=True):
                if part is None:
                    return
                self._table.join(part)
                document.low = end

    def _flags(self) -> Iterator[tuple[str, str]]:
        """Yield a flag if some work of the devices has no launch in the file, and one if replays have no work."""
        table, links = self._table, self._links
        time, is_lacking = np.maximum(table.duration[links.rows], 0), links.launch < 0
        if is_lacking.any():
            share = int(time[is_lacking].sum()) / max(int(time.sum()), 1)
            what = f"{is_lacking.sum()} of {len(time)} kernels, copies and sets have no launch in the file"
            yield "unlinked_ops", f"{what}, {share:.0%} of their time"
        replays = np.array([bool(GRAPH_LAUNCH.search(n)) for n in self._names] or [False], bool)[table.name]
        replays = np.flatnonzero(replays & (table.family == Family.LAUNCH) & (table.link > 0))
        latest = table.start[links.launch[~is_lacking]].max(initial=-1)  # what was launched later, the end may have cut
        lost = int((~np.isin(table.link[replays], table.link[links.rows]) & (table.start[replays] < latest)).sum())
        if lost:
            yield "missing_ops", f"{lost} of {len(replays)} launches of graphs have no kernels in the file"

    def _make_planes(self) -> list[Plane]:
        table = self._table
        devices: dict[Any, list[int]] = {}
        notes: dict[Any, list[int]] = {}
        threads: list[int] = []
        for code, key in enumerate(self._keys):
            if key.is_device:
                devices.setdefault(key.process, []).append(code)
        for code, key in enumerate(self._keys):
            if key.is_device:
                continue
            rows = self._order[self._edges[code] : self._edges[code + 1]]
            if key.process in devices and (table.family[rows] == Family.ON_STREAM).all():
                notes.setdefault(key.process, []).append(code)
            else:
                threads.append(code)
        planes = []
        for place, device in enumerate(sorted(devices, key=lambda d: (isinstance(d, str), d or 0))):
            ordinal = device if isinstance(device, int) and 0 <= device < 1 << 16 and not self._is_rocm else place
            facts = list(device_facts(device, self._properties, is_rocm=self._is_rocm))
            job = (RANK, self.rank), (WORLD_SIZE, self.world_size)
            facts += [Stat(name, StatKind.INT64, value) for name, value in job if value is not None]
            lines = [self._line(code, STREAM_PREFIX) for code in devices[device]]
            lines += [self._line(code, "Annotations #") for code in notes.get(device, ())]
            streams, others = np.array(devices[device]), np.array(notes.get(device, ()), np.int64)
            gpu = self._gpus.make(ordinal, facts, lines, streams, others)
            self._of_plane[gpu.plane.name] = gpu
            planes.append(gpu.plane)
        return [*planes, self._host_plane(threads)]

    def _line(self, code: int, prefix: str) -> Line:
        number = self._keys[code].number
        start, end = int(self._edges[code]), int(self._edges[code + 1])
        is_id = isinstance(number, int) and -(1 << 63) <= number < 1 << 63
        return Line(f"{prefix}{number}", number if is_id else -1 - code, start=start, end=end)

    def _host_plane(self, threads: Sequence[int]) -> Plane:
        table, plane = self._table, Plane(CPU_PLANE)
        for code in threads:
            line = self._line(code, "")
            line.name = table.thread_names.get(self._keys[code][1:]) or f"thread {self._keys[code].number}"
            plane.lines.append(line)
        used = np.unique(table.name[np.isin(table.line, threads)])
        plane.event_metadata = [EventMetadata(self._names[i]) for i in used.tolist()]
        self._host_metadata = np.full(len(self._names), -1, np.int32)
        self._host_metadata[used] = np.arange(len(used), dtype=np.int32)
        return plane

    @cached_property
    def _dispatches(self) -> tuple[Int64, Int64]:
        """Rows of the calls that begin an execution, ascending, and the ordinals of the devices."""
        found = sorted((row, gpu.plane.plane_id) for gpu in self._of_plane.values() for row in gpu.dispatched)
        columns = np.array(found, np.int64).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    @cached_property
    def _marks(self) -> tuple[Int64, Int64]:
        """Rows of the marks of steps, ascending, and the numbers of the steps."""
        order = np.argsort(self._gpus.mark_rows)
        return self._gpus.mark_rows[order], self._gpus.marks.numbers[order]

    def _host_stats(self, rows: Int64) -> list[StatColumn]:
        """Return the stats of host events: of launches and of marks of steps."""
        calls = np.flatnonzero((self._table.family[rows] == Family.LAUNCH) & (self._table.link[rows] > 0))
        stats = [integer_stat("correlation", calls, self._table.link[rows[calls]]), *self._table.number_stats(rows)]
        for (known, values), name in ((self._marks, "step_num"), (self._dispatches, "device_ordinal")):
            at = np.flatnonzero(np.isin(rows, known))
            stats.append(integer_stat(name, at, values[known.searchsorted(rows[at])]))
            if name == "device_ordinal":
                stats.append(integer_stat("run_id", at, rows[at]))
        return [s for s in stats if len(s.rows)]

    def _task_plane(self, base: bytes, zero_ps: int) -> Iterator[Plane]:
        """Yield the plane that says when the profile was taken, if the trace tells."""
        base_ns = int(base) if base.isdigit() and len(base) < 20 else 0
        if not base_ns and (self._table.origin_us or 0) < _FROM_1970_US:
            return
        start = base_ns + (self._table.origin_us or 0) * 1000 + zero_ps // 1000
        if not 0 < start < 1 << 62:
            return
        stats = [Stat(PROFILE_START, StatKind.UINT64, start)]
        if base_ns:
            stats.append(Stat("base_time_ns", StatKind.UINT64, base_ns))
        if self._table.span:
            stats.append(Stat(PROFILE_STOP, StatKind.UINT64, start + max(self._table.span[1] // 1000, 0)))
        yield Plane(TASK_PLANE, stats=tuple(stats))


open_file = KinetoTrace


def read_part(_: None, task: tuple[CaptureFile, int | None, tuple[int, int], int]) -> Table | None:
    """Return the events in a part of a file, times since an origin; None if it is no part, or holds what is refused."""
    file, chunk, part, origin_us = task
    table, document = Table(part[1] - part[0], origin_us), Document(file, chunk, decode_events, part)
    try:
        for events in document.pieces():
            table.add(events)
    except (MalformedError, *NO_JSON):
        return None
    table.finish()
    return table if document.low == part[1] else None


def _read(member: msgspec.Raw) -> Any:
    return msgspec.json.decode(member) if member else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None
