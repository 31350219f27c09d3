"""Runs of the real harness, each in a process of its own, forked from one that has imported torch_xla."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracewarehouse as tw
from tests.captured_collectives import assert_as_promised, collectives
from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.card import load_card
from tracewarehouse.ingest.capture.manifest import load_manifest

if importlib.util.find_spec("torch_xla") is None:
    pytest.skip("torch_xla is not installed: pip install 'tracewarehouse[collect]'", allow_module_level=True)

SMALL = {"batch": 2, "input_length": 8, "output_length": 4, "backend": "torch_xla"}


@pytest.fixture
def record(torch_processes: TorchProcesses, tmp_path: Path) -> Callable[[RunSpec], Path]:
    """Records a run; gives the capture directory."""

    return lambda spec: torch_processes.record(spec, tmp_path)


def test_llama_over_tp(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    capture = record(run_spec(mesh="tp=2", **SMALL))

    manifest = load_manifest(capture / "manifest.json")
    assert manifest.checks["tokens_equal"] is True
    assert manifest.checks["compiles_in_capture"] == 0
    assert manifest.checks["profiling_overhead"] > 0
    assert [(p.name, p.step) for p in manifest.phases] == [("prefill", 0)] + [("decode", i) for i in (1, 2, 3)]
    assert all(p.start_ns < p.end_ns for p in manifest.phases)
    files = list(capture.glob("plugins/profile/*/*.xplane.pb"))
    assert [f.name for f in files] == [f"{h}.xplane.pb" for h in manifest.hosts]
    card = load_card(capture / "card.yaml")
    assert card.model_executor.model_plan_parallelization.tp == 2
    assert card.workload.model.model_arch.num_params == manifest.model.num_params

    # Each layer ends attention and MLP in an all-reduce; 2 layers, 2 devices, 4 steps.
    rows = collectives(capture, tmp_path / "warehouse")
    assert_as_promised(capture, rows)
    reduces = [c for c in rows if c["kind"] == "all-reduce"]
    assert {(c["axis"], c["group_size"]) for c in reduces} == {("tp", 2)}
    assert len(reduces) == 2 * 2 * 2 * 4
    assert {c["step"] for c in reduces} == {0, 1, 2, 3}


def test_deepseek_pipeline_of_unlike_stages(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    """The richest program: stages, expert groups, latent attention, and a dense layer that only the first stage has."""
    size = {"layers": 4, "batch": 4, "input_length": 8, "output_length": 2, "backend": "torch_xla"}
    capture = record(run_spec(model="deepseek_v3", mesh="pp=2,ep=2", capacity_factor="inf", **size))

    checks = load_manifest(capture / "manifest.json").checks
    assert (checks["tokens_equal"], checks["comparable_share"], checks["dropped_pairs"]) == (True, 1.0, 0)
    rows = collectives(capture, tmp_path / "warehouse")
    # 3 ticks of 2 slots with experts, each with an all-to-all there and one back; 4 devices, 2 steps.
    assert sum((c["kind"], c["axis"]) == ("all-to-all", "ep") for c in rows) == 3 * 2 * 2 * 4 * 2
    assert_as_promised(capture, rows)
    # Layer 0 is dense, 1 follows it on stage 0; 2 and 3 are on stage 1. Either stage has no layer in one of the slots.
    with tw.open(tmp_path / "warehouse") as warehouse:
        found = warehouse.query(
            "SELECT DISTINCT stage, stage_layer, layer, part FROM models.op_layers "
            "WHERE part IN ('mlp', 'moe') AND stage_layer IS NOT NULL ORDER BY ALL"
        ).rows()
    assert found == [
        (0, 0, 0, "mlp"),
        (0, 1, 1, "moe"),
        (0, 2, None, "moe"),
        (1, 0, None, "mlp"),
        (1, 1, 2, "moe"),
        (1, 2, 3, "moe"),
    ]


def test_unlike_stages_with_a_program_each(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    size = {"layers": 4, "batch": 2, "input_length": 8, "output_length": 2, "backend": "torch_xla"}
    spec = run_spec(model="deepseek_v2", mesh="pp=2,tp=2", hosts=2, capacity_factor="inf", **size)
    capture = record(spec)

    checks = load_manifest(capture / "manifest.json").checks
    assert (checks["tokens_equal"], checks["comparable_share"], checks["dropped_pairs"]) == (True, 1.0, 0)
    rows = collectives(capture, tmp_path / "warehouse")
    # On stage 0 a dense layer (2) and one of experts (3), on stage 1 two of experts; 2 devices a stage, 2 steps.
    assert sum(c["kind"] == "all-reduce" for c in rows) == (2 + 3 + 3 + 3) * 2 * 2


def test_experts_exchange_and_reduce_no_more_than_their_places(
    record: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    size = {"batch": 4, "input_length": 32, "output_length": 2, "backend": "torch_xla"}
    capture = record(run_spec(model="deepseek_v2", mesh="ep=4,tp=2", **size))

    manifest = load_manifest(capture / "manifest.json")
    # One layer of experts; 32 tokens and then one of each of the 4 sequences, each for 2 experts.
    assert manifest.checks["routed_pairs"] == 4 * 33 * 2
    assert 0 < manifest.checks["dropped_pairs"] < 4 * 33 * 2 / 4
    # Sequences that lost nothing agree with the reference, which drops nothing.
    assert manifest.checks["tokens_equal"] is (True if manifest.checks["comparable_share"] else None)
    assert manifest.model_extra is not None
    assert manifest.model_extra["expert_places"] == {
        "prefill": {"per_device": 20, "received": 80, "per_expert": 40},
        "decode": {"per_device": 1, "received": 4, "per_expert": 4},
    }
    rows = collectives(capture, tmp_path / "warehouse")
    assert_as_promised(capture, rows)
    for phase, tokens, places in (("prefill", 32, 20), ("decode", 1, 1)):
        exchanged = {c["message_bytes"] for c in rows if (c["phase"], c["kind"]) == (phase, "all-to-all")}
        # Of float32: the hidden states, 128 wide, with the weights of 2 experts there, and with a count back.
        assert exchanged == {4 * places * (128 + 2) * 4, 4 * places * (128 + 1) * 4}
        reduced = {c["message_bytes"] for c in rows if (c["phase"], c["kind"]) == (phase, "all-reduce")}
        # The routed experts, once per token; all others are of whole blocks.
        assert reduced == {tokens * 128 * 4, tokens * (128 + 1) * 4}


@pytest.mark.parametrize(
    ("fields", "kind", "count"),
    [
        # Query, key, value and output of each of the 2 layers, on 2 devices.
        ({"mesh": "tp=2", "sequence_parallelism": "ulysses"}, "all-to-all", 4 * 2 * 2),
        # 3 ticks of 1 layer, whose attention and MLP end in a reduce-scatter; 4 devices.
        ({"mesh": "pp=2,tp=2", "sequence_parallelism": "megatron"}, "reduce-scatter", 3 * 2 * 4),
    ],
    ids=["ulysses", "megatron in a pipeline"],
)
def test_a_split_sequence(
    record: Callable[[RunSpec], Path], tmp_path: Path, fields: dict[str, Any], kind: str, count: int
) -> None:
    capture = record(run_spec(**fields, **SMALL))

    assert load_manifest(capture / "manifest.json").checks["tokens_equal"] is True
    rows = collectives(capture, tmp_path / "warehouse")
    exchanges = [c for c in rows if (c["kind"], c["axis"], c["step"]) == (kind, "tp", 0)]
    assert len(exchanges) == count
    assert_as_promised(capture, rows)


def test_ring_attention_over_two_hosts(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    spec = run_spec(model="qwen3", mesh="pp=2,tp=2", sequence_parallelism="ring", hosts=2, **SMALL)
    capture = record(spec)

    manifest = load_manifest(capture / "manifest.json")
    host = manifest.hosts[0].removesuffix("_0")
    assert manifest.hosts == [f"{host}_{stage}" for stage in (0, 1)]
    assert manifest.checks["tokens_equal"] is True
    assert [p.step for p in manifest.phases] == [0, 1, 2, 3]
    assert sorted(f.name for f in capture.rglob("*.xplane.pb")) == [f"{h}.xplane.pb" for h in manifest.hosts]
    assert sorted(f.name for f in capture.iterdir()) == ["card.yaml", "manifest.json", "plugins"]
    rows = collectives(capture, tmp_path / "warehouse")
    assert {c["axis"] for c in rows} == {"tp"}
    # Each host has one layer on two devices: keys and values go one device on, and once into the cache.
    prefill = [c for c in rows if c["phase"] == "prefill"]
    assert sum(c["kind"] == "collective-permute" for c in prefill) == 2 * 4
    assert sum(c["kind"] == "all-to-all" for c in prefill) == 2 * 4
    # The last position comes to both devices of the last host only.
    assert {c["device_id"] for c in prefill if c["kind"] == "all-reduce"} == {2, 3}
