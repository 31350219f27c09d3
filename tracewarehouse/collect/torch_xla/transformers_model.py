"""Makes the transformers model of a run, with its weights on the host or split over the devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tracewarehouse.collect.models.architectures import ARCHITECTURES
from tracewarehouse.collect.models.checkpoint import CheckpointError
from tracewarehouse.collect.models.form import complete_config
from tracewarehouse.collect.models.pretrained import PretrainedModel
from tracewarehouse.collect.parallel.partition import weight_partition
from tracewarehouse.collect.parallel.weights import Assembler, ModelWeights
from tracewarehouse.collect.run_spec import RunSpec


def as_tensor(array: Any) -> Any:
    """Return an array of the host as a tensor; torch does not know numpy's bfloat16, and indices need 64 bits."""
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array.astype(np.int64) if array.dtype.kind == "i" else array)


def skeleton(model: PretrainedModel, layers: int) -> Any:
    """Return a transformers model of the first layers, without values; gate and up of experts are stored apart."""
    import transformers

    architecture = ARCHITECTURES[model.architecture]
    config = getattr(transformers, architecture.config_class)(**complete_config(model) | {"num_hidden_layers": layers})
    if getattr(config, "head_dim", None) is None:
        config.head_dim = config.hidden_size // config.num_attention_heads
    # Plain implementations, until the operations of the devices replace them.
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    with torch.device("meta"):
        made = getattr(transformers, architecture.model_class)(config).eval()
    # Angles of the rotary embedding follow from the configuration and are in no checkpoint.
    made.model.rotary_emb = type(made.model.rotary_emb)(config)
    _split_gate_and_up(made)
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


def on_host(spec: RunSpec, weights: ModelWeights) -> Any:
    """Return the whole model on the host, in the run's dtype."""
    model = skeleton(weights.model, spec.layers)
    for name in weights.names():
        _put(model, name, as_tensor(weights.whole(name, spec.dtype)))
    return _finished(model)


def on_devices(spec: RunSpec, weights: ModelWeights, mesh: Assembler) -> Any:
    """Return the model with every weight split over the devices, read one after the other and file by file.

    A host holds its devices' parts of one weight at a time and, while they are sent, torch_xla's copy of each part.
    The layers of a pipeline stay without values here; `stacked` puts those of each stage on its devices.
    """
    model = skeleton(weights.model, spec.layers)
    is_pipeline = spec.axis("pp") > 1
    for name in weights.names():
        if not (is_pipeline and name.startswith("model.layers.")):
            shape = weights.shape(name)
            partition = weight_partition(name, len(shape))
            _put(model, name, mesh.assemble(shape, partition, weights.reader(name, spec.dtype)))
    weights.close()
    return model if is_pipeline else _finished(model)


def _split_gate_and_up(model: Any) -> None:
    """Store the fused gate and up weights of all experts separately, so that tp splits the width of each."""
    for module in list(model.modules()):
        fused = getattr(module, "gate_up_proj", None)
        if isinstance(fused, torch.nn.Parameter):
            gate, up = fused.data.chunk(2, dim=1)
            del module.gate_up_proj
            module.gate_proj = torch.nn.Parameter(gate.contiguous(), requires_grad=False)
            module.up_proj = torch.nn.Parameter(up.contiguous(), requires_grad=False)


def _put(model: Any, name: str, value: Any) -> None:
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
