"""Times ingest beside its peers and its limits, whole processes, in turns; prints a table, or puts it into the docs.

    python tests/benchmarks/bench.py --megabytes 10 100 1000 [--rounds 5] [--peers PYTHON] [--write-table]

Each round runs every way once, one after the other, in a process of its own; the figures are medians over the rounds.
All run as `tw` does: with modules compiled beforehand, without numpy's threads for linear algebra, and with few
searches for cycles of references and none at the end (see ingest/processes/cycle_search.py).
Seconds are those of the whole process, from its start to its end, imports included; CPU seconds and memory count the
processes that it starts as well. Memory is the largest sum of the processes' proportional set sizes that was seen.

decode    our reader: all events and stats into columns, which are thrown away
convert   what a converter does, in one process: all events of all lines and all their stats, typed, and the
          instructions with their texts and stats, into zstd Parquet; no steps, collectives or published run
write     the limit: the Arrow data of all tables that ingest makes, from memory into zstd Parquet with the same
          settings, on one thread; only the writing is timed
ingest    the capture as a published run, without metric values
metrics   the same with the values of all metrics, as `tw ingest` does it
protobuf  a Python loop over all events and stats of the message that protobuf parsed
json      for Chrome traces: json.load and a Python loop into the same columns
load      json.load alone, which fills none
hta       for Kineto traces: Holistic Trace Analysis opens the trace
jax       a Python loop over all events and stats with jax.profiler.ProfileData
xprof     XProf's converter to Parquet: one wide table, of device events only

hta, jax and xprof run with the Python that --peers names, where that has them. Captures are made once by
tpu_captures.py, chrome_captures.py and gpu_captures.py and kept in --folder.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench_metrics import users_environment

from tracewarehouse.ingest.processes.pool import ONE_THREAD
from tracewarehouse.ingest.readers.chrome.values import METADATA_KEYS

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- tests/benchmarks/bench.py writes from here -->\n", "<!-- to here -->\n"

AS_TW = """
import atexit, gc, sys
gc.set_threshold(200_000)
atexit.register(lambda: None if "duckdb" in sys.modules else gc.freeze())
"""
DECODE = """
import json, sys
from pathlib import Path
from tracewarehouse.ingest.readers.formats import open_trace
from tracewarehouse.ingest.readers.files import CaptureFile
trace = open_trace(CaptureFile(Path(sys.argv[1])))
print(json.dumps({"rows": sum(len(b) for p in trace.planes for n in p.lines for b in trace.batches(p, n))}))
"""
WRITE = """
import json, sys, time
from pathlib import Path
import pyarrow.parquet as pq
from tracewarehouse.ingest.lake.parquet import parquet_writer
rows = size = 0
seconds = cpu = 0.0
for path in sorted(Path(sys.argv[3]).glob("lake/*/*/*.parquet")):
    schema = pq.read_schema(path)
    source = pq.ParquetFile(path, read_dictionary=[f.name for f in schema if f.type == "string"])
    out = Path(sys.argv[2]) / path.name
    with parquet_writer(out, source.schema_arrow) as writer:
        for i in range(source.num_row_groups):
            table = source.read_row_group(i, use_threads=False).combine_chunks()
            cpu -= time.process_time()
            seconds -= time.perf_counter()
            writer.write_table(table, row_group_size=len(table))
            cpu += time.process_time()
            seconds += time.perf_counter()
            rows += len(table)
    size += out.stat().st_size
print(json.dumps({"rows": rows, "bytes": size, "seconds": seconds, "cpu": cpu}))
"""
CONVERT = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tracewarehouse.ingest.processes.cycle_search import without_cycle_search
from tracewarehouse.ingest.columns.profiler_names import device_plane
from tracewarehouse.ingest.hlo.modules import HloModules
from tracewarehouse.ingest.hlo.instructions import Instructions
from tracewarehouse.ingest.tables.lines import DeviceEvents, LineTables, PlaneLines
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.tables.staging import RunFolder
from tracewarehouse.ingest.tables.stats import write_instruction_stats
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.readers.formats import open_trace
out = Path(sys.argv[2]) / "tables"
out.mkdir()
folder = RunFolder(out, "r")
trace, instructions, rows = open_trace(CaptureFile(Path(sys.argv[1]))), Instructions(), 0
with (
    without_cycle_search(),
    ThreadPoolExecutor(1) as encoder,
    LineTables(folder, instructions.facts, encoder) as tables,
):
    for i, plane in enumerate(trace.planes):
        row_instruction = instructions.add_metadata(plane, HloModules([], [])) if device_plane(plane.name) else None
        device = DeviceEvents(None, Timeline(), row_instruction) if row_instruction is not None else None
        rows = tables.write(trace, PlaneLines(0, "host", 0, i, plane, plane.lines, device), rows)
    tables.finish()  # in the background, while this thread goes on
    with folder.writer("instructions", encoder) as writer:
        writer.write_rows(instructions.column_rows())
    with folder.writer("instruction_stats", encoder) as writer:
        write_instruction_stats(writer, [row.stats for row in instructions.rows])
print(json.dumps({"rows": rows, "bytes": sum(f.stat().st_size for f in out.iterdir())}))
"""
INGEST = """
import json, sys
from pathlib import Path
from tracewarehouse.ingest.pipeline import ingest_capture
from tracewarehouse.ingest.capture.sources import find_captures
run = ingest_capture(find_captures(Path(sys.argv[1]))[0], Path(sys.argv[3]))
files = [Path(sys.argv[3]) / f for files in run.entry.files.values() for f in files]
rows = sum(n for table, n in run.entry.rows.items() if table != "events")
print(json.dumps({"rows": rows, "bytes": sum(f.stat().st_size for f in files)}))
"""
METRICS = """
import json, sys
import tracewarehouse as tw
[run] = tw.open(sys.argv[2], create=True).ingest(sys.argv[1])
print(json.dumps({"rows": sum(n for table, n in run.entry.rows.items() if table != "events")}))
"""
CLI = """
import json, sys
from tracewarehouse.cli import main
sys.argv = ["tw", "--warehouse", sys.argv[3], {arguments}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps({{}}))
"""
CLI_INGEST = CLI.format(arguments='"ingest", sys.argv[1]')
CLI_QUERY = CLI.format(
    arguments='"query", "SELECT category, sum(self_ps) FROM ops JOIN instructions USING (run_id, instruction_id) '
    'GROUP BY ALL"'
)
PROTOBUF = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from xplane_reference import MESSAGES
count = 0
for plane in MESSAGES["XSpace"].FromString(Path(sys.argv[1]).read_bytes()).planes:
    names = {e.key: e.value.name for e in plane.stat_metadata}
    for line in plane.lines:
        base = line.timestamp_ns * 1000
        for event in line.events:
            row = (event.metadata_id, base + event.offset_ps, event.duration_ps)
            stats = {names.get(s.metadata_id): getattr(s, s.WhichOneof("value")) for s in event.stats}
            count += 1
print(json.dumps({"rows": count}))
"""
JSON_LOAD = """
import json, sys
with open(sys.argv[1]) as file:
    events = json.load(file)["traceEvents"]
print(json.dumps({"rows": sum(e.get("ph") == "X" for e in events)}))
"""
JSON = (
    f"METADATA_KEYS = {set(METADATA_KEYS)!r}"
    + """
import json, sys
from array import array
with open(sys.argv[1]) as file:
    events = json.load(file)["traceEvents"]
lines, metadata = {}, {}
count = 0
for event in events:
    if event.get("ph") != "X":
        continue
    key = event["pid"], event["tid"]
    if key not in lines:
        lines[key] = array("q"), array("q"), array("q"), {}
    rows, start, duration, stats = lines[key]
    row = len(rows)
    facts = []
    for name, value in event.get("args", {}).items():
        if isinstance(value, str) and value.isdigit() and len(value) < 19 and (value[0] != "0" or value == "0"):
            value = int(value)
        if name in METADATA_KEYS:
            facts.append((name, value))
            continue
        if name not in stats:
            stats[name] = array("q"), []
        stats[name][0].append(row)
        stats[name][1].append(value)
    rows.append(metadata.setdefault((event["name"], tuple(facts)), len(metadata)))
    start.append(round(event["ts"] * 1e6))
    duration.append(round(event.get("dur", 0) * 1e6))
    count += 1
print(json.dumps({"rows": count}))
"""
)
JAX = """
import json, sys
from jax.profiler import ProfileData
count = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    for line in plane.lines:
        for event in line.events:
            row = (event.name, event.start_ns, event.duration_ns)
            stats = dict(event.stats)
            count += 1
print(json.dumps({"rows": count}))
"""
XPROF = """
import json, os, sys
from xprof.convert.events_db.python import pywrap_events_db_c_api as events_db
options = events_db.ParquetExportOptions(compression_type=events_db.ArrowCompressionType.ZSTD, compression_level=3)
out = sys.argv[2] + "/events.parquet"
events_db.xspace_to_parquet(input_path=sys.argv[1], output_path=out, options=options)
print(json.dumps({"bytes": os.path.getsize(out)}))
"""
HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
frame = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=sys.argv[2]).t.get_trace(0)
print(json.dumps({"rows": len(frame)}))
"""
OURS = {"ingest": INGEST, "decode": DECODE, "convert": CONVERT, "write": WRITE, "metrics": METRICS}
SMALL = {"tw_ingest": CLI_INGEST, "tw_query": CLI_QUERY}
PEERS = {"xprof": ("xprof", XPROF), "jax": ("jax", JAX), "hta": ("hta", HTA)}
SAYS = {
    "ingest": "ingest, without metric values",
    "metrics": "ingest with metric values",
    "decode": "our decode alone",
    "convert": "decode and write, one process",
    "write": "writing the Arrow data alone",
    "tw_ingest": "`tw ingest`",
    "tw_query": "`tw query` of the device time by category",
    "protobuf": "protobuf loop",
    "json": "json.load and a loop into columns",
    "load": "json.load alone",
    "jax": "jax.profiler.ProfileData loop",
    "hta": "HTA opens it",
    "xprof": "XProf's converter",
}


@dataclass
class Figures:
    """What the rounds of one way gave: seconds, CPU seconds, megabytes; rows and bytes of its output."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    rows: int | None = None
    size: int | None = None


class MemoryWatch:
    """The largest memory of a process and its descendants, sampled; the shared part of it counted once."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.peak_kb = 0
        self._thread.start()

    def stop(self) -> None:
        """Stop; `peak_kb` is complete afterwards."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        took = 0.0
        while not self._is_over.wait(max(0.02, 20 * took)):  # looking takes a twentieth of a core at most
            begin = time.perf_counter()
            self.peak_kb = max(self.peak_kb, sum(_memory_kb(p) for p in _family(self._pid)))
            took = time.perf_counter() - begin


def _family(pid: int) -> list[int]:
    found = [pid]
    for parent in found:
        with suppress(OSError):  # it has ended
            for path in Path(f"/proc/{parent}/task").glob("*/children"):
                found += map(int, path.read_text().split())
    return found


def _memory_kb(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
    except (OSError, IndexError):
        return 0


def measure(python: str, code: str, capture: Path, out: Path, warehouse: Path, into: Figures) -> None:
    """Run `code` in a new process; add its figures."""
    arguments = [python, "-c", AS_TW + code, str(capture), str(out), str(warehouse), str(HERE.parent)]
    with tempfile.TemporaryFile() as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=errors, env=users_environment() | ONE_THREAD
        )
        watch = MemoryWatch(process.pid)
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        watch.stop()
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stdout.close()
        if process.returncode:
            errors.seek(0)
            raise SystemExit(f"{capture.name}: {errors.read().decode(errors='replace')[-2000:]}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    into.wall.append(found.get("seconds", wall))
    into.cpu.append(found.get("cpu", usage.ru_utime + usage.ru_stime))
    into.peak.append(max(watch.peak_kb, 0 if _has_children(code) else usage.ru_maxrss) / 1024)
    into.rows, into.size = found.get("rows"), found.get("bytes")


def _has_children(code: str) -> bool:
    return code in (DECODE, INGEST, METRICS, CLI_INGEST)


def bench(capture: Path, ways: dict[str, tuple[str, str]], rounds: int, folder: Path) -> dict[str, Figures]:
    """The figures of each way; `write` needs the warehouse that `ingest` made in the same round."""
    found = {way: Figures() for way in ways}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as round_folder:
            warehouse = Path(round_folder) / "warehouse"
            for way, (python, code) in ways.items():
                out = Path(round_folder) / way
                out.mkdir()
                copy = out / capture.name  # XProf leaves files beside what it reads
                os.link(capture, copy)
                measure(python, code, copy, out, warehouse, found[way])
    return found


def table(name: str, size: int, events: int, found: dict[str, Figures]) -> str:
    """The figures as a Markdown table."""
    peer = next((p for p in ("xprof", "json", "hta", "load") if p in found), None)
    heads = ["way", "seconds", "fastest", "CPU s", "peak MB", "rows", "output MB"]
    if peer:
        heads.append(f"{SAYS[peer]} takes")
    rows = [heads, ["---"] * len(heads)]
    for way, f in found.items():
        row = [SAYS[way], f"{statistics.median(f.wall):.2f}", f"{min(f.wall):.2f}", f"{statistics.median(f.cpu):.2f}"]
        row += [f"{max(f.peak):.0f}", f"{f.rows:,}" if f.rows else "", f"{f.size / 1e6:.1f}" if f.size else ""]
        if peer:
            pairs = zip(found[peer].wall, f.wall, strict=True)
            row.append("" if way in (peer, "write") else f"{statistics.median(p / own for p, own in pairs):.1f} x")
        rows.append(row)
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    limits = ""
    if set(SMALL) <= set(found):
        both = [sum(walls) for walls in zip(*(found[w].wall for w in SMALL), strict=True)]
        limits = f"Both together take {statistics.median(both):.2f} s.\n"
    if {"metrics", "ingest", "convert", "decode", "write"} <= set(found):
        for figure, says in (("wall", "time"), ("cpu", "CPU time")):
            of = {w: statistics.median(getattr(f, figure)) for w, f in found.items()}
            whole, made, together = of["metrics"], of["ingest"], of["convert"]
            alone = of["decode"] + of["write"]
            limits += (
                f"By {says}, ingest with metric values is {whole / together:.2f} times decode and write in one process "
                f"and {whole / alone:.2f} times our decode alone and writing alone added up; without metric values "
                f"{made / together:.2f} and {made / alone:.2f} times, and {made / of['write']:.2f} times writing.\n"
            )
    return f"**{name}**, {size / 1e6:.1f} MB{f', {events:,} events' if events else ''}:\n\n{text}\n{limits}"


def _made(folder: Path, maker: str, name: str, size: int, option: str = "--megabytes") -> Path:
    capture = folder / name
    if not capture.exists():  # by another process: a child's peak memory counts its parent's at the time of the fork
        part = folder / f".{name}"
        arguments = [sys.executable, str(HERE / maker), str(part), option, str(size)]
        subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
        part.rename(capture)
    return capture


def _has(python: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="*", default=[10, 100])
    parser.add_argument(
        "--small-megabytes", type=int, nargs="*", default=[1, 3], help="for `tw ingest`, then `tw query`"
    )
    parser.add_argument("--chrome-megabytes", type=int, nargs="*", default=[100])
    parser.add_argument("--kineto-megabytes", type=int, nargs="*", default=[150])
    parser.add_argument("--nsys-kernels", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tracewarehouse-bench")
    parser.add_argument("--peers", default=sys.executable, help="a Python that has XProf, JAX or both")
    parser.add_argument("--only", nargs="+", choices=sorted(SAYS))
    parser.add_argument("--write-table", action="store_true", help=f"put the tables into {DOCS.name}")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    compileall.compile_dir(HERE.parents[1] / "tracewarehouse", quiet=1)

    skipped = [SAYS[w] for w, (module, _) in PEERS.items() if not _has(options.peers, module)]
    tables = []
    load = os.getloadavg()[0]
    for megabytes in options.megabytes:
        capture = _made(options.folder, "tpu_captures.py", f"tpu-{megabytes}mb.xplane.pb", megabytes)
        ways = {w: (sys.executable, code) for w, code in OURS.items()}
        if megabytes <= 100:
            ways["protobuf"] = sys.executable, PROTOBUF
        for way, (_, code) in PEERS.items():
            if way != "hta" and SAYS[way] not in skipped and (way == "xprof" or megabytes <= 100):
                ways[way] = options.peers, code
        tables.append(_bench_one("xplane.pb of a TPU", capture, ways, options))
    for megabytes in options.small_megabytes:
        capture = _made(options.folder, "tpu_captures.py", f"tpu-{megabytes}mb.xplane.pb", megabytes)
        ways = {w: (sys.executable, code) for w, code in SMALL.items()}
        tables.append(_bench_one("xplane.pb of a TPU, from nothing to an answer", capture, ways, options))
    for megabytes in options.chrome_megabytes:
        capture = _made(options.folder, "chrome_captures.py", f"chrome-{megabytes}mb.trace.json", megabytes)
        codes = {"decode": DECODE, "ingest": INGEST, "json": JSON, "load": JSON_LOAD}
        ways = {w: (sys.executable, code) for w, code in codes.items()}
        tables.append(_bench_one("Chrome trace", capture, ways, options))
    for megabytes in options.kineto_megabytes:
        capture = _made(options.folder, "gpu_captures.py", f"kineto-{megabytes}mb.pt.trace.json", megabytes)
        codes = {"decode": DECODE, "ingest": INGEST, "metrics": METRICS, "load": JSON_LOAD}
        ways = {w: (sys.executable, code) for w, code in codes.items()}
        if SAYS["hta"] not in skipped:
            ways["hta"] = options.peers, HTA
        tables.append(_bench_one("Kineto trace of a GPU", capture, ways, options))
    for kernels in options.nsys_kernels:
        capture = _made(options.folder, "gpu_captures.py", f"nsys-{kernels}.sqlite", kernels, "--kernels")
        ways = {w: (sys.executable, code) for w, code in (("decode", DECODE), ("ingest", INGEST), ("metrics", METRICS))}
        tables.append(_bench_one("export of Nsight Systems", capture, ways, options))
    loads = f"{load:.1f} at the beginning and {os.getloadavg()[0]:.1f} at the end"
    left_out = f" Not installed, and so left out: {', '.join(skipped)}." if skipped else ""
    about = (
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {options.rounds} rounds, load {loads}.{left_out}\n"
    )
    print(about)
    if options.write_table:
        text = DOCS.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        DOCS.write_text(before + BEGIN + about + "\n" + "\n".join(tables) + END + rest.split(END)[1], encoding="utf-8")


def _bench_one(name: str, capture: Path, ways: dict[str, tuple[str, str]], options: argparse.Namespace) -> str:
    chosen = {w: way for w, way in ways.items() if not options.only or w in options.only}
    found = bench(capture, chosen, options.rounds, options.folder)
    events = next((found[w].rows for w in ("decode", "json", "protobuf") if w in found), None) or 0
    text = table(name, capture.stat().st_size, events, found)
    print(text, flush=True)
    return text


if __name__ == "__main__":
    main()
