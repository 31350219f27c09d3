"""Gives slices of the weights of a run: from a seed, from published files, or zeros."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.checkpoint import Checkpoint, array_type, in_file_order
from tracewarehouse.collect.models.pretrained import CORRECTION, PretrainedModel, Shape
from tracewarehouse.collect.parallel.partition import BY_KV_HEAD, MODES, Partition, weight_partition
from tracewarehouse.collect.run_spec import RunSpec

SPREAD = 0.02
"""Standard deviation of weights from a seed, as transformers makes them by default."""


class Assembler(Protocol):
    """The devices of a run, under whatever stack."""

    def assemble(self, shape: Shape, partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """Return an array on the devices; `read` returns a slice of it in numpy."""


class ModelWeights:
    """The weights of a run by their names in the collector's model, of which any slice can be read.

    A weight of keys or values has rows for every copy of a head (`RunSpec.kv_copies`) where devices ask for it.
    """

    kv_copies, kv_heads = 1, 1

    def __init__(self, model: PretrainedModel, layers: int) -> None:
        self.model = model
        self._shapes = model.stored_weights(layers)

    def names(self) -> Sequence[str]:
        """Return the names of all weights, in the order in which they are read fastest."""
        return list(self._shapes)

    def close(self) -> None:
        """Close the files, if there are some."""

    def copy_heads(self, spec: RunSpec) -> None:
        """Give every device of tp a key-value head, if there are fewer heads than devices."""
        if spec.sequence_parallelism not in MODES:  # where every device holds whole layers
            self.kv_copies, self.kv_heads = spec.kv_copies, model_architecture(spec.model).num_kv_heads

    def shape(self, name: str) -> Shape:
        """Return the shape of a weight."""
        rows, *rest = self._shapes[name]
        return (rows * self._copies(name), *rest)

    def reader(self, name: str, dtype: str) -> Callable[[tuple[slice, ...]], Any]:
        """Return the function that reads slices of a weight, in its dtype in a run of `dtype`."""
        own = _dtype(name, dtype)
        return lambda slices: self.read(name, self._stored(name, slices), own)

    def whole(self, name: str, dtype: str) -> Any:
        """Return a whole weight in its dtype in a run of `dtype`, without copies of heads."""
        return self.read(name, tuple(slice(0, n) for n in self._shapes[name]), _dtype(name, dtype))

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return a slice of a weight as an array."""
        raise NotImplementedError

    def stacked(
        self, names: Sequence[str | None], mesh: Assembler, dtype: str, partition: Partition | None = None
    ) -> Any:
        """Return the same weight of one layer of every stage, [stages, ...], each on the devices of its stage.

        A stage whose name of the weight is None gets zeros. `partition` is that of one stage's weight, by default the
        one of `weight_partition`.
        """
        known = next(name for name in names if name is not None)
        shape, own_type = self.shape(known), _dtype(known, dtype)

        def read_stage(name: str | None, slices: tuple[slice, ...]) -> Any:
            if name is None:
                return np.zeros([s.stop - s.start for s in slices], own_type)
            return self.read(name, self._stored(name, slices), own_type)

        def read(slices: tuple[slice, ...]) -> Any:
            return np.stack([read_stage(name, slices[1:]) for name in names[slices[0]]])

        own = weight_partition(known, len(shape)) if partition is None else partition
        return mesh.assemble((len(names), *shape), ("pp", *own), read)

    def _copies(self, name: str) -> int:
        return self.kv_copies if BY_KV_HEAD.search(name) else 1

    def _stored(self, name: str, slices: tuple[slice, ...]) -> tuple[slice, ...]:
        """Return the stored rows of a slice that lies in one copy of a head."""
        if (copies := self._copies(name)) == 1:
            return slices
        width = self._shapes[name][0] // self.kv_heads
        copy, first = divmod(slices[0].start, width)
        start = copy // copies * width + first
        return slice(start, start + slices[0].stop - slices[0].start), *slices[1:]


class RandomWeights(ModelWeights):
    """Weights from a seed, the same under every backend: each follows from the seed and its name alone.

    They are normally distributed, those of norms around 1, all others around 0.
    """

    def __init__(self, model: PretrainedModel, layers: int, seed: int) -> None:
        super().__init__(model, layers)
        self._seed = seed
        self._made: dict[str, Any] = {}

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return a slice of a weight as an array."""
        if name not in self._made:
            generator = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
            values = SPREAD * generator.standard_normal(self._shapes[name], np.float32)
            self._made[name] = values + np.float32(name.endswith("norm.weight"))
        return self._made[name][slices].astype(dtype)

    def close(self) -> None:
        """Forget the weights that were made."""
        self._made = {}


class PublishedWeights(ModelWeights):
    """The weights of a published model; they are checked against its configuration before any is read."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        super().__init__(PretrainedModel.from_folder(folder), spec.layers)
        self._checkpoint = Checkpoint(folder)
        self._checkpoint.check(self._shapes, spec.layers)

    def names(self) -> Sequence[str]:
        """Return the names of all weights, in the order in which they are read fastest."""
        return in_file_order(self._checkpoint, self._shapes)

    def close(self) -> None:
        """Close the files."""
        self._checkpoint.close()

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return a slice of a weight as an array."""
        return self._checkpoint.read(name, self._shapes[name], slices, dtype)


class ZeroWeights(ModelWeights):
    """Zeros in the shapes of a model's weights, to trace its steps without its files."""

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return zeros instead of a slice of a weight."""
        return np.zeros([s.stop - s.start for s in slices], dtype)


def _dtype(name: str, dtype: str) -> Any:
    """Return the type of a weight in the run; the routers' correction biases stay in float32, as published."""
    return array_type("float32" if name.endswith(CORRECTION) else dtype)
