"""Writes a dense model out for one device, in torch, with every collective in its place.

Nothing here knows TPUs: the same program runs on any device of torch, which is how it is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F  # noqa: N812 (as in torch's own documentation)

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.models.form import Layer, Norm, NormedAttention
from tracewarehouse.collect.parallel.attention_forms import cache_length
from tracewarehouse.collect.parallel.partition import device_slices, explicit_partition

Weights = Mapping[str, Any]
"""The parts of all weights that are on this device, by name."""


@dataclass(frozen=True)
class Place:
    """One device of a mesh of dp and tp."""

    device: Any
    sizes: Mapping[str, int]
    coordinate: Mapping[str, int]
    """Its place on the axes."""
    tp_group: Any = None
    """The process group of its devices of tp; None if it is alone there."""

    def summed(self, value: Any) -> Any:
        """Sum over tp: an all-reduce."""
        return value if self.tp_group is None else collectives.all_reduce(value, "sum", self.tp_group)

    def gathered(self, value: Any) -> Any:
        """Join the columns of all devices of tp: an all-gather."""
        return value if self.tp_group is None else collectives.all_gather_tensor(value, 1, self.tp_group)


class TorchTpuModel:
    """See `tracewarehouse.collect.harness.backend.DeviceModel`; it has the sequences of one device of dp.

    `compiled` makes a program of a step's function; it is called once per phase, and names the program by it.
    """

    def __init__(self, subject: Subject, place: Place, compiled: Callable[[Any, str], Any]) -> None:
        self.weights = device_weights(subject, place)
        self.is_head_split = "lm_head.weight" in self.weights and place.tp_group is not None
        self._program = DeviceProgram(subject, place, is_head_split=self.is_head_split)
        self._steps = {phase: compiled(self._program.step, phase) for phase, _ in subject.spec.step_lengths}
        self._phase, self._cache, self._seen = "prefill", self._program.empty_cache(), self._program.nothing_seen()

    def begin(self) -> None:
        """Start a new generation with an empty cache; the first steps compile the programs."""
        for keys, values in self._cache:
            keys.zero_()
            values.zero_()
        self._phase, self._seen = "prefill", self._program.nothing_seen()

    def forward(self, tokens: Any) -> Sequence[Any]:
        """Start the prefill or, after it, a decode step; the cache is written in place."""
        with torch.no_grad():
            logits, following, self._seen = self._steps[self._phase](self.weights, self._cache, tokens, self._seen)
        self._phase = "decode"
        return logits, following


def device_weights(subject: Subject, place: Place) -> Weights:
    """Bring this device's parts of all weights to it."""
    spec, weights = subject.spec, subject.weights
    weights.copy_heads(spec)
    found = {}
    for name in weights.names():
        shape = weights.shape(name)
        partition = explicit_partition(name, len(shape))
        for length, axis in zip(shape, partition, strict=True):
            if axis == "tp" and length % place.sizes["tp"]:
                raise CollectError(
                    f"{name}: its {length} rows or columns do not divide over tp={place.sizes['tp']}, as the torch_tpu "
                    "backend needs; choose another mesh, or --backend torch_xla"
                )
        slices = device_slices(shape, partition, place.sizes, place.coordinate)
        found[name] = on_device(weights.reader(name, spec.dtype)(slices), place.device)
    weights.close()
    return found


def on_device(array: Any, device: Any) -> Any:
    """Bring an array of numpy, also of bfloat16, to a device."""
    array = np.ascontiguousarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.from_numpy(array).to(device)


@dataclass(frozen=True)
class _Step:
    """The facts about a step that all its layers share."""

    positions: Any
    """Places of its tokens in the cache."""
    turn: tuple[Any, Any]
    """Cosines and sines of the rotary angles, [tokens, pairs]."""
    is_seen: Any
    """Which cached position each token sees, [tokens, cached tokens]."""


class DeviceProgram:
    """The steps of one device."""

    def __init__(self, subject: Subject, place: Place, *, is_head_split: bool) -> None:
        self._spec, self._form, self._place = subject.spec, subject.form, place
        self._is_head_split = is_head_split
        self._frequencies = torch.from_numpy(self._form.rotary.inv_freq).to(place.device)

    def empty_cache(self) -> list[tuple[Any, Any]]:
        """Return keys and values of each layer, [sequences, heads, positions, width], all zero."""
        spec, config, sizes = self._spec, self._form.config, self._place.sizes
        heads = config.kv_heads * spec.kv_copies // sizes["tp"]
        rows = spec.batch // sizes["dp"], heads, cache_length(spec)
        kind, device = getattr(torch, spec.dtype), self._place.device

        def zeros(width: int) -> Any:
            return torch.zeros((*rows, width), dtype=kind, device=device)

        key, value = config.cache_widths
        return [(zeros(key), zeros(value)) for _ in self._form.layers]

    def nothing_seen(self) -> Any:
        """Return the number of positions in an empty cache, on the device."""
        return torch.zeros((), dtype=torch.int32, device=self._place.device)

    def step(self, weights: Weights, cache: list[tuple[Any, Any]], tokens: Any, seen: Any) -> tuple[Any, Any, Any]:
        """Run all layers on tokens [sequences, tokens] behind the `seen` positions of the cache.

        Returns:
            Logits of this device's part of the vocabulary [sequences, vocabulary], the next tokens [sequences, 1], and
            the number of positions that are seen now.
        """
        length = tokens.shape[1]
        positions = seen + torch.arange(length, dtype=torch.int32, device=self._place.device)
        angles = positions[:, None].float() * self._frequencies
        scaling = self._form.rotary.attention_scaling
        turn = angles.cos() * scaling, angles.sin() * scaling
        is_seen = torch.arange(cache_length(self._spec), device=self._place.device)[None, :] <= positions[:, None]
        step = _Step(positions, turn, is_seen)
        hidden = weights["model.embed_tokens.weight"][tokens]
        for number, (layer, own) in enumerate(zip(self._form.layers, cache, strict=True)):
            hidden = self._layer(f"model.layers.{number}", layer, weights, hidden, own, step)
        last = _normed(self._form.norm, weights["model.norm.weight"], hidden[:, -1])
        matrix = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        logits = F.linear(last, matrix)
        return logits, self._chosen(logits), seen + length

    def _layer(self, name: str, form: Layer, weights: Weights, hidden: Any, cache: tuple[Any, Any], step: _Step) -> Any:
        given = _normed(form.input_layernorm, weights[f"{name}.input_layernorm.weight"], hidden)
        merged = self._attended(f"{name}.self_attn", form.self_attn, weights, given, cache, step)
        hidden = hidden + self._place.summed(_linear(f"{name}.self_attn.o_proj", weights, merged))
        given = _normed(form.post_attention_layernorm, weights[f"{name}.post_attention_layernorm.weight"], hidden)
        gate, up = (_linear(f"{name}.mlp.{part}_proj", weights, given) for part in ("gate", "up"))
        return hidden + self._place.summed(_linear(f"{name}.mlp.down_proj", weights, F.silu(gate) * up))

    def _attended(self, name: str, form: Any, weights: Weights, given: Any, cache: tuple[Any, Any], step: _Step) -> Any:
        """Attend with this device's heads, some of which may share keys and values; [sequences, tokens, width]."""
        query, key, value = (_heads(_linear(f"{name}.{part}_proj", weights, given), form.head_dim) for part in "qkv")
        if isinstance(form, NormedAttention):
            query = _normed(form.q_norm, weights[f"{name}.q_norm.weight"], query)
            key = _normed(form.k_norm, weights[f"{name}.k_norm.weight"], key)
        query, key = _turned(query, step.turn), _turned(key, step.turn)
        keys, values = (
            kept.index_copy_(2, step.positions.long(), new) for kept, new in zip(cache, (key, value), strict=True)
        )
        groups, (sequences, heads, tokens, width) = keys.shape[1], query.shape
        grouped = query.reshape(sequences, groups, heads // groups, tokens, width)
        scores = torch.einsum("bgrsd,bgtd->bgrst", grouped, keys) * form.scaling
        scores = torch.where(step.is_seen, scores.float(), -math.inf)
        output = torch.einsum("bgrst,bgtd->bgrsd", scores.softmax(-1).to(query.dtype), values)
        return output.reshape(sequences, heads, tokens, -1).transpose(1, 2).reshape(sequences, tokens, -1)

    def _chosen(self, logits: Any) -> Any:
        """Return the next tokens, from the largest logit and its index in each device's part of the vocabulary."""
        largest, index = logits.max(-1, keepdim=True)
        index = index.int()
        if not self._is_head_split:
            return index
        first = self._place.coordinate["tp"] * logits.shape[1]
        largest, index = self._place.gathered(largest), self._place.gathered(index + first)
        return index.gather(1, largest.argmax(-1, keepdim=True))


def _linear(name: str, weights: Weights, given: Any) -> Any:
    return F.linear(given, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def _normed(form: Norm, weight: Any, given: Any) -> Any:
    """Apply root mean square normalisation (Zhang and Sennrich 2019) in float32."""
    wide = given.float()
    scaled = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + form.variance_epsilon)
    return weight * scaled.to(given.dtype)


def _heads(merged: Any, width: int) -> Any:
    """Turn [sequences, tokens, heads x width] into [sequences, heads, tokens, width]."""
    return merged.reshape(*merged.shape[:2], -1, width).transpose(1, 2)


def _turned(given: Any, turn: tuple[Any, Any]) -> Any:
    """Rotate each element of the first half of the width with that of the second half, as transformers stores them."""
    cosines, sines = (part.to(given.dtype) for part in turn)
    first, second = given.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)
