"""Gives CCL-Bench's tools the values of rows that tracewarehouse exported.

CCL-Bench may take this file as it is (Apache-2.0). It needs DuckDB, which is in CCL-Bench's requirements, and nothing
else of tracewarehouse. `metric_cal(directory, metric)` returns the value under its published name, or None.
"""

from __future__ import annotations

import sys
from pathlib import Path

VALUES = "metric_values.parquet"


def metric_cal(directory: str, metric: str) -> float | None:
    """Return a published value of the row in a folder; None if it has none of that name."""
    import duckdb

    file = Path(directory) / VALUES
    if not file.is_file():
        return None
    query = "SELECT value FROM read_parquet(?, hive_partitioning = false) WHERE published_as = ?"
    rows = duckdb.connect().execute(query, [str(file), metric]).fetchall()
    return float(rows[0][0]) if rows else None


if __name__ == "__main__":
    print(metric_cal(*sys.argv[1:]))
