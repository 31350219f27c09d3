"""The ccl_* metrics reproduce the definitions of CCL-Bench, faults included, and nothing else may rest on them."""

from __future__ import annotations

from given_tables import warehouse_of

from tracewarehouse.definitions.reading import load_definitions

DEFINITIONS = load_definitions()
COMPATIBLE = [m for m in DEFINITIONS.metrics if m.name.startswith("ccl_")]


def test_none_is_offered_as_a_metric_of_ours() -> None:
    assert COMPATIBLE
    assert {m.header.status for m in COMPATIBLE} == {"compatibility"}
    assert {m.view.path.parent.name for m in COMPATIBLE} == {"ccl_bench"}
    assert all(m.header.ccl_bench for m in COMPATIBLE)


def test_no_other_definition_reads_them() -> None:
    for view in DEFINITIONS.ordered:
        if not view.name.startswith("ccl_"):
            assert [u.qualified for u in DEFINITIONS.upstream(view) if u.name.startswith("ccl_")] == []


ASKED_BY_CCL_BENCH = {
    "average_memory_bandwidth", "avg_step_time", "bandwidth_utilization", "coll_call_num", "collective_vol",
    "comm_kernel_breakdown_tpu", "communication_fraction", "communication_ratio", "compute_comm_overlap",
    "dominant_kernel_concentration", "hockney", "load_imbalance_ratio", "memory_transfer_overhead", "mfu",
    "moe_fraction", "scale_up_bw_utility", "straggler", "straggler_metrics", "throughput", "total_communication_time",
    "tpot", "traffic_window", "ttft",
}  # fmt: skip
COMPUTED = {
    "average_memory_bandwidth", "avg_step_time", "bandwidth_utilization", "coll_call_num", "collective_vol",
    "communication_fraction", "compute_comm_overlap", "dominant_kernel_concentration", "load_imbalance_ratio",
    "mean_sm_coverage", "memory_transfer_overhead", "mfu", "moe_fraction", "straggler", "total_communication_time",
    "tpot", "ttft",
}  # fmt: skip


def test_every_question_of_ccl_bench_has_a_right_answer_and_its_own_where_it_has_one() -> None:
    """Its names, a family with one metric per kind of collective as one; and those that it computes from traces."""
    named = [m.header.ccl_bench for m in DEFINITIONS.metrics if not m.name.startswith("ccl_")]
    ours = {name for names in named if names for name in names.split(", ")}
    assert ours == ASKED_BY_CCL_BENCH
    assert {m.header.ccl_bench for m in COMPATIBLE} == COMPUTED
    assert {m.name for m in COMPATIBLE} == {f"ccl_{name}" for name in COMPUTED}


def test_chips_have_the_names_that_ccl_bench_gives_them() -> None:
    kinds = {
        "TPU v6 lite": "tpu_v6e", "TPU v6e": "tpu_v6e", "TPU v5 lite": "tpu_v5e", "TPU v5e": "tpu_v5e",
        "TPU v5": "tpu_v5p", "TPU v5p": "tpu_v5p", "TPU v4": "tpu_v4", "TPU7x": "tpu_v7x", "TPU v7x": "tpu_v7x",
        "NVIDIA H200": "NVIDIA H200",
    }  # fmt: skip
    runs = [{"run_id": kind} for kind in kinds]
    devices = [{"run_id": kind, "device_id": 0, "kind": kind} for kind in kinds]
    with warehouse_of({"runs": runs, "devices": devices}) as database:
        assert dict(database.execute("SELECT run_id, hardware FROM models.ccl_card").fetchall()) == kinds
