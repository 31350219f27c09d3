"""Writes the events of lines, which are the large tables, for a whole run or for one part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.collectives.windows import CollectiveExecutions
from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.keys import distinct
from tracewarehouse.ingest.columns.profiler_names import is_compilation
from tracewarehouse.ingest.columns.records import EventBatch, Int8, Int32, Line, Plane, Trace
from tracewarehouse.ingest.devices.timeline import StepMarker, Timeline, step_markers
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.lake.parquet import Coded
from tracewarehouse.ingest.layers.sequence import Execution
from tracewarehouse.ingest.tables.leaf_ops import LeafTimes, lines_leaf_times
from tracewarehouse.ingest.tables.ops import DeviceLine, OpWriter
from tracewarehouse.ingest.tables.staging import RunFolder
from tracewarehouse.ingest.tables.stats import write_event_stats

EVENT_TABLES = ("ops", "copies", "host_events", "counters", "event_stats")


@dataclass(frozen=True)
class DeviceEvents:
    """The facts that are needed to write the events on a device plane's lines.

    Attributes:
        device_id: the device; None if the plane belongs to no single one.
        timeline: the device's executions and steps.
        row_instruction: instruction id by row of the plane's event metadata; the last one for events without any.
        op_lines: names of the lines on which the device executes ops.
    """

    device_id: int | None
    timeline: Timeline
    row_instruction: Int32
    op_lines: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PlaneLines:
    """Lines of one plane of a host, of a device or of host threads; `position` is the plane's position in its trace."""

    host_index: int
    host: str
    clock_offset_ps: int
    position: int
    plane: Plane
    lines: Sequence[Line]
    device: DeviceEvents | None = None

    @property
    def size(self) -> int:
        """Bytes of the lines, if they follow each other in the file."""
        return sum(line.end - line.start for line in self.lines)


@dataclass
class LinesWritten:
    """The result of writing some lines; `programs`, `time_ps`, `sized_ps` and `leaf_ops` are those of `OpWriter`."""

    executions: CollectiveExecutions
    files: dict[str, tuple[Path, int]] = field(default_factory=dict)
    """Path and rows of the file of each table."""
    extents: list[LineExtent] = field(default_factory=list)
    """Extent of each line, in the order in which they were written."""
    compilations: Counter[tuple[int, str]] = field(default_factory=Counter)
    """Number of compilations by host index and event name."""
    markers: dict[int, list[StepMarker]] = field(default_factory=dict)
    """Step markers by host index."""
    programs: dict[int, tuple[str, int | None]] = field(default_factory=dict)
    sampled: list[Execution] = field(default_factory=list)
    time_ps: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    sized_ps: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    leaf_ops: Counter[tuple[int, bool]] = field(default_factory=Counter)


class LineTables:
    """Writes the events of lines; a context manager that leaves complete files.

    Args:
        folder: where the files are made.
        facts: facts of all instructions; there may be more later.
        background: see `TableWriter`, as for `part`.
        part: number of the part of a large run.
    """

    def __init__(
        self,
        folder: RunFolder,
        facts: Sequence[OpFacts],
        background: Executor | None = None,
        part: int | None = None,
    ) -> None:
        self.writers = {n: folder.writer(n, background, part) for n in EVENT_TABLES}
        self.written = LinesWritten(CollectiveExecutions(folder.path / f".collectives-{part or 0:04}"))
        self.ops = OpWriter(self.writers, facts, self.written.executions)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(self.written.executions.rows.close)
        for writer in self.writers.values():
            self._stack.enter_context(writer)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            with self._stack:
                self.finish()
        else:
            self._stack.__exit__(*error)

    def finish(self, then: Callable[[Path], object] = lambda _: None) -> LinesWritten:
        """Finish writing and return the result; `then` is called on each file when it is complete."""
        for writer in self.writers.values():  # start all of them before waiting for any
            writer.finish(then)
        self.written.files = {n: (w.path, w.rows) for n, w in self.writers.items() if w.rows}
        self.written.programs = self.ops.programs
        self.written.time_ps = self.ops.time_ps
        self.written.sized_ps = self.ops.sized_ps
        self.written.leaf_ops = self.ops.leaf_ops
        self.written.sampled = [e for device in self.ops.sampled.values() for e in device.executions()]
        return self.written

    def write(self, trace: Trace, lines: PlaneLines, first_event_id: int) -> int:
        """Write lines whose events have consecutive ids from this one on; return the id after them."""
        times = self._several_lines(trace, lines, lines.device) if lines.device else {}
        for i, line in enumerate(lines.lines):
            extent = LineExtent()
            batches = extent.watch(trace, lines.plane, line, lines.clock_offset_ps)
            if device := lines.device:
                place = DeviceLine(
                    lines.host,
                    lines.plane.name,
                    line.name,
                    device.device_id,
                    first_event_id,
                    line.name in device.op_lines,
                    lines.clock_offset_ps,
                )
                self.ops.write_line(place, batches, device.row_instruction, device.timeline, times.get(i))
            else:
                self._write_host_line(batches, lines, line, first_event_id)
            self.written.extents.append(extent)
            first_event_id += extent.count
        return first_event_id

    def _several_lines(self, trace: Trace, lines: PlaneLines, device: DeviceEvents) -> dict[int, LeafTimes]:
        """The leaf-op columns of a device with several op lines, by position of the line; reads the lines once more."""
        places = [i for i, line in enumerate(lines.lines) if line.name in device.op_lines]
        if len(places) < 2:
            return {}
        op_class = self.ops.op_classes()
        op_lines = [lines.lines[i] for i in places]
        times = leaf_times(trace, lines, op_lines, lambda batch: op_class[device.row_instruction[batch.metadata]])
        return dict(zip(places, times, strict=True))

    def _write_host_line(
        self, batches: Iterable[EventBatch], lines: PlaneLines, line: Line, first_event_id: int
    ) -> None:
        count = 0
        for batch in batches:
            events = batch.moved(lines.clock_offset_ps)
            self.write_host_events(lines, line, events, first_event_id + count + np.arange(len(batch)))
            markers = step_markers(lines.plane, events, line.line_id)
            self.written.markers.setdefault(lines.host_index, []).extend(markers)
            count += len(batch)

    def write_host_events(self, lines: PlaneLines, line: Line, events: EventBatch, event_id: Any) -> None:
        """Write events of a host thread, on the run's clock."""
        if not len(events):
            return
        used, code = distinct(events.metadata)
        names = [lines.plane.event_metadata[i].name if i >= 0 else "(unnamed)" for i in used.tolist()]
        for i, name in enumerate(names):
            if is_compilation(name):
                self.written.compilations[lines.host_index, name] += int(np.count_nonzero(code == i))
        self.writers["host_events"].write(
            len(events),
            {
                "event_id": event_id,
                "host": lines.host,
                "plane": lines.plane.name,
                "thread": line.name,
                "thread_id": line.line_id,
                "name": Coded(code, names),
                "start_ps": events.start_ps,
                "duration_ps": events.duration_ps,
            },
        )
        write_event_stats(self.writers["event_stats"], event_id, events.stats)


def leaf_times(
    trace: Trace, lines: PlaneLines, op_lines: Sequence[Line], op_class: Callable[[EventBatch], Int8]
) -> list[LeafTimes]:
    """The leaf-op columns of a device with several op lines, by line in file order; reads the lines.

    Args:
        lines: the lines of the device's plane.
        op_lines: those on which it executes ops.
        op_class: tells the place in OP_CLASSES of each event of a batch.
    """
    columns = []
    for line in op_lines:
        starts, durations, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int8)]
        for batch in trace.batches(lines.plane, line):
            starts.append(batch.start_ps + lines.clock_offset_ps)
            durations.append(batch.duration_ps)
            classes.append(op_class(batch))
        start = np.concatenate(starts)
        columns.append((start, start + np.concatenate(durations), np.concatenate(classes)))
    return lines_leaf_times(columns)
