"""Stats without a column of their own, as rows of the stats tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ingest.parquet import Coded, TableWriter
from ingest.records import Int64, Stat, StatColumn, StatKind

_INT64_END = 1 << 63


def write_event_stats(
    writer: TableWriter, event_ids: Int64, columns: Iterable[StatColumn], own: frozenset[str]
) -> None:
    """Append the stats of a batch whose events have the ids `event_ids`, but for the names in `own`."""
    for column in columns:
        if column.name in own:
            continue
        for kind in np.unique(column.kinds).tolist():
            at = np.flatnonzero(column.kinds == kind)
            base = {"event_id": event_ids[column.rows[at]], "name": column.name, "kind": StatKind(kind).name.lower()}
            writer.write(len(at), base | _values(kind, column.bits[at], column))


def _values(kind: int, bits: np.ndarray[Any, np.dtype[np.uint64]], column: StatColumn) -> dict[str, Any]:
    if kind == StatKind.DOUBLE:
        return {"double_value": bits.view(np.float64)}
    if kind == StatKind.INT64:
        return {"int_value": bits.view(np.int64)}
    if kind == StatKind.UINT64:
        is_wide = bits >= np.uint64(_INT64_END)
        if not is_wide.any():
            return {"int_value": bits.view(np.int64)}
        return {
            "int_value": np.ma.masked_array(bits.view(np.int64), is_wide),
            "string_value": [str(b) if w else None for b, w in zip(bits.tolist(), is_wide.tolist(), strict=True)],
        }
    if kind == StatKind.BYTES:
        return {"bytes_value": [column.texts[i] for i in bits.tolist()]}
    used, codes = np.unique(bits, return_inverse=True)
    return {"string_value": Coded(codes, [column.texts[i].decode("utf-8", "replace") for i in used.tolist()])}


def stat_row(stat: Stat) -> Mapping[str, Any]:
    """One stat of a plane or of metadata as name, kind and value columns."""
    row: dict[str, Any] = {"name": stat.name, "kind": stat.kind.name.lower()}
    value = stat.value
    if isinstance(value, bytes):
        row["bytes_value"] = value
    elif isinstance(value, str):
        row["string_value"] = value
    elif isinstance(value, float):
        row["double_value"] = value
    elif -_INT64_END <= value < _INT64_END:
        row["int_value"] = value
    else:
        row["string_value"] = str(value)
    return row
