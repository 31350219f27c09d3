"""Attention in a form that the SPMD partitioner can split."""

from __future__ import annotations

from typing import Any

NAME = "sharded_einsum"


def register() -> None:
    """Make the attention known to transformers under `NAME`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(NAME, sharded_attention)
    AttentionMaskInterface.register(NAME, eager_mask)


def sharded_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, dropout: float = 0.0, **_: Any
) -> tuple[Any, Any]:
    """Attention whose products keep the batch and the head dimension apart.

    A matmul lowers to a product over one merged dimension batch x heads. Batch and heads may be split over different
    mesh axes, so the partitioner would gather query, key and value first; an einsum has no such dimension.

    Args:
        module: The attention module (unused; the interface of transformers passes it).
        query: [batch, heads, tokens, head_dim].
        key: [batch, key-value heads, cached tokens, head_dim].
        value: [batch, key-value heads, cached tokens, value head_dim].
        attention_mask: Added to the scores, [batch or 1, 1, tokens, cached tokens].
        scaling: Factor of the scores.
        dropout: Must be 0 in inference; ignored.

    Returns:
        Output [batch, tokens, heads, value head_dim] and weights [batch, key-value heads, queries per head, ...].
    """
    import torch

    from tracewarehouse.collect.parallel.stage_operations import einsum

    batch, heads, tokens, width = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, tokens, width)
    scores = einsum("bgrsd,bgtd->bgrst", grouped, key) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask.unsqueeze(2)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    output = einsum("bgrst,bgtd->bgrsd", weights, value).reshape(batch, heads, tokens, value.shape[-1])
    return output.transpose(1, 2).contiguous(), weights
