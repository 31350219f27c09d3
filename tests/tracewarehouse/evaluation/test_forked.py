"""Metrics evaluated in a process of their own: the same values and errors, and no process or file left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from running_processes import wait_until

from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.processes.pool import ONE_THREAD

METRIC = """/*---
metric: my_ops
version: 1
status: experimental
unit: count
polarity: none
grain: [run_id]
value: n
description: Ops.
columns:
  run_id: The run.
  n: A number.
changed: First version.
---*/
"""
OPS_ONE_BY_ONE = "SELECT o.run_id AS run_id, o.event_id AS n FROM main.ops AS o"
ENDLESS = "SELECT MIN(a.run_id) AS run_id, MAX(a.event_id + b.event_id + c.event_id + d.event_id) AS n FROM " + (
    " CROSS JOIN ".join(f"main.ops AS {name}" for name in "abcdefgh")
)


@pytest.fixture
def start(capture: Path, tmp_path: Path) -> Iterator[Start]:
    started = Start(capture, tmp_path)
    yield started
    for process in started.processes:
        process.kill()
        process.communicate()


class Start:
    """Starts `tw ingest`, with temporary files in a folder of the test."""

    def __init__(self, capture: Path, folder: Path) -> None:
        self._capture = capture
        self._folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.processes: list[subprocess.Popen[str]] = []

    def __call__(self, warehouse: str, *options: str, metric: str | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tracewarehouse", "-w", str(self._folder / warehouse)]
        if metric:
            sql = self._folder / "sql" / "metrics" / "my_ops_v1.sql"
            sql.parent.mkdir(parents=True, exist_ok=True)
            sql.write_text(METRIC + metric)
            command += ["--sql", str(self._folder / "sql")]
        process = subprocess.Popen(
            [*command, "ingest", *options, str(self._capture)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": str(self.temporary)},
        )
        self.processes.append(process)
        return process

    def evaluating(self) -> tuple[subprocess.Popen[str], int]:
        """An ingest whose helper evaluates an endless metric, and that helper."""
        process = self("warehouse", metric=ENDLESS)
        wait_until(lambda: process.poll() is not None or any(self.temporary.glob("tracewarehouse-*")))
        [helper] = _children(process.pid)
        return process, helper


def _children(pid: int) -> list[int]:
    return [int(c) for p in Path(f"/proc/{pid}/task").glob("*/children") for c in p.read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_the_values_are_those_of_one_process(start: Start, tmp_path: Path) -> None:
    forked, alone = start("forked"), start("alone", "--jobs", "1")
    assert forked.communicate() == alone.communicate()
    assert forked.returncode == alone.returncode == 0
    [one], [other] = Lake(tmp_path / "forked").runs(), Lake(tmp_path / "alone").runs()
    assert one.metrics_fingerprint == other.metrics_fingerprint is not None
    assert one.digests.keys() == other.digests.keys()
    values = [pq.read_table(tmp_path / w / one.files["metric_values"][0]) for w in ("forked", "alone")]
    assert values[0].num_rows > 20
    assert values[0].equals(values[1])


def test_a_capture_that_is_there_is_not_evaluated(start: Start, tmp_path: Path) -> None:
    said = [start("warehouse").communicate() for _ in range(2)]
    assert [out.split()[2] for out, _ in said] == ["ingested", "unchanged"]
    assert [p.returncode for p in start.processes] == [0, 0]
    assert list(start.temporary.iterdir()) == []


def test_who_ingests_imports_no_duckdb(capture: Path, tmp_path: Path) -> None:
    code = """
import sys
import tracewarehouse as tw
with tw.open(sys.argv[1], create=True) as warehouse:
    warehouse.ingest(sys.argv[2])
    print("duckdb" in sys.modules)
    print(warehouse.query("SELECT count(*) > 20 FROM main.metric_values").scalar())
    warehouse.ingest(sys.argv[2], name="a second time")
    print(warehouse.query("SELECT count(*) > 20 FROM main.metric_values").scalar())
"""
    command = [sys.executable, "-c", code, str(tmp_path / "warehouse"), str(capture)]
    environment = os.environ | ONE_THREAD  # as `tw` sets it: beside numpy's threads nothing is forked
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["False", "True", "True"]


def test_an_error_is_that_of_one_process(start: Start, tmp_path: Path) -> None:
    forked = start("forked", metric=OPS_ONE_BY_ONE)
    said = forked.communicate()
    alone = start("alone", "--jobs", "1", metric=OPS_ONE_BY_ONE)
    assert alone.communicate() == said
    assert forked.returncode == alone.returncode == 1
    assert "my_ops_v1.sql: grain run_id is not unique" in said[1]
    lake = Lake(tmp_path / "forked")
    assert lake.runs() == leftovers(lake, 0) == []
    assert list(start.temporary.iterdir()) == []


def test_a_helper_that_is_killed_publishes_nothing(start: Start, tmp_path: Path) -> None:
    process, helper = start.evaluating()
    os.kill(helper, signal.SIGKILL)
    _, said = process.communicate()
    assert process.returncode == 1
    assert "a process that helped to ingest the capture was ended by SIGKILL" in said
    lake = Lake(tmp_path / "warehouse")
    assert lake.runs() == leftovers(lake, 0) == []
    assert list(start.temporary.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_evaluation_leaves_nothing(start: Start, tmp_path: Path, number: int, code: int) -> None:
    process, helper = start.evaluating()
    process.send_signal(number)
    process.communicate()
    assert process.returncode == code
    assert not _is_running(helper)
    lake = Lake(tmp_path / "warehouse")
    assert lake.runs() == leftovers(lake, 0) == []
    assert list(start.temporary.iterdir()) == []


def test_a_helper_ends_with_its_caller(start: Start) -> None:
    process, helper = start.evaluating()
    process.kill()
    process.communicate()
    wait_until(lambda: not _is_running(helper))
