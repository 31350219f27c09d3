"""Runs the routed experts of a layer on the part that one device holds: as served, or by a capacity factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tracewarehouse.collect.jax.mesh import Weights
from tracewarehouse.collect.jax.operations import Collectives
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.expert_places import Places, Routing, expert_popularity, places, served_rows
from tracewarehouse.collect.run_spec import RunSpec

LEAST_PAIRS = 8
"""Rows that a grouped product has at least. libtpu multiplies fewer with the matrices of all experts: 6 rows of
V2-Lite with its 64 matrices [176, 2048] on v6e are 97 us by its own cycles, and 8 by its grouped kernel 4 us."""


class Experts(Protocol):
    """The routed experts of all layers."""

    def run(self, module: Any, weights: Weights, hidden: Any) -> tuple[Any, Any]:
        """Send each token to the devices of its experts, and add up their results.

        `module` is the layer's mixture of experts in transformers, with a router (`gate`); `hidden` is [tokens, width],
        the same on all devices of tp.

        Returns:
            [tokens, width], and a number for each token, [tokens]: see `Decoder.layer`.
        """


def experts_of(spec: RunSpec, links: Collectives) -> Experts | None:
    """Return the experts of a run as its capacity factor says; None for a dense model."""
    architecture = model_architecture(spec.model)
    if architecture.num_experts is None:
        return None
    popularity = expert_popularity(architecture.num_experts, spec.routing_skew, spec.seed)
    if spec.capacity_factor is not None:
        return CapacityExperts(links, popularity, float(spec.capacity_factor))
    return ServedExperts(links, popularity)


class ServedExperts:
    """Experts as servers run them: tokens are sorted, go once to each device that needs them, and none is dropped.

    Buffers have room for any routing; rows that the routing leaves free are neither sent nor computed on a TPU.
    """

    def __init__(self, links: Collectives, popularity: Any = None) -> None:
        self._links, self._popularity = links, popularity

    def run(self, module: Any, weights: Weights, hidden: Any) -> tuple[Any, Any]:
        """See `Experts.run`; the number is that of the devices to which a token went.

        A row of a token goes to a device with the weights of the experts there: a ragged all-to-all over ep, and one
        back. An all-to-all of integers first tells how many rows come and where they belong. The all-reduce over tp
        adds up the parts of the experts' width.
        """
        tokens, width = hidden.shape
        devices, here = self._links.sizes["ep"], weights["mlp.experts.gate_proj"].shape[0]
        routing = rule(module.gate, here * devices)
        rows = served_rows(tokens, routing, devices)
        chosen, weight = routed(module.gate, weights, hidden, self._popularity)
        is_chosen = chosen[..., None] == jnp.arange(here * devices)
        # -1 marks a pair that is not routed; a routed pair can have the weight 0.
        facts = jnp.where(is_chosen.any(1), (is_chosen * weight[..., None]).sum(1), -1).astype(hidden.dtype)
        facts = facts.reshape(tokens, devices, here)
        is_sent = (facts >= 0).any(-1)
        if devices == 1:
            done = self._computed(weights, hidden, facts[:, 0], routing.chosen)
        else:
            there = Sorted.by_group(is_sent, routing.most_devices(devices))
            sent = jnp.concatenate([hidden[there.rows], facts[there.rows, there.groups]], -1)
            exchange = self._links.row_exchange(there.sizes, tokens, "ep")
            # Rows that nobody sends are routed to no expert.
            room = jnp.full((rows.received, width + here), -1, sent.dtype)
            got = self._links.exchanged_rows(sent, exchange, "ep", room)
            results = self._computed(weights, got[:, :width], got[:, width:], routing.chosen)
            room = jnp.zeros((rows.sent, width), sent.dtype)
            done = there.summed(self._links.exchanged_rows(results, exchange.back(), "ep", room))
        return self._links.summed(done, "tp"), is_sent.sum(-1, dtype=jnp.int32)

    def _computed(self, weights: Weights, tokens: Any, facts: Any, most: int) -> Any:
        """Return the results of this device's experts for the rows that it has, still to be added up over tp.

        `facts` are the weights of its experts, [rows, experts], -1 where not routed; at most `most` of a row are. Each
        expert computes the rows that are routed to it: the products are grouped.
        """
        gate, up, down = (weights[f"mlp.experts.{name}_proj"] for name in ("gate", "up", "down"))
        own = Sorted.by_group(facts >= 0, min(most, facts.shape[1]), LEAST_PAIRS)
        given, weight = tokens[own.rows], facts[own.rows, own.groups]
        inner = jax.nn.silu(own.product(given, gate)) * own.product(given, up) * weight[:, None]
        return own.summed(own.product(inner, down))


@dataclass(frozen=True)
class Sorted:
    """The pairs of row and group that belong together, sorted by group."""

    rows: Any
    """Row of each pair; behind the last pair any."""
    groups: Any
    """Group of each pair; behind the last pair any."""
    sizes: Any
    """Pairs of each group."""
    _places: Any
    """Place of each row's pairs in this order, [rows, most]."""
    _is_pair: Any
    """Whether the row has so many pairs, [rows, most]."""

    @classmethod
    def by_group(cls, is_member: Any, most: int, least: int = 0) -> Sorted:
        """Return the pairs where `is_member`, [rows, groups], is true; a row has at most `most`.

        There is room for `least` pairs at least.
        """
        count = is_member.shape[1]
        own = jnp.sort(jnp.where(is_member, jnp.arange(count, dtype=jnp.int32), count), -1)[:, :most]
        order = jnp.argsort(own.reshape(-1), stable=True)
        pairs = order if len(order) >= least else jnp.pad(order, (0, least - len(order)))
        rows, groups = pairs // most, jnp.minimum(own.reshape(-1)[pairs], count - 1)
        places = jnp.argsort(order).reshape(own.shape)
        return cls(rows, groups, is_member.sum(0, dtype=jnp.int32), places, own < count)

    def product(self, values: Any, matrices: Any) -> Any:
        """Multiply the values [pairs, in] of each group by its own of the matrices [groups, out, in]."""
        return jax.lax.ragged_dot(values, matrices.swapaxes(1, 2), self.sizes)

    def summed(self, values: Any) -> Any:
        """Add up the values of each row's pairs, [pairs, n] to [rows, n]."""
        return jnp.where(self._is_pair[..., None], values[self._places], 0).sum(1)


class CapacityExperts:
    """Experts with places by a capacity factor, to which one-hot products bring the tokens."""

    def __init__(self, links: Collectives, popularity: Any, factor: float) -> None:
        self._links, self._popularity, self._factor = links, popularity, factor

    def run(self, module: Any, weights: Weights, hidden: Any) -> tuple[Any, Any]:
        """See `Experts.run`; the number is that of the experts of a token that were dropped.

        A device of (dp, ep) sends a token once to each device that has some of its experts, with their weights: an
        all-to-all over ep, and one back. Then the all-reduce over tp adds up the parts of the experts' width. A pair
        without a place is dropped; the number of experts that computed a token comes back beside its result.
        """
        tokens, width = hidden.shape
        devices, parts = self._links.sizes["ep"], self._links.sizes["tp"]
        here = weights["mlp.experts.gate_proj"].shape[0]
        count = here * devices
        chosen, weight = routed(module.gate, weights, hidden, self._popularity)
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


def rule(gate: Any, experts: int) -> Routing:
    """Return the rule by which a router chooses."""
    groups, best, method = (getattr(gate, name, None) for name in ("num_group", "topk_group", "topk_method"))
    return Routing.stated(experts, gate.top_k, groups, best, method)


def routed(gate: Any, weights: Weights, hidden: Any, popularity: Any = None) -> tuple[Any, Any]:
    """Return the experts of each token [tokens, width] and their weights, [tokens, k] each, as `gate` chooses.

    Qwen3 chooses the best of all experts, and so does DeepSeek-V2 or it takes the best groups first (arXiv 2405.04434,
    section 2.2.2), as DeepSeek-V3 does (arXiv 2412.19437, section 2.1.2). `popularity` is that of `expert_popularity`.
    """
    is_v2, is_v3 = hasattr(gate, "topk_method"), "mlp.gate.e_score_correction_bias" in weights
    wide = hidden.astype(jnp.float32) if is_v2 or is_v3 else hidden
    logits = jnp.einsum("th,eh->te", wide, weights["mlp.gate.weight"].astype(wide.dtype)).astype(jnp.float32)
    scores = jax.nn.sigmoid(logits) if is_v3 else jax.nn.softmax(logits, -1)
    worth = scores + weights["mlp.gate.e_score_correction_bias"] if is_v3 else scores
    if popularity is not None:
        # As wide as Gumbel noise, whose largest sums with logarithms are a choice by the popularity (Yellott 1977).
        spread = jnp.pi / 6**0.5 / (logits.std(-1, keepdims=True) + 1e-20)
        worth = (logits - logits.mean(-1, keepdims=True)) * spread + jnp.log(popularity)
    if is_v3 or (is_v2 and gate.topk_method == "group_limited_greedy"):
        grouped = worth.reshape(worth.shape[0], gate.num_group, -1)
        of_groups = jax.lax.top_k(grouped, 2)[0].sum(-1) if is_v3 else grouped.max(-1)
        worth = _best_groups_only(grouped, of_groups, gate.topk_group)
    _, chosen = jax.lax.top_k(worth, gate.top_k)
    weight = jnp.take_along_axis(scores, chosen, 1)
    if getattr(gate, "norm_topk_prob", False):
        weight = weight / (weight.sum(-1, keepdims=True) + (1e-20 if is_v3 else 0))
    return chosen, weight * gate.routed_scaling_factor if is_v2 or is_v3 else weight.astype(hidden.dtype)


def _best_groups_only(grouped: Any, of_groups: Any, count: int) -> Any:
    """Return values [tokens, groups, n] as [tokens, experts], minus infinity outside of the best groups."""
    best = jax.lax.top_k(of_groups, count)[1]
    is_kept = (best[..., None] == jnp.arange(grouped.shape[1])).any(1)
    return jnp.where(is_kept[..., None], grouped, -jnp.inf).reshape(grouped.shape[0], -1)


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
