"""Kill writers at random moments, and at every step they take in the file system, and compare what is left.

    python tests/faults/kill_points.py tables --rounds 50 --seed 1
    python tests/faults/kill_points.py ingest --rounds 20 --seed 1
    python tests/faults/kill_points.py refresh --rounds 40 --seed 1
    python tests/faults/kill_points.py build --rounds 40 --seed 1
    python tests/faults/kill_points.py tables --steps

A round kills a writer with SIGKILL up to --kills times in a row, each time at a moment drawn from the whole time that
it takes or (half of them) from the milliseconds after it has moved something into place. After every kill a fresh
reader must find each run as it must be or not at all. Then the writer is let finish: the warehouse must equal one that
was never killed, byte for byte in the rows of all tables, and `gc` must leave nothing. With --steps it is killed before
its first, second, ... call that changes the warehouse's folder, until one is not reached any more.

The exit code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from faults.warehouse_state import (
    State,
    ended,
    half_visible,
    ingest_all,
    kill_group,
    outcome,
    spawn,
    state,
    state_of_database,
    survivors,
)

import tracewarehouse.evaluation.evaluator
import tracewarehouse.evaluation.values  # noqa: F401  imported before the forks
from tracewarehouse.database.catalogue import MARK
from tracewarehouse.warehouse import Warehouse

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ["llama-pp2tp2-b4-i16-o5-hosts2", "llama-tp4-sp-b4-i16-o9", "qwen3-dp2tp2-b4-i16-o9"]
CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.utime", "shutil.rmtree", "os.truncate", "os.link"}
LAST_SECONDS = 0.03


@dataclass
class Report:
    """What became of the rounds: kills by where the writer was, and failures."""

    kills: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


@dataclass
class Writer:
    """Something that writes to a warehouse, and what the warehouse is before and after.

    Attributes:
        work: writes.
        prepared: the warehouse that it starts from; None for none.
        before, after: what the runs are.
        databases: what warehouse.duckdb answers before and after, if anything.
        renames: how often it moves something into place.
        seconds: how long it takes.
    """

    work: Callable[[Path], object]
    prepared: Path | None
    before: State
    after: State
    databases: list[object]
    renames: int
    seconds: float


def writer_of(
    work: Callable[[Path], object], prepared: Path | None, captures: int, renames: int, folder: Path
) -> Writer:
    """A writer, with what it makes of the warehouse when nobody kills it."""
    done = folder / "never-killed"
    if prepared:
        shutil.copytree(prepared, done)
    begin = time.monotonic()
    _done(lambda: work(done))
    took = time.monotonic() - begin
    places = [p for p in (prepared, done) if p]
    states = [outcome(lambda p=p: state(p), folder) for p in places]
    databases = [d for p in places if (d := outcome(lambda p=p: state_of_database(p), folder))]
    assert len(states[-1]) == captures
    return Writer(work, prepared, states[0] if prepared else {}, states[-1], databases, renames, took)


def table_writer(captures: list[Path], folder: Path) -> Writer:
    """Ingest of the captures without metric values, which take most of the time of small ones."""
    work = partial(ingest_all, captures, evaluate=False)
    return writer_of(work, None, len(captures), 2 * len(captures), folder)


def ingest_writer(captures: list[Path], folder: Path) -> Writer:
    """`tw ingest` of the captures into a new warehouse."""
    return writer_of(lambda w: ingest_all(captures, w), None, len(captures), 2 * len(captures), folder)


def refresh_writer(captures: list[Path], folder: Path) -> Writer:
    """`tw metrics refresh` of a warehouse without metric values."""
    stale = folder / "stale"
    _done(lambda: ingest_all(captures, stale, evaluate=False))
    return writer_of(lambda w: Warehouse(w).refresh_metrics(), stale, len(captures), 2 * len(captures), folder)


def build_writer(captures: list[Path], folder: Path) -> Writer:
    """`tw build` in place of an older database."""
    old = folder / "old"
    _done(lambda: ingest_all(captures[:1], old))
    _done(lambda: Warehouse(old).build())
    _done(lambda: ingest_all(captures, old))
    return writer_of(lambda w: Warehouse(w).build(), old, len(captures), 1, folder)


def _done(work: Callable[[], object]) -> None:
    code = ended(spawn(work))
    if code:
        raise SystemExit(f"a writer that was not killed ended with {code}")


WRITERS = {
    "tables": table_writer,
    "ingest": ingest_writer,
    "refresh": refresh_writer,
    "build": build_writer,
}


def kill_at_random(writer: Writer, warehouse: Path, dice: random.Random, report: Report, share_last: float) -> bool:
    """Start the writer and kill it at a random moment; whether it was killed before it was done."""
    ready, told = os.pipe()

    def work() -> None:
        os.close(ready)
        _tell_when_publishing(told)
        writer.work(warehouse)

    is_last = dice.random() < share_last
    child = spawn(work)
    os.close(told)
    until = time.monotonic() + dice.uniform(0, 1.1 * writer.seconds)
    where = "anywhere"
    if is_last:
        skip = dice.randrange(writer.renames)
        while True:
            readable, _, _ = select.select([ready], [], [], 20 * writer.seconds + 20)
            if not readable or not os.read(ready, 1):
                break
            if not skip:
                break
            skip -= 1
        until = time.monotonic() + LAST_SECONDS * dice.random() ** 3
        where = "publishing"
    while time.monotonic() < until:
        time.sleep(max(0.0, min(0.0005, until - time.monotonic())))
    os.close(ready)
    kill_group(child)
    was_killed = ended(child) == -signal.SIGKILL
    if survivors(child):
        report.failures.append("a process outlives the writer that started it")
    report.kills[where if was_killed else "too late"] += 1
    return was_killed


def _tell_when_publishing(pipe: int) -> None:
    """Write a byte at each first call that moves files into place."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.rename":
            os.write(pipe, b".")

    sys.addaudithook(hook)


def check(writer: Writer, warehouse: Path, folder: Path, report: Report, name: str) -> None:
    """After a kill: nothing half visible, and the database the old or the new one."""
    if not (warehouse / "manifests").is_dir():
        return

    def look() -> list[str]:
        found = half_visible(warehouse, writer.before, writer.after)
        if writer.databases and json.loads(json.dumps(state_of_database(warehouse))) not in writer.databases:
            found.append("warehouse.duckdb is neither the old nor the new one")
        return found

    report.failures += [f"{name}: {f}" for f in outcome(look, folder)]


def finish(writer: Writer, warehouse: Path, folder: Path, report: Report, name: str) -> None:
    """Restart the writer and compare with a warehouse that was never killed."""
    code = ended(spawn(lambda: writer.work(warehouse)))
    if code:
        report.failures.append(f"{name}: the restarted writer ended with {code}")
        return

    def compare() -> list[str]:
        found = [] if state(warehouse) == writer.after else ["the warehouse differs from one that was never killed"]
        if writer.databases and json.loads(json.dumps(state_of_database(warehouse))) != writer.databases[-1]:
            found.append("warehouse.duckdb differs from one that was never killed")
        opened = Warehouse(warehouse)
        opened.collect_garbage(0)
        named = {f for run in opened.lake.runs() for f in run.paths}
        there = {str(p.relative_to(warehouse)) for p in warehouse.rglob("*") if p.is_file()}
        ours = {f"manifests/{r}.json" for r in writer.after} | {"manifests/.lock", "warehouse.duckdb", MARK}
        if there - named - ours:
            found.append(f"left after gc: {sorted(there - named - ours)}")
        return found + half_visible(warehouse, writer.after, writer.after)

    report.failures += [f"{name}: {f}" for f in outcome(compare, folder)]


def random_rounds(what: str, captures: list[Path], rounds: int, kills: int, seed: int, folder: Path) -> Report:
    """Rounds of kills at random moments."""
    report = Report()
    writer = WRITERS[what](captures, folder)
    for number in range(rounds):
        dice = random.Random(f"{seed} {what} {number}")
        warehouse = folder / f"round-{number}"
        if writer.prepared:
            shutil.copytree(writer.prepared, warehouse)
        for _ in range(kills):
            if not kill_at_random(writer, warehouse, dice, report, 0.5):
                break
            check(writer, warehouse, folder, report, f"round {number}")
        finish(writer, warehouse, folder, report, f"round {number}")
        shutil.rmtree(warehouse)
        if sys.stderr.isatty():
            print(f"\r{what} {number + 1}/{rounds} {dict(report.kills)}", end="", file=sys.stderr, flush=True)
    return report


def every_step(what: str, captures: list[Path], folder: Path, stride: int = 1) -> Report:
    """Kill a writer before each of its calls that change the file system."""
    report = Report()
    writer = WRITERS[what](captures, folder)
    step = 1
    while True:
        warehouse = folder / f"step-{step}"
        if writer.prepared:
            shutil.copytree(writer.prepared, warehouse)

        def work(warehouse: Path = warehouse, step: int = step) -> None:
            _die_before(step, warehouse)
            writer.work(warehouse)

        child = spawn(work)
        code = ended(child)
        if code != -signal.SIGKILL:
            if code:
                report.failures.append(f"step {step}: ended with {code}")
            shutil.rmtree(warehouse)
            return report
        report.kills["at a step"] += 1
        if survivors(child):
            report.failures.append(f"step {step}: a process outlives the writer that started it")
        check(writer, warehouse, folder, report, f"step {step}")
        finish(writer, warehouse, folder, report, f"step {step}")
        shutil.rmtree(warehouse)
        step += stride


def _die_before(step: int, warehouse: Path) -> None:
    """Kill this process before its n-th call that changes something in the warehouse."""
    count, prefix = 0, str(warehouse)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        is_open = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        is_sync = event == "open" and arguments[1] is None and arguments[2] == os.O_RDONLY | os.O_CLOEXEC
        if (event in CHANGES or is_open or is_sync) and str(arguments[0]).startswith(prefix):
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=WRITERS)
    parser.add_argument("captures", type=Path, nargs="*", help="default: three of data/captures")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kills", type=int, default=4, help="most kills in a row before the writer may finish")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", action="store_true", help="kill at every step instead")
    parser.add_argument("--stride", type=int, default=1, help="with --steps: take every n-th only")
    options = parser.parse_args()
    captures = options.captures or [ROOT / "data" / "captures" / c for c in CAPTURES]

    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tracewarehouse-faults-") as name:
        folder = Path(name)
        if options.steps:
            report = every_step(options.what, captures, folder, stride=options.stride)
        else:
            report = random_rounds(options.what, captures, options.rounds, options.kills, options.seed, folder)
    kills = ", ".join(f"{n} {where}" for where, n in sorted(report.kills.items()))
    took = f"seed {options.seed}, {time.monotonic() - begin:.0f} s"
    print(f"{options.what}: {sum(report.kills.values())} kills ({kills}), {len(report.failures)} failures; {took}")
    for failure in report.failures[:20]:
        print(f"  FAILED {failure}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
