from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracewarehouse.collect.checks.promises import promised_collectives
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import READY_MADE, Experiment, load_experiment, plan, ready_made, run_spec
from tracewarehouse.collect.models.architectures import ARCHITECTURES
from tracewarehouse.collect.run_spec import RunSpec, stage_layout
from tracewarehouse.ingest.capture.locations import NAME as SAMPLE
from tracewarehouse.ingest.capture.locations import sample

STAGES = {"backend": "torch_xla"}
"""Whose hosts are the stages of a pipeline."""


def test_the_demo_records_the_workload_of_the_sample() -> None:
    """So the two can be compared, as the demo's last lines say."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    [options] = re.findall(r"collect (--model .*) -o ", makefile)
    names, values = (options.split()[at::2] for at in (0, 1))
    given = {
        n.removeprefix("--").replace("-", "_"): int(v) if v.isdigit() else v for n, v in zip(names, values, strict=True)
    }
    spec = run_spec(**given)
    recorded = json.loads((sample() / "manifest.json").read_text())["spec"]
    own = json.loads(spec.model_dump_json())
    said = [{k: v for k, v in of.items() if v is not None and k != "backend"} for of in (own, recorded)]

    assert said[0] == said[1]
    assert f"tw compare {spec.name} {SAMPLE}" in makefile


def test_the_default_run() -> None:
    spec = RunSpec()

    assert (spec.model, str(spec.mesh), spec.output_length) == ("llama", "tp=4", 17)
    assert spec.name == "llama-tp4-b4-i32-o17-jax"


@pytest.mark.parametrize(
    ("model", "layers", "said"),
    [
        ("llama", None, ""),
        ("llama", 2, ""),
        ("llama", 4, "-l4"),
        ("Qwen/Qwen3-4B", None, "-l36"),
        ("Qwen/Qwen3-4B", 2, "-l2"),
    ],
)
def test_a_name_without_layers_is_of_a_whole_tiny_model(model: str, layers: int | None, said: str) -> None:
    """A published model says its layers, also if they are all."""
    spec = run_spec(model=model, mesh="tp=2", **({} if layers is None else {"layers": layers}))

    assert spec.name == f"{Path(model).name}-tp2-b4-i32-o17{said}-jax"


@pytest.mark.parametrize("mesh", ["tp=2,dp=2", "dp=2,tp=2", {"tp": 2, "dp": 2}, {"axes": {"pp": 1, "dp": 2, "tp": 2}}])
def test_equal_meshes_are_the_same_run(mesh: Any) -> None:
    spec = run_spec(mesh=mesh)

    assert list(spec.mesh.axes) == ["dp", "tp"]
    assert spec.digest == run_spec(mesh="dp=2,tp=2").digest


fields = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["llama", "deepseek_v3"]),
        "mesh": st.sampled_from(["tp=1", "tp=2", "dp=2", "pp=2", "pp=2,tp=2"]),
        "batch": st.sampled_from([4, 8]),
        "input_length": st.sampled_from([16, 32]),
        "output_length": st.integers(1, 3),
        "layers": st.sampled_from([2, 4]),
        "dtype": st.sampled_from(["float32", "bfloat16"]),
        "seed": st.integers(0, 2),
        "repeat": st.integers(0, 2),
        "device": st.sampled_from(["cpu", "tpu"]),
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a loaded machine is slow to generate
@given(fields, fields)
def test_the_name_tells_runs_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = run_spec(**one), run_spec(**other)

    assert (first.name == second.name) == (first.digest == second.digest)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "gpt"}, "model: 'gpt' is not known; known are llama"),
        ({"mesh": "tp=3"}, "mesh: tp=3 does not divide the 8 attention heads"),
        (
            {"model": "qwen3", "mesh": "tp=8", "backend": "torch_xla"},
            "mesh: tp=8 needs copies of the 4 key-value heads, which torch_xla does not",
        ),
        ({"mesh": "ep=2"}, "mesh: ep=2 needs a model with experts"),
        ({"mesh": "sp=4"}, "mesh: sp is not an axis"),
        ({"mesh": "four"}, "mesh: mesh 'four': expected axis=size pairs"),
        ({"mesh": "pp=4"}, "mesh: pp=4 has more stages than there are layers: 2"),
        (
            {"model": "deepseek_v3", "mesh": "pp=4", "layers": 3},
            "mesh: pp=4 has more stages than there are layers: 1 dense layers, which are the first stage's, and 2 of",
        ),
        ({"mesh": "dp=4", "batch": 6}, "batch: dp x ep = 4 does not divide the 6 sequences"),
        ({"mesh": "pp=2", "microbatches": 3}, "batch: 3 microbatches does not divide the 4 sequences"),
        ({"microbatches": 2}, "microbatches: only a pipeline"),
        ({"mesh": "dp=4", "sequence_parallelism": "megatron"}, "sequence_parallelism: needs tp above 1"),
        (
            {"mesh": "pp=2,tp=2", "sequence_parallelism": "ring"},
            "sequence_parallelism: ring replaces the attention of a whole program, which pp maps over stages; "
            "give each a program of its own (backend: torch_xla, hosts: 2), or use megatron",
        ),
        ({"input_length": 30, "sequence_parallelism": "megatron"}, "input_length: tp=4 does not divide the 30"),
        ({"capacity_factor": 1.25}, "capacity_factor: llama has no experts; remove the field"),
        (
            {"routing_skew": 1, "backend": "jax"},
            "routing_skew: needs a model with experts and the jax backend, not llama with jax",
        ),
        (
            {"model": "qwen3_moe", "routing_skew": 1, "backend": "torch_xla"},
            "routing_skew: needs a model with experts and the jax backend, not qwen3_moe with torch_xla",
        ),
        ({"model": "qwen3_moe", "routing_skew": -1, "backend": "jax"}, "routing_skew: Input should be greater than or"),
        (
            {"model": "qwen3_moe", "capacity_factor": 0.5},
            "capacity_factor: expected a number from 1 on, or inf, found 0.5",
        ),
        ({"model": "qwen3_moe", "capacity_factor": "all"}, "capacity_factor: expected a number from 1 on, or inf"),
        ({"hosts": 2, "mesh": "tp=4", **STAGES}, "hosts: under torch_xla each stage is a host, so 2 hosts need pp=2"),
        ({"hosts": 2, "layers": 4, "mesh": "pp=4", **STAGES}, "each stage is a host, so 2 hosts need pp=2"),
        ({"hosts": 2, "mesh": "pp=2,dp=2", **STAGES}, "hosts: only meshes of pp and tp"),
        ({"hosts": 2, "mesh": "pp=2,tp=2", "microbatches": 2, **STAGES}, "microbatches: a pipeline over hosts"),
        ({"hosts": 3, "mesh": "tp=4"}, "hosts: 3 does not divide the 4 devices of the mesh tp=4"),
        ({"hosts": 2, "mesh": "tp=4", "device": "tpu"}, "hosts: are those of virtual devices; a TPU slice has its own"),
        ({"output_length": 0}, "output_length: Input should be greater"),
        ({"steps": 5}, "steps: is no field; fields are model, mesh"),
        ({"model": ["llama"]}, "model: Input should be a valid string"),
        ({"model": "m" * 300}, f"'{'m' * 80}...' is not known"),
        ({"model": "~nobody/model"}, "'~nobody/model' is not known"),
        ({"mesh": "pp=2t" + "9" * 400}, f"mesh: mesh 'pp=2t{'9' * 78}...':"),
        ({"backend": "b" * 400, "hosts": 2, "mesh": "pp=2"}, f"not {'b' * 80}...; remove the field"),
        ({"batch": int("9" * 400)}, "batch: Input should be"),
        ({"layers": 10**10}, "layers: Input should be less than or equal to 1024"),
    ],
)
def test_a_wrong_field_of_a_run_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError) as caught:
        run_spec(**wrong)
    assert message in str(caught.value)


def test_a_sweep_is_every_combination_but_the_excluded() -> None:
    experiment = Experiment.model_validate(
        {
            "defaults": {"input_length": 16},
            "matrix": {
                "model": ["llama", "qwen3"],
                "parallelism": [{"mesh": "tp=4"}, {"mesh": "tp=4", "sequence_parallelism": "megatron"}],
            },
            "exclude": [{"model": "qwen3", "sequence_parallelism": "megatron"}],
        }
    )

    assert [s.name for s in plan(experiment)] == [
        "llama-tp4-b4-i16-o17-jax",
        "llama-tp4-sp-b4-i16-o17-jax",
        "qwen3-tp4-b4-i16-o17-jax",
    ]


def test_repeats_record_each_run_again() -> None:
    names = [s.name for s in plan(Experiment.from_runs(RunSpec(), repeats=3))]

    assert names == [f"llama-tp4-b4-i32-o17{repeat}-jax" for repeat in ("", "-r1", "-r2")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("runs: [{model: llama}, {mesh: tp=3}]", "runs[1]: mesh: tp=3 does not divide"),
        ("matrix: {model: [llama], mesh: [tp=2, ep=2]}", "matrix[0] (model=llama, mesh=ep=2): mesh: ep=2 needs"),
        ("matrix: {model: llama}", "matrix.0.model: Input should be a valid list"),
        (
            "{matrix: {mesh: ['dp=2,tp=2']}, exclude: [{mesh: 'dp=2,tp=2'}, {modell: llama}]}",
            "exclude[1]: no combination of a matrix has modell=llama, as written there",
        ),
        ("runs: [{}, {mesh: tp=4}]", "runs[1]: the run llama-tp4-b4-i32-o17-jax is there already"),
        ("name: nothing", "has no run"),
        ("repeat: 2", "repeat: is no field; fields are name, description"),
        ("- a", "is a mapping of fields, found list"),
        ("a: [", "cannot be read as an experiment"),
        ("[" * 20_000, "cannot be read as an experiment: nested too deeply"),
        ("repeats: " + "9" * 5000, "cannot be read as an experiment"),
        (f"matrix: {{{', '.join(f'f{n}: [1, 2, 3, 4, 5, 6, 7, 8]' for n in range(40))}}}", "are planned"),
        ("repeats: 1000000000\nruns: [{}]", "has 1000000000 runs and combinations; at most 100,000"),
        ("repeats: 40000\nmatrix: [{batch_size: [1, 2]}, {batch_size: [3]}]", "has 120000 runs"),
        ("exclude: [{model: &a [x]}, {model: *a}]", "an alias (*name) is not read"),
    ],
)
def test_a_wrong_field_of_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "experiment.yaml"
    path.write_text(text)

    with pytest.raises(ExperimentError) as caught:
        load_experiment(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_absent_file_names_the_ready_made_ones(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="ready-made are backends, calibrate, captures, scaling, tiny"):
        load_experiment(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ready_made())
def test_ready_made_experiments_are_valid(name: str) -> None:
    assert load_experiment(Path(name)) == load_experiment(READY_MADE / f"{name}.yaml")


def test_planning_needs_no_torch() -> None:
    code = "import sys, tracewarehouse.collect.runner, tracewarehouse.collect.run_process\n"
    code += "from tracewarehouse.collect import experiment as e\ne.plan(e.Experiment.from_runs(e.RunSpec()))\n"
    code += "sys.exit(any(m.split('.')[0] in ('torch', 'torch_xla', 'transformers') for m in sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("mode", ["ulysses", "ring"])
def test_sequence_parallel_attention_is_for_dense_models_with_heads(mode: str) -> None:
    assert run_spec(sequence_parallelism=mode, model="qwen3", mesh="tp=2").name.startswith(f"qwen3-tp2-{mode}-")
    for model in ("deepseek_v3", "qwen3_moe"):
        with pytest.raises(ExperimentError, match=f"sequence_parallelism: {mode} is for dense models"):
            run_spec(sequence_parallelism=mode, model=model, mesh="tp=2")
    with pytest.raises(ExperimentError, match="with tiny models only; use jax"):
        run_spec(sequence_parallelism=mode, model="Qwen/Qwen3-4B", mesh="tp=2", device="tpu", backend="torch_xla")


def test_a_host_is_a_stage() -> None:
    spec = run_spec(mesh="pp=2,tp=2", hosts=2, **STAGES)
    assert spec.microbatch_count == 1
    assert spec.name.endswith("-hosts2")
    assert spec.digest != run_spec(mesh="pp=2,tp=2", **STAGES).digest


def test_hosts_of_jax_share_one_program() -> None:
    spec, alone = (run_spec(mesh="pp=2,tp=2", hosts=hosts) for hosts in (2, 1))
    assert (spec.backend, spec.microbatch_count) == ("jax", 2)
    assert promised_collectives(spec) == promised_collectives(alone)
    assert spec.name == "llama-pp2tp2-b4-i32-o17-hosts2-jax"


def test_every_combination_is_planned_or_refused_with_its_field() -> None:
    refused, planned = 0, 0
    for model, mode, hosts, pp, dp, ep, tp in itertools.product(
        ARCHITECTURES, (None, "megatron", "ulysses", "ring"), (1, 2), (1, 2), (1, 2), (1, 2), (1, 2, 4)
    ):
        mesh = {"pp": pp, "dp": dp, "ep": ep, "tp": tp}
        try:
            spec = run_spec(
                model=model, mesh=mesh, sequence_parallelism=mode, hosts=hosts, batch=8, **(STAGES if hosts > 1 else {})
            )
        except ExperimentError as error:
            refused += 1
            field = str(error).removeprefix("run: ").split(":")[0]
            assert field in RunSpec.model_fields, error
            continue
        planned += 1
        axes = {p.axis for p in promised_collectives(spec)}
        # Stages on hosts of their own share no collective; data parallelism has none.
        assert axes == {a for a in ("pp", "ep", "tp") if spec.axis(a) > 1} - ({"pp"} if hosts > 1 else set())
    assert refused > planned > 100


def by_slot(layers: int, dense: int, stages: int) -> list[list[int | None]]:
    layout = stage_layout(layers, dense, stages)
    return [layout.slot_layers(slot) for slot in range(layout.slots)]


@pytest.mark.parametrize(
    ("layers", "dense", "stages", "expected"),
    [
        (4, 0, 1, [[0], [1], [2], [3]]),
        (4, 0, 2, [[0, 2], [1, 3]]),
        # What does not divide goes to the last stage.
        (3, 0, 2, [[0, 1], [None, 2]]),
        # A dense layer has a slot of its own, on the first stage; the others are shared evenly.
        (5, 1, 2, [[0, None], [1, 3], [2, 4]]),
        (4, 1, 2, [[0, None], [1, 2], [None, 3]]),
        (2, 1, 2, [[0, None], [None, 1]]),
        # Dense layers alone are alike.
        (2, 3, 2, [[0, 1]]),
    ],
)
def test_layers_of_stages_worked_by_hand(
    layers: int, dense: int, stages: int, expected: list[list[int | None]]
) -> None:
    assert by_slot(layers, dense, stages) == expected


@given(st.integers(1, 70), st.integers(0, 70), st.integers(1, 9))
def test_every_layer_is_in_one_slot_of_its_kind(layers: int, dense: int, stages: int) -> None:
    try:
        slots = by_slot(layers, dense, stages)
    except ValueError as error:
        assert str(error).startswith(f"pp={stages} has more stages than")
        return
    by_stage = [[slot[s] for slot in slots if slot[s] is not None] for s in range(stages)]
    assert all(by_stage)
    assert [n for stage in by_stage for n in stage] == list(range(layers))
    dense = dense if dense < layers else 0
    assert all(len({n < dense for n in slot if n is not None}) == 1 for slot in slots)
    # No more slots than the fullest stage needs: one per dense layer, and the others spread evenly.
    assert len(slots) == dense + -(-(layers - dense) // stages)
    assert stage_layout(layers, dense, stages).layer_kinds()[:dense] == list(range(dense))
