"""Dispatch to experts, against a loop over tokens; in a process of its own, as torch warns on import."""

from __future__ import annotations

import importlib.util

import pytest

from tests.collect.torch_processes import TorchProcesses

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
