"""Fuzz the xplane reader against protobuf's own parser and print what became of the inputs.

    python tests/fuzz/fuzz_xplane.py --runs 1000000 --seed 1
    python tests/fuzz/fuzz_xplane.py --seed 1 --first 1234 --runs 1 --keep DIR    repeats input 1234

The exit code is 1 if any input gave other rows than protobuf, an exception that is not ours, or was taken although
protobuf refuses it. Inputs that fail are kept in --keep.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.xplane_mutations import MUTATIONS, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000, help="how many inputs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--corpus", type=Path, nargs="*", default=[], help="captures to damage, besides random ones")
    parser.add_argument("--keep", type=Path, help="folder for inputs that fail")
    options = parser.parse_args()

    begin = time.perf_counter()
    corpus = [path.read_bytes() for path in options.corpus]
    report = run(options.seed, options.first, options.runs, corpus=corpus, seconds=options.seconds)
    took = time.perf_counter() - begin

    categories = sorted({category for _, category in report.counts})
    width = max(map(len, categories), default=0)
    print(" " * width, *(f"{m:>11}" for m in (*MUTATIONS, "all")))
    for category in categories:
        row = [report.counts[m, category] for m in MUTATIONS]
        print(f"{category:{width}}", *(f"{n or '':>11}" for n in (*row, sum(row))))
    slowest, number = report.slowest
    print(
        f"{report.inputs:,} inputs of seed {options.seed} from {options.first} on in {took:.0f} s; "
        f"slowest {slowest:.2f} s (input {number}); peak memory {report.peak_kb / 1024:.0f} MB"
    )
    for number, mutation, failure, data in report.failures[:20]:
        print(f"FAILED input {number} ({mutation}): {failure}")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{options.seed}-{number}.xplane.pb").write_bytes(data)
    print(f"{len(report.failures)} failures")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
