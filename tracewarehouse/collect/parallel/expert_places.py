"""Says how many tokens the devices of experts exchange and compute: by a capacity factor, or as servers do it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_PLACES = 4
"""Fewest places: the mean of few tokens says little; as in DeepSpeed-MoE (Rajbhandari et al. 2022)."""


@dataclass(frozen=True)
class Places:
    """Places that routed tokens get."""

    per_device: int
    """Places that one device of (dp, ep) sends to each device of ep."""
    received: int
    """Places that a device of ep gets from all its senders, itself included."""
    per_expert: int
    """Places that each of its experts computes; `received` if every expert computes all."""


def places(tokens: int, chosen: int, experts: int, devices: int, factor: float) -> Places:
    """Return the places that a capacity factor gives; it counts mean shares of the tokens.

    `tokens` are those of one device of (dp, ep), each with `chosen` of the `experts` of a layer, which `devices` of ep
    share. An infinite factor gives room for all, so nothing is dropped.
    """

    def room(most: int, mean: float) -> int:
        return most if math.isinf(factor) else min(most, max(LEAST_PLACES, math.ceil(factor * mean)))

    # A token takes one place at a device, however many of its experts are there.
    per_device = room(tokens, tokens * chosen / devices) if devices > 1 else tokens
    received = per_device * devices
    return Places(per_device, received, room(received, tokens * devices * chosen / experts))


@dataclass(frozen=True)
class Routing:
    """The rule by which a token chooses its experts: the best of all, or the best in the best groups of them."""

    experts: int
    chosen: int
    """Experts of a token."""
    groups: int = 1
    best_groups: int = 1
    """Groups that a token's experts may come from (DeepSeek-V2, arXiv 2405.04434, section 2.2.2)."""

    @classmethod
    def of(cls, config: Mapping[str, Any], experts: int) -> Routing:
        """Return the rule that a model's configuration states; `experts` are those of a layer."""
        groups, best = config.get("n_group"), config.get("topk_group")
        return cls.stated(experts, config["num_experts_per_tok"], groups, best, config.get("topk_method"))

    @classmethod
    def stated(
        cls, experts: int, chosen: int, groups: int | None, best_groups: int | None, method: str | None
    ) -> Routing:
        """Return the rule by the values that models of DeepSeek state; others have no groups and no method."""
        if method == "greedy" or not groups or not best_groups:
            return cls(experts, chosen)
        return cls(experts, chosen, groups, best_groups)

    def most_devices(self, devices: int) -> int:
        """Return the most devices of ep that a token goes to."""
        here, size = self.experts // devices, self.experts // self.groups
        is_aligned = here % size == 0 or size % here == 0
        per_group = -(-size // here) + (not is_aligned)  # a group may begin within a device's experts
        return min(self.chosen, devices, self.best_groups * per_group)

    def mean_devices(self, devices: int) -> float:
        """Return the mean of the devices of ep that a token goes to, if every choice that the rule allows is as likely.

        A device with c of the n experts in the best groups has none of the chosen k in C(n - c, k) of C(n, k) choices.
        """
        here, size = self.experts // devices, self.experts // self.groups
        open_to = self.best_groups * size
        missed = 0.0
        for first in range(0, self.experts, here):
            own = [len(range(max(first, g), min(first + here, g + size))) for g in range(0, self.experts, size)]
            # Choices of the best groups, by how many they are and how many of the device's experts they hold.
            ways = Counter({(0, 0): 1})
            for experts in own:
                ways += Counter({(n + 1, c + experts): w for (n, c), w in ways.items() if n < self.best_groups})
            for (n, c), count in ways.items():
                if n == self.best_groups:
                    missed += count * math.comb(open_to - c, self.chosen)
        return devices - missed / (math.comb(self.groups, self.best_groups) * math.comb(open_to, self.chosen))

    def busiest_load(self, popularity: Any, devices: int) -> float | None:
        """Return the pairs of token and expert on the busiest device of ep, as a multiple of the mean over devices.

        A token draws its k experts without replacement, by `popularity`, [experts]. An expert of the share p is among
        them with the chance 1 - exp(-p t), where t makes the chances add up to k (Rosén 1997, "On sampling with
        probability proportional to size"): an approximation, within 1 % for 6 of 64 experts and for 8 of 128. None
        where groups limit the choice.
        """
        if self.groups > 1:
            return None
        if devices == 1 or self.chosen == self.experts:
            return 1.0
        share = np.asarray(popularity, np.float64) / np.sum(popularity, dtype=np.float64)

        def chances(t: float) -> Any:
            return -np.expm1(-share * t)

        low, high = 0.0, 1.0
        while chances(high).sum() < self.chosen:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if chances(middle).sum() < self.chosen else (low, middle)
        return float(chances(high).reshape(devices, -1).sum(1).max() * devices / self.chosen)


@dataclass(frozen=True)
class Rows:
    """Rows of tokens of a layer of experts on one device, as servers run it: sorted, and as many as the routing gives.

    What is not a mean is the size of a buffer, which has room for any routing.
    """

    sent: int
    """Most rows that it sends to the devices of ep, itself included: one for each device of a token."""
    received: int
    """Most rows that it gets."""
    computed: int
    """Most pairs of row and expert that its experts compute."""
    mean_sent: float
    """Rows that it sends and gets where every choice of experts is as likely."""
    mean_computed: float
    """Pairs that its experts compute then, which is also the mean over the devices whatever the routing."""


def served_rows(tokens: int, routing: Routing, devices: int) -> Rows:
    """Return the rows of `tokens` on each device of (dp, ep); `devices` of ep share the experts. None is dropped."""
    received = tokens * devices
    return Rows(
        tokens * routing.most_devices(devices),
        received,
        received * min(routing.chosen, routing.experts // devices),
        tokens * routing.mean_devices(devices),
        tokens * routing.chosen,
    )


def expert_popularity(experts: int, skew: float | None, seed: int) -> Any:
    """Return how often each expert is wanted, [experts], by Zipf's law: the n-th most popular n ** -skew times.

    The seed says which expert is the n-th, in all layers. None without a skew: the router alone chooses.
    """
    if skew is None:
        return None
    return np.random.default_rng(seed).permutation(np.arange(1, experts + 1) ** -skew).astype(np.float32)
