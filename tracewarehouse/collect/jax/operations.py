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


@dataclass(frozen=True)
class RowExchange:
    """Which rows of a buffer go to each device of an axis and which come from it, [devices] each.

    What goes to one device, or comes from it, lies together.
    """

    most: int
    """Most rows from one device to another."""
    sent: Any
    sent_from: Any
    """First of these rows in this device's buffer."""
    sent_to: Any
    """First of their rows in the receiver's buffer."""
    received: Any
    received_at: Any
    """First of these rows in this device's other buffer."""
    received_from: Any
    """First of their rows in the sender's buffer."""

    def back(self) -> RowExchange:
        """Return the way back, on which each row goes to where it came from."""
        there = (self.sent, self.sent_from, self.sent_to)
        return RowExchange(self.most, self.received, self.received_at, self.received_from, *there)


class Collectives:
    """The exchanges of one device of the mesh with others; along an axis of size 1 nothing is exchanged.

    `is_ragged` says whether the devices have an all-to-all of unequal parts, which XLA has for TPUs, not for CPUs.
    """

    def __init__(self, sizes: Mapping[str, int], *, is_ragged: bool = True) -> None:
        self.sizes, self._is_ragged = sizes, is_ragged

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

    def row_exchange(self, sent: Any, most: int, axis: str) -> RowExchange:
        """Tell the devices of an axis how many rows come and where they lie now: an all-to-all of two integers each.

        This device has the rows in the order of their receivers, `sent` to each and `most` at most. A receiver keeps
        room for `most` rows of each sender.
        """
        count = self.sizes[axis]
        sent_from = jnp.cumsum(sent) - sent
        told = self.exchanged(jnp.stack([sent, sent_from], -1), axis, 0, 0)
        sent_to = jnp.full(count, self.place(axis) * most, jnp.int32)
        return RowExchange(
            most, sent, sent_from, sent_to, told[:, 0], jnp.arange(count, dtype=jnp.int32) * most, told[:, 1]
        )

    def exchanged_rows(self, values: Any, rows: RowExchange, axis: str, into: Any) -> Any:
        """Send each device of an axis its rows of `values`; return `into` with the received ones: a ragged all-to-all.

        Where there is none, an all-to-all exchanges as many rows with each device as there are at most.
        """
        if self._is_ragged:
            return jax.lax.ragged_all_to_all(
                values, into, rows.sent_from, rows.sent, rows.sent_to, rows.received, axis_name=axis
            )
        places = jnp.arange(rows.most)
        blocks = values[jnp.minimum(rows.sent_from[:, None] + places, len(values) - 1)]
        got = self.exchanged(blocks, axis, 0, 0)
        at = jnp.where(places < rows.received[:, None], rows.received_at[:, None] + places, len(into))
        return into.at[at].set(got, mode="drop")

    def passed_on(self, value: Any, axis: str) -> Any:
        """Return the value of the device before this one on an axis (for the first, the last): a collective-permute."""
        count = self.sizes[axis]
        return jax.lax.ppermute(value, axis, [(i, (i + 1) % count) for i in range(count)])

    def piece(self, value: Any, axis: str, dimension: int) -> Any:
        """Return this device's piece along a dimension of a value that all devices of an axis have."""
        length = value.shape[dimension] // self.sizes[axis]
        return jax.lax.dynamic_slice_in_dim(value, self.place(axis) * length, length, dimension)
