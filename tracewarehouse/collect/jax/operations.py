"""Provides what the program of one device is written with: operations on its part, and exchanges with the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tracewarehouse.collect.jax.mesh import Weights


@dataclass(frozen=True)
class Step:
    """The facts about a step that all its layers share."""

    start: Any
    """Position of the first token."""
    tokens: int
    """Tokens per sequence in the step, on all devices together."""
    cosines: Any
    """Cosines of the rotary angles, [tokens, pairs], in float32."""
    sines: Any
    """Their sines, in the same form."""
    mask: Any
    """Which cached position each token sees, [tokens, cached tokens]."""
    is_split: bool
    """Whether each device of tp holds a piece of the sequence between the blocks."""


def scope(name: str) -> Any:
    """Return a context whose operations carry `name` in their op_name."""
    return jax.named_scope(name)


def linear(hidden: Any, weights: Weights, name: str) -> Any:
    """Apply a linear to the last dimension, with its bias if it has one; torch stores a weight as [out, in]."""
    out = jnp.einsum("...i,oi->...o", hidden, weights[f"{name}.weight"])
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias


def rms_norm(module: Any, weight: Any, hidden: Any) -> Any:
    """Apply root mean square normalisation (Zhang and Sennrich 2019), in float32, with the epsilon of `module`."""
    wide = hidden.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + module.variance_epsilon)
    return weight * scaled.astype(hidden.dtype)


class Collectives:
    """The exchanges of one device of the mesh with others; along an axis of size 1 nothing is exchanged."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def place(self, axis: str) -> Any:
        """Return this device's place on an axis."""
        return jax.lax.axis_index(axis)

    def summed(self, value: Any, axis: str) -> Any:
        """Sum over an axis: an all-reduce."""
        return jax.lax.psum(value, axis) if self.sizes[axis] > 1 else value

    def summed_to_pieces(self, value: Any, axis: str, dimension: int) -> Any:
        """Sum over an axis and give each device its piece along a dimension: a reduce-scatter."""
        return jax.lax.psum_scatter(value, axis, scatter_dimension=dimension, tiled=True)

    def gathered(self, value: Any, axis: str, dimension: int) -> Any:
        """Return the pieces of all devices of an axis, joined along a dimension: an all-gather."""
        return jax.lax.all_gather(value, axis, axis=dimension, tiled=True) if self.sizes[axis] > 1 else value

    def exchanged(self, value: Any, axis: str, split: int, joined: int) -> Any:
        """Split along one dimension, send each device of an axis its part, join the received parts: an all-to-all."""
        if self.sizes[axis] == 1:
            return value
        return jax.lax.all_to_all(value, axis, split_axis=split, concat_axis=joined, tiled=True)

    def passed_on(self, value: Any, axis: str) -> Any:
        """Return the value of the device before this one on an axis (for the first, the last): a collective-permute."""
        count = self.sizes[axis]
        return jax.lax.ppermute(value, axis, [(i, (i + 1) % count) for i in range(count)])

    def piece(self, value: Any, axis: str, dimension: int) -> Any:
        """Return this device's piece along a dimension of a value that all devices of an axis have."""
        length = value.shape[dimension] // self.sizes[axis]
        return jax.lax.dynamic_slice_in_dim(value, self.place(axis) * length, length, dimension)
