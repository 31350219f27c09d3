"""What happens to runs, files and the user's patience while Spark is asked: rows as DuckDB has them, or one error."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tracewarehouse as tw
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.spark.translation import to_spark
from tracewarehouse.spark.warehouse import SparkWarehouse, _ended
from tracewarehouse.warehouse import Warehouse, open_warehouse

DATA = Path(__file__).parents[2] / "data" / "captures"
BUSY = "SELECT run_id, device_id, SUM(busy_ps) AS busy_ps FROM models.device_busy GROUP BY ALL ORDER BY ALL"


def test_an_interrupt_is_not_an_error_of_spark() -> None:
    for end in (KeyboardInterrupt(), SystemExit(143)):
        with pytest.raises(RuntimeError) as caught:
            try:
                raise end
            finally:
                raise RuntimeError("job cancelled")
        assert _ended(caught.value) is end
    assert _ended(RuntimeError("of Spark")) is None


INTERRUPTED = """
    import os, signal, sys, threading, time
    from pathlib import Path
    from tracewarehouse.spark import warehouse

    java, connect = Path(sys.argv.pop(1)), warehouse.connect

    def watched(master):
        session = connect(master)
        java.write_text(str(session.sparkContext._gateway.proc.pid))

        def interrupt():
            tracker = session.sparkContext.statusTracker()
            while not tracker.getActiveStageIds():
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt, daemon=True).start()
        return session

    warehouse.connect = watched
    from tracewarehouse.cli import main

    main()
"""
"""`tw` that gets a Ctrl-C as soon as Spark works on its query."""


@pytest.fixture
def copied(duckdb_warehouse: Warehouse, tmp_path: Path) -> Path:
    return Path(shutil.copytree(duckdb_warehouse.path, tmp_path / "w"))


@pytest.fixture
def asked(spark_installed: None, copied: Path) -> Iterator[SparkWarehouse]:
    with tw.open(copied, engine="spark", master="local[2,4]") as warehouse:
        assert isinstance(warehouse, SparkWarehouse)
        yield warehouse


def kept(warehouse: SparkWarehouse) -> dict[str, int]:
    """The models whose rows are kept in files, and when each was written."""
    assert warehouse._views is not None
    assert warehouse._views._folder is not None
    return {f.name: f.stat().st_mtime_ns for f in warehouse._views._folder.path.glob("*__*")}


@pytest.mark.spark
def test_the_answer_follows_runs_packs_and_what_spark_keeps(asked: SparkWarehouse, copied: Path) -> None:
    with open_warehouse(copied) as duckdb:
        assert asked.query(BUSY).rows() == duckdb.query(BUSY).rows()
        before = kept(asked)
        assert set(before) == {"models__execution_ops", "models__device_busy"}
        assert asked.query(BUSY).rows() == duckdb.query(BUSY).rows()
        assert asked.metric("load_imbalance").rows() == duckdb.metric("load_imbalance").rows()
        assert before.items() < kept(asked).items()
        first, second, *_ = duckdb.lake.runs()
        duckdb.remove(first.run_id)
        shutil.rmtree(copied / "lake" / first.run_id)
        assert asked.query(BUSY).rows() == duckdb.query(BUSY).rows()
        assert set(kept(asked)) == set(before)
        assert kept(asked).items().isdisjoint(before.items())
        duckdb.ingest(DATA / second.name, name="replaced")
        names = "SELECT name, COUNT(*) AS n FROM runs JOIN ops USING (run_id) GROUP BY ALL ORDER BY ALL"
        assert asked.query(names).rows() == duckdb.query(names).rows()
        assert "replaced" in {n for n, _ in asked.query(names).rows()}


@pytest.mark.spark
def test_a_file_that_is_lost_or_damaged_is_named_in_one_error(asked: SparkWarehouse) -> None:
    first, second, *_ = asked.lake.runs()
    [path] = asked.lake.paths(first, "ops")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(QueryError, match=f"^Spark cannot read a file of a run.*{first.run_id}.*tw fsck") as damaged:
        asked.query("SELECT SUM(duration_ps) AS a FROM ops")
    assert "\n" not in str(damaged.value)
    path.write_bytes(whole)
    [lost] = asked.lake.paths(second, "collectives")
    lost.unlink()
    with pytest.raises(QueryError, match=f"^Spark cannot read a file of a run.*{second.run_id}"):
        asked.query("SELECT SUM(start_ps) AS a FROM collectives")
    assert asked.query("SELECT COUNT(*) AS n FROM runs").scalar() == len(asked.lake.runs())


@pytest.mark.spark
def test_a_rate_of_ten_gigabytes_does_not_overflow(asked: SparkWarehouse) -> None:
    """DuckDB multiplies in 128 bits, Spark in 64."""
    asked.query("SELECT * FROM metrics.traffic_rate")
    spark = asked.spark.newSession()
    spark.sql(
        "SELECT 'r' run_id, 0L event_id, 0 device_id, 'decode' phase, 'all-reduce' kind, 'tp' axis, "
        "20000000000L message_bytes, 30000000000L wire_bytes"
    ).createOrReplaceTempView("models__timed_collectives")
    spark.sql(
        "SELECT 'r' run_id, 0 device_id, 'decode' phase, 4000000000L span_ps, false is_last"
    ).createOrReplaceTempView("models__timed_phases")
    [view] = [m.view for m in asked.definitions.metrics if m.name == "traffic_rate"]
    texts, numbers = ("run_id", "phase", "kind", "axis"), ("event_id", "message_bytes", "wire_bytes")
    types = {
        "models": {
            "timed_collectives": dict.fromkeys(texts, "VARCHAR")
            | {"device_id": "INTEGER"}
            | dict.fromkeys(numbers, "BIGINT"),
            "timed_phases": {
                "run_id": "VARCHAR",
                "device_id": "INTEGER",
                "phase": "VARCHAR",
                "span_ps": "BIGINT",
                "is_last": "BOOLEAN",
            },
        }
    }
    [row] = spark.sql(to_spark(view.sql, types)).collect()
    assert (row.message_bytes_per_ms, row.wire_bytes_per_ms) == (5e9, 7.5e9)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ctrl_c_ends_the_query_the_command_and_java(
    spark_installed: None, duckdb_warehouse: Warehouse, tmp_path: Path
) -> None:
    endless = "SELECT COUNT(*) AS n FROM ops a, ops b, ops c WHERE a.start_ps + b.start_ps = c.start_ps"
    command = ["-w", duckdb_warehouse.path, "query", "--engine", "spark", "--master", "local[2,4]", endless]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED), tmp_path / "java", *command],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "error" not in done.stderr
    java, until = Path("/proc") / (tmp_path / "java").read_text(), time.monotonic() + 300
    while java.exists() and time.monotonic() < until:
        time.sleep(0.2)
    assert not java.exists()
