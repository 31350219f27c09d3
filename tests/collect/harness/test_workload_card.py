from __future__ import annotations

from typing import Any

import pytest

from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.harness.workload_card import workload_card
from tracewarehouse.collect.parallel import attention_forms
from tracewarehouse.ingest.capture.card import WorkloadCard
from tracewarehouse.ingest.capture.manifest import ModelFacts
from tracewarehouse.ingest.tables.run_row import card_facts

FACTS = ModelFacts(name="llama-tiny", family="llama", num_layers=2, num_heads=8, num_params=10)


def recording(model: ModelFacts = FACTS, **known: Any) -> Recording:
    return Recording(model=model, phases=[], hosts=["host"], **known)


@pytest.mark.parametrize(
    ("fields", "degrees"),
    [
        ({"mesh": "tp=4"}, {"tp": 4}),
        ({"mesh": "dp=2,tp=2"}, {"dp_replicate": 2, "tp": 2}),
        ({"mesh": "tp=4", "sequence_parallelism": "megatron"}, {"tp": 4}),
        ({"mesh": "tp=4", "sequence_parallelism": "ulysses"}, {"cp": 4}),
        ({"mesh": "dp=2,tp=2", "sequence_parallelism": "ring"}, {"dp_replicate": 2, "cp": 2}),
        ({"mesh": "pp=2,tp=2"}, {"pp": 2, "tp": 2, "pp_mb": 2}),
        (
            {"mesh": "pp=2,tp=2", "hosts": 2, "backend": "torch_xla"},
            {"pp": 2, "tp": 2, "pp_mb": 4},
        ),  # the whole batch at once
        ({"mesh": "pp=2,dp=2,tp=2", "batch": 16}, {"pp": 2, "dp_replicate": 2, "tp": 2, "pp_mb": 4}),
        ({"mesh": "pp=2,tp=2", "batch": 16, "microbatches": 8}, {"pp": 2, "tp": 2, "pp_mb": 2}),
        ({"mesh": "dp=2,ep=2,tp=2", "model": "deepseek_v3"}, {"dp_replicate": 2, "ep": 2, "tp": 2}),
    ],
)
def test_the_degrees_multiply_to_the_devices(fields: dict[str, Any], degrees: dict[str, int]) -> None:
    spec = run_spec(**fields)

    card = workload_card(spec, recording(devices_per_host=spec.mesh.size // spec.hosts), "torch_xla", {})

    plan = card.model_executor.model_plan_parallelization.model_dump()
    assert plan == dict.fromkeys(("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "pp_mb"), 1) | degrees
    chips = card.workload.hardware.xpu_spec
    product = plan["dp_replicate"] * plan["tp"] * plan["pp"] * plan["cp"] * plan["ep"]
    assert (chips.total_count, chips.count_per_node) == (product, product // spec.hosts)


def test_what_ran_and_nothing_more() -> None:
    spec = run_spec(sequence_parallelism="ring", output_length=9)
    card = workload_card(spec, recording(), "torch_xla", {"libtpu": "0.0.21"})  # which is installed, and not used

    data = card.workload.data
    assert (data.batch_size, data.input_len, data.output_len, data.seq_len) == (4, 32, 9, 41)
    assert (card.workload.model.iteration, card.workload.model.phase, card.workload.model.moe) == (
        9,
        "inference",
        False,
    )
    assert data.dataset == "random tokens"
    assert "ring sequence parallelism" in card.description
    assert (card.hf_url, card.contributor, card.workload.hardware.driver_version) == ("", "", "")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": "llama"}, "random weights"),
        ({"model": "qwen3_moe", "backend": "torch_xla"}, "random weights, experts of capacity 1.25"),
        ({"model": "qwen3_moe", "backend": "jax"}, "random weights, experts as served"),
        ({"model": "qwen3_moe", "backend": "jax", "capacity_factor": 1.25}, "weights, experts of capacity 1.25"),
        ({"model": "qwen3_moe", "capacity_factor": "inf"}, "random weights, dropless experts"),
    ],
)
def test_it_says_what_experts_have_room_for(fields: dict[str, Any], said: str) -> None:
    assert workload_card(run_spec(**fields), recording(), "torch_xla", {}).description.endswith(said)


def test_a_published_model_on_a_tpu() -> None:
    spec = run_spec(model="Qwen/Qwen3-4B", mesh="tp=8", device="tpu", dtype="bfloat16")
    facts = ModelFacts(name="Qwen3-4B", hf_url="https://huggingface.co/Qwen/Qwen3-4B")
    known = recording(facts, chip="TPU v6e", devices_per_host=8, prompt_source="text")

    environment = {"PJRT_DEVICE": "TPU", "LIBTPU_INIT_ARGS": "--x=1", "HF_TOKEN": "secret", "HOME": "/home/me"}

    card = workload_card(spec, known, "other_stack", {"other_stack": "1.2", "libtpu": "0.0.21"}, environment)

    assert card.hf_url == "https://huggingface.co/Qwen/Qwen3-4B"
    hardware = card.workload.hardware
    assert hardware.xpu_spec.model_dump() == {"type": "TPU", "model": "tpu_v6e", "total_count": 8, "count_per_node": 8}
    assert hardware.network_topo.topology == "mesh-2x4"
    # within the slice, in both directions: Google publishes 800 GB/s
    assert hardware.network_topo.bandwidth_gbps == ["", 8 * 800]
    assert hardware.driver_version == "libtpu_0.0.21"
    assert card.workload.model.precision == "bf16"
    assert card.model_executor.framework.name == "other_stack"
    assert card.model_executor.communication_library.version == "1.2"
    assert card.model_executor.communication_library.name == "xla"
    assert card.model_executor.communication_library.env == {"PJRT_DEVICE": "TPU", "LIBTPU_INIT_ARGS": "--x=1"}
    assert card.model_executor.protocol_selection == ["xla_collectives", "ici"]
    assert card.workload.model.model_family == "qwen3-4b"


def test_the_words_for_torch_xla_and_for_virtual_devices() -> None:
    card = workload_card(run_spec(), recording(), "torch_xla", {})

    assert (card.model_executor.framework.name, card.model_executor.framework.compiler_tool_selection) == (
        "torchxla",
        "xla",
    )
    assert card.workload.hardware.network_topo.topology == ""
    assert card.model_executor.communication_library.env == ""


@pytest.mark.parametrize(
    ("plan", "batch", "microbatches"),
    [
        ({"pp": 1, "pp_mb": 1}, 8, 1),
        ({"pp": 2, "pp_mb": 2}, 8, 4),
        ({"pp": 2, "dp_replicate": 2, "pp_mb": 1}, 8, 4),
        ({"pp": 2, "dp_replicate": 2, "ep": 2, "pp_mb": 2}, 8, 1),
        ({"pp": 2}, 8, None),
        ({"pp": 2, "pp_mb": 2}, "", None),
        ({"pp": 2, "pp_mb": 16}, 8, None),
    ],
)
def test_ingest_counts_microbatches_from_their_size(
    plan: dict[str, int], batch: int | str, microbatches: int | None
) -> None:
    card = WorkloadCard.model_validate(
        {"workload": {"data": {"batch_size": batch}}, "Model-executor": {"model_plan_parallelization": plan}}
    )

    assert card_facts(card).get("microbatches") == microbatches


def test_the_card_names_the_attention_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_forms, "find_spec", lambda name: name)
    fields = {"model": "Qwen/Qwen3-4B", "mesh": "tp=4", "input_length": 128}
    on_tpu = workload_card(run_spec(**fields, device="tpu"), recording(), "torch_xla", {})
    assert on_tpu.description.endswith("published weights, flash attention in prefill, paged attention in decode")
    assert workload_card(run_spec(**fields), recording(), "torch_xla", {}).description.endswith("published weights")


def test_the_chip_of_a_backend_of_another_package_is_no_virtual_device() -> None:
    card = workload_card(run_spec(mesh="tp=1"), recording(chip="NVIDIA H200"), "mine", {})

    chips = card.workload.hardware.xpu_spec
    assert (chips.type or None, chips.model) == (None, "nvidia_h200")
