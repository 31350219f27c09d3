"""Finds the steps of a run, as its server counts them, by the first rule for which the capture holds the facts."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.devices.host_survey import HostSurvey
from tracewarehouse.ingest.devices.hosts import Device
from tracewarehouse.ingest.devices.sampled_programs import layered_programs
from tracewarehouse.ingest.devices.server_steps import called_steps, launches
from tracewarehouse.ingest.devices.timeline import Run, Step, Timeline, named_phase
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.instructions import Instructions

_GENERATES = re.compile(r"(?<![a-z])generate(?![a-z])", re.IGNORECASE)
_Timelines = list[tuple[Device, Timeline]]
_StepKey = tuple[str, int | None, int]
"""Module, program id, and how often the device had run that program before."""


def number_steps(surveys: Sequence[HostSurvey], instructions: Instructions, program: str | None = None) -> list[Flag]:
    """Set the steps of all hosts' devices, and return flags for what was inferred.

    The rules, in this order: the program that the user names; the profiler's Steps line; marks on the launching thread,
    unless they name no phase where modules do; modules that name phases; marks and calls of a server on the host; and
    last the programs that hold layers, or the program with most device time.
    """
    devices = [pair for s in surveys for pair in s.device_timelines]
    flags = _numbered(surveys, devices, instructions, program)
    if any(t.steps for _, t in devices):
        for _, timeline in devices:
            timeline.set_run_has_steps()
    return flags


def _numbered(
    surveys: Sequence[HostSurvey], devices: _Timelines, instructions: Instructions, program: str | None
) -> list[Flag]:
    if program is not None:
        _take(devices, _told(devices, program), "told program")
        return []
    names = _named_phases(devices)
    marked = [s for _, t in devices for s in t.steps]
    is_neutral = bool(marked) and all(s.is_marked and not s.phase for s in marked)
    if marked and not (names and is_neutral):
        return _beside(devices)
    if names:
        _take(devices, lambda r: r.module in names, "module name", names)
        return []
    return _beside(devices) if _called(surveys) else _inferred(surveys, devices, instructions)


def starters(device_time: Mapping[str, int], with_layers: Collection[str] = ()) -> set[str]:
    """The names of the modules that begin a step, given the device time of each and those that hold layers.

    These are all modules that hold layers, since servers compile one for each kind of batch and padded size. If none
    holds layers, it is the module with most device time.
    """
    programs = {m for m in device_time if m in with_layers}
    return programs or set(sorted(device_time, key=lambda m: (-device_time[m], m))[:1])


def launch_to_launch(
    device_runs: Sequence[Sequence[Run]],
    is_first: Callable[[Run], bool],
    source: str,
    phase_by_module: Mapping[str, str | None],
) -> list[list[Step]]:
    """Set steps that begin with an execution of certain programs and last until the next one begins.

    A step is identified across devices by its program and how often that has run on the device, so a device that also
    ran something alone keeps the same count. What runs before the first step belongs to no step.
    """
    keyed: list[list[tuple[_StepKey, Run, int]]] = []
    earliest: dict[_StepKey, int] = {}
    for runs in device_runs:
        count: Counter[tuple[str, int | None]] = Counter()
        begun: list[tuple[_StepKey, Run, int]] = []
        for run in sorted(runs, key=lambda r: r.start_ps):
            if is_first(run):
                program = run.module, run.program_id
                key = (*program, count[program])
                count[program] += 1
                earliest[key] = min(run.start_ps, earliest.get(key, run.start_ps))
                begun.append((key, run, run.end_ps))
            elif begun:
                first, begin, end = begun[-1]
                begun[-1] = first, begin, max(end, run.end_ps)
        keyed.append(begun)
    order = sorted(earliest, key=lambda k: (earliest[k], k[0], k[2]))
    offset = 1 if order and phase_by_module.get(order[0][0]) == "decode" else 0
    index = {key: i + offset for i, key in enumerate(order)}
    return [
        [
            Step(index[key], phase, phase or run.module, run.start_ps, end, source)
            for key, run, end in begun
            for phase in (phase_by_module.get(run.module),)
        ]
        for begun in keyed
    ]


def _take(
    devices: _Timelines,
    is_first: Callable[[Run], bool],
    source: str,
    phase_by_module: Mapping[str, str | None] | None = None,
) -> None:
    modules = {r.module for _, t in devices for r in t.runs}
    named = {m: named_phase(m) for m in modules} | dict(phase_by_module or {})
    # on virtual CPU devices each process numbers its programs for itself
    runs = [[replace(r, program_id=None) for r in t.runs] if d.backend == "cpu" else t.runs for d, t in devices]
    steps = launch_to_launch(runs, is_first, source, named)
    for (_, timeline), own in zip(devices, steps, strict=True):
        timeline.set_steps(own)


def _told(devices: _Timelines, program: str) -> Callable[[Run], bool]:
    modules = sorted({r.module for _, t in devices for r in t.runs})
    if program not in modules:
        ran = f"{len(modules)} programs ran: {', '.join(modules[:20])}"
        ran = ran if modules else "no program's execution is recorded"
        raise CaptureError(f"--step {program}: no execution of a program of that name; {ran}")
    return lambda run: run.module == program


def _named_phases(devices: _Timelines) -> dict[str, str | None]:
    """Return the phase of modules whose names say prefill or decode; beside a prefill, generate is decode."""
    modules = {r.module for _, t in devices for r in t.runs}
    named: dict[str, str | None] = {m: phase for m in modules if (phase := named_phase(m))}
    if "prefill" in named.values() and "decode" not in named.values():
        named |= {m: "decode" for m in modules if m not in named and _GENERATES.search(m.replace("_", " "))}
    return named


def _beside(devices: _Timelines) -> list[Flag]:
    """Give devices without steps those of a device with steps, from the executions at the same times.

    A device of another host counts only if it ran one of the same programs.
    """
    having = [(d, t, {r.module for r in t.runs}) for d, t in devices if t.steps]
    ids = []
    for device, timeline in devices:
        if timeline.steps or not timeline.runs:
            continue
        own = {r.module for r in timeline.runs}
        near = [(d.host != device.host, d.device_id, t) for d, t, ran in having if d.host == device.host or own & ran]
        if not near:
            continue
        *_, other = min(near, key=lambda candidate: candidate[:2])
        starts = [s.start_ps for s in other.steps]
        members: dict[int, list[Run]] = {}
        for run in timeline.runs:
            middle = (run.start_ps + run.end_ps) // 2  # devices begin a step some microseconds apart
            at = bisect_right(starts, middle) - 1
            if at >= 0 and (at + 1 < len(starts) or middle < other.steps[at].end_ps):
                members.setdefault(at, []).append(run)
        steps = []
        for at, runs in members.items():
            start, end = min(r.start_ps for r in runs), max(r.end_ps for r in runs)
            source = f"{other.steps[at].source} of another device"
            steps.append(replace(other.steps[at], start_ps=start, end_ps=end, source=source))
        timeline.set_steps(steps)
        ids.append(device.device_id)
    if not ids:
        return []
    names = ", ".join(map(str, ids))
    return [Flag("inferred_steps", f"devices {names} have the steps of another device at the same times")]


def _called(surveys: Sequence[HostSurvey]) -> bool:
    is_told = False
    for survey in surveys:
        cores = {p.device.local_ordinal: p.timeline for p in survey.planes.values() if not p.is_sparse_core}
        if not any(t.runs for t in cores.values()):
            continue
        steps = called_steps(launches(survey.host), {n: t.runs for n, t in cores.items()})
        for ordinal, own in steps.items():
            cores[ordinal].set_steps(own)
        is_told = is_told or bool(steps)
    return is_told


def _inferred(surveys: Sequence[HostSurvey], devices: _Timelines, instructions: Instructions) -> list[Flag]:
    time: Counter[str] = Counter()
    for _, timeline in devices:
        for run in timeline.runs:
            time[run.module] += run.end_ps - run.start_ps
    if not time:
        return []
    begins = starters(time, layered_programs(surveys, instructions) if len(time) > 1 else ())
    _take(devices, lambda r: r.module in begins, "program")
    names = ", ".join(sorted(begins))
    why = "the program with most time" if begins == starters(time) else "of those that hold layers"
    sentence = f"a step begins with each execution of {names}, {why}"
    return [Flag("inferred_steps", f"{sentence}; `--step` at ingest names another")]
