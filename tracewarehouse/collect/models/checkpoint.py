"""Finds a published model's files, and reads any slice of any weight of them, with one file open at a time."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.models.pretrained import CONFIG, PretrainedModel, Shape, known_models

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
SCALE_BLOCK = 128
"""Side of the squares of an 8-bit weight that share one scale each (DeepSeek-V3's `weight_scale_inv`)."""
SCALE = "_scale_inv"

_STACKED = re.compile(r"(.*\.experts)\.((?:gate|up|down)_proj)")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_KNOWN_EXTRA = re.compile(r".*\.rotary_emb\.inv_freq|lm_head\.weight")
"""Weights that some checkpoints store although they follow from the configuration, or from a tied embedding."""

_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Types of values in safetensors files, and their names in numpy, to which ml_dtypes adds the short ones."""


class CheckpointError(CollectError):
    """A checkpoint is missing or incomplete, or belongs to another model."""


class TensorFile:
    """A safetensors file, whose values are read from the disk when they are looked at.

    It begins with the length of a header in 8 bytes; the header is JSON, and says type, shape and place of each tensor.

    Raises:
        ValueError: it is cut short, or no such file.
    """

    def __init__(self, file: Path) -> None:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            size = file.stat().st_size - 8 - length
            if size < 0:
                raise ValueError("it ends within its header")
            text = opened.read(length)
        try:
            self._entries = {name: entry for name, entry in json.loads(text).items() if name != "__metadata__"}
            offsets = [(int(begin), int(end)) for begin, end in (e["data_offsets"] for e in self._entries.values())]
        except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError):
            raise ValueError("its header is not that of a safetensors file") from None
        end = max((end for _, end in offsets), default=0)
        if size != end or any(not 0 <= begin <= stop for begin, stop in offsets):
            raise ValueError(f"it has {size} bytes of values, and its header tells of {end}")
        self._bytes = np.memmap(file, np.uint8, "r") if end else np.empty(0, np.uint8)
        self._start = 8 + length

    def names(self) -> list[str]:
        """Return the names of the tensors."""
        return list(self._entries)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return tuple(self._entry(name)["shape"])

    def tensor(self, name: str) -> Any:
        """Return a tensor as an array over the file."""
        entry = self._entry(name)
        if entry["dtype"] not in _TYPES:
            raise ValueError(f"values of type {entry['dtype']} are not known; known are {', '.join(_TYPES)}")
        begin, end = (self._start + offset for offset in entry["data_offsets"])
        return self._bytes[begin:end].view(array_type(_TYPES[entry["dtype"]])).reshape(entry["shape"])

    def _entry(self, name: str) -> dict[str, Any]:
        if name not in self._entries:
            raise ValueError("the file does not contain tensor " + name)
        entry: dict[str, Any] = self._entries[name]
        return entry


def array_type(name: str) -> Any:
    """Return numpy's type of that name; bfloat16 and those of 8 bits are from ml_dtypes, which comes with jax."""
    if name in ("float32", "float16"):
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


class Checkpoint:
    """The safetensors files of one model, in a folder as Hugging Face lays them out.

    The file that was read last stays open, so weights should be read in the order of `weight_file`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _index(folder)
        self._open: tuple[str, TensorFile] | None = None

    def weight_file(self, name: str) -> str:
        """Return the file that holds a weight of the collector's model; for stacked experts, the first."""
        return self._files.get(stored_names(name, (1,))[0], "")

    def check(self, weights: Mapping[str, Shape], layers: int) -> None:
        """Check, by the files' headers, that every weight (name to shape) is there, and no other.

        Weights of layers beyond the first `layers`, such as multi-token prediction, may be there.
        """
        wanted = {}
        for name, shape in weights.items():
            for stored in stored_names(name, shape):
                wanted[stored] = shape[1:] if _STACKED.fullmatch(name) else shape
        for name in sorted(wanted, key=lambda n: self._files.get(n, "")):
            self._require_shape(name, wanted[name])
            if name + SCALE in self._files:
                self._require_shape(name + SCALE, _scale_shape(wanted[name]))
        for name, file in self._files.items():
            layer = _LAYER.match(name)
            is_known = name.removesuffix(SCALE) in wanted or _KNOWN_EXTRA.fullmatch(name)
            if not is_known and (layer is None or int(layer[1]) < layers):
                raise CheckpointError(
                    f"{self.folder / file}: {name} is no weight of this model; is config.json that of another one?"
                )

    def read(self, name: str, shape: Shape, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Read a slice of a weight whose whole shape must be `shape`; 8-bit weights are multiplied by their scales.

        The experts of a layer are one weight `...experts.gate_proj`, put together from the one per expert in the files.
        """
        if _STACKED.fullmatch(name) is None:
            return self._read(name, shape, slices, dtype)
        out = np.empty([s.stop - s.start for s in slices], dtype)
        for place, stored in zip(out, stored_names(name, shape)[slices[0]], strict=True):
            place[...] = self._read(stored, shape[1:], slices[1:], dtype)
        return out

    def close(self) -> None:
        """Close the file that was read last."""
        self._open = None

    def _read(self, name: str, shape: Shape, slices: tuple[slice, ...], dtype: Any) -> Any:
        values = self._slice(name, shape, slices)
        if name + SCALE not in self._files:
            if values.itemsize == 1:
                raise CheckpointError(
                    f"{self.folder / self._files[name]}: {name} has 8 bits, but there is no {name}{SCALE} to scale it"
                )
            return values.astype(dtype)
        blocks = tuple(slice(s.start // SCALE_BLOCK, math.ceil(s.stop / SCALE_BLOCK)) for s in slices)
        scales = self._slice(name + SCALE, _scale_shape(shape), blocks).astype(np.float32)
        for dimension, (part, block) in enumerate(zip(slices, blocks, strict=True)):
            first = part.start - block.start * SCALE_BLOCK
            places = np.arange(first, first + part.stop - part.start) // SCALE_BLOCK
            scales = scales.take(places, dimension)
        return (values.astype(np.float32) * scales).astype(dtype)

    def _slice(self, name: str, shape: Shape, slices: tuple[slice, ...]) -> Any:
        self._require_shape(name, shape)
        file = self._files[name]
        try:
            return self._tensors(file).tensor(name)[slices]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{self.folder / file}: {name} cannot be read: {error}") from None

    def _require_shape(self, name: str, shape: Shape) -> None:
        if name not in self._files:
            raise CheckpointError(
                f"{self.folder / (INDEX if (self.folder / INDEX).is_file() else SINGLE)}: has no weight {name}; "
                "is it a checkpoint of another model?"
            )
        file = self._files[name]
        try:
            stored = self._tensors(file).shape(name)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{self.folder / file}: {name} cannot be read: {error}; download the file again"
            ) from None
        if stored != shape:
            raise CheckpointError(f"{self.folder / file}: {name} has shape {list(stored)}, expected {list(shape)}")

    def _tensors(self, file: str) -> TensorFile:
        if self._open is None or self._open[0] != file:
            self._open = None  # before the next is opened
            self._open = (file, TensorFile(self.folder / file))
        return self._open[1]


def stored_names(name: str, shape: Shape) -> list[str]:
    """Return a checkpoint's names of a weight of the collector's model; for the experts of a layer, one per expert."""
    stacked = _STACKED.fullmatch(name)
    return [name] if stacked is None else [f"{stacked[1]}.{e}.{stacked[2]}.weight" for e in range(shape[0])]


def in_file_order(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    """Return weights in an order in which each file is read to its end before the next is opened."""
    return sorted(names, key=checkpoint.weight_file)


def _scale_shape(shape: Shape) -> Shape:
    return tuple(math.ceil(n / SCALE_BLOCK) for n in shape)


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each weight, by its name."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = {str(k): str(v) for k, v in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index}: cannot be read as an index of weights: {error}") from None
        if outside := [f for f in names.values() if Path(f).name != f]:
            raise CheckpointError(f"{index}: {outside[0]!r} is not a file of this folder")
        return names
    file = folder / SINGLE
    if not file.is_file():
        raise CheckpointError(
            f"{folder}: neither {INDEX} nor {SINGLE} is there; download the model's safetensors files"
        )
    try:
        return dict.fromkeys(TensorFile(file).names(), SINGLE)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from None


HUB_CACHES = (("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"))
"""Environment variables that move the hub's cache, and its place below each; the first that is set counts."""


def model_folder(name: str) -> Path:
    """Return the folder of a published model's files: a local one, or its newest snapshot in the hub's cache."""
    published = known_models().get(name)
    if published is None:
        return Path(name).expanduser()
    cache = hub_cache()
    snapshots = [p.parent for p in (cache / f"models--{name.replace('/', '--')}" / "snapshots").glob(f"*/{CONFIG}")]
    if not snapshots:
        raise CheckpointError(
            f"{name}: its files are not in the hub's cache {cache}; run `hf download {name}`, set HF_HUB_CACHE to "
            "where they are, or give their folder as the model"
        )
    folder = max(snapshots, key=lambda s: (s / CONFIG).lstat().st_mtime)
    if differences := published.differences(PretrainedModel.from_folder(folder)):
        raise CheckpointError(f"{folder / CONFIG}: is not the {name} of the table of models: {', '.join(differences)}")
    return folder


def hub_cache() -> Path:
    """Return the folder in which huggingface_hub keeps its downloads."""
    for variable, below in HUB_CACHES:
        if value := os.environ.get(variable):
            return Path(value).expanduser() / below
    return Path("~/.cache/huggingface/hub").expanduser()
