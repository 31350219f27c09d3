"""Finds steps by what a server or the harness tells: calls that launch the programs of a step, and logged batches.

Host and device clocks differ by up to milliseconds, so an execution is never matched to a call by its time on the
device. It is matched as the k-th launch of the thread, or by the `run_id` of the event that enqueued it on the host.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from tracewarehouse.ingest.capture.batches import Batch
from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.nesting import outermost
from tracewarehouse.ingest.columns.profiler_names import (
    ENQUEUED,
    JITTED,
    LINKED,
    SERVER_ENGINE,
    SERVER_LOOP,
    plane_kind,
)
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.timeline import Run, Step, StepMarker, named_phase, step_markers, steps_marked
from tracewarehouse.ingest.readers.launches import StepMark

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
        return named_phase(self.name) or ("decode" if self.name.endswith(" generate") else None)


@dataclass
class Launches:
    """The calls and launches on a host's threads."""

    markers: list[StepMarker] = field(default_factory=list)
    """Marks of the harness, which number their steps; their thread is a value of `threads`."""
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    """Number of each thread with events that count."""
    called: list[Call] = field(default_factory=list)
    """Calls of a server."""
    linked: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Start of each launch, by thread."""
    jitted: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    """Start and end of each call of a jitted function, by thread."""
    enqueued: dict[tuple[int, int], int] = field(default_factory=dict)
    """When the host handed an execution to a device, by the device's ordinal and `run_id`."""

    @property
    def marked(self) -> list[Call]:
        """The stretches under marks that name a phase."""
        threads = list(self.threads)
        steps = [m for m in steps_marked(self.markers) if named_phase(m.name)]
        return [Call(threads[m.thread], m.name, m.start_ps, m.end_ps, m.step) for m in steps]

    def starts(self, thread: tuple[int, int]) -> list[int]:
        """Return the times of a thread's launches; without such events, the starts of its calls of jitted functions."""
        jitted = self.jitted.get(thread, [])
        return sorted(self.linked.get(thread, ())) or [jitted[i][0] for i in outermost(jitted)]


def launches(host: Host) -> Launches:
    """Read the calls and launches of a host; lines are read only if the capture names such events."""
    found = Launches()
    for position, plane in enumerate(host.trace.planes):
        if plane_kind(plane.name) != "host" or not any(_is_call(m.name) for m in plane.event_metadata):
            continue
        names = (m.name for m in plane.event_metadata)
        is_wanted = [_is_call(n) or n == ENQUEUED or bool(LINKED.search(n) or JITTED.search(n)) for n in names]
        wanted = np.array([*is_wanted, False], bool)
        for number, line in enumerate(plane.lines):
            for batch in host.trace.batches(plane, line):
                if wanted[batch.metadata].any():
                    _read(found, host, plane, (position, number), batch, wanted)
    return found


def _is_call(name: str) -> bool:
    return bool(SERVER_LOOP.search(name) or SERVER_ENGINE.search(name) or named_phase(name))


def _read(
    launches: Launches, host: Host, plane: Plane, thread: tuple[int, int], batch: EventBatch, wanted: np.ndarray
) -> None:
    shifted = batch.moved(host.clock_offset_ps)
    launches.markers += step_markers(plane, shifted, launches.threads.setdefault(thread, len(launches.threads)))
    stats = {s.name: s for s in batch.stats}
    run_id, has_run_id = integers(stats.get("run_id"), len(batch))
    ordinal, has_ordinal = integers(stats.get("device_ordinal"), len(batch))
    for i in np.flatnonzero(wanted[batch.metadata]).tolist():
        name = plane.event_metadata[batch.metadata[i]].name
        start = int(shifted.start_ps[i])
        end = start + int(batch.duration_ps[i])
        if name == ENQUEUED:
            if has_run_id[i] and has_ordinal[i]:
                launches.enqueued.setdefault((int(ordinal[i]), int(run_id[i])), start)
        elif LINKED.search(name):
            launches.linked.setdefault(thread, []).append(start)
        elif JITTED.search(name):
            launches.jitted.setdefault(thread, []).append((start, end))
        elif SERVER_LOOP.search(name) or SERVER_ENGINE.search(name):
            launches.called.append(Call(thread, name, start, end))


def called_steps(found: Launches, runs: Mapping[int, Sequence[Run]]) -> dict[int, list[Step]]:
    """Find the steps of a host's devices, by ordinal, from the calls that launched their executions.

    The harness's marks are tried first, then the server's loop on the thread that launches most, then engines that
    prefill and generate on several threads. There are no steps if nothing shows which call launched what.

    Args:
        runs: executions of each device, by ordinal.
    """
    loops = [c for c in found.called if SERVER_LOOP.search(c.name)]
    engines = [c for c in found.called if not SERVER_LOOP.search(c.name)]
    calls_by_source = (found.marked, "marker"), (_busiest(found, loops), "server call"), (engines, "server call")
    for calls, source in calls_by_source:
        kept = [c for thread in sorted({c.thread for c in calls}) for c in _outermost_calls(calls, thread)]
        if kept and (steps := _steps(found, kept, runs, source)):
            return steps
    return {}


def _outermost_calls(calls: Sequence[Call], thread: tuple[int, int]) -> list[Call]:
    own = list({(c.start_ps, c.end_ps): c for c in calls if c.thread == thread}.values())
    return [own[i] for i in outermost([(c.start_ps, c.end_ps) for c in own])]


def _busiest(found: Launches, calls: Sequence[Call]) -> list[Call]:
    """Return the calls of the thread that launches most or, if none launches, of the one with most calls."""
    count = Counter(c.thread for c in calls)
    if not count:
        return []
    thread = max(count, key=lambda t: (len(found.starts(t)), count[t], t))
    return [c for c in calls if c.thread == thread]


def _steps(
    found: Launches, calls: Sequence[Call], runs: Mapping[int, Sequence[Run]], source: str
) -> dict[int, list[Step]]:
    by_start = sorted(calls, key=lambda c: c.start_ps)
    threads = {c.thread for c in calls}
    launched = sorted((at, thread) for thread in threads for at in found.starts(thread))
    members: dict[int, dict[int, list[Run]]] = {}
    for ordinal, own in runs.items():
        for position, run in _launched_by(found, by_start, launched, ordinal, own):
            members.setdefault(position, {}).setdefault(ordinal, []).append(run)
    steps: dict[int, list[Step]] = {}
    for number, position in enumerate(sorted(members)):
        call = by_start[position]
        index = number if call.step is None else call.step
        for ordinal, ran in members[position].items():
            ends = min(r.start_ps for r in ran), max(r.end_ps for r in ran)
            steps.setdefault(ordinal, []).append(Step(index, call.phase, call.phase or "step", *ends, source))
    return steps


def _launched_by(
    found: Launches,
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
        at, thread = launched[k] if is_ordered else (found.enqueued.get((ordinal, run.run_id or -1)), None)
        if at is None:
            continue
        last = bisect_right(starts, at) - 1
        for i in range(last, max(last - _BESIDE, -1), -1):
            if at < calls[i].end_ps and thread in (None, calls[i].thread):
                yield i, run
                break


def marked_batches(surveys: Sequence[HostSurvey]) -> list[Batch]:
    """Return the batches that the marks of steps tell, with the step of each.

    Processes that share each batch, as those of tensor parallelism do, count once. If their batches differ, each
    process is a rank of its own.
    """
    told: list[dict[int, StepMark]] = []
    for survey in surveys:
        of_host: dict[int, StepMark] = {}
        for _, timeline in survey.device_timelines:
            of_host |= {s.index: s.batch for s in timeline.steps if s.batch}
        if of_host:
            told.append(of_host)
    are_alike = all(batches == told[0] for batches in told)
    said = ("requests", "prefill_tokens", "decode_tokens", "scheduled_tokens")
    return [
        Batch(rank, position, step, **{name: getattr(mark, name) for name in said})
        for rank, batches in enumerate(told[:1] if are_alike else told)
        for position, (step, mark) in enumerate(sorted(batches.items()))
    ]


def join_batches(surveys: Sequence[HostSurvey], batches: Sequence[Batch]) -> tuple[list[Batch], list[Flag]]:
    """Join the k-th batch of a rank to the k-th step of its devices.

    What the server says of a batch is the phase of its step, unless a mark names another. The server also describes
    the batch before which it stops the profiler; that one, the last, has no step. If a rank has different numbers of
    steps and batches, or two batches with one id, none of its batches is joined; if they are all of one phase, its
    steps still are.
    """
    batch_ranks, host_ranks = {b.rank for b in batches}, {s.host.rank for s in surveys}
    has_ranks = max(len(batch_ranks), len(host_ranks)) > 1
    joined: list[Batch] = []
    flags = []
    for rank in sorted(batch_ranks | (host_ranks if batches and has_ranks else set())):
        own = [b for b in batches if b.rank == rank]
        hosts = [s for s in surveys if not has_ranks or s.host.rank == rank]
        timelines = [timeline for s in hosts for _, timeline in s.device_timelines]
        first: dict[int, int] = {}
        for step in (step for t in timelines for step in t.steps):
            first[step.index] = min(step.start_ps, first.get(step.index, step.start_ps))
        steps = sorted(first, key=lambda i: (first[i], i))
        ids = Counter(b.batch_id for b in own if b.batch_id is not None)
        sentence = ""
        has_next = len(own) == len(steps) + 1 and own[-1].is_profiled
        if len(steps) != len(own) and not has_next:
            sentence = f"the server tells of {len(own)} batches, the capture has {len(steps)} steps"
        elif repeated := [i for i, n in ids.items() if n > 1]:
            sentence = f"the server tells of several batches with id {repeated[0]}"
        phases: dict[int, str | None]
        if sentence:
            joined += own
            flags.append(Flag("batches_unmatched", f"rank {rank}: {sentence}" if has_ranks else sentence))
            said = {b.phase for b in own}
            phases = dict.fromkeys(steps, said.pop() if len(said) == 1 else None)
        else:
            joined += [replace(b, step=step) for b, step in zip_longest(own, steps)]
            phases = {step: b.phase for b, step in zip(own, steps, strict=False)}
        for timeline in timelines:
            timeline.set_steps([_of_batch(s, phases[s.index]) for s in timeline.steps])
    return joined, flags


def _of_batch(step: Step, phase: str | None) -> Step:
    if phase is None or (step.phase and step.source.startswith("marker")):
        return step
    return replace(step, phase=phase, name=phase)
