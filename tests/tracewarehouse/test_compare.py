"""Two runs side by side: values by hand, verdicts by polarity, refusal of unlike workloads, exit codes for CI."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from ingest.errors import MetricError
from tracewarehouse.cli import run
from tracewarehouse.compare import Difference, compare
from tracewarehouse.warehouse import Warehouse, open_warehouse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a step every 150 us, one with a step every 180 us, and one of another batch size."""
    home = tmp_path_factory.mktemp("compare")
    with open_warehouse(home / "w", create=True) as warehouse:
        warehouse.ingest(write_capture_directory(home / "fast", "fast"))
        warehouse.ingest(write_capture_directory(home / "slow", "slow", period=180))
        warehouse.ingest(write_capture_directory(home / "wide", "wide", period=151, batch=8))
    return home / "w"


@pytest.fixture
def warehouse(folder: Path) -> Iterator[Warehouse]:
    with open_warehouse(folder) as opened:
        yield opened


def test_values_difference_and_verdict(warehouse: Warehouse) -> None:
    """TPOT on the devices: two steps to the next one's start, the last one's 100 us."""
    found = compare(warehouse, "slow", "fast", metrics=["tpot"])
    [device] = [d for d in found if d.dimensions == {"clock": "device"}]
    assert (device.baseline, device.value) == (pytest.approx(0.4 / 3), pytest.approx(0.46 / 3))
    assert device.relative == pytest.approx(0.15)
    assert (device.unit, device.verdict) == ("ms", "worse")
    [back] = [d for d in compare(warehouse, "fast", "slow", metrics=["tpot"]) if d.dimensions == {"clock": "device"}]
    assert back.verdict == "better"


def test_what_does_not_change_is_the_same(warehouse: Warehouse) -> None:
    found = compare(warehouse, "slow", "fast", metrics=["traffic_volume", "exposed_communication"])
    assert {d.metric for d in found} == {"traffic_volume", "exposed_communication"}
    assert {d.verdict for d in found} == {"same"}


def test_unlike_workloads_are_refused_unless_told(warehouse: Warehouse) -> None:
    with pytest.raises(MetricError, match="batch_size 1 and 8"):
        compare(warehouse, "wide", "fast")
    assert compare(warehouse, "wide", "fast", metrics=["tpot"], is_unlike_allowed=True)


def test_an_unknown_metric_is_named(warehouse: Warehouse) -> None:
    with pytest.raises(MetricError, match="no metric tpott"):
        compare(warehouse, "slow", "fast", metrics=["tpott"])


@pytest.mark.parametrize(
    ("polarity", "baseline", "value", "limit", "expected"),
    [
        ("lower_is_better", 100.0, 105.0, 0.05, False),
        ("lower_is_better", 100.0, 105.1, 0.05, True),
        ("lower_is_better", 100.0, 50.0, 0.05, False),
        ("higher_is_better", 100.0, 94.0, 0.05, True),
        ("higher_is_better", 100.0, 130.0, 0.05, False),
        ("lower_is_better", 0.0, 1.0, 0.05, True),
        ("none", 100.0, 900.0, 0.05, False),
    ],
)
def test_regression(polarity: str, baseline: float, value: float, limit: float, expected: bool) -> None:
    relative = (value - baseline) / baseline if baseline else None
    assert Difference("m", 1, {}, baseline, value, "ms", polarity, relative).is_regression(limit) is expected


def test_check_exits_with_one_on_a_regression(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["-w", str(folder), "check"]
    assert run([*start, "slow", "--against", "fast", "-m", "tpot"]) == 1
    shown = capsys.readouterr()
    assert "+15.0 %" in shown.out
    assert "worse by more than 5 %" in shown.err
    assert run([*start, "slow", "--against", "fast", "-m", "tpot", "--max-regression", "20"]) == 0
    assert capsys.readouterr().out == ""
    assert run([*start, "fast", "--against", "slow", "-m", "tpot"]) == 0


def test_compare_prints_a_row_per_value(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["-w", str(folder), "compare", "slow", "fast", "-m", "tpot", "--at-least", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["metric", "of", "baseline", "value", "unit", "change", "verdict"]
    assert [line.split()[0] for line in lines[2:]] == ["tpot", "tpot"]
