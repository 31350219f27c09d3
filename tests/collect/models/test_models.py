from __future__ import annotations

import pytest

from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.models.architectures import ARCHITECTURES, model_architecture
from tracewarehouse.collect.models.pretrained import known_models, pretrained_model


@pytest.mark.parametrize("name", known_models())
def test_a_tiny_model_has_the_parts_of_its_published_ones(name: str) -> None:
    model = pretrained_model(name)
    tiny, published = ARCHITECTURES[model.architecture], model_architecture(name)

    assert (tiny.is_moe, tiny.has_latent_cache) == (published.is_moe, published.has_latent_cache)
    assert (tiny.first_dense_layers > 0) == (published.first_dense_layers > 0)
    assert ("n_shared_experts" in tiny.config) == ("n_shared_experts" in published.config)
    # Several query heads share a key, in the ones that do so.
    if not tiny.has_latent_cache and model.architecture != "llama":
        assert 1 < tiny.num_heads // tiny.num_kv_heads < tiny.num_heads


def test_an_unknown_model_is_answered_with_the_tiny_models_that_there_are() -> None:
    with pytest.raises(ExperimentError, match=f"known are {', '.join(ARCHITECTURES)} \\(tiny\\)"):
        model_architecture("gpt")
