"""What many runs cost: cold processes over warehouses of up to ten thousand runs, as docs/scale.md has it.

    python tests/benchmarks/scale.py --runs 100 1000 10000 --write-table
    python tests/benchmarks/scale.py --captures 40 --write-table
    python tests/benchmarks/scale.py --clock WAREHOUSE --write-table

Every question is a `tw` process of its own; CPU seconds are user and system time of the process and its children, which
say more than the clock on a machine that does other work. The warehouses have their catalogue; each question is asked
once before it is measured. `--clock` asks some questions by the clock, from Python too, and takes the least of twelve;
run it on a machine that does nothing else. See `many_runs.py` for the runs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench_metrics import Cost, measured
from tiny_capture import tiny_capture
from tpu_captures import write_capture

from tracewarehouse.ingest.processes.pool import usable_cores

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scale.md"
BEGIN, END = "<!-- tests/benchmarks/scale.py --{} writes from here -->", "<!-- to here -->"
TW = Path(sys.executable).parent / "tw"
HEADER = "| command | on | CPU s | s | peak MB |", "| --- | --- | --- | --- | --- |"
RUNS = "the runs with flags and clocks: `tw runs`"
ONE_METRIC = "SELECT count(*) AS rows, sum(ops) AS ops FROM metrics.op_time_share"


def questions(run_id: str) -> dict[str, list[str]]:
    """The commands by what they ask."""
    return {
        "the runs: `SELECT count(*) FROM runs`": ["query", "SELECT count(*) FROM runs"],
        "one run: its ops": ["query", f"SELECT count(*), sum(duration_ps) FROM ops WHERE run_id = '{run_id}'"],
        "one run: `tw metrics values RUN`": ["metrics", "values", run_id],
        "stored values of all runs": ["query", "SELECT avg(value) FROM metric_values WHERE metric = 'tpot'"],
        RUNS: ["runs"],
        "what nothing uses any more: `tw gc --dry-run`": ["gc", "--dry-run"],
    }


def rows(warehouse: Path, rounds: int) -> Iterator[tuple[str, Cost]]:
    """What each question costs in a warehouse."""
    manifests = sorted(f.stem for f in (warehouse / "manifests").glob("*.json"))
    run_id = manifests[len(manifests) // 2]
    for what, command in questions(run_id).items():
        yield what, asked(warehouse, command, rounds)


def asked(warehouse: Path, command: list[str], rounds: int) -> Cost:
    """The median cost of a command that was done once before."""
    ask = (
        (TW, "-w", warehouse, *command, "--format", "csv")
        if command[0] not in ("ingest", "gc")
        else (TW, "-w", warehouse, *command)
    )
    if rounds > 1:
        measured(*ask)
    costs = [measured(*ask)[0] for _ in range(rounds)]
    return Cost(
        statistics.median(c.seconds for c in costs), statistics.median(c.cpu for c in costs), max(c.peak for c in costs)
    )


def ingested(warehouse: Path, rounds: int) -> Cost:
    """The median cost of ingesting a new small capture; the runs are removed again."""
    costs = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            capture = tiny_capture(200 + number).write(Path(folder) / f"new{number}.xplane.pb")
            costs.append(measured(TW, "-w", warehouse, "ingest", capture)[0])
        names = [f"new{n}" for n in range(rounds)]
        subprocess.run([TW, "-w", warehouse, "remove", *names], check=True, stdout=subprocess.DEVNULL)
    return Cost(
        statistics.median(c.seconds for c in costs), statistics.median(c.cpu for c in costs), max(c.peak for c in costs)
    )


def line(what: str, of: str, cost: Cost) -> str:
    return f"| {what} | {of} | {cost.cpu:.2f} | {cost.seconds:.2f} | {cost.peak:.0f} |"


def size(folder: Path) -> tuple[int, int]:
    """Files below a folder, and their bytes; holds no list, as commands begin with the memory of this process."""
    count = total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            count += 1
            total += os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118
    return count, total


def of_runs(folder: Path, counts: list[int], rounds: int) -> list[str]:
    """The tables of questions to warehouses of so many runs."""
    costs, sizes, whole, once = [], [], [], []
    empty = folder / "empty"
    shutil.rmtree(empty, ignore_errors=True)
    for name in ("lake", "manifests"):
        (empty / name).mkdir(parents=True)
    costs.append(line("start alone: `SELECT 1`", "empty", asked(empty, ["query", "SELECT 1"], rounds)))
    costs.append(line("`tw ingest` of a new small capture", "empty", ingested(empty, rounds)))
    for count in counts:
        warehouse = folder / f"runs-{count}"
        if not warehouse.exists():  # made by another process: a command's peak begins with the memory of this one
            maker = [
                sys.executable,
                str(Path(__file__).with_name("many_runs.py")),
                str(warehouse),
                "--runs",
                str(count),
            ]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            subprocess.run([TW, "-w", warehouse, "build"], check=True, stdout=subprocess.DEVNULL)
        _, told = measured(TW, "-w", warehouse, "query", "SELECT count(*) FROM ops", "--format", "csv")
        ops = int(told.split()[-1])
        name = f"{count:,} runs"
        files, parquet = size(warehouse / "lake")
        _, manifests = size(warehouse / "manifests")
        costs += [line(what, name, cost) for what, cost in rows(warehouse, rounds)]
        costs.append(line("`tw ingest` of a new small capture", name, ingested(warehouse, rounds)))
        catalogue = (warehouse / "warehouse.duckdb").stat().st_size
        sizes.append(
            f"| {count:,} | {ops:,} | {files:,} | {parquet / 1e6:,.0f} | {manifests / 1e6:,.1f} | "
            f"{catalogue / 1e6:,.1f} |"
        )
        of_ops = ["query", "SELECT count(*), sum(duration_ps) FROM ops"]
        whole.append(line("sum over all ops", f"{name}, {ops:,} ops", asked(warehouse, of_ops, 1)))
        live = ["query", ONE_METRIC]
        whole.append(line(f"`{ONE_METRIC}`", f"{name}, {ops:,} ops", asked(warehouse, live, 1)))
        once += first_times(warehouse, name)
        # some made captures have more operations than a chip can do in their time, which an audit finds
        once.append(line("`tw fsck`", name, measured(TW, "-w", warehouse, "fsck", codes=(0, 1))[0]))
    return [
        *HEADER,
        *costs,
        "",
        "| runs | ops | files | MB of Parquet | MB of manifests | MB of the catalogue |",
        "| --- | --- | --- | --- | --- | --- |",
        *sizes,
        "",
        "Questions over every op, asked once:",
        "",
        *HEADER,
        *whole,
        "",
        "What is paid once, and what verifies every byte:",
        "",
        *HEADER,
        *once,
    ]


def first_times(warehouse: Path, name: str) -> Iterator[str]:
    """What is paid once: questions without the catalogue, making it, and an export."""
    database = warehouse / "warehouse.duckdb"
    database.unlink()
    for what in ("stored values of all runs", "the runs: `SELECT count(*) FROM runs`", RUNS):
        yield line(f"{what}, without the catalogue", name, measured(TW, "-w", warehouse, *questions("")[what])[0])
    cost = measured(TW, "-w", warehouse, "build")[0]
    yield line(f"`tw build`, {database.stat().st_size / 1e6:,.0f} MB", name, cost)
    with tempfile.TemporaryDirectory() as folder:
        for what in ("", " again, nothing changed"):
            cost = measured(TW, "-w", warehouse, "export", "iceberg", "-o", folder)[0]
            files, metadata = size(Path(folder))
            yield line(f"`tw export iceberg`{what}: {metadata / 1e6:,.0f} MB in {files} files", name, cost)


def by_the_clock(warehouse: Path, rounds: int = 12) -> list[str]:
    """The table of seconds by the clock, of cold processes of Python and `tw`; the least of the rounds."""
    manifests = sorted(f.stem for f in (warehouse / "manifests").glob("*.json"))
    run_id = manifests[len(manifests) // 2]
    of_run = questions(run_id)["one run: its ops"][1]
    of_all = "SELECT metric, count(*) AS n, min(value) AS least FROM metric_values GROUP BY metric ORDER BY metric"
    asked: list[tuple[str, str, tuple[str, ...]]] = [
        ("opening it, and no question; `SELECT 1`", "opened", ("query", "SELECT 1")),
        ("one run: its ops", f'opened.query("{of_run}").rows()', ("query", of_run)),
        ("one run: a metric of it, evaluated", f'opened.metric("tpot", "{run_id}").rows()',
         ("query", f"SELECT * FROM metrics.tpot WHERE run_id = '{run_id}'")),
        ("one run: its stored values", f'opened.values("{run_id}").rows()', ("metrics", "values", run_id)),
        ("the runs: `SELECT count(*) FROM runs`", 'opened.query("SELECT count(*) FROM runs").rows()',
         ("query", "SELECT count(*) FROM runs")),
        ("stored values of all runs, by metric", f'opened.query("{of_all}").rows()', ("query", of_all)),
    ]  # fmt: skip
    table = ["| question | from Python | the same by `rows` | by `tw` |", "| --- " * 4 + "|"]
    for what, python, command in asked:
        ways = [python, python.replace(".query(", ".rows(")] if ".query(" in python else [python]
        code = [f"import tracewarehouse as tw; opened = tw.open({str(warehouse)!r}); {way}" for way in ways]
        commands = [*((sys.executable, "-c", c) for c in code), (str(TW), "-w", str(warehouse), *command)]
        seconds = [f"{min(measured(*c)[0].seconds for _ in range(rounds)):.2f} s" for c in commands]
        table.append(f"| {what} | {' | '.join(seconds if len(ways) > 1 else [seconds[0], '-', seconds[1]])} |")
    return table


def of_captures(folder: Path, count: int) -> list[str]:
    """The table of ingesting so many captures of 1 MB, at once and one command after the other."""
    captures = folder / f"captures-{count}"
    captures.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        file = captures / f"{number:03}" / f"capture{number:03}.xplane.pb"  # in one folder they would be one run
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_capture(file, 1.0, seed=number + 1)
    ways = {f"`tw ingest FOLDER --jobs {jobs}`": [("--jobs", jobs, captures)] for jobs in (1, usable_cores())}
    ways["a `tw ingest CAPTURE` for each"] = [(c,) for c in sorted(captures.iterdir())]
    table = []
    for way, commands in ways.items():
        with tempfile.TemporaryDirectory() as warehouse:
            costs = [measured(TW, "-w", Path(warehouse) / "w", "ingest", *map(str, c))[0] for c in commands]
            of_ops = ("query", "SELECT count(DISTINCT run_id), count(*) FROM ops", "--format", "csv")
            _, told = measured(TW, "-w", Path(warehouse) / "w", *of_ops)
            runs, ops = map(int, told.split()[-1].split(","))
            of = f"{runs} captures of 1 MB, {ops:,} ops"
        total = Cost(sum(c.seconds for c in costs), sum(c.cpu for c in costs), max(c.peak for c in costs))
        table.append(line(way, of, total))
    return [*HEADER, *table]


def main() -> None:
    """Measure, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[])
    parser.add_argument("--captures", type=int, default=0)
    parser.add_argument("--clock", type=Path, metavar="WAREHOUSE", help="ask this warehouse by the clock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tracewarehouse-scale")
    parser.add_argument("--write-table", action="store_true", help="write the tables into docs/scale.md")
    options = parser.parse_args()
    if options.runs:
        put("runs", of_runs(options.folder, options.runs, options.rounds), options.write_table)
    if options.clock:
        put("clock", by_the_clock(options.clock.resolve()), options.write_table)
    if options.captures:
        put("captures", of_captures(options.folder, options.captures), options.write_table)


def put(part: str, table: list[str], is_written: bool) -> None:
    """Print tables, and write them into their place in the page."""
    machine = f"{usable_cores()} CPUs, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.0f} at the end."
    text = "\n".join([machine, "", *table])
    print(text)
    if is_written:
        before, begin, rest = PAGE.read_text().partition(BEGIN.format(part))
        PAGE.write_text(f"{before}{begin}\n{text}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
