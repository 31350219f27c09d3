"""Turns columns of query results into arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracewarehouse.exports.perfetto.lanes import Int64


def integers(table: pa.Table, column: str) -> Int64:
    """A column of integers without NULL."""
    values: Int64 = table.column(column).to_numpy().astype(np.int64, copy=False)
    return values


def optional(table: pa.Table, column: str) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """A column of integers, with 0 for NULL, and a mask that is true where it is NULL."""
    values = table.column(column)
    filled: Int64 = pc.fill_null(values, 0).to_numpy().astype(np.int64, copy=False)
    return filled, np.array(values.is_null().to_numpy(), bool)


def coded(column: pa.ChunkedArray) -> tuple[list[str], pa.Array]:
    """The distinct texts of a column, and for each row the index of its text; NULL for none."""
    found = pc.dictionary_encode(column.cast(pa.string())).combine_chunks()
    if isinstance(found, pa.ChunkedArray):  # a column without rows
        found = pa.array([], pa.string()).dictionary_encode()
    return found.dictionary.to_pylist(), found.indices.cast(pa.int64())
