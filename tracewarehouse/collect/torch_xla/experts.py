"""Runs experts with one-hot dispatch (GShard, Lepikhin et al. 2020), which compiles to all-to-alls over ep."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from tracewarehouse.collect.parallel.expert_places import Places, places
from tracewarehouse.collect.parallel.partition import BATCH
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.operations import einsum

NAME = "gshard_dispatch"


class RoutedExperts:
    """The experts of a model on the devices, and the pairs that they dropped in the running step.

    `factor` is the capacity factor.
    """

    def __init__(self, mesh: DeviceMesh, factor: float) -> None:
        self._mesh, self._factor = mesh, factor
        self._dropped: list[Any] = []

    def register(self) -> None:
        """Register them with transformers under `NAME`, in place of those of another mesh."""
        ALL_EXPERTS_FUNCTIONS.register(NAME, self.run)

    def take_dropped(self) -> Any:
        """Return the pairs of token and expert dropped since the last call, [tokens]; None without experts."""
        dropped, self._dropped = self._dropped, []
        return sum(dropped[1:], dropped[0]) if dropped else None

    def run(self, module: Any, tokens: Any, chosen: Any, weights: Any) -> Any:
        """Send each token to the devices of its experts, and add up the results.

        A device of (dp, ep) sends a token once to each device that has some of its experts, with their weights: an
        all-to-all over ep. There each expert takes its tokens, and the device adds up its experts' results for a token.
        Another all-to-all sends the sums back, and they are added up over the devices. Only then does the all-reduce
        over tp add up the parts of the experts' width. A pair without a place is dropped; the number of experts that
        computed a token comes back beside its result.

        `tokens` are [tokens, hidden], and so is the result; `chosen` and `weights` are the experts of each token and
        their weights, [tokens, k]. `module` has gate_proj and up_proj [experts, width, hidden] and down_proj [experts,
        hidden, width].
        """
        mesh = self._mesh
        count, hidden = tokens.shape
        experts, devices, data = module.gate_proj.shape[0], mesh.sizes["ep"], mesh.sizes["dp"]
        groups, here = data * devices, experts // devices
        room = places(count // groups, chosen.shape[1], experts, devices, self._factor)

        is_chosen = chosen.unsqueeze(-1) == torch.arange(experts, device=chosen.device)
        is_routed = is_chosen.any(1).reshape(groups, -1, devices, here)
        weight = (is_chosen * weights.unsqueeze(-1)).sum(1).to(tokens.dtype).reshape(groups, -1, devices, here)
        grouped = mesh.constrain(tokens.reshape(groups, -1, hidden), (BATCH, None, None))
        # -1 marks a pair that is not routed; a routed pair can have the weight 0.
        facts = torch.where(is_routed, weight, -1.0)

        out = _placed(is_routed.any(-1), room.per_device) if room.per_device < count // groups else None
        sent = self._exchanged(_sent(grouped, facts, out), there=True)
        sent = sent.reshape(data, devices, devices, room.per_device, -1).transpose(1, 2)
        sent = mesh.constrain(sent.reshape(data, devices, room.received, -1), ("dp", "ep", None, None))
        done, kept = self._computed(module, sent[..., :hidden], sent[..., hidden:], room)

        parts = done.shape[0]
        # Every device of tp has its part of the result, but all have the same counts.
        done = torch.cat([done, (kept / parts)[None, ..., None].expand(parts, -1, -1, -1, 1)], -1)
        done = done.reshape(parts, data, devices, devices, room.per_device, -1).transpose(2, 3)
        done = done.reshape(parts, groups, devices, room.per_device, -1)
        combined = _combined(self._exchanged(done, there=False), out)
        combined = mesh.constrain(combined, (BATCH, None, None)).reshape(count, -1)
        self._dropped.append(chosen.shape[1] - combined[:, hidden].round().to(torch.int32))
        return combined[:, :hidden]

    def _exchanged(self, values: Any, *, there: bool) -> Any:
        """Re-split values from their senders to their receivers, or back: an all-to-all.

        Values are [groups, devices, ...]; on the way back they have the parts of tp in front.
        """
        lead: Any = () if there else ("tp",)
        partitions: Any = ((*lead, BATCH, None, None), (*lead, "dp", "ep", None))
        first, second = partitions if there else reversed(partitions)
        # A sharding can have five dimensions; with the stages of a pipeline this is the fifth.
        flat = values.reshape(*values.shape[: len(lead) + 2], -1)
        # The product with one keeps the two constraints apart: on the same value the second would replace the first.
        flat = self._mesh.constrain(self._mesh.constrain(flat, first) * 1.0, second)
        return flat.reshape(values.shape)

    def _computed(self, module: Any, tokens: Any, facts: Any, room: Places) -> tuple[Any, Any]:
        """Return the results of each device's experts for the tokens [dp, ep, received, hidden] that it has.

        `facts` are the weights of the device's experts, [dp, ep, received, experts here]; -1 where not routed.

        Returns:
            [tp, dp, ep, received, hidden], still to be added up over tp; and the number of experts that computed each
            token, [dp, ep, received].
        """
        parts, (devices, here) = self._mesh.sizes["tp"], (facts.shape[1], facts.shape[3])

        def by_device(weight: Any) -> Any:
            return weight.reshape(devices, here, *weight.shape[1:])

        gate_proj, up_proj, down_proj = map(by_device, (module.gate_proj, module.up_proj, module.down_proj))
        down_proj = down_proj.reshape(*down_proj.shape[:3], parts, -1)
        is_routed = facts >= 0
        weight = torch.where(is_routed, facts, 0.0)
        if room.per_expert == room.received:
            inner = module.act_fn(einsum("dnth,neih->dntei", tokens, gate_proj))
            inner = inner * einsum("dnth,neih->dntei", tokens, up_proj) * weight[..., None]
            inner = inner.reshape(*inner.shape[:4], parts, -1)
            return einsum("dntepi,nehpi->pdnth", inner, down_proj), is_routed.sum(-1).to(tokens.dtype)
        place = _placed(is_routed, room.per_expert).to(tokens.dtype)
        taken = einsum("dntec,dnth->dnech", place, tokens)
        inner = module.act_fn(einsum("dnech,neih->dneci", taken, gate_proj))
        inner = inner * einsum("dnech,neih->dneci", taken, up_proj)
        inner = inner.reshape(*inner.shape[:4], parts, -1)
        done = einsum("dnecpi,nehpi->pdnech", inner, down_proj)
        return einsum("dntec,pdnech->pdnth", place * weight[..., None], done), place.sum((-1, -2))


def _placed(is_wanted: Any, count: int) -> Any:
    """Give each token that wants one the next place: [..., tokens, n] to truth values [..., tokens, n, count]."""
    place = torch.where(is_wanted, torch.cumsum(is_wanted, -2, dtype=torch.int32) - 1, -1)
    return place.unsqueeze(-1) == torch.arange(count, device=place.device)


def _sent(tokens: Any, facts: Any, place: Any) -> Any:
    """Put tokens and facts side by side, by place: [groups, devices, places, hidden + n].

    `place` says whether a token has a place, [groups, tokens, devices, places]; None if each has its own.
    """
    if place is None:
        whole = tokens[:, None].expand(-1, facts.shape[2], -1, -1)
        return torch.cat([whole, facts.transpose(1, 2)], -1)
    at = place.to(tokens.dtype)
    # A place without a token is routed to no expert.
    routed = einsum("gsdc,gsde->gdce", at, facts) - (1.0 - at.sum(1))[..., None]
    return torch.cat([einsum("gsdc,gsh->gdch", at, tokens), routed], -1)


def _combined(returned: Any, place: Any) -> Any:
    """Add up the results [tp, groups, devices, places, n] to [groups, tokens, n]; `place` as for `_sent`."""
    # The sum over tp, which is the all-reduce, comes last, so that it is over tokens, not over places.
    at_tokens = returned.sum(2) if place is None else einsum("gsdc,pgdcn->pgsn", place.to(returned.dtype), returned)
    return at_tokens.sum(0)
