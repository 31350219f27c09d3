"""Computes attention in forms that the SPMD partitioner can split: einsums and, on TPU, kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tracewarehouse.collect.parallel.attention_forms import LANES, PAGE, block_pages, decode_form, prefill_form
from tracewarehouse.collect.parallel.partition import BATCH
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import einsum

NAME = "sharded"

Attend = Callable[..., tuple[Any, Any]]
"""Attention as transformers calls it; `sharded_attention` has the arguments."""


def register(spec: RunSpec, mesh: DeviceMesh) -> None:
    """Register the attention of a run with transformers under `NAME`."""
    flash, paged = (functools.partial(kernel, mesh) for kernel in (flash_attention, paged_attention))
    prefill: Attend = flash if prefill_form(spec) == "flash" else sharded_attention
    decode: Attend = paged if decode_form(spec) == "paged" else sharded_attention

    def attend(module: Any, query: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return (prefill if query.shape[2] > 1 else decode)(module, query, *args, **kwargs)

    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)


def flash_attention(
    mesh: DeviceMesh, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
) -> tuple[Any, Any]:
    """Compute the attention of a prefill with the kernel, on each device's part of batch and heads.

    The prompts have no padding and begin at the first position, so a token sees the tokens up to itself. The kernel
    never has all scores in memory, and returns no weights.
    """
    from torch.nn.functional import pad
    from torch_xla.experimental.custom_kernel import flash_attention as kernel

    batch, heads, tokens, width = query.shape
    padded = width if width <= LANES else -(-width // LANES) * LANES

    def repeated_heads(x: Any) -> Any:
        # The cache has room after the prompt; keys and values have fewer heads, each for several queries.
        seen = pad(x[:, :, :tokens], (0, padded - x.shape[-1]))
        repeated = seen[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1)
        return mesh.constrain(repeated.reshape(batch, heads, tokens, padded), (BATCH, "tp", None, None))

    output = kernel(
        *map(repeated_heads, (query, key, value)),
        causal=True,
        sm_scale=scaling,
        partition_spec=mesh.resolve((BATCH, "tp", None, None)),
        mesh=mesh.xla_mesh,
    )
    return output[..., : value.shape[-1]].transpose(1, 2).contiguous(), None


def paged_attention(
    mesh: DeviceMesh,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float,
    position_ids: Any,
    **_: Any,
) -> tuple[Any, Any]:
    """Compute the attention of a decode step with the kernel, on each device's part of batch and heads.

    The kernel looks up each page of a sequence. Here the pages of a sequence are contiguous for each key-value head, so
    the kernel is given batch x heads sequences with one head, and the cache stays where it is. It does not apply
    `scaling`. The mask is ignored: all sequences have the same length, and a token sees all tokens before it.

    Returns:
        Output [batch, 1, heads, head_dim] for a query [batch, heads, 1, head_dim], and no weights.
    """
    from torch_xla.experimental.custom_kernel import paged_attention as kernel

    by_head = (BATCH, "tp", None, None)
    own_query, own_key, own_value = (mesh.part(x, by_head) for x in (query, key, value))
    batch, kv_heads, length, width = own_key.shape
    sequences, pages = batch * kv_heads, length // PAGE
    lengths = mesh.part(position_ids[0] + 1, (None,)).to(torch.int32).expand(sequences)
    indices = torch.arange(sequences * pages, dtype=torch.int32, device=query.device).reshape(sequences, pages)
    output = kernel(
        (own_query.float() * scaling).reshape(sequences, -1, width),
        own_key.reshape(1, sequences * pages, PAGE, width),
        own_value.reshape(1, sequences * pages, PAGE, width),
        lengths,
        indices,
        pages_per_compute_block=block_pages(pages),
    )
    joined = mesh.whole(output.reshape(own_query.shape).to(query.dtype), by_head, query.shape)
    return joined.transpose(1, 2).contiguous(), None


def sharded_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
) -> tuple[Any, Any]:
    """Compute attention whose products keep the batch and the head dimension apart.

    A matmul lowers to a product over one merged dimension, batch x heads. Since batch and heads may be split over
    different mesh axes, the partitioner would gather query, key and value first; an einsum has no such dimension.

    `query` is [batch, heads, tokens, head_dim], `key` and `value` are [batch, key-value heads, cached tokens, width];
    `attention_mask`, which is added to the scores, is [batch or 1, 1, tokens, cached tokens].

    Returns:
        Output [batch, tokens, heads, value head_dim] and weights [batch, key-value heads, queries per head, ...].
    """
    batch, heads, tokens, width = query.shape
    kv_heads = key.shape[1]
    grouped = query.reshape(batch, kv_heads, heads // kv_heads, tokens, width)
    scores = einsum("bgrsd,bgtd->bgrst", grouped, key) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask.unsqueeze(2)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    output = einsum("bgrst,bgtd->bgrsd", weights, value).reshape(batch, heads, tokens, value.shape[-1])
    return output.transpose(1, 2).contiguous(), weights
