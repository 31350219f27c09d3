"""Times the whole ingest beside its two limits, each in a process of its own, in turns; prints medians.

    python tests/benchmarks/bench_ingest.py --megabytes 1 10 100 1000 [--rounds 5]

decode    all events and stats of the capture into columns, by our reader, and thrown away
write     the rows of all tables that ingest makes of it, as Arrow, into zstd Parquet with our settings; reading
          them is not timed
ingest    the capture as a published run of a warehouse

Imports are not timed. Captures are made once by tpu_captures.py and kept in --folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
START = """
import sys, time
from pathlib import Path
"""
STOP = """
import json, resource
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(json.dumps({"seconds": seconds, "cpu": cpu, "peak": peak / 1024, "rows": rows, "bytes": size}))
"""
DECODE = """
from ingest.readers.xplane import read_xplane
size = Path(sys.argv[1]).stat().st_size
cpu, begin = time.process_time(), time.perf_counter()
trace = read_xplane(Path(sys.argv[1]))
rows = sum(len(b) for p in trace.planes for n in p.lines for b in trace.batches(p, n))
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
"""
WRITE = """
import pyarrow.parquet as pq
from ingest.parquet import parquet_writer
rows = size = 0
seconds = cpu = 0.0
for path in sorted(Path(sys.argv[2]).glob("lake/run_id=*/v=*/*.parquet")):
    source = pq.ParquetFile(path)
    text = [f.name for f in source.schema_arrow if str(f.type).startswith("dictionary")]
    out = Path(sys.argv[3]) / path.name
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
"""
INGEST = """
from ingest.lake import Lake
from ingest.pipeline import ingest_capture
from ingest.sources import find_captures
cpu, begin = time.process_time(), time.perf_counter()
run = ingest_capture(find_captures(Path(sys.argv[1]))[0], Path(sys.argv[2]))
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
rows = sum(n for t, n in run.entry.rows.items() if t != "events")
size = sum(p.stat().st_size for t in run.entry.files for p in Lake(Path(sys.argv[2])).paths(run.entry, t))
"""
WAYS = {"ingest": INGEST, "decode": DECODE, "write": WRITE}


def measured(code: str, capture: Path, warehouse: Path, out: Path) -> dict[str, Any]:
    """Figures of one run of `code` in a new process."""
    arguments = [sys.executable, "-c", START + code + STOP, str(capture), str(warehouse), str(out)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{capture.name}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tracewarehouse-bench")
    options = parser.parse_args()

    print(f"{'':10} {'way':8} {'seconds':>8} {'fastest':>8} {'CPU s':>7} {'peak MB':>8} {'rows':>11} {'MB':>6}")
    for megabytes in options.megabytes:
        capture = options.folder / f"tpu-{megabytes}mb.xplane.pb"
        if not capture.exists():
            maker = [sys.executable, str(HERE / "tpu_captures.py"), str(capture), "--megabytes", str(megabytes)]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
        found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                warehouse, out = Path(folder) / "warehouse", Path(folder) / "out"
                out.mkdir()
                for way, code in WAYS.items():
                    found[way].append(measured(code, capture, warehouse, out))
        for way, figures in found.items():
            seconds, cpu, peak = ([f[n] for f in figures] for n in ("seconds", "cpu", "peak"))
            rows, size = figures[0]["rows"], figures[0]["bytes"] / 1e6
            middle = f"{statistics.median(seconds):8.2f} {min(seconds):8.2f} {statistics.median(cpu):7.2f}"
            print(f"{megabytes:>7} MB {way:8} {middle} {max(peak):8.0f} {rows:>11,} {size:6.0f}", flush=True)
        for figure, name in (("seconds", "time"), ("cpu", "CPU time")):
            rounds = zip(*(found[w] for w in ("ingest", "decode", "write")), strict=True)
            of_both = [i[figure] / (d[figure] + w[figure]) for i, d, w in rounds]
            of_write = [i[figure] / w[figure] for i, w in zip(found["ingest"], found["write"], strict=True)]
            both, write = statistics.median(of_both), statistics.median(of_write)
            print(
                f"{megabytes:>7} MB ingest, by {name}: {both:.2f} times decode and write, {write:.2f} times write alone"
            )
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
