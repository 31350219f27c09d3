"""A recorded run replaces rates: by other times than those predicted, or by those of the programs of a calibration.

The first two runs are 24 products and 24 all-reduces of 1 MiB and more, on two v6e chips. The recorded one takes 1.5
times the predicted time in products, a tenth more or less in the first and last ones, and 0.8 times in all-reduces, on
the second chip; the first waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner
from xplane_builder import Space, Unsigned

from tests.predict.programs import product, program
from tracewarehouse.cli import app
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.comparison.calibration import calibrate
from tracewarehouse.comparison.compare import comparing
from tracewarehouse.dashboards.report import study_report
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh
from tracewarehouse.ingest.capture.prediction import PredictedPhase, Prediction
from tracewarehouse.ingest.columns.profiler_names import PREDICTION_PLANE
from tracewarehouse.ingest.errors import MetricError, QueryError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.readers.xplane import wire
from tracewarehouse.predict.calibrations import Calibration, described, rates, read_calibrations, write_calibrations
from tracewarehouse.predict.capture import PredictedStep, write_capture
from tracewarehouse.predict.links import SliceCollective, algorithm, collective_time
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.timeline import TimedOp
from tracewarehouse.warehouse import Warehouse, open_warehouse

US = 1_000_000
COUNT = 24


def pairs(count: int) -> HloModule:
    """A program of products, each followed by an all-reduce of its result."""
    lines = ["%x = bf16[1024,1024]{1,0:S(1)} parameter(0)"]
    for n in range(count):
        rows = 1024 + 8 * n
        lines += [
            f"%w.{n} = bf16[1024,{rows}] parameter({n + 1})",
            f"%fusion.{n} = bf16[1024,{rows}]{{1,0:S(1)}} fusion(%x, %w.{n}), kind=kOutput, calls=%product.{n}",
            f"%all-reduce.{n} = bf16[1024,{rows}]{{1,0:S(1)}} all-reduce(%fusion.{n}), channel_id={n + 1}, "
            "replica_groups={{0,1}}",
        ]
    inside = {
        f"product.{n}": f"""
        %a.{n} = bf16[1024,1024] parameter(0)
        %b.{n} = bf16[1024,{1024 + 8 * n}] parameter(1)
        %dot.{n} = bf16[1024,{1024 + 8 * n}] dot(%a.{n}, %b.{n})
        """
        for n in range(count)
    }
    return program(2, main="\n".join(lines), **inside)


def timed(count: int, product: float = 1.0, all_reduce: float = 1.0) -> list[TimedOp]:
    """Products of 100 us and all-reduces of 20 us, times a factor."""
    ops, now = [], 0
    for n in range(count):
        spread = 0.9 if n < 3 else 1.1 if n >= count - 3 else 1.0
        for name, us, factor in ((f"fusion.{n}", 100, product), (f"all-reduce.{n}", 20, all_reduce)):
            varied = factor * spread if factor != 1 and "fusion" in name else factor
            duration = round(us * US * varied)
            ops.append(TimedOp(name, now, duration, "core", "compiler_cycles", duration, duration))
            now += duration
    return ops


def capture(folder: Path, name: str, module: HloModule, ops: list[TimedOp], **said: object) -> Path:
    """Write a predicted capture of one prefill."""
    phase = PredictedPhase(phase="prefill", program_digest=module.digest)
    facts = {"topology": "v6e:1x2", "chip": "TPU v6e", "rules_version": 1, "phases": [phase]} | said
    manifest = Manifest(name=name, backend="jax", mesh=Mesh(axes={"tp": 2}))
    return write_capture(folder, manifest, Prediction(**facts), [PredictedStep(phase, module, ops)])  # type: ignore[arg-type]


def as_recorded(folder: Path) -> Path:
    """Take from a capture what says that it is predicted."""
    [file] = folder.rglob("*.xplane.pb")
    data = file.read_bytes()
    kept, at = b"", 0
    for _, _, payload, stop in wire.fields(data, 0, len(data)):
        if PREDICTION_PLANE.encode() not in bytes(data[payload : payload + 200]):
            kept += data[at:stop]
        at = stop
    file.write_bytes(kept)
    return folder


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    module = pairs(COUNT)
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(capture(tmp_path, "predicted", module, timed(COUNT)))
        opened.ingest(
            as_recorded(capture(tmp_path / "r", "recorded", module, timed(COUNT, 1.5, 0.8))), device="TPU v6e"
        )
        yield opened


def test_measured_over_predicted_time_by_kind_and_nothing_averaged_over_both(warehouse: Warehouse) -> None:
    rows = warehouse.query(
        "SELECT op_kind, n, p10, p50, p90, matched_share, is_same_program FROM metrics.prediction_error "
        "ORDER BY op_kind"
    ).rows()
    assert [row[:2] + row[5:] for row in rows] == [("all-reduce", 24, 1.0, True), ("product", 24, 1.0, True)]
    assert rows[0][2:5] == pytest.approx((0.8, 0.8, 0.8))
    assert rows[1][2:5] == pytest.approx((1.35, 1.5, 1.65))
    for runs, against, side in (("recorded,predicted", "recorded", "run"), ("recorded", "predicted,recorded", "basel")):
        with (
            pytest.raises(MetricError, match=f"the {side}.* has predicted and recorded runs, and nothing is averaged"),
            comparing(warehouse, runs, against, is_unlike_allowed=True),
        ):
            pass
    with comparing(warehouse, "recorded", "predicted") as found:
        assert found.predicted_sides() == ["baseline"]
    for runs, begins in ((["recorded", "predicted"], "1 of 2 runs: predicted,"), (["predicted"], "Predicted,")):
        [section] = study_report(warehouse, runs, ["scaling"]).sections
        assert [w for w in section.words if "redicted" in w] == [
            f"{begins} not measured: queueing, continuous batching, a server's own kernels, quantization and the host "
            "are left out."
        ]


def test_rates_follow_the_recorded_run_and_the_same_again_changes_nothing(warehouse: Warehouse) -> None:
    path = warehouse.path / "calibrations.csv"
    first = calibrate(warehouse, "recorded")
    after = rates("v6e", read_calibrations(path))
    shipped = rates("v6e")
    factor, link = after["product", "factor"], after["ici", "gbps"]
    assert (factor.value, factor.low, factor.high, factor.n) == (1.17, 1.053, 1.287, 24)  # 0.78 x 1.5, 1.35 and 1.65
    assert link.value == pytest.approx(shipped["ici", "gbps"].value / 0.8)
    assert {key for key in after if after[key] != shipped[key]} == {("product", "factor"), ("ici", "gbps")}
    assert first.predicted == ("predicted",)
    text = path.read_text()
    assert calibrate(warehouse, "recorded").path.read_text() == text


def test_ones_other_rows_stay_and_a_removed_file_means_the_rates_that_ship(warehouse: Warehouse) -> None:
    path = warehouse.path / "calibrations.csv"
    calibrate(warehouse, "recorded")
    path.write_text(path.read_text() + "link,v5e,hop,us,0.5,0.4,0.6,30,my own\n")
    calibrate(warehouse, "recorded")
    assert Calibration("link", "v5e", "hop", "us", 0.5, 0.4, 0.6, 30, "my own") in read_calibrations(path)
    path.unlink()
    assert rates("v6e", read_calibrations(path)) == rates("v6e")


def test_a_prediction_with_ones_own_rates_counts_from_these(warehouse: Warehouse, tmp_path: Path) -> None:
    path = warehouse.path / "calibrations.csv"
    calibrate(warehouse, "recorded")
    own = read_calibrations(path)
    warehouse.remove(["predicted"])
    exact = capture(tmp_path / "own", "again", pairs(COUNT), timed(COUNT, 1.5, 0.8), calibration=described(own))
    warehouse.ingest(exact)
    calibrate(warehouse, "recorded")
    after = rates("v6e", read_calibrations(path))
    assert after["product", "factor"].value == 1.17  # the median ratio is now 1
    path.write_text(path.read_text().replace("1.17,", "1.2,"))
    with pytest.raises(QueryError, match="rates that the warehouse has no more"):
        calibrate(warehouse, "recorded")


def test_the_command_prints_what_changed(warehouse: Warehouse) -> None:
    folder = str(warehouse.path)
    warehouse.close()
    done = CliRunner().invoke(app, ["-w", folder, "plan", "--calibrate", "recorded"])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "v6e\tproduct factor\t0.78 (0.7 to 0.87)\t1.17 (1.053 to 1.287)\tn=24",
        "v6e\tici gbps\t90 (85.5 to 94.5)\t112.5 (106.9 to 118.1)\tn=24",
    ]
    assert "calibrations.csv" in done.stderr
    for wrong in (["--calibrate", "recorded", "llama"], []):
        assert CliRunner().invoke(app, ["-w", folder, "plan", *wrong]).exit_code == 2
    unknown = CliRunner().invoke(app, ["-w", folder, "plan", "--calibrate", "nothing"])
    assert (unknown.exit_code, unknown.stdout) == (1, "")


def test_too_few_equal_ops_change_nothing(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        opened.ingest(as_recorded(capture(tmp_path, "recorded", pairs(5), timed(5, 1.5, 0.8))), device="TPU v6e")
        with pytest.raises(QueryError, match="no predicted run has ops in common with it"):
            calibrate(opened, "recorded")
        opened.ingest(capture(tmp_path, "predicted", pairs(COUNT), timed(COUNT)))
        with pytest.raises(
            QueryError,
            match=r"follows from .*all-reduce: 5 ops, 100% of their time; a kind needs 20 ops in common with a pred",
        ):
            calibrate(opened, "recorded")
        assert not (opened.path / "calibrations.csv").exists()


PAIRS, ALL = "{{0,1},{2,3}}", "{{0,1,2,3}}"
SIZES = [4096 * 4**n for n in range(9)]
"""Bytes of the messages of the experiment calibrate, 4 KB to 256 MB."""


def half_an_hour(
    path: Path, reduced_sizes: list[int] = SIZES, devices: int = 4, factors: Sequence[float] = (0.9, 1, 1, 1.1)
) -> Path:
    """A capture of four v6e chips (2x2), whose 20 executions of each program take known times.

    An all-reduce of a pair takes 5 us and its bytes at 40 GB/s, an all-gather of all 7 us and the bytes of its busiest
    link at 50 GB/s; every other execution takes a tenth more or less. Products take 1.3 times the compiler's time; one
    waits for HBM. The host takes 250 us between executions. The profile may lack the last devices.
    """
    space = Space(hostnames=["vm"])
    tpus = [space.tpu(n, "TPU v6 Lite") for n in range(devices)]
    programs: dict[str, tuple[str, str, float, float]] = {}
    """The program, its op as the profiler names it, and the microseconds of its op and after it."""
    protos: dict[str, tuple[int, bytes]] = {}
    for size in reduced_sizes:
        shape = f"bf16[{size // 2}]{{0}}"
        how = f"channel_id=1, replica_groups={PAIRS}, use_global_device_ids=true"
        programs[f"collective.all-reduce-tp.{size}"] = (
            f"%x = {shape} parameter(0)\n%all-reduce.1 = {shape} all-reduce(%x), {how}",
            f"%all-reduce.1 = {shape} all-reduce({shape} %x), {how}",
            5 + size / 40e3,
            0.0,
        )
    for size in SIZES:
        whole, part = f"bf16[{size // 2}]{{0}}", f"bf16[{size // 8}]{{0}}"
        how = f"channel_id=1, replica_groups={ALL}, dimensions={{0}}, use_global_device_ids=true"
        programs[f"collective.all-gather-dp-tp.{size}"] = (
            f"%x = {part} parameter(0)\n%all-gather.1 = {whole} all-gather(%x), {how}",
            f"%all-gather.1 = {whole} all-gather({part} %x), {how}",
            7 + size * 3 / 8 / 50e3,
            0.0,
        )
    for n, memory in ((1024, ":S(1)"), (2048, ":S(1)"), (512, "")):
        matrix = f"bf16[{n},{n}]{{1,0{memory}}}"
        cycles = 1_750_000 if memory else 700
        programs[f"product.bfloat16.{n}x{n}x{n}"] = (
            f"%a = {matrix} parameter(0)\n%b = {matrix} parameter(1)\n"
            f"%fusion.1 = {matrix} fusion(%a, %b), kind=kOutput, calls=%product, {product(cycles)}",
            f"%fusion.1 = {matrix} fusion({matrix} %a, {matrix} %b), kind=kOutput, calls=%product",
            cycles / 1750 * 1.3,
            0.0,
        )
    programs["host.arguments.300"] = (
        "%a = f32[8,128]{1,0} parameter(0)\n%add.1 = f32[8,128]{1,0} add(%a, %a)",
        "%add.1 = f32[8,128]{1,0} add(f32[8,128]{1,0} %a, f32[8,128]{1,0} %a)",
        1.0,
        250.0,
    )
    start, run = 10 * US, 0
    inside = "%p = bf16[512,512] parameter(0)\n%q = bf16[512,512] parameter(1)\n%dot = bf16[512,512] dot(%p, %q)"
    for number, (name, (text, hlo, us, gap)) in enumerate(programs.items(), 7):
        module = program(4, main=text, **({"product": inside} if "product" in name else {}))
        protos[f"jit_micro.{name}"] = number, module.raw
        for turn in range(20):
            varied = us * (1 if gap or "product" in name else factors[turn % 4])
            for tpu in tpus:
                tpu.modules.event(f"jit_micro.{name}({number})", start, round(varied * US), run_id=Unsigned(run))
                tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(number)), start, round(varied * US))
            start, run = start + round((varied + (gap or 100)) * US), run + 1
    space.hlo_protos(protos)
    space.profiled(1_700_000_000_000_000_000, 1_700_000_100_000_000_000)
    return space.write(path)


def test_the_programs_of_a_calibration_give_their_known_rates_back(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(half_an_hour(tmp_path / "half-an-hour.xplane.pb"))
        done = calibrate(opened, "half-an-hour")
        again = calibrate(opened, "half-an-hour")
    own = read_calibrations(done.path)
    found = {(row.class_, row.what): row for row in own}
    latency, rate = found["all-reduce pair 2", "us"], found["all-reduce pair 2", "gbps"]
    assert latency[4:8] == pytest.approx((5, 4.5, 5.5, 9 * 20 * 2), rel=1e-3)  # two groups
    assert rate[4:7] == pytest.approx((40, 40 / 1.1, 40 / 0.9), rel=1e-3)
    assert found["all-gather cycle 4", "us"].value == pytest.approx(7, rel=1e-3)
    assert found["all-gather cycle 4", "gbps"].value == pytest.approx(50, rel=1e-3)
    assert found["product", "factor"][4:8] == pytest.approx((1.3, 1.235, 1.365, 2 * 20 * 4))
    assert found["host_step", "ms"][4:8] == pytest.approx((0.25, 0.2375, 0.2625, 19 * 4))
    assert {row.source for row in own} == {next(iter(own)).source}
    # what was not measured itself follows by the factor between these and what the rates that ship say
    assert found["ici", "gbps"].value < 0.7 * rates("v6e")["ici", "gbps"].value
    assert done.kept == ("product 512x512x512: it waits for HBM, or the compiler states no cycles",)
    assert {after for _, after in again.changes} == {after for _, after in done.changes}

    pair = SliceCollective("all-reduce", 1 << 20, ((0, 1), (2, 3)))
    time = collective_time(Machine.named("v6e:2x2", own), pair)
    assert time.mid_ps / US == pytest.approx(5 + 2**20 / 40e3, rel=1e-3)
    assert time.low_ps < time.mid_ps < time.high_ps
    twice = collective_time(Machine.named("v6e:2x2", own, ici_factor=2.0), pair)
    assert twice.mid_ps / US == pytest.approx(5 + 2**20 / 80e3, rel=1e-3)
    # chips further apart have other latencies, so the line is not theirs
    apart = pair._replace(groups=tuple((n, n + 4) for n in range(4)))
    assert algorithm(Topology.parse("v6e:2x4"), apart).name == "all-reduce pair 2 stride 2"
    ring = pair._replace(groups=((0, 1, 2, 3),))
    before, after = (collective_time(Machine.named("v6e:2x2", rows), ring).mid_ps for rows in ((), own))
    assert after > 1.3 * before


def test_a_line_needs_three_sizes_and_a_capture_its_programs(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(half_an_hour(tmp_path / "few.xplane.pb", SIZES[:2]))
        few = calibrate(opened, "few")
    assert "all-reduce pair 2: no line fits its 2 sizes; 3 are needed, with times that grow" in few.kept[-1]
    assert not [new for _, new in few.changes if new.class_.startswith("all-reduce")]


def test_a_capture_without_some_devices_calibrates_what_each_does_alone(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(half_an_hour(tmp_path / "part.xplane.pb", devices=2))
        done = calibrate(opened, "part")
    found = {(new.class_, new.what): new for _, new in done.changes}
    assert set(found) == {("product", "factor"), ("host_step", "ms")}
    assert found["product", "factor"][4:8] == pytest.approx((1.3, 1.235, 1.365, 2 * 20 * 2))
    assert "18 programs of collectives: the capture has none of all their devices" in done.kept[-1]


def test_executions_without_time_give_no_rate(tmp_path: Path) -> None:
    with open_warehouse(tmp_path / "w", create=True) as opened:
        opened.ingest(half_an_hour(tmp_path / "zero.xplane.pb", SIZES[:1], factors=(0, 1, 1, 1)))
        done = calibrate(opened, "zero")
    assert "all-reduce of 4096 bytes, all-gather of 4096 bytes" not in done.kept[-1]
    assert "all-reduce of 4096 bytes: some executions took no time" in done.kept[-1].replace("all-gather", "all-reduce")
    assert not [new for _, new in done.changes if new.kind == "link"]


def test_a_model_run_says_that_it_changes_no_lines(warehouse: Warehouse, tmp_path: Path) -> None:
    own = [Calibration("link", "v6e", "all-reduce pair 2", what, 5.0, 4.0, 6.0, 20, "c") for what in ("us", "gbps")]
    write_calibrations(warehouse.path / "calibrations.csv", own)
    warehouse.remove(["predicted"])
    warehouse.ingest(capture(tmp_path / "own", "again", pairs(COUNT), timed(COUNT), calibration=described(own)))
    done = calibrate(warehouse, "recorded")
    assert [(new.class_, new.what) for _, new in done.changes] == [("product", "factor")]
    assert done.kept == ("all-reduce: a run of calibrate has measured it, and only such a run changes that",)


def test_what_shows_nothing_of_a_tpu_is_refused(warehouse: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(QueryError, match="predicted is predicted, and nothing was measured; rates follow from runs"):
        calibrate(warehouse, "predicted")
    space = Space(hostnames=["vm"])
    space.plane("/device:GPU:0").line("Stream #1").event("kernel", 100, 100)
    space.profiled(1_700_000_000_000_000_000, 1_700_000_001_000_000_000)
    warehouse.ingest(space.write(tmp_path / "gpu.xplane.pb"), device="H100")
    with pytest.raises(QueryError, match="gpu ran on H100, and the rates are those of TPUs; record it on a slice"):
        calibrate(warehouse, "gpu")
    empty = Space(hostnames=["vm"])
    empty.tpu(0).modules.event("jit_other(1)", 0, US)
    empty.profiled(1_700_000_000_000_000_000, 1_700_000_001_000_000_000)
    warehouse.ingest(empty.write(tmp_path / "empty.xplane.pb"))
    with pytest.raises(QueryError, match="empty: no predicted run has ops in common with it"):
        calibrate(warehouse, "empty")
    assert not (warehouse.path / "calibrations.csv").exists()
