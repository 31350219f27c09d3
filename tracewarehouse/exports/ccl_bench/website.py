"""Writes the tables of CCL-Bench's website for the exported rows alone, which needs no checkout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tracewarehouse.exports.ccl_bench.checkout import TRACE_ROOT, metadata
from tracewarehouse.exports.ccl_bench.parquet import write_parquet
from tracewarehouse.exports.ccl_bench.row import Row
from tracewarehouse.exports.ccl_bench.values import METRIC_INFO
from tracewarehouse.ingest.errors import TracewarehouseError


def write_website(rows: Sequence[Row], folder: Path, compatible: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write `website/benchmark_data.json` and `website/parquet` over the rows whose folders lie in a folder.

    Rows of earlier exports are kept from the file that is there, as long as their folders exist. Nothing changes if the
    rows have not changed.

    Args:
        rows: the rows that have just been written.
        folder: the folder that holds their folders.
        compatible: the entries of CCL-Bench's metrics, by name.

    Returns:
        The folder of the tables.

    Raises:
        TracewarehouseError: the file there is not from an export, or cannot be written.
    """
    data = folder / "website" / "benchmark_data.json"
    try:
        before = json.loads(data.read_text(encoding="utf-8")) if data.exists() else {"rows": []}
        entries = {row["trace"]: row for row in before["rows"] if (folder / _name(row)).is_dir()}
        for row in rows:
            trace = f"{TRACE_ROOT}/{row.name}"
            entries[trace] = {"trace": trace, "metadata": metadata(row), "metrics": row.values}
        metrics = sorted({name for entry in entries.values() for name in entry["metrics"]})
        published = {
            "generated_at": before.get("generated_at"),
            "all_metrics": metrics,
            "metric_categories": [{"id": "communication", "label": "Communication"}],
            "metric_info": {name: METRIC_INFO.get(name) or dict(compatible[name]) for name in metrics},
            "rows": [
                entry | {"metrics": {name: entry["metrics"].get(name) for name in metrics}}
                for entry in entries.values()
            ],
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TracewarehouseError(
            f"{data}: not the published data of an earlier export ({error!r}); remove it, or export to another folder"
        ) from None
    except OSError as error:
        raise TracewarehouseError(f"{data}: cannot be read: {error.strerror or error}") from None
    try:
        if published != before:
            published["generated_at"] = datetime.now(UTC).isoformat()
            data.parent.mkdir(parents=True, exist_ok=True)
            data.write_text(json.dumps(published, indent=2), encoding="utf-8")
        write_parquet(published, data.parent / "parquet")
    except OSError as error:
        raise TracewarehouseError(f"{data.parent}: cannot be written: {error.strerror or error}") from None
    return data.parent / "parquet"


def _name(row: Mapping[str, Any]) -> str:
    return str(row["trace"]).rpartition("/")[2]
