"""How many tokens the devices of experts exchange, in closed form, against hand cases and against every choice."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from math import inf
from pathlib import Path

import numpy as np
import pytest

from tracewarehouse.collect.checks.promises import busiest_load
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.expert_places import (
    Places,
    Routing,
    Rows,
    expert_popularity,
    places,
    served_rows,
)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        # 32 tokens of 2 experts each go to 4 devices: 16 each on average, 20 with a quarter more. A device has 80
        # places; its experts get 128 * 2 / 8 = 32 tokens on average.
        ((32, 2, 8, 4, 1.25), Places(20, 80, 40)),
        # A token goes once to each of 2 devices at most, which is less than the factor allows.
        ((32, 2, 8, 2, 1.25), Places(32, 64, 20)),
        # One token each: everything has room.
        ((1, 2, 8, 4, 1.25), Places(1, 4, 4)),
        # At least four places.
        ((8, 2, 64, 16, 1.0), Places(4, 64, 4)),
        ((32, 2, 8, 4, inf), Places(32, 128, 128)),
        # Without ep nothing is sent.
        ((64, 2, 8, 1, 1.0), Places(64, 64, 16)),
        # DeepSeek-V3 on 32 devices, 128 tokens each: 32 places for each device, 1024 in all, k * tokens; once each
        # expert had one for every token, 32768.
        ((128, 8, 256, 32, 1.0), Places(32, 1024, 128)),
    ],
)
def test_places_follow_from_the_mean_share(arguments: tuple[int, int, int, int, float], expected: Places) -> None:
    assert places(*arguments) == expected


def devices_of_choices(routing: Routing, devices: int) -> list[int]:
    """The devices of every choice of experts that the rule allows, one after the other."""
    size, here = routing.experts // routing.groups, routing.experts // devices
    found = []
    for best in combinations(range(routing.groups), routing.best_groups):
        open_to = [group * size + n for group in best for n in range(size)]
        found += [len({expert // here for expert in choice}) for choice in combinations(open_to, routing.chosen)]
    return found


@pytest.mark.parametrize(
    ("routing", "devices"),
    [
        (Routing(8, 2), 1),
        (Routing(8, 2), 4),
        (Routing(8, 2), 8),
        (Routing(12, 3), 4),
        (Routing(8, 2, 2, 1), 2),
        (Routing(8, 2, 2, 1), 4),
        (Routing(12, 3, 4, 2), 2),
        (Routing(12, 3, 4, 2), 4),
        (Routing(12, 3, 4, 2), 12),
        (Routing(12, 2, 3, 1), 6),
        # A group of four experts lies on two devices of six or three.
        (Routing(12, 3, 3, 2), 2),
        (Routing(12, 3, 3, 2), 4),
        (Routing(15, 3, 3, 1), 5),
        (Routing(16, 8), 4),
    ],
)
def test_the_devices_of_a_token_are_the_mean_and_the_most_over_all_choices(routing: Routing, devices: int) -> None:
    found = devices_of_choices(routing, devices)
    assert routing.mean_devices(devices) == pytest.approx(float(Fraction(sum(found), len(found))), rel=1e-12)
    assert max(found) <= routing.most_devices(devices) <= min(routing.chosen, devices)
    is_aligned = routing.experts // devices % (routing.experts // routing.groups) == 0
    assert max(found) == routing.most_devices(devices) or not is_aligned


@pytest.mark.parametrize(
    ("model", "routing", "mean", "most"),
    [
        # Of eight devices each is missed by C(56, 6) of the C(64, 6) choices.
        ("deepseek-ai/DeepSeek-V2-Lite", Routing(64, 6), 4.5355, 6),
        # Experts of four of eight groups, and a group is a device: 4 (1 - C(96, 8) / C(128, 8)).
        ("deepseek-ai/DeepSeek-V3.1-Base", Routing(256, 8, 8, 4), 3.6290, 4),
        # Here by C(112, 8) of C(128, 8).
        ("Qwen/Qwen3-30B-A3B", Routing(128, 8), 5.3394, 8),
        ("deepseek_v3", Routing(8, 2, 2, 1), 2.0, 2),
        ("deepseek_v2", Routing(8, 2), 2.0, 2),
    ],
)
def test_the_rule_of_a_model_and_its_devices_of_eight(model: str, routing: Routing, mean: float, most: int) -> None:
    architecture = model_architecture(model)
    assert Routing.of(architecture.config, architecture.num_experts or 0) == routing
    assert (routing.mean_devices(8), routing.most_devices(8)) == (pytest.approx(mean, abs=1e-3), most)


def test_a_folder_that_leaves_out_its_groups_has_those_of_deepseek_v3(tmp_path: Path) -> None:
    config = {**model_architecture("deepseek-ai/DeepSeek-V3.1-Base").config, "model_type": "deepseek_v3"}
    for absent in ({"n_group", "topk_group"}, {"topk_group"}, set()):
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in absent}))
        assert Routing.of(model_architecture(str(tmp_path)).config, 256) == Routing(256, 8, 8, 4)
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_group": 16, "topk_group": 2}))
    assert Routing.of(model_architecture(str(tmp_path)).config, 256) == Routing(256, 8, 16, 2)


def test_places_of_the_capacity_form_beside_the_devices_of_a_token() -> None:
    """DeepSeek on eight devices of ep, 1024 tokens each: what goes to the experts, per token."""
    lite = Routing(64, 6)
    sent = 8 * places(1024, 6, 64, 8, 1.25).per_device / 1024
    assert sent == 7.5
    assert sent / lite.mean_devices(8) == pytest.approx(1.654, abs=1e-3)
    assert 8 * places(1024, 8, 256, 8, 1.25).per_device == 8 * 1024  # each token to all
    # 1.51 times the devices if the best experts were chosen of all 256, 2.2 times those that the model's groups allow.
    assert 8 / Routing(256, 8).mean_devices(8) == pytest.approx(1.511, abs=1e-3)
    assert 8 / Routing(256, 8, 8, 4).mean_devices(8) == pytest.approx(2.204, abs=1e-3)


def test_rows_as_served() -> None:
    assert served_rows(1024, Routing(256, 8, 8, 4), 8) == Rows(
        sent=4096, received=8192, computed=65536, mean_sent=pytest.approx(1024 * 3.62901, rel=1e-5), mean_computed=8192
    )
    # On one device nothing is sent, and the products have exactly the routed pairs.
    assert served_rows(16, Routing(8, 2), 1) == Rows(16, 16, 32, 16, 32)


@pytest.mark.parametrize(("experts", "chosen", "skew"), [(64, 6, 0.5), (64, 6, 1.0), (128, 8, 1.0), (128, 8, 2.0)])
def test_the_busiest_device_has_what_draws_without_replacement_give_it(experts: int, chosen: int, skew: float) -> None:
    """The largest of Gumbel noise and logarithms of the popularity are such a draw (Yellott 1977)."""
    popularity = expert_popularity(experts, skew, 5)
    noise = np.random.default_rng(0).gumbel(size=(40_000, experts))
    drawn = np.argpartition(-(noise + np.log(popularity)), chosen, axis=1)[:, :chosen]
    counts = np.bincount(drawn.ravel(), minlength=experts).reshape(8, -1).sum(1)
    assert Routing(experts, chosen).busiest_load(popularity, 8) == pytest.approx(counts.max() / counts.mean(), rel=0.01)


def test_loads_worked_by_hand() -> None:
    equal, one = np.ones(8), np.array([1e9, 1, 1, 1, 1, 1, 1, 1])
    assert Routing(8, 2).busiest_load(equal, 4) == pytest.approx(1)
    assert Routing(8, 2).busiest_load(one, 1) == 1
    assert Routing(8, 8).busiest_load(one, 4) == 1
    # Every token goes to the first expert, and for its other one to each of seven in a seventh of the cases.
    assert Routing(8, 2).busiest_load(one, 4) == pytest.approx((1 + 1 / 7) / 2 * 4, rel=1e-3)
    assert Routing(8, 2, 2, 1).busiest_load(one, 4) is None
    assert busiest_load(run_spec(model="qwen3_moe", mesh="ep=4")) is None
    assert busiest_load(run_spec(model="qwen3_moe", mesh="ep=4", routing_skew=0)) == pytest.approx(1)
