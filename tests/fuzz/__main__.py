"""Fuzz the readers of tracewarehouse against references and report what became of the inputs.

    python -m tests.fuzz --target all --inputs 1000000 --seed 1 --report fuzz.json
    python -m tests.fuzz --target chrome --seed 1 --first 1234 --inputs 1 --keep DIR    repeats input 1234

The exit code is 1 if an input failed: other rows than the reference's, an exception that is not ours, input taken that
is not legal, or more time or memory than its size allows; time is counted in multiples of a fixed piece of work that
the same process measures first. Inputs that fail are minimised and kept in --keep.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.judging import Failure, Report, Target, make, pace, run
from fuzz.targets import SHARES, TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=[*TARGETS, "all"], default="all")
    parser.add_argument("--inputs", type=int, default=10_000, help="how many; for `all` in all, shared out by cost")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, help="stop each target after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--traces", type=Path, help="folder of more captures to damage, beside data/captures")
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    parser.add_argument("--report", type=Path, help="write the report as JSON")
    options = parser.parse_args()

    names = list(TARGETS) if options.target == "all" else [options.target]
    found: dict[str, Any] = {}
    failed = 0
    for name in names:
        count = round(options.inputs * SHARES[name]) if options.target == "all" else options.inputs
        begin = time.monotonic()
        report = _run(name, count, options)
        took = time.monotonic() - begin
        failed += report.failed
        found[name] = _summary(report, options.seed, options.first, took)
        _print(name, report, took, options.seed)
        if options.keep:
            _keep(options.keep, name, options.seed, report)
        if options.report:  # after each target, so that an interrupted run leaves what it has
            about = {"command": "python -m tests.fuzz " + " ".join(sys.argv[1:]), "python": platform.python_version()}
            options.report.write_text(json.dumps(about | {"targets": found}, indent=1))
    return 1 if failed else 0


def _run(name: str, count: int, options: argparse.Namespace) -> Report:
    """Judge the inputs in processes of their own, so that a crash is a failure like another."""
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = []
    for job in range(options.jobs):
        now_at = context.Value("q", -1, lock=False)
        numbers = range(options.first + job, options.first + count, options.jobs)
        arguments = (name, options.seed, numbers, options.seconds, options.traces, now_at, results)
        worker = context.Process(target=_work, args=arguments)
        worker.start()
        workers.append((worker, now_at))
    report = Report()
    waiting = [w for w, _ in workers]
    while waiting:
        for worker in list(waiting):
            worker.join(0.2)
            while not results.empty():
                report.add(results.get())
            if worker.exitcode is not None:
                waiting.remove(worker)
    while not results.empty():
        report.add(results.get())
    for worker, now_at in workers:
        if worker.exitcode:
            target = TARGETS[name](options.traces)
            kind, data = make(target, options.seed, now_at.value)
            report.failed += 1
            report.counts[kind, "crash"] += 1
            why = f"the process ended with {worker.exitcode} (negative: a signal) at this input"
            report.failures.append(Failure(now_at.value, kind, why, data))
    return report


def _work(
    name: str, seed: int, numbers: range, seconds: float | None, traces: Path | None, now_at: Any, results: Any
) -> None:
    target: Target = TARGETS[name](traces)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + target.room,) * 2)
    results.put(run(target, seed, numbers, seconds=seconds, pace=pace(), now_at=now_at))


def _summary(report: Report, seed: int, first: int, took: float) -> dict[str, Any]:
    categories = sorted({category for _, category in report.counts})
    return {
        "inputs": report.inputs,
        "accepted": report.accepted,
        "refused": report.inputs - report.accepted,
        "failed": report.failed,
        "seed": seed,
        "first": first,
        "bytes": report.bytes,
        "wall_seconds": round(took, 1),
        "slowest": dict(zip(("cpu_seconds", "number", "bytes"), report.slowest, strict=True)),
        "most_memory": dict(zip(("bytes_allocated", "number", "bytes"), report.largest, strict=True)),
        "peak_rss_kb": report.peak_rss_kb,
        "categories": {c: sum(n for (_, k), n in report.counts.items() if k == c) for c in categories},
        "kinds": {k: sum(n for (kind, _), n in report.counts.items() if kind == k) for k, _ in sorted(report.counts)},
        "failures": [{"number": f.number, "kind": f.kind, "failure": f.failure} for f in report.failures],
    }


def _print(name: str, report: Report, took: float, seed: int) -> None:
    print(f"{name}: {report.inputs:,} inputs of seed {seed} in {took:.0f} s, {report.failed} failed")
    for category in sorted({category for _, category in report.counts}):
        print(f"  {sum(n for (_, c), n in report.counts.items() if c == category):>9,}  {category}")
    seconds, number, size = report.slowest
    print(f"  slowest {seconds:.3f} s of CPU (input {number}, {size} bytes)")
    peak, number, size = report.largest
    print(f"  most memory {peak / 2**20:.1f} MB (input {number}, {size} bytes); RSS {report.peak_rss_kb >> 10} MB")
    for f in report.failures:
        print(f"  FAILED input {f.number} ({f.kind}): {f.failure}\n    {f.data[:300]!r}")
    sys.stdout.flush()


def _keep(folder: Path, name: str, seed: int, report: Report) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for f in report.failures:
        (folder / f"{name}-{seed}-{f.number}{TARGETS[name].suffix}").write_bytes(f.data)


if __name__ == "__main__":
    sys.exit(main())
