"""Generates with the unsplit model in numpy: the reference for what any backend computes on its devices.

Products add up in float32, and results are rounded to the dtype of the run where transformers rounds them: otherwise a
token near the border between two experts would go to another one. It shares no code with the backends. A test compares
it with the models of transformers in plain torch.

Sums in another order still round differently, and a token at the border itself may go either way. So the model also
says what it would give if every such token went the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracewarehouse.collect.models.form import (
    CorrectedRouter,
    GroupRouter,
    LatentAttention,
    Layer,
    ModelForm,
    Norm,
    NormedAttention,
    RoutedMlp,
    SharedMlp,
    SoftmaxRouter,
)

_BLOCK = 2**24
"""Elements of a 16-bit matrix that are made float32 at a time."""
_ROUNDING = 2.0**-8
"""Largest relative error of a number in bfloat16."""
_REACH = 3.0
"""Largest error of a router's logit, in those of one rounding of its input by the root of the layers so far.

The root mean square is 0.8 to 1.3 of them, of JAX beside this model, in four layers of the tiny models. Two logits may
be off in opposite directions.
"""


class PlainModel:
    """A model on the host, with the keys and values of what it has seen.

    `weights` are arrays by name in the dtype of the run, [out, in] for a matrix.
    """

    def __init__(self, form: ModelForm, weights: Mapping[str, Any]) -> None:
        self._form, self._weights = form, weights
        self._keys: list[Any] = [None] * len(form.layers)
        self._values: list[Any] = [None] * len(form.layers)
        self._seen = 0
        self._dtype = weights["model.embed_tokens.weight"].dtype
        self._is_routed = any(isinstance(layer.mlp, RoutedMlp) for layer in form.layers)

    def _rounded(self, values: Any) -> Any:
        """Return float32 values that the dtype of the run has too."""
        return values if self._dtype == np.float32 else values.astype(self._dtype).astype(np.float32)

    def generate(self, tokens: Any, steps: int) -> tuple[Any, Any]:
        """Generate greedily after a prompt, [batch, length].

        Returns:
            The logits [batch, steps, vocabulary]. And those after the same tokens where every token goes to other
            experts that roundings to bfloat16 could have made the best; for a dense model they are the same.
        """
        logits: list[Any] = []
        others: list[Any] = []
        for _ in range(steps):
            # The second half are the sequences whose tokens go to other experts.
            one, *other = np.split(self._step(np.tile(tokens, (2, 1))), 2) if self._is_routed else [self._step(tokens)]
            logits.append(one)
            others += other or [one]
            tokens = one.argmax(-1)[:, None]
        return np.stack(logits, 1), np.stack(others, 1)

    def _step(self, tokens: Any) -> Any:
        """Return the logits of the last position, [batch, vocabulary]."""
        form = self._form
        positions = self._seen + np.arange(tokens.shape[1])
        self._seen += tokens.shape[1]
        angles = positions[:, None].astype(np.float32) * form.rotary.inv_freq
        turn = np.cos(angles) * form.rotary.attention_scaling, np.sin(angles) * form.rotary.attention_scaling
        is_seen = np.arange(self._seen) <= positions[:, None]
        hidden = self._weights["model.embed_tokens.weight"][tokens].astype(np.float32)
        for number, layer in enumerate(form.layers):
            hidden = self._layer(number, layer, hidden, turn, is_seen)
        last = self._normed(form.norm, "model.norm", hidden[:, -1])
        tied = "lm_head" if "lm_head.weight" in self._weights else "model.embed_tokens"
        return self._linear(tied, last)

    def _layer(self, number: int, layer: Layer, hidden: Any, turn: tuple[Any, Any], is_seen: Any) -> Any:
        name = f"model.layers.{number}"
        given = self._normed(layer.input_layernorm, f"{name}.input_layernorm", hidden)
        attend = self._latent if isinstance(layer.self_attn, LatentAttention) else self._by_head
        query, keys, values = attend(number, layer.self_attn, given, turn)
        merged = self._attended(query, keys, values, is_seen, layer.self_attn.scaling)
        hidden = self._rounded(hidden + self._linear(f"{name}.self_attn.o_proj", merged))
        given = self._normed(layer.post_attention_layernorm, f"{name}.post_attention_layernorm", hidden)
        if not isinstance(layer.mlp, RoutedMlp):
            return self._rounded(hidden + self._gated(f"{name}.mlp", given))
        tokens = given.reshape(-1, given.shape[-1])
        hidden = hidden + self._routed(number, f"{name}.mlp", layer.mlp, tokens).reshape(given.shape)
        if isinstance(layer.mlp, SharedMlp):
            hidden = hidden + self._gated(f"{name}.mlp.shared_experts", given)
        return self._rounded(hidden)

    def _by_head(self, number: int, form: Any, given: Any, turn: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        name = f"model.layers.{number}.self_attn"
        query, key, value = (_heads(self._linear(f"{name}.{part}_proj", given), form.head_dim) for part in "qkv")
        if isinstance(form, NormedAttention):
            query = self._normed(form.q_norm, f"{name}.q_norm", query)
            key = self._normed(form.k_norm, f"{name}.k_norm", key)
        turn = self._rounded(turn[0]), self._rounded(turn[1])
        query, key = (self._rounded(_turned_halves(part, turn)) for part in (query, key))
        return query, *self._remembered(number, key, value)

    def _latent(self, number: int, form: Any, given: Any, turn: tuple[Any, Any]) -> tuple[Any, Any, Any]:
        """Expand the keys and values of all heads from one latent (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""
        name = f"model.layers.{number}.self_attn"
        if form.q_lora_rank is None:
            query = self._linear(f"{name}.q_proj", given)
        else:
            latent = self._linear(f"{name}.q_a_proj", given)
            query = self._linear(f"{name}.q_b_proj", self._normed(form.q_a_layernorm, f"{name}.q_a_layernorm", latent))
        query = _heads(query, form.qk_head_dim)
        compressed = self._linear(f"{name}.kv_a_proj_with_mqa", given)
        latent = self._normed(form.kv_a_layernorm, f"{name}.kv_a_layernorm", compressed[..., : form.kv_lora_rank])
        in_pairs = form.config.model_type == "deepseek_v2" or form.config.rope_interleave
        turned = _turned_pairs if in_pairs else _turned_halves
        if form.config.model_type != "deepseek_v2":  # which turns in float32
            turn = self._rounded(turn[0]), self._rounded(turn[1])
        key = self._rounded(turned(compressed[:, None, :, form.kv_lora_rank :], turn))
        latents, keys = self._remembered(number, latent[:, None], key)
        plain = form.qk_nope_head_dim
        expanded = _heads(self._linear(f"{name}.kv_b_proj", latents[:, 0]), plain + form.v_head_dim)
        shared = np.broadcast_to(keys, (*expanded.shape[:3], keys.shape[-1]))
        query = np.concatenate([query[..., :plain], self._rounded(turned(query[..., plain:], turn))], -1)
        return query, np.concatenate([expanded[..., :plain], shared], -1), expanded[..., plain:]

    def _remembered(self, number: int, key: Any, value: Any) -> tuple[Any, Any]:
        """Return the keys and values of a layer so far, [batch, heads, positions, width], with new ones behind."""
        if self._keys[number] is not None:
            key = np.concatenate([self._keys[number], key], 2)
            value = np.concatenate([self._values[number], value], 2)
        self._keys[number], self._values[number] = key, value
        return key, value

    def _gated(self, name: str, given: Any) -> Any:
        gate, up = (self._linear(f"{name}.{part}_proj", given) for part in ("gate", "up"))
        return self._linear(f"{name}.down_proj", self._rounded(self._rounded(_silu(gate)) * up))

    def _routed(self, number: int, name: str, form: RoutedMlp, tokens: Any) -> Any:
        """Return what the chosen experts of each token give together, [tokens, width]."""
        chosen, weight = self._choice(name, form.gate, tokens, _REACH * (number + 1) ** 0.5 * _ROUNDING)
        gate, up, down = (self._weights[f"{name}.experts.{part}_proj"] for part in ("gate", "up", "down"))
        out = np.zeros_like(tokens)
        for expert in range(form.experts):
            token, place = np.nonzero(chosen == expert)
            if len(token):
                wide = self._rounded(_silu(self._rounded(_product(tokens[token], gate[expert]))))
                inner = self._rounded(wide * self._rounded(_product(tokens[token], up[expert])))
                out[token] += weight[token, place, None] * self._rounded(_product(inner, down[expert]))
        return self._rounded(out)

    def _choice(self, name: str, gate: Any, tokens: Any, reach: float) -> tuple[Any, Any]:
        """Return the experts of each token and their weights, [tokens, k] each.

        The second half of the tokens go to other experts than the first if errors of the logits can make these the
        best; `reach` is the relative error of a token's elements that they come from.
        """
        router = self._weights[f"{name}.gate.weight"]
        logits = _product(tokens, router)
        scores, chosen = self._best(name, gate, logits)
        half = len(tokens) // 2
        error = reach * _spread(tokens[half:], router)
        chosen[half:] = self._others(name, gate, logits[half:], chosen[:half], error)
        weight = np.take_along_axis(scores, chosen, 1)
        if getattr(gate, "norm_topk_prob", False):
            weight = weight / (weight.sum(-1, keepdims=True) + 1e-20)
        return chosen, weight * getattr(gate, "routed_scaling_factor", 1.0)

    def _others(self, name: str, gate: Any, logits: Any, chosen: Any, error: Any) -> Any:
        """Return the best experts after errors that favour other groups than the `chosen`, or else other experts."""
        is_chosen = (chosen[..., None] == np.arange(logits.shape[1])).any(1)
        groups = getattr(gate, "num_group", None) or 1
        is_group = is_chosen.reshape(len(logits), groups, -1).any(-1).repeat(logits.shape[1] // groups, 1)
        of_groups, of_experts = (
            self._best(name, gate, logits + np.where(is_best, -error, error))[1] for is_best in (is_group, is_chosen)
        )
        is_same = (np.sort(of_groups) == np.sort(chosen)).all(-1, keepdims=True)
        return np.where(is_same, of_experts, of_groups)

    def _best(self, name: str, gate: Any, logits: Any) -> tuple[Any, Any]:
        """Return the scores of all experts, [tokens, experts], and the best experts of each token, [tokens, k]."""
        if isinstance(gate, SoftmaxRouter):  # the others compute in float32
            logits = self._rounded(logits)
        if isinstance(gate, CorrectedRouter):  # DeepSeek-V3, arXiv 2412.19437, section 2.1.2
            scores = _sigmoid(logits)
            biased = scores + self._weights[f"{name}.gate.e_score_correction_bias"].astype(np.float32)
            grouped = biased.reshape(len(logits), gate.num_group, -1)
            best_two = np.sort(grouped, -1)[..., -2:].sum(-1)
            return scores, _largest(_only_groups(grouped, best_two, gate.topk_group, -np.inf), gate.top_k)
        scores = np.exp(logits - logits.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        if isinstance(gate, GroupRouter) and gate.topk_method == "group_limited_greedy":
            grouped = scores.reshape(len(logits), gate.num_group, -1)
            return scores, _largest(_only_groups(grouped, grouped.max(-1), gate.topk_group or 1, 0.0), gate.top_k)
        return scores, _largest(scores, gate.top_k)

    def _normed(self, form: Norm, name: str, given: Any) -> Any:
        """Apply root mean square normalisation (Zhang and Sennrich 2019)."""
        mean = np.mean(given * given, -1, keepdims=True)
        scaled = self._rounded(given / np.sqrt(mean + form.variance_epsilon))
        return self._rounded(self._weights[f"{name}.weight"].astype(np.float32) * scaled)

    def _linear(self, name: str, given: Any) -> Any:
        out = _product(given, self._weights[f"{name}.weight"])
        bias = self._weights.get(f"{name}.bias")
        return self._rounded(out if bias is None else out + bias.astype(np.float32))

    def _attended(self, query: Any, keys: Any, values: Any, is_seen: Any, scaling: float) -> Any:
        """Attend, with keys and values that query heads may share; return [batch, tokens, heads x width]."""
        batch, heads, tokens, _ = query.shape
        shared = heads // keys.shape[1]
        keys, values = np.repeat(keys, shared, 1), np.repeat(values, shared, 1)
        scores = self._rounded(self._rounded(query @ keys.swapaxes(-1, -2)) * np.float32(scaling))
        scores = np.where(is_seen, scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        scores /= scores.sum(-1, keepdims=True)
        return self._rounded(self._rounded(scores) @ values).swapaxes(1, 2).reshape(batch, tokens, -1)


def _product(given: Any, matrix: Any) -> Any:
    """Multiply [..., in] by a matrix [out, in], of which only blocks become float32."""
    if matrix.dtype == np.float32:
        return given @ matrix.T
    rows = max(1, _BLOCK // matrix.shape[1])
    blocks = [matrix[start : start + rows].astype(np.float32) for start in range(0, len(matrix), rows)]
    return np.concatenate([given @ block.T for block in blocks], -1)


def _spread(given: Any, matrix: Any) -> Any:
    """Return the error of the product of [..., in] by a matrix [out, in] for independent ones of 1 of all elements."""
    return np.sqrt(_product(given**2, matrix.astype(np.float32) ** 2))


def _heads(merged: Any, width: int) -> Any:
    """Turn [batch, tokens, heads x width] into [batch, heads, tokens, width]."""
    return merged.reshape(*merged.shape[:2], -1, width).swapaxes(1, 2)


def _turned_halves(given: Any, turn: tuple[Any, Any]) -> Any:
    """Rotate each element of the first half of the width with that of the second half."""
    (cosines, sines), half = turn, given.shape[-1] // 2
    first, second = given[..., :half], given[..., half:]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)


def _turned_pairs(given: Any, turn: tuple[Any, Any]) -> Any:
    """Rotate neighbouring elements; the first of all pairs then stand before the second, which changes no score."""
    cosines, sines = turn
    first, second = given[..., 0::2], given[..., 1::2]
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)


def _silu(given: Any) -> Any:
    return given * _sigmoid(given)


def _sigmoid(given: Any) -> Any:
    return 0.5 * (1 + np.tanh(given / 2))  # which cannot overflow


def _largest(scores: Any, count: int) -> Any:
    """Return the places of the largest scores of each row; of equal ones the first."""
    return np.argsort(-scores, -1, kind="stable")[:, :count]


def _only_groups(grouped: Any, group_scores: Any, count: int, other: float) -> Any:
    """Return scores [tokens, groups, n] as [tokens, experts], with `other` outside of the best groups."""
    is_kept = np.zeros(group_scores.shape, bool)
    np.put_along_axis(is_kept, _largest(group_scores, count), True, 1)
    return np.where(is_kept[..., None], grouped, np.float32(other)).reshape(len(grouped), -1)
