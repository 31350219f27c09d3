"""Writes published rows as Parquet, in the tables and columns that CCL-Bench's pull request 51 proposes for SQL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_LISTS = {
    "comm_env": "comm_env_json",
    "protocol_selection": "protocol_selection_json",
    "trace_types": "trace_types_json",
    "metric_traces": "metric_traces_json",
}
"""Columns that hold JSON."""
_COUNTS = frozenset(
    {
        "epochs", "iteration", "batch_size", "seq_len", "input_len", "output_len", "total_count", "count_per_node",
        "tp", "pp", "pp_mb", "dp_replicate", "dp_shard", "ep", "cp",
    }
)  # fmt: skip


def write_parquet(published: dict[str, Any], folder: Path) -> list[Path]:
    """Write metadata, metrics, metric_info, metric_categories and run_info; returns the files whose rows changed.

    Args:
        published: the content of website/benchmark_data.json.
        folder: the folder of the files.

    Raises:
        OSError: a file cannot be written.
    """
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    changed = []
    for name, table in _tables(published).items():
        path = folder / f"{name}.parquet"
        if not path.exists() or not pq.read_table(path).equals(table):
            pq.write_table(table, path, compression="zstd")
            changed.append(path)
    return changed


def _tables(published: dict[str, Any]) -> dict[str, pa.Table]:
    import pyarrow as pa

    rows = published["rows"]
    names = list(dict.fromkeys(name for row in rows for name in row["metadata"]))
    metadata: dict[str, Any] = {
        "row_id": pa.array(range(1, len(rows) + 1), pa.int64()),
        "trace": pa.array([r["trace"] for r in rows], pa.string()),
    }
    for name in names:
        values = [row["metadata"].get(name) for row in rows]
        if name in _LISTS:
            metadata[_LISTS[name]] = pa.array([json.dumps(v) for v in values], pa.string())
        elif name in _COUNTS:
            metadata[name] = pa.array(_only(values, lambda v: type(v) is int), pa.int64())
        elif name.startswith("bandwidth_"):
            metadata[name] = pa.array(_only(values, lambda v: type(v) in (int, float)), pa.float64())
        elif name == "moe":
            metadata[name] = pa.array(_only(values, lambda v: type(v) is bool), pa.bool_())
        else:
            metadata[name] = pa.array([None if v in (None, "") else str(v) for v in values], pa.string())
    values = [(i, name, value) for i, row in enumerate(rows, 1) for name, value in row["metrics"].items()]
    is_number = [isinstance(v, int | float) and not isinstance(v, bool) for _, _, v in values]
    metrics = {
        "row_id": pa.array([i for i, _, _ in values], pa.int64()),
        "metric_name": pa.array([n for _, n, _ in values], pa.string()),
        "metric_value_num": pa.array(
            [v if n else None for (_, _, v), n in zip(values, is_number, strict=True)], pa.float64()
        ),
        "metric_value_text": pa.array(
            [None if n or v is None else str(v) for (_, _, v), n in zip(values, is_number, strict=True)], pa.string()
        ),
    }
    info = published["metric_info"]
    metric_info = {
        "metric_name": pa.array(info, pa.string()),
        **{k: pa.array([i.get(k) for i in info.values()], pa.string()) for k in ("label", "category", "unit")},
        "higher_is_better": pa.array([i.get("higher_is_better") for i in info.values()], pa.bool_()),
        "description": pa.array([i.get("description") for i in info.values()], pa.string()),
        "trace_types_json": pa.array([json.dumps(i.get("trace_types", [])) for i in info.values()], pa.string()),
        "phases_json": pa.array([json.dumps(i.get("phases", [])) for i in info.values()], pa.string()),
    }
    categories = published["metric_categories"]
    metric_categories = {
        "category_id": pa.array([c["id"] for c in categories], pa.string()),
        "label": pa.array([c["label"] for c in categories], pa.string()),
        "sort_order": pa.array(range(len(categories)), pa.int64()),
    }
    run_info = {
        "key": pa.array(["generated_at", "row_count"], pa.string()),
        "value": pa.array([str(published["generated_at"]), str(len(rows))], pa.string()),
    }
    return {
        "metadata": pa.table(metadata),
        "metrics": pa.table(metrics),
        "metric_info": pa.table(metric_info),
        "metric_categories": pa.table(metric_categories),
        "run_info": pa.table(run_info),
    }


def _only(values: list[Any], is_kind: Callable[[Any], bool]) -> list[Any]:
    """The values, with NULL for those that are not of a kind, such as N/A or several batch sizes."""
    return [v if is_kind(v) else None for v in values]
