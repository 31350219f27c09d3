"""Which TPU slices an experiment needs, and whether its runs fit their chips."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.experiment import Experiment, plan
from tracewarehouse.collect.memory import MemoryNeed, require_memory
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import Pool, Quota
from tracewarehouse.collect.tpu.state import Slice


@dataclass(frozen=True)
class PlannedSlice:
    """The runs of an experiment that need a slice of one size."""

    accelerator_type: str
    chips: int
    hosts: int
    pool: Pool
    runs: list[RunSpec]
    memory: dict[str, MemoryNeed] = field(default_factory=dict)
    """Need of each run of a published model."""


def plan_slices(
    experiment: Experiment,
    generation: str,
    quota: Quota,
    *,
    zone: str | None = None,
    spot: bool | None = None,
    used: Iterable[Slice] = (),
) -> list[PlannedSlice]:
    """The slices that an experiment needs, smallest first, one after the other, beside those that exist.

    Raises:
        ExperimentError: a run does not fit into the memory of its chips.
        TpuError: a run is not for TPUs, or no slice of its size exists.
        QuotaError: a slice is outside of the quota.
    """
    details = quota.generation(generation)
    by_size: dict[int, list[RunSpec]] = {}
    for spec in tpu_runs(experiment):
        by_size.setdefault(spec.mesh.size, []).append(spec)
    slices, existing = [], list(used)
    for chips, runs in sorted(by_size.items()):
        accelerator_type = details.accelerator_type(chips)
        pool = quota.pool(generation, chips, zone=zone, spot=spot, used=existing)
        memory = {s.name: require_memory(s, details.kind) for s in runs if s.is_published}
        slices.append(PlannedSlice(accelerator_type, chips, details.hosts[chips], pool, runs, memory))
    return slices


def runs_of_slice(experiment: Experiment, entry: Slice, kind: str) -> list[RunSpec]:
    """The runs whose mesh has the size of a slice.

    Args:
        experiment: All runs.
        entry: The slice.
        kind: Of its chips, as in the table of hardware.

    Raises:
        ExperimentError: a run does not fit into the memory of its chips.
        TpuError: a run is not for TPUs, or none has the size of the slice.
    """
    specs = tpu_runs(experiment)
    fitting = [s for s in specs if s.mesh.size == entry.chips]
    if not fitting:
        sizes = sorted({s.mesh.size for s in specs})
        raise TpuError(f"no run fits {entry.name} with its {entry.chips} chips; their meshes have {sizes} devices")
    for spec in fitting:
        if spec.is_published:
            require_memory(spec, kind)
    return fitting


def tpu_runs(experiment: Experiment) -> list[RunSpec]:
    """All runs of an experiment.

    Raises:
        TpuError: one of them is not for TPUs.
    """
    specs = plan(experiment)
    for spec in specs:
        if spec.device != "tpu":
            raise TpuError(f"{spec.name} is for device {spec.device}; set device: tpu in the experiment")
    return specs
