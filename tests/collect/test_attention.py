"""The kernel for the prefill: when it is used, and what it is given; the kernel itself runs on TPU only."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.parallel import attention
from tracewarehouse.collect.run_spec import run_spec

PROGRAM = """
import json
import sys
import types
import torch
from tracewarehouse.collect.parallel.attention import flash_attention, sharded_attention

shapes = []

def kernel(query, key, value, causal, sm_scale, partition_spec, mesh):
    # As torch_xla's: all of one shape, the softmax over what is not behind the query.
    assert query.shape == key.shape == value.shape and causal
    shapes.append(list(query.shape))
    scores = query @ key.transpose(-1, -2) * sm_scale
    is_seen = torch.ones(scores.shape[-2:]).tril().bool()
    return scores.masked_fill(~is_seen, -torch.inf).softmax(-1) @ value

sys.modules["torch_xla.experimental.custom_kernel"] = types.SimpleNamespace(flash_attention=kernel)
mesh = types.SimpleNamespace(constrain=lambda x, partition: x, resolve=lambda partition: partition, xla_mesh=None)
module = types.SimpleNamespace()

errors = []
for width, value_width, kv_heads, tokens in [(64, 64, 2, 128), (128, 128, 8, 128), (192, 128, 8, 128), (64, 64, 2, 1)]:
    torch.manual_seed(0)
    cached = tokens + 9
    query = torch.randn(2, 8, tokens, width)
    # Behind the prompt is what a longer generation left there.
    key, value = torch.randn(2, kv_heads, cached, width), torch.randn(2, kv_heads, cached, value_width)
    is_seen = torch.arange(cached)[None] <= torch.arange(tokens)[:, None]
    mask = torch.zeros(1, 1, tokens, cached).masked_fill(~is_seen, torch.finfo(torch.float32).min)
    expected, _ = sharded_attention(module, query, key, value, mask, 0.1)
    found, _ = flash_attention(mesh, module, query, key, value, mask, 0.1)
    assert found.shape == expected.shape
    errors.append(float((found - expected).abs().max()))
print(json.dumps([errors, shapes]))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_the_kernel_is_given_what_makes_it_agree_with_einsums(torch_processes: TorchProcesses) -> None:
    errors, shapes = torch_processes.answer(PROGRAM)

    assert max(errors) < 1e-5
    # Keys and values for every head and only of the prompt, wide heads filled up; a decode step does without.
    assert shapes == [[2, 8, 128, 64], [2, 8, 128, 128], [2, 8, 128, 256]]


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, "flash"),
        ({"mesh": "dp=2,tp=4", "input_length": 1024}, "flash"),
        ({"sequence_parallelism": "megatron"}, "flash"),
        ({"device": "cpu"}, "einsum"),
        ({"mesh": "pp=2,tp=2"}, "einsum"),
        ({"sequence_parallelism": "ring"}, "einsum"),
        ({"input_length": 100}, "einsum"),  # no multiple of the lanes
        ({"input_length": 640}, "einsum"),  # no multiple of a block of queries
        ({"mesh": "tp=4", "batch": 3}, "einsum"),  # sequences are taken by two
        ({"mesh": "dp=4", "batch": 4}, "flash"),  # or alone
    ],
)
def test_the_kernel_is_used_where_it_can_be(fields: dict[str, Any], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: name)
    spec = run_spec(**{"device": "tpu", "input_length": 256, "batch": 4, **fields})

    assert attention.prefill_form(spec) == form


def test_without_jax_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "find_spec", lambda name: None)

    assert attention.prefill_form(run_spec(device="tpu", input_length=256)) == "einsum"


def test_a_tpu_computes_in_bfloat16() -> None:
    assert run_spec().dtype == "float32"
    assert run_spec(device="tpu").dtype == "bfloat16"
    # Weights may be float32, but the matrix unit rounds what it multiplies.
    asked = run_spec(device="tpu", dtype="float32")
    assert (asked.dtype, asked.precision) == ("float32", "bfloat16")
