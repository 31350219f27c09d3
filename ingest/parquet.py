"""Writes one table of a run as zstd Parquet, in row groups, with the types and comments of the schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ingest.schema import Table

ROW_GROUP = 1 << 18
_STATISTICS = {"device_id", "start_ps", "event_id", "instruction_id", "step", "phase", "line"}


class Coded:
    """Text as codes into distinct values; a negative code is NULL."""

    def __init__(self, codes: Any, values: Iterable[str | None]) -> None:
        self.codes = np.asarray(codes, np.int32)
        self.values = list(values)


class TableWriter:
    """Appends columns to a table's file; the file is made with the first row and complete after `close`."""

    def __init__(self, folder: Path, table: Table) -> None:
        self.path = folder / f"{table.name}.parquet"
        self.table = table
        self.rows = 0
        self._schema = pa.schema(
            [f.with_type(pa.dictionary(pa.int32(), f.type)) if f.type == pa.string() else f for f in table.arrow],
            metadata=table.arrow.metadata,
        )
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, count: int, columns: Mapping[str, Any]) -> None:
        """Append `count` rows.

        A column is a numpy array, an Arrow array, a list, `Coded` text, or one value for all rows; a column
        that is not given is NULL.

        Raises:
            KeyError: the table has no such column.
        """
        if not count:
            return
        unknown = columns.keys() - {f.name for f in self._schema}
        if unknown:
            raise KeyError(f"table {self.table.name} has no column {', '.join(sorted(unknown))}")
        arrays = [_column(columns.get(f.name), f.type, count) for f in self._schema]
        self._pending.append(pa.Table.from_arrays(arrays, schema=self._schema))
        self._pending_rows += count
        self.rows += count
        while self._pending_rows >= ROW_GROUP:
            self._flush()

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows given as mappings; for the small tables."""
        found = list(rows)
        names = {n for r in found for n in r}
        self.write(len(found), {n: [r.get(n) for r in found] for n in names})

    def close(self) -> None:
        """Write what is left. A table without rows has no file."""
        if self._pending_rows:
            self._flush()
        if self._writer:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._writer:
            self._writer.close()

    def _flush(self) -> None:
        whole = pa.concat_tables(self._pending)
        group, rest = whole.slice(0, ROW_GROUP), whole.slice(ROW_GROUP)
        if self._writer is None:
            text = [f.name for f in self._schema if pa.types.is_dictionary(f.type)]
            encodings = {f.name: "DELTA_BINARY_PACKED" for f in self._schema if pa.types.is_integer(f.type)}
            encodings |= {f.name: "BYTE_STREAM_SPLIT" for f in self._schema if pa.types.is_floating(f.type)}
            self._writer = pq.ParquetWriter(
                self.path,
                self._schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=text,
                column_encoding=encodings,  # what DuckDB 1.5 reads; byte-stream-split integers it does not
                write_statistics=[f.name for f in self._schema if f.name in _STATISTICS],
            )
        self._writer.write_table(group.unify_dictionaries(), row_group_size=ROW_GROUP)
        self._pending = [rest] if len(rest) else []
        self._pending_rows = len(rest)


def _column(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    if isinstance(value, Coded):
        codes = pa.array(value.codes, mask=value.codes < 0)
        return pa.DictionaryArray.from_arrays(codes, pa.array(value.values, pa.string()))
    if value is None:
        return pa.nulls(count, kind)
    if isinstance(value, np.ma.MaskedArray):
        return pa.array(value.data, kind, mask=np.ma.getmaskarray(value))
    if isinstance(value, np.ndarray | pa.Array | list):
        if pa.types.is_dictionary(kind):
            return pa.array(value, pa.string()).dictionary_encode()
        return pa.array(value, kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([value], pa.string()))
    return pa.repeat(pa.scalar(value, kind), count)
