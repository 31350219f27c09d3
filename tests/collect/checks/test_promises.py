from __future__ import annotations

from tracewarehouse.collect.checks.promises import promised_collectives, routed_pairs
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.ingest.capture.manifest import PromisedCollective


def promised(phase: str, kind: str, axis: str, count: int, stage: int | None = None) -> PromisedCollective:
    return PromisedCollective(phase=phase, kind=kind, axis=axis, count=count, stage=stage)


def test_data_parallelism_promises_nothing() -> None:
    assert promised_collectives(run_spec(mesh="dp=4")) == []


def test_tensor_parallelism_reduces_twice_a_layer() -> None:
    assert promised_collectives(run_spec(mesh="dp=2,tp=2", layers=3)) == [
        promised("prefill", "all-reduce", "tp", 6),
        promised("decode", "all-reduce", "tp", 6),
    ]


def test_experts_are_there_in_all_layers_but_the_first() -> None:
    # One dense layer: 2 reductions. Two layers of experts: attention, shared and routed experts each.
    fields = {"model": "deepseek_v3", "mesh": "ep=2,tp=2", "layers": 3, "output_length": 1, "capacity_factor": 1.25}
    assert promised_collectives(run_spec(**fields)) == [
        promised("prefill", "all-reduce", "tp", 2 + 3 * 2),
        promised("prefill", "all-to-all", "ep", 4),
    ]


def test_experts_as_served_take_ragged_exchanges_where_the_devices_have_them() -> None:
    fields = {"model": "deepseek_v3", "mesh": "ep=2", "layers": 3, "output_length": 1, "backend": "jax"}
    # Two layers of experts: the numbers of rows, to the experts, and back.
    assert promised_collectives(run_spec(**fields)) == [promised("prefill", "all-to-all", "ep", 2 * 3)]
    assert promised_collectives(run_spec(**fields, device="tpu")) == [
        promised("prefill", "all-to-all", "ep", 2),
        promised("prefill", "ragged-all-to-all", "ep", 2 * 2),
    ]
    by_capacity = run_spec(**fields, device="tpu", capacity_factor=1.25)
    assert promised_collectives(by_capacity) == [promised("prefill", "all-to-all", "ep", 2 * 2)]


def test_pairs_of_token_and_expert_are_counted_over_layers_and_steps() -> None:
    # 4 sequences of 32 tokens, and one more in each of 3 further steps; 2 layers of experts, 2 experts a token.
    assert routed_pairs(run_spec(model="deepseek_v3", mesh="ep=2", layers=3, output_length=4)) == 4 * 35 * 2 * 2


def test_a_pipeline_runs_its_layers_in_every_tick() -> None:
    # 2 stages of 2 layers, 4 microbatches: 5 ticks.
    spec = run_spec(mesh="pp=2,tp=2", layers=4, microbatches=4, output_length=1)
    assert promised_collectives(spec) == [
        promised("prefill", "all-reduce", "tp", 5 * 2 * 2),
        promised("prefill", "collective-permute", "pp", 4),
        promised("prefill", "all-reduce", "pp", 1),
    ]


def test_a_split_sequence_scatters_in_prefill_only() -> None:
    assert promised_collectives(run_spec(sequence_parallelism="megatron")) == [
        promised("prefill", "all-gather", "tp", 4),
        promised("prefill", "reduce-scatter", "tp", 4),
        promised("prefill", "all-reduce", "tp", 1),  # the last position
        promised("decode", "all-reduce", "tp", 4),
    ]


def test_a_split_sequence_in_a_pipeline_scatters_in_every_tick() -> None:
    # 3 ticks of one layer; the last position of each of the 2 microbatches.
    spec = run_spec(mesh="pp=2,tp=2", sequence_parallelism="megatron", output_length=1)
    assert promised_collectives(spec) == [
        promised("prefill", "all-gather", "tp", 3 * 2),
        promised("prefill", "reduce-scatter", "tp", 3 * 2),
        promised("prefill", "all-reduce", "tp", 2),
        promised("prefill", "collective-permute", "pp", 2),
        promised("prefill", "all-reduce", "pp", 1),
    ]


def test_ulysses_exchanges_four_times_and_ring_passes_keys_and_values_on() -> None:
    decode = promised("decode", "all-gather", "tp", 3)
    assert promised_collectives(run_spec(sequence_parallelism="ulysses", layers=3)) == [
        promised("prefill", "all-to-all", "tp", 4 * 3),
        promised("prefill", "all-reduce", "tp", 1),
        decode,
    ]
    assert promised_collectives(run_spec(sequence_parallelism="ring", layers=3, mesh="tp=4")) == [
        promised("prefill", "collective-permute", "tp", 3 * 2 * 3),
        promised("prefill", "all-to-all", "tp", 2 * 3),
        promised("prefill", "all-reduce", "tp", 1),
        decode,
    ]


def test_between_hosts_there_is_no_collective() -> None:
    # Each host runs one of the two layers, once a step.
    spec = run_spec(mesh="pp=2,tp=2", hosts=2, backend="torch_xla", output_length=1)
    assert promised_collectives(spec) == [promised("prefill", "all-reduce", "tp", 2, stage) for stage in (0, 1)]

    split = run_spec(mesh="pp=2,tp=2", hosts=2, backend="torch_xla", output_length=1, sequence_parallelism="ulysses")
    assert promised_collectives(split) == [
        *(promised("prefill", "all-to-all", "tp", 4, stage) for stage in (0, 1)),
        promised("prefill", "all-reduce", "tp", 1, 1),  # the last position, on the last host
    ]


def test_unlike_stages_share_a_program_or_have_one_each() -> None:
    # A dense layer (2 reductions) and three of experts (3 each): stage 0 has one of each kind, stage 1 has two.
    one, each = (
        run_spec(model="deepseek_v3", mesh="pp=2,tp=2", layers=4, output_length=1, hosts=hosts, backend="torch_xla")
        for hosts in (1, 2)
    )
    # 3 ticks of 3 slots, one dense.
    assert promised_collectives(one)[0] == promised("prefill", "all-reduce", "tp", 3 * (2 + 2 * 3))
    assert promised_collectives(each) == [
        promised("prefill", "all-reduce", "tp", 2 + 3, 0),
        promised("prefill", "all-reduce", "tp", 2 * 3, 1),
    ]
