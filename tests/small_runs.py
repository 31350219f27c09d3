"""Publishes runs of one tiny file each, for tests of the lake alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION


def table_file(run_id: str | None = "r1", name: str = "x", table: str = "ops") -> bytes:
    """A file of a table that names its run, if one is given, and holds one name."""
    columns = {"run_id": [run_id]} if run_id else {}
    found = pa.BufferOutputStream()
    rows = pa.table(columns | {"name": [name]}).replace_schema_metadata({"table": table})
    pq.write_table(rows, found)
    return bytes(found.getvalue())


def version(run_id: str = "r1", number: str = "1") -> RunVersion:
    return RunVersion(run_id, f"v{number}", "name", SCHEMA_VERSION, "1", "digest", {"ops": ["ops.parquet"]}, {"ops": 1})


def publish(lake: Lake, run: RunVersion, content: str = "x") -> RunVersion:
    with lake.stage(run.run_id, run.version) as folder:
        (folder / "ops.parquet").write_bytes(table_file(run.run_id, content))
        return lake.publish(folder, run)


def said(path: Path) -> str:
    """The name that a file of `publish` holds."""
    [name] = pq.ParquetFile(path).read(["name"]).column("name").to_pylist()
    return str(name)
