"""Expected hours of a sweep from predicted steps, and the runs that a budget of chip-hours pays for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.collect.tpu.fake_cloud import DP4TP4, Cloud
from tests.predict.test_capture import write
from tracewarehouse.cli.tpu import _predicted_steps
from tracewarehouse.collect.experiment import Experiment, load_experiment, run_spec
from tracewarehouse.collect.harness.generation import PROFILED_PAIRS
from tracewarehouse.collect.tpu.plan import (
    GENERATIONS,
    PlannedSlice,
    StepTimes,
    expected_s,
    plan_slices,
    step_key,
    with_hours,
    within_budget,
)
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.predict.calibrations import FILE, Calibration, described, write_calibrations
from tracewarehouse.warehouse import open_warehouse

FIELDS = {"device": "tpu", "dtype": "bfloat16", "batch": 8, "backend": "jax"}
BIG = run_spec(model="meta-llama/Llama-3.1-8B", mesh="tp=8", input_length=1024, output_length=129, **FIELDS)


def planned(*runs: tuple[str, str], **seconds: float) -> list[PlannedSlice]:
    """Slices for tiny models and meshes, with the seconds of each run by its model and mesh."""
    specs = [run_spec(model=model, mesh=mesh, **FIELDS) for model, mesh in runs]
    slices = plan_slices(Experiment.from_runs(*specs, timeout_s=3600), "v6e", load_quota())
    keys = [f"{model}_{mesh.replace('=', '')}" for model, mesh in runs]
    known = {spec.name: seconds[key] for spec, key in zip(specs, keys, strict=True) if key in seconds}
    return [replace(p, expected_s=known) for p in slices]


def test_a_run_takes_what_its_parts_take() -> None:
    """8.03 billion weights of 16 bits and 5 % are 16.86 GB, in 67.5 s; twelve generations of 0.1 s and 128 of 10 ms."""
    steps = {step_key(BIG): StepTimes(0.1, 0.01)}

    assert step_key(BIG) == ("Llama-3.1-8B", 32, "tp=8", None, None, 8, 1024, "bfloat16", None, None)
    seconds = expected_s(BIG, 1, steps)
    assert seconds == pytest.approx(60 + 67.45 + 2 * 60 + 12 * (0.1 + 128 * 0.01), abs=0.1)
    assert GENERATIONS == 2 + 2 * PROFILED_PAIRS
    assert expected_s(BIG.model_copy(update={"batch": 1}), 1, steps) is None
    assert expected_s(run_spec(model="microbenchmarks", backend="jax", device="tpu"), 1, {}) == 660


def test_a_part_of_a_model_and_experts_without_places_take_their_own_time() -> None:
    """The sweep of v6e has the whole DeepSeek-V3.1 with places and its first 20 layers as served, on one mesh."""
    fields = FIELDS | {"model": "deepseek-ai/DeepSeek-V3.1-Base", "mesh": "ep=8,tp=8", "input_length": 1024}
    whole, rest = run_spec(capacity_factor=1.25, **fields), ("bfloat16", None, None)

    assert step_key(whole) == ("DeepSeek-V3.1-Base", 61, "ep=8,tp=8", None, "1.25", 8, 1024, *rest)
    for other in ({"capacity_factor": "inf"}, {}, {"layers": 20, "capacity_factor": 1.25}, {"layers": 20}):
        assert expected_s(run_spec(**fields, **other), 16, {step_key(whole): StepTimes(1, 1)}) is None


def test_a_skew_and_microbatches_take_their_own_time(tmp_path: Path) -> None:
    """Both change the steps: the busiest device, and the bubble of the pipeline."""
    fields = FIELDS | {"model": "deepseek_v2", "mesh": "ep=4", "input_length": 256}
    even, skewed = run_spec(**fields), run_spec(routing_skew=1, **fields)
    two, four = (run_spec(**FIELDS, mesh="pp=2,tp=2", microbatches=count) for count in (2, 4))
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        for number, skew in enumerate((None, 1.0)):
            spec = {"routing_skew": skew}
            warehouse.ingest(write(tmp_path / str(number), spec=spec, chip_price_usd_per_h=1.0 + number))

    keys = set(_predicted_steps(tmp_path / "warehouse", "v6e"))

    assert {key[-1] for key in keys} == {None, 1.0}
    assert len(keys) == 2
    for one, other in ((even, skewed), (two, four)):
        assert expected_s(one, 1, {step_key(one): StepTimes(1, 1)}) is not None
        assert expected_s(other, 1, {step_key(one): StepTimes(1, 1)}) is None
    assert step_key(run_spec(**FIELDS, mesh="pp=2,tp=2")) == step_key(two)


def test_hours_are_said_only_where_all_are_known() -> None:
    other = BIG.model_copy(update={"batch": 16})
    slices = plan_slices(Experiment.from_runs(BIG, other, timeout_s=7200), "v6e", load_quota())

    (whole,) = with_hours(slices, {step_key(s): StepTimes(1, 1) for s in (BIG, other)})
    (part,) = with_hours(slices, {step_key(BIG): StepTimes(1, 1)})

    # 12 x 129 s and 4 minutes, twice
    assert "\texpected 1.0 h, 8 chip-hours\t" in whole.lines()[0]
    assert "at most 4.0 h, 32 chip-hours\texpected: not known of 1 run\t" in part.lines()[0]


def test_a_budget_pays_first_for_what_nothing_has_shown_yet() -> None:
    """At equal cost, a known model with a known parallelism comes after all others, though it stands before two."""
    runs = [("llama", "tp=4"), ("llama", "dp=4"), ("qwen3", "tp=4"), ("qwen3", "dp=4"), ("llama", "dp=2,tp=2")]
    hour = dict.fromkeys(("llama_tp4", "llama_dp4", "llama_dp2,tp2", "qwen3_tp4", "qwen3_dp4"), 3000.0)
    slices = planned(*runs, **hour)

    choice = within_budget(slices, 4 * (600 + 4 * 3000) / 3600 + 1e-6)

    (kept,) = choice.slices
    assert [run.name for run in kept.runs] == [run.name for run in slices[0].runs if run not in choice.left_out]
    assert [(run.model, run.folder.name) for run in choice.left_out] == [("qwen3", "tp4")]
    assert choice.chip_hours == pytest.approx(4 * 12600 / 3600)


def test_a_budget_takes_the_cheap_ones_and_counts_bounds_where_nothing_is_known() -> None:
    slices = planned(("llama", "tp=4"), ("llama", "tp=8"), ("qwen3", "tp=4"), llama_tp4=60.0, qwen3_tp4=60.0)

    few = within_budget(slices, 1.0)
    all_of_them = within_budget(slices, 4 * 720 / 3600 + 8 * 4200 / 3600 + 1e-6)
    nothing = within_budget(slices, 0.1)

    assert [run.model for s in few.slices for run in s.runs] == ["llama", "qwen3"]
    assert [run.folder.name for run in few.left_out] == ["tp8"]
    assert all_of_them.left_out == []
    assert (nothing.slices, len(nothing.left_out), nothing.chip_hours) == ([], 3, 0)


def test_no_budget_is_ever_exceeded() -> None:
    slices = plan_slices(load_experiment(Path("tpu_v6e")), "v6e", load_quota())
    names = {run.name for s in slices for run in s.runs}

    chosen = [within_budget(slices, hours) for hours in (1, 20, 64, 200, 10_000)]

    assert [choice.chip_hours <= hours for choice, hours in zip(chosen, (1, 20, 64, 200, 10_000), strict=True)] == [
        True
    ] * 5
    for choice in chosen:
        kept = {run.name for s in choice.slices for run in s.runs}
        assert kept | {run.name for run in choice.left_out} == names
        assert len(kept) + len(choice.left_out) == len(names)
    assert chosen[-1].left_out == []


def test_the_command_says_what_was_left_out(cloud: Cloud) -> None:
    done = cloud.tw("plan", cloud.experiment, "--generation", "v6e", "--budget", "3h")
    wrong = cloud.tw("plan", cloud.experiment, "--generation", "v6e", "--budget", "much")

    assert done.returncode == 0, done.stderr
    *_, spent, left = done.stdout.splitlines()
    assert (spent, wrong.returncode) == ("2.7 of 3 chip-hours", 2)
    assert left == f"left out\t{DP4TP4}"
    assert cloud.calls() == []


def test_steps_come_from_predicted_runs_of_the_generation(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(write(tmp_path))
        rows = "SELECT metric, MAX(value) FROM main.metric_values WHERE metric IN ('ttft', 'tpot') GROUP BY 1"
        told = dict(warehouse.query(rows).rows())

        warehouse.ingest(write(tmp_path / "slower", ici_factor=0.5, host_ms=50.0))  # what no real slice does

    steps = _predicted_steps(tmp_path / "warehouse", "v6e")

    assert list(steps) == [("small", 2, "tp=2", None, None, 4, 256, "bfloat16", None, None)]
    (times,) = steps.values()
    assert (times.prefill_s, times.decode_s) == (told["ttft"] / 1e3, told["tpot"] / 1e3)
    assert times.prefill_s > 0
    assert _predicted_steps(tmp_path / "warehouse", "v5e") == {}


def test_hours_are_by_the_newest_rates_and_never_by_a_what_if(tmp_path: Path) -> None:
    """A host adds its time to the prefill, which shows what was taken: a measured host counts, a given one does not."""
    own = [Calibration("links", "v6e", "host_step", "ms", 5.0, 4.0, 6.0, 20, "measured")]

    def prefill_ms(*captures: dict[str, Any], at: str) -> float:
        with open_warehouse(tmp_path / at, create=True) as warehouse:
            for number, changed in enumerate(captures):
                warehouse.ingest(write(tmp_path / f"{at}-{number}", **changed))
            if any("calibration" in changed for changed in captures):
                write_calibrations(tmp_path / at / FILE, own)
        (times,) = _predicted_steps(tmp_path / at, "v6e").values()
        return times.prefill_s * 1e3

    plain = prefill_ms({}, at="plain")
    for name, slower in {"host": {"host_ms": 7.0}, "kernel": {"kernels": {"paged": 9.0}, "host_ms": 1.0}}.items():
        assert prefill_ms(slower, {}, at=name) == plain
    today = {"calibration": described(own), "host_ms": 5.0}
    old = {"calibration": "calibrations.csv with 9 rows, 000000000000", "host_ms": 90.0}
    assert prefill_ms(today, old, {}, at="rates") == pytest.approx(plain + 5)
    assert prefill_ms(today | {"host_ms": 6.0}, {}, at="other host") == plain
