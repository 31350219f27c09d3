"""Rewrites parts of DeepSeek models so that they compile to one program that can be split."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def use_compilable_operations(model: Any) -> None:
    """Replace the complex rotary embedding of DeepSeek-V2 and indexed routing by groups; other models stay as they are.

    XLA has no `polar`, so the complex form computes on the host and cuts every step into two programs. Scatter and
    gather along the experts become, inside a pipeline stage, indexing over all stages: communication between them.
    """
    if model.config.model_type == "deepseek_v2":
        import transformers.models.deepseek_v2.modeling_deepseek_v2 as deepseek_v2

        rotary = model.model.rotary_emb
        rotary.forward = lambda x, position_ids: _cosines_and_sines(rotary, position_ids)
        deepseek_v2.apply_rotary_emb = _rotate_pairs
        if model.config.topk_method == "group_limited_greedy":
            _replace_routing(model, _route_v2)
    elif model.config.model_type == "deepseek_v3":
        _replace_routing(model, _route_v3)


def _replace_routing(model: Any, route: Callable[[Any, Any], Any]) -> None:
    for layer in model.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.forward = functools.partial(route, layer.mlp.gate)


def _cosines_and_sines(rotary: Any, position_ids: Any) -> Any:
    """Return cosine and sine of every pair's angle, [batch, tokens, pairs, 2]."""
    import torch

    angles = position_ids[..., None].float() * rotary.inv_freq.float()
    return torch.stack((angles.cos(), angles.sin()), -1) * rotary.attention_scaling


def _rotate_pairs(query: Any, key: Any, angles: Any) -> tuple[Any, Any]:
    """Rotate neighbouring pairs of the last dimension of query and key [batch, heads, tokens, width]."""
    import torch

    cos, sin = angles[..., 0].unsqueeze(1), angles[..., 1].unsqueeze(1)

    def rotate(x: Any) -> Any:
        first, second = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2).type_as(x)

    return rotate(query), rotate(key)


def _route_v2(gate: Any, hidden: Any) -> tuple[Any, Any, Any]:
    """Route as DeepSeek-V2 (arXiv 2405.04434, section 2.2.2): a group is as good as its best expert.

    Returns:
        As for `_route_v3`.
    """
    import torch

    logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim).float(), gate.weight.float())
    grouped = logits.softmax(-1).reshape(-1, gate.num_group, gate.num_experts // gate.num_group)
    is_kept = _are_largest(grouped.amax(-1), gate.topk_group)
    limited = torch.where(is_kept[..., None], grouped, 0.0).flatten(1)
    weights, chosen = torch.topk(limited, gate.top_k, dim=-1, sorted=False)
    return logits, weights * gate.routed_scaling_factor, chosen


def _route_v3(gate: Any, hidden: Any) -> tuple[Any, Any, Any]:
    """Route as DeepSeek-V3 (arXiv 2412.19437, section 2.1.2), with comparisons instead of indices.

    Returns:
        Logits [tokens, experts], weights [tokens, k] and chosen experts [tokens, k].
    """
    import torch

    hidden = hidden.reshape(-1, gate.hidden_dim)
    logits = torch.nn.functional.linear(hidden.float(), gate.weight.float())
    scores = logits.sigmoid()
    biased = scores + gate.e_score_correction_bias
    grouped = biased.reshape(-1, gate.num_group, gate.num_experts // gate.num_group)
    is_kept = _are_largest(grouped.topk(2, dim=-1)[0].sum(-1), gate.topk_group)
    chosen = torch.topk(torch.where(is_kept[..., None], grouped, -torch.inf).flatten(1), gate.top_k, -1, sorted=False)[
        1
    ]
    weights = (scores[:, None] * _is_chosen(chosen, gate.num_experts)).sum(-1)
    if gate.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return logits, weights * gate.routed_scaling_factor, chosen


def _are_largest(values: Any, count: int) -> Any:
    """Return which of the values [tokens, groups] are among the `count` largest of a token; of equal ones the first.

    It compares, because the TPU compiler turns such a small topk into a call, and gathers the values of all tokens for
    it.
    """
    import torch

    place = torch.arange(values.shape[-1], device=values.device)
    own, other = values[..., None], values[..., None, :]
    is_ahead = (other > own) | ((other == own) & (place < place[:, None]))
    return is_ahead.sum(-1) < count


def _is_chosen(chosen: Any, count: int) -> Any:
    """Turn indices [tokens, k] into truth values [tokens, k, count]."""
    import torch

    return chosen[..., None] == torch.arange(count, device=chosen.device)
