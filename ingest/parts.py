"""Divides the lines of a large run into parts that processes write at the same time, each into files of its own.

The division, and with it every byte that is written, follows from the capture alone, not from how many processes
there are. Events are numbered over the run, so they are counted before they are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from ingest.devices import device_plane
from ingest.instructions import OpFacts
from ingest.line_tables import LinesWritten, LineTables, PlaneLines
from ingest.processes import Processes
from ingest.records import DivisibleTrace, EventMetadata, Plane, Trace

DIVIDED = 32 << 20
"""Bytes of lines from which a run is written in parts: below, another process costs more time than it saves."""
_SMALLEST, _PARTS = 8 << 20, 16


@dataclass(frozen=True)
class Part:
    """Lines that are written together; `planes` are indices into the planes of the whole run."""

    number: int
    planes: tuple[int, ...]
    size: int


@dataclass(frozen=True)
class Shared:
    """What all processes read."""

    folder: Path
    traces: Sequence[DivisibleTrace]
    facts: Sequence[OpFacts]
    planes: Sequence[PlaneLines]


def helpers(traces: Sequence[Trace], jobs: int) -> Processes[Shared]:
    """At most `jobs` processes, this one included, for a run that will be divided; they start while it is surveyed."""
    divisible = [t for t in traces if isinstance(t, DivisibleTrace)]
    planes = [p for t in divisible for p in t.planes]
    size = sum(line.end - line.start for p in planes for line in p.lines)
    backends = {d.backend for p in planes if p.lines and (d := device_plane(p.name))}
    is_large = size >= DIVIDED and len(divisible) == len(traces) and backends == {"tpu"}
    count = min(jobs, size // _SMALLEST) - 1 if is_large else 0
    return Processes(count, [d for t in divisible for d in t.descriptors], [__name__, "ingest.readers.xplane"])


def is_divided(traces: Sequence[Trace], planes: Sequence[PlaneLines]) -> bool:
    """Whether a run is written in parts."""
    return all(isinstance(t, DivisibleTrace) for t in traces) and sum(p.size for p in planes) >= DIVIDED


def divide(planes: Sequence[PlaneLines]) -> tuple[list[PlaneLines], list[Part]]:
    """The planes, those of many host threads in several pieces, and the parts they make up.

    All planes of a device are in one part, since its collectives are paired over them. Parts are in the order of their
    first line in the run.
    """
    target = max(_SMALLEST, sum(p.size for p in planes) // _PARTS)
    pieces = [piece for p in planes for piece in ([p] if p.device else _pieces(p, target))]
    groups: list[list[int]] = []
    sizes: list[int] = []
    group_of_device: dict[int, int] = {}
    for i, piece in enumerate(pieces):
        device = piece.device.device_id if piece.device else None
        at = group_of_device.get(device) if device is not None else None
        if at is None and groups and sizes[-1] + piece.size <= target:
            at = len(groups) - 1
        if at is None:
            at = len(groups)
            groups.append([])
            sizes.append(0)
        groups[at].append(i)
        sizes[at] += piece.size
        if device is not None:
            group_of_device[device] = at
    return pieces, [Part(n, tuple(g), s) for n, (g, s) in enumerate(zip(groups, sizes, strict=True))]


def _pieces(plane: PlaneLines, target: int) -> list[PlaneLines]:
    """A plane of threads, cut where a piece would get larger than the target."""
    cuts, size = [0], 0
    for i, line in enumerate(plane.lines):
        size += line.end - line.start
        if size > target and i > cuts[-1]:
            cuts.append(i)
            size = line.end - line.start
    return [replace(plane, lines=plane.lines[a:z]) for a, z in zip(cuts, [*cuts[1:], len(plane.lines)], strict=True)]


def write_parts(
    folder: Path,
    traces: Sequence[Trace],
    facts: Sequence[OpFacts],
    planes: Sequence[PlaneLines],
    parts: Sequence[Part],
    processes: Processes[Shared],
) -> list[LinesWritten]:
    """Write all parts with these processes, which then end; the results are in the order of the parts.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
        HelperError: a process was ended from outside.
        OSError: the files cannot be written.
    """
    divisible = [t for t in traces if isinstance(t, DivisibleTrace)]
    shared = Shared(folder, divisible, facts, [replace(p, plane=_slim(p)) for p in planes])
    with processes:
        processes.share(shared)
        counts = processes.map(count_events, range(len(planes)))
        first = [0, *accumulate(counts)]
        largest_first = sorted(parts, key=lambda p: (-p.size, p.number))
        tasks = [(p, tuple(first[i] for i in p.planes)) for p in largest_first]
        written = processes.map(write_part, tasks)
    by_number = {p.number: w for p, w in zip(largest_first, written, strict=True)}
    return [by_number[p.number] for p in parts]


def count_events(shared: Shared, index: int) -> int:
    """Events of the lines of a plane."""
    plane = shared.planes[index]
    return sum(shared.traces[plane.host_index].count(plane.plane, line) for line in plane.lines)


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


def _slim(of: PlaneLines) -> Plane:
    """The plane without metadata that its events do not need."""
    names = [] if of.device else [EventMetadata(m.name) for m in of.plane.event_metadata]
    return replace(of.plane, event_metadata=names, lines=[], stats=())
