"""Estimates how long a slice takes for the runs of an experiment, and chooses runs for a budget of chip-hours.

The hours after which every run was stopped bound the cost, far above it. What a run takes follows from the times of its
steps, which `tw plan` predicts: loading the weights, compiling, and the generations of the harness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.plan import PlannedSlice
from tracewarehouse.collect.tpu.weights import weight_bytes

SET_UP_S = 600.0
"""Time to create a slice and to install the collector: an estimate."""
START_S = 60.0
"""Time to start a run's process, to copy its capture and to look for it: an estimate."""
COMPILE_S = 60.0
"""Time to compile a program: 30 to 90 CPU seconds where programs are compiled ahead."""
LOAD_BYTES_PER_S = 250e6
"""Rate at which a host reads weights, from the hub or a bucket: an estimate."""
GENERATIONS = 12
"""Generations of a run: two to warm up, then five with the profiler off and five with it on."""
MICROBENCHMARKS_S = 600.0
"""Time of a run of the experiment calibrate: an estimate; most of it compiles."""


@dataclass(frozen=True)
class StepTimes:
    """Times of a run's steps in seconds, as predicted."""

    prefill_s: float
    decode_s: float


StepKey = tuple[str, str, str | None, int, int]
"""Model, mesh, sequence parallelism, batch and input length, as the warehouse names them."""


def step_key(spec: RunSpec) -> StepKey:
    """Return under which key the warehouse has a run."""
    name = Path(spec.model).name if spec.is_published else f"{spec.model}-tiny"
    return name, str(spec.mesh), spec.sequence_parallelism, spec.batch, spec.input_length


def expected_s(spec: RunSpec, hosts: int, steps: Mapping[StepKey, StepTimes]) -> float | None:
    """Return the seconds that a run is expected to take on a slice; None if its steps were not predicted."""
    if not spec.has_model:
        return START_S + MICROBENCHMARKS_S
    if (times := steps.get(step_key(spec))) is None:
        return None
    generation = times.prefill_s + (spec.output_length - 1) * times.decode_s
    # Each host reads the parts of the weights that its chips hold.
    load = weight_bytes(spec) / hosts / LOAD_BYTES_PER_S
    return START_S + load + COMPILE_S * len(spec.step_lengths) + GENERATIONS * generation


def with_hours(slices: Iterable[PlannedSlice], steps: Mapping[StepKey, StepTimes]) -> list[PlannedSlice]:
    """Return the slices with the seconds that each of their runs is expected to take, where that is known."""
    out = []
    for planned in slices:
        known = {run.name: expected_s(run, planned.hosts, steps) for run in planned.runs}
        out.append(replace(planned, expected_s={name: s for name, s in known.items() if s is not None}))
    return out


@dataclass(frozen=True)
class Choice:
    """The runs of an experiment that fit a budget."""

    slices: list[PlannedSlice]
    left_out: list[RunSpec]
    chip_hours: float
    """What the chosen ones are expected to take, or at most where that is not known."""


def within_budget(slices: Sequence[PlannedSlice], chip_hours: float) -> Choice:
    """Choose the runs that show the most for a budget, one after the other.

    The next run is the one that adds most for its cost: a model, a parallelism or a size of slice that none has yet
    counts, and so does each pair of them. Of equal ones the first in the experiment is taken. The first run on a slice
    pays for setting it up.
    """
    seen: set[object] = set()
    chosen: dict[int, list[RunSpec]] = {}
    spent = 0.0
    waiting = [(number, run) for number, planned in enumerate(slices) for run in planned.runs]

    def cost(number: int, run: RunSpec) -> float:
        planned = slices[number]
        set_up = 0.0 if number in chosen else SET_UP_S
        return planned.chips * (set_up + planned.expected_s.get(run.name, planned.timeout_s)) / 3600

    def gain(number: int, run: RunSpec) -> int:
        return len(_facets(run, slices[number]) - seen)

    while affordable := [(n, run) for n, run in waiting if spent + cost(n, run) <= chip_hours]:
        number, run = max(affordable, key=lambda pair: (gain(*pair) + 1) / cost(*pair))
        spent += cost(number, run)
        seen |= _facets(run, slices[number])
        chosen.setdefault(number, []).append(run)
        waiting.remove((number, run))
    kept = []
    for number, planned in enumerate(slices):
        names = {run.name for run in chosen.get(number, [])}
        if names:
            kept.append(replace(planned, runs=[run for run in planned.runs if run.name in names]))
    return Choice(kept, [run for _, run in waiting], spent)


def _facets(run: RunSpec, planned: PlannedSlice) -> set[object]:
    """Return what a run shows: its model, parallelism and slice, and each pair of them."""
    single = [("model", run.model), ("parallelism", run.folder.name), ("chips", planned.chips)]
    return {*single, *combinations(single, 2)}
