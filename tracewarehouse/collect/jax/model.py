"""Runs a model on the devices of a JAX mesh: its prefill and decode step, compiled once each, with its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.jax.decoder import Decoder
from tracewarehouse.collect.jax.mesh import JaxMesh, Weights, on_devices
from tracewarehouse.collect.jax.operations import Collectives, Step, rms_norm, scope
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.form import ModelForm
from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.partition import BATCH, Partition
from tracewarehouse.collect.run_spec import RunSpec


class JaxModel:
    """See `tracewarehouse.collect.harness.backend.DeviceModel`.

    A step is the program of one device, mapped over the mesh: the program writes out every collective, and leaves none
    to a partitioner.
    """

    def __init__(self, subject: Subject, mesh: JaxMesh) -> None:
        spec = subject.spec
        self._spec, self._mesh, self._form = spec, mesh, subject.form
        self._weights = on_devices(spec, subject.weights, mesh)
        self._programs: dict[str, Any] = {}
        self._phase = ""
        self._cache: dict[str, Any] = {}
        self._empty_cache: Any = None

    def begin(self) -> None:
        """Start a new generation with an empty cache; the first time, compile the steps before it takes memory."""
        self._cache = {}
        if not self._programs:
            for phase, length in self._spec.step_lengths:
                self._programs[phase] = self.lowered(phase, length).compile()
            self._empty_cache = jax.jit(self._zeros, out_shardings=self._cache_shardings()).lower().compile()
        self._cache = jax.block_until_ready(self._empty_cache())
        self._phase = "prefill"

    def forward(self, tokens: Any) -> Sequence[Any]:
        """Start the prefill or, after it, a decode step; the new cache takes the memory of the old one."""
        self._cache, *results = self._programs[self._phase](self._weights, self._cache, tokens)
        self._phase = "decode"
        return list(results)

    def lowered(self, phase: str, length: int) -> Any:
        """Return the program of a step over `length` positions, before it is compiled."""
        spec, partition = self._spec, jax.sharding.PartitionSpec
        shardings = jax.tree.map(lambda array: array.sharding.spec, self._weights)
        cache = jax.tree.map(lambda sharding: sharding.spec, self._cache_shardings())
        results: list[Any] = [partition(BATCH, "tp" if self._is_head_split() else None), partition(BATCH, None)]
        if model_architecture(spec.model).is_moe:
            results.append(partition("pp", BATCH))
        program = _Program(spec, self._form, self._is_head_split(), length)
        step = jax.shard_map(
            program.pipelined if spec.axis("pp") > 1 else program.whole,
            mesh=self._mesh.mesh,
            in_specs=(shardings, cache, partition(BATCH, None)),
            out_specs=(cache, *results),
            check_vma=False,
        )
        step.__name__ = phase  # the profiler shows the program by this name
        given = jax.ShapeDtypeStruct((spec.batch, length), jnp.int32, sharding=self._mesh.split((BATCH, None)))
        shapes = jax.tree.map(
            lambda zeros, sharding: jax.ShapeDtypeStruct(zeros.shape, zeros.dtype, sharding=sharding),
            jax.eval_shape(self._zeros),
            self._cache_shardings(),
        )
        return jax.jit(step, donate_argnums=1).lower(self._weights, shapes, given)

    def _is_head_split(self) -> bool:
        return "lm_head.weight" in self._weights[0] and self._spec.axis("tp") > 1

    def _zeros(self) -> dict[str, Any]:
        """Return an empty cache: keys and values of each layer [batch, heads, positions, width]; the positions so far.

        In a pipeline the layers are slots, with stages and microbatches in front.
        """
        spec, config = self._spec, self._form.config
        heads, widths = config.kv_heads * spec.kv_copies, config.cache_widths
        length, count = cache_length(spec), spec.microbatch_count
        pp = spec.axis("pp")
        lead = (pp, count, spec.batch // count) if pp > 1 else (spec.batch,)
        layers = spec.stage_layout.slots if pp > 1 else spec.layers
        dtype = getattr(jnp, spec.dtype)
        keys, values = ([jnp.zeros((*lead, heads, length, w), dtype) for _ in range(layers)] for w in widths)
        return {"keys": keys, "values": values, "position": jnp.zeros((), jnp.int32)}

    def _cache_shardings(self) -> dict[str, Any]:
        is_latent = model_architecture(self._spec.model).has_latent_cache
        rows: Partition = (BATCH, None if is_latent else "tp", None, None)
        one = self._mesh.split(("pp", None, *rows) if self._spec.axis("pp") > 1 else rows)
        shapes = jax.eval_shape(self._zeros)
        return {name: [one] * len(s) if name != "position" else self._mesh.split(()) for name, s in shapes.items()}


class _Program:
    """A step of `length` tokens of each sequence, as one device of the mesh runs it."""

    def __init__(self, spec: RunSpec, form: ModelForm, is_head_split: bool, length: int) -> None:
        self._spec, self._form, self._is_head_split, self._length = spec, form, is_head_split, length
        sizes = {axis: spec.axis(axis) for axis in ("pp", "dp", "ep", "tp")}
        self._links = Collectives(sizes, is_ragged=spec.device == "tpu")
        self._decoder = Decoder(spec, self._links)

    def whole(self, weights: tuple[Weights, list[Weights]], cache: dict[str, Any], tokens: Any) -> tuple[Any, ...]:
        """Run all layers, one after the other.

        Returns:
            The new cache, logits [batch, vocabulary], next tokens [batch, 1], and with experts what they count
            (`Decoder.layer`), [1, batch].
        """
        outer, layers = weights
        step = self._facts(cache["position"])
        hidden = self._embedded(outer, tokens, step)
        keys, values = [], []
        counted: list[Any] = []
        rows = zip(self._form.layers, layers, cache["keys"], cache["values"], strict=True)
        for number, (module, own, old_keys, old_values) in enumerate(rows):
            with scope(f"layer{number}"):
                hidden, (new_keys, new_values), pairs = self._decoder.layer(
                    module, own, hidden, (old_keys, old_values), step
                )
            keys.append(new_keys)
            values.append(new_values)
            counted += [] if pairs is None else [pairs]
        cache = {"keys": keys, "values": values, "position": cache["position"] + self._length}
        results = self._chosen(outer, self._last(hidden, step))
        if counted:
            with scope("moe"):
                by_token: Any = sum(counted)
                results = (*results, by_token.reshape(tokens.shape).sum(1)[None])
        return cache, *results

    def pipelined(self, weights: tuple[Weights, list[Weights]], cache: dict[str, Any], tokens: Any) -> tuple[Any, ...]:
        """Run the layers of this device's stage in every tick of a GPipe schedule (Huang et al. 2019).

        In tick t stage s works on microbatch t - s. Then the hidden states are passed on to the next stage.

        Returns:
            As for `whole`; the counts are those of this stage.
        """
        (outer, slots), links, spec = weights, self._links, self._spec
        count, stages, stage = spec.microbatch_count, spec.axis("pp"), links.place("pp")
        step = self._facts(cache["position"])
        hidden = self._embedded(outer, tokens, step)
        rows = hidden.shape[0] // count
        # Every microbatch takes each M-th sequence, as under torch_xla.
        inputs = hidden.reshape(rows, count, *hidden.shape[1:])
        keys, values = ([slot[0] for slot in cache[name]] for name in ("keys", "values"))
        counted = jnp.zeros((count, rows), jnp.int32)
        buffer, outputs = jnp.zeros_like(inputs[:, 0]), []
        for tick in range(count + stages - 1):
            with scope(f"tick{tick}"):
                with scope("pp_shift"):
                    passed = links.passed_on(buffer, "pp") if tick else buffer
                    buffer = jnp.where(stage == 0, inputs[:, min(tick, count - 1)], passed)
                    batch = jnp.clip(tick - stage, 0, count - 1)
                    is_working = batch == tick - stage
                for number in range(len(slots)):
                    with scope(f"local_layer{number}"):
                        buffer, keys[number], values[number], pairs = self._slot(
                            number, slots[number], buffer, (keys[number], values[number]), batch, is_working, step
                        )
                        if pairs is not None:
                            counted = counted.at[batch].add(pairs)
            if tick >= stages - 1:
                outputs.append(self._last(buffer, step))
        with scope("pp_shift"):
            last = jnp.stack(outputs, 1).reshape(tokens.shape[0], -1)
            last = links.summed(jnp.where(stage == stages - 1, last, 0), "pp")
        cache = {
            "keys": [k[None] for k in keys],
            "values": [v[None] for v in values],
            "position": cache["position"] + self._length,
        }
        results = self._chosen(outer, last)
        if model_architecture(spec.model).is_moe:
            with scope("moe"):
                results = (*results, counted.T.reshape(1, -1))
        return cache, *results

    def _slot(
        self,
        number: int,
        weights: Weights,
        buffer: Any,
        cache: tuple[Any, Any],
        batch: Any,
        is_working: Any,
        step: Step,
    ) -> tuple[Any, Any, Any, Any]:
        """Run this stage's layer of a slot on a microbatch; a stage without a layer there keeps its hidden states.

        `cache` has the keys and values of all microbatches. `is_working` says whether there is such a microbatch: in
        its first and last ticks a stage may have none.

        Returns:
            New hidden states, keys and values, and what the experts count of each sequence, None for a dense layer.
        """
        layers = self._spec.stage_layout.slot_layers(number)
        module = self._form.layers[next(n for n in layers if n is not None)]
        own = {name: stages[0] for name, stages in weights.items()}
        before = tuple(jax.lax.dynamic_index_in_dim(c, batch, 0, keepdims=False) for c in cache)
        hidden, after, counted = self._decoder.layer(module, own, buffer, (before[0], before[1]), step)
        if None in layers:
            is_filled = jnp.array([n is not None for n in layers])[self._links.place("pp")]
            hidden = jnp.where(is_filled, hidden, buffer)
            is_counted = is_working & is_filled
        else:
            is_counted = is_working
        keys, values = (
            jax.lax.dynamic_update_index_in_dim(c, jnp.where(is_working, new, old), batch, 0)
            for c, new, old in zip(cache, after, before, strict=True)
        )
        if counted is not None:
            counted = jnp.where(is_counted, counted.reshape(hidden.shape[0], -1).sum(1), 0)
        return hidden, keys, values, counted

    def _facts(self, start: Any) -> Step:
        """Return the facts about the step that all layers share."""
        spec, rotary = self._spec, self._form.rotary
        with scope("rotary"):
            positions = start + jnp.arange(self._length)
            angles = positions[:, None].astype(jnp.float32) * jnp.asarray(rotary.inv_freq)
            cosines, sines = (f(angles) * rotary.attention_scaling for f in (jnp.cos, jnp.sin))
        with scope("attn"):
            mask = jnp.arange(cache_length(spec))[None, :] <= positions[:, None]
        is_split = spec.sequence_parallelism is not None and self._length > 1
        return Step(start, self._length, cosines, sines, mask, is_split)

    def _embedded(self, outer: Weights, tokens: Any, step: Step) -> Any:
        """Return the hidden states of tokens [batch, tokens]; if the step is split, of this device's piece."""
        with scope("embed"):
            given = self._links.piece(tokens, "tp", 1) if step.is_split else tokens
            return outer["model.embed_tokens.weight"][given]

    def _last(self, hidden: Any, step: Step) -> Any:
        """Return the last position's hidden states, [batch, width]; all devices get them from the one that has it."""
        with scope("lm_head"):
            last = hidden[:, -1]
            if not step.is_split:
                return last
            has_last = self._links.place("tp") == self._links.sizes["tp"] - 1
            return self._links.summed(jnp.where(has_last, last, 0), "tp")

    def _chosen(self, outer: Weights, last: Any) -> tuple[Any, ...]:
        """Return the logits of this device's part of the vocabulary, and the next tokens, from all parts."""
        with scope("norm"):
            normed = rms_norm(self._form.norm, outer["model.norm.weight"], last)
        with scope("lm_head"):
            matrix: Any = outer.get("lm_head.weight", outer["model.embed_tokens.weight"])
            logits = jnp.einsum("bh,vh->bv", normed, matrix)
            following = jnp.argmax(logits, -1).astype(jnp.int32)[:, None]
            if self._is_head_split:
                # From all parts, the largest logit and its index.
                largest = self._links.gathered(logits.max(-1, keepdims=True), "tp", 1)
                first = self._links.place("tp") * matrix.shape[0]
                indices = self._links.gathered(following + first.astype(jnp.int32), "tp", 1)
                following = jnp.take_along_axis(indices, jnp.argmax(largest, -1)[:, None], 1)
        return logits, following
