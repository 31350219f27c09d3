"""All metrics of a warehouse three ways: DuckDB run by run, DuckDB inside tasks of Spark, and Spark SQL.

    python tests/benchmarks/spark_metrics.py --warehouse W --log LOG --way duckdb
    python tests/benchmarks/spark_metrics.py --warehouse W --log LOG --way tasks --master local[2,4]
    python tests/benchmarks/spark_metrics.py --warehouse W --log LOG --way sql --master local[2,4] --seconds 1800
    python tests/benchmarks/spark_metrics.py --log LOG --compare
    python tests/benchmarks/spark_metrics.py --log LOG --write-table all

Asks every version of every metric for all its rows, metrics with a row per instruction and those of other tools
included, and then the views over all runs (`VIEWS`); with `--definitions` it asks every model,
precondition, metric and audit over all runs at once instead. The log gets a line of JSON for each answer, and one for
what the way cost in all: CPU seconds and the peak of the resident memory of this process and all that it starts, Java
included.
Started again, a way goes on where it was stopped. `large_runs.py` makes warehouses to ask.

The rows of the ways are compared by their number and the sum of the SHA-256 of each, so that a million of them need not
be held: numbers count with all their digits, and of doubles only 0.0 and -0.0 are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tracewarehouse as tw
from tracewarehouse.database.session import Session
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.queries.read_only import run_query
from tracewarehouse.queries.result import QueryResult

VIEWS = ("metrics.all_values", "metrics.missing")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"
BEGIN, END = "<!-- tests/benchmarks/spark_metrics.py --write-table {} writes from here -->", "<!-- to here -->"
NAMES = {"duckdb": "DuckDB, run by run", "tasks": "DuckDB inside tasks of Spark", "sql": "Spark SQL"}
AT_ONCE = 10
"""Runs of a job of Spark, whose answers reach the log together."""
_WHOLE = 1 << 256


class Costs:
    """CPU seconds, seconds and peak memory of this process and all that it starts, from its construction on."""

    def __init__(self) -> None:
        self.peak = 0
        self._cpu, self._clock = self.cpu(), time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, sum(pages for _, pages in processes()) * os.sysconf("SC_PAGE_SIZE"))
            time.sleep(1)

    @staticmethod
    def cpu() -> float:
        return sum(ticks for ticks, _ in processes()) / os.sysconf("SC_CLK_TCK")

    def entry(self) -> dict[str, float]:
        """As the log has it; the CPU seconds hold those of processes that have ended."""
        cpu, clock = self.cpu() - self._cpu, time.monotonic() - self._clock
        return {"cpu": round(cpu, 2), "s": round(clock, 2), "peak_mb": round(self.peak / 1e6)}


def processes() -> Iterator[tuple[int, int]]:
    """Ticks of the CPU and resident pages of this process and of all that it has started."""
    parents, found = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        found[int(stat.parent.name)] = sum(map(int, fields[11:15])), int(fields[21])
    own = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in own} - own:
        own |= more
    return (found[p] for p in own)


def digest(result: QueryResult) -> tuple[int, int]:
    """The number of rows, and the sum of what stands for each."""
    total = 0
    for row in result.rows():
        text = repr(tuple(v + 0.0 if isinstance(v, float) else v for v in row))  # -0.0 + 0.0 is 0.0
        total += int.from_bytes(hashlib.sha256(text.encode()).digest())
    return len(result), total % _WHOLE


def questions(definitions: Definitions) -> tuple[dict[str, str], dict[str, str]]:
    """The SQL of the metrics of single runs, by name, and of what is asked over all runs."""
    metrics = {m.view.qualified: m.view.compares_runs for m in definitions.metrics}
    single, over_all = (
        sorted(n for n, is_over_all in metrics.items() if is_over_all == kind) for kind in (False, True)
    )
    asked = {n: f"SELECT * FROM {n}" for n in [*single, *over_all, *VIEWS]}
    return {n: asked[n] for n in single}, {n: asked[n] for n in [*over_all, *VIEWS]}


def definitions_over_all(definitions: Definitions) -> dict[str, str]:
    """The SQL of every definition, over all runs at once."""
    asked = {v.qualified: f"SELECT * FROM {v.qualified}" for v in definitions.ordered}
    return asked | {a.qualified: a.sql for a in definitions.audits}


def of_run(opened: tw.Warehouse, run_id: str, asked: dict[str, str]) -> dict[str, Any]:
    """The entry of one run: rows, digest and CPU seconds of each view, by DuckDB in this process."""
    answers = {}
    session = Session(opened.lake, lambda: opened.definitions, is_restricted=True, only=[run_id])
    try:
        for view, sql in asked.items():
            cpu = time.process_time()
            result = run_query(session.connection, sql, prepare=session.prepare)
            rows, total = digest(result)
            answers[view] = rows, f"{total:x}", round(time.process_time() - cpu, 3)
    finally:
        session.close()
    return {"run": run_id, "answers": answers}


class Log:
    """The answers of one way to a warehouse, one line each."""

    def __init__(self, path: Path, way: str, master: str) -> None:
        self._path, self._of = path, {"way": way, "master": master}

    def entries(self) -> list[dict[str, Any]]:
        return [e for e in read(self._path) if e["way"] == self._of["way"] and e["master"] == self._of["master"]]

    def add(self, **entry: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({**self._of, **entry}) + "\n")
        print({k: v for k, v in entry.items() if k != "answers"}, flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def by_duckdb(path: Path, log: Log, single: dict[str, str], over_all: dict[str, str]) -> None:
    done = {e.get("run") or e.get("view") for e in log.entries()}
    with tw.open(path) as opened:
        for run in opened.lake.runs():
            if single and run.run_id not in done:
                log.add(**of_run(opened, run.run_id, single))
        for view, sql in over_all.items():
            if view not in done:
                cpu = time.process_time()
                rows, total = digest(opened.query(sql))
                log.add(view=view, answer=(rows, f"{total:x}", round(time.process_time() - cpu, 3)))


def in_tasks(path: Path, log: Log, master: str, single: dict[str, str]) -> None:
    with tw.open(path, engine="spark", master=master) as asked:
        done = {e.get("run") for e in log.entries()}
        run_ids = [r.run_id for r in asked.lake.runs() if r.run_id not in done]

        def work(batches: Iterator[Any]) -> Iterator[Any]:
            import pyarrow as pa

            with tw.open(path) as opened:
                for batch in batches:
                    for number in batch.column(0).to_pylist():
                        entry = pickle.dumps(of_run(opened, run_ids[number], single))
                        yield pa.RecordBatch.from_pydict({"entry": [entry]})

        for first in range(0, len(run_ids), AT_ONCE):
            numbers = asked.spark.range(first, min(first + AT_ONCE, len(run_ids)), 1, AT_ONCE)
            for (entry,) in numbers.mapInArrow(work, "entry BINARY").collect():
                log.add(**pickle.loads(entry))


def by_spark_sql(path: Path, log: Log, master: str, asked_for: dict[str, str], seconds: float) -> None:
    done = {e["view"] for e in log.entries() if "answer" in e}
    with tw.open(path, engine="spark", master=master) as asked:
        for view, sql in asked_for.items():
            if view in done:
                continue
            cpu, clock = Costs.cpu(), time.monotonic()
            limit = threading.Timer(seconds, asked.spark.sparkContext.cancelAllJobs)
            limit.start()
            try:
                rows, total = digest(asked.query(sql))
            except QueryError as error:
                log.add(view=view, failed=str(error)[:300], s=round(time.monotonic() - clock, 2))
                continue
            finally:
                limit.cancel()
            told = rows, f"{total:x}", round(Costs.cpu() - cpu, 2)
            log.add(view=view, answer=told, s=round(time.monotonic() - clock, 2))


def answers(path: Path) -> dict[tuple[str, str], dict[str, tuple[int, int, float]]]:
    """By way and master, what each view gave: number of rows, digest, CPU seconds."""
    found: dict[tuple[str, str], dict[str, tuple[int, int, float]]] = {}
    for entry in read(path):
        of_way = found.setdefault((entry["way"], entry["master"]), {})
        told = entry.get("answers") or ({entry["view"]: entry["answer"]} if "answer" in entry else {})
        for view, (rows, total, cpu) in told.items():
            before = of_way.get(view, (0, 0, 0.0))
            of_way[view] = before[0] + rows, (before[1] + int(total, 16)) % _WHOLE, before[2] + cpu
    return found


def compare(path: Path) -> list[str]:
    """What differs between DuckDB run by run and the other ways."""
    found = answers(path)
    expected = found["duckdb", ""]
    return [
        f"{way} {master}: {view} gave {told[view][0]} rows, {expected[view][0]} expected"
        for (way, master), told in found.items()
        for view in told
        if told[view][:2] != expected[view][:2]
    ]


def tables(path: Path) -> Iterator[str]:
    """The tables of the page."""
    found, entries = answers(path), read(path)
    expected = found["duckdb", ""]
    size = next(e for e in entries if "runs" in e)
    rows = sum(r for r, *_ in expected.values())
    yield f"{size['runs']} runs, {size['ops']:,} ops; {len(expected)} views, {rows:,} rows. All rows were the same."
    yield from ("", "| way | views | CPU s of these | DuckDB's CPU s for the same | peak GB |", "| --- " * 5 + "|")
    for (way, master), told in found.items():
        peaks = [e["peak_mb"] for e in entries if (e["way"], e["master"]) == (way, master) and "peak_mb" in e]
        cpu, duckdb = (f"{sum(costs[v][2] for v in told):,.0f}" for costs in (told, expected))
        peak = f"{max(peaks) / 1000:.1f}" if peaks else "-"
        yield f"| {name(way, master)} | {len(told)} | {cpu} | {duckdb} | {peak} |"
    yield from ("", "CPU seconds of the views that cost Spark SQL most:", "")
    yield "| view | rows | " + " | ".join(name(*w) for w in found) + " |"
    yield "| --- " * (2 + len(found)) + "|"
    on_spark = [told for (way, _), told in found.items() if way == "sql"]
    dearest = sorted(expected, key=lambda v: -max((told[v][2] for told in on_spark if v in told), default=0))
    for view in dearest[:10]:
        costs = (f"{told[view][2]:,.1f}" if view in told else "-" for told in found.values())
        yield f"| `{view}` | {expected[view][0]:,} | {' | '.join(costs)} |"


def name(way: str, master: str) -> str:
    return NAMES[way] + (f", `{master}`" if master else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warehouse", type=Path)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--way", choices=NAMES)
    parser.add_argument("--master", default="local[2,4]")
    parser.add_argument("--seconds", type=float, default=1800, help="after which Spark SQL gives up a view")
    parser.add_argument("--view", action="append", default=[], help="such as metrics.tpot_v1; default: all")
    parser.add_argument("--definitions", action="store_true", help="ask every definition, each over all runs")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument(
        "--write-table", choices=("all", "large"), help="write the tables into this part of docs/spark.md"
    )
    given = parser.parse_args()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    if given.way:
        path, costs = given.warehouse.resolve(), Costs()
        log = Log(given.log, given.way, "" if given.way == "duckdb" else given.master)
        with tw.open(path) as opened:
            runs = opened.lake.runs()
            single, over_all = questions(opened.definitions)
            if given.definitions:
                single, over_all = {}, definitions_over_all(opened.definitions)
        if given.view:
            single, over_all = ({v: q for v, q in part.items() if v in given.view} for part in (single, over_all))
        try:
            if given.way == "duckdb":
                log.add(runs=len(runs), ops=sum(r.rows.get("ops", 0) for r in runs))
                by_duckdb(path, log, single, over_all)
            elif given.way == "tasks":
                in_tasks(path, log, given.master, single)
            else:
                by_spark_sql(path, log, given.master, {**single, **over_all}, given.seconds)
        finally:
            log.add(**costs.entry())
    if given.compare or given.write_table:
        differing = compare(given.log)
        print("\n".join(differing) or "all rows are the same")
        if differing:
            raise SystemExit(1)
    if given.write_table:
        text = "\n".join(tables(given.log))
        before, begin, rest = PAGE.read_text().partition(BEGIN.format(given.write_table))
        PAGE.write_text(f"{before}{begin}\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
