"""Metrics of a warehouse three ways: DuckDB run by run, Spark SQL, and DuckDB inside tasks of Spark.

    python tests/benchmarks/spark_metrics.py --warehouse warehouse --master local[2,4] --metric step_time --metric tpot

Prints CPU seconds (of this process and all that it starts, Java included) and seconds of the clock. Fails if the three
ways do not give the same rows.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tracewarehouse as tw

Rows = dict[str, Counter[tuple[Any, ...]]]


def cpu_seconds() -> float:
    """CPU seconds of this process and of all that it has started, those included that have ended."""
    parents, ticks = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        ticks[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(ticks[p] for p in own) / os.sysconf("SC_CLK_TCK")


def run_by_run(warehouse: tw.Warehouse, metrics: list[str], run_ids: list[str]) -> Rows:
    rows: Rows = {m: Counter() for m in metrics}
    for run_id in run_ids:
        for metric in metrics:
            rows[metric].update(warehouse.query_of([run_id], f"SELECT * FROM metrics.{metric}").rows())
    return rows


def on_spark(warehouse: tw.Warehouse, metrics: list[str]) -> Rows:
    return {m: Counter(warehouse.query(f"SELECT * FROM metrics.{m}").rows()) for m in metrics}


def in_tasks(spark: Any, path: Path, metrics: list[str], run_ids: list[str]) -> Rows:
    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with tw.open(path) as opened:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    found = run_by_run(opened, metrics, [run_ids[number]])
                    yield pa.RecordBatch.from_pydict({"rows": [pickle.dumps(found)]})

    rows: Rows = {m: Counter() for m in metrics}
    for (found,) in spark.range(0, len(run_ids), 1, len(run_ids)).mapInArrow(work, "rows BINARY").collect():
        for metric, counted in pickle.loads(found).items():
            rows[metric].update(counted)
    return rows


def measured(name: str, work: Callable[[], Rows]) -> Rows:
    cpu, clock = cpu_seconds(), time.monotonic()
    rows = work()
    print(f"{name:24} {cpu_seconds() - cpu:8.1f} s CPU {time.monotonic() - clock:8.1f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", type=Path, required=True)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--metric", action="append", help="default: all metrics of single runs")
    given = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    path = given.warehouse.resolve()
    with tw.open(path) as warehouse:
        metrics = given.metric or sorted({m.name for m in warehouse.definitions.metrics if not m.view.compares_runs})
        run_ids = [r.run_id for r in warehouse.lake.runs()]
        ops = warehouse.query("SELECT COUNT(*) FROM ops").scalar()
        print(f"{len(run_ids)} runs, {ops} ops, {len(metrics)} metrics")
        expected = measured("DuckDB, run by run", lambda: run_by_run(warehouse, metrics, run_ids))
    start = time.monotonic()
    with tw.open(path, engine="spark", master=given.master) as asked:
        print(f"Spark at {given.master} is up after {time.monotonic() - start:.1f} s")
        assert measured("DuckDB in Spark's tasks", lambda: in_tasks(asked.spark, path, metrics, run_ids)) == expected
        assert measured("Spark SQL", lambda: on_spark(asked, metrics)) == expected
    print(f"identical rows: {sum(map(Counter.total, expected.values()))}")


if __name__ == "__main__":
    main()
