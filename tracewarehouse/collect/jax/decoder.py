"""Runs a decoder layer, its experts by one-hot dispatch, on the part that one device holds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tracewarehouse.collect.jax.attention import Attention
from tracewarehouse.collect.jax.mesh import Weights
from tracewarehouse.collect.jax.operations import Collectives, Step, linear, rms_norm, scope
from tracewarehouse.collect.parallel.partition import MODES, Places, places
from tracewarehouse.collect.run_spec import RunSpec


class Decoder:
    """Runs decoder layers."""

    def __init__(self, spec: RunSpec, links: Collectives) -> None:
        self._mode, self._links = spec.sequence_parallelism, links
        self._attention = Attention(spec, links)
        self._experts = RoutedExperts(links, float(spec.capacity_factor or "inf"))

    def layer(
        self, module: Any, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any], Any]:
        """Run one layer on hidden states [batch, tokens, width], a piece of the sequence if the step is split.

        `module` is the layer in transformers, which knows its sizes; its own weights are not used.

        Returns:
            New hidden states and cache; and the number of experts of each token that were dropped, [batch x tokens],
            None for a dense layer.
        """
        with scope("norm"):
            normed = rms_norm(module.input_layernorm, weights["input_layernorm.weight"], hidden)
        with scope("attn"):
            output, cache = self._attention.run(module.self_attn, weights, self._whole(normed, step), cache, step)
            hidden = hidden + self._joined(output, step)
        with scope("norm"):
            normed = rms_norm(module.post_attention_layernorm, weights["post_attention_layernorm.weight"], hidden)
        if not hasattr(module.mlp, "experts"):
            with scope("mlp"):
                return hidden + self._joined(_mlp(self._whole(normed, step), weights, "mlp"), step), cache, None
        with scope("moe"):
            given = self._whole(normed, step)
            output, dropped = self._experts.run(module.mlp, weights, given.reshape(-1, given.shape[-1]))
            output = output.reshape(given.shape)
            hidden = hidden + (self._links.piece(output, "tp", 1) if step.is_split else output)
            if hasattr(module.mlp, "shared_experts"):
                hidden = hidden + self._joined(_mlp(given, weights, "mlp.shared_experts"), step)
        return hidden, cache, dropped

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


class RoutedExperts:
    """The routed experts of a layer; `factor` is the capacity factor."""

    def __init__(self, links: Collectives, factor: float) -> None:
        self._links, self._factor = links, factor

    def run(self, module: Any, weights: Weights, hidden: Any) -> tuple[Any, Any]:
        """Send each token to the devices of its experts, and add up the results.

        A device of (dp, ep) sends a token once to each device that has some of its experts, with their weights: an
        all-to-all over ep, and one back. Then the all-reduce over tp adds up the parts of the experts' width. A pair
        without a place is dropped; the number of experts that computed a token comes back beside its result.

        `module` is the layer's mixture of experts in transformers, with a router (`gate`); `hidden` is [tokens, width],
        the same on all devices of tp.

        Returns:
            [tokens, width], and the number of experts of each token that were dropped, [tokens].
        """
        tokens, width = hidden.shape
        devices, parts = self._links.sizes["ep"], self._links.sizes["tp"]
        here = weights["mlp.experts.gate_proj"].shape[0]
        count = here * devices
        chosen, weight = routed(module.gate, weights, hidden)
        room = places(tokens, chosen.shape[1], count, devices, self._factor)

        is_chosen = chosen[..., None] == jnp.arange(count)
        is_routed = is_chosen.any(1).reshape(tokens, devices, here)
        weight = (is_chosen * weight[..., None]).sum(1).astype(hidden.dtype).reshape(tokens, devices, here)
        # -1 marks a pair that is not routed; a routed pair can have the weight 0.
        facts = jnp.where(is_routed, weight, -1)

        out = _placed(is_routed.any(-1), room.per_device) if room.per_device < tokens else None
        sent = self._links.exchanged(_sent(hidden, facts, out), "ep", 0, 0).reshape(room.received, -1)
        done, kept = _computed(weights, sent[:, :width], sent[:, width:], room)

        # Every device of tp has its part of the result, but all have the same counts.
        done = jnp.concatenate([done, (kept / parts).astype(done.dtype)[:, None]], -1)
        back = self._links.exchanged(done.reshape(devices, room.per_device, -1), "ep", 0, 0)
        at_tokens = back.sum(0) if out is None else jnp.einsum("sdc,dcn->sn", out.astype(back.dtype), back)
        combined = self._links.summed(at_tokens, "tp")
        dropped = chosen.shape[1] - jnp.round(combined[:, width].astype(jnp.float32)).astype(jnp.int32)
        return combined[:, :width], dropped


def routed(gate: Any, weights: Weights, hidden: Any) -> tuple[Any, Any]:
    """Return the experts of each token [tokens, width] and their weights, [tokens, k] each, as `gate` chooses."""
    matrix = weights["mlp.gate.weight"]
    if not hasattr(gate, "routed_scaling_factor"):  # Qwen3
        scores = jax.nn.softmax(jnp.einsum("th,eh->te", hidden, matrix).astype(jnp.float32), -1)
        weight, chosen = jax.lax.top_k(scores, gate.top_k)
        if gate.norm_topk_prob:
            weight = weight / weight.sum(-1, keepdims=True)
        return chosen, weight.astype(hidden.dtype)
    logits = jnp.einsum("th,eh->te", hidden.astype(jnp.float32), matrix.astype(jnp.float32))
    if hasattr(gate, "topk_method"):
        return _routed_v2(gate, logits)
    return _routed_v3(gate, logits, weights["mlp.gate.e_score_correction_bias"])


def _routed_v2(gate: Any, logits: Any) -> tuple[Any, Any]:
    """Route greedily or device-limited, as DeepSeek-V2 (arXiv 2405.04434, section 2.2.2)."""
    scores = jax.nn.softmax(logits, -1)
    if gate.topk_method == "group_limited_greedy":
        grouped = scores.reshape(scores.shape[0], gate.num_group, -1)
        scores = _best_groups_only(grouped, grouped.max(-1), gate.topk_group, 0.0)
    weight, chosen = jax.lax.top_k(scores, gate.top_k)
    return chosen, weight * gate.routed_scaling_factor


def _routed_v3(gate: Any, logits: Any, bias: Any) -> tuple[Any, Any]:
    """Route group-limited, as DeepSeek-V3 (arXiv 2412.19437, section 2.1.2)."""
    scores = jax.nn.sigmoid(logits)
    grouped = (scores + bias).reshape(scores.shape[0], gate.num_group, -1)
    group_scores = jax.lax.top_k(grouped, 2)[0].sum(-1)
    _, chosen = jax.lax.top_k(_best_groups_only(grouped, group_scores, gate.topk_group, -jnp.inf), gate.top_k)
    weight = jnp.take_along_axis(scores, chosen, 1)
    if gate.norm_topk_prob:
        weight = weight / (weight.sum(-1, keepdims=True) + 1e-20)
    return chosen, weight * gate.routed_scaling_factor


def _best_groups_only(grouped: Any, group_scores: Any, count: int, other: float) -> Any:
    """Return the scores [tokens, groups, n] as [tokens, experts], with `other` outside of the best groups."""
    best = jax.lax.top_k(group_scores, count)[1]
    is_kept = (best[..., None] == jnp.arange(grouped.shape[1])).any(1)
    return jnp.where(is_kept[..., None], grouped, other).reshape(grouped.shape[0], -1)


def _placed(is_wanted: Any, count: int) -> Any:
    """Give each token that wants one the next place: [tokens, n] to truth values [tokens, n, count]."""
    place = jnp.where(is_wanted, jnp.cumsum(is_wanted, 0, dtype=jnp.int32) - 1, -1)
    return place[..., None] == jnp.arange(count)


def _sent(hidden: Any, facts: Any, place: Any) -> Any:
    """Put tokens [tokens, width] and facts [tokens, devices, n] by place: [devices, places, width + n].

    `place` says whether a token has a place, [tokens, devices, places]; None if each has its own.
    """
    if place is None:
        whole = jnp.broadcast_to(hidden, (facts.shape[1], *hidden.shape))
        return jnp.concatenate([whole, facts.swapaxes(0, 1)], -1)
    at = place.astype(hidden.dtype)
    # A place without a token is routed to no expert.
    routed = jnp.einsum("sdc,sde->dce", at, facts) - (1 - at.sum(0))[..., None]
    return jnp.concatenate([jnp.einsum("sdc,sh->dch", at, hidden), routed], -1)


def _computed(weights: Weights, tokens: Any, facts: Any, room: Places) -> tuple[Any, Any]:
    """Return the results of this device's experts for the tokens that it has, still to be added up over tp.

    `facts` are the weights of its experts, [received, experts]; -1 where not routed. The matrices gate and up are
    [experts, inner, width], down is [experts, width, inner].

    Returns:
        [received, width], and the number of experts that computed each token, [received].
    """
    gate, up, down = (weights[f"mlp.experts.{name}_proj"] for name in ("gate", "up", "down"))
    is_routed = facts >= 0
    weight = jnp.where(is_routed, facts, 0)
    if room.per_expert == room.received:
        # Every expert computes on every token: two products of matrices, with the experts side by side.
        width = tokens.shape[-1]
        inner = jax.nn.silu(tokens @ gate.reshape(-1, width).T) * (tokens @ up.reshape(-1, width).T)
        inner = inner.reshape(*weight.shape, -1) * weight[..., None]
        return inner.reshape(tokens.shape[0], -1) @ down.swapaxes(1, 2).reshape(-1, width), is_routed.sum(-1)
    place = _placed(is_routed, room.per_expert).astype(tokens.dtype)
    taken = jnp.einsum("tec,th->ech", place, tokens)
    inner = jax.nn.silu(jnp.einsum("ech,eih->eci", taken, gate)) * jnp.einsum("ech,eih->eci", taken, up)
    done = jnp.einsum("eci,ehi->ech", inner, down)
    return jnp.einsum("tec,ech->th", place * weight[..., None], done), place.sum((-1, -2))
