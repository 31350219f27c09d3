"""Makes a warehouse of many runs within minutes, to see what many runs cost.

    python tests/benchmarks/many_runs.py WAREHOUSE --runs 10000

The runs are those of the captures in data/captures, each also with all its times 2, 3 and 5 times as long, and every
tenth is one of a generated TPU capture (`tpu_captures.py`) of 1 to 5.5 MB. All are ingested or evaluated once, with
metric values. A run of the warehouse has the bytes of one of these with another run id and name in them: both have a
fixed length and stand in the files as they are. Nothing is synced to disk.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from tracewarehouse.evaluation.evaluator import Evaluator, refresh
from tracewarehouse.ingest.lake.lake import Lake, RunVersion, manifest_text
from tracewarehouse.warehouse import open_warehouse

HERE = Path(__file__).resolve().parent
CAPTURES = HERE.parents[1] / "data" / "captures"
STRETCHED = (2, 3, 5)
MEGABYTES = (1.0, 2.0, 3.0, 5.5)
EVERY = 10
"""One of so many runs is a generated one."""
RUN_ID, NAME = b"r0123456789ab", b"a-name-of-so-many-letters"
"""What the files of a pattern hold in the place of the run's."""


@dataclass(frozen=True)
class Pattern:
    """A run to be written many times: its manifest, and the bytes of its files by name, with `RUN_ID` and `NAME`."""

    run: RunVersion
    files: dict[str, bytes]

    def write(self, warehouse: Path, number: int) -> RunVersion:
        """Write it as the run of a number into a warehouse."""
        run_id = f"r{hashlib.sha256(str(number).encode()).hexdigest()[:12]}"
        name = f"{self.run.name[: len(NAME) - 8]:-<{len(NAME) - 8}}-{number:07}"
        folder = Path("lake") / run_id / self.run.version
        (warehouse / folder).mkdir(parents=True)
        digests = {}
        for file, pattern in self.files.items():
            content = pattern.replace(RUN_ID, run_id.encode()).replace(NAME, name.encode())
            (warehouse / folder / file).write_bytes(content)
            digests[str(folder / file)] = hashlib.sha256(content).hexdigest()
        files = {t: [str(folder / f) for f in named] for t, named in self.run.files.items()}
        run = replace(self.run, run_id=run_id, name=name, files=files, digests=digests)
        (warehouse / "manifests" / f"{run_id}.json").write_text(manifest_text(run))
        return run


def patterns(
    *, generated: bool = True, stretched: Sequence[int] = STRETCHED, ingested: Path | None = None
) -> tuple[list[Pattern], list[Pattern]]:
    """The patterns of captures of data/, and those of generated ones.

    Args:
        generated: whether to generate captures.
        stretched: how many times as long the times of the captures of data/ are, each beside the captures as they are.
        ingested: a warehouse that has the captures of data/ and nothing else; by default they are ingested.
    """
    with tempfile.TemporaryDirectory() as folder:
        if ingested is not None:
            shutil.copytree(ingested, Path(folder) / "w")
        return _patterns(Path(folder), stretched, is_generating=generated)


def _patterns(folder: Path, stretched: Sequence[int], *, is_generating: bool) -> tuple[list[Pattern], list[Pattern]]:
    with open_warehouse(folder / "w", create=True) as warehouse:
        real = warehouse.lake.runs() or [r.entry for r in warehouse.ingest(CAPTURES)]
        made = []
        for megabytes in MEGABYTES if is_generating else ():
            capture = folder / f"tpu-{megabytes}mb.xplane.pb"
            maker = [sys.executable, str(HERE / "tpu_captures.py"), str(capture), "--megabytes", str(megabytes)]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            made += [r.entry for r in warehouse.ingest(capture, mesh="tp=8")]
        lake, evaluator = warehouse.lake, Evaluator(warehouse.definitions)
        longer = [_stretched(lake, run, evaluator, by) for run in real for by in stretched]
        return [pattern(lake, r) for r in (*real, *longer)], [pattern(lake, r) for r in made]


def write(
    warehouse: Path, real: Sequence[Pattern], generated: Sequence[Pattern], runs: int, first: int = 0
) -> list[RunVersion]:
    """Write so many runs of these patterns into a new warehouse, or into one that has the runs below `first`."""
    for folder in ("lake", "manifests"):
        (warehouse / folder).mkdir(parents=True, exist_ok=True)
    return [
        (generated[n // EVERY % len(generated)] if n % EVERY == 0 else real[n % len(real)]).write(warehouse, n)
        for n in range(first, first + runs)
    ]


def _stretched(lake: Lake, run: RunVersion, evaluator: Evaluator, by: int) -> RunVersion:
    """Publish a run whose times are `by` times as long."""
    run_id = f"{run.run_id}x{by}"
    kept = {t: [Path(f).name for f in files] for t, files in run.files.items() if t != "metric_values"}
    with lake.stage(run_id, run.version) as staging:
        for path in (p for t in kept for p in lake.paths(run, t)):
            rows = pq.ParquetFile(path).read()
            for at, field in enumerate(rows.schema):
                if field.name.endswith("_ps"):
                    rows = rows.set_column(at, field, pc.multiply(rows.column(at), pa.scalar(by, field.type)))
            pq.write_table(_named(rows, run_id, run.name), staging / path.name)
        placed = lake.publish(staging, replace(run, run_id=run_id, files=kept, metrics_fingerprint=None))
    evaluated = refresh(lake, placed, evaluator)
    assert evaluated
    return evaluated


def pattern(lake: Lake, run: RunVersion) -> Pattern:
    """A run as a pattern."""
    contents = {}
    for path in (p for t in run.files for p in lake.paths(run, t)):
        rows = _named(pq.ParquetFile(path).read(), RUN_ID.decode(), NAME.decode())
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")  # without checksums of pages, which a change would break
        contents[path.name] = content = sink.getvalue().to_pybytes()
        other = pa.py_buffer(content.replace(RUN_ID, RUN_ID[::-1]).replace(NAME, NAME[::-1]))
        expected = _named(rows, RUN_ID[::-1].decode(), NAME[::-1].decode())
        assert pq.read_table(other).equals(expected), f"{path}: its run cannot be replaced in the bytes"
    files = {t: [Path(f).name for f in named] for t, named in run.files.items()}
    return Pattern(replace(run, files=files), contents)


def _named(rows: pa.Table, run_id: str, name: str) -> pa.Table:
    """The rows as those of a run with this id, and in main.runs with this name."""
    for column, value in (("run_id", run_id), ("name", name)):
        is_of_run = (rows.schema.metadata or {}).get(b"table") == b"runs"
        if column == "run_id" or is_of_run:
            at = rows.schema.get_field_index(column)
            constant = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(rows)), [value])
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, constant.cast(field.type))
    return rows


def main() -> None:
    """Make a warehouse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("warehouse", type=Path)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to add runs to a warehouse")
    options = parser.parse_args()
    made = write(options.warehouse, *patterns(), options.runs, options.first)
    size = sum(f.stat().st_size for f in options.warehouse.rglob("*.parquet"))
    print(f"{len(made):,} runs, {sum(r.rows.get('ops', 0) for r in made):,} ops, {size / 1e9:.2f} GB of Parquet")


if __name__ == "__main__":
    main()
