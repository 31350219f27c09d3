"""Makes a warehouse of many runs within minutes, to see what many runs cost.

    python tests/benchmarks/many_runs.py WAREHOUSE --runs 10000

The runs are those of the captures in data/captures, each also with all its times 2, 3 and 5 times as long, and every
tenth is one of a generated TPU capture (`tpu_captures.py`) of 1 to 5.5 MB. All are ingested or evaluated once, with
metric values. A run of the warehouse has the bytes of one of these with another run id, name and digest in them: these
have a fixed length and stand in the files as they are. Nothing is synced to disk.
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
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from tracewarehouse.evaluation.evaluator import Evaluator, refresh
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, derived_run_id, manifest_text, run_digest
from tracewarehouse.warehouse import open_warehouse

HERE = Path(__file__).resolve().parent
CAPTURES = HERE.parents[1] / "data" / "captures"
STRETCHED = (2, 3, 5)
MEGABYTES = (1.0, 2.0, 3.0, 5.5)
EVERY = 10
"""One of so many runs is a generated one."""


class Identity(NamedTuple):
    """What is a run's own in its files; every field has as many bytes in all runs."""

    run_id: str
    name: str
    source_digest: str
    host_digest: str

    def put(self, content: bytes, instead_of: Identity) -> bytes:
        """The content with this identity."""
        for own, other in zip(self, instead_of, strict=True):
            content = content.replace(other.encode(), own.encode())
        return content


OF_PATTERN = Identity("r0123456789ab", "a-name-of-so-many-letters", "0123" * 16, "4567" * 16)
"""What the files of a pattern hold in the place of a run's."""
COLUMNS = {"runs": ("run_id", "name", "source_digest", None), "hosts": ("run_id", None, None, "digest")}
"""The columns that hold an identity, by table; other tables hold the run's id alone."""


@dataclass(frozen=True)
class Pattern:
    """A run to be written many times: its manifest, and the bytes of its files by name, with `OF_PATTERN` in them."""

    run: RunVersion
    files: dict[str, bytes]

    def write(self, warehouse: Path, number: int) -> RunVersion:
        """Write it as the run of a number into a warehouse."""
        of_host = hashlib.sha256(str(number).encode()).hexdigest()
        source = run_digest([of_host] * self.run.rows["hosts"])
        length = len(OF_PATTERN.name) - 8
        run_id, name = derived_run_id(source), f"{self.run.name[:length]:-<{length}}-{number:07}"
        identity = Identity(run_id, name, source, of_host)
        folder = Path("lake") / run_id / self.run.version
        (warehouse / folder).mkdir(parents=True)
        digests = {}
        for file, pattern in self.files.items():
            content = identity.put(pattern, OF_PATTERN)
            (warehouse / folder / file).write_bytes(content)
            digests[str(folder / file)] = hashlib.sha256(content).hexdigest()
        files = {t: [str(folder / f) for f in named] for t, named in self.run.files.items()}
        run = replace(self.run, run_id=run_id, name=name, source_digest=source, files=files, digests=digests)
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
        lake, evaluator = warehouse.lake, Evaluator(lambda: warehouse.definitions)
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
            pq.write_table(_constant(rows, "run_id", run_id), staging / path.name)
        placed = lake.publish(staging, replace(run, run_id=run_id, files=kept, metrics_fingerprint=None))
    evaluated = refresh(lake, placed, evaluator)
    assert evaluated
    return evaluated


def pattern(lake: Lake, run: RunVersion) -> Pattern:
    """A run as a pattern."""
    contents = {}
    other = Identity(*(text[::-1] for text in OF_PATTERN))
    for table, path in ((t, p) for t in run.files for p in lake.paths(run, t)):
        rows = _identified(pq.ParquetFile(path).read(), table, OF_PATTERN)
        sink = pa.BufferOutputStream()
        # no checksums of pages, which a change would break; compression takes digests apart
        pq.write_table(rows, sink, compression="none" if table in COLUMNS else "zstd")
        contents[path.name] = content = sink.getvalue().to_pybytes()
        changed = pq.read_table(pa.py_buffer(other.put(content, OF_PATTERN)))
        assert changed.equals(_identified(rows, table, other)), f"{path}: its run cannot be replaced in the bytes"
    files = {t: [Path(f).name for f in named] for t, named in run.files.items()}
    return Pattern(replace(run, files=files), contents)


def _identified(rows: pa.Table, table: str, identity: Identity) -> pa.Table:
    """The rows of a table as those of a run with this identity."""
    for column, value in zip(COLUMNS.get(table, ("run_id", None, None, None)), identity, strict=True):
        if column:
            rows = _constant(rows, column, value)
    return rows


def _constant(rows: pa.Table, column: str, value: str) -> pa.Table:
    at = rows.schema.get_field_index(column)
    constant = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), len(rows)), [value])
    field = rows.schema.field(at)
    return rows.set_column(at, field, constant.cast(field.type))


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
