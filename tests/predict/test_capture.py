"""A predicted run is a run: a small one, with its numbers by hand.

Two v6e chips run a layer: weights of 8 MiB come to VMEM while a product of 1,024 tokens runs, then an all-reduce.

    prefill, us    0    1                             41  43              63
    core           [start)[-- fusion -----------------)[done)[- all-reduce -)
    dma                 [--- copy, 30 us ---)

The decode step is the same with times of a tenth, for a layer that was compiled and one that was not.
"""

from __future__ import annotations

import gzip
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.predict.programs import program
from tracewarehouse.cli import app
from tracewarehouse.dashboards.figure import NothingToDraw
from tracewarehouse.dashboards.registry import CHARTS
from tracewarehouse.exports.ccl_bench.row import write_row
from tracewarehouse.exports.chakra import export_chakra
from tracewarehouse.exports.chrome import chrome_text
from tracewarehouse.exports.perfetto.export import export_perfetto
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh, ModelFacts
from tracewarehouse.ingest.capture.prediction import PredictedPhase, Prediction
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.capture_comparison import compare_with_capture
from tracewarehouse.ingest.errors import CaptureError, MalformedError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.predict.capture import PredictedStep, write_capture
from tracewarehouse.predict.timeline import Queue, TimedOp
from tracewarehouse.queries.run_summary import labelled, title
from tracewarehouse.warehouse import Warehouse, open_warehouse

US = 1_000_000
PATHS = {"fusion": "jit(step)/layer0/mlp/dot_general", "all-reduce": "jit(step)/layer0/mlp/psum"}


def layer(phase: str) -> HloModule:
    made = program(
        2,
        main="""
        %a = bf16[1024,1024]{1,0:S(1)} parameter(0)
        %w = bf16[1024,4096] parameter(1)
        %copy-start = (bf16[1024,4096]{1,0:S(1)}, bf16[1024,4096], u32[]{:S(2)}) copy-start(%w)
        %copy-done = bf16[1024,4096]{1,0:S(1)} copy-done(%copy-start)
        %fusion = bf16[1024,4096]{1,0:S(1)} fusion(%a, %copy-done), kind=kOutput, calls=%product
        %all-reduce = bf16[1024,4096] all-reduce(%fusion), channel_id=1, replica_groups={{0,1}}
        """,
        product="""
        %x = bf16[1024,1024] parameter(0)
        %y = bf16[1024,4096] parameter(1)
        %dot = bf16[1024,4096] dot(%x, %y)
        """,
    )
    proto = CLASSES["HloProto"].FromString(made.raw)
    for each in (i for c in proto.hlo_module.computations for i in c.instructions):
        each.metadata.op_name = PATHS.get(each.name.decode(), "").encode()
        if each.opcode == b"dot":
            each.dot_dimension_numbers.lhs_contracting_dimensions.append(1)
    return HloModule(f"jit_{phase}", proto.SerializeToString(), [])


def timed(unit: int, begin: int = 0, of_layer: int | None = None) -> list[TimedOp]:
    """The ops of one layer, in units that a prefill has as microseconds."""

    def op(name: str, start: int, duration: int, basis: Any, queue: Queue = "core") -> TimedOp:
        low, high = duration * 9 // 10, duration * 12 // 10
        times = ((begin + start) * unit, duration * unit, low * unit, high * unit)
        copied = {"layer": of_layer, "is_repeated": of_layer is not None}
        return TimedOp(name, times[0], times[1], queue, basis, times[2], times[3], **copied)

    return [
        op("copy-start", 0, 1, "small_op"),
        op("copy-start", 1, 30, "hbm_bytes", "dma"),
        op("fusion", 1, 40, "compiler_cycles"),
        op("copy-done", 41, 2, "wait"),
        op("all-reduce", 43, 20, "links")._replace(link_ps=15 * unit),
    ]


MODEL = ModelFacts(
    name="small", family="llama", num_layers=2, hidden_size=1024, num_heads=8, head_dim=128, vocab_size=4096,
    num_params=9_000_000, num_params_embedding=1_000_000, tie_word_embeddings=False,
)  # fmt: skip


def write(
    folder: Path,
    spec: dict[str, Any] | None = None,
    unit: int = US,
    model: ModelFacts = MODEL,
    batch_size: int = 4,
    **changed: Any,
) -> Path:
    """Write the example, with a prefill in units of so many picoseconds; `changed` replaces facts of the prediction."""
    modules = {phase: layer(phase) for phase in ("prefill", "decode")}
    memory = {"argument_bytes": 3_000, "output_bytes": 100, "temporary_bytes": 200, "program_bytes": 50}
    phases = [
        PredictedPhase(phase=p, program_digest=m.digest, layers=2, compiled_layers=1, context_tokens=256, **memory)
        for p, m in modules.items()
    ]
    prediction = Prediction(
        **{"topology": "v6e:1x2", "chip": "TPU v6e", "rules_version": 1, "phases": phases} | changed
    )
    ops = {"prefill": timed(unit), "decode": [*timed(US // 10), *timed(US // 10, 63, of_layer=1)]}
    manifest = Manifest(
        name=f"{model.name}-tp2-predicted", model=model, backend="jax", dtype="bfloat16", batch_size=batch_size,
        input_length=256, output_length=11, mesh=Mesh(axes={"tp": 2}), spec=spec,
    )  # fmt: skip
    steps = [PredictedStep(f, modules[f.phase], ops[f.phase]) for f in phases]
    return write_capture(folder, manifest, prediction, steps)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("predicted")
    with open_warehouse(folder / "warehouse", create=True) as opened:
        opened.ingest(write(folder))
        yield opened


def value(warehouse: Warehouse, metric: str, where: str = "TRUE", column: str = "value") -> Any:
    source = f"metrics.{metric}" if column != "value" else f"metrics.all_values WHERE metric = '{metric}' AND {where}"
    sql = f"SELECT {column} FROM {source}" + ("" if column == "value" else f" WHERE {where}")
    [[found]] = warehouse.query(sql).rows()
    return found


def test_the_run_says_that_it_is_predicted(warehouse: Warehouse) -> None:
    assert warehouse.query("SELECT origin, device_count, mesh FROM main.runs").rows() == [("predicted", 2, "tp=2")]
    told = warehouse.query(
        "SELECT phase, topology, rules_version, layers, compiled_layers, argument_bytes, ici_factor "
        "FROM main.predictions ORDER BY phase DESC"
    ).rows()
    assert told == [(p, "v6e:1x2", 1, 2, 1, 3_000, 1.0) for p in ("prefill", "decode")]
    flags = warehouse.query("SELECT flag, detail FROM main.quality_flags").rows()
    assert flags == [("predicted", "for v6e:1x2, by version 1 of the rules")]
    assert str(warehouse.query("SELECT tpot_ms, run_id FROM metrics.tpot").flagged_runs[0]).endswith("(predicted)")
    summary = warehouse.summary("small-tp2-predicted")
    assert summary.facts["origin"] == "predicted"
    assert title(summary.facts) == "small-tp2-predicted (predicted)"
    assert ("Captured", "no, predicted from compiled programs: nothing ran; 38 events") in labelled(summary.facts)


def test_its_ops_have_the_times_that_were_predicted(warehouse: Warehouse) -> None:
    rows = warehouse.query(
        "SELECT i.name, o.line, o.start_ps, o.duration_ps, o.basis, o.low_ps, o.high_ps, o.is_extrapolated, o.phase "
        "FROM main.ops AS o JOIN main.instructions AS i USING (run_id, instruction_id) "
        "WHERE device_id = 1 AND basis IS NOT NULL AND phase = 'prefill' ORDER BY line DESC, start_ps"
    ).rows()
    core = [("copy-start", 0, 1, "small_op"), ("fusion", 1, 40, "compiler_cycles"), ("copy-done", 41, 2, "wait"),
            ("all-reduce", 43, 20, "links")]  # fmt: skip
    assert rows[:4] == [
        (n, "XLA Ops", s * US, d * US, b, d * 9 // 10 * US, d * 12 // 10 * US, False, "prefill") for n, s, d, b in core
    ]
    assert rows[4:] == [("copy-start", "Async XLA Ops", US, 30 * US, "hbm_bytes", 27 * US, 36 * US, False, "prefill")]


def test_faster_links_leave_its_latency(warehouse: Warehouse) -> None:
    """The bytes of an all-reduce take 15 of 20 us, in a prefill of 63."""
    rows = warehouse.query("SELECT phase, basis, bound, factor, saved_percent FROM metrics.faster_links").rows()
    saved = {"2": 7.5, "4": 11.25, "infinite": 15}
    assert sorted(rows) == [
        (phase, "rules", None, factor, pytest.approx(100 * us / 63))
        for phase in ("decode", "prefill")
        for factor, us in saved.items()
    ]
    rows = warehouse.query(
        "SELECT DISTINCT line, i.name, link_ps / duration_ps FROM main.ops AS o "
        "JOIN main.instructions AS i USING (run_id, instruction_id) WHERE link_ps IS NOT NULL"
    ).rows()
    assert sorted(rows) == [("XLA Ops", "all-reduce", 0.75), ("XLA Ops", "all-reduce.layer1", 0.75)]


def test_a_layer_that_was_not_compiled_is_a_layer_of_the_run(warehouse: Warehouse) -> None:
    rows = warehouse.query(
        "SELECT i.name, i.layer, o.is_extrapolated, COUNT(*) FROM main.ops AS o JOIN main.instructions AS i "
        "USING (run_id, instruction_id) WHERE i.layer IS NOT NULL AND phase = 'decode' AND o.is_leaf "
        "GROUP BY ALL ORDER BY ALL"
    ).rows()
    # the copy has no name of its own and takes that of the op that it is for
    names = ("all-reduce", "copy-done", "copy-start", "fusion")
    assert rows == sorted([(n, 0, False, 2) for n in names] + [(f"{n}.layer1", 1, True, 2) for n in names])
    copies = warehouse.query("SELECT phase, COUNT(*) FROM main.copies GROUP BY ALL ORDER BY ALL").rows()
    assert copies == [("decode", 4), ("prefill", 2)]  # each start has found its own done
    assert value(warehouse, "prediction_basis", "phase = 'decode' AND basis = 'links'", "extrapolated_share") == 0.5


def test_a_copy_in_a_pipeline_has_the_layer_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = {name: path.replace("layer0", "tick1/local_layer0") for name, path in PATHS.items()}
    monkeypatch.setattr(f"{__name__}.PATHS", stage)
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(write(tmp_path))
        rows = opened.query(
            "SELECT name, op_name FROM main.instructions WHERE name LIKE 'fusion%' ORDER BY name"
        ).rows()
    paths = [f"jit(step)/tick1/local_layer{n}/mlp/dot_general" for n in (0, 1)]
    assert set(rows) == {("fusion", paths[0]), ("fusion.layer1", paths[1])}


def test_latencies_by_hand(warehouse: Warehouse) -> None:
    assert value(warehouse, "ttft", column="ttft_ms") == 0.063
    assert value(warehouse, "tpot", column="tpot_ms") == pytest.approx(0.0126)  # two layers of 6.3 us
    assert value(warehouse, "e2e_latency", column="decode_steps") == 10
    assert value(warehouse, "e2e_latency", column="e2e_latency_ms") == pytest.approx(0.063 + 10 * 0.0126)
    # 4 x 11 tokens in 189 us
    assert value(warehouse, "throughput", column="output_tokens_per_s") == pytest.approx(44 / 189e-6)


def test_communication_and_copies_by_hand(warehouse: Warehouse) -> None:
    exposed = "phase = 'prefill' AND device_id = 0"
    assert value(warehouse, "exposed_communication", exposed, "exposed_ms") == 0.020
    assert value(warehouse, "communication_fraction", "phase = 'prefill'", "fraction") == pytest.approx(20 / 63)
    # 1,024 x 4,096 numbers of two bytes
    assert value(warehouse, "traffic_volume", "phase = 'prefill'", "message_bytes_per_step") == 8 << 20
    # on each device the fusion hides 30 us of the copy, and nothing hides its start and its done
    assert value(warehouse, "copy_overhead", "phase = 'prefill'", "exposed_ms") == pytest.approx(2 * 0.003)


def test_work_by_hand(warehouse: Warehouse) -> None:
    flops = 2 * 1024 * 1024 * 4096
    [row] = warehouse.query(
        "SELECT flops, bytes_accessed, hbm_bytes_accessed, category FROM main.instructions "
        "WHERE name = 'fusion' AND module = 'jit_prefill'"
    ).rows()
    assert row == (flops, (1024 * 1024 + 2 * 1024 * 4096) * 2, 0, "convolution fusion")
    # of the copy's start what it reads from HBM, of its done what it writes to VMEM
    moved = warehouse.query(
        "SELECT name, bytes_accessed, hbm_bytes_accessed FROM main.instructions WHERE name "
        "IN ('copy-start', 'copy-done') AND module = 'jit_prefill' ORDER BY name"
    ).rows()
    assert moved == [("copy-done", 8 << 20, 0), ("copy-start", 8 << 20, 8 << 20)]
    gemm = value(warehouse, "gemm_efficiency", "phase = 'prefill'", "efficiency")
    assert gemm == pytest.approx(flops / 40e-6 / 918e12)
    # the whole model: 9 M parameters, of which 1 M embed and 4,096 x 1,024 are the head
    head, tokens = 4096 * 1024, 4 * 256
    work = 2 * ((9_000_000 - 1_000_000 - head) * tokens + head * 4) + 4 * 2 * 1024 * 4 * (256 * 257 // 2)
    assert value(warehouse, "mfu", "phase = 'prefill'", "mfu") == pytest.approx(work / 63e-6 / (2 * 918e12))


def test_range_and_price_by_hand(warehouse: Warehouse) -> None:
    # below: 1, 4, 1 (2 x 9 // 10 = 1) and 2 us of bases; above: 0, 8, 0 and 4
    low, high = 63 - (1 + 16 + 1 + 4) ** 0.5, 63 + (64 + 16) ** 0.5
    assert value(warehouse, "prediction_range", "phase = 'prefill'", "low_ms") == pytest.approx(low / 1e3)
    assert value(warehouse, "prediction_range", "phase = 'prefill'", "high_ms") == pytest.approx(high / 1e3)
    # two chips for 12.6 us make four tokens, at 2.70 USD an hour
    hours = 2 * 12.6e-6 / 3600 / 4 * 1e6
    assert value(warehouse, "token_cost", "phase = 'decode'", "chip_hours_per_million_tokens") == pytest.approx(hours)
    assert value(warehouse, "token_cost", "phase = 'decode'", "usd_per_million_tokens") == pytest.approx(2.7 * hours)


def test_the_range_of_a_prefill_of_hours_by_hand(tmp_path: Path) -> None:
    """The squares of its distances in units of 10 ns are beyond 2^63."""
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        warehouse.ingest(write(tmp_path, unit=200_000_000 * US))
        low, high = 63 - (1 + 16 + 1 + 4) ** 0.5, 63 + (64 + 16) ** 0.5
        for end, units in (("low_ms", low), ("high_ms", high)):
            found = value(warehouse, "prediction_range", "phase = 'prefill'", end)
            assert found == pytest.approx(units * 200e3, rel=1e-6)


def test_what_only_a_recording_shows_is_refused_and_a_chart_says_what_it_draws(warehouse: Warehouse) -> None:
    refused = {
        "collective_attribution", "collective_skew", "device_idle", "hockney", "host_gap",
        "launch_overhead", "load_imbalance", "prediction_error", "straggler_ranking", "sync_wait",
    }  # fmt: skip
    rows = warehouse.query("SELECT metric, reason FROM metrics.missing WHERE unmet = 'recorded'").rows()
    assert {metric for metric, _ in rows} == refused
    assert all("the run is predicted" in reason for _, reason in rows)
    names = ", ".join(f"'{metric}'" for metric in refused)
    assert warehouse.query(f"SELECT * FROM metrics.all_values WHERE metric IN ({names})").rows() == []
    drawn = CHARTS["exposed-communication"](warehouse, "small-tp2-predicted")
    assert drawn.subtitle.endswith(" Predicted, not measured.")
    with pytest.raises(NothingToDraw, match="the run is predicted, and no host leaves a device idle"):
        CHARTS["idle"](warehouse, "small-tp2-predicted")


def test_every_picture_says_that_it_is_predicted(tmp_path: Path) -> None:
    """Also those for papers, which have no title; of few charts, as each is drawn several times until it fits."""
    with open_warehouse(tmp_path / "w", create=True) as opened:
        for name, factor in (("a", 1.0), ("b", 2.0)):
            opened.ingest(write(tmp_path / name, ici_factor=factor), name=name)
        subjects = {"run": ("a",), "runs": (["a", "b"],), "comparison": (["a"], ["b"])}
        drawn = {}
        for name, chart in CHARTS.items():
            with suppress(NothingToDraw):
                drawn[name] = chart(opened, *subjects[chart.subject])
    assert {"pareto", "faster-links", "study-parts", "differences", "timeline", "exposed-communication"} <= set(drawn)
    for figure in drawn.values():
        assert figure.caption.startswith("Predicted, not measured.")
        assert figure.subtitle.endswith(figure.caption)
    for name, width_mm in (("pareto", 85.0), ("study-parts", 40.0), ("timeline", None)):
        svg = drawn[name].save(tmp_path / "a.svg", width_mm=width_mm).read_text()
        said = " ".join(re.findall(r">([^<>]+)</t(?:ext|span)>", svg))
        assert drawn[name].caption in " ".join(said.split())


def test_exports_say_that_it_is_predicted(warehouse: Warehouse, tmp_path: Path) -> None:
    chrome = b"".join(chrome_text(warehouse, warehouse.run("small-tp2-predicted").run_id, ["predicted"]))
    events = json.loads(chrome)["traceEvents"]
    processes = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {"predicted /device:TPU:0", "predicted /device:TPU:1"}
    trace = export_perfetto(warehouse, ["small-tp2-predicted"], tmp_path / "a.pftrace.gz")
    content = gzip.decompress(trace.read_bytes())
    assert b"small-tp2-predicted (predicted)" in content
    assert b"device 1, on host predicted" in content
    chakra = export_chakra(warehouse, "small-tp2-predicted", tmp_path / "chakra")
    assert all("predicted" in f.name for f in chakra.files if f.suffix == ".et")
    assert "the run is predicted" in chakra.warnings[0]
    row = write_row(warehouse, warehouse.run("small-tp2-predicted"), tmp_path / "small-tp2-predicted-tpu")
    assert row.card["description"].startswith("predicted, not measured")
    assert "predicted, not measured" in row.warnings[0]


def test_the_script_of_an_exported_row_predicts_it_again(tmp_path: Path) -> None:
    spec = {"model": "meta-llama/Llama-3.1-8B", "mesh": {"axes": {"tp": 2}}, "batch": 4, "input_length": 256}
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(write(tmp_path, spec=spec, kernels={"flash": 7.5}, ici_factor=2.0))
        row = write_row(opened, opened.run("small-tp2-predicted"), tmp_path / "small-tpu")
    assert (row.folder / "run.sh").read_text().splitlines()[-1] == (
        "tw plan meta-llama/Llama-3.1-8B --slices v6e:1x2 --meshes tp=2 --batches 4 --input-length 256 "
        "--ici-factor 2.0 --hbm-factor 1.0 --kernel flash=7.5"
    )


def test_a_comparison_says_which_side_is_predicted(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b", 2.0)):
        with open_warehouse(tmp_path / "w", create=True) as opened:
            opened.ingest(write(tmp_path / name, ici_factor=factor), name=name)

    def said(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["-w", str(tmp_path / "w"), *arguments])

    told = "Predicted, not measured: the baseline and the run."
    assert said("compare", "a", "b").stdout.splitlines()[0] == told
    file = str(tmp_path / "a.ndjson")
    assert said("baseline", "a", "-o", file).exit_code == 0
    # a baseline file of predicted runs is one too, and a check says so as well
    with open_warehouse(tmp_path / "w") as opened:
        opened.remove("a")
    for verb in (("compare", "b", file), ("check", "b", "--against", file, "--force")):
        assert told in said(*verb).stdout.splitlines()
        assert "predicted, not measured: the baseline and the run" in said(*verb, "--format", "csv").stderr


def test_a_chrome_trace_of_it_is_predicted_again(warehouse: Warehouse, tmp_path: Path) -> None:
    run = warehouse.run("small-tp2-predicted")
    (tmp_path / "small.trace.json").write_bytes(b"".join(chrome_text(warehouse, run.run_id, ["predicted"])))
    told = (
        "SELECT origin, basis, low_ps, high_ps, is_extrapolated, link_ps, COUNT(*) "
        "FROM main.runs JOIN main.ops USING (run_id) "
    )
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(tmp_path / "small.trace.json")
        assert opened.query(f"{told} GROUP BY ALL ORDER BY ALL").rows() == (
            warehouse.query(f"{told} GROUP BY ALL ORDER BY ALL").rows()
        )
        assert opened.query("SELECT * EXCLUDE (run_id) FROM main.predictions ORDER BY phase").rows() == (
            warehouse.query("SELECT * EXCLUDE (run_id) FROM main.predictions ORDER BY phase").rows()
        )


def test_the_run_holds_all_of_its_capture(warehouse: Warehouse, tmp_path: Path) -> None:
    comparison = compare_with_capture(find_captures(write(tmp_path))[0], warehouse.lake.warehouse)
    assert comparison.differences == []
    assert sum(line.events for line in comparison.counts) == 38


def test_the_same_prediction_gives_the_same_bytes(tmp_path: Path) -> None:
    one, two = (next(write(tmp_path / n).rglob("*.xplane.pb")).read_bytes() for n in ("a", "b"))
    assert one == two


def test_what_the_host_adds_and_a_price_change_the_run(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(write(tmp_path, host_ms=1.0, ici_factor=2.0, chip_price_usd_per_h=1.0))
        clocks = dict(opened.query("SELECT clock, tpot_ms FROM metrics.tpot").rows())
        assert clocks == pytest.approx({"device": 1.0126, "host": 1.0126})
        assert dict(opened.query("SELECT clock, ttft_ms FROM metrics.ttft").rows()) == pytest.approx(
            {"device": 0.063, "host": 1.063}
        )
        assert value(opened, "token_cost", "phase = 'decode'", "chip_price_usd_per_h") == 1.0
        assert opened.query("SELECT DISTINCT ici_factor, host_ps FROM main.predictions").rows() == [(2.0, 1000 * US)]


def test_two_devices_of_a_tpu7x_are_one_chip(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(write(tmp_path, topology="tpu7x:1x1x1", chip="TPU7x"))
        assert opened.query("SELECT kind, chip_id, core_id, global_id FROM main.devices ORDER BY device_id").rows() == [
            ("TPU7x", 0, 0, 0), ("TPU7x", 0, 1, 1),
        ]  # fmt: skip
        cost = "SELECT chips, chip_price_usd_per_h FROM metrics.token_cost WHERE phase = 'decode'"
        assert opened.query(cost).rows() == [(1, 12.0)]
        assert opened.query("SELECT DISTINCT link FROM main.collectives").rows() == [("die",)]


def test_a_predicted_host_beside_a_recorded_one_is_refused(tmp_path: Path) -> None:
    file = next(write(tmp_path).rglob("*.xplane.pb"))
    told = file.read_bytes()
    (file.parent / "other.xplane.pb").write_bytes(told.replace(b"\x12\nPrediction", b"\x12\nOtherPlane"))
    with (
        open_warehouse(tmp_path / "warehouse", create=True) as opened,
        pytest.raises(CaptureError, match="predicted otherwise than others, or recorded"),
    ):
        opened.ingest(tmp_path / "small-tp2-predicted")


def test_wrong_steps_leave_nothing_behind(tmp_path: Path) -> None:
    module = layer("prefill")
    facts = PredictedPhase(phase="prefill", program_digest=module.digest)
    prediction = Prediction(topology="v6e:1x2", chip="TPU v6e", rules_version=1, phases=[facts])
    strange = [TimedOp("fusion.99", 0, 1, "core", "links", 0, 2)]
    with pytest.raises(CaptureError, match=r"jit_prefill has no instruction fusion\.99"):
        write_capture(tmp_path / "out", Manifest(name="x"), prediction, [PredictedStep(facts, module, strange)])
    with pytest.raises(CaptureError, match="not those that the prediction describes"):
        write_capture(tmp_path / "out", Manifest(name="x"), prediction, [])
    assert not (tmp_path / "out").exists()


def test_a_capture_that_says_no_valid_prediction_is_refused(tmp_path: Path) -> None:
    file = next(write(tmp_path).rglob("*.xplane.pb"))
    file.write_bytes(file.read_bytes().replace(b'"rules_version":1', b'"rules_version":x'))
    with (
        open_warehouse(tmp_path / "warehouse", create=True) as opened,
        pytest.raises((CaptureError, MalformedError), match="says no valid prediction"),
    ):
        opened.ingest(tmp_path / "small-tp2-predicted")
