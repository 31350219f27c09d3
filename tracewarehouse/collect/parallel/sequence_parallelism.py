"""Splits sequences over tp (Korthikanti et al. 2022): between blocks each device holds a piece of the sequence."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
from tracewarehouse.collect.parallel.partition import BATCH, Partition
from tracewarehouse.collect.parallel.phase_marks import scope
from tracewarehouse.collect.parallel.stage_operations import einsum, single_linear


def split_sequence(layers: Iterable[Any], mesh: DeviceMesh) -> None:
    """Split the hidden states between and in decoder layers over tp by sequence, if the sequence is long enough.

    Norms and residuals work on pieces; attention and MLP gather their input, and their last linear ends in a
    reduce-scatter instead of an all-reduce. A decode step has one position per sequence and stays as it is. The sum
    over routed experts is left to the partitioner.
    """
    by_sequence: Partition = (BATCH, "tp", None)
    whole: Partition = (BATCH, None, None)
    for layer in layers:
        _constrain_input(layer, mesh, by_sequence)
        _constrain_output(layer.input_layernorm, mesh, by_sequence)
        _constrain_input(layer.self_attn, mesh, whole)
        _constrain_output(layer.post_attention_layernorm, mesh, by_sequence)
        _constrain_input(layer.mlp, mesh, whole)
        for module in layer.modules():
            for name in ("o_proj", "down_proj"):
                linear = getattr(module, name, None)
                if hasattr(linear, "in_features"):
                    _scatter_output(linear, mesh)


def keep_last_position(norm: Any, mesh: DeviceMesh) -> None:
    """Let the final norm work on the last position only, which every device gets from the one that holds it."""
    forward = norm.forward

    def kept(hidden_states: Any) -> Any:
        if is_split(hidden_states, mesh):
            with scope("lm_head"):
                last = last_position(hidden_states)[:, None]
                hidden_states = mesh.constrain(last, (BATCH, None, None))
        return forward(hidden_states)

    norm.forward = kept


def last_position(hidden: Any) -> Any:
    """Return the last token's hidden states, by a product with 0 and 1: one all-reduce over the pieces.

    Args:
        hidden: [batch, tokens, width], or [stages, batch, tokens, width].
    """
    import torch

    tokens = hidden.shape[-2]
    is_last = (torch.arange(tokens, device=hidden.device) == tokens - 1).to(hidden.dtype)
    return einsum("abth,t->abh" if hidden.dim() == 4 else "bth,t->bh", hidden, is_last)


def is_split(hidden: Any, mesh: DeviceMesh) -> bool:
    """Return whether hidden states [batch, tokens, width] are split; one token of a decode step is not."""
    return bool(hidden.dim() == 3 and hidden.shape[1] > 1 and hidden.shape[1] % mesh.sizes["tp"] == 0)


def scattered_linear(mesh: DeviceMesh, hidden: Any, weight: Any) -> Any:
    """Apply a row-parallel linear, and sum its partial results by a reduce-scatter over the sequence.

    Written out for each device (a manual region), because XLA's CPU pipeline does not form reduce-scatters by itself.

    Args:
        mesh: The devices.
        hidden: [batch, tokens, in], or [stages, batch, tokens, in].
        weight: [out, in], or [stages, out, in].
    """
    import torch
    import torch_xla
    import torch_xla.core.xla_model as xm

    stages: Partition = ("pp",) * (hidden.dim() - 3)
    tokens = hidden.dim() - 2
    whole = torch.Size((*hidden.shape[:-1], weight.shape[-2]))
    hidden = mesh.constrain(hidden * 1.0, (*stages, BATCH, None, "tp"))
    piece = mesh.part(hidden, (*stages, BATCH, None, "tp"))
    weight = mesh.part(weight, (*stages, None, "tp"))
    partial = torch.einsum("abst,aot->abso" if stages else "bst,ot->bso", piece, weight)
    summed = torch_xla._XLAC._xla_spmd_reduce_scatter(
        xm.REDUCE_SUM, partial, 1.0, tokens, mesh.sizes["tp"], mesh.groups("tp")
    )
    return mesh.whole(summed, (*stages, BATCH, "tp", None), whole)


def _constrain_input(layer: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = layer.forward

    def constrained(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if is_split(hidden_states, mesh):
            # The product with one makes a new value: a constraint on the old one would also apply where that is made.
            hidden_states = mesh.constrain(hidden_states * 1.0, partition)
        return forward(hidden_states, *args, **kwargs)

    layer.forward = constrained


def _constrain_output(norm: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = norm.forward

    def constrained(hidden_states: Any) -> Any:
        out = forward(hidden_states)
        return mesh.constrain(out, partition) if is_split(out, mesh) else out

    norm.forward = constrained


def _scatter_output(linear: Any, mesh: DeviceMesh) -> None:
    """Make a row-parallel linear end in a reduce-scatter if its input is split."""
    forward, summed_by_scatter = linear.forward, functools.partial(scattered_linear, mesh)

    def scatter(hidden: Any) -> Any:
        if not is_split(hidden, mesh):
            return forward(hidden)
        return single_linear(summed_by_scatter, hidden, linear.weight.detach())

    linear.forward = scatter
