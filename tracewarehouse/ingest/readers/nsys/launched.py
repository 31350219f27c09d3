"""Makes the planes of GPUs: what their kernels are, and in which steps the host launched them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.profiler_names import (
    GPU_PREFIX,
    GRAPH_LAUNCH,
    LAUNCH_EXECUTION,
    LAUNCH_LINE,
    LAUNCH_STEP,
    STEP_LINE,
    STREAM_PREFIX,
    collective_kind,
)
from tracewarehouse.ingest.columns.records import (
    EventBatch,
    EventMetadata,
    Int32,
    Int64,
    Plane,
    Stat,
    StatColumn,
    StatKind,
)
from tracewarehouse.ingest.readers.launches import Marks, executions, integer_stat, step_line, steps_of_launches
from tracewarehouse.ingest.readers.nsys.activities import (
    COPY,
    GRAPH,
    KERNEL,
    SET,
    Activities,
    Calls,
    kernel_sizes,
    launching_calls,
)
from tracewarehouse.ingest.readers.nsys.database import NONE
from tracewarehouse.ingest.readers.nsys.gpus import Gpu, Job
from tracewarehouse.ingest.readers.nsys.ranges import PID, Payload, Ranges, ThreadEvents, process

_COPIES = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD",
)  # fmt: skip
"""The kinds of copies (ENUM_CUDA_MEMCPY_OPER), as PyTorch's profiler writes them; from 11 on of unified memory."""
_SIDES = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
"""The kinds of memory (ENUM_CUDA_MEM_KIND)."""
_STATS = (("correlation", "correlation"), ("bytes", "bytes"), ("graph node id", "graph_node"), ("graph id", "graph"))
"""Stats of events, as PyTorch's profiler calls them, and the columns that have them."""
_WHAT = ("kind", "name", "first", "second", "third")
"""Columns that tell instructions apart, with what is said of their launch."""
_Lines = list[tuple[str, int, EventBatch]]


class Launched:
    """What ran on the GPUs, with the call that launched each, its step and its execution.

    Args:
        activities: what ran on all devices, by start.
        calls: the calls of the host, with the NVTX ranges around them.
        ranges: the NVTX ranges.
        strings: texts by id.
        short: ids of the short names of kernels, by those of their names.
        job: the ranks and their communicators.
        zero_ns: the time from which times count.
    """

    def __init__(
        self,
        activities: Activities,
        calls: Calls,
        ranges: Ranges,
        strings: dict[int, str],
        short: dict[int, int],
        job: Job,
        zero_ns: int,
    ) -> None:
        self._short = short
        self._activities, self._calls, self._ranges, self._strings = activities, calls, ranges, strings
        self._zero_ns = zero_ns
        self._call = launching_calls(activities, calls)
        self._start, self._end = self._ps(activities.start), self._ps(activities.end)
        has = self._call >= 0
        self._launched_at = np.where(has, self._ps(np.append(calls.start, 0)[self._call]), 0)
        self._context = np.where(has, np.append(calls.context, 0)[self._call], 0)
        self._payload = np.where(has, np.append(calls.payload, -1)[self._call], -1)
        is_graph = {i for i, text in strings.items() if GRAPH_LAUNCH.search(text)}
        named = np.isin(calls.name, np.fromiter(is_graph, np.int64, len(is_graph)))
        self._is_graph = has & np.append(named, False)[self._call]
        self._inside, self._owner = np.full((2, len(has)), -1, np.int64)
        self._marks: dict[int, Marks] = {}
        self.dispatched = np.full(len(calls.start), -1, np.int64)
        """Of each call the ordinal of the GPU on which it began an execution, -1 for none; known once planes are."""
        self._job, self._groups = job, job.groups()
        for owner in np.unique(activities.process).tolist():
            self._find_steps(owner)

    def _ps(self, at_ns: Int64) -> Int64:
        return (at_ns - self._zero_ns) * 1000

    def _find_steps(self, owner: int) -> None:
        """Find the steps of what a process launched, by its marks."""
        told = self._ranges.marks.get(owner, [])
        start, end, text = np.array(told, np.int64).reshape(-1, 3).T
        names = [self._ranges.texts[i] for i in text.tolist()]
        marks, _ = Marks.of(self._ps(start), self._ps(end), names)
        self._marks[owner] = marks
        at = np.flatnonzero((self._activities.process == owner) & (self._call >= 0))
        found = steps_of_launches(marks.start, marks.end, self._launched_at[at], self._activities.name[at])
        self._inside[at], self._owner[at] = found.inside, found.owner

    def step_marks(self, thread: int, events: ThreadEvents) -> Int64:
        """Return the number of the step that each NVTX event of a thread marks, -1 for none."""
        numbers = np.full(len(events.start), -1, np.int64)
        marks = self._marks.get(process(thread))
        if marks is None or not len(marks.start):
            return numbers
        start = self._ps(events.start)
        place = np.minimum(marks.start.searchsorted(start), len(marks.start) - 1)
        is_same = (marks.start[place] == start) & (marks.end[place] == start + events.duration * 1000)
        named = [marks.names[place[i]] == self._ranges.texts[events.text[i]] for i in np.flatnonzero(is_same).tolist()]
        is_same[is_same] = named
        numbers[is_same] = marks.numbers[place[is_same]]
        return numbers

    def plane(self, gpu: Gpu) -> tuple[Plane, _Lines]:
        """Return the plane of a GPU, and name, id and events of its lines."""
        a = self._activities
        at = np.flatnonzero(np.any([(a.process == p) & (a.device == d) for p, d in gpu.users], axis=0))
        plane = Plane(f"{GPU_PREFIX}{gpu.ordinal}", gpu.ordinal, gpu.stats)
        metadata = self._metadata(at, plane)
        execution = np.full(len(at), -1, np.int64)
        steps = np.full(len(at), -1, np.int64)
        made: _Lines = []
        for owner in dict.fromkeys(p for p, _ in gpu.users):
            own = np.flatnonzero(a.process[at] == owner)
            rows = at[own]
            marks = self._marks[owner]
            ran = executions(
                marks,
                self._owner[rows],
                self._call[rows],
                self._launched_at[rows],
                self._is_graph[rows],
                packed([a.kind[rows], a.name[rows], a.graph[rows]]),
                self._start[rows],
                self._end[rows],
            )
            execution[own] = ran.of_event
            steps[own] = marks.step_numbers(self._owner[rows])
            self.dispatched[ran.launch] = gpu.ordinal
            of_steps = step_line(marks, self._inside[rows], self._start[rows], self._end[rows])
            for name, line in ((STEP_LINE, of_steps), (LAUNCH_LINE, ran.line)):
                if len(line.events):
                    events, places = line.events, line.events.metadata + np.int32(len(plane.event_metadata))
                    plane.event_metadata += [EventMetadata(n) for n in line.names]
                    batch = EventBatch(places, events.start_ps, events.duration_ps, events.stats)
                    made.append((name, -1 - len(made), batch))
        lines: _Lines = []
        streams = packed([a.process[at], a.context[at], a.stream[at]]) if len(at) else at
        taken: set[str] = set()
        for key in np.unique(streams).tolist():
            own = np.flatnonzero(streams == key)
            owner, context, number = (int(column[at[own[0]]]) for column in (a.process, a.context, a.stream))
            name = f"{STREAM_PREFIX}{number}"
            if name in taken:
                name = f"{name} (process {owner & PID}, context {context})"
            taken.add(name)
            rows = at[own]
            stats = self._event_stats(rows, steps[own], execution[own])
            events = EventBatch(metadata[own], self._start[rows], self._end[rows] - self._start[rows], stats)
            lines.append((name, number, events))
        return plane, [*lines, *made]

    def _event_stats(self, rows: Int64, step: Int64, execution: Int64) -> list[StatColumn]:
        every = np.arange(len(rows))
        stats = [integer_stat(LAUNCH_EXECUTION, every, execution)]
        if any(len(marks.start) for marks in self._marks.values()):
            stats.append(integer_stat(LAUNCH_STEP, every, step))
        if len(unlinked := np.flatnonzero(self._call[rows] < 0)):
            stats.append(integer_stat("is_unlinked", unlinked, np.ones(len(unlinked), np.int64)))
        for name, column in _STATS:
            values = getattr(self._activities, column)[rows]
            if len(has := np.flatnonzero(values != NONE)):
                stats.append(integer_stat(name, has, values[has]))
        return stats

    def _metadata(self, at: Int64, plane: Plane) -> Int32:
        """Give a plane the metadata of its events, and return the place of each; one for what is said the same of."""
        columns = [getattr(self._activities, name)[at] for name in _WHAT]
        columns += [self._context[at], self._payload_codes(at), self._activities.process[at]]
        _, first, place = np.unique(packed(columns), return_index=True, return_inverse=True)
        plane.event_metadata = [self._named(int(row)) for row in at[first].tolist()]
        return place.astype(np.int32)

    def _payload_codes(self, at: Int64) -> Int64:
        """Return a number for the message that a payload states, the same for equal ones; -1 without one."""
        payloads = self._payload[at]
        codes: dict[Payload, int] = {}
        used, inverse = np.unique(payloads, return_inverse=True)
        of_used = [codes.setdefault(self._ranges.payloads[i], len(codes)) if i >= 0 else -1 for i in used.tolist()]
        return np.array(of_used, np.int64)[inverse]

    def _named(self, row: int) -> EventMetadata:
        a = self._activities
        kind = int(a.kind[row])
        return EventMetadata(self._name(kind, row), "", tuple(self._said(kind, row)))

    def _name(self, kind: int, row: int) -> str:
        a = self._activities
        if kind == COPY:
            source, target = (_word(_SIDES, int(side[row])) for side in (a.second, a.third))
            return f"Memcpy {_word(_COPIES, int(a.first[row]))} ({source} -> {target})"
        if kind == SET:
            return "Memset (Device)"
        name = int(a.name[row])
        if kind == GRAPH:
            return "CUDA graph" if name == NONE else f"CUDA graph {name}"
        return self._strings.get(self._short.get(name, name)) or "(unnamed kernel)"

    def _said(self, kind: int, row: int) -> Iterator[Stat]:
        a = self._activities
        context = self._ranges.contexts[int(self._context[row])]
        said = {"tf_op": context.op_name, "Input Dims": context.sizes, "annotation": context.annotation}
        numbers: dict[str, int] = {}
        if kind == KERNEL:
            grid, block, registers, memory = kernel_sizes(int(a.first[row]), int(a.second[row]), int(a.third[row]))
            said |= {"grid": json.dumps(grid) if grid else "", "block": json.dumps(block) if block else ""}
            full = self._strings.get(int(a.name[row]), "")
            said["demangled name"] = full if full != self._name(kind, row) else ""
            numbers = {"registers per thread": registers, "shared memory": memory}
        yield from (Stat(name, StatKind.STRING, text) for name, text in said.items() if text)
        communicator = None
        if (number := int(self._payload[row])) >= 0:
            payload = self._ranges.payloads[number]
            numbers["message_bytes"] = NONE if payload.message_bytes is None else payload.message_bytes
            communicator = payload.communicator
        if not communicator and kind == KERNEL and collective_kind(self._name(kind, row), "", frozenset()):
            communicator = self._job.only_communicator(int(a.process[row]))  # as in a graph's replay
        yield from self._groups.get(communicator or 0, ())
        yield from (Stat(name, StatKind.INT64, n) for name, n in numbers.items() if n != NONE)

    def findings(self) -> list[tuple[str, str]]:
        """Return the flags, each with a sentence, on what the export does not tell of what ran."""
        a = self._activities
        length = a.end - a.start
        is_graph, is_unlinked, is_kernel = a.kind == GRAPH, self._call < 0, a.kind == KERNEL
        unnamed = [n for n in np.unique(a.name[is_kernel]).tolist() if not self._strings.get(self._short.get(n, n))]
        is_unnamed = is_kernel & np.isin(a.name, np.array(unnamed, np.int64))
        found = []
        if is_graph.any():
            sentence = f"{int(is_graph.sum()):,} replays, {length[is_graph].sum() / 1e6:.3f} ms, are one op each"
            found.append(("opaque_graphs", f"{sentence}; record with --cuda-graph-trace=node"))
        if is_unlinked.any():
            share = length[is_unlinked].sum() / max(int(length.sum()), 1)
            sentence = f"{int(is_unlinked.sum()):,} of {len(length):,} ops, {share:.1%} of their time"
            found.append(("unlinked_ops", f"{sentence}, have no launch in the capture"))
        if is_unnamed.any():
            share = length[is_unnamed].sum() / max(int(length[is_kernel].sum()), 1)
            sentence = f"{int(is_unnamed.sum()):,} of {int(is_kernel.sum()):,} kernels, {share:.1%} of their time"
            found.append(("unnamed_kernels", f"{sentence}, have no name in the export's StringIds; export it again"))
        return found


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else "Unknown"
