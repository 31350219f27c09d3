"""The metrics of a run at ingest: an error or an interrupt publishes nothing, and no process or file is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from running_processes import wait_until

import tracewarehouse as tw
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.evaluation.evaluator import Evaluator
from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import Lake

METRIC = """/*---
status: experimental
unit: count
polarity: none
grain: [run_id]
value: n
description: Ops.
columns:
  run_id: The run.
  n: A number.
---*/
"""
OPS_ONE_BY_ONE = "SELECT o.run_id AS run_id, o.event_id AS n FROM main.ops AS o"
ENDLESS = "SELECT MIN(a.run_id) AS run_id, MAX(a.event_id + b.event_id + c.event_id + d.event_id) AS n FROM " + (
    " CROSS JOIN ".join(f"main.ops AS {name}" for name in "abcdefgh")
)


def own_metric(folder: Path, query: str) -> Path:
    sql = folder / "sql" / "my_ops_v1.sql"
    sql.parent.mkdir()
    sql.write_text(METRIC + query)
    return sql.parent


def test_a_metric_that_fails_publishes_nothing(capture: Path, tmp_path: Path) -> None:
    sql = own_metric(tmp_path, OPS_ONE_BY_ONE)
    with (
        tw.open(tmp_path / "w", create=True, sql=sql) as warehouse,
        pytest.raises(tw.MetricError, match=r"my_ops_v1\.sql: grain run_id is not unique"),
    ):
        warehouse.ingest(capture)
    lake = Lake(tmp_path / "w")
    assert lake.runs() == leftovers(lake, 0) == []


def test_a_capture_that_is_there_is_not_evaluated(capture: Path, tmp_path: Path) -> None:
    code = """
import sys
import tracewarehouse as tw
with tw.open(sys.argv[1], create=True) as warehouse:
    print(warehouse.ingest(sys.argv[2])[0].status)
print(*(name in sys.modules for name in ("duckdb", "pandas")))
"""
    for expected in (["ingested", "True", "False"], ["unchanged", "False", "False"]):
        command = [sys.executable, "-c", code, str(tmp_path / "w"), str(capture)]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_evaluation_leaves_nothing(capture: Path, tmp_path: Path, number: int, code: int) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    sql = own_metric(tmp_path, ENDLESS)
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(tmp_path / "w"), "--sql", str(sql), "ingest"]
    with subprocess.Popen(
        [*command, str(capture)], stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(temporary)}
    ) as process:
        wait_until(lambda: process.poll() is not None or any(temporary.glob("tracewarehouse-*")))
        process.send_signal(number)
        process.communicate()
    assert process.returncode == code
    lake = Lake(tmp_path / "w")
    assert lake.runs() == leftovers(lake, 0) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 1), (4, 3)])
def test_the_threads_that_call_duckdb_count_among_its_own(
    monkeypatch: pytest.MonkeyPatch, threads: int, expected: int
) -> None:
    def connect(*_: object, config: dict[str, int]) -> None:
        raise duckdb.Error(config["threads"])

    monkeypatch.setattr(duckdb, "connect", connect)
    with pytest.raises(duckdb.Error, match=str(expected)):
        Evaluator(load_definitions, threads=threads)({}, "r")
