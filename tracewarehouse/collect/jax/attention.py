"""Computes attention on the heads or the piece of the sequence that one device has."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from tracewarehouse.collect.jax.mesh import Weights
from tracewarehouse.collect.jax.operations import Collectives, Step, linear, rms_norm
from tracewarehouse.collect.parallel.attention_forms import (
    PAGE,
    QUERY_BLOCK,
    block_pages,
    decode_form,
    prefill_form,
)
from tracewarehouse.collect.parallel.partition import MODES
from tracewarehouse.collect.run_spec import RunSpec


class Attention:
    """The attention of a decoder layer."""

    def __init__(self, spec: RunSpec, links: Collectives) -> None:
        self._links, self._mode, self._kv_copies = links, spec.sequence_parallelism, spec.kv_copies
        self._prefill, self._decode = prefill_form(spec), decode_form(spec)

    def run(
        self, module: Any, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any]]:
        """Attend; the result is still to be added up over tp, except in the modes that hold whole layers.

        `module` is the attention in transformers, which has its sizes. `hidden` is [batch, tokens, width]; in Ulysses
        and ring a piece of the sequence. The cache has keys and values [batch, heads, cached tokens, width]; for latent
        attention, its latents and keys.

        Returns:
            [batch, tokens, width], and the new cache.
        """
        attend = self._latent if hasattr(module, "kv_lora_rank") else self._by_head
        output, cache = attend(module, weights, hidden, cache, step)
        batch, heads, tokens, width = output.shape
        merged = output.swapaxes(1, 2).reshape(batch, tokens, heads * width)
        return linear(merged, weights, "self_attn.o_proj"), cache

    def _by_head(
        self, module: Any, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any]]:
        """Attend with several heads, some of which may share keys and values (GQA)."""
        query, key, value = (
            _heads(linear(hidden, weights, f"self_attn.{name}_proj"), module.head_dim) for name in "qkv"
        )
        if hasattr(module, "q_norm"):
            query = rms_norm(module.q_norm, weights["self_attn.q_norm.weight"], query)
            key = rms_norm(module.k_norm, weights["self_attn.k_norm.weight"], key)
        cosines, sines = step.cosines, step.sines
        if step.is_split and self._mode in MODES:
            cosines, sines = (self._links.piece(x, "tp", 0) for x in (cosines, sines))
        query, key = (_rotated_halves(x, cosines, sines) for x in (query, key))
        if self._mode in MODES:
            return self._with_context(module, query, key, value, cache, step)
        cache = _stored(cache, key, value, step.start)
        if self._prefill == "flash" and step.tokens > 1:
            return flash(query, key, value, module.scaling), cache
        if self._decode == "paged" and step.tokens == 1:
            return paged(query, *cache, step.start, module.scaling), cache
        return attention(query, *cache, step.mask, module.scaling), cache

    def _with_context(
        self, module: Any, query: Any, key: Any, value: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any]]:
        """Attend as Ulysses (Jacobs et al. 2023) or ring (Liu et al. 2023), with whole layers on every device.

        A decode step has one position, for which each device attends with its own heads.
        """
        links = self._links
        keys, values = (jnp.repeat(x, self._kv_copies, 1) for x in (key, value))
        if not step.is_split:
            query, key, value = (links.piece(x, "tp", 1) for x in (query, keys, values))
            cache = _stored(cache, key, value, step.start)
            return links.gathered(attention(query, *cache, step.mask, module.scaling), "tp", 1), cache
        # The prefill attends to its own keys and values; the cache is split by head, as decode steps read it.
        by_head = links.exchanged(keys, "tp", 1, 2), links.exchanged(values, "tp", 1, 2)
        cache = _stored(cache, *by_head, step.start)
        if self._mode == "ring":
            return self._ring(query, key, value, module.scaling), cache
        mask = step.mask[:, : step.tokens]
        output = attention(links.exchanged(query, "tp", 1, 2), *by_head, mask, module.scaling)
        return links.exchanged(output, "tp", 2, 1), cache

    def _ring(self, query: Any, key: Any, value: Any, scaling: float) -> Any:
        """Pass keys and values around the ring of tp, and accumulate the softmax piece by piece.

        Its maximum and sum are corrected with every piece (Milakov and Gimelshein 2018).
        """
        devices, here = self._links.sizes["tp"], self._links.place("tp")
        length, dtype = query.shape[2], query.dtype
        places = jnp.arange(length)
        query = _grouped(query, key.shape[1])
        highest: Any = None
        total: Any = None
        output: Any = None
        for hop in range(devices):
            if hop:
                key, value = self._links.passed_on(key, "tp"), self._links.passed_on(value, "tp")
            key_places = (here - hop) % devices * length + places
            is_seen = key_places[None, :] <= (here * length + places)[:, None]
            scores = jnp.einsum("bgrsd,bgtd->bgrst", query, key).astype(jnp.float32) * scaling
            scores = jnp.where(is_seen, scores, -1e30)
            highest_here = scores.max(-1, keepdims=True)
            higher = highest_here if highest is None else jnp.maximum(highest, highest_here)
            weights = jnp.exp(scores - higher)
            sum_here = weights.sum(-1, keepdims=True)
            output_here = jnp.einsum("bgrst,bgtd->bgrsd", weights, value.astype(jnp.float32))
            if highest is None:
                total, output = sum_here, output_here
            else:
                correction = jnp.exp(highest - higher)
                total, output = total * correction + sum_here, output * correction + output_here
            highest = higher
        return _ungrouped((output / total).astype(dtype))

    def _latent(
        self, module: Any, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: Step
    ) -> tuple[Any, tuple[Any, Any]]:
        """Attend with one latent for all heads in the cache (DeepSeek-V2, arXiv 2405.04434)."""
        plain, rank = module.qk_nope_head_dim, module.kv_lora_rank
        if module.q_lora_rank is None:
            query = linear(hidden, weights, "self_attn.q_proj")
        else:
            latent = linear(hidden, weights, "self_attn.q_a_proj")
            normed = rms_norm(module.q_a_layernorm, weights["self_attn.q_a_layernorm.weight"], latent)
            query = linear(normed, weights, "self_attn.q_b_proj")
        query = _heads(query, module.qk_head_dim)
        compressed = linear(hidden, weights, "self_attn.kv_a_proj_with_mqa")[:, None]
        latent, turned = compressed[..., :rank], compressed[..., rank:]
        latent = rms_norm(module.kv_a_layernorm, weights["self_attn.kv_a_layernorm.weight"], latent)
        rotate = _rotation(module.config)
        turned = rotate(turned, step.cosines, step.sines)
        query = jnp.concatenate([query[..., :plain], rotate(query[..., plain:], step.cosines, step.sines)], -1)
        cache = _stored(cache, latent, turned, step.start)
        latents, keys = cache
        if step.tokens == 1 and self._decode == "absorbed":
            by_head = weights["self_attn.kv_b_proj.weight"].reshape(query.shape[1], plain + module.v_head_dim, rank)
            return absorbed(query, latents[:, 0], keys[:, 0], by_head, step.mask, module.scaling), cache
        expanded = _heads(linear(latents[:, 0], weights, "self_attn.kv_b_proj"), plain + module.v_head_dim)
        for_all = jnp.broadcast_to(keys, (*expanded.shape[:3], keys.shape[-1]))
        key, value = jnp.concatenate([expanded[..., :plain], for_all], -1), expanded[..., plain:]
        if self._prefill == "flash" and step.tokens > 1:
            seen = step.tokens  # the cache has room after the prompt
            return flash(query, key[:, :, :seen], value[:, :, :seen], module.scaling), cache
        return attention(query, key, value, step.mask, module.scaling), cache


def attention(query: Any, key: Any, value: Any, mask: Any, scaling: float) -> Any:
    """Compute attention with a softmax in float32: [batch, heads, tokens, value width].

    `key` and `value` are [batch, key-value heads, cached tokens, width]; `mask` says which cached position each token
    sees, [tokens, cached tokens].
    """
    scores = jnp.einsum("bgrsd,bgtd->bgrst", _grouped(query, key.shape[1]), key)
    return _ungrouped(jnp.einsum("bgrst,bgtd->bgrsd", _softmax(scores * scaling, mask), value))


def absorbed(query: Any, latents: Any, keys: Any, by_head: Any, mask: Any, scaling: float) -> Any:
    """Compute attention to latents without expanding them into keys and values: [batch, heads, tokens, value width].

    The products with the weight that would expand them go to the query and to the output, which have one token, where
    the latents have all of the context (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

    Args:
        query: [batch, heads, tokens, plain width + rotated width].
        latents: [batch, cached tokens, rank].
        keys: the rotated part of the keys, one for all heads: [batch, cached tokens, rotated width].
        by_head: the weight, [heads, plain width + value width, rank].
        mask: as for `attention`.
        scaling: of the scores.
    """
    plain = query.shape[-1] - keys.shape[-1]
    asked = jnp.einsum("bhsd,hdr->bhsr", query[..., :plain], by_head[:, :plain])
    scores = jnp.einsum("bhsr,btr->bhst", asked, latents) + jnp.einsum("bhsd,btd->bhst", query[..., plain:], keys)
    seen = jnp.einsum("bhst,btr->bhsr", _softmax(scores * scaling, mask), latents)
    return jnp.einsum("bhsr,hvr->bhsv", seen, by_head[:, plain:])


def _softmax(scores: Any, mask: Any) -> Any:
    """Return the weights of the cached positions that each token sees, computed in float32."""
    wide = jnp.where(mask, scores.astype(jnp.float32), jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(wide, -1).astype(scores.dtype)


def flash(query: Any, key: Any, value: Any, scaling: float) -> Any:
    """Compute the attention of a prefill by JAX's splash kernel, which reads shared keys and values where they are.

    A head of keys and values is read once for each query head that shares it, and never copied. Keys may be wider than
    values. The prompts have no padding and begin at the first position, so a token sees the tokens up to itself. The
    kernel does not scale, so queries are scaled in float32 and rounded once more than in `attention`.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    batch, heads, tokens, _ = query.shape
    block = min(tokens, QUERY_BLOCK)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([splash.CausalMask((tokens, tokens))] * (batch * heads)),
        block_sizes=splash.BlockSizes(block_q=block, block_kv=block),
        head_shards=1,
        q_seq_shards=1,
    )
    scaled = (query.astype(jnp.float32) * scaling).astype(query.dtype)
    # The heads of all sequences are side by side: those that share keys and values stay neighbours.
    output = kernel(*(x.reshape(-1, tokens, x.shape[-1]) for x in (scaled, key, value)))
    return output.reshape(batch, heads, tokens, -1)


def paged(query: Any, key: Any, value: Any, position: Any, scaling: float) -> Any:
    """Compute the attention of a decode step by torch_xla's kernel; `paged_attention` there describes its input."""
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention

    batch, kv_heads, length, width = key.shape
    sequences, pages = batch * kv_heads, length // PAGE
    output = paged_attention(
        (query.astype(jnp.float32) * scaling).reshape(sequences, -1, width),
        key.reshape(1, sequences * pages, PAGE, width),
        value.reshape(1, sequences * pages, PAGE, width),
        jnp.full(sequences, position + 1, jnp.int32),
        jnp.arange(sequences * pages, dtype=jnp.int32).reshape(sequences, pages),
        pages_per_compute_block=block_pages(pages),
    )
    return output.reshape(query.shape).astype(query.dtype)


def _heads(merged: Any, width: int) -> Any:
    """Turn [batch, tokens, heads x width] into [batch, heads, tokens, width]."""
    batch, tokens, _ = merged.shape
    return merged.reshape(batch, tokens, -1, width).swapaxes(1, 2)


def _grouped(query: Any, groups: int) -> Any:
    """Group queries by the head that they share: [batch, groups, heads of a group, tokens, width]."""
    batch, heads, tokens, width = query.shape
    return query.reshape(batch, groups, heads // groups, tokens, width)


def _ungrouped(output: Any) -> Any:
    batch, groups, repeats, tokens, width = output.shape
    return output.reshape(batch, groups * repeats, tokens, width)


def _stored(cache: tuple[Any, Any], key: Any, value: Any, start: Any) -> tuple[Any, Any]:
    """Return the cache with the keys and values of new positions."""
    keys, values = (
        jax.lax.dynamic_update_slice_in_dim(old, new, start, 2) for old, new in zip(cache, (key, value), strict=True)
    )
    return keys, values


def _rotation(config: Any) -> Any:
    """Return the rotary embedding of a model with latent attention."""
    if config.model_type == "deepseek_v2":
        return _rotated_pairs
    return _rotated_pairs_to_halves if config.rope_interleave else _rotated_halves


def _rotated_halves(x: Any, cosines: Any, sines: Any) -> Any:
    """Rotate each element of the first half of the width with that of the second half, as transformers stores them."""
    cosines, sines = cosines.astype(x.dtype), sines.astype(x.dtype)
    first, second = jnp.split(x, 2, -1)
    return jnp.concatenate([first * cosines - second * sines, second * cosines + first * sines], -1)


def _rotated_pairs(x: Any, cosines: Any, sines: Any) -> Any:
    """Rotate neighbouring elements in float32 (DeepSeek-V2)."""
    first, second = x[..., 0::2].astype(jnp.float32), x[..., 1::2].astype(jnp.float32)
    turned = jnp.stack([first * cosines - second * sines, first * sines + second * cosines], -1)
    return turned.reshape(x.shape).astype(x.dtype)


def _rotated_pairs_to_halves(x: Any, cosines: Any, sines: Any) -> Any:
    """Rotate neighbouring elements, and put the first of each pair before all the second ones (DeepSeek-V3)."""
    return _rotated_halves(jnp.concatenate([x[..., 0::2], x[..., 1::2]], -1), cosines, sines)
