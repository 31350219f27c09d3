"""Rotary position embedding of DeepSeek-V2 in real numbers."""

from __future__ import annotations

from typing import Any


def use_real_rotary(model: Any) -> None:
    """Replace complex rotary embeddings in a model by real ones; other models stay as they are.

    XLA has no `polar`, so the complex form computes on the host and cuts every step into two programs.
    """
    if model.config.model_type != "deepseek_v2":
        return
    import transformers.models.deepseek_v2.modeling_deepseek_v2 as deepseek_v2

    rotary = model.model.rotary_emb
    rotary.forward = lambda x, position_ids: _cosines_and_sines(rotary, position_ids)
    deepseek_v2.apply_rotary_emb = _rotate_pairs


def _cosines_and_sines(rotary: Any, position_ids: Any) -> Any:
    """[batch, tokens, pairs, 2]: cosine and sine of every pair's angle."""
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
