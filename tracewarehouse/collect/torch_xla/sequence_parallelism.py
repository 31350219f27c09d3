"""Splits sequences over tp, so that each device holds a piece: between blocks, or in attention too.

In Megatron's form (Korthikanti et al. 2022) attention and MLP gather the sequence. Ulysses (Jacobs et al. 2023) and
ring (Liu et al. 2023) hold whole weights on every device, so that norms, MLP and projections work on pieces; only
attention exchanges values. A decode step has one position per sequence: every device computes all of it, except
attention, which reads the cache that is split by heads and gathers its result.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from tracewarehouse.collect.parallel.partition import BATCH, Partition
from tracewarehouse.collect.torch_xla.attention import sharded_attention
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import einsum, scope, single_linear


def split_sequence(layers: Iterable[Any], mesh: DeviceMesh) -> None:
    """Split the hidden states between and in decoder layers over tp by sequence, if the sequence is long enough.

    Norms and residuals work on pieces; attention and MLP gather their input, and their last linear ends in a
    reduce-scatter instead of an all-reduce. A decode step has one position per sequence and stays as it is. The sum
    over routed experts is left to the partitioner.
    """
    by_sequence: Partition = (BATCH, "tp", None)
    whole: Partition = (BATCH, None, None)
    for layer in layers:
        _constrain_input(layer, mesh, by_sequence)
        _constrain_output(layer.input_layernorm, mesh, by_sequence)
        _constrain_input(layer.self_attn, mesh, whole)
        _constrain_output(layer.post_attention_layernorm, mesh, by_sequence)
        _constrain_input(layer.mlp, mesh, whole)
        for module in layer.modules():
            for name in ("o_proj", "down_proj"):
                linear = getattr(module, name, None)
                if hasattr(linear, "in_features"):
                    _scatter_output(linear, mesh)


def keep_last_position(norm: Any, mesh: DeviceMesh) -> None:
    """Let the final norm work on the last position only, which every device gets from the one that holds it."""
    forward = norm.forward

    def kept(hidden_states: Any) -> Any:
        if is_split(hidden_states, mesh):
            with scope("lm_head"):
                last = last_position(hidden_states)[:, None]
                hidden_states = mesh.constrain(last, (BATCH, None, None))
        return forward(hidden_states)

    norm.forward = kept


def last_position(hidden: Any) -> Any:
    """Return the last token of [..., batch, tokens, width], by a product with 0 and 1: one all-reduce over pieces."""
    tokens = hidden.shape[-2]
    is_last = (torch.arange(tokens, device=hidden.device) == tokens - 1).to(hidden.dtype)
    return einsum("abth,t->abh" if hidden.dim() == 4 else "bth,t->bh", hidden, is_last)


def is_split(hidden: Any, mesh: DeviceMesh) -> bool:
    """Return whether hidden states [batch, tokens, width] are split; one token of a decode step is not."""
    return bool(hidden.dim() == 3 and hidden.shape[1] > 1 and hidden.shape[1] % mesh.sizes["tp"] == 0)


def scattered_linear(mesh: DeviceMesh, hidden: Any, weight: Any) -> Any:
    """Apply a row-parallel linear, and sum its partial results by a reduce-scatter over the sequence.

    Written out for each device (a manual region), because XLA's CPU pipeline does not form reduce-scatters by itself.
    `hidden` is [batch, tokens, in], `weight` [out, in]; both may have stages in front.
    """
    stages: Partition = ("pp",) * (hidden.dim() - 3)
    tokens = hidden.dim() - 2
    whole = torch.Size((*hidden.shape[:-1], weight.shape[-2]))
    hidden = mesh.constrain(hidden * 1.0, (*stages, BATCH, None, "tp"))
    piece = mesh.part(hidden, (*stages, BATCH, None, "tp"))
    weight = mesh.part(weight, (*stages, None, "tp"))
    partial = torch.einsum("abst,aot->abso" if stages else "bst,ot->bso", piece, weight)
    summed = torch_xla._XLAC._xla_spmd_reduce_scatter(
        xm.REDUCE_SUM, partial, 1.0, tokens, mesh.sizes["tp"], mesh.groups("tp")
    )
    return mesh.whole(summed, (*stages, BATCH, "tp", None), whole)


def _constrain_input(layer: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = layer.forward

    def constrained(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if is_split(hidden_states, mesh):
            # The product with one makes a new value: a constraint on the old one would also apply where that is made.
            hidden_states = mesh.constrain(hidden_states * 1.0, partition)
        return forward(hidden_states, *args, **kwargs)

    layer.forward = constrained


def _constrain_output(norm: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = norm.forward

    def constrained(hidden_states: Any) -> Any:
        out = forward(hidden_states)
        return mesh.constrain(out, partition) if is_split(out, mesh) else out

    norm.forward = constrained


def _scatter_output(linear: Any, mesh: DeviceMesh) -> None:
    """Make a row-parallel linear end in a reduce-scatter if its input is split."""
    forward, summed_by_scatter = linear.forward, functools.partial(scattered_linear, mesh)

    def scatter(hidden: Any) -> Any:
        if not is_split(hidden, mesh):
            return forward(hidden)
        return single_linear(summed_by_scatter, hidden, linear.weight.detach())

    linear.forward = scatter


_BY_SEQUENCE: Partition = (BATCH, None, "tp", None)
"""Partition of query, key and value [batch, heads, tokens, width]."""
_BY_HEAD: Partition = (BATCH, "tp", None, None)


def split_context(model: Any, mesh: DeviceMesh, mode: str) -> None:
    """Keep the hidden states of a dense model split over tp by sequence in every layer of the prefill."""
    attend = _ulysses_attention if mode == "ulysses" else _ring_attention
    AttentionInterface.register(mode, functools.partial(_attention, mesh, attend))
    AttentionMaskInterface.register(mode, eager_mask)
    model.config._attn_implementation = mode
    for layer in model.model.layers:
        _constrain_input(layer, mesh, (BATCH, "tp", None))
        for module in layer.modules():
            if hasattr(module, "in_features"):
                module.forward = functools.partial(_linear, module)


def split_cache_updates(cache: Any, mesh: DeviceMesh, mode: str) -> None:
    """Make the layers of an empty cache accept the keys and values of a split sequence.

    The prefill attends only to its own keys and values, so it gets them directly, not through the cache: split by head
    for Ulysses, by sequence for ring.
    """
    for layer in cache.layers:
        layer.update = functools.partial(_update, mesh, mode, layer.update)


def _update(
    mesh: DeviceMesh, mode: str, update: Any, keys: Any, values: Any, *args: Any, **kwargs: Any
) -> tuple[Any, Any]:
    if keys.shape[2] == 1:
        whole: tuple[Any, Any] = update(keys, values, *args, **kwargs)
        return whole
    by_head = _exchanged(keys, mesh), _exchanged(values, mesh)
    update(*by_head, *args, **kwargs)
    return by_head if mode == "ulysses" else (keys, values)


def _attention(
    mesh: DeviceMesh,
    attend: Any,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float,
    **_: Any,
) -> tuple[Any, Any]:
    """Compute attention as transformers calls it; the prefill has no weights. `sharded_attention` has the shapes."""
    if query.shape[2] == 1:
        output, weights = sharded_attention(module, query, key, value, attention_mask, scaling)
        output = mesh.constrain(output, (BATCH, None, "tp", None))
        return mesh.constrain(output * 1.0, (BATCH, None, None, None)), weights
    return attend(mesh, module, query, key, value, attention_mask[..., : key.shape[2]], scaling), None


def _ulysses_attention(
    mesh: DeviceMesh, module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float
) -> Any:
    """Exchange pieces of the sequence for heads, attend, and exchange back, by an all-to-all each."""
    output, _ = sharded_attention(module, _exchanged(query, mesh), key, value, mask, scaling)
    output = mesh.constrain(output, (BATCH, None, "tp", None))
    return mesh.constrain(output * 1.0, (BATCH, "tp", None, None))


def _ring_attention(mesh: DeviceMesh, _: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float) -> Any:
    """Pass keys and values around the ring of tp, and accumulate the softmax piece by piece.

    The pieces of the sequence are a dimension of their own, split over tp: a rotation along it is a collective-permute.
    The maximum and the sum of the softmax are corrected with every piece (Milakov and Gimelshein 2018). The mask is
    causal, whatever `mask` says: the prompts have no padding.
    """
    pieces = mesh.sizes["tp"]
    batch, heads, tokens, _width = query.shape
    kv_heads, value_width = key.shape[1], value.shape[-1]
    group, length = heads // kv_heads, tokens // pieces
    by_piece: Partition = ("tp", BATCH, None, None, None)

    def piecewise(x: Any) -> Any:
        split = mesh.constrain(x, _BY_SEQUENCE).reshape(batch, kv_heads, -1, pieces, length, x.shape[-1])
        split = split.permute(3, 0, 1, 2, 4, 5).reshape(pieces, batch, kv_heads, -1, x.shape[-1])
        return mesh.constrain(split, by_piece)

    query, key, value = piecewise(query), piecewise(key), piecewise(value)
    piece, place = torch.arange(pieces, device=query.device), torch.arange(length, device=query.device)
    # Not the repetition of `place`, which the partitioner would exchange between the devices.
    of_query = piece[:, None] * length + torch.arange(group * length, device=query.device).remainder(length)
    highest: Any = None
    total: Any = None
    output: Any = None
    for hop in range(pieces):
        if hop:
            key, value = (mesh.constrain(torch.cat([x[-1:], x[:-1]], 0), by_piece) for x in (key, value))
        of_key = (piece - hop).remainder(pieces)[:, None] * length + place
        is_seen = (of_key[:, None, :] <= of_query[:, :, None])[:, None, None]
        scores = torch.where(is_seen, einsum("nbgqd,nbgkd->nbgqk", query, key).float() * scaling, -1e30)
        highest_here = scores.amax(-1, keepdim=True)
        higher = highest_here if highest is None else torch.maximum(highest, highest_here)
        weights = torch.exp(scores - higher)
        sum_here = weights.sum(-1, keepdim=True)
        output_here = einsum("nbgqk,nbgkd->nbgqd", weights, value.float())
        if highest is None:
            total, output = sum_here, output_here
        else:
            correction = torch.exp(highest - higher)
            total, output = total * correction + sum_here, output * correction + output_here
        highest = higher
    output = mesh.constrain((output / total).to(query.dtype), by_piece)
    output = output.reshape(pieces, batch, kv_heads, group, length, value_width).permute(1, 0, 4, 2, 3, 5)
    return mesh.constrain(output.reshape(batch, tokens, heads, value_width), (BATCH, "tp", None, None))


def _exchanged(value: Any, mesh: DeviceMesh) -> Any:
    """Return a value that is split by sequence, split by head."""
    # The product with one keeps the two constraints apart: on the same value the second would replace the first.
    return mesh.constrain(mesh.constrain(value, _BY_SEQUENCE) * 1.0, _BY_HEAD)


def _linear(linear: Any, hidden: Any) -> Any:
    """Apply a linear to [batch, tokens, features] that keeps batch and tokens apart.

    torch merges them into one dimension; split over several axes, its pieces would be gathered first.
    """
    out = einsum("bsf,of->bso", hidden, linear.weight)
    return out if linear.bias is None else out + linear.bias
