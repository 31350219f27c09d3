"""Runs a transformers model as a pipeline: its layers stacked by stage, all stages in one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.partition import BATCH, weight_partition
from tracewarehouse.collect.parallel.weights import ModelWeights
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import einsum, scope, scope_module, scope_parts
from tracewarehouse.collect.torch_xla.sequence_parallelism import last_position, split_sequence
from tracewarehouse.collect.torch_xla.sharded_model import cache_shape, use_sharded_operations


class StageCache:
    """Key-value cache of one layer and one microbatch, with the interface that transformers' attention uses."""

    def __init__(self, keys: Any, values: Any, positions: Any) -> None:
        self.keys, self.values, self._positions = keys, values, positions

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> tuple[Any, Any]:
        """Store the keys and values of new positions, and return those of all."""
        self.keys, self.values = self._stored(self.keys, keys), self._stored(self.values, values)
        return self.keys, self.values

    def _stored(self, old: Any, new: Any) -> Any:
        """Return the cache with new positions, chosen place by place: for a scatter, XLA would gather all stages."""
        count = new.shape[2]
        if count > 1:  # a prefill, which begins at the first position
            return torch.cat([new, old[:, :, count:]], 2)
        is_new = torch.arange(old.shape[2], device=old.device) == self._positions
        return torch.where(is_new[:, None], new, old)


@dataclass(frozen=True)
class Slot:
    """One layer of each stage that has one here."""

    layer: Any
    """A transformers layer of the slot's kind; its own weights are not used."""
    weights: dict[str, Any]
    """Weights and buffers by name, [stages, ...]; zeros for stages without a layer."""
    is_filled: Any
    """Whether each stage has a layer, [stages]; None if all have one."""


class PipelinedModel:
    """GPipe schedule (Huang et al. 2019) as in GSPMD (Xu et al. 2021, section 3.3).

    The weights of the layers of a slot are stacked along a first dimension that is split over pp; so is the buffer of
    hidden states, one microbatch per stage. In each tick every stage computes, then the buffer rotates by one stage,
    which is a collective-permute. With M microbatches and P stages a step takes M + P - 1 ticks; in tick t stage s
    works on microbatch t - s. In a slot without a layer of its own, a stage keeps its hidden states.
    """

    def __init__(self, spec: RunSpec, model: Any, mesh: DeviceMesh, weights: ModelWeights | None = None) -> None:
        self._spec, self._mesh, self._model = spec, mesh, model
        self._stages, self._microbatches = spec.axis("pp"), spec.microbatch_count
        self._experts = use_sharded_operations(spec, model, mesh)
        layers, layout = list(model.model.layers), spec.stage_layout
        self._slots = [self._slot(layers, layout.slot_layers(number), weights) for number in range(layout.slots)]
        if spec.sequence_parallelism:
            split_sequence([slot.layer for slot in self._slots], mesh)
        for slot in self._slots:
            scope_parts(slot.layer)
        del model.model.layers
        model.to(mesh.device)
        for name, parameter in model.named_parameters():
            mesh.split(parameter, weight_partition(name, parameter.dim()))
        scope_module(model.model.embed_tokens, "embed")
        scope_module(model.model.rotary_emb, "rotary")
        scope_module(model.model.norm, "norm")
        self._stage = mesh.place(torch.arange(self._stages), ("pp",))
        self._keys: list[list[Any]] = []
        self._values: list[list[Any]] = []
        self._position: Any = None

    def begin(self) -> None:
        """Make an empty cache."""
        heads, key_width, value_width, split = cache_shape(self._spec, self._model.config)
        length = cache_length(self._spec)
        rows = self._spec.batch // self._microbatches

        def empty(width: int) -> list[list[Any]]:
            zeros = torch.zeros(self._stages, rows, heads, length, width, dtype=self._model.dtype)
            partition = ("pp", BATCH, split, None, None)
            return [[self._mesh.place(zeros, partition) for _ in range(self._microbatches)] for _ in self._slots]

        self._keys, self._values = empty(key_width), empty(value_width)
        self._position = self._mesh.place(torch.zeros(1, dtype=torch.long), (None,))

    def blank_input(self, length: int) -> Any:
        """Return blank tokens [batch, length]."""
        return self._mesh.place(torch.zeros(self._spec.batch, length, dtype=torch.long), (BATCH, None))

    def cache_tensors(self) -> list[Any]:
        """Return the keys and values of every slot and microbatch, and the count of positions."""
        return [*(t for caches in (*self._keys, *self._values) for t in caches), self._position]

    def step(self, given: Any) -> tuple[Any, ...]:
        """See `DeviceModel.forward`."""
        batch, length = given.shape
        hidden = self._model.model.embed_tokens(given)
        width = hidden.shape[-1]
        # Every microbatch takes each M-th sequence, so that it is spread over dp like the batch.
        inputs = hidden.reshape(batch // self._microbatches, self._microbatches, length, width).unbind(1)
        positions = torch.arange(length, device=given.device) + self._position
        self._position = self._position + length
        rotary = self._model.model.rotary_emb(hidden, positions[None])
        mask = self._mask(positions)

        buffer = self._on_stages(torch.zeros_like(inputs[0])[None].expand(self._stages, -1, -1, -1))
        outputs: list[Any] = []
        dropped: list[Any] = [None] * self._microbatches
        for tick in range(self._microbatches + self._stages - 1):
            with scope(f"tick{tick}"):
                with scope("pp_shift"):
                    if tick:
                        # Only this form of a rotation becomes a collective-permute.
                        buffer = self._on_stages(torch.cat([buffer[-1:], buffer[:-1]]))
                    entering = inputs[min(tick, self._microbatches - 1)]
                    buffer = torch.where((self._stage == 0)[:, None, None, None], entering[None], buffer)
                for number in range(len(self._slots)):
                    with scope(f"local_layer{number}"):
                        buffer, of_layer = self._run_layer(number, tick, buffer, positions, rotary, mask)
                        buffer = self._on_stages(buffer)
                        for m, pairs in of_layer.items():
                            dropped[m] = pairs if dropped[m] is None else dropped[m] + pairs
            if tick >= self._stages - 1:
                with scope("lm_head"):
                    outputs.append(last_position(buffer) if self._is_split(buffer) else buffer[:, :, -1])
        with scope("pp_shift"):
            # A product with 0 and 1 over the stages is one all-reduce; an index would shift the stages as well.
            is_last = (self._stage == self._stages - 1).to(hidden.dtype)
            out = self._mesh.constrain(torch.stack(outputs, 2), ("pp", BATCH, None, None))
            last = self._mesh.constrain(einsum("pbmh,p->bmh", out, is_last).reshape(batch, width), (BATCH, None))
        last = self._model.model.norm(last)
        with scope("lm_head"):
            logits = self._model.lm_head(last)
            following = self._mesh.constrain(logits.argmax(-1, keepdim=True), (BATCH, None))
        if dropped[0] is None:
            return logits, following
        by_stage = torch.stack([pairs.reshape(self._stages, -1, length).sum(-1) for pairs in dropped], -1)
        return logits, following, self._mesh.constrain(by_stage.reshape(self._stages, batch), ("pp", BATCH))

    def _run_layer(self, number: int, tick: int, buffer: Any, positions: Any, rotary: Any, mask: Any) -> Any:
        """Run the layers of a slot; each stage uses the cache of the microbatch that it works on.

        Returns the new buffer; and, with experts, the dropped pairs of each microbatch, {microbatch: [stages, tokens]}.
        """
        slot, keys, values = self._slots[number], self._keys[number], self._values[number]
        working = {m: (self._stage == tick - m)[:, None, None, None, None] for m in range(self._microbatches)}
        working = {m: at for m, at in working.items() if 0 <= tick - m < self._stages}

        def selected(caches: list[Any]) -> Any:
            first, *rest = working
            out = caches[first]
            for m in rest:
                out = torch.where(working[m], caches[m], out)
            return out

        def one_stage(weights: Any, hidden: Any, stage_keys: Any, stage_values: Any) -> tuple[Any, ...]:
            cache = StageCache(stage_keys, stage_values, positions)
            facts = {"attention_mask": mask, "position_embeddings": rotary, "past_key_values": cache}
            out = torch.func.functional_call(slot.layer, weights, (hidden,), facts)
            dropped = self._experts.take_dropped()
            return (out, cache.keys, cache.values) if dropped is None else (out, cache.keys, cache.values, dropped)

        stages = torch.vmap(one_stage)(slot.weights, buffer, selected(keys), selected(values))
        hidden, new_keys, new_values, *dropped = stages
        if slot.is_filled is not None:
            hidden = torch.where(slot.is_filled[:, None, None, None], hidden, buffer)
            dropped = [torch.where(slot.is_filled[:, None], pairs, 0) for pairs in dropped]
        split = cache_shape(self._spec, self._model.config)[3]
        for m, at in working.items():
            for caches, new in ((keys, new_keys), (values, new_values)):
                caches[m] = self._mesh.constrain(torch.where(at, new, caches[m]), ("pp", BATCH, split, None, None))
        return hidden, {m: torch.where(at[:, 0, 0, 0], pairs, 0) for m, at in working.items() for pairs in dropped}

    def _slot(self, layers: list[Any], numbers: list[int | None], weights: ModelWeights | None) -> Slot:
        """Make a slot, with its weights split over pp and, within a stage, as usual.

        `layers` are those of the whole model; those of a published one have no values, which come from `weights`.
        `numbers` has the layer of each stage, None if it has none.
        """
        layer = layers[next(n for n in numbers if n is not None)]
        stacked = {}
        for name, own in _state(layer).items():
            if weights is not None:
                names = [None if n is None else f"model.layers.{n}.{name}" for n in numbers]
                stacked[name] = weights.stacked(names, self._mesh, self._spec.dtype)
                continue
            values = [torch.zeros_like(own) if n is None else _state(layers[n])[name].detach() for n in numbers]
            partition = weight_partition(f"layer.{name}", own.dim())
            stacked[name] = self._mesh.place(torch.stack(values), ("pp", *partition))
        is_filled = None
        if None in numbers:
            is_filled = self._mesh.place(torch.tensor([n is not None for n in numbers]), ("pp",))
        return Slot(layer, stacked, is_filled)

    def _mask(self, positions: Any) -> Any:
        """Return the causal mask over the cache, added to the scores: [1, 1, tokens, cached tokens]."""
        length = cache_length(self._spec)
        is_seen = torch.arange(length, device=positions.device)[None, :] <= positions[:, None]
        dtype = self._model.dtype
        return torch.where(is_seen, 0.0, torch.finfo(dtype).min).to(dtype)[None, None]

    def _on_stages(self, buffer: Any) -> Any:
        return self._mesh.constrain(buffer, ("pp", BATCH, "tp" if self._is_split(buffer) else None, None))

    def _is_split(self, buffer: Any) -> bool:
        """Return whether the sequence of hidden states [stages, batch, tokens, width] is split over tp."""
        return self._spec.sequence_parallelism is not None and buffer.shape[2] > 1


def _state(layer: Any) -> dict[str, Any]:
    """Return the parameters and buffers of a layer by name."""
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
