from __future__ import annotations

import pytest

from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.subject import config_values
from tracewarehouse.collect.models.architectures import ARCHITECTURES, architecture_of
from tracewarehouse.collect.models.pretrained import known_models, pretrained_model


@pytest.mark.parametrize("name", known_models())
def test_a_tiny_model_has_the_parts_of_its_published_ones(name: str) -> None:
    model = pretrained_model(name)
    tiny, published = ARCHITECTURES[model.architecture], architecture_of(name)

    assert (tiny.is_moe, tiny.has_latent_cache) == (published.is_moe, published.has_latent_cache)
    assert (tiny.first_dense_layers > 0) == (published.first_dense_layers > 0)
    assert ("n_shared_experts" in tiny.config) == ("n_shared_experts" in published.config)
    # Several query heads share a key, in the ones that do so.
    if not tiny.has_latent_cache and model.architecture != "llama":
        assert 1 < tiny.num_heads // tiny.num_kv_heads < tiny.num_heads


def test_an_unknown_model_is_answered_with_the_tiny_models_that_there_are() -> None:
    with pytest.raises(ExperimentError, match=f"known are {', '.join(ARCHITECTURES)} \\(tiny\\)"):
        architecture_of("gpt")


@pytest.mark.parametrize("mesh", ["tp=2", "ep=2", "pp=2", "pp=2,tp=2"])
def test_deepseek_is_the_same_model_under_every_parallelism(mesh: str) -> None:
    config = config_values(run_spec(model="deepseek_v3", mesh=mesh, layers=3))

    assert config == config_values(run_spec(model="deepseek_v3", mesh="tp=1", layers=3))
    assert (config["first_k_dense_replace"], config["n_shared_experts"]) == (1, 1)
    assert config["n_group"] > config["topk_group"] >= 1  # experts are chosen from some of the groups
    assert config["num_experts_per_tok"] > 1
