"""Writes stats that have no column of their own as rows of the stats tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int64, Stat, StatColumn, StatKind
from tracewarehouse.ingest.lake.parquet import Coded, Nullable, TableWriter

_INT64_END = 1 << 63
_KIND_NAME = ["", "", *(k.name.lower() for k in StatKind)]


def write_event_stats(writer: TableWriter, event_ids: Int64, columns: Iterable[StatColumn]) -> None:
    """Append the stats of a batch whose events have the ids `event_ids`."""
    for column in columns:
        kinds = np.flatnonzero(np.bincount(column.kinds)).tolist()
        for kind in kinds:
            at = np.flatnonzero(column.kinds == kind) if len(kinds) > 1 else slice(None)
            ids = event_ids[column.rows[at]]
            base = {"event_id": ids, "name": column.name, "kind": _KIND_NAME[kind]}
            writer.write(len(ids), base | _values(kind, column.bits[at], column))


COSTS = ("flops", "model_flops", "bytes_accessed")
"""Stats that say what an op costs; of the events on a line of ops they are columns of main.ops too."""


def write_instruction_stats(writer: TableWriter, stats_of: Sequence[Sequence[Stat]]) -> None:
    """Append the stats of instructions; `stats_of` has those of each in the order of their numbers."""
    stats = [stat for one in stats_of for stat in one]
    counts = [len(one) for one in stats_of]
    instruction_id = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    writer.write(len(stats), {"instruction_id": instruction_id, **_columns(stats)})


def unheld(column: StatColumn, is_held: npt.NDArray[np.bool_]) -> StatColumn:
    """Return the values that need rows: those that nothing else holds; if an event repeats a name, all but the last."""
    is_last = np.append(column.rows[1:] != column.rows[:-1], True)
    at = np.flatnonzero(~(is_held & is_last))
    return StatColumn(column.name, column.rows[at], column.kinds[at], column.bits[at], column.texts)


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
            "int_value": Nullable(bits.view(np.int64), ~is_wide),
            "string_value": [str(b) if w else None for b, w in zip(bits.tolist(), is_wide.tolist(), strict=True)],
        }
    if kind == StatKind.BYTES:
        return {"bytes_value": [column.texts[i] for i in bits.tolist()]}
    codes = bits.view(np.int64)
    used = np.flatnonzero(np.bincount(codes))
    place = np.empty(len(column.texts), np.int32)
    place[used] = np.arange(len(used))
    return {"string_value": Coded(place[codes], [column.texts[i].decode("utf-8", "replace") for i in used.tolist()])}


def _columns(stats: Sequence[Stat]) -> dict[str, list[Any]]:
    """Many stats of metadata as columns for name, kind and values; value columns without a value are left out."""
    columns: dict[str, list[Any]] = {"name": [s.name for s in stats], "kind": [_KIND_NAME[s.kind] for s in stats]}
    for i, stat in enumerate(stats):
        column, value = _value(stat.value)
        if column not in columns:
            columns[column] = [None] * len(stats)
        columns[column][i] = value
    return columns


def stat_row(stat: Stat) -> dict[str, Any]:
    """One stat of a plane or of metadata, as columns for name, kind and value."""
    column, value = _value(stat.value)
    return {"name": stat.name, "kind": _KIND_NAME[stat.kind], column: value}


def _value(value: float | int | str | bytes) -> tuple[str, float | int | str | bytes]:
    """A stat's value, and the column that holds it."""
    if isinstance(value, str):
        return "string_value", value
    if isinstance(value, bytes):
        return "bytes_value", value
    if isinstance(value, float):
        return "double_value", value
    return ("int_value", value) if -_INT64_END <= value < _INT64_END else ("string_value", str(value))
