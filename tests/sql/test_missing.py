"""metrics.missing tells of every metric without a row why: each precondition by hand, and all real captures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from given_tables import fill, warehouse_of

from tracewarehouse.definitions.derived import ALL_MET
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.warehouse import Warehouse

DEFINITIONS = load_definitions()
PRECONDITIONS = sorted(v.name for v in DEFINITIONS.ordered if v.schema == "preconditions")

Tables = dict[str, Any]

_PEAKS = {"device_id": 0, "peak_flops_per_s": 1e12, "peak_hbm_gbps": 100.0}
_OP = {"device_id": 0, "duration_ps": 5}
_STEP = {"kind": "step", "device_id": 0, "index": 0, "name": "decode", "start_ps": 0, "end_ps": 5}
_NEXT = _STEP | {"index": 1, "start_ps": 5, "end_ps": 9}
_PREFILL, _NAMELESS = _STEP | {"name": "prefill"}, _STEP | {"name": "main"}
_MODULE = {"kind": "module", "device_id": 0, "index": 0, "name": "main"}
_SUM = {"instance": 0, "device_id": 0, "kind": "all-reduce", "group_size": 2, "message_bytes": 8, "end_ps": 9}
_PEER = _SUM | {"device_id": 1, "event_id": 1}
_BETWEEN = _SUM | {"link": "dcn", "is_partial": True, "wire_bytes": 8}
_KERNELS = {"flag": "kernel_communication"}
_SIZES = [_SUM | {"event_id": i, "instance": i, "message_bytes": 8 << i // 2, "end_ps": 9 << i // 2} for i in range(6)]
_COPY = {"opcode": "copy-start", "async_role": "start", "op_class": "copy", "bytes_accessed": 8}
_DRIVER_COPY = {"name": "Memcpy HtoD (Pinned -> Device)", "category": "memcpy", "op_class": "copy"}
_DONE = {"opcode": "copy-done", "async_role": "done", "op_class": "copy", "async_start": "copy-start.1"}
_MODEL = {"num_params_active": 9, "num_params_embedding": 1, "num_layers": 2, "num_heads": 4, "head_dim": 8}
_PREFILLED = _OP | {"phase": "prefill", "step": 0}
_LENGTHS = {"batch_size": 2, "input_length": 4}
_BATCH = {"position": 0, "step": 0, "requests": 1, "decode_tokens": 1}
_CONTEXTS = [_BATCH | {"position": i, "step": i, "min_kv_length": 4 + i} for i in range(6)]
_DECODES = [_STEP | {"index": i, "start_ps": 9 * i, "end_ps": 9 * i + 5} for i in range(7)]
_ATTENTION = {
    "name": "RPA.1",
    "opcode": "custom-call",
    "hlo_text": '%RPA.1 = bf16[8] custom-call(bf16[8] %q, bf16[9,8,4,2]{3,2,1,0} %c), custom_call_target="x"',
}
_ALLOCATION = {"event_id": 0, "name": "MemoryAllocation"}
_ALLOCATED = {"event_id": 0, "name": "bytes_allocated", "int_value": 1}
_COUNTER = {"name": "matrix_unit_utilization_percent", "double_value": 1.0}

CASES: dict[str, tuple[Tables, list[Tables]]] = {
    "timed": ({"runs": [{"origin": "predicted"}]}, [{"runs": [{"origin": "compiled"}]}]),
    "recorded": ({"runs": [{}]}, [{"runs": [{"origin": "predicted"}]}]),
    "predicted": ({"predictions": [{"phase": "prefill"}]}, [{"runs": [{}]}]),
    "timed_tokens": (
        {"runs": [_LENGTHS], "phases": [_PREFILL]},
        [{"runs": [_LENGTHS], "phases": [_PREFILL, _PREFILL | {"index": 1, "start_ps": 9, "end_ps": 10}]}],
    ),
    "device_programs": (
        {"ops": [_OP]},
        [{}, {"runs": [{}], "ops": [_OP | {"device_id": None}]}],
    ),
    "device_ops": (
        {"ops": [_OP]},
        [{}, {"ops": [_OP | {"device_id": None}]}, {"ops": [_OP | {"is_leaf": False}]}],
    ),
    "timed_ops": ({"ops": [_OP]}, [{"ops": [_OP | {"duration_ps": 0}]}, {"ops": [_OP | {"is_leaf": False}]}]),
    "several_devices": (
        {"ops": [_OP, _OP | {"device_id": 1, "event_id": 1}]},
        [{"devices": [{"device_id": 0}, {"device_id": 1}], "ops": [_OP, _OP | {"event_id": 1}]}],
    ),
    "computed_phase": ({"ops": [_OP]}, [{"ops": [_OP], "instructions": [{"op_class": "copy"}]}, {"phases": [_STEP]}]),
    "parallel_compute": (
        {"ops": [_OP, _OP | {"device_id": 1, "event_id": 1}]},
        [{"ops": [_OP | {"phase": "prefill"}, _OP | {"device_id": 1, "event_id": 1, "phase": "decode"}]}],
    ),
    "repeated_launches": (
        {"phases": [_MODULE, _MODULE | {"index": 1}]},
        [{"phases": [_MODULE, _MODULE | {"device_id": 1}]}, {"phases": [_STEP, _NEXT]}],
    ),
    "any_step": ({"phases": [_STEP | {"device_id": None}]}, [{"phases": [_MODULE]}]),
    "device_steps": ({"phases": [_STEP]}, [{"phases": [_STEP | {"device_id": None}]}]),
    "followed_step": ({"phases": [_NAMELESS, _NEXT]}, [{"phases": [_STEP, _STEP | {"device_id": 1}]}]),
    "known_phases": ({"phases": [_PREFILL]}, [{"phases": [_NAMELESS]}]),
    "prefill": ({"phases": [_PREFILL]}, [{"phases": [_STEP]}]),
    "prefill_ops": (
        {"ops": [_OP | {"phase": "prefill"}]},
        [{"ops": [_OP | {"phase": "decode"}]}, {"ops": [_OP | {"phase": "prefill", "duration_ps": 0}]}],
    ),
    "prompt_tokens": (
        {"runs": [_LENGTHS], "ops": [_PREFILLED]},
        [
            {"runs": [{"batch_size": 2}], "ops": [_PREFILLED]},
            {"runs": [_LENGTHS], "ops": [_PREFILLED, _PREFILLED | {"event_id": 1, "step": 1}]},
            {"step_batches": [_BATCH | {"prefill_tokens": 4}], "ops": [_PREFILLED]},  # some of whose tokens decode
        ],
    ),
    "decode_batches": (
        {"step_batches": _CONTEXTS[:1], "phases": _DECODES},
        [
            {"phases": _DECODES},
            {"step_batches": [_CONTEXTS[0] | {"prefill_tokens": 4}], "phases": _DECODES},
            {"step_batches": [_CONTEXTS[0] | {"min_kv_length": None}], "phases": _DECODES},
        ],
    ),
    "varied_contexts": (
        {"step_batches": _CONTEXTS, "phases": _DECODES},
        [
            {"step_batches": _CONTEXTS, "phases": _DECODES[:-2]},
            {"step_batches": [c | {"min_kv_length": 4} for c in _CONTEXTS], "phases": _DECODES},
            {"step_batches": [c | {"requests": c["step"]} for c in _CONTEXTS], "phases": _DECODES},
        ],
    ),
    "single_rank": ({"step_batches": [_BATCH]}, [{"step_batches": [_BATCH, _BATCH | {"rank": 1}]}]),
    "known_caches": (
        {"instructions": [_ATTENTION]},
        [
            {"instructions": [_ATTENTION | {"name": "kernel.1"}]},
            {"instructions": [_ATTENTION | {"hlo_text": None}]},
            *(
                {"instructions": [_ATTENTION | {"hlo_text": _ATTENTION["hlo_text"].replace("9,8,4,2", shape)}]}
                for shape in ("9,8", "0,8,4,2")
            ),
        ],
    ),
    "padded_batches": (
        {"step_batches": [_BATCH | {"scheduled_tokens": 4, "padded_tokens": 8}]},
        [{"step_batches": [_BATCH | {"scheduled_tokens": 4}]}, {"step_batches": [_BATCH | {"padded_tokens": 8}]}],
    ),
    "decode": ({"phases": [_STEP]}, [{"phases": [_PREFILL]}]),
    "followed_decode": ({"phases": [_STEP, _NEXT]}, [{"phases": [_STEP]}, {"phases": [_STEP, _NEXT | {"name": "x"}]}]),
    "decode_after_prefill": (
        {"phases": [_PREFILL, _NEXT]},
        [
            {"phases": [_STEP, _NEXT | {"name": "prefill"}]},
            {"phases": [_PREFILL, _NEXT | {"device_id": None}]},  # on another clock
        ],
    ),
    "one_prefill": (
        {"phases": [_PREFILL, _PREFILL | {"device_id": 1}]},
        [{"phases": [_PREFILL, _NEXT | {"name": "prefill"}]}, {"phases": [_STEP]}],
    ),
    "collectives_in_steps": (
        {"collectives": [_SUM, _SUM | {"event_id": 1, "instance": 1, "phase": "outside"}], "ops": [_OP]},
        [
            {"collectives": [_SUM | {"phase": "outside"}], "ops": [_OP]},
            {  # the last step, which has no end
                "phases": [_STEP, _NEXT],
                "ops": [_OP | {"phase": "decode", "step": 0}],
                "collectives": [_SUM | {"phase": "decode", "step": 1}],
            },
        ],
    ),
    "any_collective": ({"collectives": [_SUM]}, [{}]),
    "lasting_collectives": ({"collectives": [_SUM]}, [{"collectives": [_SUM | {"end_ps": 0}]}]),
    "consecutive_collectives": (
        {"collectives": [_SUM, _SUM | {"event_id": 1, "instance": 1}]},
        [{"collectives": [_SUM, _PEER]}, {"collectives": [_SUM, _SUM | {"event_id": 1, "phase": "decode"}]}],
    ),
    "message_bytes": ({"collectives": [_SUM]}, [{"collectives": [_SUM | {"message_bytes": None}]}]),
    "whole_collectives": (
        {"collectives": [_SUM]},
        [{"collectives": [_SUM, _PEER | {"is_partial": True}]}, {"collectives": [_SUM | {"instance": None}]}],
    ),
    "ranks_to_compare": (
        {"collectives": [_SUM | {"is_partial": True}, _PEER | {"is_partial": True}]},
        [{"collectives": [_SUM | {"is_partial": True}, _PEER | {"is_partial": True, "instance": 1}]}],
    ),
    "several_ranks": ({"collectives": [_SUM, _PEER]}, [{"collectives": [_SUM, _PEER | {"instance": 1}]}]),
    "transfer_bytes": (
        {"collectives": [_SUM]},
        [{"collectives": [_SUM | {"message_bytes": 0}]}, {"collectives": [_SUM | {"group_size": 1}]}],
    ),
    "several_sizes": (
        {"collectives": _SIZES},
        [{"collectives": _SIZES[:-1]}, {"collectives": [*_SIZES[:-1], _SIZES[-1] | {"kind": "all-gather"}]}],
    ),
    "fitted_transfers": ({"collectives": _SIZES}, [{"collectives": [s | {"end_ps": 9} for s in _SIZES]}]),
    "stated_collectives": (
        {"runs": [{}], "quality_flags": [_KERNELS], "collectives": [_SUM]},
        [{"runs": [{}], "quality_flags": [_KERNELS]}],
    ),
    "separate_collectives": ({"collectives": [_SUM]}, [{"collectives": [_SUM | {"window_source": "fused op"}]}]),
    "collective_in_slice": ({"collectives": [_SUM]}, [{"collectives": [_BETWEEN]}]),
    "link_traffic": ({"collectives": [_BETWEEN]}, [{"collectives": [_SUM | {"wire_bytes": 8}]}, {}]),
    "attributed_collectives": (
        {"collectives": [_BETWEEN]},
        [{"collectives": [_SUM, _PEER | {"is_partial": True}]}, {"collectives": [_BETWEEN | {"instance": None}]}],
    ),
    "sent_bytes": ({"collectives": [_SUM | {"wire_bytes": 8}]}, [{"collectives": [_SUM]}]),
    "known_traffic": ({"traffic": [{"source_device_id": 0, "target_device_id": 1, "bytes": 8}]}, [{}]),
    "inter_chip_links": ({"runs": [{"backend": "tpu"}]}, [{"runs": [{"backend": "gpu"}]}]),
    "accelerators": ({"runs": [{"backend": "gpu"}]}, [{"runs": [{"backend": "cpu"}]}]),
    "link_peak": ({"devices": [{"peak_ici_gbps": 1.0}]}, [{"devices": [{"peak_flops_per_s": 1.0}]}]),
    "matrix_peak": ({"devices": [{"peak_flops_per_s": 1.0}]}, [{"devices": [{"peak_ici_gbps": 1.0}]}]),
    "any_copy": ({"instructions": [_COPY]}, [{"instructions": [{"opcode": "fusion"}]}]),
    "async_copies": (
        {"instructions": [_COPY]},
        [{"instructions": [_COPY | {"async_role": None}]}, {"instructions": [_DRIVER_COPY | {"category": "memset"}]}],
    ),
    "paired_copies": (
        {"instructions": [_COPY | {"name": "copy-start.1"}, _DONE]},
        [
            {"instructions": [_COPY | {"name": "copy-start.2"}, _DONE]},
            {"instructions": [_COPY | {"name": "copy-start.1"}, _DONE | {"program_id": 7}]},
        ],
    ),
    "copy_bytes": (
        {"instructions": [_DRIVER_COPY], "copies": [{"bytes": 8, "start_ps": 0, "end_ps": 9}]},
        [{"instructions": [_COPY | {"bytes_accessed": None}]}, {"copies": [{"bytes": 8, "start_ps": 9, "end_ps": 9}]}],
    ),
    "memory_traffic": ({"instructions": [{"bytes_accessed": 1}]}, [{"instructions": [{"flops": 1}]}]),
    "op_costs": ({"instructions": [{"flops": 1}]}, [{"instructions": [{"flops": 0}]}]),
    "bounded_ops": (
        {"ops": [_OP], "devices": [_PEAKS], "instructions": [{"flops": 1, "bytes_accessed": 1}]},
        [
            {"ops": [_OP], "devices": [{}], "instructions": [{"flops": 1, "bytes_accessed": 1}]},
            {"ops": [_OP], "devices": [_PEAKS], "instructions": [{"flops": 1}]},
            {
                "ops": [_OP],
                "devices": [_PEAKS],
                "instructions": [{"bytes_accessed": 1, "opcode": "all-gather", "collective": "all-gather"}],
                "collectives": [_SUM | {"wire_bytes": 0}],
            },
        ],
    ),
    "product_costs": (
        {"instructions": [{"operand_dtype": "bf16", "flops": 1}]},
        [{"instructions": [{"flops": 1}]}, {"instructions": [{"operand_dtype": "bf16"}]}],
    ),
    "allocations": (
        {"host_events": [_ALLOCATION], "event_stats": [_ALLOCATED]},
        [
            {"host_events": [_ALLOCATION | {"name": "x"}], "event_stats": [_ALLOCATED]},
            {"host_events": [_ALLOCATION], "event_stats": [_ALLOCATED | {"name": "addr"}]},
        ],
    ),
    "unit_counters": (
        {"plane_stats": [_COUNTER]},
        [{"plane_stats": [_COUNTER | {"name": "x"}]}, {"plane_stats": [_COUNTER | {"double_value": None}]}],
    ),
    "microbenchmark_programs": (
        {"instructions": [{"module": "jit_micro.copy.hbm.4096"}]},
        [{"instructions": [{"module": "jit_micros"}]}, {"instructions": [{"module": None}]}],
    ),
    "layers": ({"instructions": [{"stage_layer": 0}]}, [{"instructions": [{}]}]),
    "experts": ({"instructions": [{"part": "moe"}]}, [{"instructions": [{"part": "mlp", "layer": 0}]}]),
    "pipeline": ({"runs": [{"pp": 2}]}, [{"runs": [{"pp": 1}]}, {"runs": [{}]}]),
    "pipeline_transfers": (
        {"collectives": [_SUM | {"axis": "pp", "step": 0}]},
        [{"collectives": [_SUM | {"axis": "tp", "step": 0}]}, {"collectives": [_SUM | {"axis": "pp"}]}],
    ),
    "told_requests": (
        {"phases": [_PREFILL]},
        [
            {"phases": [_PREFILL, _PREFILL | {"index": 1, "start_us": 1}]},
            {"phases": [_PREFILL, _PREFILL | {"name": "mixed", "index": 1, "start_us": 1}]},
            {"phases": [_NAMELESS]},
        ],
    ),
    "told_sequences": ({"runs": [{"batch_size": 1}]}, [{"runs": [{}]}]),
    "known_tokens": (
        {"runs": [{"batch_size": 1, "input_length": 1}]},
        [{"runs": [{"batch_size": 1}]}, {"step_batches": [_BATCH | {"decode_tokens": None}]}],
    ),
    "lengths": ({"runs": [{"input_length": 1, "output_length": 1}]}, [{"runs": [{"input_length": 1}]}]),
    "model_name": ({"runs": [{"model": "llama"}]}, [{"runs": [{}]}]),
    "model_shape": (
        {"runs": [_MODEL]},
        [{"runs": [_MODEL | {"head_dim": None}]}, {"runs": [_MODEL | {"num_params_embedding": None}]}],
    ),
    "known_throughput": (
        {"metric_values": [{"metric": "throughput", "version": 1, "dimensions": "{}"}]},
        [{"metric_values": [{"metric": "ttft", "version": 1, "dimensions": "{}"}]}],
    ),
}
"""Rows that meet a precondition, and others that do not."""


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with warehouse_of({}) as database:
        yield database


def test_every_precondition_has_a_case() -> None:
    assert sorted(CASES) == PRECONDITIONS


@pytest.mark.parametrize("name", CASES)
def test_a_precondition_is_met_by_what_it_asks_for(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    met, unmet = CASES[name]
    for given, expected in [(met, {("r",)}), *((tables, set()) for tables in unmet)]:
        fill(connection, given)
        assert set(connection.execute(f"SELECT run_id FROM preconditions.{name}").fetchall()) == expected, given


def _told(connection: duckdb.DuckDBPyConnection, given: Tables) -> dict[str, tuple[str | None, str]]:
    fill(connection, {"runs": [{"backend": "tpu"}]} | given)
    rows = connection.execute("SELECT metric, unmet, reason FROM metrics.missing WHERE run_id = 'r'").fetchall()
    assert len(rows) == len({metric for metric, _, _ in rows})
    return {metric: (unmet, reason) for metric, unmet, reason in rows}


def test_the_first_unmet_need_is_the_reason(connection: duckdb.DuckDBPyConnection) -> None:
    """What a precondition needs itself comes before it: without steps it says nothing of phases."""
    assert _told(connection, {})["tpot"] == (
        "any_step",
        "no step is known; mark the steps, or name the program that begins one with `tw ingest --step PROGRAM`.",
    )
    for phases, unmet in (
        ([_NAMELESS], "known_phases"),
        ([_PREFILL], "decode"),
        ([_PREFILL, _NEXT], "followed_decode"),
        ([_STEP, _NEXT], None),
    ):
        assert _told(connection, {"phases": phases})["tpot"][0] == unmet


def test_a_compiled_program_has_collectives_and_no_times(connection: duckdb.DuckDBPyConnection) -> None:
    told = _told(connection, {"runs": [{"origin": "compiled"}]})
    others = {unmet for metric, (unmet, _) in told.items() if metric not in _OF_PROGRAMS}
    assert others == {"timed", "known_throughput", "predicted"}
    assert {told[metric][0] for metric in _OF_PROGRAMS} == {"any_collective"}
    untimed = _SUM | dict.fromkeys(("start_ps", "end_ps", "exposed_ps"))
    told = _told(connection, {"runs": [{"origin": "compiled"}], "collectives": [untimed]})
    assert told["collective_count"] == (None, ALL_MET)
    assert told["exposed_communication"][0] == "timed"
    assert told["traffic_rate"][0] == "timed"


_OF_PROGRAMS = (
    "collective_count",
    "traffic_volume",
    "traffic_by_parallelism",
    "traffic_matrix",
    "traffic_by_link",
)
"""What a compiled program tells as well as a capture."""


def test_a_metric_whose_needs_are_met_says_that_this_is_not_known(connection: duckdb.DuckDBPyConnection) -> None:
    assert _told(connection, {"phases": [_STEP, _NEXT]})["tpot"] == (None, ALL_MET)


def test_a_metric_with_a_value_is_not_missing(connection: duckdb.DuckDBPyConnection) -> None:
    value = {"metric": "tpot", "version": 1, "dimensions": "{}", "value": 1.0}
    told = _told(connection, {"metric_values": [value]})
    assert "tpot" not in told
    assert "ttft" in told


def test_a_metric_that_no_run_stores_is_missing_by_its_needs_alone(connection: duckdb.DuckDBPyConnection) -> None:
    assert _told(connection, {"ops": [_OP]})["roofline"][0] == "op_costs"
    assert "roofline" not in _told(connection, {"ops": [_OP], "instructions": [{"flops": 1}]})


def test_what_compares_runs_is_told_of_too(connection: duckdb.DuckDBPyConnection) -> None:
    assert _told(connection, {})["scaling_efficiency"][0] == "known_throughput"


def test_other_tools_definitions_and_deprecated_ones_are_left_out(connection: duckdb.DuckDBPyConnection) -> None:
    told = _told(connection, {})
    assert not [metric for metric in told if metric.startswith("ccl_")]
    fill(connection, {"runs": [{}]})
    versions = connection.execute("SELECT version FROM metrics.missing WHERE metric = 'step_time'").fetchall()
    assert versions == [(1,)]


def _unmet(warehouse: Warehouse) -> dict[str, dict[str, str]]:
    """Unmet precondition by metric and run; none may be unknown, nor be that of a metric with rows."""
    found: dict[str, dict[str, str]] = {r.name: {} for r in warehouse.lake.runs()}
    rows = warehouse.query("SELECT name, metric, unmet, reason FROM metrics.missing JOIN main.runs USING (run_id)")
    for name, metric, unmet, reason in rows.rows():
        assert unmet is not None, (name, metric, reason)
        found[name][metric] = unmet
    preconditions = " UNION ALL ".join(f"SELECT run_id, '{n}' AS need FROM preconditions.{n}" for n in PRECONDITIONS)
    met = set(warehouse.query(f"SELECT DISTINCT run_id, need FROM ({preconditions})").rows())
    stored = warehouse.query("SELECT DISTINCT run_id, metric, version FROM metrics.all_values")
    for run_id, metric, version in stored.rows():
        for need in warehouse.definitions.needs(warehouse.definitions.metric(metric, version)):
            assert (run_id, need.precondition) in met, (metric, warehouse.run(run_id).name)
    return found


_OF_TPUS = {
    "mfu": "accelerators",
    "ici_utilization": "accelerators",
    "copy_bandwidth": "async_copies",
    "hockney": "several_sizes",
    "faster_chips": "accelerators",
    "layer_bottleneck": "accelerators",
    "hbm_bandwidth": "memory_traffic",
    "roofline": "op_costs",
    "gemm_efficiency": "accelerators",
    "memory_in_use": "allocations",
    "unit_utilization": "unit_counters",
    "padding_waste": "padded_batches",
    "decode_cost_per_context_token": "decode_batches",
    "kv_cache_traffic": "known_caches",
    "prediction_basis": "predicted",
    "prediction_range": "predicted",
    "prediction_error": "accelerators",
    "token_cost": "accelerators",
    "microbenchmarks": "microbenchmark_programs",
}
"""What the captures of virtual CPU devices do not have."""
_NO_PIPELINE = {"pipeline_bubble": "pipeline"}
_NO_EXPERTS = {"moe_fraction": "experts"}


def test_captures_of_the_repository(all_captures: Warehouse) -> None:
    assert _unmet(all_captures) == {
        "deepseek_v2-ep4-b4-i16-o9": _OF_TPUS | _NO_PIPELINE,
        "deepseek_v2-ep4-b4-i16-o9-cfinf": _OF_TPUS | _NO_PIPELINE,
        "llama-pp2tp2-b4-i16-o5": _OF_TPUS | _NO_EXPERTS,
        "llama-pp2tp2-b4-i16-o5-hosts2": _OF_TPUS | _NO_EXPERTS | {"pipeline_bubble": "pipeline_transfers"},
        "llama-tp4-b4-i16-o17": _OF_TPUS | _NO_EXPERTS | _NO_PIPELINE,
        "llama-tp4-b4-i16-o17-jax": _OF_TPUS | _NO_EXPERTS | _NO_PIPELINE,
        "llama-tp4-sp-b4-i16-o9": _OF_TPUS | _NO_EXPERTS | _NO_PIPELINE,
        "qwen3-dp2tp2-b4-i16-o9": _OF_TPUS | _NO_EXPERTS | _NO_PIPELINE,
    }


def test_captures_of_other_programs(shared_captures: Warehouse) -> None:
    found = _unmet(shared_captures)
    gpu, v6e = found["gpu-mi300-jax-gemm"], found["tpu-v6e-4chip-host-offload"]
    assert gpu["ttft"] == gpu["tpot"] == v6e["ttft"] == v6e["e2e_latency"] == "known_phases"
    assert gpu["communication_time"] == "any_collective"
    assert gpu["ici_utilization"] == "inter_chip_links"
    assert gpu["load_imbalance"] == "several_devices"
    assert v6e["sync_wait"] == "ranks_to_compare"
    assert v6e["hockney"] == "whole_collectives"
    assert v6e["traffic_matrix"] == "known_traffic"
    assert v6e["traffic_by_link"] == "link_traffic"
    assert v6e["collective_attribution"] == "attributed_collectives"
    assert v6e["prefill_throughput"] == "known_phases"
    assert v6e["collective_frequency"] == v6e["traffic_rate"] == "collectives_in_steps"
    assert v6e["gemm_efficiency"] == "product_costs"
    for name in ("tpu-2chip-vllm-tp2-prefill", "chrome"):
        assert found[name]["tpot"] == "decode"
        assert found[name]["step_time"] == "followed_step"
        assert found[name]["mfu"] == found[name]["gemm_efficiency"] == "matrix_peak"
        assert found[name]["prefill_throughput"] == "prompt_tokens"
        assert found[name]["kv_cache_traffic"] == "decode"
        assert found[name]["ici_utilization"] == "link_peak"
        assert "ttft" not in found[name]
    assert found["cpu_llama_tp4"]["pipeline_bubble"] == "pipeline"
    assert found["cpu_llama_tp4"]["throughput"] == "told_sequences"
    assert found["cpu_llama_tp4"]["scaling_efficiency"] == "known_throughput"
