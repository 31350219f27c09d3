from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from collect.errors import CollectError, ExperimentError
from collect.experiment import RunSpec, run_spec
from collect.models import build_model
from collect.pretrained import chip_memory, known_models, memory_need, pretrained_model, require_memory

LLAMA = "meta-llama/Llama-3.1-8B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3.1-Base"


def published(model: str, mesh: str, **fields: Any) -> RunSpec:
    return run_spec(**{"model": model, "mesh": mesh, "device": "tpu", "dtype": "bfloat16", **fields})


@pytest.mark.parametrize("name", known_models())
def test_parameters_follow_from_the_configuration(name: str) -> None:
    model = pretrained_model(name)

    assert model.count_parameters() == model.parameters
    assert model.source.startswith(f"https://huggingface.co/{name}")


@pytest.mark.parametrize("name", known_models())
def test_weights_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from collect.models import architecture_of

    model, architecture = pretrained_model(name), architecture_of(name)
    layers = model.first_dense_layers + 1
    config = getattr(transformers, architecture.config_class)(**{**model.config, "num_hidden_layers": layers})
    with torch.device("meta"):
        theirs = {
            n: tuple(p.shape) for n, p in getattr(transformers, architecture.model_class)(config).named_parameters()
        }

    ours = dict(model.other_weights())
    for layer in range(layers):
        ours |= model.layer_weights(layer)
    for prefix in [n.removesuffix("gate_proj") for n in ours if n.endswith("experts.gate_proj")]:
        experts, width, hidden = ours.pop(f"{prefix}gate_proj")
        del ours[f"{prefix}up_proj"]
        ours[f"{prefix}gate_up_proj"] = (experts, 2 * width, hidden)  # the collector stores them apart
    assert ours == theirs


def test_memory_worked_by_hand() -> None:
    need = memory_need(pretrained_model(LLAMA), published(LLAMA, "tp=8", batch=8, input_length=100, output_length=28))

    # One layer: q, o 4096 x 4096; k, v 1024 x 4096; three of 14336 x 4096; all over 8. Two norms on every chip.
    layer = (2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096) // 8 + 2 * 4096
    # The embedding is on every chip, the head over 8.
    assert need.weights == 2 * (32 * layer + 128256 * 4096 + 4096 + 128256 * 4096 // 8)
    # 32 layers, 8 sequences, 128 tokens, keys and values of one head of 128, bfloat16
    assert need.cache == 32 * 8 * 128 * 2 * 128 * 2
    assert need.total == need.weights + need.cache + need.temporaries


def test_latents_are_cached_whole_on_every_chip_of_a_tp_group() -> None:
    one, eight = (
        memory_need(pretrained_model(DEEPSEEK), published(DEEPSEEK, f"ep=4,tp={tp}", batch=4)).cache for tp in (2, 8)
    )

    assert one == eight == 61 * 1 * 49 * (512 + 64) * 2


@pytest.mark.parametrize(("mesh", "parts"), [("dp=2", 1), ("ep=2", 2), ("tp=2", 2)])
def test_experts_are_split_over_ep_and_tp_and_copied_over_dp(mesh: str, parts: int) -> None:
    model = pretrained_model("Qwen/Qwen3-30B-A3B")
    whole, split = (memory_need(model, published("Qwen/Qwen3-30B-A3B", m)).weights for m in ("tp=1", mesh))

    experts = 48 * 128 * 3 * 768 * 2048 * 2
    assert whole - split >= experts - experts // parts
    if mesh != "tp=2":
        assert whole - split == experts - experts // parts


def test_pipeline_stages_hold_their_layers() -> None:
    model = pretrained_model(LLAMA)
    one, two = (memory_need(model, published(LLAMA, mesh)) for mesh in ("tp=1", "pp=2"))

    assert one.cache == 2 * two.cache
    assert one.weights - two.weights == 16 * 2 * (2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096)


def test_a_run_that_does_not_fit_is_refused_with_the_numbers() -> None:
    spec = published(DEEPSEEK, "ep=8,tp=4", batch=8)

    with pytest.raises(ExperimentError, match=r"needs 52\.\d+ GB \(weights 52.* per chip, and a TPU v4 chip has 32 GB"):
        require_memory(spec, "TPU v4")
    assert require_memory(published(DEEPSEEK, "ep=8,tp=8", batch=8), "TPU v6e").weights < 29e9


def test_memory_of_chips() -> None:
    assert [chip_memory(f"TPU {v}") for v in ("v4", "v5e", "v6e")] == [32 * 10**9, 16 * 10**9, 32 * 10**9]
    with pytest.raises(CollectError, match="'TPU v9' is not known; known are TPU v4"):
        chip_memory("TPU v9")


def test_an_unknown_id_lists_what_is_known_and_how_to_add_one() -> None:
    with pytest.raises(ExperimentError) as error:
        run_spec(model="deepseek-ai/DeepSeek-4.1", mesh="tp=4", device="tpu")

    message = str(error.value)
    assert "model: 'deepseek-ai/DeepSeek-4.1' is not known" in message
    assert all(name in message for name in [*known_models(), "deepseek_v3", "models.yaml", "config.json"])


def test_a_model_can_be_added(tmp_path: Path) -> None:
    table = tmp_path / "models.yaml"
    table.write_text(
        "models: {me/mine: {architecture: llama, source: here, config: {hidden_size: 8, num_hidden_layers: 1, "
        "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 16, vocab_size: 10, "
        "tie_word_embeddings: true}}}"
    )

    assert pretrained_model("me/mine", table).count_parameters() == 80 + 8 + 2 * 64 + 2 * 32 + 3 * 128 + 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be read as a table"),
        ("models: {a/b: {architecture: gpt9, source: x, config: {}}}", "a/b: .*'gpt9' is not known; known are llama"),
        ("models: {a/b: {architecture: llama, source: x, config: {hidden_size: 1}}}", "num_hidden_layers.* is missing"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "models.yaml"
    table.write_text(text)

    with pytest.raises(CollectError, match=message):
        known_models(table)


def test_a_published_model_has_its_own_layers_and_name() -> None:
    spec = published(DEEPSEEK, "ep=8,tp=8", batch=8)

    assert spec.layers == 61
    assert spec.name == "DeepSeek-V3.1-Base-ep8tp8-b8-i32-o17-l61-bfloat16-tpu"
    assert published(DEEPSEEK, "ep=8,tp=8", batch=8, layers=61).digest == spec.digest
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "cpu"}, "device: .* needs device: tpu"),
        ({"layers": 62}, "layers: .* has 61, not 62"),
        ({"mesh": "pp=61", "batch": 61}, "begins with dense layers"),
        ({"mesh": "ep=3"}, "ep=3 does not divide the 256 experts"),
    ],
)
def test_what_a_published_model_cannot_do(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        published(DEEPSEEK, **{"mesh": "tp=4", **fields})


def test_recording_with_published_weights_says_that_it_is_not_possible() -> None:
    with pytest.raises(CollectError, match="not possible yet"):
        build_model(published(LLAMA, "tp=8"))
