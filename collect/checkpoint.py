"""Published weights from local safetensors files, one device's slice at a time.

A device's part of a weight is read from the one file that holds it; nothing else of the file is loaded. The harness
does not use this yet: it records models with random weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collect.errors import CollectError
from collect.pretrained import PretrainedModel
from collect.sharding import Partition, weight_partition

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SCALE_BLOCK = 128
"""Side of the square of an 8-bit weight that shares one scale (DeepSeek-V3's `weight_scale_inv`)."""

_STACKED = re.compile(r"(.*\.experts)\.((?:gate|up|down)_proj)")


class CheckpointError(CollectError):
    """A checkpoint is not there, is incomplete, or is of another model."""


def device_slices(
    shape: tuple[int, ...], partition: Partition, sizes: Mapping[str, int], coordinate: Mapping[str, int]
) -> tuple[slice, ...]:
    """What of a weight is on one device.

    Args:
        shape: Of the whole weight.
        partition: Mesh axes per dimension, outermost first.
        sizes: Size of each mesh axis; 1 when absent.
        coordinate: The device's place on each mesh axis; 0 when absent.

    Returns:
        One slice per dimension. A dimension that does not divide evenly gives the last devices less, or nothing.
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


class Checkpoint:
    """The safetensors files of one model, in a folder as Hugging Face lays them out.

    Raises:
        CheckpointError: no such files, or their index is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _index(folder)

    def read(self, name: str, shape: tuple[int, ...], slices: tuple[slice, ...], dtype: Any) -> Any:
        """A slice of a weight, in `dtype`.

        Args:
            name: As in the collector's model: experts of a layer are one weight `...experts.gate_proj`, which is put
                together from the files' one weight per expert.
            shape: That the whole weight must have.
            slices: What to read, one per dimension.
            dtype: Of the result; 8-bit weights are multiplied by their scales.

        Raises:
            CheckpointError: the weight or its file is missing, or has another shape.
        """
        import torch

        stacked = _STACKED.fullmatch(name)
        if stacked is None:
            return self._read(name, shape, slices, dtype)
        parts = [
            self._read(f"{stacked[1]}.{expert}.{stacked[2]}.weight", shape[1:], slices[1:], dtype)
            for expert in range(slices[0].start, slices[0].stop)
        ]
        return torch.stack(parts) if parts else torch.empty((0, *(s.stop - s.start for s in slices[1:])), dtype=dtype)

    def _read(self, name: str, shape: tuple[int, ...], slices: tuple[slice, ...], dtype: Any) -> Any:
        import torch

        values = self._slice(name, shape, slices)
        scale_name = f"{name}_scale_inv"
        if scale_name not in self._files:
            return values.to(dtype)
        blocks = tuple(slice(s.start // SCALE_BLOCK, math.ceil(s.stop / SCALE_BLOCK)) for s in slices)
        scales = self._slice(scale_name, tuple(math.ceil(n / SCALE_BLOCK) for n in shape), blocks).to(torch.float32)
        for dimension, (part, block) in enumerate(zip(slices, blocks, strict=True)):
            first = part.start - block.start * SCALE_BLOCK
            scales = scales.repeat_interleave(SCALE_BLOCK, dimension)
            scales = scales.narrow(dimension, first, part.stop - part.start)
        return (values.to(torch.float32) * scales).to(dtype)

    def _slice(self, name: str, shape: tuple[int, ...], slices: tuple[slice, ...]) -> Any:
        from safetensors import SafetensorError, safe_open

        if name not in self._files:
            raise CheckpointError(f"{self.folder}: has no weight {name}; is it a checkpoint of another model?")
        file = self.folder / self._files[name]
        try:
            with safe_open(file, framework="pt") as tensors:
                stored = tensors.get_slice(name)
                if tuple(stored.get_shape()) != shape:
                    raise CheckpointError(f"{file}: {name} has shape {stored.get_shape()}, expected {list(shape)}")
                return stored[slices]
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{file}: {name} cannot be read: {error}") from None


def device_weights(
    checkpoint: Checkpoint, model: PretrainedModel, sizes: Mapping[str, int], coordinate: Mapping[str, int], dtype: Any
) -> Iterator[tuple[str, Any]]:
    """Every weight of one device, one after the other, so that no more than one is on the host at a time.

    Args:
        checkpoint: The files.
        model: Whose weights they are; the layers that its configuration counts.
        sizes: Size of each mesh axis.
        coordinate: The device's place on each mesh axis.
        dtype: Of the weights; the routers' correction biases stay in float32.

    Yields:
        Name in the collector's model and the device's part. Layers are those of the device's pipeline stage.

    Raises:
        CheckpointError: a weight is missing or has another shape.
    """
    import torch

    stage = model.num_layers // sizes.get("pp", 1)
    first = stage * coordinate.get("pp", 0)
    weights = dict(model.other_weights())
    for layer in range(first, first + stage):
        weights |= model.layer_weights(layer)
    for name, shape in weights.items():
        slices = device_slices(shape, weight_partition(name, len(shape)), sizes, coordinate)
        yield name, checkpoint.read(name, shape, slices, dtype)
        if model.architecture == "deepseek_v3" and name.endswith(".mlp.gate.weight"):
            bias = name.removesuffix("weight") + "e_score_correction_bias"
            yield bias, checkpoint.read(bias, shape[:1], (slice(0, shape[0]),), torch.float32)


def _index(folder: Path) -> dict[str, str]:
    """Name of each weight to its file."""
    index = folder / INDEX
    if index.is_file():
        try:
            return {str(k): str(v) for k, v in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index}: cannot be read as an index of weights: {error}") from None
    file = folder / SINGLE
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: neither {INDEX} nor {SINGLE} is there; download the model's safetensors files"
        )
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as tensors:
            return dict.fromkeys(tensors.keys(), SINGLE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None
