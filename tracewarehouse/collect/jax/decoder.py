"""Runs a decoder layer on the part that one device holds."""

from __future__ import annotations

from typing import Any

import jax

from tracewarehouse.collect.jax.attention import Attention
from tracewarehouse.collect.jax.experts import experts_of
from tracewarehouse.collect.jax.mesh import Weights
from tracewarehouse.collect.jax.operations import Collectives, Step, linear, rms_norm, scope
from tracewarehouse.collect.parallel.partition import MODES
from tracewarehouse.collect.run_spec import RunSpec


class Decoder:
    """Runs decoder layers."""

    def __init__(self, spec: RunSpec, links: Collectives) -> None:
        self._mode, self._links = spec.sequence_parallelism, links
        self._attention = Attention(spec, links)
        self._experts = experts_of(spec, links)

    def layer(
        self, module: Any, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any], Any]:
        """Run one layer on hidden states [batch, tokens, width], a piece of the sequence if the step is split.

        `module` is the layer in transformers, which knows its sizes; its own weights are not used.

        Returns:
            New hidden states and cache; and what its experts count of each token, [batch x tokens], None for a dense
            layer: how many of its experts were dropped, or as served to how many devices it went.
        """
        with scope("norm"):
            normed = rms_norm(module.input_layernorm, weights["input_layernorm.weight"], hidden)
        with scope("attn"):
            output, cache = self._attention.run(module.self_attn, weights, self._whole(normed, step), cache, step)
            hidden = hidden + self._joined(output, step)
        with scope("norm"):
            normed = rms_norm(module.post_attention_layernorm, weights["post_attention_layernorm.weight"], hidden)
        if self._experts is None or not hasattr(module.mlp, "experts"):
            with scope("mlp"):
                return hidden + self._joined(_mlp(self._whole(normed, step), weights, "mlp"), step), cache, None
        with scope("moe"):
            given = self._whole(normed, step)
            output, counted = self._experts.run(module.mlp, weights, given.reshape(-1, given.shape[-1]))
            output = output.reshape(given.shape)
            hidden = hidden + (self._links.piece(output, "tp", 1) if step.is_split else output)
            if hasattr(module.mlp, "shared_experts"):
                hidden = hidden + self._joined(_mlp(given, weights, "mlp.shared_experts"), step)
        return hidden, cache, counted

    def _whole(self, hidden: Any, step: Step) -> Any:
        """Return the whole sequence before a block of Megatron's sequence parallelism (Korthikanti et al. 2022)."""
        is_gathered = step.is_split and self._mode == "megatron"
        return self._links.gathered(hidden, "tp", 1) if is_gathered else hidden

    def _joined(self, output: Any, step: Step) -> Any:
        """End a block by a sum over tp (Shoeybi et al. 2019); each device gets only its piece if the step is split."""
        if self._mode in MODES:
            return output
        if step.is_split:
            return self._links.summed_to_pieces(output, "tp", 1)
        return self._links.summed(output, "tp")


def _mlp(hidden: Any, weights: Weights, name: str) -> Any:
    """Apply a gated MLP; its result is still to be added up over tp."""
    gate, up = (linear(hidden, weights, f"{name}.{part}_proj") for part in ("gate", "up"))
    return linear(jax.nn.silu(gate) * up, weights, f"{name}.down_proj")
