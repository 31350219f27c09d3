"""Times metrics of a run with a million op events, of many such runs, and a question over a thousand small ones.

    python tests/benchmarks/bench_metrics.py [--megabytes 80] [--runs 50] [--small-runs 1000] [--rounds 3]

each      every metric version alone, by `tw query`, in a process of its own; start-up and imports are counted
stored    the stored values of one metric, by `tw metrics values`, in a process of its own
all       the evaluation that ingest ends with: audits and every metric, in a process of its own
runs      `refresh_metrics` over copies of the run, in one process
question  the mean step time by mesh over the stored values of copies of a small capture in data/

The capture is made once by tpu_captures.py and kept in --folder with the warehouses. Copies are published runs like any
other, with run ids of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from msgspec.structs import replace
from run_copies import publish_copy

from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.ingest.lake.lake import Lake

HERE = Path(__file__).resolve().parent
SMALL = HERE.parents[1] / "data" / "captures" / "llama-tp4-b4-i16-o17"
EVALUATE = """
import sys
from tracewarehouse.ingest.lake.lake import Lake
from pathlib import Path
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.evaluation.evaluator import Evaluator
lake = Lake(Path(sys.argv[1]))
[run] = lake.runs()
values = Evaluator(load_definitions)({t: lake.paths(run, t) for t in run.files if t != "metric_values"}, run.run_id)
assert len(values["metric"]) > 100, len(values["metric"])
"""
REFRESH = """
import sys
from tracewarehouse.warehouse import open_warehouse
with open_warehouse(sys.argv[1]) as warehouse:
    assert len(warehouse.refresh_metrics()) == int(sys.argv[2])
"""
QUESTION = """
import json, statistics, sys, time
from tracewarehouse.warehouse import open_warehouse
sql = (
    "SELECT r.mesh, count(*) AS n, avg(v.value) AS mean FROM metrics.all_values AS v JOIN runs AS r USING (run_id) "
    "WHERE v.metric = 'step_time' AND v.version = 1 GROUP BY r.mesh"
)
with open_warehouse(sys.argv[1]) as warehouse:
    seconds = []
    for _ in range(int(sys.argv[2]) + 1):
        begin = time.perf_counter()
        rows = warehouse.query(sql).rows()
        seconds.append(time.perf_counter() - begin)
    assert rows[0][1] == 17 * len(warehouse.lake.runs()), rows
print(json.dumps({"first": seconds[0], "later": statistics.median(seconds[1:])}))
"""


@dataclass(frozen=True)
class Cost:
    """What a process cost: wall and CPU seconds, and its peak memory in MB."""

    seconds: float
    cpu: float
    peak: float

    def __str__(self) -> str:
        return f"{self.seconds:8.2f} s {self.cpu:8.2f} CPU s {self.peak:6.0f} MB"


def users_environment() -> dict[str, str]:
    """That of a user: a developer's may keep compiled modules from being written, or look for them elsewhere."""
    return {n: v for n, v in os.environ.items() if n not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")}


def measured(*arguments: str | Path, codes: Collection[int] = (0,)) -> tuple[Cost, str]:
    """What a command cost that may end with these codes, and what it printed."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(list(map(str, arguments)), stdout=out, env=users_environment())
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in codes:
            raise SystemExit(f"{arguments}: exit {process.returncode}")
        out.seek(0)
        return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024), out.read().decode()


def median(costs: list[Cost]) -> Cost:
    """Medians of the times, the highest peak."""
    return Cost(
        statistics.median(c.seconds for c in costs), statistics.median(c.cpu for c in costs), max(c.peak for c in costs)
    )


def warehouse_of(folder: Path, capture: Path, *options: str) -> Lake:
    """The warehouse in a folder with this capture in it, ingested if it is not there yet."""
    subprocess.run([*TW, "-w", str(folder), "ingest", *options, str(capture)], check=True, stdout=subprocess.DEVNULL)
    return Lake(folder)


def copies(source: Lake, folder: Path, count: int, *, with_values: bool) -> Path:
    """A warehouse with so many copies of the only run of another, published one by one."""
    [run] = source.runs()
    lake = Lake(folder)
    for number in range(len(lake.runs()), count):
        of = run if with_values else replace(run, metrics_fingerprint=None)
        publish_copy(source, of, lake, f"{run.run_id}x{number}", f"{run.name}-{number}")
    return folder


TW = (sys.executable, "-m", "tracewarehouse")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--small-runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--metric", action="append", help="these metric versions only, such as tpot_v1")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tracewarehouse-bench")
    options = parser.parse_args()

    capture = options.folder / f"tpu-{options.megabytes}mb.xplane.pb"
    if not capture.exists():
        maker = [sys.executable, str(HERE / "tpu_captures.py"), str(capture), "--megabytes", str(options.megabytes)]
        subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    folder = options.folder / f"metrics-{options.megabytes}mb"
    lake = warehouse_of(folder, capture, "--mesh", "tp=8")
    [run] = lake.runs()
    _, text = measured(*TW, "-w", folder, "query", "--format", "json", "SELECT count(*) AS n FROM ops WHERE is_leaf")
    print(f"{json.loads(text)[0]['n']:,} op events, {run.rows['ops']:,} rows of ops")

    empty = median([measured(*TW, "-w", folder, "query", "SELECT 1")[0] for _ in range(options.rounds)])
    print(f"{'SELECT 1':42} {empty}")
    each = {}
    for metric in load_definitions().metrics:
        if options.metric and metric.view.name not in options.metric:
            continue
        sql = f"SELECT * FROM metrics.{metric.view.name} WHERE run_id = '{run.run_id}'"
        command = (*TW, "-w", folder, "query", "--format", "csv", sql)
        try:
            each[metric.view.name] = median([measured(*command)[0] for _ in range(options.rounds)])
        except SystemExit as failure:
            print(f"each      {metric.view.name:32} {failure}")
    for name, cost in sorted(each.items(), key=lambda e: -e[1].cpu):
        print(f"each      {name:32} {cost}")
    stored = [
        measured(*TW, "-w", folder, "metrics", "values", run.name, "-m", "tpot")[0] for _ in range(options.rounds)
    ]
    print(f"{'stored':42} {median(stored)}")
    everything = [measured(sys.executable, "-c", EVALUATE, folder)[0] for _ in range(options.rounds)]
    print(f"{'all':42} {median(everything)}", flush=True)

    if options.runs:
        with tempfile.TemporaryDirectory(dir=options.folder) as many:
            copies(lake, Path(many), options.runs, with_values=False)
            cost, _ = measured(sys.executable, "-c", REFRESH, many, str(options.runs))
            print(f"{f'runs {options.runs}':42} {cost}", flush=True)
    if options.small_runs:
        small = warehouse_of(options.folder / "metrics-small", SMALL)
        thousand = copies(
            small, options.folder / f"metrics-small-{options.small_runs}", options.small_runs, with_values=True
        )
        cost, text = measured(sys.executable, "-c", QUESTION, thousand, "5")
        took = json.loads(text)
        print(f"{f'question {options.small_runs}':42} {cost}")
        print(f"{'  first in a process':42} {took['first']:8.2f} s")
        print(f"{'  later':42} {took['later']:8.3f} s")
    load = os.getloadavg()[0]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{os.cpu_count()} CPUs, load {load:.1f}, highest peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
