"""Splits a transformers model over the devices by dp, ep and tp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.models.architectures import architecture_of
from tracewarehouse.collect.parallel import attention, experts
from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.context_parallelism import MODES, split_cache_updates, split_context
from tracewarehouse.collect.parallel.deepseek import use_compilable_operations
from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
from tracewarehouse.collect.parallel.partition import BATCH, Axes, weight_partition
from tracewarehouse.collect.parallel.phase_marks import scope, scope_module, scope_parts
from tracewarehouse.collect.parallel.sequence_parallelism import keep_last_position, split_sequence

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec


def use_sharded_operations(spec: RunSpec, model: Any, mesh: DeviceMesh) -> experts.RoutedExperts:
    """Replace the operations of a model that the partitioner cannot split by operations that it can."""
    attention.register(spec, mesh)
    routed = experts.RoutedExperts(mesh, float(spec.capacity_factor or "inf"))
    routed.register()
    experts.split_gate_and_up(model)
    use_compilable_operations(model)
    model.config._attn_implementation = attention.NAME
    model.config._experts_implementation = experts.NAME
    return routed


def cache_shape(spec: RunSpec, config: Any) -> tuple[int, int, int, Axes]:
    """Return the heads, key width and value width of the key-value cache, and the axes that split the heads.

    Multi-head latent attention caches one latent for all heads, which nothing splits.
    """
    if architecture_of(spec.model).has_latent_cache:
        return 1, config.kv_lora_rank, config.qk_rope_head_dim, None
    return config.num_key_value_heads, config.head_dim, config.head_dim, "tp"


class ShardedModel:
    """The model on the devices, with its key-value cache.

    Args:
        spec: The run.
        model: The model on the host; it is moved to the devices.
        mesh: The devices.
        first_layer: Number of the model's first layer in the whole model, for a stage of a pipeline.
    """

    def __init__(self, spec: RunSpec, model: Any, mesh: DeviceMesh, first_layer: int = 0) -> None:
        import torch_xla

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

    def begin(self) -> None:
        """Make an empty cache."""
        self._cache = self._empty_cache()

    def blank_input(self, length: int) -> Any:
        """Return blank tokens [batch, length]."""
        import torch

        return self._mesh.place(torch.zeros(self._spec.batch, length, dtype=torch.long), (BATCH, None))

    def cache_tensors(self) -> list[Any]:
        """Return the keys, the values and the count of positions of every layer."""
        return [t for layer in self._cache.layers for t in (layer.keys, layer.values, layer.cumulative_length)]

    def step(self, given: Any) -> tuple[Any, ...]:
        """See `DeviceModel.forward`.

        Args:
            given: Tokens [batch, length].
        """
        out = self._model(input_ids=given, past_key_values=self._cache, use_cache=True, logits_to_keep=1)
        logits = out.logits[:, -1]
        with scope("lm_head"):
            following = self._mesh.constrain(logits.argmax(-1, keepdim=True), (BATCH, None))
        return logits, following, *self._dropped()

    def _dropped(self) -> list[Any]:
        """Return the pairs that the experts dropped in this step per sequence, [1, batch]; nothing without experts."""
        dropped = self._experts.take_dropped()
        return [] if dropped is None else [dropped.reshape(self._spec.batch, -1).sum(1)[None]]

    def _empty_cache(self) -> Any:
        import torch
        from transformers import StaticCache

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
        return cache
