"""The backend torch_tpu, which needs a TPU: here its program runs on CPU devices, and its profiles are made by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tracewarehouse as tw
from tests.captured_collectives import assert_as_promised, collectives
from tests.collect.torch_processes import ROOT, TorchProcesses
from tracewarehouse.collect.ahead_of_time import Configuration, compile_all
from tracewarehouse.collect.checks.promises import promised_collectives
from tracewarehouse.collect.errors import CheckError, CollectError, ExperimentError, MissingDependencyError, TpuError
from tracewarehouse.collect.experiment import Experiment, run_spec
from tracewarehouse.collect.harness.backend import find_backend
from tracewarehouse.collect.harness.processes import run_together
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.runner import collect
from tracewarehouse.collect.torch_tpu import backend
from tracewarehouse.collect.tpu.plan import plan_slices
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.ingest.capture.manifest import load_manifest

TORCH_TPU = os.environ.get("TRACEWAREHOUSE_TEST_TORCH_TPU")
"""An interpreter with torch_tpu and libtpu, such as that of a virtual environment with 'tracewarehouse[torch_tpu]'."""
SMALL = {"batch": 4, "input_length": 8, "output_length": 4}
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch_xla") is None,
    reason="torch_xla is not installed, whose processes these programs run in: pip install 'tracewarehouse[collect]'",
)

IN_THREADS = """
import json, sys, threading
import numpy as np, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.multi_threaded_pg import ProcessLocalGroup, _install_threaded_pg
from tracewarehouse.collect.harness.subject import tiny_subject
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_tpu.model import Place, TorchTpuModel

spec = RunSpec.model_validate_json(sys.argv[1])
sizes = {axis: spec.axis(axis) for axis in ("dp", "tp")}
_install_threaded_pg()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
ProcessLocalGroup.reset()
store, told = dist.HashStore(), []

def device(rank):
    dist.init_process_group("threaded", rank=rank, world_size=spec.mesh.size, store=store)
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    dp, tp = divmod(rank, sizes["tp"])
    group = mesh.get_group("tp") if sizes["tp"] > 1 else None
    subject = tiny_subject(spec)
    model = TorchTpuModel(subject, Place(torch.device("cpu"), sizes, {"dp": dp, "tp": tp}, group), lambda step, _: step)
    rows = spec.batch // sizes["dp"]
    own = slice(dp * rows, (dp + 1) * rows)
    for _ in range(2):
        model.begin()
        tokens = torch.from_numpy(subject.prompt.tokens[own])
        for step in range(spec.output_length):
            logits, tokens = model.forward(tokens)
            expected = subject.reference.expected.logits[own, step]
            width = logits.shape[1]
            part = expected[:, tp * width :][:, :width] if width < expected.shape[1] else expected
            is_equal = (tokens.numpy() == expected.argmax(-1)[:, None]).all()
            told.append((float(np.abs(logits.numpy() - part).max()), is_equal))

threads = [threading.Thread(target=device, args=(rank,)) for rank in range(spec.mesh.size)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps([len(told), max(error for error, _ in told), bool(all(equal for _, equal in told))]))
"""

TRACED = """
import json, sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch._subclasses.fake_tensor import FakeTensorMode
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_tpu.model import Place, TorchTpuModel

spec, name = RunSpec.model_validate_json(sys.argv[1]), sys.argv[2]
if name == "tpu":  # torch_tpu registers its device only where it finds one
    from torch_tpu import _loader
    _loader._init_device("tpu")
sizes = {axis: spec.axis(axis) for axis in ("dp", "tp")}
dist.init_process_group("fake", store=FakeStore(), rank=spec.mesh.size - 1, world_size=spec.mesh.size)
mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
place = Place(torch.device(name), sizes, {axis: size - 1 for axis, size in sizes.items()}, mesh.get_group("tp"))
graphs, found = [], {}

def compiled(step, phase):
    def keep(module, _):
        graphs.append((phase, module))
        return module.forward
    return torch.compile(step, backend=keep, fullgraph=True, dynamic=False)

subject = traced_subject(spec)
with FakeTensorMode(allow_non_fake_inputs=True):
    model = TorchTpuModel(subject, place, compiled)
    tokens = torch.zeros((spec.batch // sizes["dp"], spec.input_length), dtype=torch.int32, device=name)
    _, tokens = model.forward(tokens)
    model.forward(tokens)
for phase, module in graphs:
    for node in module.graph.nodes:
        kind = str(node.target).removeprefix("_c10d_functional.").partition(".")[0]
        if kind in ("all_reduce", "all_gather_into_tensor"):
            value = node.meta["example_value"]
            found.setdefault(phase, []).append([kind, value.numel() * value.element_size(), value.device.type])
print(json.dumps([len(graphs), found]))
"""


@needs_torch
@pytest.mark.parametrize(
    ("model", "mesh"),
    [
        ("llama", "tp=1"),
        ("llama", "tp=2"),
        ("qwen3", "dp=2,tp=2"),  # norms of query and key
        ("qwen2", "dp=4"),  # biases
        ("qwen2", "tp=8"),  # two copies of each key-value head
    ],
)
def test_the_program_of_every_device_generates_what_the_reference_does(
    torch_processes: TorchProcesses, model: str, mesh: str
) -> None:
    spec = run_spec(model=model, mesh=mesh, backend="jax", **SMALL)
    steps, error, is_equal = torch_processes.answer(IN_THREADS, spec.model_dump_json())
    assert steps == 2 * spec.mesh.size * spec.output_length
    assert is_equal
    assert error < 1e-6


def assert_traced_as_promised(spec: RunSpec, device: str, answer: Any) -> None:
    """One graph for each phase, with the promised all-reduces of the closed form's bytes, and the argmax's gathers."""
    graphs, found = answer
    assert graphs == 2
    promised = {p.phase: p.count for p in promised_collectives(spec)}
    for phase, length in spec.step_lengths:
        rows, width, bytes_of_dtype = spec.batch // spec.axis("dp"), 128, 4 if spec.dtype == "float32" else 2
        reduces = [["all_reduce", rows * length * width * bytes_of_dtype, device]] * promised[phase]
        gathers = [["all_gather_into_tensor", rows * spec.axis("tp") * size, device] for size in (bytes_of_dtype, 4)]
        assert found[phase] == reduces + gathers


@needs_torch
def test_the_traced_program_keeps_the_promises(torch_processes: TorchProcesses) -> None:
    spec = run_spec(model="qwen3", mesh="dp=2,tp=8", backend="jax", layers=3, **SMALL)
    assert_traced_as_promised(spec, "cpu", torch_processes.answer(TRACED, spec.model_dump_json(), "cpu"))


@pytest.mark.skipif(TORCH_TPU is None, reason="TRACEWAREHOUSE_TEST_TORCH_TPU names no interpreter with torch_tpu")
def test_torch_tpu_traces_the_program_for_its_device_without_a_tpu() -> None:
    """As far as it goes without one: XLA's program is only made by a TPU's client."""
    spec = run_spec(model="llama", mesh="dp=2,tp=4", backend="torch_tpu", **SMALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    command = [str(TORCH_TPU), "-c", TRACED, spec.model_dump_json(), "tpu"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_traced_as_promised(spec, "tpu", json.loads(done.stdout.splitlines()[-1]))


RECORD = """
import sys
from pathlib import Path
from tests.collect.torch_processes import forked
from tests.torch_tpu_on_cpu import CpuBackend
from tracewarehouse.collect.harness import generation, processes
from tracewarehouse.collect.harness.recording import record
from tracewarehouse.collect.run_spec import RunSpec

generation.PROFILED_PAIRS = 1
processes.run_together = forked
record(RunSpec.model_validate_json(sys.argv[1]), Path(sys.argv[2]), CpuBackend())
"""


@needs_torch
def test_processes_record_one_run(torch_processes: TorchProcesses, tmp_path: Path) -> None:
    """Two processes, each with a device that it numbers 0, are the hosts of a run that keeps its promises."""
    spec = run_spec(mesh="tp=2", backend="torch_tpu_on_cpu:CpuBackend", layers=1, **SMALL)
    done = torch_processes.run(
        RECORD, spec.model_dump_json(), str(tmp_path), PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr[-3000:]

    capture = tmp_path / spec.name
    manifest = load_manifest(capture / "manifest.json")
    assert (manifest.backend, manifest.hosts) == ("torch_tpu", ["vm_0", "vm_1"])
    assert manifest.checks["tokens_equal"] is True
    assert manifest.checks["compiles_in_capture"] == 0
    assert [(p.name, p.step) for p in manifest.phases] == [("prefill", 0)] + [("decode", i) for i in (1, 2, 3)]
    assert len(list(capture.glob("plugins/profile/*/*.xplane.pb"))) == 2
    assert sorted(p.name for p in capture.iterdir()) == ["card.yaml", "manifest.json", "plugins"]

    assert_as_promised(capture, collectives(capture, tmp_path / "warehouse"), is_head_split=False)
    sql = "SELECT device_id, host, phase, steps FROM devices JOIN models.phase_steps USING (run_id, device_id)"
    steps = tw.Warehouse(tmp_path / "warehouse").query(f"{sql} ORDER BY ALL").rows()
    assert steps == [(d, f"vm_{d}", phase, count) for d in (0, 1) for phase, count in (("decode", 3), ("prefill", 1))]


class TestWithoutATpu:
    def test_recording_ends_in_one_sentence(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for package in ("torch", "torch_tpu", "libtpu"):
            (tmp_path / "packages" / package).mkdir(parents=True)
            (tmp_path / "packages" / package / "__init__.py").touch()
        monkeypatch.syspath_prepend(tmp_path / "packages")
        monkeypatch.setattr(backend, "_PCI_DEVICES", tmp_path)
        with pytest.raises(CollectError) as refused:
            collect(Experiment.from_runs(run_spec(backend="torch_tpu", mesh="tp=4")), tmp_path / "captures")
        mend = "record there, or use --backend jax, which has virtual devices too"
        assert str(refused.value) == f"torch_tpu needs a TPU, and this host has none; {mend}"
        assert not (tmp_path / "captures").exists()

    def test_a_tpu_is_found_by_its_vendor(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backend, "_PCI_DEVICES", tmp_path)
        for number, vendor in enumerate(("0x8086", "0x1af4")):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "vendor").write_text(f"{vendor}\n")
        assert not backend.has_tpu()
        (tmp_path / "1" / "vendor").write_text("0x1ae0\n")
        assert backend.has_tpu()

    def test_it_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch_tpu", None)
        with pytest.raises(
            MissingDependencyError, match=r"needs .*torch_tpu.*pip install 'tracewarehouse\[torch_tpu\]'"
        ):
            find_backend("torch_tpu").require()

    def test_nothing_is_compiled_ahead(self, tmp_path: Path) -> None:
        [run] = compile_all([Configuration(run_spec(mesh="tp=4", backend="torch_tpu"), "v6e:2x2")], tmp_path)
        assert run.refused == "torch_tpu cannot compile ahead of time; backends that can are jax, torch_xla"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"device": "cpu"}, "device: torch_tpu has no virtual devices and compiles nothing without a TPU"),
        (
            {"model": "deepseek_v2", "mesh": "ep=2,tp=2"},
            "dense models .* over dp and tp, not deepseek_v2, ep=2; use jax",
        ),
        ({"mesh": "pp=2,tp=2"}, "over dp and tp, not llama, pp=2"),
        ({"mesh": "tp=2", "sequence_parallelism": "megatron"}, "not llama, megatron"),
        ({"mesh": {"axes": {"tp": 2}, "device_ids": [1, 0]}}, "in the order of the processes; remove device_ids"),
    ],
)
def test_what_it_does_not_run(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        run_spec(backend="torch_tpu", **fields)


def test_it_runs_on_tpus_by_default() -> None:
    spec = run_spec(backend="torch_tpu", mesh="tp=4")
    assert (spec.device, spec.dtype, spec.reference_mode) == ("tpu", "bfloat16", "kept")
    assert spec.name == "llama-tp4-b4-i32-o17-tpu-torch_tpu"


def test_a_process_that_fails_ends_the_others(tmp_path: Path) -> None:
    """The first sleeps as one does that waits for the others."""
    sleeps, fails = "import time; time.sleep(300)", "import sys; sys.exit('error: a weight does not divide')"
    with pytest.raises(CheckError, match=r"^process 1 of 2 failed: a weight does not divide$"):
        run_together([[sys.executable, "-c", code] for code in (sleeps, fails)], tmp_path)
    with pytest.raises(CheckError, match=r"^process 0 of 1 failed: exit code 3$"):
        run_together([[sys.executable, "-c", "raise SystemExit(3)"]], tmp_path)
    run_together([[sys.executable, "-c", ""]] * 2, tmp_path)


def test_slices_are_not_set_up_for_it() -> None:
    experiment = Experiment.from_runs(run_spec(backend="torch_tpu", mesh="tp=4"))
    with pytest.raises(
        TpuError, match="tpu-torch_tpu: slices are set up for jax and torch_xla; record with torch_tpu by"
    ):
        plan_slices(experiment, "v6e", load_quota())
