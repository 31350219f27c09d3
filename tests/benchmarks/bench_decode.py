"""Times the decoding of TPU captures, each way in a process of its own, in turns; prints medians.

    python tests/benchmarks/bench_decode.py --megabytes 10 100 [--rounds 5] [--xprof-python PYTHON]

What is timed, from the start of the process to its end:

decode    all events and stats of the capture into columns, by our reader
tables    our whole ingest: typed tables, written as Parquet and published as a run
protobuf  a Python loop over all events and stats of the message that protobuf parsed
xprof     XProf's converter to Parquet (one wide table, without some lines), where --xprof-python has XProf

Captures are made once by tpu_captures.py and kept in --folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
DECODE = """
import sys
from pathlib import Path
from ingest.readers.xplane import read_xplane
trace = read_xplane(Path(sys.argv[1]))
print(sum(len(b) for p in trace.planes for n in p.lines for b in trace.batches(p, n)))
"""
TABLES = """
import sys
from pathlib import Path
from ingest.pipeline import ingest_capture
from ingest.sources import find_captures
ingest_capture(find_captures(Path(sys.argv[1]))[0], Path(sys.argv[2]))
"""
PROTOBUF = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
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
print(count)
"""
XPROF = """
import sys
from xprof.convert.events_db.python import pywrap_events_db_c_api as events_db
options = events_db.ParquetExportOptions(compression_type=events_db.ArrowCompressionType.ZSTD, compression_level=3)
events_db.xspace_to_parquet(input_path=sys.argv[1], output_path=sys.argv[2] + "/events.parquet", options=options)
"""


@dataclass
class Timing:
    """Seconds, CPU seconds and peak megabytes of the rounds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)


def timed(python: str, code: str, capture: Path, into: Timing) -> None:
    """Run `code` in a new process; add its figures."""
    with tempfile.TemporaryDirectory() as out:
        arguments = [python, "-c", code, str(capture), out, str(HERE.parent)]
        begin = time.perf_counter()
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        into.wall.append(time.perf_counter() - begin)
        process.stderr.close()
    if process.returncode:
        raise SystemExit(f"{capture.name}: {errors.decode()[-2000:]}")
    into.cpu.append(usage.ru_utime + usage.ru_stime)
    into.peak.append(usage.ru_maxrss / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "tracewarehouse-bench")
    parser.add_argument("--xprof-python", default=shutil.which("xprof-python"), help="a Python that has XProf")
    parser.add_argument("--only", nargs="+", choices=("decode", "tables", "protobuf", "xprof"))
    options = parser.parse_args()

    ways = {"decode": (sys.executable, DECODE), "tables": (sys.executable, TABLES)}
    ways["protobuf"] = (sys.executable, PROTOBUF)
    if options.xprof_python:
        ways["xprof"] = (options.xprof_python, XPROF)
    ways = {name: way for name, way in ways.items() if not options.only or name in options.only}

    print(f"{'':10} {'way':9} {'seconds':>8} {'fastest':>8} {'CPU s':>7} {'peak MB':>8} {'times decode':>13}")
    for megabytes in options.megabytes:
        capture = options.folder / f"tpu-{megabytes}mb.xplane.pb"
        if not capture.exists():
            # not in this process: a child's peak memory counts its parent's at the time of the fork
            maker = [sys.executable, str(HERE / "tpu_captures.py"), str(capture), "--megabytes", str(megabytes)]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
        timings = {name: Timing() for name in ways}
        for _ in range(options.rounds):
            for name, (python, code) in ways.items():
                timed(python, code, capture, timings[name])
        for name, t in timings.items():
            wall = statistics.median(t.wall)
            ratio = f"{wall / statistics.median(timings['decode'].wall):.1f}" if "decode" in timings else ""
            figures = f"{wall:8.2f} {min(t.wall):8.2f} {statistics.median(t.cpu):7.2f} {max(t.peak):8.0f} {ratio:>13}"
            print(f"{megabytes:>7} MB {name:9} {figures}", flush=True)


if __name__ == "__main__":
    main()
