"""`tw plan`: the configurations of a study become predicted runs, with a compiler that gives a program by hand."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.predict.programs import product, program
from tests.predict.test_calibrating import as_recorded
from tests.xplane_builder import Space
from tracewarehouse.cli import app
from tracewarehouse.collect.ahead_of_time import CompiledRun, CompiledStep, Configuration
from tracewarehouse.collect.errors import ExperimentError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.recording import write_promises
from tracewarehouse.comparison import study
from tracewarehouse.comparison.calibration import RecordedKernels
from tracewarehouse.comparison.study import places
from tracewarehouse.exports.ccl_bench.row import write_row
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, ModelFacts
from tracewarehouse.ingest.capture.prediction import PredictedPhase, Prediction
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.predict.calibrations import Calibration, described, rates, write_calibrations
from tracewarehouse.predict.capture import PredictedStep, write_capture
from tracewarehouse.predict.configuration import (
    WhatIf,
    configuration,
    device_bytes,
    memory_refusal,
    room_refusal,
    whole_memory,
)
from tracewarehouse.predict.timeline import TimedOp
from tracewarehouse.predict.whole_model import UnsteadyLayersError
from tracewarehouse.warehouse import open_warehouse

MODEL = "meta-llama/Llama-3.1-70B"
LENGTHS = {"input_length": 1024, "output_length": 129, "dtype": "bfloat16", "backend": "jax"}
GB = 10**9


def layers(count: int) -> bytes:
    """A program of layers, each with a kernel, a product that its weights in HBM bound, and an all-reduce."""
    estimate = product(40_000)
    lines = "".join(
        f"""
        %w{n} = bf16[8192,1024] parameter({n + 1})
        %paged_attention.{n} = bf16[128,8192] custom-call(%x), custom_call_target="tpu_custom_call"
        %fusion.{n} = bf16[128,1024] fusion(%paged_attention.{n}, %w{n}), kind=kOutput, calls=%product, {estimate}
        %all-reduce.{n} = bf16[128,1024] all-reduce(%fusion.{n}), channel_id={n + 1}, replica_groups={EIGHT}
        """
        for n in range(count)
    )
    made = program(
        8,
        main=f"%x = bf16[128,8192] parameter(0)\n{lines}",
        product="""
        %a = bf16[128,8192] parameter(0)
        %b = bf16[8192,1024] parameter(1)
        %dot = bf16[128,1024] dot(%a, %b)
        """,
    )
    proto = CLASSES["HloProto"].FromString(made.raw)
    for each in (i for c in proto.hlo_module.computations for i in c.instructions):
        _, _, number = each.name.decode().partition(".")
        each.metadata.op_name = f"jit(step)/layer{number}/mlp/dot_general".encode() if number else b""
        if each.opcode == b"dot":
            each.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    return gzip.compress(proto.SerializeToString(), mtime=0)


EIGHT = "{{0,1,2,3,4,5,6,7}}"


def memory(total: int) -> dict[str, int]:
    return {"arguments": total, "outputs": 2, "aliased": 2, "temporaries": 0, "program": 0}


class Compiler:
    """Gives a program of four layers as both steps of a configuration, unless its batch is 64; notes what is asked."""

    def __init__(self) -> None:
        self.asked: list[Configuration] = []
        self.layers = {"prefill": 4, "decode": 4}

    def __call__(self, configurations: Sequence[Configuration], folder: Path, *_: Any) -> Iterator[CompiledRun]:
        for number, each in enumerate(configurations):
            self.asked.append(each)
            spec = each.spec.model_copy(update={"device": "tpu"})
            if spec.batch == 64:
                yield CompiledRun(each, refused="compiling for v6e:2x4 failed: Ran out of memory on HBM")
                continue
            here = folder / str(number)
            here.mkdir(parents=True)
            write_promises(spec, ModelFacts(name="Llama-3.1-70B", num_layers=spec.layers, num_params=70 * GB), here)
            for phase in each.phases:
                (here / f"{phase}.hlo.pb.gz").write_bytes(layers(self.layers[phase]))
            yield CompiledRun(
                each,
                tuple(CompiledStep(p, here / f"{p}.hlo.pb.gz", "TPU v6e", memory(4 * GB)) for p in each.phases),
            )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(study, "compile_all", made)
    return made


@pytest.fixture
def planned(tmp_path: Path, compiler: Compiler) -> Callable[..., Any]:
    """Runs `tw plan` in one warehouse, and gives its rows and its lines."""

    def run(*arguments: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["-w", str(tmp_path / "w"), "plan", *arguments])
        assert result.exit_code == code, result.output
        return json.loads(result.stdout) if "--json" in arguments else result.stdout.splitlines()

    return run


STUDY = [MODEL, "--layers", "4", "--slices", "v6e:2x4", "--meshes", "tp=8", "--input-length", "1024"]
STUDY += ["--output-length", "129"]


def test_a_row_says_what_the_metrics_of_the_run_say(planned: Callable[..., Any], tmp_path: Path) -> None:
    [row, refused] = planned(*STUDY, "--batches", "128,64", "--json")
    assert refused == {
        "mesh": "tp=8",
        "topology": "v6e:2x4",
        "batch_size": 64,
        "refused": "compiling for v6e:2x4 failed: Ran out of memory on HBM",
    }
    assert (row["layers"], row["model_layers"], row["compiled_layers"]) == (4, 80, 4)
    assert (row["chips"], row["memory_bytes"], row["is_fitting"]) == (8, 4 * GB, None)
    with open_warehouse(tmp_path / "w") as warehouse:

        def one(sql: str) -> Any:
            return warehouse.query(sql).scalar()

        assert warehouse.query("SELECT origin FROM main.runs").rows() == [("predicted",)]
        ttft, tpot = one("SELECT ttft_ms FROM metrics.ttft"), one("SELECT tpot_ms FROM metrics.tpot")
        assert row["ttft_ms"] == pytest.approx(ttft)
        assert row["tpot_ms"] == pytest.approx(tpot)
        assert row["tpot_low_ms"] < tpot < row["tpot_high_ms"]
        assert row["e2e_ms"] == pytest.approx(ttft + 128 * tpot)
        assert row["tokens_per_s_per_chip"] == pytest.approx(128 * 129 / (ttft + 128 * tpot) * 1e3 / 8)
        assert row["output_chip_hours"] == pytest.approx(8 * tpot / 3.6e6 * 1e6 / 128)
        assert row["output_usd"] == pytest.approx(row["output_chip_hours"] * 2.7)
        sent = "SELECT sum(wire_bytes_per_device * devices) FROM metrics.traffic_volume WHERE phase = 'decode'"
        assert row["traffic_bytes_per_token"] == pytest.approx(one(sent) / 128)
        exposed = "SELECT sum(exposed_ms) FROM metrics.exposed_communication WHERE phase = 'decode' AND device_id = 0"
        assert row["decode_communication"] == pytest.approx(one(exposed) / tpot)
    # weights in HBM bound a decode step
    assert row["decode_bottleneck"] == "HBM"


def test_a_table_fits_a_screen_and_says_that_it_is_predicted(planned: Callable[..., Any]) -> None:
    lines = planned(*STUDY, "--batches", "128,64")
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith(
        "Llama-3.1-70B on v6e:2x4, predicted: only 4 of 80 layers, bfloat16, 1024 tokens in, 129 out"
    )
    assert lines[-1] == "tp=8 64: compiling for v6e:2x4 failed: Ran out of memory on HBM"
    names, values = (next(line for line in lines if line.startswith(begin)).split() for begin in ("mesh ", "tp8 "))
    assert names[:2] == ["mesh", "b"]
    assert values[:2] == ["tp8", "128"]


def test_a_part_that_fits_is_not_the_whole_that_does_not(planned: Callable[..., Any]) -> None:
    """Four of the 61 layers of DeepSeek-V3.1 fit eight chips of v6e; all of them take 168 GB of each."""
    part = ["deepseek-ai/DeepSeek-V3.1-Base", *STUDY[1:5], "--meshes", "ep=2,tp=4", "--batches", "8"]
    [row] = planned(*part, "--json")
    assert (row["layers"], row["model_layers"], row["is_fitting"]) == (4, 61, False)
    assert "only 4 of 61 layers (the whole does not fit)" in " ".join(planned(*part)[:2])


def test_nothing_is_predicted_of_microbenchmarks(planned: Callable[..., Any], compiler: Compiler) -> None:
    said = (
        "microbenchmarks measure what predictions start from, so nothing is predicted of them; record them on the "
        "slice (tw tpu run NAME calibrate) and give the run to `tw plan --calibrate`"
    )
    for what, mesh in (("calibrate", "dp=2,tp=2"), ("microbenchmarks", "tp=4")):
        lines = planned(what, "--slices", "v6e:2x2", code=1)
        assert " ".join(" ".join(lines).split()) == f"v6e:2x2 {mesh}: {said}"
    assert compiler.asked == []


def test_the_terms_of_a_server_are_named_beside_the_table(tmp_path: Path, compiler: Compiler) -> None:
    said = CliRunner().invoke(app, ["-w", str(tmp_path / "w"), "plan", *STUDY, "--batches", "128"]).stderr
    engine, host = (rates("v6e")[key] for key in (("engine", "factor"), ("host", "ms")))
    terms = " ".join(said.split())
    assert f"{engine.low:g} to {engine.high:g} times as long (engine term" in terms
    assert f"low x {engine.low:g} + {host.low:g} to high x {engine.high:g} + {host.high:g} ms" in terms


def test_what_if_makes_other_runs_of_the_same_programs(planned: Callable[..., Any], tmp_path: Path) -> None:
    [real] = planned(*STUDY, "--batches", "128", "--json")
    [links] = planned(*STUDY, "--batches", "128", "--json", "--ici-factor", "2")
    [hbm] = planned(*STUDY, "--batches", "128", "--json", "--hbm-factor", "2")
    [host] = planned(*STUDY, "--batches", "128", "--json", "--host-ms", "3", "--chip-price", "1")
    [kernel] = planned(*STUDY, "--batches", "128", "--json", "--kernel", "paged_attention=1000")
    assert max(hbm["tpot_ms"], links["tpot_ms"]) < real["tpot_ms"] < kernel["tpot_ms"]
    assert links["decode_communication"] < real["decode_communication"]
    assert host["tpot_ms"] == pytest.approx(real["tpot_ms"] + 3)
    assert host["output_usd"] == pytest.approx(host["output_chip_hours"])
    rows = (real, links, hbm, host, kernel)
    tags = ["", "-ici2", "-hbm2", "-host3-usd1", "-paged_attention-1000"]
    assert (WhatIf(host_ms=0).tag, WhatIf().tag) == ("-host0", "")  # a calibration may add more than 0
    # 3 ms of the host are more than all else of so short a step
    assert (real["decode_bottleneck"], host["decode_bottleneck"]) == ("HBM", "host")
    real_name = real["name"].removesuffix("-predicted")
    assert [row["name"] for row in rows] == [f"{real_name}{tag}-predicted" for tag in tags]
    assert len({row["run_id"] for row in rows}) == 5
    # runs that differ in the price of a chip alone are no repeats of each other
    [price] = planned(*STUDY, "--batches", "128", "--json", "--host-ms", "3")
    with open_warehouse(tmp_path / "w") as warehouse:
        facts = warehouse.query("SELECT DISTINCT ici_factor, hbm_factor FROM main.predictions").rows()
        stated = "SELECT DISTINCT run_id, chip_price_usd_per_h FROM main.predictions WHERE host_ps > 0"
        assert set(warehouse.query(stated).rows()) == {(host["run_id"], 1), (price["run_id"], None)}
        told = warehouse.query("SELECT count(DISTINCT configuration) FROM macros.configurations()").scalar()
        ids = f"['{host['run_id']}', '{price['run_id']}']"
        works = warehouse.query(f"SELECT count(DISTINCT workload) FROM macros.study_points({ids})").scalar()
    assert sorted(facts) == [(1, 1), (1, 2), (2, 1)]
    assert (told, works) == (6, 2)
    [unknown] = planned(*STUDY, "--batches", "128", "--json", "--kernel", "flash=10", code=1)
    assert unknown["refused"] == (
        "its programs have no kernel flash, for which a time is given; they have paged_attention"
    )


@pytest.mark.parametrize(
    "changed",
    [
        ["--decode-only"],
        ["--host-ms", "3", "--chip-price", "1", "--kernel", "paged_attention=2e-5"],
        ["--chip-price", "0", "--backend", "torch_xla"],
    ],
)
def test_the_script_of_an_exported_row_makes_the_same_run(
    planned: Callable[..., Any], tmp_path: Path, changed: list[str]
) -> None:
    [row] = planned(*STUDY, "--batches", "128", "--json", *changed)
    with open_warehouse(tmp_path / "w") as warehouse:
        written = write_row(warehouse, warehouse.run(row["run_id"]), tmp_path / "row-tpu")
    last = (written.folder / "run.sh").read_text().splitlines()[-1]
    [again] = planned(*shlex.split(last)[2:], "--json")
    assert again["run_id"] == row["run_id"]


def test_the_same_program_and_rules_give_the_same_bytes(tmp_path: Path, compiler: Compiler) -> None:
    """In another warehouse, at another time: each file of the run, but for when it was ingested."""
    found = []
    for name in ("one", "two"):
        arguments = ["-w", str(tmp_path / name), "plan", *STUDY, "--batches", "128"]
        assert CliRunner().invoke(app, arguments).exit_code == 0
        files = (tmp_path / name / "lake").rglob("*.parquet")
        found.append({str(file.relative_to(tmp_path / name)): file.read_bytes() for file in files})
    different = [file for file in found[0] if found[0][file] != found[1].get(file)]
    assert found[0].keys() == found[1].keys()
    assert len(found[0]) > 10
    assert [Path(file).name for file in different] in ([], ["runs.parquet"])


def test_a_decode_step_alone_says_nothing_of_a_prefill(planned: Callable[..., Any], tmp_path: Path) -> None:
    [both] = planned(*STUDY, "--batches", "128", "--json")
    [alone] = planned(*STUDY, "--batches", "128", "--json", "--decode-only")
    assert alone["name"] == both["name"].replace("-predicted", "-decode-predicted")
    same = ("tpot_ms", "tpot_low_ms", "tpot_high_ms", "decode_communication", "output_chip_hours", "memory_bytes")
    assert [alone[name] for name in same] == [both[name] for name in same]
    unknown = ("ttft_ms", "e2e_ms", "tokens_per_s_per_chip", "prompt_usd", "prefill_bottleneck")
    assert {alone[name] for name in unknown} == {None}
    assert None not in {both[name] for name in unknown}
    # what the mesh promises of a prefill is not missed in a run that has none
    with open_warehouse(tmp_path / "w") as warehouse:
        found = warehouse.query("SELECT run_id, manifest FROM main.runs").rows()
    promised = {run_id: {each["phase"] for each in json.loads(text)["promised_collectives"]} for run_id, text in found}
    assert promised == {both["run_id"]: {"prefill", "decode"}, alone["run_id"]: {"decode"}}


def test_ones_own_rates_win_and_the_run_says_so(planned: Callable[..., Any], tmp_path: Path) -> None:
    planned(MODEL, "--meshes", "tp=8", "--slices", "v6e:2x4")
    own = [
        Calibration("link", "v6e", "ici", "gbps", 45.0, 40.0, 50.0, 24, "mine"),
        Calibration("machine", "v6e", "host_step", "ms", 0.25, 0.2, 0.3, 20, "mine"),
    ]
    other = Calibration("link", "v5e", "ici", "gbps", 1.0, 1.0, 1.0, 24, "mine")
    write_calibrations(tmp_path / "w" / "calibrations.csv", [*own, other])
    table = planned(MODEL, "--meshes", "tp=8", "--slices", "v6e:2x4")
    assert f"host 0.25 ms a step, rates of {described(own)}" in " ".join(table)  # none of another chip
    planned(MODEL, "--meshes", "tp=8", "--slices", "v6e:2x4", "--host-ms", "1")
    with open_warehouse(tmp_path / "w") as warehouse:
        told = warehouse.query(
            "SELECT DISTINCT link_gbps, host_ps, calibration FROM main.predictions ORDER BY link_gbps, host_ps"
        ).rows()
        sql = (
            "SELECT calibration IS NULL, name FROM main.predictions JOIN main.runs USING (run_id) ORDER BY host_ps DESC"
        )
        names = dict(warehouse.query(sql).rows())
        notes = warehouse.query("SELECT detail FROM main.quality_flags WHERE flag = 'predicted' ORDER BY detail").rows()
    assert told == [(45.0, 250_000_000, described(own)), (45.0, 10**9, described(own)), (90.0, 0, None)]
    digest = str(described(own)).rpartition(" ")[2]
    assert names[False] == names[True].replace("-predicted", f"-rates-{digest[:6]}-predicted")
    assert [said for (said,) in notes] == [
        "for v6e:2x4, by version 3 of the rules",
        f"for v6e:2x4, by version 3 of the rules and the rates of {described(own)}; with 0.25 ms of the host a step",
        f"for v6e:2x4, by version 3 of the rules and the rates of {described(own)}; with 1 ms of the host a step",
    ]


def recorded(folder: Path, name: str, kernels_us: Sequence[float], start_ns: int = 0) -> Path:
    """A run on eight v6e that holds the kernels of the program of four layers, and nothing else."""
    module = HloModule("jit_decode", gzip.decompress(layers(4)), [])
    ops, now = [], 0
    for n, us in enumerate(kernels_us):
        duration = round(us * 1e6)
        ops.append(TimedOp(f"paged_attention.{n}", now, duration, "core", "unknown", duration, duration))
        now += duration
    phase = PredictedPhase(phase="decode", program_digest=module.digest)
    said = Prediction(topology="v6e:2x4", chip="TPU v6e", rules_version=2, phases=[phase])
    manifest = Manifest(name=name, backend="jax", mesh=Mesh(axes={"tp": 8}))
    capture = as_recorded(write_capture(folder, manifest, said, [PredictedStep(phase, module, ops)]))
    if start_ns:
        space = Space()
        space.profiled(start_ns, start_ns + 10**9)
        [file] = capture.rglob("*.xplane.pb")
        file.write_bytes(file.read_bytes() + space.to_bytes())
    return capture


def test_a_kernel_takes_its_median_in_the_newest_recorded_run_that_holds_it(
    planned: Callable[..., Any], tmp_path: Path
) -> None:
    """Four executions on each of eight devices; of four values the median by nearest rank is the second."""
    arguments = (*STUDY, "--batches", "128", "--json")
    [formula] = planned(*arguments)
    with open_warehouse(tmp_path / "w") as warehouse:
        warehouse.ingest(recorded(tmp_path / "new", "newer", [300, 100, 200, 400], 2 * 10**18))
        warehouse.ingest(recorded(tmp_path / "old", "older", [1, 1, 1, 1], 10**18))
        [[served]] = warehouse.query("SELECT run_id FROM main.runs WHERE name LIKE 'newer%'").rows()
        find = RecordedKernels(warehouse).find
        sql = "SELECT min(signature) FROM main.instructions WHERE opcode = 'custom-call'"
        signature = warehouse.query(sql).scalar()
        assert find("TPU v5e", signature) is find("TPU v6e", "another") is None
    [row] = planned(*arguments)
    assert row["name"] == formula["name"].replace("-predicted", "-paged_attention-measured-predicted")
    assert planned(*arguments)[0]["run_id"] == row["run_id"] != formula["run_id"]
    [kernel] = json.loads(row["measured_kernels"])
    assert kernel == {
        "kernel": "paged_attention", "signature": signature, "us": 200, "low_us": 100, "high_us": 400, "n": 32,
        "run_id": served, "run": "newer-predicted",
    }  # fmt: skip
    # what is given wins, and what HBM bounds is faster with it; this kernel moves too little for 200 us
    [given] = planned(*arguments, "--kernel", "paged_attention=1000")
    [hbm] = planned(*arguments, "--hbm-factor", "2")
    with open_warehouse(tmp_path / "w") as warehouse:

        def times(run: Any) -> Any:
            sql = "SELECT DISTINCT basis, duration_ps, low_ps, high_ps FROM main.ops WHERE basis LIKE 'kernel%' AND "
            return warehouse.query(f"{sql} run_id = '{run['run_id']}'").rows()

        measured = [("kernel_measured", 200_000_000, 100_000_000, 400_000_000)]
        assert times(row) == times(hbm) == measured
        assert times(given) == [("kernel_measured", 1_000_000_000, 900_000_000, 1_100_000_000)]
        assert {basis for basis, *_ in times(formula)} == {"kernel_model"}
        sql = f"SELECT detail FROM main.quality_flags WHERE flag = 'predicted' AND run_id = '{row['run_id']}'"
        assert warehouse.query(sql).scalar() == (
            "for v6e:2x4, by version 3 of the rules; paged_attention takes 200 us, the median of 32 in "
            f"newer-predicted ({served})"
        )
        # neither a repeat of the other prediction, nor another workload, nor compared with what it is made of
        ids = f"['{formula['run_id']}', '{row['run_id']}']"
        sql = f"SELECT count(DISTINCT configuration) FROM macros.configurations() WHERE list_contains({ids}, run_id)"
        assert warehouse.query(sql).scalar() == 2
        works = warehouse.query(f"SELECT count(DISTINCT workload) FROM macros.study_points({ids})").scalar()
        assert works == 1
        compared = "SELECT DISTINCT predicted_run_id FROM metrics.prediction_error WHERE op_kind = 'kernel'"
        assert warehouse.query(compared).rows() == [(formula["run_id"],)]
    assert (given["measured_kernels"], formula["measured_kernels"]) == (None, None)


def test_a_whole_model_is_compiled_where_its_first_layers_cannot_tell(
    planned: Callable[..., Any], compiler: Compiler
) -> None:
    """The program has four layers, and eight are needed to tell the steady one."""
    [row] = planned(MODEL, "--slices", "v6e:2x4", "--meshes", "tp=8", "--batches", "8", "--json")
    assert [each.compiled_layers for each in compiler.asked] == [8, None]
    assert (row["layers"], row["compiled_layers"], row["is_fitting"]) == (80, 80, True)
    planned(*STUDY, "--batches", "64", code=1)
    compiler.asked.clear()
    [whole] = planned(MODEL, "--slices", "v6e:2x4", "--meshes", "tp=8", "--batches", "8", "--whole", "--json")
    assert [each.compiled_layers for each in compiler.asked] == [None]
    assert whole["name"] == row["name"]
    assert "-whole-" in whole["name"]
    [usual] = planned(*STUDY, "--batches", "8", "--json")
    assert "-whole-" not in usual["name"]


def test_only_the_step_whose_layers_cannot_tell_is_compiled_whole(
    planned: Callable[..., Any], compiler: Compiler, tmp_path: Path
) -> None:
    """Eight layers of the prefill tell the other 72; of the decode step there are four."""
    compiler.layers["prefill"] = 8
    arguments = (MODEL, "--slices", "v6e:2x4", "--meshes", "tp=8", "--batches", "8,16", "--json")
    rows = planned(*arguments)
    assert [(each.compiled_layers, each.phases, each.spec.batch) for each in compiler.asked] == [
        (8, ("prefill", "decode"), 8),
        (8, ("prefill", "decode"), 16),
        (None, ("decode",), 8),
        (None, ("decode",), 16),
    ]
    assert not any("-whole-" in row["name"] for row in rows)
    with open_warehouse(tmp_path / "w") as warehouse:
        sql = "SELECT DISTINCT phase, compiled_layers, layers, argument_bytes FROM main.predictions ORDER BY phase, 4"
        [decode, prefill, *others] = warehouse.query(sql).rows()
    assert (decode, prefill[:3]) == (("decode", 80, 80, 4 * GB), ("prefill", 8, 80))
    assert prefill[3] > 15 * GB  # the weights of 72 layers more
    assert len(others) == 1  # another batch has another cache
    [whole, _] = planned(*arguments, "--whole")
    compiler.layers["decode"] = 8
    steady = planned(*arguments)[0]
    assert whole["ttft_ms"] < steady["ttft_ms"] == rows[0]["ttft_ms"]
    assert whole["tpot_ms"] == rows[0]["tpot_ms"] < steady["tpot_ms"]


def test_what_cannot_fit_is_not_compiled(planned: Callable[..., Any], compiler: Compiler) -> None:
    [line, said, *_] = planned(MODEL, "--slices", "v5e:2x4", "--meshes", "tp=8", "--batches", "8", code=1)
    assert line == "v5e:2x4"
    # 68.5 billion weights of two bytes over eight devices, and on each the embedding of 128,256 tokens
    assert said.startswith("tp=8 8: does not fit: weights 19.5 GB and cache ")
    assert compiler.asked == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--slices", "v6e:2x4", "--meshes", "tp=8", "--batches", "8,x"], "--batches: expected numbers"),
        (["--slices", "v6e:2x4", "--meshes", "tp=8", "--kernel", "paged"], "--kernel: expected NAME=US"),
        (["--slices", "v6e:2x4", "--meshes", "tp=8", "--kernel", "paged=-1"], "--kernel: expected NAME=US"),
        (["--slices", "v6e:2x4", "--meshes", "tp=8", "--layers", "999"], "layers: meta-llama/Llama-3.1-70B has 80"),
        (["--meshes", "tp=8"], "expected a model or experiment and --slices, or --calibrate RUN"),
        (["--slices", " , "], "expected a model or experiment and --slices, or --calibrate RUN"),
        (["--slices", "v6e:2x4", "--batches", "0"], "batch: Input should be greater than or equal to 1"),
        (["--slices", "v6e:2x4", "--batches", ","], "--batches: expected at least one, found none"),
        (["--slices", "v6e:2x4", "--batches", "9" * 5000], "--batches: expected numbers"),
        (["--slices", "v6e:2x4", "--meshes", " "], "--meshes: expected at least one, found none"),
        (["--slices", "v6e:2x4", "--meshes", "foo=8"], "unknown mesh axis foo"),
        (["--slices", "v6e:1000000x1000000"], "expected generation and chips per dimension"),
        (["--slices", "v6e:2x4x2"], "chips of v6e are linked in 2 dimensions, not 3"),
        (["--slices", "v4:4x4"], "chips of v4 are linked in 3 dimensions, not 2"),
        (["--slices", "v6e:2x4", "--kernel", "paged=0.0"], "--kernel: expected NAME=US"),
        (["--slices", "v6e:2x4", "--kernel", "paged=1.1e9"], "--kernel: expected NAME=US"),
        (["--slices", "v6e:2x4", "--ici-factor", "inf"], "'--ici-factor': Input should be less than or equal to 1000"),
        (["--slices", "v6e:2x4", "--hbm-factor", "inf"], "'--hbm-factor': Input should be less than or equal to 1000"),
        (["--slices", "v6e:2x4", "--host-ms", "inf"], "'--host-ms': Input should be less than or equal to 1000000"),
        (["--slices", "v6e:2x4", "--chip-price", "inf"], "'--chip-price': Input should be less than or equal to"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["plan", MODEL, *arguments])
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


def test_an_unknown_model_is_one_mistake_however_many_configurations_are_asked() -> None:
    asked = ["plan", "nobody/Nothing", "--slices", "v6e:2x4", "--meshes", "tp=8 dp=2,tp=4", "--batches", "1,8"]
    result = CliRunner().invoke(app, asked)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("nobody/Nothing") == 1


def test_meshes_and_slices_pair_by_their_devices() -> None:
    fields = {"model": "llama", **LENGTHS, "input_length": 32}
    found = places(["tp=8", "dp=2,tp=2"], ["v6e:2x4", "v5e:2x4", "v4:2x2x1"], [4, 8], **fields)
    assert [(place.topology, place.mesh, place.batch) for place in found] == [
        ("v6e:2x4", "tp=8", 4),
        ("v6e:2x4", "tp=8", 8),
        ("v5e:2x4", "tp=8", 4),
        ("v5e:2x4", "tp=8", 8),
        ("v4:2x2x1", "dp=2,tp=2", 4),
        ("v4:2x2x1", "dp=2,tp=2", 8),
    ]
    [odd] = places(["tp=3"], ["v6e:1x3"], [4], **fields)
    assert odd.spec is None
    assert "tp=3 does not divide" in str(odd.refused)


def test_without_meshes_those_are_planned_that_the_model_can_have() -> None:
    dense = places([], ["v6e:2x4"], [8], model=MODEL, **LENGTHS)
    assert [place.mesh for place in dense] == ["dp=1,tp=8", "dp=2,tp=4", "dp=4,tp=2", "dp=8,tp=1"]
    # where the model can have none, each says why
    assert [(place.mesh, place.refused) for place in places([], ["v6e:1x15"], [8], model=MODEL, **LENGTHS)] == [
        ("dp=1,tp=15", "run: mesh: tp=15 does not divide the 64 attention heads"),
        ("dp=3,tp=5", "run: mesh: tp=5 does not divide the 64 attention heads"),
        ("dp=5,tp=3", "run: mesh: tp=3 does not divide the 64 attention heads"),
        ("dp=15,tp=1", "run: batch: dp x ep = 15 does not divide the 8 sequences of a microbatch"),
    ]
    # two sequences are for two devices at most
    assert len(places([], ["v6e:2x4"], [2], model=MODEL, **LENGTHS)) == 2
    experts = places([], ["v6e:2x4"], [8], model="Qwen/Qwen3-30B-A3B", **LENGTHS)
    assert [place.mesh for place in experts] == ["ep=1,tp=8", "ep=2,tp=4", "ep=4,tp=2", "ep=8,tp=1"]


@pytest.mark.parametrize(
    ("meshes", "slices", "said"),
    [
        (["tp=4"], ["v6e:2x4"], "mesh tp=4 has 4 devices, and none of v6e:2x4 has as many"),
        (["tp=8"], ["v6e:2x4", "v6e:2x2"], "slice v6e:2x2 has 4 devices, and none of tp=8 has as many"),
        (["tp8"], ["v6e:2x4"], "expected axis=size pairs"),
        (["tp=8"], ["v6e-8"], "expected generation and chips per dimension"),
    ],
)
def test_a_mesh_or_slice_without_a_partner_is_a_mistake(meshes: list[str], slices: list[str], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        places(meshes, slices, [8], model=MODEL, **LENGTHS)


def test_memory_of_a_whole_model_from_eight_layers() -> None:
    """Llama-3.1-8B on eight v6e with 8 and 32 layers, as libtpu 0.0.42.1 counts; see the steps' memory there."""
    spec = run_spec(model="meta-llama/Llama-3.1-8B", mesh="tp=8", batch=8, **LENGTHS)
    place = configuration(spec, "v6e:2x4")
    assert place.compiled_layers == 8
    eight = {
        "arguments": 1660330496,
        "outputs": 42202208,
        "aliased": 41943552,
        "temporaries": 226291424,
        "program": 32417792,
    }
    prefill = whole_memory(CompiledStep("prefill", Path("p"), "TPU v6e", eight), place)
    assert prefill["arguments"] == pytest.approx(3.095e9, rel=1e-3)  # as of 32 layers
    # a cache of 1,280 positions of a key and a value of 128 elements in 24 layers more
    assert prefill["outputs"] - eight["outputs"] == 24 * 8 * 1280 * 2 * 128 * 2
    assert prefill["aliased"] - eight["aliased"] == prefill["outputs"] - eight["outputs"]
    assert prefill["temporaries"] == round(1.05 * eight["temporaries"])
    decode = whole_memory(CompiledStep("decode", Path("p"), "TPU v6e", eight), place)
    assert (decode["temporaries"], decode["program"]) == (4 * eight["temporaries"], 4 * eight["program"])
    assert device_bytes(eight) == 1660330496 + 42202208 - 41943552 + 226291424 + 32417792
    whole = configuration(spec, "v6e:2x4", is_whole=True)
    assert whole_memory(CompiledStep("decode", Path("p"), "TPU v6e", eight), whole) == eight


def test_the_first_layers_are_those_of_each_stage_and_kind() -> None:
    deep = run_spec(model="deepseek-ai/DeepSeek-V3.1-Base", mesh="ep=8,tp=8", batch=8, **LENGTHS)
    assert configuration(deep, "v6e:8x8").compiled_layers == 3 + 8
    staged = run_spec(model=MODEL, mesh="pp=2,tp=8", batch=8, **LENGTHS)
    assert configuration(staged, "v6e:4x4").compiled_layers == 16
    assert configuration(run_spec(model="llama", backend="jax", layers=40), "v6e:2x2").compiled_layers is None


def test_a_model_near_the_memory_of_a_chip_is_compiled_whole() -> None:
    place = configuration(run_spec(model=MODEL, mesh="tp=8", batch=8, **LENGTHS), "v6e:2x4")
    grown = whole_memory(CompiledStep("decode", Path("p"), "TPU v6e", memory(0)), place)["arguments"]

    def refusal(total: int, of: Configuration) -> str | None:
        return memory_refusal(CompiledRun(of, (CompiledStep("decode", Path("p"), "TPU v6e", memory(total)),)))

    assert refusal(30 * GB - grown, place) is None
    with pytest.raises(UnsteadyLayersError):
        refusal(31 * GB - grown, place)
    with pytest.raises(UnsteadyLayersError):
        refusal(33 * GB - grown, place)
    assert refusal(34 * GB - grown, place) == "does not fit: needs 34 GB a device of 32"
    whole = configuration(place.spec, "v6e:2x4", is_whole=True)
    assert (refusal(31 * GB, whole), refusal(33 * GB, whole)) == (None, "does not fit: needs 33 GB a device of 32")
    assert room_refusal(place.spec, "v6e:2x4") is None


def test_a_routing_skew_is_compiled_and_the_busiest_device_decides(compiler: Compiler, tmp_path: Path) -> None:
    arguments = [
        "-w",
        str(tmp_path / "w"),
        "plan",
        "deepseek-ai/DeepSeek-V2-Lite",
        "--layers",
        "4",
        "--slices",
        "v6e:2x4",
    ]
    arguments += ["--meshes", "ep=8", "--batches", "8", "--routing-skew", "1"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert [each.spec.routing_skew for each in compiler.asked] == [1.0]
    said = " ".join(result.stderr.split())
    assert "note: with a routing skew of 1 the device with the preferred experts of ep=8 is expected to compute" in said
    assert " 1.66 times the mean of the pairs of token and expert; the times are those of this device" in said
    assert (
        "routing_skew: needs a model with experts" in CliRunner().invoke(app, ["plan", *STUDY, *arguments[-2:]]).output
    )


def test_an_experiment_is_planned_on_the_slices_that_have_its_devices(
    planned: Callable[..., Any], compiler: Compiler, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    runs = [f"{{mesh: {mesh}, batch: {batch}}}" for mesh, batch in (("tp=8", 8), ("tp=4", 8), ("tp=8", 64))]
    file.write_text(
        f"defaults: {{model: {MODEL}, layers: 4, device: tpu, input_length: 1024, output_length: 129, "
        f"backend: jax}}\nruns: [{', '.join(runs)}]\n"
    )
    rows = planned(str(file), "--slices", "v6e:2x4", "--json")
    assert [(row["mesh"], row["batch_size"], "refused" in row) for row in rows] == [
        ("tp=8", 8, False),
        ("tp=8", 64, True),
    ]
    assert {each.spec.device for each in compiler.asked} == {"cpu"}
    assert "no run of" in CliRunner().invoke(app, ["plan", str(file), "--slices", "v6e:1x1"]).output
