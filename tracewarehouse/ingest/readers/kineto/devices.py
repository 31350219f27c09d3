"""Makes the plane of a GPU: its kernels' metadata, its steps, and what the host launched on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns.keys import Integers, packed
from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.profiler_names import (
    ARITHMETIC,
    ELEMENTWISE_OPERATORS,
    GPU_PREFIX,
    IN_F32,
    JOINS_PARTS,
    LAUNCH_EXECUTION,
    LAUNCH_LINE,
    LAUNCH_STEP,
    OPERATOR_SHARE,
    PRODUCT_OPERATORS,
    STEP_LINE,
    WRITING_OPERATORS,
    collective_kind,
)
from tracewarehouse.ingest.columns.records import (
    EventBatch,
    EventMetadata,
    Int8,
    Int32,
    Int64,
    Line,
    Plane,
    Stat,
    StatColumn,
    StatKind,
)
from tracewarehouse.ingest.readers.kineto.events import DIMS, MESSAGE_NAMES, TYPES, Family, Table, text_of
from tracewarehouse.ingest.readers.kineto.links import Links, coalesced_calls
from tracewarehouse.ingest.readers.launches import (
    Marks,
    executions,
    integer_stat,
    kernel_class,
    step_line,
    step_mark,
    steps_of_launches,
)

_FACTS = {
    "numSms": "core_count",
    "totalGlobalMem": "memory_size",
    "computeMajor": "compute_cap_major",
    "computeMinor": "compute_cap_minor",
}
"""Properties of a device, and the stats that hold them, under the names that XLA's profiler gives them."""

_CALLED, _COUNTS = "Collective name", ("In msg nelems", "Out msg nelems")


@dataclass
class Gpu:
    """The plane of a GPU, and the batches of the lines that the reader made for it.

    Attributes:
        made: batches by name of the line.
        dispatched: row of the call that began each execution.
    """

    plane: Plane
    made: dict[str, EventBatch] = field(default_factory=dict)
    dispatched: list[int] = field(default_factory=list)


class GpuPlanes:
    """Makes the planes of the GPUs of a trace.

    Args:
        table: the events.
        links: what launched those of devices.
        names: names by number.
        process_group: the job's only process group, under the names of a collective's arguments; empty if it has
            several.
    """

    def __init__(
        self, table: Table, links: Links, names: Sequence[str], process_group: Mapping[str, str] | None = None
    ) -> None:
        self._table, self._links, self._names = table, links, names
        self._process_group = dict(process_group or {})
        rows = table.rows(Family.ANNOTATION)
        is_mark = np.array([step_mark(n) is not None for n in names] or [False], bool)
        rows = rows[is_mark[table.name[rows]]]
        named = [names[i] for i in table.name[rows].tolist()]
        self.marks, kept = Marks.of(table.start[rows], table.end(rows), named)
        self.mark_rows: Int64 = rows[kept]
        """Rows of the marks in the table."""
        self._inside, self._owner = np.full((2, len(links.rows)), -1, np.int64)
        at = np.flatnonzero(links.launch >= 0)
        found = steps_of_launches(
            self.marks.start, self.marks.end, table.start[links.launch[at]], table.name[links.rows[at]].astype(np.int64)
        )
        self._inside[at], self._owner[at] = found.inside, found.owner
        self.metadata: Int32 = np.zeros(len(links.rows), np.int32)
        """Place in its plane's event metadata of each event of `Links.rows`."""
        self.execution: Int64 = np.full(len(links.rows), -1, np.int64)
        """Number of its execution on its device."""
        self._note_metadata: dict[str, tuple[Int64, int]] = {}

    def make(
        self, ordinal: int, facts: Sequence[Stat], lines: Sequence[Line], streams: Integers, notes: Integers
    ) -> Gpu:
        """Make the plane of a GPU.

        Args:
            ordinal: its number on the host.
            lines: the lines of its events.
            streams: numbers in the table of the lines of its streams.
            notes: the same of its other lines.
        """
        gpu = Gpu(Plane(f"{GPU_PREFIX}{ordinal}", ordinal, tuple(facts), list(lines)))
        at = np.flatnonzero(np.isin(self._table.line[self._links.rows], streams))
        metadata = gpu.plane.event_metadata
        metadata += self._kernels(at)
        used = np.unique(self._table.name[np.isin(self._table.line, notes)]).astype(np.int64)
        self._note_metadata[gpu.plane.name] = used, len(metadata)
        metadata += [EventMetadata(self._names[i]) for i in used.tolist()]
        rows, launch = self._links.rows[at], self._links.launch[at]
        start, end = self._table.start[rows], self._table.end(rows)
        ran = executions(
            self.marks,
            self._owner[at],
            launch,
            np.where(launch >= 0, self._table.start[launch], 0),
            self._links.is_graph[at],
            self._table.name[rows],
            start,
            end,
        )
        self.execution[at], gpu.dispatched = ran.of_event, ran.launch.tolist()
        for name, line in ((STEP_LINE, step_line(self.marks, self._inside[at], start, end)), (LAUNCH_LINE, ran.line)):
            if len(line.events):
                places = line.events.metadata + np.int32(len(metadata))
                gpu.made[name] = replace(line.events, metadata=places)
                metadata += [EventMetadata(n) for n in line.names]
                gpu.plane.lines.append(Line(name, -len(gpu.made)))
        return gpu

    def batch(self, plane: Plane, rows: Int64) -> EventBatch:
        """Return the events of some rows on one line of a plane."""
        table = self._table
        start, duration = table.start[rows], table.duration[rows]
        if len(rows) and table.family[rows[0]] > Family.SET:
            used, first = self._note_metadata[plane.name]
            return EventBatch((used.searchsorted(table.name[rows]) + first).astype(np.int32), start, duration)
        place = self._links.rows.searchsorted(rows)
        return EventBatch(self.metadata[place], start, duration, self._stats(rows, place))

    def _stats(self, rows: Int64, place: Int64) -> list[StatColumn]:
        table, links, every = self._table, self._links, np.arange(len(rows))
        stats = []
        if len(self.mark_rows):
            stats.append(integer_stat(LAUNCH_STEP, every, self.marks.step_numbers(self._owner[place])))
        stats.append(integer_stat(LAUNCH_EXECUTION, every, self.execution[place]))
        known = np.flatnonzero(table.link[rows] > 0)
        stats.append(integer_stat("correlation", known, table.link[rows[known]]))
        if len(unlinked := np.flatnonzero(links.launch[place] < 0)):
            stats.append(integer_stat("is_unlinked", unlinked, np.ones(len(unlinked), np.int64)))
        stats += table.shape_stats(rows)
        return [s for s in stats if len(s.rows)]

    def _kernels(self, at: Int64) -> list[EventMetadata]:
        """Make the metadata of events of a device: one for what a kernel does at one place for the same inputs."""
        table, links = self._table, self._links
        rows = links.rows[at]
        message = np.zeros(len(rows), np.int64)
        having = np.flatnonzero(np.isin(rows, np.fromiter(table.message, np.int64, len(table.message))))
        message[having] = [table.message[row] for row in rows[having].tolist()]
        operator = links.operator[at]
        inputs = np.where(operator >= 0, table.detail[operator], 0)
        mark = links.annotation[at]
        alone = np.flatnonzero((message == 0) & (mark >= 0))
        together = self._together(mark[alone])
        message[alone] = [together.get(row, 0) for row in mark[alone].tolist()]
        marked = np.where((mark >= 0) & (message == 0), table.detail[mark], 0)  # arguments say more than shapes
        mark_name = np.where(mark >= 0, table.name[mark], -1)
        share = self._shares(at, inputs)
        columns: list[Integers] = [table.name[rows], links.op_name[at], inputs, message, mark_name, marked, share]
        _, first, which = np.unique(packed(columns), return_index=True, return_inverse=True)
        self.metadata[at] = which
        of_inputs, messages = list(table.inputs), list(table.messages)
        made = []
        for name, path, given, told, noted, shown, shared in zip(*(c[first].tolist() for c in columns), strict=True):
            said = {"tf_op": links.op_names[path], "annotation": self._names[noted] if noted >= 0 else ""}
            said |= {n: text_of(v) for n, v in zip((DIMS, TYPES), of_inputs[given], strict=True) if v}
            said[OPERATOR_SHARE] = ("", "all", "none")[shared]
            said[ARITHMETIC] = "f32" if given and IN_F32.search(self._names[name]) else ""
            marks = "annotation dims", "annotation types"
            said |= {n: text_of(v) for n, v in zip(marks, of_inputs[shown], strict=True) if v}
            moved = {n: text_of(v) for n, v in zip(MESSAGE_NAMES, messages[told], strict=True) if v}
            if _CALLED not in moved and collective_kind(self._names[name], "", frozenset()):
                said |= self._process_group
            said |= moved
            stats = tuple(Stat(n, StatKind.STRING, value) for n, value in said.items() if value)
            made.append(EventMetadata(self._names[name], "", stats))
        return made

    def _together(self, marks: Int64) -> dict[int, int]:
        """Return by row of a coalesced mark the number of the message of what its calls move together.

        A kernel that sends and receives moves what it sends. Several types make lists, and several kinds nothing.
        """
        numbers: dict[int, int] = {}
        known = [dict(zip(MESSAGE_NAMES, said, strict=True)) for said in self._table.messages]
        for mark, calls in coalesced_calls(self._table, marks):
            said = [known[self._table.message[row]] for row in calls.tolist()]
            said = [m for m in said if m[_CALLED] != b'"wait"']
            said = [m for m in said if m[_CALLED] == b'"send"'] or said
            if len({m[_CALLED] for m in said}) != 1 or not all(map(_is_counted, said)):
                continue
            types = list(dict.fromkeys(m["dtype"] for m in said))
            whole = dict.fromkeys(MESSAGE_NAMES, b"") | {"dtype": _listed(types)}
            for name in _COUNTS:
                whole[name] = _listed([b"%d" % sum(int(m[name]) for m in said if m["dtype"] == t) for t in types])
            numbers[mark] = self._table.messages[tuple(whole.values())]
        return numbers

    def _shares(self, at: Int64, inputs: Int64) -> Int8:
        """Return of events of a device: 0 of the only kernel of its call, 1 of that with all its work, 2 of another.

        Of the kernels of one call of a product, or of one replay of it, the longest has its operations: by preference
        of those whose names tell a product, and never one that adds up parts. Several kernels of an elementwise
        operator have none of its work.
        """
        table, links = self._table, self._links
        rows, operator = links.rows[at], links.operator[at]
        shares = np.zeros(len(at), np.int8)
        kernels = np.flatnonzero((inputs > 0) & (table.family[rows] == Family.KERNEL))
        operators = table.name[operator[kernels]]
        is_product = self._named(operators, lambda name: name in PRODUCT_OPERATORS)
        is_work = is_product | self._named(operators, lambda n: n in ELEMENTWISE_OPERATORS or n in WRITING_OPERATORS)
        kernels, is_product = kernels[is_work], is_product[is_work]
        replay = np.where(links.is_graph[at[kernels]], links.launch[at[kernels]], -1)
        call = np.unique(packed([operator[kernels], replay]), return_inverse=True)[1]
        named = table.name[rows[kernels]]
        multiplies = self._named(named, lambda name: kernel_class(name) == "gemm")
        computes = self._named(named, lambda name: not JOINS_PARTS.search(name))
        order = np.lexsort((table.duration[rows[kernels]], multiplies, computes, call))
        is_last = np.diff(call[order], append=-1) != 0
        shares[kernels[order]] = np.where(is_last & is_product[order], 1, 2)
        shares[kernels[np.bincount(call)[call] == 1]] = 0
        return shares

    def _named(self, numbers: Integers, says: Callable[[str], bool]) -> Flags:
        """Return of which names, by number, something holds."""
        used, place = np.unique(numbers, return_inverse=True)
        return np.array([says(self._names[i]) for i in used.tolist()], bool)[place]


def _is_counted(said: Mapping[str, bytes]) -> bool:
    return bool(said["dtype"]) and all(said[name].isdigit() and len(said[name]) < 19 for name in _COUNTS)


def _listed(values: Sequence[bytes]) -> bytes:
    """Return JSON values as a list, or the only one as it is."""
    return b"[%b]" % b",".join(values) if len(values) > 1 else values[0]


def device_facts(device: Any, properties: Sequence[Mapping[str, Any]], *, is_rocm: bool) -> Iterator[Stat]:
    """Yield the stats of a device, from the properties that the trace states.

    On ROCm `device` is an agent of HSA, which no property names: its facts are known if all devices are alike.
    """
    own = [p for p in properties if p.get("id") == device]
    if is_rocm:
        kinds = {json.dumps({k: v for k, v in p.items() if k != "id"}, sort_keys=True) for p in properties}
        own = list(properties[:1]) if len(kinds) == 1 else []
    yield Stat("device_vendor", StatKind.STRING, "AMD" if is_rocm else "Nvidia")
    yield Stat("profiler_device", StatKind.STRING, str(device))
    facts = own[0] if own else {}
    if isinstance(name := facts.get("name"), str) and name:
        yield Stat("gpu_device_name", StatKind.STRING, name)
    for key, stat in _FACTS.items():
        if type(value := facts.get(key)) is int and 0 <= value < 1 << 63:
            yield Stat(stat, StatKind.UINT64, value)
