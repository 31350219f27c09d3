"""Finds the TPU slices that an experiment needs, how long they take for its runs, and which runs fit a budget.

The hours after which every run was stopped bound the cost, far above it. What a run takes follows from the times of its
steps, which `tw plan` predicts: loading the weights, compiling, and the generations of the harness.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.experiment import Experiment, plan
from tracewarehouse.collect.memory import MemoryNeed, require_memory
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import Pool, Quota
from tracewarehouse.collect.tpu.state import Slice
from tracewarehouse.collect.tpu.weights import BOOT_FREE, all_weights, weight_bytes


@dataclass(frozen=True)
class PlannedSlice:
    """The runs of an experiment that need a slice of one size."""

    accelerator_type: str
    chips: int
    hosts: int
    pool: Pool
    runs: list[RunSpec]
    timeout_s: float
    """Seconds after which a run is stopped."""
    memory: dict[str, MemoryNeed] = field(default_factory=dict)
    """Memory that each run of a published model needs, by its name."""
    expected_s: dict[str, float] = field(default_factory=dict)
    """Seconds that a run is expected to take, by its name, where they are known."""

    @property
    def disk(self) -> int:
        """Bytes of the largest model's files, for which the disk of each host must have room."""
        return max(map(weight_bytes, self.runs), default=0)

    @property
    def all_disk(self) -> int:
        """Bytes of the files of all models, which a read-only disk or a bucket must hold."""
        return all_weights(self.runs)

    @property
    def fits_boot_disk(self) -> bool:
        """Whether the hosts need no disk or bucket besides their own disk."""
        return self.disk <= BOOT_FREE

    @property
    def longest_h(self) -> float:
        """Hours until every run has ended or was stopped, if each is tried once; without the time to prepare hosts."""
        return len(self.runs) * self.timeout_s / 3600

    def _expected(self) -> str:
        """Return the expected hours, or how many runs have none."""
        if unknown := len(self.runs) - len(self.expected_s.keys() & {run.name for run in self.runs}):
            return f"expected: not known of {counted(unknown, 'run')}"
        hours = sum(self.expected_s[run.name] for run in self.runs) / 3600
        return f"expected {hours:.1f} h, {hours * self.chips:.0f} chip-hours"

    def lines(self) -> list[str]:
        """Return the plan as text: the slice, then each run."""
        disk = f"{self.disk / 1e9:.0f} GB for weights" + ("" if self.fits_boot_disk else " (--data-disk or --bucket)")
        head = [
            self.accelerator_type,
            counted(self.chips, "chip"),
            counted(self.hosts, "host"),
            self.pool.zone,
            self.pool.price_class,
            counted(len(self.runs), "capture"),
            f"at most {self.longest_h:.1f} h, {self.longest_h * self.chips:.0f} chip-hours",
            self._expected(),
            disk,
        ]
        return ["\t".join(head)] + [
            f"  {run.name}" + (f"\t{self.memory[run.name]} per chip" if run.name in self.memory else "")
            for run in self.runs
        ]


def counted(number: int, what: str) -> str:
    """Return a number of things in words, such as 1 host or 4 hosts."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def plan_slices(
    experiment: Experiment,
    generation: str,
    quota: Quota,
    *,
    zone: str | None = None,
    spot: bool | None = None,
    used: Iterable[Slice] = (),
) -> list[PlannedSlice]:
    """Return the slices that an experiment needs one after the other, smallest first, besides those that exist."""
    details = quota.generation(generation)
    by_size: dict[int, list[RunSpec]] = {}
    for spec in tpu_runs(experiment):
        by_size.setdefault(details.chips(spec.mesh.size), []).append(spec)
    slices, existing = [], list(used)
    for chips, runs in sorted(by_size.items()):
        accelerator_type = details.accelerator_type(chips)
        pool = quota.pool(generation, chips, zone=zone, spot=spot, used=existing)
        memory = {s.name: require_memory(s, details.kind) for s in runs if s.is_published}
        hosts = details.hosts[chips]
        _require_jax_for_instances(runs, details.provider, details.kind)
        slices.append(PlannedSlice(accelerator_type, chips, hosts, pool, runs, experiment.timeout_s, memory))
    return slices


def slice_runs(experiment: Experiment, entry: Slice, kind: str) -> list[RunSpec]:
    """Return the runs whose mesh has the size of a slice with chips of a kind in the table of hardware."""
    specs = tpu_runs(experiment)
    fitting = [s for s in specs if s.mesh.size == entry.devices]
    if not fitting:
        sizes = sorted({s.mesh.size for s in specs})
        raise TpuError(
            f"no run fits {entry.name} with its {counted(entry.devices, 'device')}; their meshes have {sizes} devices"
        )
    _require_jax_for_instances(fitting, entry.provider, kind)
    for spec in fitting:
        if spec.is_published:
            require_memory(spec, kind)
    return fitting


def _require_jax_for_instances(runs: list[RunSpec], provider: str, kind: str) -> None:
    """Refuse runs of torch_xla on chips for which it has no driver."""
    refused = [run.name for run in runs if run.backend == "torch_xla"]
    if refused and provider == "instance_group":
        raise TpuError(f"{', '.join(refused)}: torch_xla has no driver for {kind}; use backend jax")


def tpu_runs(experiment: Experiment) -> list[RunSpec]:
    """Return all runs of an experiment."""
    specs = plan(experiment)
    for spec in specs:
        if spec.device != "tpu":
            raise TpuError(f"{spec.name} is for device {spec.device}; set device: tpu in the experiment")
        if spec.backend == "torch_tpu":
            raise TpuError(
                f"{spec.name}: slices are set up for jax and torch_xla; record with torch_tpu by tw collect on its host"
            )
    return specs


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


StepKey = tuple[str, int, str, str | None, str | None, int, int, str, int | None, float | None]
"""Model, layers, mesh, sequence parallelism, capacity factor, batch, input length, dtype, microbatches of a pipeline
and routing skew, as the warehouse names them."""


def step_key(spec: RunSpec) -> StepKey:
    """Return under which key the warehouse has a run."""
    name = Path(spec.model).name if spec.is_published else f"{spec.model}-tiny"
    room = None if spec.capacity_factor is None else f"{float(spec.capacity_factor):g}"
    split = (str(spec.mesh), spec.sequence_parallelism, room, spec.batch, spec.input_length, spec.dtype)
    microbatches = spec.microbatch_count if spec.axis("pp") > 1 else None
    return name, spec.layers, *split, microbatches, spec.routing_skew or None


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
    kept = [
        replace(planned, runs=[run for run in planned.runs if run in chosen[number]])
        for number, planned in enumerate(slices)
        if number in chosen
    ]
    return Choice(kept, [run for _, run in waiting], spent)


def _facets(run: RunSpec, planned: PlannedSlice) -> set[object]:
    """Return what a run shows: its model, parallelism and slice, and each pair of them."""
    single = [("model", run.model), ("parallelism", run.folder.name), ("chips", planned.chips)]
    return {*single, *combinations(single, 2)}
