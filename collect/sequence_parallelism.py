"""Sequence parallelism over tp (Korthikanti et al. 2022): between blocks each device holds a piece of the sequence."""

from __future__ import annotations

from typing import Any

from collect.sharding import BATCH, DeviceMesh, Partition


def split_sequence(model: Any, mesh: DeviceMesh) -> None:
    """Split the hidden states of a model over tp by sequence, where the sequence is long enough.

    Norms and residual work on pieces; attention and MLP gather their input, and their last linear ends in a
    reduce-scatter in place of an all-reduce. A decode step has one position per sequence and stays as it is. The sum
    over routed experts is left to the partitioner.
    """
    by_sequence: Partition = (BATCH, "tp", None)
    whole: Partition = (BATCH, None, None)
    for layer in model.model.layers:
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


def _is_split(hidden: Any, mesh: DeviceMesh) -> bool:
    return bool(hidden.dim() == 3 and hidden.shape[1] > 1 and hidden.shape[1] % mesh.sizes["tp"] == 0)


def _constrain_input(layer: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = layer.forward

    def constrained(hidden_states: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_split(hidden_states, mesh):
            # The product with one makes a new value: a constraint on the old one would also hold where it comes from.
            hidden_states = mesh.constrain(hidden_states * 1.0, partition)
        return forward(hidden_states, *args, **kwargs)

    layer.forward = constrained


def _constrain_output(norm: Any, mesh: DeviceMesh, partition: Partition) -> None:
    forward = norm.forward

    def constrained(hidden_states: Any) -> Any:
        out = forward(hidden_states)
        return mesh.constrain(out, partition) if _is_split(out, mesh) else out

    norm.forward = constrained


def _scatter_output(linear: Any, mesh: DeviceMesh) -> None:
    """Make a row-parallel linear sum its partial results by reduce-scatter over the sequence.

    Written out for each device (a manual region), because XLA's CPU pipeline does not form reduce-scatters by itself.
    """
    forward = linear.forward

    def scatter(hidden: Any) -> Any:
        if not _is_split(hidden, mesh):
            return forward(hidden)
        import torch
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.distributed.spmd as spmd
        from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

        by_column, by_sequence = mesh.resolve((BATCH, None, "tp")), mesh.resolve((BATCH, "tp", None))
        whole = torch.Size((*hidden.shape[:2], linear.out_features))
        hidden = mesh.constrain(hidden * 1.0, (BATCH, None, "tp"))
        piece = unwrap_sharded_tensor(spmd.enable_manual_sharding(hidden, by_column, mesh=mesh.xla_mesh))
        weight = spmd.enable_manual_sharding(linear.weight.detach(), (None, "tp"), mesh=mesh.xla_mesh)
        partial = torch.einsum("bsf,hf->bsh", piece, unwrap_sharded_tensor(weight))
        summed = torch_xla._XLAC._xla_spmd_reduce_scatter(
            xm.REDUCE_SUM, partial, 1.0, 1, mesh.sizes["tp"], mesh.groups("tp")
        )
        return unwrap_sharded_tensor(spmd.disable_manual_sharding(summed, by_sequence, whole, mesh=mesh.xla_mesh))

    linear.forward = scatter
