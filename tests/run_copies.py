"""Publishes copies of a run under other ids, so that a warehouse has many."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.parquet import parquet_writer


def publish_copy(source: Lake, run: RunVersion, lake: Lake, run_id: str, name: str) -> RunVersion:
    """Publish all rows of a run once more in a lake, under another id and name."""
    files = {t: [Path(f).name for f in names] for t, names in run.files.items()}
    copy = replace(run, run_id=run_id, name=name, files=files)
    with lake.stage(run_id, run.version) as staging:
        for path in (p for t in run.files for p in source.paths(run, t)):
            write_copy(path, staging / path.name, run_id)
        return lake.publish(staging, copy)


def write_copy(path: Path, target: Path, run_id: str) -> None:
    """Write the rows of a table's file as those of another run."""
    with pq.ParquetFile(path) as file, parquet_writer(target, file.schema_arrow) as writer:
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, use_threads=False)
            writer.write_table(rows.set_column(0, rows.field(0), pa.repeat(run_id, len(rows))))
