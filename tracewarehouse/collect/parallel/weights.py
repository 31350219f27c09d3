"""Assembles a published model from its weights, on the host or in parts on the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.checkpoint import Checkpoint, CheckpointError, Shape, in_file_order
from tracewarehouse.collect.parallel.partition import BY_KV_HEAD, MODES, Partition, weight_partition
from tracewarehouse.collect.run_spec import RunSpec


class Assembler(Protocol):
    """The devices of a run, under whatever stack."""

    def assemble(self, shape: Shape, partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """See `DeviceMesh.assemble`."""


class PublishedWeights:
    """The weights of a run of a published model; they are checked against its configuration before any is read.

    A weight of keys or values has rows for every copy of a head (`RunSpec.kv_copies`) where devices ask for it.
    """

    kv_copies, kv_heads = 1, 1

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.folder = folder
        self._checkpoint = Checkpoint(folder)
        self._shapes = _shapes(skeleton(spec, folder))
        self._checkpoint.check(self._shapes, spec.layers)

    def names(self) -> Sequence[str]:
        """Return the names of all weights, in the order in which they are read fastest."""
        return in_file_order(self._checkpoint, self._shapes)

    def close(self) -> None:
        """Close the files."""
        self._checkpoint.close()

    def copy_heads(self, spec: RunSpec) -> None:
        """Give every device of tp a key-value head, if there are fewer heads than devices."""
        if spec.sequence_parallelism not in MODES:  # where every device holds whole layers
            self.kv_copies, self.kv_heads = spec.kv_copies, model_architecture(spec.model).num_kv_heads

    def shape(self, name: str) -> Shape:
        """Return the shape of a weight."""
        rows, *rest = self._shapes[name]
        return (rows * self._copies(name), *rest)

    def reader(self, name: str, dtype: Any) -> Callable[[tuple[slice, ...]], Any]:
        """Return the function that reads slices of a weight, in its dtype in a run of `dtype`."""
        own = _dtype(name, dtype)
        return lambda slices: self.read(name, self._stored(name, slices), own)

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

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return a slice of a weight, by its name in the collector's model."""
        return self._checkpoint.read(name, self._shapes[name], slices, dtype)

    def on_host(self, spec: RunSpec) -> Any:
        """Return the whole model in plain torch on the host, ready for inference in the run's dtype."""
        import torch

        model = skeleton(spec, self.folder, is_split=False)
        dtype = getattr(torch, spec.dtype)
        for name in in_file_order(self._checkpoint, _shapes(model)):
            fused = name.endswith("gate_up_proj")
            parts = [name.replace("gate_up", part) for part in ("gate", "up")] if fused else [name]
            values = [self.read(part, whole(self._shapes[part]), _dtype(part, dtype)) for part in parts]
            _put(model, name, torch.cat(values, 1) if fused else values[0])
        return _finished(model)

    def on_devices(self, spec: RunSpec, mesh: Assembler) -> Any:
        """Return the model with every weight split over the devices, read one after the other and file by file.

        A host holds its devices' parts of one weight at a time and, while they are sent, torch_xla's copy of each part.
        The layers of a pipeline stay without values here; `stacked` puts those of each stage on its devices.
        """
        import torch

        model = skeleton(spec, self.folder)
        dtype = getattr(torch, spec.dtype)
        is_pipeline = spec.axis("pp") > 1
        for name in self.names():
            if not (is_pipeline and name.startswith("model.layers.")):
                shape = self._shapes[name]
                partition = weight_partition(name, len(shape))
                _put(model, name, mesh.assemble(shape, partition, self.reader(name, dtype)))
        self.close()
        return model if is_pipeline else _finished(model)

    def stacked(
        self, names: Sequence[str | None], mesh: Assembler, dtype: Any, partition: Partition | None = None
    ) -> Any:
        """Return the same weight of one layer of every stage, [stages, ...], each on the devices of its stage.

        A stage whose name of the weight is None gets zeros. `partition` is that of one stage's weight, by default the
        one of `weight_partition`.
        """
        import torch

        known = next(name for name in names if name is not None)
        shape, dtype = self.shape(known), _dtype(known, dtype)

        def read_stage(name: str | None, slices: tuple[slice, ...]) -> Any:
            if name is None:
                return torch.zeros([s.stop - s.start for s in slices], dtype=dtype)
            return self.read(name, self._stored(name, slices), dtype)

        def read(slices: tuple[slice, ...]) -> Any:
            return torch.stack([read_stage(name, slices[1:]) for name in names[slices[0]]])

        own = weight_partition(known, len(shape)) if partition is None else partition
        return mesh.assemble((len(names), *shape), ("pp", *own), read)


class ZeroWeights(PublishedWeights):
    """Zeros in the shapes of a published model's weights, to trace its steps without its files."""

    def __init__(self, spec: RunSpec, folder: Path) -> None:
        self.folder = folder
        self._shapes = _shapes(skeleton(spec, folder))

    def names(self) -> Sequence[str]:
        """Return the names of all weights."""
        return list(self._shapes)

    def close(self) -> None:
        """Do nothing: there is no file."""

    def read(self, name: str, slices: tuple[slice, ...], dtype: Any) -> Any:
        """Return zeros instead of a slice of a weight."""
        import torch

        return torch.zeros([s.stop - s.start for s in slices], dtype=dtype)


def skeleton(spec: RunSpec, folder: Path, *, is_split: bool = True) -> Any:
    """Return a transformers model of the run's layers, by the folder's config.json; its weights have no values.

    `is_split` stores the fused gate and up weights of experts separately, as the model on the devices has them.
    """
    import torch
    import transformers

    architecture = model_architecture(spec.model)
    config = getattr(transformers, architecture.config_class).from_pretrained(folder)
    config.num_hidden_layers = spec.layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: spec.layers]
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # 8-bit weights are scaled while they are read
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device("meta"):
        model = getattr(transformers, architecture.model_class)(config).eval()
    # Angles of the rotary embedding follow from the configuration and are in no checkpoint.
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if is_split:
        split_gate_and_up(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def split_gate_and_up(model: Any) -> None:
    """Store the fused gate and up weights of all experts separately, so that tp splits the width of each."""
    import torch

    for module in list(model.modules()):
        fused = getattr(module, "gate_up_proj", None)
        if isinstance(fused, torch.nn.Parameter):
            gate, up = fused.data.chunk(2, dim=1)
            del module.gate_up_proj
            module.gate_proj = torch.nn.Parameter(gate.contiguous(), requires_grad=False)
            module.up_proj = torch.nn.Parameter(up.contiguous(), requires_grad=False)


def whole(shape: Shape) -> tuple[slice, ...]:
    """Return the slices that select a whole weight."""
    return tuple(slice(0, n) for n in shape)


def _shapes(model: Any) -> dict[str, Shape]:
    """Return every weight that a checkpoint must hold: parameters, and buffers without values."""
    named = [*model.named_parameters(), *((n, b) for n, b in model.named_buffers() if b.is_meta)]
    return {name: tuple(tensor.shape) for name, tensor in named}


def _dtype(name: str, dtype: Any) -> Any:
    """Return the dtype of a weight in the run; the routers' correction biases stay in float32, as published."""
    import torch

    return torch.float32 if name.endswith("correction_bias") else dtype


def _put(model: Any, name: str, value: Any) -> None:
    import torch

    owner, _, attribute = name.rpartition(".")
    module = model.get_submodule(owner)
    if attribute in module._parameters:
        value = torch.nn.Parameter(value, requires_grad=False)
    setattr(module, attribute, value)


def _finished(model: Any) -> Any:
    """Tie shared weights again, since their owner was replaced, and return the model once it has all values."""
    model.tie_weights()
    empty = [n for n, t in [*model.named_parameters(), *model.named_buffers()] if t.is_meta]
    if empty:
        raise CheckpointError(f"no values for {', '.join(empty[:3])}; the collector does not know this model's form")
    return model
