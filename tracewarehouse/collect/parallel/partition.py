"""Decides which mesh axes split which dimension of a tensor."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

Axes = str | tuple[str, ...] | None
"""The split of one dimension: by one mesh axis, by several (outermost first), or by none."""

Partition = tuple[Axes, ...]
"""One entry per dimension of a tensor."""

MODES = ("ulysses", "ring")
"""Modes of sequence parallelism in which every device holds whole layers and attention exchanges values."""

BATCH: Axes = ("dp", "ep")
"""The axes that split the batch: outside the experts, devices of an expert group work on different sequences."""

WEIGHT_RULES: tuple[tuple[str, Partition], ...] = (
    # Tensor parallelism as in Megatron-LM (Shoeybi et al. 2019): the first matrix of a block by columns, the second
    # by rows (torch stores a linear weight as [out, in]).
    (r"\.(q|k|v|gate|up|q_b|kv_b)_proj\.weight$", ("tp", None)),
    (r"\.(o|down)_proj\.weight$", (None, "tp")),
    (r"^lm_head\.weight$", ("tp", None)),
    # Experts [expert, out, in]: whole experts over ep, the width of each over tp.
    (r"\.experts\.(gate|up)_proj$", ("ep", "tp", None)),
    (r"\.experts\.down_proj$", ("ep", None, "tp")),
)

BY_KV_HEAD = re.compile(r"\.(k|v)_proj\.(weight|bias)$")
"""Names of the weights whose rows are those of key-value heads."""
_HEAD_BIAS = re.compile(r"\.(q|k|v)_proj\.bias$")


def weight_partition(name: str, dimensions: int) -> Partition:
    """Return the partition of a model's parameter by its name; without a rule every device has a copy."""
    for pattern, partition in WEIGHT_RULES:
        if re.search(pattern, name) and len(partition) == dimensions:
            return partition
    return (None,) * dimensions


def explicit_partition(name: str, dimensions: int) -> Partition:
    """Return the partition where a program is written out for one device: biases of heads are split like their rows."""
    return ("tp",) if _HEAD_BIAS.search(name) else weight_partition(name, dimensions)


def device_slices(
    shape: tuple[int, ...], partition: Partition, sizes: Mapping[str, int], coordinate: Mapping[str, int]
) -> tuple[slice, ...]:
    """Return the part of a tensor that is on one device, as one slice per dimension.

    `sizes` are those of the mesh axes (1 when absent), `coordinate` is the device's place on them (0 when absent). A
    dimension that does not divide evenly gives the last devices less, or nothing.
    """
    slices = []
    for length, axes in zip(shape, partition, strict=True):
        parts, place = 1, 0
        for axis in (axes,) if isinstance(axes, str) else axes or ():
            size = sizes.get(axis, 1)
            parts, place = parts * size, place * size + coordinate.get(axis, 0)
        block = math.ceil(length / parts)
        slices.append(slice(min(place * block, length), min((place + 1) * block, length)))
    return tuple(slices)
