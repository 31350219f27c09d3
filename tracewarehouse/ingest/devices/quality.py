"""Finds the defects of a capture for its quality flags."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.batches import LineExtent
from tracewarehouse.ingest.columns.profiler_names import device_plane, line_kind
from tracewarehouse.ingest.columns.records import Plane
from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.hosts import Host
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow

EVENT_CAPS = frozenset({1_000_000, 5_000_000, 1 << 21, (1 << 21) + 1})
"""Numbers of events at which a profiler stops: XLA's JSON exporter (a million, since 2026 five), CUPTI's buffers
(2^21)."""
_DROP_WORDS = re.compile(r"drop|truncat|exceed|too many events|buffer is full|reaches max", re.IGNORECASE)
_DROP_STATS = frozenset({"dropped_traces", "dropped_events"})
_SLACK_PS = 1_000_000_000_000
"""Events may lie this far outside the window (or a tenth of it, if more) before a clock is suspected: a second."""
_FEW_OPS = 0.001
"""Share of a device's ops that may run in no recorded execution: a profile cuts the first one."""
_LITTLE_TIME = 0.01
"""Share of the op time that may be in instructions with only a known name."""
_MAIN = 0.1
"""Share of a device's time in programs from which on one is what the device is for, and no helper such as a copy."""
_LONGEST_PS = 3_600 * 1_000_000_000_000
"""If the window is not known, a line that spans more than this (an hour) has a clock that jumped."""


def messages(errors: Iterable[str], warnings: Iterable[str], host: str) -> list[Flag]:
    """Return flags for the profiler's own messages, and for dropped events if a message mentions them."""
    flags = []
    for name, texts in (("profiler_error", errors), ("profiler_warning", warnings)):
        for text in texts:
            flags.append(Flag(name, text, host))
            if _DROP_WORDS.search(text):
                flags.append(Flag("events_dropped", text, host))
    return flags


def dropped(planes: Sequence[Plane], host: str) -> list[Flag]:
    """Return flags for planes whose stats count dropped traces."""
    return [
        Flag("events_dropped", f"{p.name}: {s.name} is {s.value!r}", host)
        for p in planes
        for s in p.stats
        if s.name in _DROP_STATS and s.value not in (0, 0.0, "", "0", b"")
    ]


def clock_jump(where: str, extent: LineExtent, window: tuple[int, int] | None, host: str) -> list[Flag]:
    """Return flags for impossible times of a line; `window` is the host's profile on the run's clock, if known."""
    flags = []
    if extent.negative:
        flags.append(Flag("clock_jump", f"{where}: {extent.negative} events have a negative duration", host))
    if extent.first_ps is None or extent.last_ps is None:
        return flags
    if window is None:
        if extent.last_ps - extent.first_ps > _LONGEST_PS:
            seconds = (extent.last_ps - extent.first_ps) / 1e12
            flags.append(Flag("clock_jump", f"{where}: its events span {seconds:.0f} s, longer than any profile", host))
        return flags
    early, late = window[0] - extent.first_ps, extent.last_ps - window[1]
    for beyond, what in ((early, "begins {:.1f} s before"), (late, "ends {:.1f} s after")):
        if beyond > max(_SLACK_PS, (window[1] - window[0]) // 10):
            flags.append(Flag("clock_jump", f"{where}: {what.format(beyond / 1e12)} the profile", host))
    return flags


def event_cap(where: str, count: int, host: str) -> list[Flag]:
    """Return a flag for a line or file with exactly as many events as the limit of a profiler."""
    return [Flag("event_cap", f"{where} has {count:,} events", host)] if count in EVENT_CAPS else []


def damaged_instructions(rows: Iterable[InstructionRow]) -> Iterator[Flag]:
    """Yield flags for instructions with unreadable text, groups that were left out, or impossible sizes."""
    for row in rows:
        if row.is_unread:
            yield Flag("hlo_unreadable", f"{shown(row.name)}: its text is no HLO instruction")
        if row.lacks_groups:
            yield Flag("groups_left_out", shown(row.name))
        if shape := row.absurd_shape:
            yield Flag("absurd_sizes", f"{shown(row.name)}: {shown(shape)}")


def missing_hlo(rows: Sequence[InstructionRow], time_ps: Sequence[npt.NDArray[np.float64]]) -> Iterator[Flag]:
    """Yield a flag if some of the op time is in instructions of which the capture has only the name.

    `time_ps` is self time by instruction id, of each part of the run.
    """
    lacking: Counter[str] = Counter()
    for i, row in enumerate(rows):
        if row.module and row.hlo is None and row.category is None and row.collective is None:
            lacking[row.module] += int(sum(part[i] for part in time_ps if i < len(part)))
    total = sum(float(part.sum()) for part in time_ps)
    if lacking.total() > _LITTLE_TIME * total:
        sentence = f"{lacking.total() / total:.0%} of the op time is in instructions whose HLO is not in the capture"
        names = ", ".join(shown(name) for name, _ in lacking.most_common(3))
        yield Flag("missing_hlo", f"{sentence} ({names}): nothing tells which of them are collectives")


def uneven_launches(timelines: Sequence[tuple[int, Timeline]], programs: Collection[str | int | None]) -> list[Flag]:
    """Return flags for programs that devices ran different numbers of times.

    `timelines` are those of the devices, by device id. `programs` are the ids and module names of the programs that
    have collectives; the others do not matter.
    """
    flags = []
    for (module, program_id), counts in _launches(timelines).items():
        if module in programs or program_id in programs:
            ranked = counts.most_common()
            (most, high), (least, low) = ranked[0], ranked[-1]
            if high != low:
                sentence = f"{module} ran {high} times on device {most} and {low} times on device {least}"
                flags.append(Flag("uneven_launches", sentence))
    return flags


def uneven_steps(timelines: Sequence[tuple[int, Timeline]]) -> list[Flag]:
    """Return a flag for the first device whose steps differ from those of the device with most.

    The profile may cut a step at either end of each device. Only devices that run the same programs have the same
    steps: some may prefill while others decode.
    """
    steps = [(device, {s.index for s in timeline.steps}, _main_programs(timeline)) for device, timeline in timelines]
    by_number = sorted(steps, key=lambda of: -len(of[1]))
    for device, own, programs in steps:
        most, reference, _ = next(of for of in by_number if programs & of[2] or not programs or not of[2])
        if len(reference) - len(own) > 1:
            return [Flag("uneven_steps", f"device {most} has {len(reference)} steps, device {device} has {len(own)}")]
        if len(reference ^ own) > 2:
            numbers = f"{min(reference)} to {max(reference)}, device {device} {min(own)} to {max(own)}"
            return [Flag("uneven_steps", f"device {most} numbers its steps {numbers}")]
    return []


def _main_programs(timeline: Timeline) -> set[tuple[str, int | None]]:
    time: Counter[tuple[str, int | None]] = Counter()
    for run in timeline.runs:
        time[run.module, run.program_id] += run.end_ps - run.start_ps
    return {program for program, own in time.items() if own >= _MAIN * time.total()}


def unrecorded_executions(
    timelines: Sequence[tuple[int, Timeline]], leaf_ops: Mapping[tuple[int, bool], int]
) -> Iterator[Flag]:
    """Yield flags for devices with many ops in no execution, and for devices with executions but no op.

    `leaf_ops` is the number of leaf ops, by device id and whether an execution holds them.
    """
    has_executions = any(timeline.runs for _, timeline in timelines)
    for device, timeline in timelines:
        held, free = leaf_ops.get((device, True), 0), leaf_ops.get((device, False), 0)
        if has_executions and free > _FEW_OPS * (held + free):
            sentence = f"device {device}: {free:,} of {held + free:,} ops run in no recorded execution of a program"
            yield Flag("unrecorded_executions", sentence)
        if timeline.runs and not held:
            sentence = f"device {device} has {len(timeline.runs)} executions of programs and no op in them"
            yield Flag("missing_ops", sentence)


def uneven_programs(timelines: Sequence[tuple[int, Timeline]]) -> set[int | None]:
    """Return the ids of programs that devices ran different numbers of times, so that counts do not match."""
    return {p for (_, p), counts in _launches(timelines).items() if len(set(counts.values())) > 1}


def _launches(timelines: Sequence[tuple[int, Timeline]]) -> dict[tuple[str, int | None], Counter[int]]:
    """Return how often each device ran each program; programs that it never ran are absent."""
    counts: dict[tuple[str, int | None], Counter[int]] = {}
    for device, timeline in timelines:
        for run in timeline.runs:
            counts.setdefault((run.module, run.program_id), Counter())[device] += 1
    return counts


def silent_devices(hosts: Sequence[Host]) -> Iterator[Flag]:
    """Yield flags for devices that recorded nothing, and one for the run if that is all of its accelerators.

    A TPU has a plane because the profiler traced it. A GPU that no process uses has one too, without a line.
    """
    silent, active = [], set()
    for host in hosts:
        for p in host.trace.planes:
            name = device_plane(p.name)
            if name and not name.is_sparse_core:
                if any(line.has_events and line_kind(p.name, line.name) != "counters" for line in p.lines):
                    active.add((name.backend, host.index))
                elif name.backend == "tpu" or p.lines:
                    silent.append((name.backend, host, p.name))
    if silent and not active:
        names = ", ".join(f"{plane} of {host.name}" for _, host, plane in silent[:4])
        more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
        sentence = f"{names}{more}: the planes of the devices are there without an event, so what they ran is lost"
        yield Flag("no_device_events", sentence)
        return
    backends = {backend for backend, _ in active}
    for backend, host, plane in silent:
        if (backend, host.index) in active or (backend == "tpu" and backend in backends):
            yield Flag("silent_device", f"{plane} has no event", host.name)
