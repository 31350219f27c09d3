"""The reference in numpy beside the models of transformers in plain torch: the same weights give the same logits.

In one process of its own, as torch warns on import.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.checks.plain_model import PlainModel
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.subject import reference_generation, run_prompt
from tracewarehouse.collect.models.architectures import ARCHITECTURES, tiny_model
from tracewarehouse.collect.models.form import model_form
from tracewarehouse.collect.models.pretrained import PretrainedModel
from tracewarehouse.collect.parallel.weights import RandomWeights

YARN = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 16}
LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "llama3": ("llama", {"rope_scaling": LLAMA_3 | {"original_max_position_embeddings": 16}, "rope_theta": 5e5}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6}}),
    "tied": ("qwen2", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "normed": ("qwen3_moe", {"norm_topk_prob": True, "head_dim": 32}),
    "yarn": ("llama", {"rope_scaling": YARN | {"attention_factor": 1.3}}),
    "whole": ("qwen3", {"rope_scaling": YARN | {"truncate": False}}),
    "groups": (
        "deepseek_v2",
        {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "n_shared_experts": 2}
        | {"q_lora_rank": None, "routed_scaling_factor": 1.7, "rope_scaling": YARN | {"mscale": 0.7}},
    ),
    "mscale": (
        "deepseek_v3",
        {"rope_scaling": YARN | {"mscale": 0.9, "mscale_all_dim": 0.7}, "routed_scaling_factor": 0.6},
    ),
    "halves": ("deepseek_v3", {"rope_interleave": False, "norm_topk_prob": False, "first_k_dense_replace": 2}),
}
LAYERS, LENGTH, STEPS = 3, 24, 4

PROGRAM = """
import json, sys
import torch
import transformers
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.models.architectures import ARCHITECTURES
from tracewarehouse.collect.models.form import complete_config
from tracewarehouse.collect.models.pretrained import PretrainedModel
from tracewarehouse.collect.parallel.weights import RandomWeights
from tracewarehouse.collect.torch_xla.transformers_model import as_tensor, on_host

found, defaults = {}, {}
for name, (model, tokens, steps, dtype) in json.loads(sys.argv[1]).items():
    model = PretrainedModel.model_validate(model)
    layers = model.num_layers
    given = getattr(transformers, ARCHITECTURES[model.architecture].config_class)(**model.config)
    left_out = {f: v for f, v in complete_config(model).items() if getattr(given, f) != v}
    defaults[name] = [f for f in left_out if f != "rope_parameters"]
    plain = on_host(run_spec(layers=layers, dtype=dtype), RandomWeights(model, layers, 0))
    for module in plain.modules():
        if isinstance(getattr(module, "gate_proj", None), torch.nn.Parameter):  # of experts, which are fused there
            module.gate_up_proj = torch.nn.Parameter(torch.cat([module.gate_proj, module.up_proj], 1))
    tokens, cache, logits = torch.tensor(tokens), None, []
    for _ in range(steps):
        with torch.no_grad():
            out = plain(input_ids=tokens, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logits.append(out.logits[:, -1])
        tokens = logits[-1].argmax(-1, keepdim=True)
    found[name] = torch.stack(logits, 1).float().tolist()
print(json.dumps([found, defaults]))
"""


def variant(name: str) -> PretrainedModel:
    architecture, numbers = VARIANTS[name]
    tiny = tiny_model(architecture, LAYERS)
    return tiny.model_copy(update={"config": {**tiny.config, **numbers}})


@pytest.mark.skipif(importlib.util.find_spec("torch_xla") is None, reason="torch_xla is not installed")
def test_logits_are_those_of_transformers(torch_processes: TorchProcesses) -> None:
    spec = run_spec(layers=LAYERS, batch=2, input_length=LENGTH, output_length=STEPS)
    tokens = run_prompt(spec, 512).tokens
    asked = {name: (variant(name).model_dump(), tokens.tolist(), STEPS, "float32") for name in VARIANTS}
    asked |= {f"{name} bfloat16": (*asked[name][:-1], "bfloat16") for name in ARCHITECTURES}

    theirs, other_defaults = torch_processes.answer(PROGRAM, json.dumps(asked))

    assert not any(other_defaults.values())
    for name in ARCHITECTURES:
        rounded = spec.model_copy(update={"dtype": "bfloat16"})
        ours = reference_generation(rounded, RandomWeights(variant(name), LAYERS, 0), tokens).logits
        assert np.abs(ours - np.array(theirs[f"{name} bfloat16"])).max() < 0.03, name
    for name in VARIANTS:
        ours = reference_generation(spec, RandomWeights(variant(name), LAYERS, 0), tokens).logits
        assert ours.dtype == np.float32
        assert np.abs(ours - np.array(theirs[name])).max() < 2e-5, name
        # Every variant is another model.
        assert name in ARCHITECTURES or np.abs(ours - np.array(theirs[VARIANTS[name][0]])).max() > 1e-3, name


@pytest.mark.parametrize("name", ["qwen3_moe", "normed", "deepseek_v2", "groups", "deepseek_v3"])
def test_a_token_that_errors_can_send_elsewhere_is_sent_elsewhere(name: str) -> None:
    model, draw, reach = variant(name), np.random.default_rng(0), 0.03
    weights = RandomWeights(model, LAYERS, 0)
    values = {n: weights.whole(n, "float32") for n in weights.names()}
    form = model_form(model, LAYERS)
    plain, gate, router = PlainModel(form, values), form.layers[-1].mlp.gate, f"model.layers.{LAYERS - 1}.mlp"
    tokens = draw.standard_normal((500, 128), np.float32)

    first, other = np.split(plain._choice(router, gate, np.tile(tokens, (2, 1)), reach)[0], 2)

    is_other = (np.sort(first) != np.sort(other)).any(-1)
    matrix = values[f"{router}.gate.weight"]
    logits, error = tokens @ matrix.T, reach * np.sqrt(tokens**2 @ matrix.T**2)
    can_be = np.zeros(500, bool)
    for _ in range(300):
        found = plain._best(router, gate, logits + error * draw.choice([-1, 1], logits.shape).astype(np.float32))[1]
        can_be |= (np.sort(found) != np.sort(first)).any(-1)
    assert 0.05 < can_be.mean() < 0.9
    assert not (can_be & ~is_other).any()
    assert (is_other & ~can_be).mean() < 0.02
    assert np.array_equal(plain._choice(router, gate, np.tile(tokens, (2, 1)), 0)[0], np.tile(first, (2, 1)))


def test_weights_follow_from_the_seed_and_their_name_alone(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    few, more, other = (RandomWeights(tiny_model("llama", n), n, seed) for n, seed in ((2, 0), (3, 0), (2, 1)))
    values = few.whole(name, "float32")

    more.whole("lm_head.weight", "float32")
    assert np.array_equal(more.read(name, (slice(8, 16), slice(0, 3)), "float32"), values[8:16, :3])
    assert not np.array_equal(other.whole(name, "float32"), values)
    assert abs(values.std() - 0.02) < 5e-4
    assert abs(few.whole("model.norm.weight", "float32").mean() - 1) < 0.01


@pytest.mark.parametrize(
    "rope", [{"type": "dynamic", "factor": 2.0}, {"rope_type": "default", "partial_rotary_factor": 0.5}]
)
def test_other_angles_are_refused(rope: dict[str, Any]) -> None:
    tiny = tiny_model("llama", 1)
    with pytest.raises(ExperimentError, match="computes default, linear, llama3, yarn, over the whole width of a head"):
        model_form(tiny.model_copy(update={"config": {**tiny.config, "rope_scaling": rope}}), 1)
