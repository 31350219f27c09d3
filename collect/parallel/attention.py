"""Attention in forms that the SPMD partitioner can split: einsums, and on TPU a kernel for the prefill."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from tracewarehouse.collect.parallel.partition import BATCH

if TYPE_CHECKING:
    from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
    from tracewarehouse.collect.run_spec import RunSpec

NAME = "sharded"
LANES = 128
"""The kernel takes heads up to this width, and multiples of it."""
QUERY_BLOCK = 512
"""Queries of a block of torch_xla's kernel; a prompt must be a multiple, or shorter and a multiple of LANES."""

BATCH_BLOCK = 2
"""Sequences of a block; a device must have one sequence or a multiple."""

Form = Literal["einsum", "flash"]


def prefill_form(spec: RunSpec) -> Form:
    """Return how the prefill of a run attends; decode steps use einsums.

    The kernel is flash attention (Dao et al. 2022) written in Pallas, which torch_xla brings; it needs jax. It cannot
    be mapped over the stages of a pipeline in one program, and Ulysses and ring have attention of their own.
    """
    if spec.device != "tpu" or spec.axis("pp") > 1 or spec.sequence_parallelism in ("ulysses", "ring"):
        return "einsum"
    length, batch = spec.input_length, spec.batch // (spec.axis("dp") * spec.axis("ep"))
    fits = length % LANES == 0 and (length <= QUERY_BLOCK or length % QUERY_BLOCK == 0)
    fits = fits and (batch == 1 or batch % BATCH_BLOCK == 0)
    return "flash" if fits and find_spec("jax") is not None else "einsum"


def register(spec: RunSpec, mesh: DeviceMesh) -> None:
    """Make the attention of a run known to transformers under `NAME`."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    is_kernel = prefill_form(spec) == "flash"
    attend = functools.partial(flash_attention, mesh) if is_kernel else sharded_attention
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)


def flash_attention(
    mesh: DeviceMesh, module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, **_: Any
) -> tuple[Any, Any]:
    """Compute the attention of a prefill with the kernel, on each device's part of batch and heads.

    The prompts have no padding and begin at the first position, so what a token sees are the tokens up to itself. The
    kernel never has all scores in memory, and gives no weights.
    """
    from torch.nn.functional import pad
    from torch_xla.experimental.custom_kernel import flash_attention as kernel

    batch, heads, tokens, width = query.shape
    if tokens == 1:
        return sharded_attention(module, query, key, value, attention_mask, scaling)
    padded = width if width <= LANES else -(-width // LANES) * LANES

    def of_each_head(x: Any) -> Any:
        # The cache has room behind the prompt; keys and values have fewer heads, each for several queries.
        seen = pad(x[:, :, :tokens], (0, padded - x.shape[-1]))
        repeated = seen[:, :, None].expand(-1, -1, heads // x.shape[1], -1, -1)
        return mesh.constrain(repeated.reshape(batch, heads, tokens, padded), (BATCH, "tp", None, None))

    output = kernel(
        *map(of_each_head, (query, key, value)),
        causal=True,
        sm_scale=scaling,
        partition_spec=mesh.resolve((BATCH, "tp", None, None)),
        mesh=mesh.xla_mesh,
    )
    return output[..., : value.shape[-1]].transpose(1, 2).contiguous(), None


def sharded_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float, dropout: float = 0.0, **_: Any
) -> tuple[Any, Any]:
    """Compute attention whose products keep the batch and the head dimension apart.

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
