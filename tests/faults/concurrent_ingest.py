"""Ingest the same and different captures by several processes at once, with readers asking throughout.

    python tests/faults/concurrent_ingest.py --writers 8 --seconds 120 --seed 1

Each writer ingests captures in an order and under names of its own, so that runs are replaced all the time; one
process builds warehouse.duckdb and collects garbage, one ingests a run of its own and removes it again. Two readers
ask cold, with a warehouse opened for each question, two keep theirs, one reads warehouse.duckdb with DuckDB alone,
one reads every byte of the files. Every answer must show whole runs: in every table the rows that the run has, and
what was there must stay there. The exit code is 1 when a process fails or errs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import duckdb
from faults.warehouse_state import ended, half_visible, ingest_all, outcome, spawn, state
from tiny_capture import write_capture_directory

import tracewarehouse.evaluation.evaluator  # noqa: F401  imported before the forks
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

Counts = dict[str, dict[str, int]]
"""Rows by table and run."""
SQL = " UNION ALL ".join(f"SELECT '{t}', run_id, count(*) FROM main.{t} GROUP BY run_id" for t in TABLES)


def write(warehouse: Path, captures: list[Path], number: int, seed: int, until: float) -> int:
    """Ingest captures under ever new names until the time is over; returns how many."""
    dice, count = random.Random(f"{seed} {number}"), 0
    order = dice.sample(captures, len(captures))
    while time.monotonic() < until or count < len(order):
        [capture] = find_captures(order[count % len(order)])
        with open_warehouse(warehouse, create=True) as opened:
            opened.ingest_capture(capture, RunOptions(name=f"writer {number}, {count}"), evaluate=dice.random() < 0.1)
        count += 1
    return count


def maintain(warehouse: Path, until: float) -> int:
    """Build and collect garbage, with a grace time that no question takes."""
    count = 0
    while time.monotonic() < until:
        opened = Warehouse(warehouse)
        opened.build()
        opened.collect_garbage(120)
        count += 1
        time.sleep(0.2)
    return count


def remove(warehouse: Path, capture: Path, until: float) -> int:
    """Ingest a capture that no writer has and remove its run again until the time is over; returns how often."""
    count = 0
    [found] = find_captures(capture)
    while time.monotonic() < until:
        with open_warehouse(warehouse, create=True) as opened:
            entry = opened.ingest_capture(found, RunOptions(name=f"passing {count}"), evaluate=False).entry
            assert opened.query("SELECT count(*) FROM ops WHERE run_id = $run", run=entry.run_id).scalar()
            [removed] = opened.remove(entry.run_id)
            assert removed.run_id == entry.run_id
            assert not opened.query("SELECT count(*) FROM ops WHERE run_id = $run", run=entry.run_id).scalar()
        count += 1
    return count


def read(warehouse: Path, expected: Counts, passing: str, until: float, kind: str) -> int:
    """Ask until the time is over; returns how many answers were right. The run `passing` comes and goes.

    Raises:
        AssertionError: an answer shows part of a run, or not a run that was there before.
    """
    kept = Warehouse(warehouse)
    seen: set[str] = set()
    count = 0
    while time.monotonic() < until:
        if kind == "database":
            if not (warehouse / "warehouse.duckdb").exists():
                time.sleep(0.05)
                continue
            with duckdb.connect(str(warehouse / "warehouse.duckdb"), read_only=True) as connection:
                rows = connection.execute(SQL).fetchall()
        elif kind == "cold":
            with Warehouse(warehouse) as opened:
                rows = opened.query(SQL).rows()
        else:
            rows = kept.query(SQL).rows()
        runs = {run_id for _, run_id, _ in rows}
        assert seen <= runs, f"run {seen - runs} is not there any more"
        seen = runs - {passing}
        found = {(table, run_id): n for table, run_id, n in rows if table != "metric_values"}
        wanted = {(t, r): n for t, of in expected.items() for r, n in of.items() if r in runs and t != "metric_values"}
        assert found == wanted, f"rows {set(found.items()) ^ set(wanted.items())} differ"
        count += 1
    return count


def read_files(warehouse: Path, passing: str, until: float) -> int:
    """List the runs and read all their files until the time is over; returns how often. `passing` comes and goes.

    Raises:
        AssertionError: a run that is listed is not whole, or one that was there is not any more.
    """
    lake = Lake(warehouse)
    seen: set[str] = set()
    count = 0
    while time.monotonic() < until:
        runs = {r.run_id: r for r in lake.runs()}
        assert seen <= runs.keys(), f"run {seen - runs.keys()} is not there any more"
        seen = set(runs) - {passing}
        for found in runs.values():
            assert lake.is_whole(found), f"run {found.run_id} is not whole"
        count += bool(runs)
        time.sleep(0.01)
    return count


def run(captures: list[Path], writers: int, seconds: float, seed: int, folder: Path) -> list[str]:
    """All of it at once; returns what went wrong."""
    alone = folder / "alone"
    comes_and_goes = write_capture_directory(folder / "passing", "passing", period=140)
    if ended(spawn(lambda: ingest_all([*captures, comes_and_goes], alone, evaluate=False))):
        return ["ingest alone failed"]
    [passing] = outcome(lambda: [r.run_id for r in Lake(alone).runs() if r.name == "passing"], folder)
    rows = outcome(lambda: Warehouse(alone).query(SQL).rows(), folder)
    expected: Counts = {}
    for table, run_id, count in rows:
        expected.setdefault(table, {})[run_id] = count
    warehouse = folder / "warehouse"
    warehouse.mkdir()
    until = time.monotonic() + seconds
    work: dict[str, Callable[[], int]] = {
        f"writer {i}": (lambda i=i: write(warehouse, captures, i, seed, until)) for i in range(writers)
    }
    work["reader (files)"] = lambda: read_files(warehouse, passing, until)
    work["maintenance"] = lambda: maintain(warehouse, until)
    work["remover"] = lambda: remove(warehouse, comes_and_goes, until)
    for kind in ("cold", "cold again", "kept", "kept again", "database"):
        work[f"reader ({kind})"] = lambda kind=kind: read(
            warehouse, expected, passing, until, kind.removesuffix(" again")
        )
    files = {name: folder / f"{name}.json" for name in work}
    children = {name: spawn(function, files[name]) for name, function in work.items()}
    failures = [f"{name} failed" for name, child in children.items() if ended(child)]
    for name, file in files.items():
        if file.exists():
            print(f"{name}: {file.read_text()}")
    after = outcome(lambda: state(warehouse), folder)
    failures += [f"run {r} is lost, or was not removed" for r in expected["runs"] if (r in after) == (r == passing)]
    failures += outcome(lambda: half_visible(warehouse, {}, after), folder)
    before = outcome(lambda: state(alone), folder)
    for run_id, tables in after.items():
        differ = [t for t in TABLES if t not in ("runs", "metric_values") and tables[t] != before[run_id][t]]
        failures += [f"{t} of run {run_id} differs from an ingest alone" for t in differ]
    if outcome(lambda: [str(x.path) for x in leftovers(Warehouse(warehouse).lake)], folder):
        failures.append("something is left over")
    shutil.rmtree(warehouse)
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("captures", type=Path, nargs="*", help="default: three tiny ones")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tracewarehouse-faults-") as name:
        tiny = [write_capture_directory(Path(name) / f"c{i}", f"tiny{i}", period=150 + i) for i in range(3)]
        failures = run(options.captures or tiny, options.writers, options.seconds, options.seed, Path(name))
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
