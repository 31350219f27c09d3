"""Two executors in Java processes of their own: one is killed, and nothing is lost, doubled or left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from tracewarehouse.warehouse import open_warehouse

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]  # five Java processes start

KILLING = """
    import os, signal, sys, threading, time
    from pathlib import Path

    def say(line):
        os.write(1, f"{line}\\n".encode())  # at once, as two threads say something

    def children(pid):
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                    found.append(int(stat.parent.name))
            except OSError:
                pass
        return found

    def descendants(pid):
        return [d for c in children(pid) for d in (c, *descendants(c))]

    def executors():
        found = []
        for pid in descendants(os.getpid()):
            try:
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
            except OSError:
                pass
        return sorted(found)

    def kill_one_when(is_time):
        def work():
            while not is_time():
                time.sleep(0.02)
            os.kill(executors()[0], signal.SIGKILL)
            say("killed")
        threading.Thread(target=work, daemon=True).start()
"""
INGEST = """
    from tracewarehouse.ingest.capture.sources import find_captures
    from tracewarehouse.spark.executor import SparkExecutor
    from tracewarehouse.warehouse import open_warehouse

    folder, captures = Path(sys.argv[1]), Path(sys.argv[2])
    with open_warehouse(folder, create=True) as warehouse:
        executor = SparkExecutor("local-cluster[2,1,1024]")
        published, staged = (folder / "manifests").glob, (folder / "lake").glob
        kill_one_when(lambda: len(list(published("*.json"))) >= 2 and list(staged(".staging-*")))
        for outcome in warehouse.ingest_captures(find_captures(captures), executor=executor):
            say(outcome.result.status if outcome.result else f"error {outcome.error}")
"""
QUERY = """
    import tracewarehouse as tw

    sql = "SELECT run_id, SUM(busy_ps) AS busy_ps FROM models.device_busy GROUP BY run_id ORDER BY run_id"
    with tw.open(sys.argv[1]) as warehouse:
        expected = warehouse.query(sql).rows()
    with tw.open(sys.argv[1], engine="spark", master="local-cluster[2,1,1024]") as warehouse:
        tracker = warehouse.spark.sparkContext.statusTracker()
        kill_one_when(lambda: tracker.getActiveStageIds() and len(executors()) == 2)
        say("same" if warehouse.query(sql).rows() == expected and len(expected) == 12 else "other rows")
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    for number in range(12):
        write_capture_directory(folder / f"c{number}", f"c{number}", period=150 + 10 * number)
    return folder


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "warehouse"


def _run(script: str, *arguments: Path, folder: Path) -> list[str]:
    environment = {**os.environ, "SPARK_WORKER_DIR": str(folder / "work"), "PYTHONWARNINGS": "ignore"}
    program = textwrap.dedent(KILLING) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_killed_executor_loses_and_doubles_no_run(
    spark_installed: None, captures: Path, warehouse: Path, tmp_path: Path
) -> None:
    lines = _run(INGEST, warehouse, captures, folder=tmp_path)
    assert "killed" in lines
    outcomes = [line.split()[0] for line in lines if line != "killed"]
    assert len(outcomes) == 12
    assert set(outcomes) <= {"ingested", "unchanged"}, lines
    assert list((warehouse / "lake").glob(".staging-*")) == []
    with open_warehouse(warehouse) as opened:
        counts = opened.query("SELECT COUNT(*), COUNT(DISTINCT run_id), COUNT(DISTINCT name) FROM runs").rows()
        assert counts == [(12, 12, 12)]
        assert opened.fsck() == []


def test_a_killed_executor_changes_no_row_of_a_query(spark_installed: None, warehouse: Path, tmp_path: Path) -> None:
    lines = _run(QUERY, warehouse, folder=tmp_path)
    assert "killed" in lines
    assert "same" in lines
