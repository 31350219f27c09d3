"""Builds the model of a run with random weights: a tiny configuration of a real architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.models.architectures import ARCHITECTURES

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec


def config_values(spec: RunSpec) -> dict[str, Any]:
    """Return the keyword arguments of the configuration."""
    return {
        **ARCHITECTURES[spec.model].config,
        "num_hidden_layers": spec.layers,
        "max_position_embeddings": max(256, spec.input_length + spec.output_length),
    }


def build_model(spec: RunSpec) -> Any:
    """Build a tiny transformers model on the host: weights from the seed, in the run's dtype, for inference."""
    import torch
    import transformers

    architecture = ARCHITECTURES[spec.model]
    config = getattr(transformers, architecture.config_class)(**config_values(spec))
    # Plain implementations: they are the reference. The device run switches to its own after the reference ran.
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    torch.manual_seed(spec.seed)
    model = getattr(transformers, architecture.model_class)(config).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model.to(getattr(torch, spec.dtype))
