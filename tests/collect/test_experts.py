"""Dispatch to experts, against a loop over tokens; in processes of their own, as torch warns on import."""

from __future__ import annotations

import importlib.util

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.parallel.expert_places import Routing

PROGRAM = """
import json
import types
import torch
from tracewarehouse.collect.torch_xla.experts import RoutedExperts, places

HIDDEN, WIDTH, EXPERTS, CHOSEN = 6, 8, 8, 2

def mesh(dp, ep, tp):
    return types.SimpleNamespace(sizes={"dp": dp, "ep": ep, "tp": tp}, constrain=lambda value, partition: value)

def expected(module, tokens, chosen, weights, dp, ep, room):
    # Device by device, token by token: what is sent where, and what finds a place there.
    size = len(tokens) // (dp * ep)
    out, dropped = torch.zeros_like(tokens), torch.full((len(tokens),), CHOSEN)
    for data in range(dp):
        for device in range(ep):
            taken = dict.fromkeys(range(EXPERTS), 0)
            for source in range(ep):
                places_left = room.per_device
                for token in range((data * ep + source) * size, (data * ep + source + 1) * size):
                    here = [n for n in range(CHOSEN) if chosen[token, n] // (EXPERTS // ep) == device]
                    if not here or not places_left:
                        continue
                    places_left -= 1
                    for n in here:
                        expert = int(chosen[token, n])
                        taken[expert] += 1
                        if taken[expert] > room.per_expert:
                            continue
                        x = tokens[token]
                        inner = torch.nn.functional.silu(module.gate_proj[expert] @ x) * (module.up_proj[expert] @ x)
                        out[token] += weights[token, n] * (module.down_proj[expert] @ inner)
                        dropped[token] -= 1
    return out, dropped

found = []
for dp, ep, tp, factor, count in [
    (1, 1, 1, "inf", 24), (1, 4, 1, "inf", 32), (2, 2, 2, "inf", 32), (1, 1, 2, 1.0, 48), (1, 4, 1, 1.0, 96),
    (2, 2, 2, 1.0, 96), (1, 8, 2, 1.25, 128), (2, 4, 1, 1.25, 32),
]:
    torch.manual_seed(count + ep)
    module = types.SimpleNamespace(
        gate_proj=torch.randn(EXPERTS, WIDTH, HIDDEN), up_proj=torch.randn(EXPERTS, WIDTH, HIDDEN),
        down_proj=torch.randn(EXPERTS, HIDDEN, WIDTH), act_fn=torch.nn.functional.silu,
    )
    tokens = torch.randn(count, HIDDEN)
    # Uneven: some experts get more than their share.
    weights, chosen = torch.topk((torch.randn(count, EXPERTS) + torch.arange(EXPERTS) / 4).softmax(-1), CHOSEN)
    routed = RoutedExperts(mesh(dp, ep, tp), float(factor))
    result = routed.run(module, tokens, chosen, weights)
    dropped = routed.take_dropped()
    room = places(count // (dp * ep), CHOSEN, EXPERTS, ep, float(factor))
    want, want_dropped = expected(module, tokens, chosen, weights, dp, ep, room)
    found.append([
        str(factor), float((result - want).abs().max()), bool((dropped == want_dropped).all()), int(dropped.sum()),
        routed.take_dropped() is None,
    ])
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_dispatch_computes_what_a_loop_over_tokens_does(torch_processes: TorchProcesses) -> None:
    for factor, error, dropped_agree, dropped, is_taken in torch_processes.answer(PROGRAM):
        assert error < 1e-4
        assert dropped_agree and is_taken
        assert dropped == 0 if factor == "inf" else dropped > 0 or factor != "1.0"


GROUPS = """
import json
import torch
from tracewarehouse.collect.torch_xla.sharded_model import _are_largest

torch.manual_seed(0)
found = []
for groups, count in [(2, 1), (8, 4), (8, 1), (8, 8)]:
    values = torch.randn(50, groups)
    chosen = torch.zeros(50, groups, dtype=torch.bool).scatter(1, values.topk(count)[1], True)
    found.append(bool((_are_largest(values, count) == chosen).all()))
equal = torch.tensor([[1.0, 3.0, 3.0, 3.0]])
print(json.dumps([found, _are_largest(equal, 2).tolist()]))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_groups_are_chosen_as_topk_does(torch_processes: TorchProcesses) -> None:
    found, of_equal = torch_processes.answer(GROUPS)

    assert all(found)
    assert of_equal == [[False, True, True, False]]


SERVED = """
import json
import sys
import types
import jax
import jax.numpy as jnp
import numpy as np
from tracewarehouse.collect.jax import experts
from tracewarehouse.collect.jax.operations import Collectives

HIDDEN, WIDTH, EXPERTS, CHOSEN, TOKENS = 6, 8, 8, 3, 40
SPLIT = jax.sharding.PartitionSpec
random = np.random.default_rng(0)
ROUTINGS = {
    "uneven": [random.choice(EXPERTS, CHOSEN, False, np.arange(1, 9) / 36) for _ in range(TOKENS)],
    "even": [[(t + n * 3) % EXPERTS for n in range(CHOSEN)] for t in range(TOKENS)],
    "all to the same experts": [[5, 6, 7]] * TOKENS,
    "the senders differ": [[0, 1, 2]] * (TOKENS // 2) + [[1, 4, 7]] * (TOKENS - TOKENS // 2),
    "one token": [[1, 4, 7]],
}
multiplied = []
product = jax.lax.ragged_dot
jax.lax.ragged_dot = lambda rows, *others: multiplied.append(len(rows)) or product(rows, *others)

def mesh_of(dp, ep, tp):
    devices = np.array(jax.devices()[: dp * ep * tp]).reshape(dp, ep, tp)
    return jax.sharding.Mesh(devices, ("dp", "ep", "tp"))

def expected(tokens, chosen, weight, gate, up, down):
    out = np.zeros_like(tokens)
    for t, x in enumerate(tokens):
        for e, w in zip(chosen[t], weight[t]):
            g = gate[e] @ x
            out[t] += w * (down[e] @ (g / (1 + np.exp(-g)) * (up[e] @ x)))
    return out

found = []
for name, chosen in ROUTINGS.items():
    for dp, ep, tp in [(1, 1, 1), (1, 4, 1), (1, 8, 1), (2, 2, 2), (1, 1, 4)]:
        if len(chosen) % (dp * ep):
            continue
        chosen = np.array(chosen, np.int32)
        tokens, weight = (random.standard_normal(s, np.float32) for s in ((len(chosen), HIDDEN), chosen.shape))
        weight = np.abs(weight)
        weight[::5, 0] = 0  # routed, but with no weight
        gate, up = (random.standard_normal((EXPERTS, WIDTH, HIDDEN), np.float32) for _ in range(2))
        down = random.standard_normal((EXPERTS, HIDDEN, WIDTH), np.float32)
        # The router answers with the given choice; the tokens say which rows are this device's.
        experts.routed = lambda gate, weights, hidden, popularity: (weights["chosen"], weights["weight"])
        links = Collectives({"dp": dp, "ep": ep, "tp": tp}, is_ragged=False)
        served = experts.ServedExperts(links)

        def run(tokens, chosen, weight, gate, up, down):
            names = ("chosen", "weight", "mlp.experts.gate_proj", "mlp.experts.up_proj", "mlp.experts.down_proj")
            weights = dict(zip(names, (chosen, weight, gate, up, down)))
            return served.run(types.SimpleNamespace(gate=types.SimpleNamespace(top_k=CHOSEN)), weights, tokens)

        rows, matrices = SPLIT(("dp", "ep"), None), SPLIT("ep", "tp", None)
        step = jax.jit(jax.shard_map(
            run, mesh=mesh_of(dp, ep, tp), in_specs=(rows, rows, rows, matrices, matrices, SPLIT("ep", None, "tp")),
            out_specs=(rows, SPLIT(("dp", "ep"))), check_vma=False,
        ))
        out, devices = step(tokens, chosen, weight, gate, up, down)
        error = float(np.abs(out - expected(tokens, chosen, weight, gate, up, down)).max())
        went = [len({int(e) // (EXPERTS // ep) for e in row}) for row in chosen]
        found.append([name, error, went == np.asarray(devices).tolist(), min(multiplied)])
print(json.dumps(found))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_experts_as_served_compute_what_a_loop_over_tokens_does(jax_processes: TorchProcesses) -> None:
    """Whatever the routing, on every mesh; each token is counted once for each device of its experts.

    libtpu multiplies fewer than eight rows with the matrices of all experts.
    """
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    answer = jax_processes.answer(SERVED, XLA_FLAGS=flags)
    assert answer[-1][0] == "one token"
    for name, error, is_counted, fewest_rows in answer:
        assert error < 1e-4, name
        assert is_counted, name
        assert fewest_rows >= 8, name


SKEWED = """
import json
import types
import numpy as np
from tracewarehouse.collect.jax.experts import routed
from tracewarehouse.collect.parallel.expert_places import expert_popularity

random = np.random.default_rng(0)
hidden = random.standard_normal((20000, 64), np.float32)
weights = {"mlp.gate.weight": random.standard_normal((8, 64), np.float32) * 0.02}
of_groups = {**weights, "mlp.gate.e_score_correction_bias": np.zeros(8, np.float32)}
plain = types.SimpleNamespace(top_k=2, norm_topk_prob=True)
grouped = types.SimpleNamespace(top_k=2, norm_topk_prob=True, num_group=2, topk_group=1, routed_scaling_factor=1.0)

found = []
for skew in (0.0, 0.5, 1.0, 2.0):
    popularity = expert_popularity(8, skew, 3)
    chosen, weight = routed(plain, weights, hidden, popularity)
    shares = np.bincount(np.asarray(chosen).ravel(), minlength=8) / len(hidden)
    found.append([popularity.tolist(), shares.tolist(), float(np.abs(np.asarray(weight).sum(1) - 1).max())])
own = routed(plain, weights, hidden)[0]
of_one = np.asarray(routed(grouped, of_groups, hidden, expert_popularity(8, 1.0, 3))[0]) // 4
is_same = bool((np.sort(own) == np.sort(routed(plain, weights, hidden, expert_popularity(8, 0.0, 3))[0])).all())
print(json.dumps([found, is_same, bool((of_one[:, 0] == of_one[:, 1]).all())]))
"""


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_a_skew_makes_tokens_choose_by_popularity(jax_processes: TorchProcesses) -> None:
    """As often as a draw without replacement by Zipf's law would; the router's logits are nearly normal, not Gumbel."""
    found, is_same, stays_in_its_group = jax_processes.answer(SKEWED)
    for popularity, shares, error in found:
        p = [value / sum(popularity) for value in popularity]
        drawn = [a + sum(b * a / (1 - b) for j, b in enumerate(p) if j != i) for i, a in enumerate(p)]
        assert sum(shares) == pytest.approx(2)
        assert shares == pytest.approx(drawn, abs=0.1)
        load = Routing(8, 2).busiest_load(popularity, 4)
        assert load == pytest.approx(max(a + b for a, b in zip(shares[::2], shares[1::2], strict=True)) * 2, rel=0.1)
        assert error < 1e-5  # the weights are still those of the router
    assert max(found[2][1]) > 2.2 * 2 / 8  # a skew of 1: the first of 8 has over twice the mean share
    assert is_same  # without a preference the router alone chooses
    assert stays_in_its_group
