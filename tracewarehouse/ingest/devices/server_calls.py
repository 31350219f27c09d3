"""Finds the calls in which a server or the harness launches the programs of a step, and the executions launched there.

Host and device clocks differ by up to milliseconds, so an execution is never matched to a call by its time on the
device. It is matched as the k-th launch of the thread, or by the `run_id` of the event that enqueued it on the host.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.profiler_names import plane_kind
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.markers import phase_of, step_markers
from tracewarehouse.ingest.devices.timeline import Run, Step

_LOOP = re.compile(
    r"(?:\A|[ .:$])(?:step_with_batch_queue|step_fn|engine_step|run_batch|execute_model|generate_step|decode_step"
    r"|prefill_step)(?:\(|\Z)"
)
"""Names of the calls in the loop of a server, vLLM or SGLang. Frames of the Python tracer end in the function's
name."""
_ENGINE = re.compile(r"\A\$?\w*engine\w*\.py:\d+ (?:generate|prefill)\Z", re.IGNORECASE)
"""Names of the calls of JetStream and MaxText, whose threads prefill and generate at the same time."""
_LINKED, _JITTED = re.compile(r"\APJRT_LoadedExecutable_Execute linkage\Z"), re.compile(r"\APjitFunction\(.+\)\Z")
_ENQUEUED = "DoEnqueueProgram"
_BESIDE = 64
"""Most calls that several threads may make at the same time; calls of one thread follow each other."""


@dataclass(frozen=True)
class Call:
    """A stretch of a host thread that belongs to one step; `step` is the step's number, if the call states it."""

    thread: tuple[int, int]
    name: str
    start_ps: int
    end_ps: int
    step: int | None = None

    @property
    def phase(self) -> str | None:
        """The phase that the name states; a call that generates is decode."""
        return phase_of(self.name) or ("decode" if self.name.endswith(" generate") else None)


@dataclass
class Launches:
    """The facts about launches on a host's threads.

    Attributes:
        marked: calls of the harness, which number their steps.
        called: calls of a server.
        linked: start of each launch, by thread.
        jitted: start and end of each call of a jitted function, by thread.
        enqueued: time at which the host handed an execution to a device, by the device's ordinal and `run_id`.
    """

    marked: list[Call] = field(default_factory=list)
    called: list[Call] = field(default_factory=list)
    linked: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    jitted: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    enqueued: dict[tuple[int, int], int] = field(default_factory=dict)

    def starts(self, thread: tuple[int, int]) -> list[int]:
        """Return the times of a thread's launches; without such events, the starts of its calls of jitted functions."""
        return sorted(self.linked.get(thread, ())) or [start for start, _ in _outermost(self.jitted.get(thread, ()))]


def launches(host: Host) -> Launches:
    """Read the calls and launches of a host; lines are read only if the capture names such events.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
    """
    of_host = Launches()
    for position, plane in enumerate(host.trace.planes):
        if plane_kind(plane.name) != "host" or not any(_is_call(m.name) for m in plane.event_metadata):
            continue
        wanted = np.array([_is_wanted(m.name) for m in plane.event_metadata] + [False], bool)
        for number, line in enumerate(plane.lines):
            for batch in host.trace.batches(plane, line):
                if wanted[batch.metadata].any():
                    _read(of_host, host, plane, (position, number), batch, wanted)
    return of_host


def _is_call(name: str) -> bool:
    return bool(_LOOP.search(name) or _ENGINE.search(name) or phase_of(name))


def _is_wanted(name: str) -> bool:
    return bool(_is_call(name) or name == _ENQUEUED or _LINKED.search(name) or _JITTED.search(name))


def _read(
    launches: Launches, host: Host, plane: Plane, thread: tuple[int, int], batch: EventBatch, wanted: np.ndarray
) -> None:
    shifted = EventBatch(batch.metadata, batch.start_ps + host.clock_offset_ps, batch.duration_ps, batch.stats)
    for m in step_markers(plane, shifted):
        if phase_of(m.name):
            launches.marked.append(Call(thread, m.name, m.start_ps, m.end_ps, m.step))
    stats = {s.name: s for s in batch.stats}
    run_id, has_run_id = integers(stats.get("run_id"), len(batch))
    ordinal, has_ordinal = integers(stats.get("device_ordinal"), len(batch))
    for i in np.flatnonzero(wanted[batch.metadata]).tolist():
        name = plane.event_metadata[batch.metadata[i]].name
        start = int(shifted.start_ps[i])
        end = start + int(batch.duration_ps[i])
        if name == _ENQUEUED:
            if has_run_id[i] and has_ordinal[i]:
                launches.enqueued.setdefault((int(ordinal[i]), int(run_id[i])), start)
        elif _LINKED.search(name):
            launches.linked.setdefault(thread, []).append(start)
        elif _JITTED.search(name):
            launches.jitted.setdefault(thread, []).append((start, end))
        elif _LOOP.search(name) or _ENGINE.search(name):
            launches.called.append(Call(thread, name, start, end))


def _outermost(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    for start, end in sorted(intervals, key=lambda i: (i[0], -i[1])):
        if not kept or start >= kept[-1][1]:
            kept.append((start, end))
    return kept


def called_steps(of_host: Launches, runs: Mapping[int, Sequence[Run]]) -> tuple[dict[int, list[Step]], str]:
    """Find the steps of a host's devices, by ordinal, from the calls that launched their executions; and their source.

    The harness's marks are tried first, then the server's loop on the thread that launches most, then engines that
    prefill and generate on several threads. There are no steps if nothing shows which call launched what.

    Args:
        of_host: the calls and launches of the host's threads.
        runs: executions of each device, by ordinal.
    """
    loops = [c for c in of_host.called if _LOOP.search(c.name)]
    engines = [c for c in of_host.called if not _LOOP.search(c.name)]
    for calls, source in (
        (of_host.marked, "marker"),
        *((c, "server call") for c in (_busiest(of_host, loops), engines)),
    ):
        kept = [c for thread in sorted({c.thread for c in calls}) for c in _outermost_calls(calls, thread)]
        if kept and (steps := _steps(of_host, kept, runs, source)):
            return steps, source
    return {}, ""


def _outermost_calls(calls: Sequence[Call], thread: tuple[int, int]) -> list[Call]:
    own = {(c.start_ps, c.end_ps): c for c in calls if c.thread == thread}
    return [own[i] for i in _outermost(list(own))]


def _busiest(of_host: Launches, calls: Sequence[Call]) -> list[Call]:
    """Return the calls of the thread that launches most or, if none launches, of the one with most calls."""
    count = Counter(c.thread for c in calls)
    if not count:
        return []
    thread = max(count, key=lambda t: (len(of_host.starts(t)), count[t], t))
    return [c for c in calls if c.thread == thread]


def _steps(
    of_host: Launches, calls: Sequence[Call], runs: Mapping[int, Sequence[Run]], source: str
) -> dict[int, list[Step]]:
    by_start = sorted(calls, key=lambda c: c.start_ps)
    threads = {c.thread for c in calls}
    launched = sorted((at, thread) for thread in threads for at in of_host.starts(thread))
    members: dict[int, dict[int, list[Run]]] = {}
    for ordinal, of_device in runs.items():
        for call, run in _launched_by(of_host, by_start, launched, ordinal, of_device):
            members.setdefault(call, {}).setdefault(ordinal, []).append(run)
    steps: dict[int, list[Step]] = {}
    for number, call in enumerate(sorted(members)):
        of = by_start[call]
        index = number if of.step is None else of.step
        for ordinal, own in members[call].items():
            ends = min(r.start_ps for r in own), max(r.end_ps for r in own)
            steps.setdefault(ordinal, []).append(Step(index, of.phase, of.phase or "step", *ends, source))
    return steps


def _launched_by(
    of_host: Launches,
    calls: Sequence[Call],
    launched: Sequence[tuple[int, tuple[int, int]]],
    ordinal: int,
    runs: Sequence[Run],
) -> Iterator[tuple[int, Run]]:
    """Yield the index of a call with an execution that it launched.

    An execution may be enqueued after the call, on another thread, so the order of launches, which a device keeps, has
    priority.
    """
    is_ordered = len(launched) == len(runs)
    starts = [c.start_ps for c in calls]
    for k, run in enumerate(sorted(runs, key=lambda r: r.start_ps)):
        at, thread = launched[k] if is_ordered else (of_host.enqueued.get((ordinal, run.run_id or -1)), None)
        if at is None:
            continue
        last = bisect_right(starts, at) - 1
        for i in range(last, max(last - _BESIDE, -1), -1):
            if at < calls[i].end_ps and thread in (None, calls[i].thread):
                yield i, run
                break
