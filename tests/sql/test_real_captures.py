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


def test_nothing_violates_an_audit(shared_captures: Warehouse) -> None:
    """Of all runs at once: every finding names its run."""
    assert shared_captures.audit(CAPTURES) == []


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


def test_vllm_prefill(connection: duckdb.DuckDBPyConnection, runs: dict[str, str]) -> None:
    run_id = runs[VLLM]
    volume = {r["kind"]: r for r in _rows(connection, "metrics.traffic_volume", run_id)}
    assert volume["all-reduce"]["message_bytes_per_device"] == 129 * 10_485_760
    assert volume["all-reduce"]["wire_bytes_per_device"] == 129 * 10_485_760
    count = {r["kind"]: r["executions"] for r in _rows(connection, "metrics.collective_count", run_id)}
    assert count == {"all-reduce": 2 * 129, "all-gather": 2 * 2}
    [time, _] = _rows(connection, "metrics.communication_time", run_id)
    assert time["total_ms"] == pytest.approx(3.4338 + 0.0045, abs=1e-4)
    assert time["collectives"] == 131
    # all are synchronous: whatever communicates is exposed
    exposed = [r["total_ms"] for r in _rows(connection, "metrics.exposed_communication", run_id) if r["device_id"] == 0]
    assert sum(exposed) == pytest.approx(time["total_ms"], rel=1e-12)
    wide = {r["kind"]: r for r in _rows(connection, "metrics.collective_transfer", run_id)}
    assert wide["all-reduce"]["executions"] == 129
    assert wide["all-reduce"]["bus_gbps"] == wide["all-reduce"]["algorithm_gbps"]  # 2 (n-1)/n of two devices is 1
    assert 100 < wide["all-reduce"]["bus_gbps"] < 800  # the chip's links carry 800 GB/s
    shares = _rows(connection, "metrics.op_time_share", run_id)
    assert sum(r["share"] for r in shares) == pytest.approx(1)


def test_vllm_ranks_wait_as_long_as_the_others_are_late(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    run_id = runs[VLLM]
    waited = sum(r["wait_ms"] for r in _rows(connection, "metrics.sync_wait", run_id))
    [skew] = _rows(connection, "metrics.collective_skew", run_id)
    assert skew["executions"] == 131
    # ranks end together within 0.24 us, so their waits are the skews of their starts
    assert waited == pytest.approx(skew["skew_us"] * 131 / 1000, abs=131 * 0.00024)
    assert waited > 0


def test_vllm_fraction_is_collective_time_over_step_time(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    run_id = runs[VLLM]
    [fraction] = _rows(connection, "metrics.communication_fraction", run_id)
    time = _rows(connection, "metrics.communication_time", run_id)
    idle = _rows(connection, "metrics.device_idle", run_id)
    own = [t["total_ms"] / i["span_ms"] for t, i in zip(time, idle, strict=True)]
    assert [fraction["min_fraction"], fraction["max_fraction"]] == pytest.approx(sorted(own), rel=1e-12)
    matrix = _rows(connection, "metrics.traffic_matrix", run_id)
    assert {r["kind"] for r in matrix} == {"all-gather", "all-reduce"}
    for kind in ("all-gather", "all-reduce"):
        sent = [r for r in matrix if r["kind"] == kind]
        assert [(r["source_device_id"], r["target_device_id"]) for r in sent] == [(0, 1), (1, 0)]
        assert len({r["sent_bytes"] for r in sent}) == 1


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


def test_a_rank_is_known_where_its_peers_are_not_in_the_capture(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """The program's device assignment says which of four devices the one of the capture is; it passes all on."""
    [volume] = _rows(connection, "metrics.traffic_volume", runs[V6E])
    assert volume["message_bytes_per_device"] == volume["wire_bytes_per_device"] == 3 * 5 * 1024 * 1024 * 256 * 4
    [partial] = {r["is_partial"] for r in _rows(connection, "main.collectives", runs[V6E])}
    assert partial
    assert _rows(connection, "metrics.collective_skew", runs[V6E]) == []
    assert all(0 <= r["idle_ratio"] < 1 for r in _rows(connection, "metrics.device_idle", runs[V6E]))
    assert _rows(connection, "metrics.ttft", runs[V6E]) == []


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
        ("cpu_llama_tp4", {("all-reduce", "tp"): 4, ("all-gather", "tp"): 2}),
        ("cpu_qwen3_dp2tp2", {("all-reduce", "tp"): 4, ("all-gather", "tp"): 2}),
        ("cpu_deepseekv2_ep4", {("all-to-all", "ep"): 4}),
        (
            "cpu_deepseekv3_dp2ep2tp2",
            {("all-reduce", "tp"): 6, ("all-gather", "tp"): 2, ("all-to-all", "ep"): 4},
        ),
        (
            "cpu_llama_pp2tp2",
            {("all-reduce", "tp"): 12, ("all-reduce", "pp"): 1, ("collective-permute", "pp"): 3},
        ),
    ],
)
def test_collectives_per_device_and_decode_step(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str], capture: str, expected: dict[Any, int]
) -> None:
    rows = [r for r in _rows(connection, "metrics.collective_count", runs[capture]) if r["phase"] == "decode"]
    assert {(r["kind"], r["axis"]): r["executions_per_step"] for r in rows} == expected
    assert all(r["min_per_step"] == r["max_per_step"] for r in rows)


@pytest.mark.parametrize("capture", CPU)
def test_marked_captures_have_latencies_on_both_clocks(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str], capture: str
) -> None:
    run_id = runs[capture]
    ttft = {r["clock"]: r["ttft_ms"] for r in _rows(connection, "metrics.ttft", run_id)}
    assert 0 < ttft["device"] < ttft["host"]
    tpot = {r["clock"]: r for r in _rows(connection, "metrics.tpot", run_id)}
    decode = [r for r in _rows(connection, "metrics.step_time", run_id) if r["phase"] == "decode"]
    steps = [r for r in decode if r["step_time_ms"] is not None]
    assert len(steps) == len(decode) - 1
    assert tpot["host"]["steps"] == tpot["device"]["steps"] == len(steps)
    assert tpot["device"]["tpot_ms"] == pytest.approx(sum(r["step_time_ms"] for r in steps) / len(steps))


def test_kernels_without_a_cost_are_a_quarter_of_the_time_on_vllm(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    rows = _rows(connection, "metrics.hbm_bandwidth", runs[VLLM])
    kernels = connection.execute(
        "SELECT device_id, sum(self_ps) FILTER (WHERE opcode = 'custom-call') / sum(self_ps) FROM main.ops "
        "JOIN main.instructions USING (run_id, instruction_id) WHERE is_leaf AND device_id IS NOT NULL AND run_id = ? "
        "GROUP BY device_id ORDER BY device_id",
        [runs[VLLM]],
    ).fetchall()
    assert [(r["device_id"], pytest.approx(r["unsized_share"])) for r in rows] == kernels
    assert [round(share, 3) for _, share in kernels] == [0.253, 0.253]


def test_no_fit_of_transfers_where_the_sizes_do_not_support_one(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """These captures have one or two sizes of a kind, or times that scatter beyond any line."""
    for name in CAPTURES:
        for fit in _rows(connection, "metrics.hockney", runs[name]):
            assert (fit["sizes"] >= 3, fit["r2"] >= 0.9) == (True, True)
    assert _rows(connection, "metrics.hockney", runs[VLLM]) == []
    saved = _rows(connection, "metrics.faster_links", runs[VLLM])
    assert {(r["link"], r["axis"], r["basis"], r["bound"]) for r in saved} == {("ici", "tp", "exposed", "upper")}
    # 3.45 of the 67.2 ms of the step are exposed; links twice as fast save at most half of them
    assert {r["factor"]: round(r["saved_percent"], 2) for r in saved} == {"2": 2.56, "4": 3.84, "infinite": 5.13}


def test_a_collective_whose_partners_are_on_another_host_has_bounds(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """Three all-reduces of 5 x 1024 x 1024 x 256 floats, each of 4 devices with one on the host that is not here."""
    message = 5 * 1024 * 1024 * 256 * 4
    durations = connection.execute(
        "SELECT end_ps - start_ps FROM main.collectives WHERE run_id = ?", [runs[V6E]]
    ).fetchall()
    assert len(durations) == 12
    [transfer] = _rows(connection, "metrics.collective_transfer", runs[V6E])
    total = sum(ps for (ps,) in durations)
    assert (transfer["bound"], transfer["executions"]) == ("upper", 12)
    assert transfer["transfer_us"] == pytest.approx(total / 12 / 1e6)
    [used] = _rows(connection, "metrics.ici_utilization", runs[V6E])
    assert (used["bound"], used["executions"], used["wire_bytes"]) == ("lower", 12, 12 * message)
    assert used["utilization"] == pytest.approx(12 * message * 1000 / total / 400)
    assert _rows(connection, "metrics.collective_skew", runs[V6E]) == []
    assert _rows(connection, "metrics.sync_wait", runs[V6E]) == []
    for name in (VLLM, *CPU):
        for view in ("collective_transfer", "collective_skew", "sync_wait", "ici_utilization"):
            assert {r["bound"] for r in _rows(connection, f"metrics.{view}", runs[name])} <= {None}


def test_kernels_of_vllm(connection: duckdb.DuckDBPyConnection, runs: dict[str, str]) -> None:
    """As counted in the trace by names: 129 all-reduces on each device, attention in each of 64 layers."""
    rows = _rows(connection, "metrics.top_kernels", runs[VLLM])
    kernels = {(r["kernel"], r["category"]): r for r in rows}
    assert [r["place"] for r in sorted(rows, key=lambda r: -r["share"])] == list(range(1, len(rows) + 1))
    attention = kernels["RPA-bq_32-bkvp_64-p_64-", "custom-call"]
    assert (attention["ops"], attention["instructions"]) == (128, 64)
    assert (attention["first_layer"], attention["last_layer"]) == (0, 63)
    assert round(attention["share"], 3) == 0.253
    reduces = kernels["all-reduce", "all-reduce"]
    assert (reduces["ops"], reduces["op_class"]) == (258, "communication")
    assert reduces["self_ms"] == pytest.approx(3.4338 + 3.4549, abs=1e-4)


def test_the_collectives_of_vllm_are_bound_by_their_transfer(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    rows = {r["kind"]: r for r in _rows(connection, "metrics.collective_attribution", runs[VLLM])}
    assert {r["bound_by"] for r in rows.values()} == {"transfer"}
    assert rows["all-reduce"]["window_ms"] == pytest.approx(3.4338 + 3.4549, abs=1e-4)
    assert rows["all-reduce"]["exposed_ms"] == rows["all-reduce"]["window_ms"]
    # the large ones come near to the rate of the links, the small ones are nowhere near it
    assert rows["all-reduce"]["wire_gbps"] > 10_000 * rows["all-gather"]["wire_gbps"]


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


def test_the_counter_of_the_matrix_units_is_what_the_profiler_states(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    [row] = _rows(connection, "metrics.unit_utilization", runs[V6E])  # its programs add and copy, and multiply nothing
    assert (row["hardware_unit"], row["utilization"]) == ("matrix_unit", 0)


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


def test_reductions_before_the_first_step_are_no_part_of_a_step(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """The v6e ran three all-reduces and then a hundred steps of no phase, none of which communicates."""
    rows = _rows(connection, "metrics.exposed_communication", runs[V6E])
    assert [(r["phase"], r["steps"]) for r in rows] == [("outside", 1)] * 4
    assert sum(r["exposed_ms"] for r in rows) == pytest.approx(1460.41, abs=0.01)
    [fraction] = _rows(connection, "metrics.communication_fraction", runs[V6E])
    assert (fraction["phase"], fraction["fraction"]) == (None, 0)
    [count] = _rows(connection, "metrics.collective_count", runs[V6E])
    assert (count["phase"], count["executions_per_step"]) == ("outside", 3)


@pytest.mark.parametrize(
    ("situation", "view", "expected"),
    [
        ("srv-early", "SELECT device_id, wait_ms / 2 AS per_execution FROM metrics.sync_wait", {(0, 0.005), (1, 0)}),
        ("srv-gap", "SELECT DISTINCT overlap_ratio, idle_ms FROM metrics.overlap_ratio", {(0.1, 0.136)}),
        ("device-dropped", "SELECT DISTINCT flag FROM main.quality_flags", {("no_device_events",)}),
    ],
)
def test_what_reported_situations_give(
    shared_traces: Path, tmp_path: Path, situation: str, view: str, expected: set[tuple[Any, ...]]
) -> None:
    """Where ranks start at different times, where devices are idle in a window, where they recorded nothing."""
    ingest_one(shared_traces / "situations" / situation, tmp_path)
    with duckdb.connect() as database:
        create_lens(database, run_sources(str(tmp_path), Lake(tmp_path).runs()), DEFINITIONS)
        assert set(database.execute(view).fetchall()) == expected
