"""Divides the lines of a large run into parts, which processes write in parallel, each into its own files.

The division, and so every byte that is written, depends only on the capture, not on the number of processes. Events are
numbered over the run, so they are counted before they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

from tracewarehouse.ingest.columns.profiler_names import device_plane
from tracewarehouse.ingest.columns.records import DivisibleTrace, EventMetadata, Line, Plane, Trace
from tracewarehouse.ingest.devices.cpu_devices import has_cpu_ops
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.processes.pool import Processes, Work, start_helpers
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import file_format
from tracewarehouse.ingest.tables.lines import LinesWritten, LineTables, PlaneLines
from tracewarehouse.ingest.tables.staging import RunFolder, Staging

DIVIDED = 32 << 20
"""A run with at least this many bytes of lines is written in parts; below that, another process does not pay off."""
_SMALLEST, _PARTS = 8 << 20, 16


@dataclass(frozen=True)
class Part:
    """Lines that one process writes together; `planes` are indices into the planes of the whole run."""

    number: int
    planes: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Shared:
    """The data that all processes read when they write parts."""

    folder: RunFolder
    traces: Sequence[DivisibleTrace]
    facts: Sequence[OpFacts]
    planes: Sequence[PlaneLines]


def helpers(files: Sequence[CaptureFile], jobs: int) -> Processes:
    """Start at most `jobs` processes, including this one, for captures that may be divided."""
    size = sum(f.size for f in files)
    formats = {file_format(f) for f in files} if size >= DIVIDED else set()
    count = min(jobs, size // _SMALLEST) - 1 if formats and all(f.is_divisible or f.is_shared for f in formats) else 0
    modules = [f.module for f in formats] + [__name__] * all(f.is_divisible for f in formats)
    return start_helpers(count, [f.descriptor for f in files], modules)


@dataclass(frozen=True)
class Counting:
    """Counts the events on the lines of a run that is written in parts.

    Attributes:
        tasks: host index, plane and lines.
        work: the counting tasks.
    """

    traces: Sequence[DivisibleTrace]
    tasks: Sequence[tuple[int, Plane, Sequence[Line]]]
    work: Work[list[int]]

    def counts(self, planes: Sequence[PlaneLines]) -> list[int]:
        """Return the number of events on each of these planes; this process helps to count them."""
        line_counts: dict[int, int] = {}
        for (_, _, lines), counts in zip(self.tasks, self.work.results(), strict=True):
            line_counts |= zip(map(id, lines), counts, strict=True)
        return [sum(line_counts[id(line)] for line in p.lines) for p in planes]


def start_counting(staging: Staging, traces: Sequence[Trace]) -> Counting | None:
    """Let helpers start to count the events of a run, if it is written in parts; else return None."""
    divisible = _divided(traces)
    if not divisible:
        return None
    planes = [(i, plane) for i, t in enumerate(divisible) for plane in t.planes]
    tasks = [(i, Plane(p.name), lines) for i, p in planes for lines in _cut(p.lines, _SMALLEST)]
    staging.processes.share(divisible)
    return Counting(divisible, tasks, staging.processes.start(count_events, tasks))


def _divided(traces: Sequence[Trace]) -> list[DivisibleTrace]:
    divisible = [t for t in traces if isinstance(t, DivisibleTrace)]
    size = sum(line.end - line.start for t in divisible for p in t.planes for line in p.lines)
    if len(divisible) < len(traces) or size < DIVIDED:
        return []
    return divisible if {"gpu", "cpu"}.isdisjoint(chain(*map(_backends, divisible))) else []


def _backends(trace: Trace) -> set[str]:
    named = {d.backend for p in trace.planes if p.lines and (d := device_plane(p.name))}
    return named or {"cpu" for p in trace.planes if has_cpu_ops(p)}


def divide(planes: Sequence[PlaneLines]) -> tuple[list[PlaneLines], list[Part]]:
    """Divide the planes into parts; planes with many host threads are first cut into several pieces.

    All planes of a device are in one part, since its collectives are paired over them. Parts are in the order of their
    first line in the run.
    """
    target = max(_SMALLEST, sum(p.size for p in planes) // _PARTS)
    pieces = [replace(p, lines=lines) for p in planes for lines in ([p.lines] if p.device else _cut(p.lines, target))]
    groups: list[list[int]] = []
    sizes: list[int] = []
    device_group: dict[int, int] = {}
    for i, piece in enumerate(pieces):
        device = piece.device.device_id if piece.device else None
        at = device_group.get(device) if device is not None else None
        if at is None and groups and sizes[-1] + piece.size <= target:
            at = len(groups) - 1
        if at is None:
            at = len(groups)
            groups.append([])
            sizes.append(0)
        groups[at].append(i)
        sizes[at] += piece.size
        if device is not None:
            device_group[device] = at
    return pieces, [Part(n, tuple(g), s) for n, (g, s) in enumerate(zip(groups, sizes, strict=True))]


def _cut(lines: Sequence[Line], target: int) -> list[Sequence[Line]]:
    """Cut lines into pieces that are not larger than the target, if possible."""
    cuts, size = [0], 0
    for i, line in enumerate(lines):
        size += line.end - line.start
        if size > target and i > cuts[-1]:
            cuts.append(i)
            size = line.end - line.start
    return [lines[a:z] for a, z in zip(cuts, [*cuts[1:], len(lines)], strict=True)]


def start_parts(
    staging: Staging,
    counting: Counting,
    facts: Sequence[OpFacts],
    planes: Sequence[PlaneLines],
    parts: Sequence[Part],
) -> Callable[[], list[LinesWritten]]:
    """Let the helpers start to write parts of planes.

    Returns:
        A function that takes part in the writing, and returns what was written, in the order of the parts, once all is.
    """

    def settle(part: LinesWritten) -> None:
        for path, _ in part.files.values():
            staging.settling.add(path)

    first = [0, *accumulate(counting.counts(planes))]
    shared = Shared(staging.folder, counting.traces, facts, [replace(p, plane=_slim(p)) for p in planes])
    staging.processes.share(shared)
    largest_first = sorted(parts, key=lambda p: (-p.size, p.number))
    tasks = [(p, tuple(first[i] for i in p.planes)) for p in largest_first]
    work = staging.processes.start(write_part, tasks, settle)

    def written() -> list[LinesWritten]:
        by_number = {p.number: w for p, w in zip(largest_first, work.results(), strict=True)}
        return [by_number[p.number] for p in parts]

    return written


def count_events(traces: Sequence[DivisibleTrace], task: tuple[int, Plane, Sequence[Line]]) -> list[int]:
    """Return the number of events on each of some lines of a plane."""
    host_index, plane, lines = task
    return [traces[host_index].count(plane, line) for line in lines]


def write_part(shared: Shared, task: tuple[Part, tuple[int, ...]]) -> LinesWritten:
    """Write a part, given the id of the first event of each of its planes."""
    part, first_event_ids = task
    with LineTables(shared.folder, shared.facts, part=part.number) as tables:
        for i, first in zip(part.planes, first_event_ids, strict=True):
            tables.write(shared.traces[shared.planes[i].host_index], shared.planes[i], first)
        devices = {d.device_id for i in part.planes if (d := shared.planes[i].device)}
        for device_id in sorted(d for d in devices if d is not None):
            tables.ops.finish_device(device_id)
    return tables.written


def _slim(lines: PlaneLines) -> Plane:
    names = [] if lines.device else [EventMetadata(m.name) for m in lines.plane.event_metadata]
    return replace(lines.plane, event_metadata=names, metadata_ids=[], lines=[], stats=())
