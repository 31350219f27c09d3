"""The harness's programs, compiled by the real TPU compiler, which needs no TPU.

Where jax and libtpu are installed, a program of each backend is compiled, and one for two devices a chip. The others
take minutes: they run if TRACEWAREHOUSE_TEST_LIBTPU names the interpreter that has both, this or another one.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.collect import ahead_of_time
from tracewarehouse.collect.ahead_of_time import CompiledRun, CompiledStep, Configuration, compile_all, kept_programs
from tracewarehouse.collect.checks.promises import expert_places
from tracewarehouse.collect.errors import CollectError, MissingDependencyError
from tracewarehouse.collect.experiment import load_experiment, run_spec
from tracewarehouse.collect.memory import chip_memory, memory_need
from tracewarehouse.collect.models.architectures import model_architecture
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.collect.parallel.attention_forms import attention_forms
from tracewarehouse.collect.parallel.expert_places import Rows
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology, as_hlo_proto, donated_arguments, without_folders
from tracewarehouse.collect.tpu.plan import plan_slices
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.ingest.hlo.program import CLASSES
from tracewarehouse.predict.configuration import configuration, device_bytes
from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter that can compile for TPUs; tests that need one skip where there is none."""
    named = os.environ.get("TRACEWAREHOUSE_TEST_LIBTPU", sys.executable)
    check = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('jax', 'libtpu'))))"
    if subprocess.run([named, "-c", check], check=False).returncode:
        pytest.skip("jax and libtpu are not installed here; TRACEWAREHOUSE_TEST_LIBTPU names an interpreter with both")
    return named


def compile_ahead(spec: RunSpec, topology: str, folder: Path, python: str = sys.executable) -> list[CompiledStep]:
    """The compiled steps of a run; a refusal is raised."""
    [run] = compile_all([Configuration(spec, topology)], folder, python)
    if run.refused is not None:
        raise CollectError(run.refused)
    return list(run.steps)


def require_time() -> None:
    """Skip where nobody asked for what takes long."""
    if "TRACEWAREHOUSE_TEST_LIBTPU" not in os.environ:
        pytest.skip("takes long; TRACEWAREHOUSE_TEST_LIBTPU names the interpreter to compile with")


TWO_DEVICES_A_CHIP = "tpu7x:2x2x1"
WIDE = "wide"
"""A model whose heads are as wide as published ones."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("v6e:2x4", {"model": "llama", "mesh": "tp=8"}),
    "attention kernels in both phases": ("v6e:2x2", {"model": WIDE, "mesh": "dp=2,tp=2", "input_length": 128}),
    "attention kernels with megatron": (
        "v5e:2x2",
        {"model": WIDE, "mesh": "tp=4", "sequence_parallelism": "megatron", "input_length": 128},
    ),
    "shared and routed experts joined": ("v6e:2x4", {"model": "deepseek_v2", "mesh": "tp=8"}),
    "experts over three axes": ("v5e:2x4", {"model": "deepseek_v3", "mesh": "dp=2,ep=2,tp=2"}),
    "megatron": ("v5e:2x4", {"model": "llama", "mesh": "tp=8", "sequence_parallelism": "megatron"}),
    "all-gathers spread over fusions": (
        "v5e:2x4",
        {"model": "llama", "mesh": "tp=8", "sequence_parallelism": "ulysses"},
    ),
    "pipeline": ("v6e:2x4", {"model": "qwen3_moe", "mesh": "pp=2,ep=4"}),
    "jax, attention kernels in both phases": (
        "v6e:2x2",
        {"backend": "jax", "model": WIDE, "mesh": "dp=2,tp=2", "input_length": 128},
    ),
    "jax, latent attention has a kernel in the prefill": (
        "v6e:2x2",
        {"backend": "jax", "model": "deepseek_v3", "mesh": "ep=2,tp=2", "input_length": 128},
    ),
    "jax, a pipeline": (
        "v5e:2x4",
        {"backend": "jax", "model": "deepseek_v2", "mesh": "pp=2,ep=2,tp=2", "layers": 3},
    ),
    "jax, v4": ("v4:2x2x1", {"backend": "jax", "model": "llama", "mesh": "dp=2,tp=2"}),
    "jax, two devices a chip": (TWO_DEVICES_A_CHIP, {"backend": "jax", "model": "qwen3", "mesh": "tp=8"}),
    "jax, one chip": ("v5e:1x1", {"backend": "jax", "model": "llama", "mesh": "tp=1"}),
    "jax, 64 chips": ("v6e:8x8", {"backend": "jax", "model": "qwen2", "mesh": "dp=8,tp=8"}),
    "jax, attention kernels in a pipeline": (
        "v6e:2x2",
        {"backend": "jax", "model": WIDE, "mesh": "pp=2,tp=2", "input_length": 128},
    ),
}


ALWAYS = {"attention kernels in both phases", "jax, a pipeline"}
"""Beside them the program that is compiled once is for two devices a chip."""


def instructions(step: CompiledStep) -> list[Any]:
    """All instructions of a compiled step."""
    module = CLASSES["HloProto"].FromString(gzip.decompress(step.file.read_bytes())).hlo_module
    return [i for computation in module.computations for i in computation.instructions]


GRID = re.compile(r"iteration_bounds = array<i64: ([-\d, ]+)>")
WINDOW = re.compile(r"window_bounds = array<i64: (\d+), \d+>")
ANY_NUMBER = str(-(2**63))
"""The bound of a kernel's grid that its operands tell when it runs."""


def grouped_products(step: CompiledStep) -> list[int]:
    """Rows of a tile of each grouped product of a step, whose kernel has as many tiles as the routed rows need."""
    found = []
    for product in instructions(step):
        if product.name.startswith(b"ragged-dot-none"):
            body = base64.b64decode(json.loads(product.backend_config)["custom_call_config"]["body"]).decode()
            (bounds,), (rows, *_) = GRID.findall(body), WINDOW.findall(body)
            assert bounds.split(", ")[1] == ANY_NUMBER, bounds
            found.append(int(rows))
    return found


def multiplied_rows(sizes: list[int], tile: int) -> int:
    """Rows that the tiles of a grouped product multiply, if the groups of these sizes lie one behind the other."""
    ends = list(accumulate(sizes))
    return tile * sum(-(-end // tile) - (end - size) // tile for size, end in zip(sizes, ends, strict=True) if size)


def kernels(step: CompiledStep) -> int:
    """How many kernels a compiled step runs, but for grouped products."""
    found = [i for i in instructions(step) if i.custom_call_target == b"tpu_custom_call"]
    return sum(not i.name.startswith(b"ragged-dot") for i in found)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_tpu_program_keeps_what_the_harness_promises(tmp_path: Path, python: str, case: str) -> None:
    if case not in ALWAYS:
        require_time()
    topology, fields = CASES[case]
    if fields.get("backend") != "jax":
        pytest.importorskip("torch_xla")
    if fields["model"] == WIDE:
        from tests.published_checkpoint import write_checkpoint

        write_checkpoint(tmp_path / WIDE, "qwen3", head_dim=128)
        fields = fields | {"model": str(tmp_path / WIDE)}
    spec = run_spec(**{"batch": 8, "output_length": 3, "backend": "torch_xla", **fields})
    steps = compile_ahead(spec, topology, tmp_path / "compiled", python)
    forms = attention_forms(spec.model_copy(update={"device": "tpu"}))
    ticks = spec.microbatch_count + spec.axis("pp") - 1
    slots = spec.stage_layout.slots * ticks if spec.axis("pp") > 1 else spec.layers
    for step in steps:
        assert kernels(step) == (slots if forms[f"{step.phase}_attention"] in ("flash", "paged") else 0)
    if spec.capacity_factor is None and spec.backend == "jax":
        sparse = slots - ticks * model_architecture(spec.model).first_dense_layers
        routed = sparse if model_architecture(spec.model).is_moe else 0
        assert [len(grouped_products(step)) for step in steps] == [3 * routed] * 2  # gate, up and down
    assert [s.phase for s in steps] == ["prefill", "decode"]
    assert all(device_bytes(s.memory) <= chip_memory(s.chip) for s in steps)
    assert all(0 < s.memory["aliased"] <= s.memory["outputs"] for s in steps)  # the cache is donated
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        for step in steps:
            warehouse.ingest(step.file, name=step.phase)
        assert warehouse.query("SELECT flag, detail FROM main.quality_flags").rows() == []
        told = warehouse.query("SELECT name, mesh, device_count FROM main.runs ORDER BY name").rows()
        chips = spec.mesh.size
        mesh = fields["mesh"] if chips > 1 else "single"
        assert told == [("decode", mesh, chips), ("prefill", mesh, chips)]
        unknown = warehouse.query("SELECT COUNT(*) FROM main.collectives WHERE message_bytes IS NULL").rows()
        assert unknown == [(0,)]
        # Nothing is added but the two gathers of the argmax.
        sql = "SELECT COUNT(*) FROM main.collectives WHERE kind = 'all-gather' AND axis <> 'tp'"
        assert warehouse.query(sql).rows() == [(0,)]


PUBLISHED = {
    "meta-llama/Llama-3.1-8B": ("v6e:2x4", "tp=8", 1),
    "Qwen/Qwen2.5-32B": ("v6e:2x4", "tp=8", 1),
    "Qwen/Qwen3-32B": ("v6e:4x4", "tp=16", 1),
    "meta-llama/Llama-3.1-70B": ("v4:2x4x4", "tp=32", 1),
    "Qwen/Qwen3-30B-A3B": ("v6e:2x4", "ep=2,tp=4", 1),
    "deepseek-ai/DeepSeek-V3.1-Base": ("v6e:2x4", "ep=2,tp=4", 4),
}
"""A model of each family with its slice and mesh, and so many layers that each kind is there."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", PUBLISHED)
def test_a_published_shape_compiles_without_weights(tmp_path: Path, python: str, model: str) -> None:
    """JAX needs only shapes; no file of the model is here, and no weight is in memory."""
    require_time()
    topology, mesh, layers = PUBLISHED[model]
    spec = run_spec(model=model, backend="jax", mesh=mesh, layers=layers, batch=8, input_length=128, output_length=3)
    steps = compile_ahead(spec, topology, tmp_path / "compiled", python)
    weights = memory_need(pretrained_model(model), spec).weights
    for step in steps:
        # Beside the weights a chip has the cache, which is small here; the compiler pads a little.
        assert weights <= step.memory["arguments"] < 1.05 * weights
        with open_warehouse(tmp_path / step.phase, create=True) as warehouse:
            warehouse.ingest(step.file)
            assert warehouse.query("SELECT flag, detail FROM main.quality_flags").rows() == []


@pytest.mark.slow
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("generation", ["v4", "v5e", "v6e"])
def test_every_program_of_the_sweeps_compiles_for_its_slice(tmp_path: Path, python: str, generation: str) -> None:
    """All 82 runs take 140 CPU minutes; what `kept_programs` has is not compiled again. `ALWAYS` is the sample.

    Fewer layers would save little: the compiler makes equal fusions once, and a prefill of Llama-3.1-8B took 42 CPU s
    with two layers and 48 with eight.
    """
    require_time()
    quota = load_quota()
    slices = plan_slices(load_experiment(Path(f"tpu_{generation}")), generation, quota)
    sides = quota.generation(generation).topology
    runs = [configuration(run, f"{generation}:{sides[each.chips]}") for each in slices for run in each.runs]
    done = list(compile_all(runs, tmp_path / "compiled", python, kept_programs()))

    refused = {f"{run.configuration.spec.name} on {run.configuration.topology}": run.refused for run in done}
    assert {name: why for name, why in refused.items() if why} == {}
    assert all([step.phase for step in run.steps] == ["prefill", "decode"] for run in done)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_experts_multiply_the_rows_that_are_routed_to_them(tmp_path: Path, python: str) -> None:
    """They, and the rest of their tiles; not the room for every routing, which is eight times as large here."""
    require_time()
    fields = {"model": "deepseek-ai/DeepSeek-V2-Lite", "mesh": "ep=8", "layers": 2, "batch": 8, "input_length": 1024}
    spec = run_spec(backend="jax", device="tpu", output_length=1, **fields)
    (step,) = compile_ahead(spec, "v6e:2x4", tmp_path / "compiled", python)
    rows = expert_places(spec)["prefill"]
    assert isinstance(rows, Rows)
    assert (rows.mean_computed, rows.computed) == (1024 * 6, 8 * 1024 * 6)
    tiles = grouped_products(step)
    assert len(tiles) == 3  # gate, up and down of the one layer of experts
    even, uneven = [768] * 8, [1100, 436, 1300, 236, 768, 900, 704, 700]
    for tile in tiles:
        assert sum(even) == sum(uneven) == rows.mean_computed == multiplied_rows(even, tile)
        assert multiplied_rows(uneven, tile) < 1.35 * rows.mean_computed


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ("v6e:2x2", "topology v6e:2x2 has 4 chips, and tp=8 is a mesh of 8"),
        ("v4:2x2x1", "topology v4:2x2x1 has 4 chips, and tp=8 is a mesh of 8"),
        ("tpu7x:2x2x2", "topology tpu7x:2x2x2 has 8 chips, which are 16 devices, and tp=8 is a mesh of 8"),
        ("v6e:0x8", "topology v6e:0x8: expected"),
        ("v6e", "topology v6e: expected generation and chips per dimension, such as v6e:2x4"),
        ("v6e-8", "topology v6e-8: expected"),
        ("2x4", "topology 2x4: expected"),
        ("v6e:2x", "topology v6e:2x: expected"),
    ],
)
def test_a_topology_that_cannot_be_the_mesh_is_refused_before_anything_is_traced(
    tmp_path: Path, topology: str, said: str
) -> None:
    with pytest.raises(CollectError, match=said):
        compile_ahead(run_spec(mesh="tp=8", batch=8), topology, tmp_path / "a", str(tmp_path / "no python"))


@pytest.mark.slow
def test_a_topology_that_libtpu_does_not_know(tmp_path: Path, python: str) -> None:
    with pytest.raises(CollectError, match=r"compiling for v99:2x4 failed: v99:2x4: "):
        compile_ahead(run_spec(backend="jax", mesh="tp=8", batch=8), "v99:2x4", tmp_path / "b", python)


def test_without_a_compiler_the_error_says_what_to_install(tmp_path: Path) -> None:
    spec = run_spec(model="llama", mesh="tp=8", batch=8)
    with pytest.raises(MissingDependencyError, match=r"tracewarehouse\[jax\]"):
        compile_ahead(spec, "v6e:2x4", tmp_path / "a", str(tmp_path / "no python"))
    lacking = tmp_path / "python"
    lacking.write_text("#!/bin/sh\nexit 1\n")
    lacking.chmod(0o755)
    with pytest.raises(MissingDependencyError, match="lacks"):
        compile_ahead(spec, "v6e:2x4", tmp_path / "b", str(lacking))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("exit 1", r"failed: RESOURCE_EXHAUSTED: Ran out of.*; use more chips, a sm"),
        ("kill $$", r"failed: its process was ended by SIGTERM; run the same again$"),
    ],
)
def test_what_the_compiler_refuses_is_said_with_what_to_do(tmp_path: Path, end: str, told: str) -> None:
    python = tmp_path / "python"
    said = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Ran out of memory on HBM"
    python.write_text(f'#!/bin/sh\ntest "$1" = -c && exit 0\necho "{said}" >&2\n{end}\n')
    python.chmod(0o755)
    spec = run_spec(backend="jax", mesh="tp=8", batch=8)
    with pytest.raises(CollectError, match=rf"v6e:2x4 {told}"):
        compile_ahead(spec, "v6e:2x4", tmp_path / "a", str(python))


COMPILER = """
import json, os, pathlib, sys
kept = pathlib.Path(__file__).with_suffix(".processes")
kept.write_text(kept.read_text() + "x" if kept.exists() else "x")
for number, line in enumerate(sys.stdin):
    task = json.loads(line)
    batch, folder = task["spec"]["batch"], pathlib.Path(task["folder"])
    if batch == 16:
        os.kill(os.getpid(), 9)
    if batch == 24:
        sys.exit("error: cannot be traced")
    if batch == 32 and number:
        sys.exit(0)  # it has grown
    folder.mkdir(parents=True)
    memory = dict.fromkeys(["arguments", "outputs", "aliased", "temporaries", "program"], batch)
    for phase in ("prefill", "decode"):
        (folder / (phase + ".json")).write_text(json.dumps({"device_kind": "TPU v6 lite", "memory": memory}))
    print(json.dumps("Ran out of memory" if batch == 40 else None), flush=True)
"""
"""A compiler that refuses some batches, and dies of others."""


def test_many_runs_share_processes_and_none_fails_for_another(tmp_path: Path) -> None:
    (tmp_path / "compiler.py").write_text(COMPILER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ntest "$1" = -c && exit 0\nexec {sys.executable} {tmp_path}/compiler.py\n')
    python.chmod(0o755)
    runs = [_on_v6e(batch) for batch in (8, 16, 24, 8, 32, 40, 8)]
    runs.insert(1, _on_v6e(8, "v6e:2x2"))
    told = _all(runs, tmp_path, python)
    assert [r.configuration for r in told] == runs
    assert [(r.configuration.spec.batch, r.refused, [s.memory["program"] for s in r.steps]) for r in told] == [
        (8, None, [8, 8]),
        (8, "topology v6e:2x2 has 4 chips, and tp=8 is a mesh of 8", []),
        (16, "compiling for v6e:2x4 failed: its process was ended by SIGKILL; run the same again", []),
        (24, "compiling for v6e:2x4 failed: cannot be traced", []),
        (8, None, [8, 8]),
        (32, None, [32, 32]),
        (
            40,
            "compiling for v6e:2x4 failed: Ran out of memory; use more chips, a smaller batch or shorter prompts",
            [],
        ),
        (8, None, [8, 8]),
    ]
    # To the misfit; to the kill; to the exit; the eighth until it has grown; the rest.
    assert len((tmp_path / "compiler.processes").read_text()) == 5


def test_a_compiler_that_says_nothing_is_not_asked_for_ever(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 0\n")
    python.chmod(0o755)
    runs = [_on_v6e(batch) for batch in (8, 16)]
    assert [r.refused for r in _all(runs, tmp_path, python)] == ["compiling for v6e:2x4 failed: exit code 0"] * 2


def _on_v6e(batch: int, topology: str = "v6e:2x4") -> Configuration:
    return Configuration(run_spec(backend="jax", mesh="tp=8", batch=batch), topology)


def _all(runs: list[Configuration], folder: Path, python: Path) -> list[CompiledRun]:
    return list(compile_all(runs, folder / "compiled", str(python)))


@pytest.mark.slow
def test_a_program_is_compiled_once(tmp_path: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time nothing is compiled: the kept programs are taken, whatever is in them; refusals too.

    Nor is the model traced, unless our own source has changed.
    """

    def processes(*_: Any, **__: Any) -> Any:
        raise AssertionError("a process was started")

    spec, kept = run_spec(backend="jax", model="qwen3", mesh="tp=8", batch=8, output_length=1), tmp_path / "kept"
    [first] = compile_all([Configuration(spec, TWO_DEVICES_A_CHIP)], tmp_path / "first", python, kept)
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(first.steps[0].file)
        assert warehouse.query("SELECT mesh, device_count FROM main.runs").rows() == [("tp=8", 8)]
        assert warehouse.query("SELECT flag, detail FROM main.quality_flags").rows() == []
    [folder] = [file.parent for file in kept.glob("*/program.json")]
    assert (folder / "program.hlo.pb.gz").read_bytes() == first.steps[0].file.read_bytes()
    (folder / "program.hlo.pb.gz").write_bytes(b"kept")
    with monkeypatch.context() as patch:
        patch.setattr(ahead_of_time, "_source", lambda: "other")
        [again] = compile_all([Configuration(spec, TWO_DEVICES_A_CHIP)], tmp_path / "again", python, kept)
    monkeypatch.setattr(ahead_of_time, "start_process", processes)
    [second] = compile_all([Configuration(spec, TWO_DEVICES_A_CHIP)], tmp_path / "second", python, kept)
    assert again.steps[0].file.read_bytes() == b"kept"
    manifests = [run.steps[0].file.with_name("manifest.json").read_text() for run in (first, again, second)]
    assert len(set(manifests)) == 1
    assert (second.steps[0].file.read_bytes(), second.steps[0].memory) == (b"kept", first.steps[0].memory)
    (folder / "refused.txt").write_text("too large")
    [third] = compile_all([Configuration(spec, TWO_DEVICES_A_CHIP)], tmp_path / "third", python, kept)
    assert third.refused == f"compiling for {TWO_DEVICES_A_CHIP} failed: too large"
    larger = Configuration(spec.model_copy(update={"batch": 16}), TWO_DEVICES_A_CHIP)
    with pytest.raises(AssertionError, match="a process was started"):
        list(compile_all([larger], tmp_path / "fourth", python, kept))


@pytest.mark.parametrize(
    ("name", "devices", "told"),
    [
        ("v6e:1x1", 1, {"chips_per_host_bounds": [1, 1, 1]}),
        ("v5e:1x2", 2, {"chips_per_host_bounds": [1, 2, 1]}),
        ("v6e:2x4", 8, {}),
        ("v5e:8x16", 128, {"wrap": (False, True, False)}),
        ("v6e:16x16", 256, {"wrap": (True, True, False)}),
        ("v4:2x2x4", 16, {"chip_config_name": "megacore"}),
        ("v4:4x4x4", 64, {"chip_config_name": "megacore", "wrap": (True, True, True)}),
        ("tpu7x:2x2x1", 8, {}),
        ("tpu7x:4x4x8", 256, {"wrap": (True, True, True)}),
    ],
)
def test_libtpu_is_told_of_rings_small_hosts_and_whole_chips(name: str, devices: int, told: dict[str, Any]) -> None:
    topology = Topology.parse(name)
    assert (topology.devices, topology.options) == (devices, told)


def test_donated_arguments_and_source_files_of_a_dump() -> None:
    head = "HloModule decode.1, buffer_donor={ (1, {}), (12, {}) }, entry_computation_layout={()->f32[]}"
    assert donated_arguments(f"{head}\n(3, {{}})") == {1, 12}
    assert donated_arguments("HloModule decode.1, entry_computation_layout={()->f32[]}") == set()
    assert without_folders('source_file="/home/me/model.py" op_name="a/b"') == 'source_file="model.py" op_name="a/b"'


def test_a_module_becomes_a_proto_that_reads_back() -> None:
    module = CLASSES["HloProto"]().hlo_module
    module.name = b"m" * 300
    found = CLASSES["HloProto"].FromString(as_hlo_proto(module.SerializeToString()))
    assert found.hlo_module.name == module.name


def test_memory_of_a_chip_counts_donated_outputs_once() -> None:
    memory = json.loads('{"arguments": 10, "outputs": 4, "aliased": 3, "temporaries": 5, "program": 2}')
    assert device_bytes(memory) == 18
