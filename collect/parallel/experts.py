"""Mixture of experts as dense dispatch (GShard, Lepikhin et al. 2020), which compiles to all-to-alls over ep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.collect.parallel.device_mesh import DeviceMesh

NAME = "gshard_dispatch"


def register(mesh: DeviceMesh) -> None:
    """Make the experts known to transformers under `NAME`, for one mesh."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    def dispatch(module: Any, tokens: Any, chosen: Any, weights: Any) -> Any:
        return dispatch_experts(mesh, module, tokens, chosen, weights)

    ALL_EXPERTS_FUNCTIONS.register(NAME, dispatch)


def split_gate_and_up(model: Any) -> None:
    """Store the fused gate and up weights of all experts apart, so that tp splits the width of each."""
    import torch

    for module in list(model.modules()):
        fused = getattr(module, "gate_up_proj", None)
        if isinstance(fused, torch.nn.Parameter):
            gate, up = fused.data.chunk(2, dim=1)
            del module.gate_up_proj
            module.gate_proj = torch.nn.Parameter(gate.contiguous(), requires_grad=False)
            module.up_proj = torch.nn.Parameter(up.contiguous(), requires_grad=False)


def dispatch_experts(mesh: DeviceMesh, module: Any, tokens: Any, chosen: Any, weights: Any) -> Any:
    """Send each token to its experts and add up what comes back.

    Tokens form one group per device of (dp, ep). A group has a place for each of its tokens at every expert (capacity =
    group size: no token is dropped, so the result is exact). Re-splitting the dispatched tokens from groups over ep to
    experts over ep is an all-to-all, and back is another.

    Args:
        mesh: The run's devices.
        module: The experts, with gate_proj and up_proj [experts, width, hidden] and down_proj [experts, hidden, width].
        tokens: [tokens, hidden].
        chosen: Experts of each token, [tokens, k].
        weights: Their weights, [tokens, k].

    Returns:
        [tokens, hidden].
    """
    import torch

    from tracewarehouse.collect.parallel.partition import BATCH
    from tracewarehouse.collect.parallel.stage_operations import einsum

    count, hidden = tokens.shape
    experts = module.gate_proj.shape[0]
    groups = mesh.sizes["dp"] * mesh.sizes["ep"]
    group_size = count // groups
    of_expert = (chosen.unsqueeze(-1) == torch.arange(experts, device=chosen.device)).to(tokens.dtype)
    is_sent = of_expert.sum(1).reshape(groups, group_size, experts)
    weight = (of_expert * weights.unsqueeze(-1)).sum(1).reshape(groups, group_size, experts)
    place = torch.where(is_sent > 0, torch.cumsum(is_sent, 1) - 1, -1.0)
    dispatch = (place.unsqueeze(-1) == torch.arange(group_size, device=place.device)).to(tokens.dtype)

    by_group: Any = (BATCH, None, None, None)
    by_expert: Any = ("dp", "ep", None, None)
    grouped = mesh.constrain(tokens.reshape(groups, group_size, hidden), (BATCH, None, None))
    sent = mesh.constrain(einsum("gsec,gsh->gech", dispatch, grouped), by_group)
    # The product with one keeps the two constraints apart: on the same value the second would replace the first.
    sent = mesh.constrain(sent * 1.0, by_expert)
    gate = einsum("gech,eih->geci", sent, module.gate_proj)
    up = einsum("gech,eih->geci", sent, module.up_proj)
    done = mesh.constrain(einsum("geci,ehi->gech", module.act_fn(gate) * up, module.down_proj), by_expert)
    done = mesh.constrain(done * 1.0, by_group)
    combined = einsum("gsec,gech->gsh", dispatch * weight.unsqueeze(-1), done)
    return combined.reshape(count, hidden).to(tokens.dtype)
