"""Finds out from a Parquet file's footer whether the file belongs to a run."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def is_file_of(run_id: str, path: Path) -> bool:
    """Return whether a file is one of a run's tables: its footer names the run, and the same table as the file name."""
    try:
        with pq.ParquetFile(path) as file:
            table = (file.schema_arrow.metadata or {}).get(b"table", b"").decode(errors="replace")
            return re.split("[-.]", path.name)[0] == table and _run_of(file) == run_id
    except (OSError, pa.ArrowException):
        return False


def _run_of(file: pq.ParquetFile) -> str | None:
    """Return the only run of a file's rows; None if the file names no run or several."""
    if "run_id" not in file.schema_arrow.names or not file.num_row_groups:
        return None
    at = file.schema_arrow.names.index("run_id")
    groups = [file.metadata.row_group(i).column(at).statistics for i in range(file.num_row_groups)]
    named = {run for s in groups for run in ((s.min, s.max) if s and s.has_min_max else (None,))}
    return named.pop() if len(named) == 1 else None
