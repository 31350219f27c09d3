"""Names operations, and keeps them single operations of the program when a pipeline maps a layer over its stages.

`torch.vmap` would break an einsum into products with merged dimensions, and does not know sharding constraints and
manual regions. The operations here have a rule of their own: the stages become one more dimension in front, split over
pp.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any

import torch
import torch_xla.debug.profiler as xp

from tracewarehouse.collect.parallel.partition import Partition

Split = Callable[[Any, Partition], Any]
"""Function that tells the partitioner how a value is split."""
Linear = Callable[[Any, Any], Any]
"""Linear function of hidden states and a weight, with or without stages in front of both."""


def einsum(equation: str, *operands: Any) -> Any:
    """Run torch.einsum; inside a vmap over stages, run one einsum with the stage as a further index."""
    return _Einsum.apply(equation, *operands)


def constrain(split: Split, value: Any, partition: Partition) -> Any:
    """Tell how a value inside the program is split; inside a vmap over stages, its stages are split over pp as well."""
    return _Constrain.apply(value, split, partition)


def single_linear(linear: Linear, hidden: Any, weight: Any) -> Any:
    """Apply a linear that is a manual region; inside a vmap over stages, use one region for all of them."""
    return _SingleLinear.apply(hidden, weight, linear)


def with_stage_index(equation: str, is_staged: list[bool]) -> str:
    """Return the equation with one more index in front of the result and of the operands that have stages.

    Example:
        'ij,jk->ik' with both staged is 'aij,ajk->aik'.
    """
    operands, result = equation.split("->")
    index = next(letter for letter in string.ascii_letters if letter not in equation)
    parts = [index + o if staged else o for o, staged in zip(operands.split(","), is_staged, strict=True)]
    return f"{','.join(parts)}->{index}{result}"


class _Operation(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


class _Einsum(_Operation):
    @staticmethod
    def forward(equation: str, *operands: Any) -> Any:
        return torch.einsum(equation, *operands)

    @staticmethod
    def vmap(info: Any, in_dims: Any, equation: str, *operands: Any) -> Any:
        dims = in_dims[1:]
        moved = [o if d is None else o.movedim(d, 0) for o, d in zip(operands, dims, strict=True)]
        return einsum(with_stage_index(equation, [d is not None for d in dims]), *moved), 0


class _Constrain(_Operation):
    @staticmethod
    def forward(value: Any, split: Split, partition: Partition) -> Any:
        return split(value, partition)

    @staticmethod
    def vmap(info: Any, in_dims: Any, value: Any, split: Split, partition: Partition) -> Any:
        return constrain(split, value.movedim(in_dims[0], 0), ("pp", *partition)), 0


class _SingleLinear(_Operation):
    @staticmethod
    def forward(hidden: Any, weight: Any, linear: Linear) -> Any:
        return linear(hidden, weight)

    @staticmethod
    def vmap(info: Any, in_dims: Any, hidden: Any, weight: Any, linear: Linear) -> Any:
        hidden, weight = (x.movedim(d, 0) for x, d in zip((hidden, weight), in_dims[:2], strict=True))
        return single_linear(linear, hidden, weight), 0


def scope(name: str) -> Any:
    """Return a context whose operations carry `name` in their op_name (it must not hold a sync)."""
    return xp.Trace(name)


def scope_module(module: Any, name: str) -> None:
    """Run every call of a module inside a scope."""
    forward = module.forward

    def scoped(*args: Any, **kwargs: Any) -> Any:
        with scope(name):
            return forward(*args, **kwargs)

    module.forward = scoped


def scope_parts(decoder_layer: Any) -> None:
    """Name the parts of a decoder layer: attn, mlp or moe, norm."""
    scope_module(decoder_layer.self_attn, "attn")
    scope_module(decoder_layer.mlp, "moe" if hasattr(decoder_layer.mlp, "experts") else "mlp")
    scope_module(decoder_layer.input_layernorm, "norm")
    scope_module(decoder_layer.post_attention_layernorm, "norm")
