"""The JAX backend beside torch_xla's: equal workloads give equal tokens and the same collectives.

A run is recorded in a process of its own, forked from one that has imported JAX.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracewarehouse as tw
from tests.captured_collectives import collectives
from tests.collect.torch_processes import RECORD, TorchProcesses
from tests.published_checkpoint import write_checkpoint
from tests.running_processes import running, wait_until
from tracewarehouse.cli.collect import capture_faults
from tracewarehouse.collect.checks.promises import expert_places
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.parallel.expert_places import Routing
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.card import load_card
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.warehouse import Warehouse

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed: pip install 'tracewarehouse[jax]'", allow_module_level=True)

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
TORCH_XLA = ("deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5")


@pytest.fixture
def record(jax_processes: TorchProcesses, tmp_path: Path) -> Callable[[RunSpec], Path]:
    """Records a run and looks for what the capture lacks; gives the capture directory."""

    def recorded(spec: RunSpec) -> Path:
        capture = jax_processes.record(spec, tmp_path)
        assert capture_faults(capture) == []
        return capture

    return recorded


def traffic(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    """Bytes of all messages by step, kind and axis of the first device; XLA may join two of them in one instruction."""
    found: Counter[Any] = Counter()
    for row in rows:
        if row["device_id"] == 0:
            found[row["step"], row["kind"], row["axis"]] += row["message_bytes"]
    return found


def smallest_lead(spec: RunSpec) -> float:
    """The smallest difference of the two largest logits of the reference: within rounding, either may win."""
    from tracewarehouse.collect.harness.subject import tiny_subject

    expected = tiny_subject(spec).reference.expected
    assert expected is not None
    largest = np.sort(expected.logits, -1)
    return float((largest[..., -1] - largest[..., -2]).min())


@pytest.mark.parametrize("name", TORCH_XLA)
def test_equal_workloads_under_torch_xla_and_jax(
    record: Callable[[RunSpec], Path], all_captures: Warehouse, tmp_path: Path, name: str
) -> None:
    there = load_manifest(CAPTURES / name / "manifest.json")
    spec = RunSpec.model_validate({**(there.model_extra or {})["spec"], "backend": "jax"})

    capture = record(spec)

    here = load_manifest(capture / "manifest.json")
    for checks in (here.checks, there.checks):
        assert (checks["reference"], checks["compiles_in_capture"]) == ("full", 0)
    is_none_comparable = here.checks.get("comparable_share") == 0
    assert (
        here.checks["tokens_equal"]
        or is_none_comparable
        or smallest_lead(spec) <= 2 * here.checks["max_logit_error"] < 1e-5
    )
    # The captures of data/ have other weights, from torch, so other pairs are dropped.
    assert here.checks.get("routed_pairs") == there.checks.get("routed_pairs")
    assert (here.model.num_params, here.mesh) == (there.model.num_params, there.mesh)
    assert here.promised_collectives == there.promised_collectives
    assert [(p.name, p.step) for p in here.phases] == [(p.name, p.step) for p in there.phases]
    assert (here.backend, there.backend) == ("jax", "torch_xla")
    assert load_card(capture / "card.yaml").model_executor.framework.name == "jax"
    columns = ("device_id", "step", "kind", "axis", "message_bytes")
    sql = f"SELECT {', '.join('c.' + c for c in columns)} FROM collectives AS c JOIN runs AS r USING (run_id)"
    rows = all_captures.query(f"{sql} WHERE r.name = '{name}'").rows()
    assert traffic(collectives(capture, tmp_path / "jax")) == traffic(dict(zip(columns, r, strict=True)) for r in rows)


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "deepseek_v3", "mesh": "dp=2,ep=2,tp=2", "capacity_factor": "inf"},
        {"model": "qwen3_moe", "mesh": "pp=2,ep=2"},
        {"model": "deepseek_v2", "mesh": "ep=4", "dtype": "bfloat16"},
        {"model": "qwen3", "mesh": "dp=2,tp=2", "sequence_parallelism": "ring"},
        {"model": "qwen3", "mesh": "tp=8"},  # with copies of key-value heads
    ],
    ids=lambda fields: run_spec(backend="jax", **fields).name,
)
def test_a_run_keeps_its_promises(record: Callable[[RunSpec], Path], fields: dict[str, Any]) -> None:
    sizes = {"batch": 4, "input_length": 8, "output_length": 3}
    spec = run_spec(backend="jax", **(sizes | fields))
    checks = require_promises_kept(record, spec)
    if places := expert_places(spec):
        assert ("token_sends" in checks) == (spec.capacity_factor is None) != ("dropped_pairs" in checks)
    if spec.capacity_factor is None and places:
        routing = Routing.of(model_architecture(spec.model).config, 8)
        tokens = checks["routed_pairs"] / routing.chosen
        # A token goes to one device at least, and to as many as its experts can be on; both are one on one device.
        assert tokens <= checks["token_sends"] <= tokens * routing.most_devices(spec.axis("ep"))


def split_attention(spec: RunSpec) -> dict[tuple[str, str], int]:
    """Bytes of a prefill in float32, by the closed forms of docs/parallelism.md and the model's configuration."""
    architecture, devices = model_architecture(spec.model), spec.axis("tp")
    width = architecture.config["head_dim"]
    sequences = spec.batch // spec.axis("dp")
    of_a_head = 4 * sequences * spec.input_length // devices * width  # of a device's part of the sequence
    query, keys = (of_a_head * heads for heads in (architecture.num_heads, max(architecture.num_kv_heads, devices)))
    found = {
        # the last position, to every device
        ("all-reduce", "tp"): 4 * sequences * architecture.config["hidden_size"],
        ("all-to-all", "tp"): spec.layers * 2 * keys,
    }
    if not architecture.config["tie_word_embeddings"]:
        # the largest logits of each piece of the vocabulary, and their indices; a tied head has no pieces
        found["all-gather", "tp"] = 2 * 4 * sequences * devices
    if spec.sequence_parallelism == "ring":
        return found | {("collective-permute", "tp"): spec.layers * 2 * (devices - 1) * keys}
    return found | {("all-to-all", "tp"): spec.layers * 2 * (keys + query)}


def test_hosts_run_one_program(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    """Two processes, each with half of the devices, whose collectives go from one to the other."""
    sizes = {"model": "deepseek_v2", "mesh": "ep=2", "batch": 2, "input_length": 8, "output_length": 2}
    spec = run_spec(**sizes, hosts=2)
    checks = require_promises_kept(record, spec)
    manifest = load_manifest(tmp_path / spec.name / "manifest.json")

    assert checks["tokens_equal"] is True
    assert 18 <= checks["token_sends"] <= 36  # of the tokens of both
    written = sorted(file.name for file in (tmp_path / spec.name).rglob("*.xplane.pb"))
    assert written == [f"{host}.xplane.pb" for host in manifest.hosts]
    sql = """
    SELECT d.device_id, d.host, c.group_size, count(DISTINCT c.instance) FROM main.devices AS d
    JOIN main.collectives AS c USING (run_id, device_id) WHERE c.kind = 'all-to-all' AND NOT c.is_partial GROUP BY ALL
    ORDER BY ALL"""
    with tw.open(tmp_path / "warehouse") as warehouse:  # three of a layer of experts in each of two steps
        assert warehouse.query(sql).rows() == [(d, manifest.hosts[d], 2, 2 * 3) for d in (0, 1)]
        assert warehouse.query("SELECT max(instance) FROM main.collectives").rows() == [(2 * 3 - 1,)]


def test_all_processes_of_a_run_end_with_a_killed_collector(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracewarehouse", "collect", "--mesh", "tp=2", "--hosts", "2"]
    collector = subprocess.Popen([*command, "-o", str(tmp_path)], stderr=subprocess.DEVNULL)
    wait_until(lambda: len(running("tracewarehouse.collect.run_process", str(tmp_path))) == 3)
    collector.kill()
    collector.wait()
    # The kernel ends the process of the run with the collector, and those of its hosts with it.
    wait_until(lambda: not running("tracewarehouse.collect.run_process", str(tmp_path)))
    assert [p.name for p in tmp_path.iterdir() if not p.name.startswith(".") and p.is_dir()] == []


def test_experts_as_served_send_what_the_closed_form_says(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    """Bytes of virtual devices, which exchange all rows that there may be, and the tokens that the routing sends."""
    spec = run_spec(backend="jax", model="deepseek_v2", mesh="ep=4", batch=8, input_length=16, output_length=3)
    capture = record(spec)
    found = traffic(collectives(capture, tmp_path / "warehouse"))
    hidden, experts, devices = 128, 8, 4
    for step, length in ((0, 16), (1, 1), (2, 1)):
        tokens = 2 * length
        there, back = devices * tokens * (hidden + experts // devices), devices * tokens * hidden
        assert found[step, "all-to-all", "ep"] == 4 * (there + back + 2 * devices)
    checks = load_manifest(capture / "manifest.json").checks
    tokens = 8 * (16 + 2)
    # 0.15 is five standard deviations of the mean of 144 numbers that are 1 or 2.
    assert checks["token_sends"] / tokens == pytest.approx(Routing(8, 2).mean_devices(devices), abs=0.15)


def test_a_skewed_routing_is_recorded_without_a_reference(record: Callable[[RunSpec], Path]) -> None:
    sizes = {"batch": 4, "input_length": 8, "output_length": 3, "routing_skew": 2}
    spec = run_spec(backend="jax", model="deepseek_v2", mesh="ep=4", **sizes)
    assert "-zipf2.0-" in spec.name
    checks = load_manifest(record(spec) / "manifest.json").checks
    assert checks["reference"] == "finite_logits"
    assert "tokens_equal" not in checks
    assert 40 <= checks["token_sends"] <= 2 * 40


def test_a_published_model_with_more_devices_than_key_value_heads(
    record: Callable[[RunSpec], Path], tmp_path: Path
) -> None:
    write_checkpoint(tmp_path / "published", "qwen2", layers=2)
    fields = {"mesh": "tp=8", "batch": 2, "input_length": 8, "output_length": 3, "sequence_parallelism": "ulysses"}
    checks = require_promises_kept(record, run_spec(model=str(tmp_path / "published"), backend="jax", **fields))
    assert (checks["reference"], checks["tokens_equal"]) == ("full", True)


def test_a_published_model(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    """Weights of files, each device its parts; yarn angles, a correction bias, and stages with different layers."""
    rope = {"type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64}
    write_checkpoint(tmp_path / "published", "deepseek_v3", "bfloat16", is_eight_bit=True, layers=3, rope_scaling=rope)
    fields = {"mesh": "pp=2,tp=2", "batch": 4, "input_length": 8, "output_length": 3, "dtype": "float32"}
    fields |= {"sequence_parallelism": "megatron", "capacity_factor": "inf"}
    checks = require_promises_kept(record, run_spec(model=str(tmp_path / "published"), backend="jax", **fields))
    assert (checks["reference"], checks["tokens_equal"], checks["dropped_pairs"]) == ("full", True, 0)


def test_ring_attention_in_the_widths_of_a_published_model(record: Callable[[RunSpec], Path], tmp_path: Path) -> None:
    """Two of the 36 layers of Qwen3-4B with a small vocabulary: 0.2 billion weights over four devices."""
    numbers = dict(model_architecture("Qwen/Qwen3-4B").config) | {"num_hidden_layers": 2, "vocab_size": 512}
    write_checkpoint(tmp_path / "Qwen3-4B", "qwen3", **numbers)
    fields = {"mesh": "tp=4", "batch": 2, "input_length": 16, "output_length": 3, "sequence_parallelism": "ring"}
    checks = require_promises_kept(record, run_spec(model=str(tmp_path / "Qwen3-4B"), backend="jax", **fields))
    assert (checks["reference"], checks["tokens_equal"]) == ("full", True)


def require_promises_kept(record: Callable[[RunSpec], Path], spec: RunSpec) -> dict[str, Any]:
    """Record a run; nothing promised is missing, and every op has its layer and axis. Its checks."""
    capture = record(spec)
    checks = load_manifest(capture / "manifest.json").checks
    assert checks["tokens_equal"] in ((True,) if checks.get("comparable_share") != 0 else (None,))
    sent = traffic(collectives(capture, capture.parent / "warehouse"))
    if spec.sequence_parallelism in ("ulysses", "ring"):
        assert {key[1:]: size for key, size in sent.items() if key[0] == 0} == split_attention(spec)
    with tw.open(capture.parent / "warehouse") as warehouse:
        assert warehouse.query("SELECT flag FROM main.quality_flags").rows() == []
        (run,) = warehouse.query("SELECT split_part(framework, ' ', 1), mesh FROM main.runs").rows()
        assert run == ("jax", str(spec.mesh))
        axes = warehouse.query("SELECT DISTINCT axis FROM collectives ORDER BY axis").rows()
        assert {axis for (axis,) in axes} <= {axis for axis, size in spec.mesh.axes.items() if size > 1}
        layers = warehouse.query("SELECT DISTINCT layer FROM models.op_layers WHERE layer IS NOT NULL").rows()
        assert {layer for (layer,) in layers} == set(range(spec.layers))
    return checks


def test_what_jax_cannot_split_is_refused(jax_processes: TorchProcesses, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "odd", "llama", vocab_size=511)
    spec = run_spec(model=str(tmp_path / "odd"), mesh="tp=2", backend="jax", input_length=8, output_length=2)
    done = jax_processes.run(RECORD, spec.model_dump_json(), str(tmp_path), "")
    assert done.returncode == 1
    assert "error: lm_head.weight: its 511 rows or columns do not divide over tp=2, as the jax backend" in done.stderr
