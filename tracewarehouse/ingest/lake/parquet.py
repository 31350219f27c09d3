"""Writes one table of a run as zstd Parquet, in row groups, with the types and comments of the schema."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

# This registers Arrow's functions; later, that would race with a thread that looks one up. The public module does it
# too, but takes five times as long, for wrappers that nothing here calls.
import pyarrow._compute
import pyarrow.parquet as pq

from tracewarehouse.ingest.lake.schema import Table

ROW_GROUP = 1 << 17
"""Rows after which a row group is written; the last call may add more rows to it."""
_STATISTICS = {"run_id", "device_id", "start_ps", "event_id", "instruction_id", "step", "phase", "line"}


class Coded:
    """Text stored as codes that index into values; a negative code is NULL."""

    def __init__(self, codes: Any, values: Iterable[str | None]) -> None:
        self.codes = np.asarray(codes, np.int32)
        self.values = list(values)


@dataclass(frozen=True)
class Nullable:
    """Numbers, and whether each is known; both have shape (n,)."""

    values: npt.NDArray[Any]
    is_known: npt.NDArray[np.bool_]

    @classmethod
    def from_zero(cls, values: npt.NDArray[Any]) -> Nullable:
        """Return numbers; negative ones become NULL."""
        return cls(values, values >= 0)

    @classmethod
    def of(cls, values: Iterable[float | None], dtype: npt.DTypeLike = np.int64) -> Nullable:
        """Return numbers; None becomes NULL."""
        listed = list(values)
        known = np.array([v is not None for v in listed], bool)
        return cls(np.array([v or 0 for v in listed], dtype), known)

    def __getitem__(self, at: Any) -> Nullable:
        return Nullable(self.values[at], self.is_known[at])


class TableWriter:
    """Appends columns to a table's file in a folder; the first row group creates the file, and `close` completes it.

    The writer fills `run_id` itself, so that each file names its run wherever it is copied. If there is a `background`,
    it encodes and writes row groups one at a time, in the order of their submission, while the caller goes on. `part`
    is the number of the file, if several writers each write a file of the table.
    """

    def __init__(
        self, folder: Path, run_id: str, table: Table, background: Executor | None = None, part: int | None = None
    ) -> None:
        self.path = folder / (f"{table.name}.parquet" if part is None else f"{table.name}-{part:04}.parquet")
        self.table = table
        self.rows = 0
        self._schema = pa.schema(
            [f.with_type(pa.dictionary(pa.int32(), f.type)) if f.type == pa.string() else f for f in table.arrow],
            metadata=table.arrow.metadata,
        )
        self._run = array_of_texts(pa.string(), [run_id])
        self._columns = {f.name: _column(f.type) for f in self._schema if f.name != "run_id"}
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._background = background
        self._in_flight: Future[None] | None = None
        self._is_finished = False

    def write(self, count: int, columns: Mapping[str, Any]) -> None:
        """Append `count` rows.

        A column is a numpy array, `Nullable` numbers, `Coded` text, an Arrow array, a list, or one value for all
        rows; a missing column is NULL. Arrays are not copied, so they must not change afterwards.

        Raises:
            KeyError: the table has no such column, or it is `run_id`.
            OSError: the file cannot be written.
        """
        if not count:
            return
        unknown = columns.keys() - self._columns.keys()
        if unknown:
            raise KeyError(f"table {self.table.name} has no column {', '.join(sorted(unknown))}")
        for name, column in self._columns.items():
            column.add(columns.get(name), count)
        self._pending_rows += count
        self.rows += count
        if self._pending_rows >= ROW_GROUP:
            self._flush()

    def write_rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows given as mappings; meant for small tables."""
        listed = list(rows)
        names = set[str]().union(*listed)
        self.write(len(listed), {n: [r.get(n) for r in listed] for n in names})

    def finish(self, then: Callable[[Path], object] = lambda _: None) -> None:
        """Write the remaining rows, complete the file, and call `then` on its path; in the background if there is one.

        Nothing can be appended afterwards. A table without rows has no file.
        """
        if self._pending_rows:
            self._flush()
        if self._writer and not self._is_finished:
            self._is_finished = True
            self._do(self._complete, self._in_flight, then)

    def close(self) -> None:
        """Finish the file, and wait until it is complete."""
        self.finish()
        self._wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._writer:
            if self._in_flight:
                self._in_flight.exception()  # the first error is the one to report
            self._writer.close()

    def _flush(self) -> None:
        codes = _array(pa.int32(), np.zeros(self._pending_rows, np.int32), None)
        run = pa.DictionaryArray.from_arrays(codes, self._run)
        columns = [self._columns[f.name].take() if f.name != "run_id" else run for f in self._schema]
        group = pa.Table.from_arrays(columns, schema=self._schema)
        self._pending_rows = 0
        self._wait()
        self._writer = self._writer or parquet_writer(self.path, self._schema)
        self._do(self._writer.write_table, group, len(group))

    def _do(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._background:
            self._in_flight = self._background.submit(function, *arguments)
        else:
            function(*arguments)

    def _complete(self, before: Future[None] | None, then: Callable[[Path], object]) -> None:
        if before:
            before.result()
        cast(pq.ParquetWriter, self._writer).close()
        then(self.path)

    def _wait(self) -> None:
        if self._in_flight:
            self._in_flight.result()
            self._in_flight = None


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of zstd Parquet, with encodings that are fast and that DuckDB, Spark and polars can all read.

    Text that is dictionary-encoded in memory is declared as plain text in the file: pyarrow cannot group rows of
    several files by dictionaries, polars would read them as categories, and Iceberg has no such type.

    Byte-stream-split would be a little faster for times, but DuckDB 1.5 reads it only for floating point, and Spark 4.0
    not at all. Delta-encoded times hardly compress further, and zstd level -1 finds that out sooner than level 1.
    """
    integers = [f.name for f in schema if pa.types.is_integer(f.type)]
    writer = pq.ParquetWriter(
        path,
        schema,
        store_schema=False,  # not the Arrow schema as it is in memory
        compression="zstd",
        compression_level={f.name: -1 if f.name in integers else 1 for f in schema},
        use_dictionary=[f.name for f in schema if f.name not in integers],
        column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
        max_rows_per_page=2 * ROW_GROUP,  # one page per column of a row group; 20,000 rows per page are usual
        write_page_checksum=True,
        write_statistics=[f.name for f in schema if f.name in _STATISTICS],
    )
    plain = (f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema)
    read_as = pa.schema(plain, schema.metadata)
    writer.add_key_value_metadata({**(schema.metadata or {}), "ARROW:schema": base64.b64encode(read_as.serialize())})
    return writer


def _column(kind: pa.DataType) -> _Numbers | _Text | _Bytes:
    """Return a column of a row group: rows are added to it, until all are taken."""
    if pa.types.is_dictionary(kind):
        return _Text()
    return _Bytes(kind) if pa.types.is_binary(kind) else _Numbers(kind)


def _array(kind: pa.DataType, values: npt.NDArray[Any], is_known: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return numbers as an Arrow array over their own memory; `pa.array` would import numpy.ma to look at them."""
    missing = 0 if is_known is None else len(is_known) - np.count_nonzero(is_known)
    validity = pa.py_buffer(np.packbits(is_known, bitorder="little")) if missing and is_known is not None else None
    bits = np.packbits(values, bitorder="little") if pa.types.is_boolean(kind) else np.ascontiguousarray(values)
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(bits)], missing)


def array_of_texts(kind: pa.DataType, values: Collection[str | bytes | None]) -> pa.Array:
    """Texts or bytes as an Arrow array; `pa.array` would import pandas, where it is installed, to look at a list."""
    encoded = [v.encode() if isinstance(v, str) else v or b"" for v in values]
    ends = np.cumsum([0, *map(len, encoded)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise pa.ArrowCapacityError("an array holds at most 2 GB of text")
    missing = np.array([v is None for v in values], bool)
    validity = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(kind, len(encoded), buffers)


_DTYPE_OF = {
    pa.bool_(): np.bool_,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.uint64(): np.uint64,
    pa.float64(): np.float64,
}
"""Numpy dtypes of Arrow's number types; `to_pandas_dtype` knows them too, but needs pandas before pyarrow 26."""
_Part = tuple[int, Any, npt.NDArray[np.bool_] | bool]
"""Number of rows; their values, or one value for all; which are known, or whether all are."""
_FEW_ROWS = 2048
"""Parts of fewer rows, on average, are joined: making an Arrow array takes as long as copying this many rows."""


class _Numbers:
    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._dtype = np.dtype(_DTYPE_OF[kind])
        self._parts: list[_Part] = []

    def add(self, value: Any, count: int) -> None:
        is_known: npt.NDArray[np.bool_] | bool = True
        if isinstance(value, list | pa.Array):
            value = Nullable.of(value.to_pylist() if isinstance(value, pa.Array) else value, self._dtype)
        if isinstance(value, Nullable):
            value, is_known = value.values, value.is_known
        elif value is None:
            value, is_known = 0, False
            if self._parts and self._parts[-1][2] is False:
                count += self._parts.pop()[0]
        self._parts.append((count, value, is_known))

    def take(self) -> pa.ChunkedArray:
        parts, self._parts = self._parts, []
        if len(parts) * _FEW_ROWS > sum(count for count, _, _ in parts):
            parts = [self._joined(parts)]
        return pa.chunked_array([self._array(*p) for p in parts], self._kind)

    def _joined(self, parts: list[_Part]) -> _Part:
        total = sum(count for count, _, _ in parts)
        values, is_known = np.empty(total, self._dtype), np.empty(total, bool)
        end = 0
        for count, part, is_part_known in parts:
            start, end = end, end + count
            values[start:end] = self._cast(part) if isinstance(part, np.ndarray) else part
            is_known[start:end] = is_part_known
        return total, values, is_known

    def _array(self, count: int, values: Any, is_known: npt.NDArray[np.bool_] | bool) -> pa.Array:
        cast = self._cast(values) if isinstance(values, np.ndarray) else np.full(count, values, self._dtype)
        if isinstance(is_known, bool):
            return _array(self._kind, cast, None if is_known else np.zeros(count, bool))
        return _array(self._kind, cast, is_known)

    def _cast(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if values.dtype == self._dtype:
            return values
        cast = values.astype(self._dtype)
        if cast.dtype.kind in "iu" and (cast != values).any():
            raise pa.ArrowInvalid(f"a number does not fit {self._kind}")
        return cast


class _Text:
    """Text as one dictionary per row group, which holds only the values that occur in it."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, npt.NDArray[np.int32] | int]] = []
        """Number of rows, and their codes or one code for all."""
        self._code_of: dict[str, int] = {}

    def add(self, value: Any, count: int) -> None:
        codes: npt.NDArray[np.int32] | int
        if isinstance(value, Coded):
            codes = np.array([*self._codes_of(value.values), -1], np.int32)[value.codes]
        elif isinstance(value, list | np.ndarray | pa.Array):
            texts = value.to_pylist() if isinstance(value, pa.Array) else value
            codes = np.array(self._codes_of(texts), np.int32)
        else:
            codes = self._codes_of([value])[0]
        self._parts.append((count, codes))

    def _codes_of(self, texts: Iterable[str | None]) -> list[int]:
        known = self._code_of
        return [-1 if t is None else known.setdefault(t, len(known)) for t in texts]

    def take(self) -> pa.Array:
        codes = np.empty(sum(count for count, _ in self._parts), np.int32)
        end = 0
        for count, part in self._parts:
            start, end = end, end + count
            codes[start:end] = part
        indices = _array(pa.int32(), codes, codes >= 0 if codes.min(initial=0) < 0 else None)
        encoded = pa.DictionaryArray.from_arrays(indices, array_of_texts(pa.string(), self._code_of))
        self._parts, self._code_of = [], {}
        return encoded


class _Bytes:
    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._parts: list[pa.Array | int] = []
        """Arrays, and the lengths of stretches of NULL rows."""

    def add(self, value: Any, count: int) -> None:
        if value is None and self._parts and isinstance(self._parts[-1], int):
            self._parts[-1] += count
        else:
            self._parts.append(
                count if value is None else value if isinstance(value, pa.Array) else array_of_texts(self._kind, value)
            )

    def take(self) -> pa.Array:
        column = pa.concat_arrays([pa.nulls(p, self._kind) if isinstance(p, int) else p for p in self._parts])
        self._parts = []
        return column
