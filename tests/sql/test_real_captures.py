"""What the metrics say of real captures, against what is known of these."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tracewarehouse.database.lens import create_lens, run_sources
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.evaluation.values import evaluate
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse

DEFINITIONS = load_definitions()
V6E = "tpu-v6e-4chip-host-offload"
VLLM = "tpu-2chip-vllm-tp2-prefill"
VLLM_CHROME = "chrome"
GPU = "gpu-mi300-jax-gemm"
CPU = [
    "cpu_llama_tp4",
    "cpu_llama_sp_tp4",
    "cpu_qwen3_dp2tp2",
    "cpu_deepseekv2_ep4",
    "cpu_deepseekv3_dp2ep2tp2",
    "cpu_llama_pp2tp2",
]
CAPTURES = [V6E, VLLM, VLLM_CHROME, GPU, *CPU]


@pytest.fixture(scope="module")
def runs(shared_captures: Warehouse) -> dict[str, str]:
    """Run id by capture."""
    return {run.name: run.run_id for run in shared_captures.lake.runs()}


@pytest.fixture(scope="module")
def connection(shared_captures: Warehouse) -> duckdb.DuckDBPyConnection:
    return shared_captures.connection()


def _rows(connection: duckdb.DuckDBPyConnection, view: str, run_id: str) -> list[dict[str, Any]]:
    return _dicts(connection.execute(f"SELECT * FROM {view} WHERE run_id = ? ORDER BY ALL", [run_id]))


def _dicts(found: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return [dict(zip([d[0] for d in found.description], row, strict=True)) for row in found.fetchall()]


@pytest.mark.parametrize("capture", CAPTURES)
def test_ingest_and_sql_find_the_same_unions(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str], capture: str
) -> None:
    """Of the ops of each device, on however many lines, all together and by class; and the pauses between them."""
    told = """
        WITH swept AS (
          SELECT *, max(end_ps) OVER before AS until_ps, max(end_ps) OVER before_of_class AS class_until_ps
          FROM models.leaf_ops
          WHERE run_id = ?
          WINDOW before AS (
            PARTITION BY device_id ORDER BY start_ps, event_id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          ), before_of_class AS (
            PARTITION BY device_id, op_class ORDER BY start_ps, event_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          )
        )
        SELECT
          bool_and(end_ps = start_ps + duration_ps), count(*), sum(busy_ps), sum(class_busy_ps), sum(idle_before_ps),
          sum(greatest(end_ps - greatest(start_ps, coalesce(until_ps, start_ps)), 0)),
          sum(greatest(end_ps - greatest(start_ps, coalesce(class_until_ps, start_ps)), 0)),
          sum(greatest(start_ps - until_ps, 0))
        FROM swept GROUP BY ROLLUP (device_id, op_class)
        """
    rows = connection.execute(told, [runs[capture]]).fetchall()
    assert max(count for _, count, *_ in rows) > 50
    for is_as_long, _, busy, class_busy, idle, *swept in rows:
        assert is_as_long
        assert [busy, class_busy, idle] == swept


def _values_by_name(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[tuple[str, str], float | None]:
    """Values by metric and dimensions; instructions by program and name, since each form numbers them in its order."""
    instructions = connection.execute(
        "SELECT instruction_id, program_id, name FROM main.instructions WHERE run_id = ?", [run_id]
    ).fetchall()
    named = {i: f"{program} {name}" for i, program, name in instructions}
    assert len({*named.values()}) == len(named)
    found = {}
    for r in evaluate(connection, run_id).values().to_pylist():
        dimensions = json.loads(r["dimensions"])
        if "instruction_id" in dimensions:
            dimensions["instruction_id"] = named[dimensions["instruction_id"]]
        found[r["metric"], json.dumps(dimensions)] = r["value"]
    return found


def test_both_forms_of_a_capture_give_the_same_values(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    xplane, chrome = (_values_by_name(connection, runs[c]) for c in (VLLM, VLLM_CHROME))
    assert {k for k, v in xplane.items() if v is None} == {k for k, v in chrome.items() if v is None}
    known = {k: v for k, v in xplane.items() if v is not None}
    assert known == pytest.approx({k: v for k, v in chrome.items() if v is not None}, rel=1e-6)


def test_a_gpu_capture_without_collectives_has_shares_and_idleness_only(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    metrics = {r["metric"] for r in evaluate(connection, runs[GPU]).values().to_pylist()}
    assert {"op_time_share", "device_idle"} <= metrics
    assert "step_time" in metrics  # its steps are the runs of its one large program
    assert not metrics & {"ttft", "tpot", "collective_count", "traffic_volume", "communication_time"}


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        (V6E, {f"{n}": 33_550_237_696 for n in range(4)}),
        (GPU, {"GPU_0_bfc": 154_606_239_744, "xla_gpu_host_bfc": 64 << 30}),
    ],
)
def test_memory_in_use_is_what_single_allocations_state(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str], capture: str, expected: dict[str, int]
) -> None:
    stats: dict[int, dict[str, Any]] = {}
    for event, name, number, text in connection.execute(
        "SELECT event_id, s.name, int_value, string_value FROM main.event_stats AS s "
        "JOIN main.host_events AS h USING (run_id, event_id) WHERE run_id = ? AND h.name IN "
        "('MemoryAllocation', 'MemoryDeallocation')",
        [runs[capture]],
    ).fetchall():
        stats.setdefault(event, {})[name] = number if text is None else text
    peaks: dict[str, int] = {}
    for s in stats.values():
        allocator = str(s.get("allocator_name", s.get("index_on_host")))
        peaks[allocator] = max(peaks.get(allocator, 0), s["bytes_allocated"] + s["bytes_reserved"])
    rows = {r["allocator"]: r for r in _rows(connection, "metrics.memory_in_use", runs[capture])}
    assert {name: r["peak_bytes"] for name, r in rows.items()} == peaks
    assert {name: r["capacity_bytes"] for name, r in rows.items()} == expected
    assert sum(r["allocations"] + r["releases"] for r in rows.values()) == len(stats)


def test_products_of_vllm_against_the_peak_of_the_chip_that_the_card_names(shared_traces: Path, tmp_path: Path) -> None:
    """A layer of 5120 x 27648 / 2 has products of known size; a v6e multiplies 918 TFLOP/s of bf16."""
    folder = tmp_path / "capture"
    folder.mkdir()
    shutil.copy(shared_traces / f"{VLLM}.xplane.pb", folder)
    chip = "workload:\n  hardware:\n    xpu_spec: {type: TPU, model: tpu_v6e, total_count: 2, count_per_node: 2}\n"
    (folder / "card.yaml").write_text(chip)
    run_id = ingest_one(folder, tmp_path / "warehouse").run_id
    with duckdb.connect() as database:
        warehouse = tmp_path / "warehouse"
        create_lens(database, run_sources(str(warehouse), Lake(warehouse).runs()), DEFINITIONS)
        rows = _rows(database, "metrics.gemm_efficiency", run_id)
        products = database.execute(
            "SELECT sum(self_ps), count(*) FROM main.ops JOIN main.instructions USING (run_id, instruction_id) "
            "WHERE shape = 'bf16[1024,5120]' AND instructions.model_flops > 1e11"
        ).fetchall()
    [down] = [r for r in rows if r["shape"] == "bf16[1024,5120]" and r["flops"] > 1e11]
    assert down["flops"] == pytest.approx(2 * 1024 * 13824 * 5120, rel=1e-3)  # what is fused with it beside
    [(time, count)] = products
    assert down["executions"] == count == 128
    assert down["efficiency"] == pytest.approx(down["flops"] * count / (time / 1e12) / 918e12)
    assert all(0 < r["efficiency"] < 1 for r in rows)
    assert {round(r["unsized_share"], 3) for r in rows} == {round(rows[0]["unsized_share"], 3)}


def test_the_caches_of_vllm_hold_four_heads_on_each_device(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """Eight heads of keys and of values, 128 wide, in bf16 over two devices: 4 x 2 x 128 x 2 bytes of a token."""
    for capture in (VLLM, VLLM_CHROME):
        rows = _rows(connection, "models.attention_caches", runs[capture])
        assert len(rows) == 64
        assert {(r["token_bytes"], r["capacity_tokens"]) for r in rows} == {(2048, 7007 * 64)}
