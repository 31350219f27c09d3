from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.collect.errors import CollectError, ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.subject import reference_layers
from tracewarehouse.collect.memory import (
    available_memory,
    chip_memory,
    installed_memory,
    memory_need,
    reference_bytes,
    require_host_memory,
    require_memory,
)
from tracewarehouse.collect.models.checkpoint import hub_cache, model_folder
from tracewarehouse.collect.models.pretrained import known_models, pretrained_model
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.runner import require_fit
from tracewarehouse.collect.tpu.quota import accelerator_type

LLAMA = "meta-llama/Llama-3.1-8B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3.1-Base"


def published(model: str, mesh: str, **fields: Any) -> RunSpec:
    return run_spec(**{"model": model, "mesh": mesh, "device": "tpu", "dtype": "bfloat16", **fields})


@pytest.mark.parametrize("name", known_models())
def test_parameters_follow_from_the_configuration(name: str) -> None:
    model = pretrained_model(name)

    assert model.count_parameters(model.num_layers) == model.parameters
    assert model.source.startswith(f"https://huggingface.co/{name}")
    assert model.checked


@pytest.mark.parametrize("name", known_models())
def test_weights_are_those_of_transformers(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tracewarehouse.collect.models.architectures import model_architecture

    model, architecture = pretrained_model(name), model_architecture(name)
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


V2_LITE = "deepseek-ai/DeepSeek-V2-Lite"
# Parameters on one chip. Attention of DeepSeek: q (or q_a, its norm, q_b), kv_a, its norm, kv_b, o. Two norms a layer.
V2_ATTENTION = 16 * 192 * 2048 + 576 * 2048 + 512 + 16 * 256 * 512 + 2048 * 2048 + 2 * 2048
V2_EXPERTS = 64 * 3 * 1408 * 2048
V2_SPARSE = 64 * 2048 + 3 * 2 * 1408 * 2048  # router and two shared experts
V3_ATTENTION = (128 * 192 * 1536 + 128 * 256 * 512 + 7168 * 128 * 128) // 4 + 1536 * 7168 + 1536 + 576 * 7168 + 512
V3_EXPERTS = 256 * 3 * 2048 * 7168
BY_HAND = {
    (LLAMA, "tp=4"): 32 * ((2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096) // 4 + 2 * 4096)
    + (128256 + 128256 // 4 + 1) * 4096,
    ("meta-llama/Llama-3.1-70B", "tp=8"): 80 * ((2 * 8192**2 + 2 * 1024 * 8192 + 3 * 28672 * 8192) // 8 + 2 * 8192)
    + (128256 + 128256 // 8 + 1) * 8192,
    # Biases of query, key and value are whole on every chip.
    ("Qwen/Qwen2.5-32B", "tp=8"): 64
    * ((2 * 5120**2 + 2 * 1024 * 5120 + 3 * 27648 * 5120) // 8 + 5120 + 2 * 1024 + 2 * 5120)
    + (152064 + 152064 // 8 + 1) * 5120,
    # 64 heads of 128 are wider than the model; norms of query and key.
    ("Qwen/Qwen3-32B", "tp=8"): 64 * ((2 * 8192 * 5120 + 2 * 1024 * 5120 + 3 * 25600 * 5120) // 8 + 2 * 128 + 2 * 5120)
    + (151936 + 151936 // 8 + 1) * 5120,
    # The head is the embedding, which is whole; dp holds copies.
    ("Qwen/Qwen3-4B", "dp=2,tp=2"): 36
    * ((2 * 4096 * 2560 + 2 * 1024 * 2560 + 3 * 9728 * 2560) // 2 + 2 * 128 + 2 * 2560)
    + (151936 + 1) * 2560,
    ("Qwen/Qwen3-30B-A3B", "ep=4,tp=2"): 48
    * ((2 * 4096 * 2048 + 2 * 512 * 2048) // 2 + 2 * 128 + 2 * 2048 + 128 * 2048 + 128 // 4 * 3 * 768 * 2048 // 2)
    + (151936 + 151936 // 2 + 1) * 2048,
    (V2_LITE, "ep=4"): 27 * V2_ATTENTION
    + 3 * 10944 * 2048
    + 26 * (V2_SPARSE + V2_EXPERTS // 4)
    + (2 * 102400 + 1) * 2048,
    # 14 slots: the dense layer's, which the second stage fills with zeros, and 13 with experts.
    (V2_LITE, "pp=2,ep=4"): 14 * V2_ATTENTION
    + 3 * 10944 * 2048
    + 13 * (V2_SPARSE + V2_EXPERTS // 4)
    + (2 * 102400 + 1) * 2048,
    (DEEPSEEK, "ep=16,tp=4"): 61 * (V3_ATTENTION + 2 * 7168)
    + 3 * 3 * 18432 * 7168 // 4
    + 58 * (256 * 7168 + 3 * 2048 * 7168 // 4 + V3_EXPERTS // 64)
    + (129280 + 129280 // 4 + 1) * 7168,
    # 32 slots: three dense ones, and 29 with experts.
    (DEEPSEEK, "pp=2,ep=8,tp=4"): 32 * (V3_ATTENTION + 2 * 7168)
    + 3 * 3 * 18432 * 7168 // 4
    + 29 * (256 * 7168 + 3 * 2048 * 7168 // 4 + V3_EXPERTS // 32)
    + (129280 + 129280 // 4 + 1) * 7168,
}


@pytest.mark.parametrize(("model", "mesh"), BY_HAND, ids=lambda value: value.rpartition("/")[2])
def test_weights_on_a_chip_worked_by_hand(model: str, mesh: str) -> None:
    assert memory_need(pretrained_model(model), published(model, mesh, batch=16)).weights == 2 * BY_HAND[model, mesh]


def test_with_more_chips_than_key_value_heads_each_has_one_head() -> None:
    spec = published(LLAMA, "tp=16", batch=16, input_length=100, output_length=28, backend="jax")
    need = memory_need(pretrained_model(LLAMA), spec)
    layer = (2 * 4096**2 + 3 * 14336 * 4096) // 16 + 2 * 128 * 4096 + 2 * 4096
    assert need.weights == 2 * (32 * layer + (128256 + 128256 // 16 + 1) * 4096)
    assert need.cache == 32 * 16 * 128 * 2 * 128 * 2


def test_ulysses_holds_whole_layers_on_every_chip() -> None:
    spec = published(LLAMA, "tp=16", batch=16, input_length=128, sequence_parallelism="ulysses", backend="jax")
    layer = 2 * 4096**2 + 2 * 1024 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    weights = 2 * (32 * layer + (128256 + 128256 // 16 + 1) * 4096)
    assert memory_need(pretrained_model(LLAMA), spec).weights == weights


def test_every_published_model_is_worked_by_hand() -> None:
    assert {model for model, _ in BY_HAND} == set(known_models())


@pytest.mark.parametrize(
    ("model", "mesh", "expected"),
    [
        # 32 layers, 8 sequences, 128 tokens, keys and values of one head of 128, bfloat16.
        (LLAMA, "tp=8", 32 * 8 * 128 * 2 * 128 * 2),
        # Half of the layers on each stage, two heads on each of its chips.
        (LLAMA, "pp=2,tp=4", 16 * 8 * 128 * 2 * 2 * 128 * 2),
        # One latent for all heads, whole on every chip of a tp group.
        (DEEPSEEK, "ep=4,tp=2", 61 * 2 * 128 * (512 + 64) * 2),
        (DEEPSEEK, "ep=4,tp=8", 61 * 2 * 128 * (512 + 64) * 2),
    ],
)
def test_the_cache_of_a_chip_worked_by_hand(model: str, mesh: str, expected: int) -> None:
    need = memory_need(pretrained_model(model), published(model, mesh, batch=8, input_length=100, output_length=28))

    assert need.cache == expected
    assert need.total == need.weights + need.cache + need.temporaries


@pytest.mark.parametrize(
    ("model", "mesh", "chip", "fits"),
    [
        # Weights alone, in GB: 16.1; 8.9 a chip.
        (LLAMA, "tp=1", "TPU v5e", False),
        (LLAMA, "tp=2", "TPU v5e", True),
        # 36.7; 19.5.
        ("meta-llama/Llama-3.1-70B", "tp=4", "TPU v6e", False),
        ("meta-llama/Llama-3.1-70B", "tp=8", "TPU v4", True),
        # 17.0; 9.8.
        (V2_LITE, "ep=2", "TPU v5e", False),
        (V2_LITE, "ep=4", "TPU v5e", True),
        # The experts of 58 layers are 1307 GB: 40.9 on each of 32 chips, 20.4 on each of 64.
        (DEEPSEEK, "ep=8,tp=4", "TPU v6e", False),
        (DEEPSEEK, "ep=8,tp=8", "TPU v6e", True),
    ],
)
def test_what_cannot_fit_is_refused_and_what_can_passes(model: str, mesh: str, chip: str, fits: bool) -> None:
    spec = published(model, mesh, batch=16, input_length=64, output_length=17)
    if fits:
        assert require_memory(spec, chip).total <= 0.95 * chip_memory(chip)
    else:
        with pytest.raises(ExperimentError, match=rf"needs [\d.]+ GB \(weights .* per chip, and a {chip} chip has"):
            require_memory(spec, chip)


def test_memory_of_chips() -> None:
    assert [chip_memory(f"TPU {v}") for v in ("v4", "v5e", "v6e")] == [32 * 10**9, 16 * 10**9, 32 * 10**9]
    with pytest.raises(CollectError, match="'TPU v9' is not known; known are TPU v4"):
        chip_memory("TPU v9")


def test_an_unknown_id_lists_what_is_known_and_how_to_add_one() -> None:
    with pytest.raises(ExperimentError) as error:
        run_spec(model="deepseek-ai/DeepSeek-4.1", mesh="tp=4", device="tpu")

    message = str(error.value)
    assert "model: 'deepseek-ai/DeepSeek-4.1' is not known" in message
    assert all(
        name in message
        for name in [*known_models(), "deepseek_v3", "published.yaml", "config.json", "TRACEWAREHOUSE_MODELS"]
    )


def test_a_model_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "models.yaml"
    table.write_text(
        "models: {me/mine: {architecture: llama, source: here, config: {hidden_size: 8, num_hidden_layers: 1, "
        "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 16, vocab_size: 10, "
        "tie_word_embeddings: true}}}"
    )

    monkeypatch.setenv("TRACEWAREHOUSE_MODELS", str(table))

    assert pretrained_model("me/mine").count_parameters(1) == 80 + 8 + 2 * 64 + 2 * 32 + 3 * 128 + 16
    assert run_spec(model="me/mine", mesh="tp=1").name == "mine-single-b4-i32-o17-l1-jax"
    assert LLAMA in known_models()


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
    assert spec.name == "DeepSeek-V3.1-Base-ep8tp8-b8-i32-o17-l61-tpu-jax"
    assert published(DEEPSEEK, "ep=8,tp=8", batch=8, layers=61).digest == spec.digest
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"hosts": 2, "mesh": "pp=2", "device": "cpu", "backend": "torch_xla"},
            "hosts: a process for each stage is for tiny models",
        ),
        ({"layers": 62}, "layers: .* has 61, not 62"),
        ({"mesh": "pp=61", "batch": 61}, "3 dense layers, which are the first stage's, and 58 of experts"),
        ({"mesh": "ep=3"}, "ep=3 does not divide the 256 experts"),
    ],
)
def test_what_a_published_model_cannot_do(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        published(DEEPSEEK, **{"mesh": "tp=4", **fields})


def test_virtual_devices_must_fit_into_the_host() -> None:
    spec = run_spec(model="Qwen/Qwen3-4B", mesh="dp=2,tp=2", dtype="bfloat16")
    need = memory_need(pretrained_model(spec.model), spec)
    # While it loads: the embedding, once for every device.
    total = 4 * need.total + 4 * 151936 * 2560 * 2

    with pytest.raises(
        ExperimentError, match=r"needs .* per device, .* for its 4 virtual devices with 3\.11 GB to load"
    ):
        require_host_memory(spec, total)  # not all of it can be used
    assert require_host_memory(spec, total * 20 // 19 + 1) == need


def test_the_largest_model_is_refused_on_any_laptop() -> None:
    with pytest.raises(ExperimentError, match=r"virtual devices with .* this host can give \d+\.\d+ GB"):
        require_fit(run_spec(model=DEEPSEEK, mesh="tp=4"))
    assert require_fit(run_spec()) is None


def test_what_the_host_can_give_is_bounded_by_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = available_memory()
    assert 10**8 < whole <= installed_memory() < 10**14
    (tmp_path / "memory.current").write_text("30000000\n")
    (tmp_path / "memory.max").write_text("100000000\n")
    monkeypatch.setattr("tracewarehouse.collect.memory.CGROUP", tmp_path)

    assert available_memory() == 70000000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory() > 10**8


@pytest.mark.parametrize(("told", "refused"), [("v5litepod-4", True), ("v6e-256", False), ("v9-4", False)])
def test_the_chips_of_a_tpu_host_are_known(told: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", told)
    spec = published(LLAMA, "tp=1")  # 16.2 GB

    if refused:
        with pytest.raises(ExperimentError, match="and a TPU v5e chip has 16 GB"):
            require_fit(spec)
    else:
        assert require_fit(spec) == memory_need(pretrained_model(LLAMA), spec)


def test_elsewhere_no_accelerator_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.setattr("tracewarehouse.collect.tpu.quota.METADATA", "http://127.0.0.1:9/nothing")

    assert accelerator_type() == ""


def test_as_many_layers_as_fit_are_compared_in_plain_torch() -> None:
    spec = published(DEEPSEEK, "ep=8,tp=8", batch=8)
    model = pretrained_model(DEEPSEEK)
    whole, part = (reference_bytes(model, spec, layers) for layers in (61, 4))

    # Three dense layers and the first of experts; the whole in bfloat16 is 1.3 TB.
    assert whole > 1.3e12 > 4e10 > part
    assert [reference_layers(spec, n * 20 // 19 + 1) for n in (whole, whole - 10**9, part, part - 10**9)] == [
        61,
        4,
        4,
        0,
    ]
    assert reference_layers(published(LLAMA, "pp=2,tp=4"), 10**10) == 2


CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 100,
}


def write_config(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**CONFIG, **fields}.items() if v != "absent"}))
    return folder


def test_a_local_folder_is_a_model(tmp_path: Path) -> None:
    folder = write_config(tmp_path / "my model", head_dim=None)

    spec = run_spec(model=str(folder), mesh="tp=2")

    assert (spec.layers, spec.name) == (3, "my-model-tp2-b4-i32-o17-l3-jax")
    assert pretrained_model(str(folder)).config["head_dim"] == 16
    assert model_folder(str(folder)) == folder
    with pytest.raises(ExperimentError, match="tp=3 does not divide the 4 attention heads"):
        run_spec(model=str(folder), mesh="tp=3")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt9"}, "model_type 'gpt9' is not known; known are llama"),
        ({"vocab_size": "absent"}, r"config\.json: config: vocab_size is missing"),
        ({"attention_bias": True}, "attention_bias is True; the collector builds only False"),
        ({"model_type": "absent"}, r"config\.json: is no configuration of a model: it has no model_type"),
        ({"model_type": ["llama"]}, "it has no model_type"),
    ],
)
def test_a_folder_of_a_model_that_cannot_be_built(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = write_config(tmp_path / "model", **fields)

    with pytest.raises(ExperimentError, match=message):
        run_spec(model=str(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json: cannot be read as JSON: Expecting property name"),
        ("[]", r"config\.json: is no configuration of a model"),
    ],
)
def test_a_folder_whose_configuration_is_broken(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(ExperimentError, match=message):
        run_spec(model=str(tmp_path))


def test_an_id_is_found_in_the_cache_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CollectError, match=f"not in the hub's cache {tmp_path}; run `hf download Qwen/Qwen3-4B`"):
        model_folder("Qwen/Qwen3-4B")
    snapshots = tmp_path / "models--Qwen--Qwen3-4B" / "snapshots"
    own = {"model_type": "qwen3", **pretrained_model("Qwen/Qwen3-4B").config}
    old, new = (write_config(snapshots / name, **own) for name in ("new", "old"))
    os.utime(old / "config.json", (1, 1))

    assert model_folder("Qwen/Qwen3-4B") == new
    (new / "config.json").write_text(json.dumps({**CONFIG, **own, "num_hidden_layers": 35}))
    with pytest.raises(CollectError, match=r"is not the Qwen/Qwen3-4B of the table.*num_hidden_layers is 35, not 36"):
        model_folder("Qwen/Qwen3-4B")


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({"HOME": "/d"}, "/d/.cache/huggingface/hub"),
    ],
)
def test_where_the_cache_of_the_hub_is(variables: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert hub_cache() == Path(place)


def test_a_prompt_is_for_a_tokenizer() -> None:
    with pytest.raises(ExperimentError, match="prompt: llama is a tiny model, which has no tokenizer"):
        run_spec(prompt="hello")
    one, other = (published(LLAMA, "tp=8", prompt=text) for text in ("hello", "world"))
    assert one.name != other.name
    assert published(LLAMA, "tp=8").digest not in (one.digest, other.digest)
