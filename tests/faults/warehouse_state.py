"""What a warehouse answers, in a form that can be compared byte for byte, and processes to do things to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

State = dict[str, dict[str, str]]
"""Per run, per table: a digest of its rows in order."""


def state(warehouse: Path) -> State:
    """Every row of every table, metric values included, as a fresh reader sees them who asks for all runs."""
    with Warehouse(warehouse) as opened:
        digests = {t: _digests(opened, t) for t in TABLES}
        return {
            run.run_id: {t: digests[t].get(run.run_id, "no row") for t in TABLES}
            | {"metrics": run.metrics_fingerprint or "", "name": run.name}
            for run in opened.lake.runs()
        }


def _digests(warehouse: Warehouse, table: str) -> dict[str, str]:
    text = "CAST(r AS VARCHAR)"
    rows = warehouse.query(
        f"SELECT run_id, count(*), md5(string_agg({text}, chr(10) ORDER BY {text})) FROM main.{table} AS r GROUP BY ALL"
    ).rows()
    return {run_id: f"{count} {digest}" for run_id, count, digest in rows}


def state_of_database(warehouse: Path) -> list[Any]:
    """What warehouse.duckdb answers to another program; empty where it is not there."""
    if not (warehouse / DATABASE).exists():
        return []
    with duckdb.connect(str(warehouse / DATABASE), read_only=True) as connection:
        counts = [
            connection.execute(f"SELECT run_id, count(*) FROM {t} GROUP BY 1 ORDER BY 1").fetchall() for t in TABLES
        ]
        return [counts, connection.execute("SELECT * FROM metrics.all_values ORDER BY ALL").fetchall()]


def half_visible(warehouse: Path, before: State, after: State) -> list[str]:
    """Runs that a reader would find, and that are not whole or should not be there; every byte is read."""
    lake = Lake(warehouse)
    readable, unread = lake.listing()
    runs = {r.run_id: r for r in readable}
    found = [f"run {r}" for r in unread]
    found += [f"run {r} is not there any more" for r in before.keys() - runs.keys()]
    found += [f"run {r} was never ingested" for r in runs.keys() - before.keys() - after.keys()]
    found += [f"run {r.run_id} is named and not whole" for r in runs.values() if not lake.is_whole(r)]
    return found


def spawn(work: Callable[[], object], result: Path | None = None) -> int:
    """Do work in a child process, the leader of a group of its own; its result goes to a file as JSON.

    The child is forked, so that nothing is imported in the time in which it may be killed.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(child, child)
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        done = work()
        if result is not None:
            result.write_text(json.dumps(done))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int) -> int:
    """Exit code of a child, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome(work: Callable[[], Any], folder: Path) -> Any:
    """The result of work done in a child, so that this process has no threads and can be forked.

    Raises:
        RuntimeError: the child failed.
    """
    file = folder / f"result-{time.monotonic_ns()}.json"
    code = ended(spawn(work, file))
    if code:
        raise RuntimeError(f"a child process ended with {code}")
    text = file.read_text()
    file.unlink()
    return json.loads(text)


def kill_group(child: int) -> None:
    """Kill a child, but not the processes that it has started; those must end by themselves."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def survivors(child: int, seconds: float = 30.0) -> bool:
    """Whether processes of a dead child's group are still there after a while."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.killpg(child, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return True


def ingest_all(captures: list[Path], warehouse: Path, *, evaluate: bool = True) -> None:
    """What `tw ingest` does."""
    with open_warehouse(warehouse, create=True) as opened:
        for path in captures:
            for capture in find_captures(path):
                opened.ingest_capture(capture, evaluate=evaluate)
