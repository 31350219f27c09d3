"""Provides the operations that all parts of a decoder use, on the part that one device holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tracewarehouse.collect.jax.mesh import Weights


@dataclass(frozen=True)
class Step:
    """The facts about a step that all its layers share.

    Attributes:
        start: Position of the first token.
        tokens: Tokens per sequence in the step, on all devices together.
        cosines: Cosines of the rotary angles, [tokens, pairs], in float32.
        sines: Their sines, in the same form.
        mask: Which cached position each token sees, [tokens, cached tokens].
        is_split: Whether each device of tp holds a piece of the sequence between the blocks.
    """

    start: Any
    tokens: int
    cosines: Any
    sines: Any
    mask: Any
    is_split: bool


def scope(name: str) -> Any:
    """Return a context whose operations carry `name` in their op_name."""
    import jax

    return jax.named_scope(name)


def linear(hidden: Any, weights: Weights, name: str) -> Any:
    """Apply a linear to the last dimension, with its bias if it has one; torch stores a weight as [out, in]."""
    import jax.numpy as jnp

    out = jnp.einsum("...i,oi->...o", hidden, weights[f"{name}.weight"])
    bias = weights.get(f"{name}.bias")
    return out if bias is None else out + bias


def rms_norm(module: Any, weight: Any, hidden: Any) -> Any:
    """Apply root mean square normalisation (Zhang and Sennrich 2019), in float32.

    Args:
        module: The norm in transformers, which has its epsilon.
        weight: [width].
        hidden: [..., width].
    """
    import jax
    import jax.numpy as jnp

    wide = hidden.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + module.variance_epsilon)
    return weight * scaled.astype(hidden.dtype)
