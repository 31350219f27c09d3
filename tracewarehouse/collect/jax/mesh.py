"""Makes a JAX mesh of the devices of a run, and brings arrays and the weights of a model to it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format, Layout

from tracewarehouse.collect.errors import CheckError, CollectError
from tracewarehouse.collect.parallel.partition import MODES, Partition, explicit_partition
from tracewarehouse.collect.parallel.weights import ModelWeights
from tracewarehouse.collect.run_spec import MESH_AXES, RunSpec


class JaxMesh:
    """The run's devices, by default all that JAX has, as one mesh with all axes of the collector."""

    def __init__(self, spec: RunSpec, devices: Any = None) -> None:
        if devices is None:
            devices = jax.devices()
        if len(devices) != spec.mesh.size:
            raise CheckError(
                f"the mesh {spec.mesh} needs {spec.mesh.size} devices, the {spec.device} backend has {len(devices)}"
            )
        self.sizes = {axis: spec.axis(axis) for axis in MESH_AXES}
        self._is_grouped = spec.device == "tpu" and spec.capacity_factor is None
        ordered = sorted(devices, key=lambda device: device.id)
        self.mesh = jax.sharding.Mesh(np.array(ordered).reshape(tuple(self.sizes.values())), MESH_AXES)

    def split(self, partition: Partition) -> Any:
        """Return the sharding of an array over the devices."""
        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*partition))

    def placed(self, partition: Partition) -> Any:
        """Return the sharding of a weight, and where a TPU multiplies grouped rows by it the layout that this needs.

        Experts are the only weights that ep splits. Their grouped product reads a matrix [out, in] with the inputs
        outermost; any other layout would be copied in every step.
        """
        sharding = self.split(partition)
        if not self._is_grouped or "ep" not in partition:
            return sharding
        *outer, last, before = range(len(partition))
        return Format(Layout((*outer, before, last)), sharding)

    def assemble(self, shape: tuple[int, ...], partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """Return an array on the devices, read part by part.

        `read` returns a slice of it on the host, and is called once per distinct slice.
        """
        parts: dict[str, Any] = {}

        def part(index: tuple[slice, ...]) -> Any:
            slices = tuple(slice(*i.indices(n)[:2]) for i, n in zip(index, shape, strict=True))
            if str(slices) not in parts:
                parts[str(slices)] = read(slices)
            return parts[str(slices)]

        return jax.make_array_from_callback(shape, self.placed(partition), part)

    def require_even(self, name: str, shape: tuple[int, ...], partition: Partition) -> None:
        """Refuse a weight that does not divide into equal parts."""
        for length, axes in zip(shape, partition, strict=True):
            count = math.prod(self.sizes[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
            if length % count:
                raise CollectError(
                    f"{name}: its {length} rows or columns do not divide over {axes}={count}, as the jax "
                    "backend needs; choose another mesh, or --backend torch_xla"
                )


_LAYER = re.compile(r"^model\.layers\.(\d+)\.(.*)$")

Weights = dict[str, Any]
"""Arrays by name."""


def run_partition(spec: RunSpec, name: str, dimensions: int) -> Partition:
    """Return the split of a weight; in the modes that hold whole layers only those outside of the layers have one."""
    if spec.sequence_parallelism in MODES and ".layers." in name:
        return (None,) * dimensions
    return explicit_partition(name, dimensions)


def on_devices(spec: RunSpec, weights: ModelWeights, mesh: JaxMesh) -> tuple[Weights, list[Weights]]:
    """Bring all weights to the devices, each device only its parts.

    Returns:
        Weights outside of the layers by name, and those of each layer by the name within it. In a pipeline, slots take
        the place of layers, and their weights have the stages as their first dimension.
    """
    weights.copy_heads(spec)
    names = list(weights.names())
    splits = {name: run_partition(spec, name, len(weights.shape(name))) for name in names}
    for name, split in splits.items():
        mesh.require_even(name, weights.shape(name), split)
    outer: Weights = {}
    layers: dict[int, Weights] = {}
    for name, split in splits.items():
        match = _LAYER.match(name)
        if match is None or spec.axis("pp") == 1:
            own, inner = (outer, name) if match is None else (layers.setdefault(int(match[1]), {}), match[2])
            own[inner] = mesh.assemble(weights.shape(name), split, weights.reader(name, spec.dtype))
    inside = [layers[number] for number in sorted(layers)]
    if spec.axis("pp") > 1:
        inside = [_slot(spec, weights, mesh, slot, names) for slot in range(spec.stage_layout.slots)]
    weights.close()
    return outer, inside


def _slot(spec: RunSpec, weights: ModelWeights, mesh: JaxMesh, slot: int, names: Sequence[str]) -> Weights:
    """Return the weights of a slot, [stages, ...]; zeros for stages without a layer."""
    numbers = spec.stage_layout.slot_layers(slot)
    kind = next(n for n in numbers if n is not None)
    inner = [match[2] for match in map(_LAYER.match, names) if match and int(match[1]) == kind]
    out = {}
    for name in inner:
        stored = [None if n is None else f"model.layers.{n}.{name}" for n in numbers]
        dimensions = len(weights.shape(f"model.layers.{kind}.{name}"))
        partition = run_partition(spec, f"model.layers.{kind}.{name}", dimensions)
        out[name] = weights.stacked(stored, mesh, spec.dtype, partition)
    return out
