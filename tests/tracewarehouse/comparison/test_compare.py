"""Runs side by side: which runs they are, refusal of unlike workloads, baseline files, exit codes for CI.

The numbers of a comparison are worked out by hand in tests/sql/test_macros.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_capture import write_capture_directory

from tracewarehouse.cli import run
from tracewarehouse.comparison.baseline import baseline_lines
from tracewarehouse.comparison.compare import WORKLOAD, Limits, check, comparing, largest_changes, referenced_run_ids
from tracewarehouse.ingest.errors import MetricError, WarehouseError
from tracewarehouse.warehouse import Warehouse, open_warehouse

pytestmark = pytest.mark.usefixtures("asked_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a step every 150 us, one with a step every 180 us, one of another batch size, and four repeats."""
    home = tmp_path_factory.mktemp("compare")
    with open_warehouse(home / "w", create=True) as warehouse:
        warehouse.ingest(write_capture_directory(home / "fast", "fast"))
        warehouse.ingest(write_capture_directory(home / "slow", "slow", period=180))
        warehouse.ingest(write_capture_directory(home / "wide", "wide", period=151, batch=8))
        for repeat, period in enumerate((152, 158, 153, 163)):
            name = f"r{repeat}"
            warehouse.ingest(write_capture_directory(home / name, name, period=period, repeat=repeat))
    return home / "w"


@pytest.fixture(scope="module")
def warehouse(folder: Path) -> Iterator[Warehouse]:
    with open_warehouse(folder) as opened:
        yield opened


def on_the_device(rows: list[dict[str, Any]]) -> dict[str, Any]:
    [row] = [r for r in rows if json.loads(r["dimensions"]) == {"clock": "device"}]
    return row


def test_values_difference_and_verdict(warehouse: Warehouse) -> None:
    """TPOT on the devices: two steps to the next one's start; the last one has no end."""
    with comparing(warehouse, "slow", "fast") as found:
        row = on_the_device(found.values(["tpot"]).dicts())
    assert (row["baseline"], row["value"]) == (pytest.approx(0.15), pytest.approx(0.18))
    assert row["relative"] == pytest.approx(0.2)
    assert (row["unit"], row["verdict"]) == ("ms", "unknown")


def test_of_a_longer_step_the_rest_is_the_same_and_its_idle_time_is_longer(warehouse: Warehouse) -> None:
    """Of the two decode steps of three that last until the next one starts, each is 30 us longer."""
    with comparing(warehouse, "slow", "fast") as found:
        rows = found.values(["traffic_volume", "exposed_communication"]).dicts()
        by_layer = found.values(by="layer").dicts()
        first, *others = [r for r in found.steps("category").dicts() if r["phase"] == "decode"]
    assert {(r["metric"], r["verdict"]) for r in rows} == {
        ("traffic_volume", "same"),
        ("exposed_communication", "same"),
    }
    assert {r["metric"] for r in by_layer} == {"layer_time"}
    assert (first["name"], first["difference_us"], first["share"]) == ("idle", pytest.approx(30), pytest.approx(1))
    assert {r["difference_us"] for r in others} == {0}


def test_unlike_workloads_are_refused_unless_told(warehouse: Warehouse) -> None:
    with pytest.raises(MetricError, match="batch_size 1 and 8"), comparing(warehouse, "wide", "fast"):
        pass
    with pytest.raises(MetricError, match="batch_size 1 and 1 or 8"), comparing(warehouse, "wide,slow", "fast"):
        pass
    with comparing(warehouse, "wide", "fast", is_unlike_allowed=True) as found:
        assert len(found.values(["tpot"]))


def test_nothing_is_refused_in_silence_where_nothing_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Captures without a card or a manifest, and one run as its own baseline."""
    folder = str(tmp_path / "w")
    for name in ("a", "b"):
        capture = write_capture_directory(tmp_path / name, name, period=150 if name == "a" else 160)
        [file] = capture.rglob("*.xplane.pb")
        bare = file.rename(tmp_path / f"{name}.xplane.pb")
        assert run(["-w", folder, "ingest", str(bare), "--name", f'it\'s, "{name}"']) == 0
    capsys.readouterr()
    assert run(["-w", folder, "compare", 'it\'s, "a"', 'it\'s, "b"']) == 0
    said = capsys.readouterr().err
    assert "not known for all runs, so not compared: model, model_family, dtype, batch_size" in said
    assert "on both sides" not in said
    assert run(["-w", folder, "check", 'it\'s, "a"', "--against", 'it\'s, "a"']) == 0
    assert "on both sides: r" in capsys.readouterr().err


def test_a_metric_of_which_runs_have_no_values_is_refused(warehouse: Warehouse) -> None:
    with comparing(warehouse, "slow", "fast") as found:
        assert found.unknown != WORKLOAD
        with pytest.raises(MetricError, match="scaling_efficiency compares runs itself"):
            found.values(["scaling_efficiency"])
        with pytest.raises(MetricError, match="ccl_mfu is deprecated or another tool's, so no run has a value"):
            found.values(["tpot", "ccl_mfu"])
        with pytest.raises(MetricError, match="no metric has the dimension 'baseline_run_id'"):
            found.values(by="baseline_run_id")


def test_older_versions_in_a_baseline_file_are_named(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.ndjson"
    assert run(["-w", str(folder), "baseline", "fast", "-o", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("value", {}).get("metric") == "step_time":
            line["value"]["version"] = 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run(["-w", str(folder), "check", "fast", "--against", str(path)]) == 1
    said = capsys.readouterr()
    assert "older versions, which are not compared: step_time 0;" in said.err
    assert "values are missing on one side: step_time;" in said.err
    assert "not in baseline" in said.out


def test_what_is_not_a_number_fails() -> None:
    row = {"metric": "m", "polarity": "lower_is_better", "loss": float("nan"), "tail_loss": 0.0, "verdict": "worse"}
    comparison: Any = SimpleNamespace(values=lambda _: SimpleNamespace(dicts=lambda: [row]), require=list)
    assert check(comparison).worse == [row]


def test_an_unknown_metric_or_dimension_is_named(warehouse: Warehouse) -> None:
    with comparing(warehouse, "slow", "fast") as found:
        with pytest.raises(MetricError, match="no metric tpott"):
            found.values(["tpott"])
        with pytest.raises(MetricError, match=r"no metric has the dimension 'x'; there are .*layer"):
            found.values(by="x")
        with pytest.raises(MetricError, match="collective_count has no polarity"):
            check(found, ["collective_count"])


def test_numbers_come_in_their_order(warehouse: Warehouse, tmp_path: Path) -> None:
    """Layers 0 and 1 of a run beside 2 and 10 of a baseline."""
    path = tmp_path / "baseline.ndjson"
    text = "\n".join(baseline_lines(warehouse, referenced_run_ids(warehouse, "fast")))
    path.write_text(text.replace('\\"layer\\": 1', '\\"layer\\": 10').replace('\\"layer\\": 0', '\\"layer\\": 2'))
    with comparing(warehouse, "fast", str(path)) as found:
        rows = found.values(["layer_time"], by="layer").dicts()
    layers = [json.loads(r["dimensions"])["layer"] for r in rows]
    assert layers == sorted(layers)
    assert set(layers) == {0, 1, 2, 10}


def test_repeats_are_found_and_give_the_noise(warehouse: Warehouse) -> None:
    """Of one configuration, r0 and r3 are named, so r1 and r2 are repeats of the baseline, never of both."""
    ids = [warehouse.run(f"r{i}").run_id for i in range(4)]
    with comparing(warehouse, "r3", "r0") as found:
        assert found.sides.run_repeats == (ids[3],)
        assert found.sides.baseline_repeats == (ids[0], *sorted(ids[1:3]))
        row = on_the_device(found.values(["tpot"]).dicts())
    # a decode step lasts a period: r0 to r1 are 6 us apart; r3 is 11 us from r0
    assert (row["noise"], row["noise_source"]) == (pytest.approx(2 * 6e-3), "repeats")
    assert (row["difference"], row["verdict"]) == (pytest.approx(11e-3), "noise")
    with comparing(warehouse, "r3,r1", ["r0", "r2"]) as found:
        assert found.sides.run_repeats == (ids[3], ids[1])
        row = on_the_device(found.values(["tpot"]).dicts())
        assert (row["samples"], row["baseline_samples"]) == (2, 2)
    with comparing(warehouse, "fast", "r0", is_unlike_allowed=True) as found:  # no specification, so no repeats
        assert len(found.sides.run_repeats) == 1
        assert len(found.sides.baseline_repeats) == 4


@pytest.mark.parametrize(
    ("limit", "tail", "is_passed"), [(0.1999, 1, False), (0.2001, 1, True), (0.2001, 0.1999, False)]
)
def test_both_limits_count(warehouse: Warehouse, limit: float, tail: float, is_passed: bool) -> None:
    with comparing(warehouse, "slow", "fast") as found:
        # a device's steps: 150 and 150 us, and 180 and 180
        result = check(found, ["tpot"], Limits(limit, tail))
    assert result.is_passed is is_passed
    assert len(result.checked) == 2


@pytest.mark.parametrize(
    ("tail", "allowed", "is_allowed"),
    [(9.0, 2.0, False), (7.0, 2.0, True), (5.4, 2.0, True), (5.4, 1.9, False), (nan, 2.0, False)],
)
def test_a_difference_counts_for_median_and_tail(tail: float, allowed: float, is_allowed: bool) -> None:
    """A median of 2 where 0 was, and a 90th percentile where 5 was, of which a tenth is 0.5."""
    row = {"metric": "m", "polarity": "lower_is_better", "baseline": 0.0, "value": 2.0, "loss": inf}
    row |= {"baseline_tail": 5.0, "tail": tail, "tail_loss": (tail - 5) / 5}
    assert Limits(differences={"m": allowed}).allow(row) is is_allowed


def test_a_loss_of_what_is_better_when_higher_is_counted_downwards(warehouse: Warehouse) -> None:
    with comparing(warehouse, "slow", "fast") as found:
        lost = max(-r["difference"] for r in found.values(["throughput"]).dicts())
        assert lost > 0
        assert check(found, ["throughput"], Limits(0, 0, differences={"throughput": lost})).is_passed
        assert not check(found, ["throughput"], Limits(0, 0, differences={"throughput": 0.9 * lost})).is_passed


def test_a_loss_from_zero_is_named_and_can_be_allowed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "baseline.ndjson"
    assert run(["-w", str(folder), "baseline", "slow", "-o", str(path)]) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line.get("value", {}).get("metric") == "tpot":
            line["value"]["value"] = 0
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    start = ["-w", str(folder), "check", "slow", "--against", str(path)]
    assert run([*start, "--max-regression", "1000%", "--max-tail-regression", "1000%"]) == 1
    assert (
        "2 of these had 0 in the baseline, for which no percentage allows a loss: tpot; --max-difference METRIC=NUMBER"
        in capsys.readouterr().err
    )
    assert run([*start, "--max-difference", "ttft=10", "--max-difference", "tpot=0.1"]) == 1
    capsys.readouterr()
    assert run([*start, "--max-difference", "tpot=10"]) == 0
    assert "had 0" not in capsys.readouterr().err


def test_noise_excuses_only_when_told(warehouse: Warehouse) -> None:
    with comparing(warehouse, "r3", "r0") as found:
        assert not check(found, ["tpot"], Limits(0.01)).is_passed
        result = check(found, ["tpot"], Limits(0.01, is_noise_excused=True))
        assert check(found, ["tpot"], Limits(9, 9)).is_passed
        assert not check(found, ["tpot", "copy_overhead"], Limits(9, 9)).is_passed
    assert result.is_passed
    assert {r["metric"] for r in result.excused} == {"tpot"}


def test_check_exits_with_one_on_a_regression(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["-w", str(folder), "check"]
    assert run([*start, "slow", "--against", "fast", "-m", "tpot"]) == 1
    shown = capsys.readouterr()
    assert "+20.0 %" in shown.out
    assert "worse by more than 5 %" in shown.err
    allowed = ["--max-regression", "21%", "--max-tail-regression", "21"]
    assert run([*start, "slow", "--against", "fast", "-m", "tpot", *allowed]) == 0
    assert capsys.readouterr().out == ""
    assert run([*start, "fast", "--against", "slow", "-m", "tpot"]) == 0
    capsys.readouterr()
    assert run([*start, "slow", "--against", "fast", "-m", "tpot", "--format", "ndjson"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert on_the_device(rows)["loss"] == pytest.approx(0.2)


def test_what_is_missing_never_passes_in_silence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The captures have no copies, so copy_overhead has no value on either side."""
    start = ["-w", str(folder), "check", "fast", "--against", "fast"]
    assert run([*start, "-m", "tpot", "-m", "copy_overhead"]) == 1
    shown = capsys.readouterr()
    assert "on neither side" in shown.out
    assert "copy_overhead; --allow-missing" in shown.err
    assert run([*start, "-m", "tpot", "-m", "copy_overhead", "--allow-missing"]) == 0
    assert run([*start, "-m", "copy_overhead", "--allow-missing"]) == 1
    assert "nothing to check" in capsys.readouterr().err
    assert run(start) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["slow", "--against", "nobody"],
        ["nobody", "--against", "slow"],
        ["slow", "--against", "wide"],
        ["slow", "--against", "fast", "-m", "tpott"],
        ["slow", "--against", "fast", "-m", "collective_count"],
        ["slow", "--against", __file__],
        ["slow", "--against", "fast", "--max-regression", "much"],
        ["slow", "--against", "fast", "--max-difference", "tpot"],
        ["slow", "--against", "fast", "--max-difference", "tpot=1e999"],
        ["slow", "--against", "fast", "--max-difference", "tpot=-1"],
        ["slow", "--against", "fast", "--max-difference", "tpott=1"],
        ["slow", "--against", "fast", "--max-difference", "collective_count=1"],
        ["slow"],
    ],
)
def test_what_cannot_be_checked_exits_with_two(
    folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["-w", str(folder), "check", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "Traceback" not in shown.err


def test_a_baseline_file_stands_for_its_runs(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], warehouse: Warehouse
) -> None:
    file = tmp_path / "baseline.ndjson"
    start = ["-w", str(folder)]
    assert run([*start, "baseline", "fast", "-o", str(file)]) == 0
    first = file.read_bytes()
    assert run([*start, "baseline", "fast", "-o", str(file)]) == 0
    assert file.read_bytes() == first

    with comparing(warehouse, "slow", str(file)) as of_file, comparing(warehouse, "slow", "fast") as of_run:
        assert of_file.values().dicts() == of_run.values().dicts()
        assert len(of_file.values()) > 40
    assert run([*start, "check", "fast", "--against", str(file)]) == 0
    assert run([*start, "check", "slow", "--against", str(file)]) == 1
    assert run([*start, "check", "wide", "--against", str(file)]) == 2
    assert "batch_size 1 and 8" in capsys.readouterr().err

    lines = first.decode().splitlines()
    lost = [line for line in lines if '"ttft"' not in line]
    file.write_text("\n".join(lost))
    assert run([*start, "check", "fast", "--against", str(file)]) == 1
    assert "missing on one side: ttft" in capsys.readouterr().err


HEAD = '{"format": "tracewarehouse baseline", "version": 1}\n'
NEITHER = "is neither a run nor a baseline file"


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("", NEITHER),
        ("{}", NEITHER),
        ("no JSON", NEITHER),
        (HEAD.replace("1", "2"), NEITHER),
        (HEAD + "[]", "holds no run"),
        (HEAD + '{"run": 1}', NEITHER),
        (HEAD + '{"value": {}}', NEITHER),
        (HEAD + '{"run": {"run_id": "a", "dp": "x"}}', "cannot be read"),
        (HEAD, "holds no run"),
    ],
)
def test_a_damaged_baseline_file_is_refused(warehouse: Warehouse, tmp_path: Path, damage: str, said: str) -> None:
    file = tmp_path / "damaged"
    file.write_text(damage)
    with pytest.raises(WarehouseError, match=said), comparing(warehouse, "fast", str(file)):
        pass


def test_compare_prints_a_screen_and_on_demand_each_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["-w", str(folder), "compare", "slow", "fast"]
    assert run([*start, "-m", "tpot", "--at-least", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert " ".join(lines[0].split()) == "metric of baseline value unit change p90 loss noise verdict"
    assert [line.split()[0] for line in lines[2:]] == ["tpot", "tpot"]
    assert run([*start, "--all"]) == 0
    every = capsys.readouterr().out.splitlines()
    assert run(start) == 0
    screen = capsys.readouterr().out.splitlines()
    assert screen[0].startswith("A decode step is 30 µs, 20 %, longer, 180 µs against 150 µs: idle time +30 µs.")
    assert max(map(len, screen)) <= 80
    assert len(screen) < 40
    assert f"{len(every) - 2} values" in " ".join(screen)
    file = folder.parent / "fast.ndjson"
    assert run(["-w", str(folder), "baseline", "fast", "-o", str(file)]) == 0
    capsys.readouterr()
    assert run(["-w", str(folder), "compare", "slow", str(file)]) == 0
    printed = capsys.readouterr()
    assert "which holds values only" in printed.err
    assert "No step of" not in printed.out
    assert run([*start, "--why", "--by", "collective", "--format", "ndjson"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {r["split"] for r in rows} == {"collective"}
    assert {r["name"] for r in rows} == {"idle", "no collective", "all-reduce over tp"}
    assert run([*start, "--why", "--by", "phase"]) == 2
    assert run([*start, "--by", "phase"]) == 0
    assert capsys.readouterr().out.split()[0] == "phase"


def test_shares_change_by_their_difference_and_other_values_by_a_part_of_the_baseline() -> None:
    def row(metric: str, unit: str, baseline: float, value: float) -> dict[str, Any]:
        relative = (value - baseline) / baseline
        return {"metric": metric, "dimensions": "{}", "unit": unit, "verdict": "unknown"} | {
            "baseline": baseline, "value": value, "relative": relative,
        }  # fmt: skip

    rows = [
        row("a_tiny_share", "ratio", 0.0005, 0.0012),
        row("a_share", "%", 10, 20),
        row("a_time", "ms", 10, 12),
        row("a_ratio_of_no_whole", "ratio", 2, 3),
    ]
    assert [r["metric"] for r in largest_changes(rows)] == ["a_ratio_of_no_whole", "a_time", "a_share"]
