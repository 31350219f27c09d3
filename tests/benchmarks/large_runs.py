"""Makes a warehouse of runs of a million ops each, to see what large runs cost.

    python tests/benchmarks/large_runs.py WAREHOUSE --runs 50

The first runs are the captures of data/captures, which are small but have phases, layers and requests. The others are
generated TPU captures (`tpu_captures.py`) of 79 MB and 1.1 million ops on 8 devices. `SEEDS` different ones are made
and ingested, with meshes that alternate; each is then written several times under ids of its own, as in `many_runs.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from many_runs import CAPTURES, HERE, Pattern, pattern

from tracewarehouse.warehouse import open_warehouse

MESHES = ("tp=8", "dp=2,tp=4", "pp=2,tp=4", "ep=8")
SEEDS = 11


def patterns(folder: Path, megabytes: float = 79, seeds: int = SEEDS) -> list[Pattern]:
    """Ingest generated captures of so many seeds into a warehouse, and return its runs as patterns."""
    with open_warehouse(folder, create=True) as warehouse:
        for seed in range(1, seeds + 1):
            capture = folder.parent / f"generated-{seed:03}.xplane.pb"
            maker = [sys.executable, str(HERE / "tpu_captures.py"), str(capture), "--seed", str(seed)]
            subprocess.run([*maker, "--megabytes", str(megabytes)], check=True, stdout=subprocess.DEVNULL)
            warehouse.ingest(capture, mesh=MESHES[seed % len(MESHES)])
            capture.unlink()
        return [pattern(warehouse.lake, r) for r in warehouse.lake.runs()]


def main() -> None:
    """Make a warehouse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    with open_warehouse(options.warehouse, create=True) as warehouse, tempfile.TemporaryDirectory() as place:
        wanted = max(0, options.runs - len(warehouse.ingest(CAPTURES)))
        made = patterns(Path(place) / "generated", seeds=min(SEEDS, wanted))
        for number in range(wanted):
            made[number % len(made)].write(options.warehouse, number)
        runs = warehouse.lake.runs()
    size = sum(f.stat().st_size for f in options.warehouse.rglob("*.parquet"))
    print(f"{len(runs):,} runs, {sum(r.rows.get('ops', 0) for r in runs):,} ops, {size / 1e9:.2f} GB of Parquet")


if __name__ == "__main__":
    main()
