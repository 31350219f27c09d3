"""Splits a transformers model over the devices by dp, ep and tp."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch_xla
from transformers import StaticCache

from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.partition import BATCH, MODES, Axes, weight_partition
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla import attention, experts
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import scope, scope_module, scope_parts
from tracewarehouse.collect.torch_xla.sequence_parallelism import (
    keep_last_position,
    split_cache_updates,
    split_context,
    split_sequence,
)


def use_sharded_operations(spec: RunSpec, model: Any, mesh: DeviceMesh) -> experts.RoutedExperts:
    """Replace the operations of a model that the partitioner cannot split by operations that it can."""
    attention.register(spec, mesh)
    routed = experts.RoutedExperts(mesh, float(spec.capacity_factor or "inf"))
    routed.register()
    use_compilable_operations(model)
    model.config._attn_implementation = attention.NAME
    model.config._experts_implementation = experts.NAME
    return routed


def cache_shape(spec: RunSpec, config: Any) -> tuple[int, int, int, Axes]:
    """Return the heads, key width and value width of the key-value cache, and the axes that split the heads.

    Multi-head latent attention caches one latent for all heads, which nothing splits.
    """
    if model_architecture(spec.model).has_latent_cache:
        return 1, config.kv_lora_rank, config.qk_rope_head_dim, None
    return config.num_key_value_heads, config.head_dim, config.head_dim, "tp"


class ShardedModel:
    """The model on the devices, with its key-value cache.

    A stage of a pipeline says with `first_layer` where it begins in the whole model.
    """

    def __init__(self, spec: RunSpec, model: Any, mesh: DeviceMesh, first_layer: int = 0) -> None:
        self._spec, self._mesh = spec, mesh
        self._experts = use_sharded_operations(spec, model, mesh)
        self._model = model.to(mesh.device)
        torch_xla.sync()
        for name, parameter in model.named_parameters():
            is_whole = spec.sequence_parallelism in MODES and ".layers." in name
            partition = (None,) * parameter.dim() if is_whole else weight_partition(name, parameter.dim())
            mesh.split(parameter, partition)
        if spec.sequence_parallelism == "megatron":
            split_sequence(model.model.layers, mesh)
        elif spec.sequence_parallelism:
            split_context(model, mesh, spec.sequence_parallelism)
        for number, layer in enumerate(model.model.layers, first_layer):
            scope_parts(layer)
            scope_module(layer, f"layer{number}")
        scope_module(model.model.embed_tokens, "embed")
        scope_module(model.model.rotary_emb, "rotary")
        scope_module(model.model.norm, "norm")
        scope_module(model.lm_head, "lm_head")
        if spec.sequence_parallelism and hasattr(model.model.norm, "weight"):
            keep_last_position(model.model.norm, mesh)
        self._cache: Any = None

    def blank_input(self, length: int) -> Any:
        """Return blank tokens [batch, length]."""
        return self._mesh.place(torch.zeros(self._spec.batch, length, dtype=torch.long), (BATCH, None))

    def cache_tensors(self) -> list[Any]:
        """Return the keys, the values and the count of positions of every layer."""
        return [t for layer in self._cache.layers for t in (layer.keys, layer.values, layer.cumulative_length)]

    def step(self, given: Any) -> tuple[Any, ...]:
        """See `DeviceModel.forward`."""
        out = self._model(input_ids=given, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[:, -1]
        with scope("lm_head"):
            following = self._mesh.constrain(logits.argmax(-1, keepdim=True), (BATCH, None))
        return logits, following, *self._dropped()

    def _dropped(self) -> list[Any]:
        """Return the pairs that the experts dropped in this step per sequence, [1, batch]; nothing without experts."""
        dropped = self._experts.take_dropped()
        return [] if dropped is None else [dropped.reshape(self._spec.batch, -1).sum(1)[None]]

    def begin(self) -> None:
        """Make an empty cache."""
        spec, config = self._spec, self._model.config
        heads, key_width, value_width, split = cache_shape(spec, config)
        partition = (BATCH, split, None, None)
        cache = StaticCache(config=config, max_cache_len=cache_length(spec))
        for layer in cache.layers:
            # A tensor made on the device cannot be split before it holds data, so the cache is made on the host.
            key, value = (
                torch.zeros(spec.batch, heads, 0, w, dtype=self._model.dtype) for w in (key_width, value_width)
            )
            layer.lazy_initialization(key, value)
            layer.device = self._mesh.device
            layer.keys = self._mesh.place(layer.keys, partition)
            layer.values = self._mesh.place(layer.values, partition)
            layer.cumulative_length = layer.cumulative_length.to(self._mesh.device)
        if spec.sequence_parallelism in MODES:
            split_cache_updates(cache, self._mesh, spec.sequence_parallelism)
        self._cache = cache


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
    angles = position_ids[..., None].float() * rotary.inv_freq.float()
    return torch.stack((angles.cos(), angles.sin()), -1) * rotary.attention_scaling


def _rotate_pairs(query: Any, key: Any, angles: Any) -> tuple[Any, Any]:
    """Rotate neighbouring pairs of the last dimension of query and key [batch, heads, tokens, width]."""
    cos, sin = angles[..., 0].unsqueeze(1), angles[..., 1].unsqueeze(1)

    def rotate(x: Any) -> Any:
        first, second = x.float().reshape(*x.shape[:-1], -1, 2).unbind(-1)
        return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2).type_as(x)

    return rotate(query), rotate(key)


def _route_v2(gate: Any, hidden: Any) -> tuple[Any, Any, Any]:
    """Route as DeepSeek-V2 (arXiv 2405.04434, section 2.2.2): a group is as good as its best expert."""
    logits = torch.nn.functional.linear(hidden.reshape(-1, gate.hidden_dim).float(), gate.weight.float())
    grouped = logits.softmax(-1).reshape(-1, gate.num_group, gate.num_experts // gate.num_group)
    is_kept = _are_largest(grouped.amax(-1), gate.topk_group)
    limited = torch.where(is_kept[..., None], grouped, 0.0).flatten(1)
    weights, chosen = torch.topk(limited, gate.top_k, dim=-1, sorted=False)
    return logits, weights * gate.routed_scaling_factor, chosen


def _route_v3(gate: Any, hidden: Any) -> tuple[Any, Any, Any]:
    """Route as DeepSeek-V3 (arXiv 2412.19437, section 2.1.2), with comparisons instead of indices.

    Returns logits [tokens, experts], weights [tokens, k] and chosen experts [tokens, k], as `_route_v2` does.
    """
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
    place = torch.arange(values.shape[-1], device=values.device)
    own, other = values[..., None], values[..., None, :]
    is_ahead = (other > own) | ((other == own) & (place < place[:, None]))
    return is_ahead.sum(-1) < count


def _is_chosen(chosen: Any, count: int) -> Any:
    """Turn indices [tokens, k] into truth values [tokens, k, count]."""
    return chosen[..., None] == torch.arange(count, device=chosen.device)
