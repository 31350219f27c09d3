"""What is planned for TPU slices: quota, sizes, memory, disk."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import Cloud
from tracewarehouse.collect.errors import ExperimentError, QuotaError, TpuError
from tracewarehouse.collect.experiment import Experiment, load_experiment, plan, ready_made, run_spec
from tracewarehouse.collect.tpu.plan import plan_slices
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.collect.tpu.state import Slice, State
from tracewarehouse.collect.tpu.weights import all_weights, weight_bytes


def entry(name: str, chips: int, zone: str, spot: bool) -> Slice:
    return Slice(
        name=name,
        owner="me",
        generation="v4",
        accelerator_type="x",
        chips=chips,
        hosts=1,
        zone=zone,
        spot=spot,
        runtime="r",
    )


def test_quota_counts_what_exists() -> None:
    quota = load_quota()
    used = [entry("a", 16, "us-central2-b", False), entry("b", 32, "us-central2-b", True)]

    assert quota.pool("v4", 16, used=used).spot is False
    with pytest.raises(QuotaError, match=r"32 chips of v4 .*on demand: 32 chips, 16 of them.*spot: 32 chips, 32 of"):
        quota.pool("v4", 32, used=used)


def test_quota_is_that_of_the_project() -> None:
    chips = {(p.generation, p.zone, p.spot): p.chips for p in load_quota().quota}

    assert chips == {
        ("v4", "us-central2-b", False): 32,
        ("v4", "us-central2-b", True): 32,
        ("v5e", "us-central1-a", True): 64,
        ("v5e", "europe-west4-b", True): 64,
        ("v6e", "us-east1-d", True): 64,
        ("v6e", "europe-west4-a", True): 64,
    }


def test_accelerator_types() -> None:
    quota = load_quota()

    assert quota.generation_and_chips("v4-8") == ("v4", 4)  # two cores per chip
    assert quota.generation_and_chips("v5litepod-16") == ("v5e", 16)
    with pytest.raises(TpuError, match="no slice of 2 chips; it has slices of 1, 4, 8"):
        quota.generation("v6e").accelerator_type(2)


@pytest.mark.parametrize("text", ["[", "generations: {}\nquota: [{generation: v1, zone: z, spot: true, chips: 1}]"])
def test_a_wrong_quota_table_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "quota.yaml").write_text(text)

    with pytest.raises(TpuError, match="cannot be read as a quota table"):
        load_quota(tmp_path / "quota.yaml")


def test_a_damaged_state_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")

    with pytest.raises(TpuError, match="cannot be read as a record of slices"):
        State(tmp_path / "state.json").slices()


def test_a_run_for_cpu_is_refused() -> None:
    with pytest.raises(TpuError, match="set device: tpu"):
        plan_slices(Experiment.from_runs(run_spec()), "v6e", load_quota())


def test_jax_runs_on_slices_of_several_hosts() -> None:
    runs = [run_spec(device="tpu", batch=16, mesh=mesh) for mesh in ("tp=4", "dp=4,tp=4")]
    planned = plan_slices(Experiment.from_runs(*runs), "v6e", load_quota())
    assert [(s.accelerator_type, s.hosts) for s in planned] == [("v6e-4", 1), ("v6e-16", 4)]


STUDY = [name for name in ready_made() if name.startswith("tpu_")]


def test_the_study_covers_every_generation() -> None:
    assert STUDY == ["tpu_v4", "tpu_v5e", "tpu_v6e"]


@pytest.mark.parametrize("name", STUDY)
def test_every_run_of_the_study_fits_its_chips_and_the_quota(name: str) -> None:
    experiment = load_experiment(Path(name))

    slices = plan_slices(experiment, name.removeprefix("tpu_"), load_quota())

    runs = plan(experiment)
    assert sorted(r.name for s in slices for r in s.runs) == sorted(r.name for r in runs)
    assert all(r.name in s.memory for s in slices for r in s.runs if r.is_published)
    assert {r.sequence_parallelism for r in runs} == {None, "megatron", "ulysses", "ring"}
    # Models and parallelisms are compared at equal lengths.
    assert {(r.batch, r.input_length, r.output_length) for r in runs} == {(8, 1024, 129)}
    models = {r.model.partition("/")[2] for r in runs}
    assert models >= {"DeepSeek-V2-Lite", "DeepSeek-V3.1-Base", "Qwen2.5-32B", "Llama-3.1-8B", "Llama-3.1-70B"}


def test_the_study_of_one_generation_does_not_fit_a_smaller_one() -> None:
    with pytest.raises(ExperimentError, match="and a TPU v5e chip has 16 GB"):
        plan_slices(load_experiment(Path("tpu_v6e")), "v5e", load_quota())


def test_plan_prints_slices_runs_and_memory(cloud: Cloud) -> None:
    done = cloud.tw("plan", "tpu_v6e", "--generation", "v6e")

    assert done.returncode == 0, done.stderr
    # 671 billion weights of 8 bits and 5 %; three runs of two hours; 6 h on 64 chips.
    assert (
        "v6e-64\t64 chips\t16 hosts\tus-east1-d\tv6e spot\t3 captures\tat most 6.0 h, 384 chip-hours\t"
        "expected: not known of 3 runs\t705 GB for weights (--data-disk or --bucket)"
    ) in done.stdout.splitlines()
    assert "DeepSeek-V3.1-Base-ep8tp8" in done.stdout
    assert "GB (weights" in done.stdout
    assert cloud.calls() == []


def test_weights_on_disk() -> None:
    eight_billion, deepseek = (
        run_spec(model="meta-llama/Llama-3.1-8B"),
        run_spec(model="deepseek-ai/DeepSeek-V3.1-Base"),
    )
    few = run_spec(model="deepseek-ai/DeepSeek-V3.1-Base", layers=20)

    assert weight_bytes(eight_billion) == math.ceil(1.05 * 2 * 8_030_261_248)
    assert weight_bytes(deepseek) == math.ceil(1.05 * 671_026_404_352)
    assert weight_bytes(run_spec()) == 0
    assert weight_bytes(few) < weight_bytes(deepseek) / 3 + 2e9
    assert all_weights([eight_billion, deepseek, few]) == weight_bytes(deepseek) + weight_bytes(eight_billion)


@pytest.mark.parametrize(
    ("kind", "chips", "name"),
    [
        ("TPU v6e", 8, "mesh-2x4"),
        ("TPU v6e", 256, "torus-16x16"),
        ("TPU v4", 8, "mesh-2x2x2"),
        ("TPU v4", 64, "torus-4x4x4"),
    ],
)
def test_a_torus_is_a_network_all_of_whose_rows_close(kind: str, chips: int, name: str) -> None:
    assert load_quota().network(kind, chips) == name


def test_the_network_of_other_chips_is_not_known() -> None:
    assert load_quota().network("TPU v5p", 8) is None
    assert load_quota().network("TPU v6e", 6) is None
