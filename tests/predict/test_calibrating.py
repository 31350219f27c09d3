"""A recorded run replaces rates: the same program recorded with other times than those predicted.

Both runs are 24 products and 24 all-reduces of 1 MiB and more, on two v6e chips. The recorded one takes 1.5 times the
predicted time in products, a tenth more or less in the first and last ones, and 0.8 times in all-reduces, on the second
chip; the first waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.predict.programs import program
from tracewarehouse.cli import app
from tracewarehouse.comparison.calibration import calibrate
from tracewarehouse.comparison.compare import comparing
from tracewarehouse.dashboards.report import study_report
from tracewarehouse.ingest.capture.manifest import Manifest, Mesh
from tracewarehouse.ingest.capture.prediction import PredictedPhase, Prediction
from tracewarehouse.ingest.columns.profiler_names import PREDICTION_PLANE
from tracewarehouse.ingest.errors import MetricError, QueryError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.readers.xplane import wire
from tracewarehouse.predict.calibrations import Calibration, described, rates, read_calibrations
from tracewarehouse.predict.capture import PredictedStep, write_capture
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
        "v6e\tproduct factor\t0.78 (0.7 to 0.87)\t1.17 (1.053 to 1.287)\t24 ops",
        "v6e\tici gbps\t90 (85.5 to 94.5)\t112.5 (106.9 to 118.1)\t24 ops",
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
            QueryError, match=r"at least 20 ops of a kind.* found all-reduce: 5 ops, 100% of their time"
        ):
            calibrate(opened, "recorded")
        assert not (opened.path / "calibrations.csv").exists()
