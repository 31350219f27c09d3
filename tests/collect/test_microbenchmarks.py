"""The microbenchmarks of the experiment calibrate: their runs, compiled for slices, and on virtual devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest
from given_tables import warehouse_of
from xplane_builder import Space, Unsigned

from tests.collect.torch_processes import ENVIRONMENT
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import load_experiment, plan, run_spec
from tracewarehouse.collect.run_spec import MICROBENCHMARKS
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.collect.tpu.plan import plan_slices, tpu_runs
from tracewarehouse.collect.tpu.quota import load_quota
from tracewarehouse.comparison.calibration import calibrate
from tracewarehouse.ingest.capture.manifest import load_manifest
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.predict.calibrations import rates, read_calibrations
from tracewarehouse.warehouse import Warehouse, open_warehouse

US = 1_000_000
CALIBRATE = load_experiment(Path("calibrate"))
TPU7X = ("tpu7x:2x2x1", "tpu7x:2x2x2", "tpu7x:2x2x4", "tpu7x:2x4x4")
SLICES = [
    f"{name}:{generation.topology[chips]}"
    for name, generation in load_quota().generations.items()
    for chips in generation.topology
    if chips <= 64 and name != "tpu7x"
] + list(TPU7X)

COMPILE = """
import json, re, sys
from tracewarehouse.collect.tpu.compile_ahead import chips
devices = chips(sys.argv[1])
from tracewarehouse.collect.jax.mesh import JaxMesh
from tracewarehouse.collect.jax.microbenchmarks import microbenchmarks
from tracewarehouse.collect.run_spec import RunSpec
spec = RunSpec.model_validate_json(sys.argv[2])
mesh = JaxMesh(spec, devices)
for program in microbenchmarks(spec):
    if re.search(sys.argv[3], program.name):
        text = program.lowered(mesh).compile().as_text()
        module, entry = text.split()[1].rstrip(","), text[text.index("ENTRY") :].splitlines()[1:-1]
        shown = [re.match(r"\\s*(?:ROOT )?%\\S+ = (\\(.*?\\)|\\S+) ([\\w-]+)\\(", line) for line in entry]
        print(json.dumps([program.name, module, [[m[2], bool(re.search(r"S\\([13]\\)", m[1]))] for m in shown if m]]))
"""
"""Prints name, module and entry of the chosen programs: opcodes, and whether each result is in VMEM; on v4 in CMEM."""


def compiled(topology: str, mesh: str, chosen: str) -> dict[str, list[tuple[str, bool]]]:
    """The opcodes of the chosen programs, compiled for a slice, and whether their results are in VMEM."""
    check = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, ('jax', 'libtpu'))))"
    python = os.environ.get("TRACEWAREHOUSE_TEST_LIBTPU", sys.executable)
    if subprocess.run([python, "-c", check], check=False).returncode:
        pytest.skip("jax and libtpu are not installed here; TRACEWAREHOUSE_TEST_LIBTPU names an interpreter with both")
    spec = run_spec(model=MICROBENCHMARKS, backend="jax", device="tpu", mesh=mesh)
    command = [python, "-c", COMPILE, topology, spec.model_dump_json(), chosen]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(module == f"jit_{name}" for name, module, _ in rows)
    return {name: [(opcode, on_chip) for opcode, on_chip in shown] for name, _, shown in rows}


def mesh_along_dimensions(topology: Topology) -> str:
    """The mesh of the experiment whose axes are the dimensions of a slice, the first of which is innermost."""
    sides = [side for side in topology.sides if side > 1]
    sides = ([2] if topology.devices > topology.chips else []) + sides
    axes = {1: ["tp"], 2: ["tp", "dp"], 3: ["tp", "ep", "dp"], 4: ["tp", "ep", "dp", "pp"]}[len(sides) or 1]
    return ",".join(f"{axis}={side}" for axis, side in reversed(list(zip(axes, sides or [1], strict=True))))


@pytest.mark.parametrize("name", SLICES)
def test_every_slice_has_a_mesh_along_its_dimensions(name: str) -> None:
    topology = Topology.parse(name)
    wanted = mesh_along_dimensions(topology)

    assert run_spec(model=MICROBENCHMARKS, backend="jax", device="tpu", mesh=wanted) in plan(CALIBRATE)
    assert prod(int(part[3:]) for part in wanted.split(",")) == topology.devices


def test_slices_of_several_hosts_run_it_too() -> None:
    sizes = {s.accelerator_type: s.hosts for s in plan_slices(CALIBRATE, "v6e", load_quota())}

    assert sizes == {"v6e-1": 1, "v6e-4": 1, "v6e-8": 1, "v6e-16": 4, "v6e-32": 8, "v6e-64": 16}
    assert not [run for run in tpu_runs(CALIBRATE) if run.is_published]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"backend": "torch_xla"}, "backend: microbenchmarks are programs of jax, not of torch_xla"),
        ({"batch": 8}, "batch: microbenchmarks have none; remove the field"),
        ({"layers": 4}, "layers: microbenchmarks have none"),
        ({"prompt": "once"}, "prompt: microbenchmarks have none"),
        ({"sequence_parallelism": "megatron", "mesh": "tp=2"}, "sequence_parallelism: microbenchmarks have none"),
        ({"mesh": {"axes": {"tp": 2}, "device_ids": [1, 0]}}, "remove device_ids"),
    ],
)
def test_what_only_a_model_has_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        run_spec(**{"model": MICROBENCHMARKS, "backend": "jax"} | fields)


def test_a_compiled_sample_measures_what_it_is_for() -> None:
    chosen = r"fusion\.(vmem\.1024x|hbm\.8192x)|copy.*\.4194304|(all-reduce|all-gather)-dp-tp\.(4096|268435456)$"
    chosen += r"|paged\.\d+x\d+x512x|product.*\.8x4096x1792|arguments\.300"
    programs = compiled("v4:2x2x1", "dp=2,tp=2", chosen)

    assert len(programs) == 10
    for name, shown in programs.items():
        opcodes = [opcode for opcode, _ in shown]
        if ".fusion." in name:  # the inner ones stay in the same memory
            inner = [on_chip for opcode, on_chip in shown if opcode == "fusion"][:-1]
            assert inner == [".vmem." in name] * 7
        elif ".collective." in name:
            assert opcodes.count(name.split(".")[2].removesuffix("-dp-tp")) == 1
        elif ".host." in name:
            assert opcodes.count("parameter") == 300
        else:
            wanted = {"copy": "copy", "attention": "custom-call", "product": "fusion"}[name.split(".")[1]]
            assert opcodes.count(wanted) >= 1


@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.parametrize("name", SLICES)
def test_all_collectives_compile_for_every_slice(name: str) -> None:
    """About a minute of CPU time for the 180 of tpu7x:2x2x1."""
    if "TRACEWAREHOUSE_TEST_LIBTPU" not in os.environ:
        pytest.skip("takes long; TRACEWAREHOUSE_TEST_LIBTPU names the interpreter to compile with")
    topology = Topology.parse(name)
    mesh = mesh_along_dimensions(topology)
    programs = compiled(name, mesh, r"\.collective\.")

    axes = mesh.count("=") if topology.devices > 1 else 0
    assert len(programs) == 5 * 9 * (axes + (axes > 1))


@pytest.mark.timeout(1800)
@pytest.mark.slow
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v6e:2x2", "tpu7x:2x2x1"])
def test_all_other_programs_compile_for_every_generation(name: str) -> None:
    if "TRACEWAREHOUSE_TEST_LIBTPU" not in os.environ:
        pytest.skip("takes long; TRACEWAREHOUSE_TEST_LIBTPU names the interpreter to compile with")
    programs = compiled(name, mesh_along_dimensions(Topology.parse(name)), r"^micro\.(?!collective)")

    chains = {
        name: [on_chip for opcode, on_chip in shown if opcode == "fusion"][:-1] for name, shown in programs.items()
    }
    chains = {name: chain for name, chain in chains.items() if ".fusion." in name}
    assert chains == {name: [".vmem." in name] * 7 for name in chains}
    assert len(chains) == 6


@pytest.mark.slow
def test_on_virtual_devices_every_kind_of_program_gives_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracewarehouse.cli import run

    monkeypatch.setenv("XLA_FLAGS", ENVIRONMENT["XLA_FLAGS"])
    assert run(["collect", "--model", MICROBENCHMARKS, "--mesh", "tp=2", "--backend", "jax", "-o", str(tmp_path)]) == 0

    (capture,) = tmp_path.iterdir()
    manifest = load_manifest(capture / "manifest.json")
    assert (manifest.model, manifest.batch_size, manifest.phases) == (None, None, [])
    assert not (capture / "card.yaml").exists()
    with Warehouse(tmp_path / "warehouse") as warehouse:
        [result] = warehouse.ingest(capture)
        assert warehouse.query("SELECT flag FROM quality_flags").rows() == []
        (model,) = warehouse.query("SELECT model FROM runs").rows()
        rows = warehouse.query(
            f"SELECT kind, class, axis, what, n FROM metrics.microbenchmarks WHERE run_id = '{result.run_id}'"
        ).rows()
        with pytest.raises(QueryError, match="ran on virtual CPU devices, and the rates are those of TPUs"):
            calibrate(warehouse, result.run_id)
    assert model == (None,)
    # on virtual devices most chains become one fusion, which has no inner one
    assert {kind for kind, *_ in rows} - {"fusion"} == {"collective", "product", "copy", "attention", "host"}
    collectives = {(kind, axis, what): n for of, kind, axis, what, n in rows if of == "collective"}
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    assert collectives == {(kind, "tp", str(size)): 20 for kind in kinds for size in (4096, 16384, 65536)}


def test_rates_of_a_chip_follow_without_a_prediction() -> None:
    """The largest copy, the smallest fusions, the longest prompt, and a line through two contexts of pages."""
    programs = ["copy.hbm.4000", "copy.hbm.5000000", "fusion.vmem.8x1024", "fusion.vmem.32x1024"]
    programs += ["host.arguments.1", "attention.flash.1x10x100x100", "attention.flash.1x10x1000x100"]
    programs += ["attention.paged.8x8x100x100", "attention.paged.8x8x500x100", "attention.paged.8x8x1000x100"]
    programs += ["attention.ragged-token.8x8x100x100", "attention.ragged-token.8x8x1000x100"]
    programs += ["attention.ragged-prompt.1x10x1000x100", "host.arguments.300"]
    facts = [{"instruction_id": i, "module": f"jit_micro.{name}", "name": name} for i, name in enumerate(programs)]
    times = [[0, 1], [1, 20], [1, 25], [1, 40], [2, 9], [2, 0.01], [2, 0.02], [2, 9], [3, 9], [3, 0.5], [3, 9]]
    times += [[4, 0.6], [5, 9], [6, 40], [7, 13.6], [8, 90], [9, 128.8]]
    times += [[10, 13.6], [11, 128.8], [12, 80], [13, 50], [13, 50]]
    executions = [0, 1, 2, 3, 4, 4, 4, 4, 5, 5, 5, 6, 7, 8, 9, 10, 11, *range(12, 17)]
    ops = [
        {"instruction_id": i, "device_id": 0, "execution": e, "start_us": 200 * n, "duration_us": time}
        for n, ((i, time), e) in enumerate(zip(times, executions, strict=True))
    ]
    device = {"device_id": 0, "kind": "TPU7x", "peak_hbm_gbps": 1000, "peak_flops_per_s": 1e14}
    with warehouse_of(
        {"runs": [{"name": "half an hour"}], "devices": [device], "instructions": facts, "ops": ops}
    ) as db:
        rows = db.execute(
            'SELECT kind, chip, class, what, "value", low, high, n, source FROM models.calibration_rates ORDER BY 3, 4'
        ).fetchall()

    # 10 MB in 25 us are 400 GB/s; 2 GFLOP in 40 us are half of the peak
    expected = [
        ("flash_attention", "share", 0.5, 0.5, 0.5, 1),
        ("hbm", "stream_share", 0.4, 0.25, 0.5, 3),
        ("host_step", "ms", 0.15, 0.15, 0.15, 1),  # between two steps of 50 us that begin each 200
        # 25.6 MB at 200 of the 400 GB/s of the copy take 128 us, 2.56 MB take 12.8; eight sequences take 0.8 us more
        ("paged_attention", "sequence_ns", 100, 100, 100, 1),
        ("paged_attention", "share", 0.5, 0.5, 0.5, 1),
        ("ragged_attention", "prompt_share", 0.25, 0.25, 0.25, 1),
        ("ragged_attention", "sequence_ns", 100, 100, 100, 1),
        ("ragged_attention", "share", 0.5, 0.5, 0.5, 1),
        ("small_op", "hbm_us", 0.6, 0.6, 0.6, 1),
        ("small_op", "vmem_ns", 10, 10, 20, 2),
    ]
    assert [(row[:2], row[-1]) for row in rows] == [(("machine", "tpu7x"), "half an hour")] * len(expected)
    assert [row[2:4] for row in rows] == [row[:2] for row in expected]
    assert [row[4:8] for row in rows] == [pytest.approx(row[2:]) for row in expected]
    added = {row[2] for row in rows if (row[2], row[3]) not in rates("tpu7x")}
    assert added == {"host_step", "ragged_attention"}  # of which the table that ships knows nothing


@pytest.mark.parametrize(
    ("kind", "generation"),
    [("TPU v4", "v4"), ("TPU v5", "v5p"), ("TPU v5 lite", "v5e"), ("TPU v5e", "v5e"), ("TPU v6 lite", "v6e")],
)
def test_a_chip_has_the_name_of_its_topologies(kind: str, generation: str) -> None:
    facts = [{"instruction_id": 0, "module": "jit_micro.host.arguments.1", "name": "add"}]
    ops = [{"instruction_id": 0, "device_id": 0, "execution": 0, "start_us": 0, "duration_us": 1}]
    device = {"device_id": 0, "kind": kind}
    with warehouse_of({"runs": [{"name": "r"}], "devices": [device], "instructions": facts, "ops": ops}) as db:
        assert db.execute("SELECT DISTINCT chip FROM models.calibration_rates").fetchall() == [(generation,)]


def test_a_run_on_a_chip_replaces_its_rates(tmp_path: Path) -> None:
    """A capture as a TPU gives it: three executions of a copy of 5 MB and one of a chain of four fusions."""
    space = Space(hostnames=["vm"])
    tpu = space.tpu(0)
    start = 10 * US
    for number, us in enumerate((20, 25, 40)):
        tpu.modules.event("jit_micro.copy.hbm.5000000(7)", start, us * US, run_id=Unsigned(number))
        copy = tpu.instruction("%copy.1 = bf16[2441,1024]{1,0} copy(bf16[2441,1024]{1,0} %x)", program_id=Unsigned(7))
        tpu.ops.event(copy, start, us * US)
        start += 100 * US
    tpu.modules.event("jit_micro.fusion.vmem.8x1024(8)", start, 40 * US, run_id=Unsigned(9))
    for number, ns in enumerate((9000, 10, 20, 9000)):
        hlo = f"%fusion.{number} = f32[8,1024]{{1,0:S(1)}} fusion(f32[8,1024]{{1,0:S(1)}} %x.{number}), kind=kLoop"
        tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(8)), start, ns * 1000)
        start += ns * 1000
    space.profiled(1_700_000_000_000_000_000, 1_700_000_000_001_000_000)
    space.write(tmp_path / "half-an-hour.xplane.pb")
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(tmp_path / "half-an-hour.xplane.pb", device="TPU v6e")
        done = calibrate(warehouse, "half-an-hour")

    # 10 MB in 25 us are 400 of 1638 GB/s
    changed = {(new.class_, new.what): new for _, new in done.changes}
    assert {new.chip for new in changed.values()} == {"v6e"}
    assert done.predicted == ()
    assert set(changed) == {("hbm", "stream_share"), ("small_op", "vmem_ns")}
    assert changed["hbm", "stream_share"][4:8] == pytest.approx(
        (400 / 1638, 250 / 1638, 500 / 1638, 3), rel=1e-4
    )  # the profiler states the peak itself
    assert changed["small_op", "vmem_ns"][4:8] == pytest.approx((10, 9.5, 20, 2))
    after = rates("v6e", read_calibrations(done.path))
    assert after["hbm", "stream_share"].source.startswith("half-an-hour (r")
    assert after["product", "factor"] == rates("v6e")["product", "factor"]
