"""Computes the disk space that the files of published models take."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tracewarehouse.collect.models.pretrained import PretrainedModel, is_folder, pretrained_model
from tracewarehouse.collect.run_spec import RunSpec

BOOT_DISK = 100 * 2**30
"""Bytes of the boot disk of a TPU virtual machine, which cannot be made larger."""
SYSTEM = 40 * 10**9
"""Bytes of the boot disk that system and collector take: an estimate; torch alone takes 7 GB."""
BOOT_FREE = BOOT_DISK - SYSTEM
MARGIN = 1.05
"""Factor for the other content of a checkpoint: scales, multi-token prediction, whole files."""
_EIGHT_BITS = ("deepseek_v3",)
"""Architectures that are published with 8 bits per weight; all others have 16."""


def stored_bytes(model: PretrainedModel, layers: int) -> int:
    """Return the bytes of the files with a published model's first layers and its weights outside of the layers."""
    shapes = list(model.other_weights().values())
    for layer in range(layers):
        shapes += model.layer_weights(layer).values()
    element = 1 if model.architecture in _EIGHT_BITS else 2
    return math.ceil(MARGIN * element * sum(math.prod(shape) for shape in shapes))


def weights_of(spec: RunSpec) -> int:
    """Return the bytes that the files of a run's model take on a disk; 0 for a tiny model and a local folder."""
    if not spec.is_published or is_folder(spec.model):
        return 0
    return stored_bytes(pretrained_model(spec.model), spec.layers)


def largest_weights(specs: Iterable[RunSpec]) -> int:
    """Return the bytes that a disk needs for runs one after the other, which make room for each other."""
    return max(map(weights_of, specs), default=0)


def all_weights(specs: Iterable[RunSpec]) -> int:
    """Return the bytes that a disk needs for the models of all runs together."""
    by_model: dict[str, int] = {}
    for spec in specs:
        by_model[spec.model] = max(by_model.get(spec.model, 0), weights_of(spec))
    return sum(by_model.values())


def too_large(spec: RunSpec) -> str | None:
    """Return why a host without another disk or a bucket cannot hold a run's weights; None if it can."""
    if (needed := weights_of(spec)) <= BOOT_FREE:
        return None
    return (
        f"the files of {spec.model} take {needed / 1e9:.0f} GB, and the hosts' own disks have {BOOT_FREE / 1e9:.0f} GB "
        "to give; create the slice with --data-disk or --bucket"
    )
