"""Puts the weights of a model on the devices of a JAX mesh, by their names in transformers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.parallel.context_parallelism import MODES
from tracewarehouse.collect.parallel.experts import split_gate_and_up
from tracewarehouse.collect.parallel.partition import Partition, weight_partition
from tracewarehouse.collect.parallel.published import PublishedWeights

if TYPE_CHECKING:
    from tracewarehouse.collect.jax.mesh import JaxMesh
    from tracewarehouse.collect.run_spec import RunSpec

_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.*)$")
_BIAS = re.compile(r"\.(q|k|v)_proj\.bias$")

Weights = dict[str, Any]
"""Arrays by name."""


class TinyWeights(PublishedWeights):
    """The weights of a tiny model, which is on the host already."""

    def __init__(self, model: Any) -> None:
        split_gate_and_up(model)
        buffers = {n: b for n, b in model.named_buffers() if "rotary_emb" not in n}
        self._values = {**dict(model.named_parameters()), **buffers}
        self._shapes = {name: tuple(value.shape) for name, value in self._values.items()}

    def names(self) -> Sequence[str]:
        """Return the names of all weights; a weight that two modules share appears once."""
        return list(self._values)

    def close(self) -> None:
        """Do nothing: there is no file."""

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return a slice of a weight."""
        return self._values[name][slices].to(dtype)


def partition_of(spec: RunSpec, name: str, dimensions: int) -> Partition:
    """Return the split of a weight: as under torch_xla, and biases of query, key and value like their rows."""
    if spec.sequence_parallelism in MODES and ".layers." in name:
        return (None,) * dimensions
    if _BIAS.search(name):
        return ("tp",)
    return weight_partition(name, dimensions)


def on_devices(spec: RunSpec, weights: PublishedWeights, mesh: JaxMesh) -> tuple[Weights, list[Weights]]:
    """Bring all weights to the devices, each device only its parts.

    Returns:
        Weights outside of the layers by name, and those of each layer by the name within it. In a pipeline, slots take
        the place of layers, and their weights have the stages as their first dimension.

    Raises:
        CollectError: a weight does not divide into equal parts.
    """
    import torch

    dtype = getattr(torch, spec.dtype)
    names = list(weights.names())
    for name in names:
        shape = weights.shape(name)
        mesh.require_even(name, shape, partition_of(spec, name, len(shape)))
    outer: Weights = {}
    layers: dict[int, Weights] = {}
    for name in names:
        match = _LAYER.match(name)
        if match is None or spec.axis("pp") == 1:
            shape = weights.shape(name)
            array = mesh.assemble(shape, partition_of(spec, name, len(shape)), weights.reader(name, dtype))
            if match is None:
                outer[name] = array
            else:
                layers.setdefault(int(match[1]), {})[match[2]] = array
    if spec.axis("pp") == 1:
        weights.close()
        return outer, [layers[number] for number in sorted(layers)]
    slots = [_slot(spec, weights, mesh, slot, names) for slot in range(spec.stage_layout.slots)]
    weights.close()
    return outer, slots


def _slot(spec: RunSpec, weights: PublishedWeights, mesh: JaxMesh, slot: int, names: Sequence[str]) -> Weights:
    """Return the weights of a slot, [stages, ...]; zeros for stages without a layer."""
    import torch

    numbers = spec.stage_layout.layers_of(slot)
    kind = next(n for n in numbers if n is not None)
    inner = [match[2] for match in map(_LAYER.match, names) if match and int(match[1]) == kind]
    out = {}
    for name in inner:
        of_stages = [None if n is None else f"model.layers.{n}.{name}" for n in numbers]
        dimensions = len(weights.shape(f"model.layers.{kind}.{name}"))
        partition = partition_of(spec, f"model.layers.{kind}.{name}", dimensions)
        out[name] = weights.stacked(of_stages, mesh, getattr(torch, spec.dtype), partition)
    return out
