"""The kernels: when they are used, what they are given, and their arithmetic as Pallas interprets it on the host."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.memory import memory_need
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.collect.parallel import attention_forms
from tracewarehouse.collect.parallel.attention_forms import block_pages, cache_length, decode_form, prefill_form

TORCH_XLA = """
import json
import sys
import types
import torch
from tracewarehouse.collect.torch_xla.attention import flash_attention, paged_attention, sharded_attention

shapes = []

def flash(query, key, value, causal, sm_scale, partition_spec, mesh):
    # As torch_xla's: all of one shape, the softmax over what is not behind the query.
    assert query.shape == key.shape == value.shape and causal
    shapes.append(list(query.shape))
    scores = query @ key.transpose(-1, -2) * sm_scale
    is_seen = torch.ones(scores.shape[-2:]).tril().bool()
    return scores.masked_fill(~is_seen, -torch.inf).softmax(-1) @ value

def paged(query, k_pages, v_pages, lengths, page_indices, pages_per_compute_block):
    # As torch_xla's: each sequence has a length and a list of pages.
    assert lengths.dtype == page_indices.dtype == torch.int32
    assert page_indices.shape[1] % pages_per_compute_block == 0
    outputs = []
    for own, length, indices in zip(query, lengths, page_indices):
        of_heads = []
        for head, queries in enumerate(own.chunk(len(k_pages))):
            key, value = (pages[head, indices].flatten(0, 1)[:length] for pages in (k_pages, v_pages))
            of_heads.append((queries @ key.T).softmax(-1) @ value)
        outputs.append(torch.cat(of_heads))
    return torch.stack(outputs)

kernels = types.SimpleNamespace(flash_attention=flash, paged_attention=paged)
sys.modules["torch_xla.experimental.custom_kernel"] = kernels
mesh = types.SimpleNamespace(
    constrain=lambda x, partition: x,
    resolve=lambda partition: partition,
    part=lambda x, partition: x,
    whole=lambda x, partition, shape: x.reshape(shape),
    xla_mesh=None,
)
module = types.SimpleNamespace()

def inputs(kv_heads, tokens, cached, width, value_width):
    query = torch.randn(2, 8, tokens, width)
    # Behind the prompt is what a longer generation left there.
    return query, torch.randn(2, kv_heads, cached, width), torch.randn(2, kv_heads, cached, value_width)

def error(found, position, *given):
    tokens, cached = given[0].shape[2], given[1].shape[2]
    is_seen = torch.arange(cached)[None] <= position + torch.arange(tokens)[:, None]
    mask = torch.zeros(1, 1, tokens, cached).masked_fill(~is_seen, torch.finfo(torch.float32).min)
    expected, _ = sharded_attention(module, *given, mask, 0.1)
    assert found.shape == expected.shape
    return float((found - expected).abs().max())

errors = []
for width, value_width, kv_heads in [(64, 64, 2), (128, 128, 8), (192, 128, 8)]:
    torch.manual_seed(0)
    given = inputs(kv_heads, 128, 137, width, value_width)
    errors.append(error(flash_attention(mesh, module, *given, None, 0.1)[0], 0, *given))
for kv_heads, cached, position in [(2, 256, 0), (2, 256, 127), (8, 384, 128), (1, 384, 383)]:
    given = inputs(kv_heads, 1, cached, 128, 128)
    positions = torch.tensor([[position]])
    errors.append(error(paged_attention(mesh, module, *given, None, 0.1, positions)[0], position, *given))
print(json.dumps([errors, shapes]))
"""

JAX = """
import json
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import tpu as pltpu
from tracewarehouse.collect.jax.attention import attention, flash, paged

random = np.random.default_rng(0)

def inputs(batch, heads, kv_heads, tokens, cached, width=128, value_width=128):
    shapes = ((batch, heads, tokens, width), (batch, kv_heads, cached, width), (batch, kv_heads, cached, value_width))
    return [jnp.asarray(random.normal(size=s), jnp.bfloat16) for s in shapes]

def error(found, given, position):
    tokens, cached = given[0].shape[2], given[1].shape[2]
    is_seen = np.arange(cached)[None] <= position + np.arange(tokens)[:, None]
    expected = attention(*(x.astype(jnp.float32) for x in given), is_seen, 0.1)
    assert found.shape == expected.shape
    return float(jnp.abs(found.astype(jnp.float32) - expected).max())

errors = []
with pltpu.force_tpu_interpret_mode():
    # Two blocks of queries; keys and values that heads share, and narrow heads; keys wider than values.
    for batch, heads, kv_heads, tokens, width, value_width in [
        (1, 1, 1, 1024, 128, 128), (1, 2, 1, 128, 64, 64), (1, 1, 1, 128, 192, 128)
    ]:
        given = inputs(batch, heads, kv_heads, tokens, tokens, width, value_width)
        errors.append(error(flash(*given, 0.1), given, 0))
    # Several queries for a key-value head, eight, and one; one page and several in a block; the ends of a page.
    for batch, heads, kv_heads, cached, position in [
        (2, 4, 2, 256, 0), (1, 8, 1, 384, 127), (1, 5, 1, 512, 511)
    ]:
        given = inputs(batch, heads, kv_heads, 1, cached)
        errors.append(error(paged(*given, jnp.int32(position), 0.1), given, position))

def copied(form, given):
    # How many times the keys and values are the largest of what is made of them before a kernel reads it.
    traced = jax.make_jaxpr(form)(*given).jaxpr
    made, largest = set(traced.invars[1:3]), 0
    for equation in traced.eqns:
        if "pallas_call" not in str(equation) and made & {v for v in equation.invars if not hasattr(v, "val")}:
            made |= set(equation.outvars)
            largest = max(largest, *(v.aval.size for v in equation.outvars))
    return largest / given[1].size

prefill, decode = inputs(1, 8, 2, 128, 128), inputs(2, 8, 2, 1, 256)
copies = [copied(lambda *x: flash(*x, 0.1), prefill), copied(lambda *x: paged(*x, jnp.int32(9), 0.1), decode)]
print(json.dumps([errors, copies]))
"""

ABSORBED = """
import json
import jax
import numpy as np
from tracewarehouse.collect.jax.attention import absorbed

random = np.random.default_rng(0)
errors, largest = [], []
for sizes in [(2, 4, 9, 8, 4, 16, 8, 8), (1, 1, 5, 6, 2, 4, 10, 2)]:
    batch, heads, cached, plain, rotated, rank, width, position = sizes
    query = random.normal(size=(batch, heads, 1, plain + rotated)).astype("f4")
    latents = random.normal(size=(batch, cached, rank)).astype("f4")
    keys = random.normal(size=(batch, cached, rotated)).astype("f4")
    by_head = random.normal(size=(heads, plain + width, rank)).astype("f4")
    is_seen = (np.arange(cached) <= position)[None]
    given = (query, latents, keys, by_head, is_seen, 0.3)
    # The keys and values of each head, expanded from the latents.
    expanded = np.einsum("btr,hwr->bhtw", latents.astype("f8"), by_head)
    shared = np.broadcast_to(keys[:, None], (batch, heads, cached, rotated))
    scores = np.einsum("bhd,bhtd->bht", query[:, :, 0], np.concatenate([expanded[..., :plain], shared], -1)) * 0.3
    weights = np.exp(scores) * is_seen[0]
    expected = np.einsum("bht,bhtv->bhv", weights / weights.sum(-1, keepdims=True), expanded[..., plain:])
    errors.append(float(abs(absorbed(*given)[:, :, 0] - expected).max()))
    made = [v.aval.size for e in jax.make_jaxpr(absorbed)(*given).eqns for v in e.outvars]
    largest.append(max(made) / max(batch * heads * max(cached, rank, plain + rotated), by_head.size))
print(json.dumps([errors, largest]))
"""


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_the_kernels_are_given_what_makes_them_agree_with_einsums(torch_processes: TorchProcesses) -> None:
    errors, shapes = torch_processes.answer(TORCH_XLA)

    assert len(errors) == 7
    assert max(errors) < 1e-5
    # Keys and values for every head and only of the prompt, wide heads filled up.
    assert shapes == [[2, 8, 128, 64], [2, 8, 128, 128], [2, 8, 128, 256]]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_the_kernels_compute_attention(jax_processes: TorchProcesses) -> None:
    """The kernels themselves, which multiply in bfloat16, and read keys and values that heads share where they are."""
    errors, copies = jax_processes.answer(JAX, JAX_PLATFORMS="cpu")

    assert len(errors) == 6
    assert max(errors) < 0.02
    assert 0 < max(copies) <= 1


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_absorbed_attention_is_that_of_expanded_keys_without_expanding_them(jax_processes: TorchProcesses) -> None:
    errors, largest = jax_processes.answer(ABSORBED, JAX_PLATFORMS="cpu")

    assert max(errors) < 1e-5
    # No array has the context, the heads and a width.
    assert max(largest) <= 1


LLAMA = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({}, "flash"),
        ({"mesh": "dp=2,tp=4", "input_length": 1024}, "flash"),
        ({"sequence_parallelism": "megatron"}, "flash"),
        ({"device": "cpu"}, "einsum"),
        ({"mesh": "pp=2,tp=2", "backend": "torch_xla"}, "einsum"),
        ({"mesh": "pp=2,tp=2", "backend": "jax"}, "flash"),  # its program is that of one device
        ({"mesh": "pp=2,tp=2", "backend": "jax", "batch": 6}, "flash"),  # three sequences in a microbatch
        ({"sequence_parallelism": "ring"}, "einsum"),
        ({"input_length": 100}, "einsum"),  # no multiple of the lanes
        ({"input_length": 640}, "einsum"),  # no multiple of a block of queries
        ({"mesh": "tp=4", "batch": 3, "backend": "torch_xla"}, "einsum"),  # it takes sequences by two
        ({"mesh": "tp=4", "batch": 3}, "flash"),
        ({"mesh": "dp=4", "batch": 4}, "flash"),  # or alone
    ],
)
def test_the_kernel_of_a_prefill_is_used_where_it_can_be(
    fields: dict[str, Any], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_forms, "find_spec", lambda name: name)
    spec = run_spec(**{"device": "tpu", "input_length": 256, "batch": 4, **fields})

    assert prefill_form(spec) == form


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"model": LLAMA}, "paged"),
        ({"model": LLAMA, "batch": 3, "input_length": 100, "sequence_parallelism": "megatron"}, "paged"),
        ({"model": "Qwen/Qwen3-30B-A3B", "mesh": "ep=2,tp=4"}, "paged"),
        ({"model": LLAMA, "device": "cpu"}, "einsum"),
        ({"model": LLAMA, "mesh": "pp=2,tp=2", "backend": "torch_xla"}, "einsum"),
        ({"model": LLAMA, "mesh": "pp=2,tp=2", "backend": "jax"}, "paged"),
        ({"model": "llama"}, "einsum"),  # its heads are narrow
        ({"model": "deepseek-ai/DeepSeek-V2-Lite", "backend": "torch_xla"}, "einsum"),  # keys wider than values
        ({"model": "deepseek-ai/DeepSeek-V2-Lite", "backend": "jax"}, "absorbed"),  # one latent for all heads
        ({"model": "deepseek_v2", "backend": "jax", "device": "cpu"}, "absorbed"),
    ],
)
def test_the_kernel_of_decode_steps_is_used_where_it_can_be(
    fields: dict[str, Any], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_forms, "find_spec", lambda name: name)

    assert decode_form(run_spec(**{"device": "tpu", **fields})) == form


def test_without_jax_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_forms, "find_spec", lambda name: None)

    spec = run_spec(model=LLAMA, device="tpu", input_length=256)
    assert (prefill_form(spec), decode_form(spec)) == ("einsum", "einsum")


def test_on_tpu_the_cache_has_whole_pages() -> None:
    fields = {"model": LLAMA, "mesh": "tp=8", "batch": 8, "input_length": 1024, "output_length": 129}
    spec = run_spec(**fields, device="tpu")
    assert cache_length(spec) == 1280
    assert cache_length(run_spec(**fields)) == 1153
    # 32 layers, 8 sequences, a key and a value of 128 elements in bfloat16.
    assert memory_need(pretrained_model(LLAMA), spec).cache == 32 * 8 * 1280 * 2 * 128 * 2
    assert [block_pages(n) for n in (1, 7, 8, 10, 12, 64)] == [1, 1, 8, 2, 4, 8]


def test_a_tpu_computes_in_bfloat16() -> None:
    assert run_spec().dtype == "float32"
    assert run_spec(device="tpu").dtype == "bfloat16"
    # Weights may be float32, but the matrix unit rounds what it multiplies.
    asked = run_spec(device="tpu", dtype="float32")
    assert (asked.dtype, asked.precision) == ("float32", "bfloat16")
