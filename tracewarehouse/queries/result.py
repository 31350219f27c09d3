"""Holds the result of a query: all its rows, as tuples, dicts, an Arrow table, or a data frame of pandas or Polars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import compress
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.errors import QueryError, TracewarehouseError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from tracewarehouse.ingest.lake.manifest import RunVersion

CLOCKS = """
SELECT r.run_id, r.name, concat(
    'clock of ', h.host, ': ', printf('%+.3f us', h.clock_offset_ps / 1e6), ' (', h.clock_source,
    printf(', of which %+.3f us', h.clock_correction_ps / 1e6),
    printf(', %d shared collectives', h.clock_instances),
    printf(', residual %.3f us', h.clock_residual_ps / 1e6), ')'
) AS note
FROM main.hosts AS h JOIN main.runs AS r ON r.run_id = h.run_id
WHERE r.host_count > 1
ORDER BY r.name, r.run_id, h.host_index
"""
"""Selects how the clocks of hosts were aligned, in a sentence per host; runs of one host have no row."""
_SHOWN = 20
_TOLD = "is_predicted"

ARROW_TYPES = {
    "VARCHAR": "string",
    "BOOLEAN": "bool",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "UBIGINT": "uint64",
    "HUGEINT": "decimal128(38, 0)",
    "FLOAT": "float",
    "DOUBLE": "double",
    "VARCHAR[]": "list<l: string>",
}
"""The types of DuckDB whose values Python holds without loss, each with its type in Arrow."""


@dataclass(frozen=True)
class FlaggedRun:
    """A run whose numbers must be read with care; `SELECT * FROM main.quality_flags` gives the details."""

    run_id: str
    name: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.flags)})"


def flagged(runs: Iterable[RunVersion]) -> list[FlaggedRun]:
    """The runs that have flags, sorted by name."""
    with_flags = [FlaggedRun(r.run_id, r.name, tuple(r.flags)) for r in runs if r.flags]
    return sorted(with_flags, key=lambda r: (r.name, r.run_id))


def note(runs: Sequence[FlaggedRun], most: int = 5) -> str | None:
    """One sentence for people that names the flagged runs and counts predicted ones; None if there are none."""
    if not runs:
        return None
    listed = ", ".join(map(str, runs[:most])) + (f" and {len(runs) - most} more" if len(runs) > most else "")
    predicted = sum("predicted" in r.flags for r in runs)
    origin = f"{predicted} run{'s are' if predicted > 1 else ' is'} predicted, not measured; " if predicted else ""
    return f"{origin}read with care, flagged: {listed}; `tw runs --notes` says why"


@dataclass(frozen=True)
class TypedRows:
    """Rows as Python values, which a result holds if nobody asks for Arrow, which takes long to load.

    It has the methods of an Arrow table that a result uses, by the same names.

    Attributes:
        column_names: names of the columns; a name may occur twice.
        types: the types of the columns in DuckDB, all among `ARROW_TYPES`.
        rows: one tuple per row.
    """

    column_names: Sequence[str]
    types: Sequence[str]
    rows: Sequence[tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.rows)

    def slice(self, offset: int, length: int) -> TypedRows:
        """Some of the rows."""
        return TypedRows(self.column_names, self.types, self.rows[offset : offset + length])

    def filter(self, mask: Sequence[bool]) -> TypedRows:
        """The rows for which the mask is true."""
        return TypedRows(self.column_names, self.types, list(compress(self.rows, mask)))

    def arrow(self) -> pa.Table:
        """The rows as the Arrow table that DuckDB would give."""
        import pyarrow as pa

        special = {"HUGEINT": pa.decimal128(38, 0), "VARCHAR[]": pa.list_(pa.field("l", pa.string()))}
        types = [special.get(t) or pa.type_for_alias(ARROW_TYPES[t]) for t in self.types]
        values = zip(*self.rows, strict=True) if self.rows else ((),) * len(types)
        arrays = [pa.array(list(v), t) for v, t in zip(values, types, strict=True)]
        return pa.Table.from_arrays(arrays, list(self.column_names))


class QueryResult:
    """The rows of one query, held in memory.

    A notebook shows them as a table, `print` writes one, and a loop goes over `rows()`. Libraries that speak the Arrow
    PyCapsule protocol, such as Polars, DuckDB and pandas, take the result itself: `polars.DataFrame(result)`.

    Args:
        flagged: the flagged runs behind them.
        is_cut: whether the query gives more rows.
    """

    def __init__(self, held: pa.Table | TypedRows, flagged: Sequence[FlaggedRun] = (), *, is_cut: bool = False) -> None:
        self._held = held
        self._flagged = tuple(flagged)
        self._is_cut = is_cut

    @cached_property
    def _table(self) -> pa.Table:
        return self._held.arrow() if isinstance(self._held, TypedRows) else self._held

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        return f"QueryResult({len(self)} rows: {', '.join(self.columns)})"

    def __str__(self) -> str:
        from tracewarehouse.queries.text_table import draw

        lines = list(draw(self.columns, self.part(0, _SHOWN).rows()))
        return "\n".join([*lines, *self._remarks()])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def _repr_html_(self) -> str:
        from html import escape

        from tracewarehouse.queries.text_table import cell

        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        rows = self.part(0, _SHOWN).rows()
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell(v))}</td>' for v in row)}</tr>" for row in rows)
        remarks = "".join(f"<p>{escape(r)}</p>" for r in self._remarks())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{remarks}"

    def _remarks(self) -> list[str]:
        """Remarks below the shown rows: how many there are in all, and which runs are flagged."""
        from tracewarehouse.queries.result import note

        more = [f"{_SHOWN} of {len(self)} rows"] if len(self) > _SHOWN else []
        return more + [s for s in [note(self._flagged)] if s]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as a stream of the Arrow PyCapsule protocol."""
        return self._table.__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """Column names in order; a name may occur twice."""
        return list(self._held.column_names)

    @property
    def flagged_runs(self) -> tuple[FlaggedRun, ...]:
        """The flagged runs that the rows come from; without a column run_id, those that they may come from."""
        return self._flagged

    @property
    def is_cut(self) -> bool:
        """Whether the query gives more rows than its limit let through."""
        return self._is_cut

    def telling_predicted(self) -> QueryResult:
        """The same rows, with a column that says which are of predicted runs, if some are and no column says so.

        Formats that have no place for a note need it.
        """
        predicted = {run.run_id for run in self._flagged if "predicted" in run.flags}
        if not predicted or "run_id" not in self.columns or {"origin", _TOLD} & {*self.columns}:
            return self
        place = self.columns.index("run_id")
        if isinstance(self._held, TypedRows):
            rows = [(*row, row[place] in predicted) for row in self._held.rows]
            held: pa.Table | TypedRows = TypedRows([*self.columns, _TOLD], [*self._held.types, "BOOLEAN"], rows)
        else:
            told = [run_id in predicted for run_id in self._held.column(place).to_pylist()]
            held = self._held.append_column(_TOLD, [told])
        return QueryResult(held, self._flagged, is_cut=self._is_cut)

    def part(self, first: int, count: int) -> QueryResult:
        """A part of the result: `count` rows from row `first` on, counted from 0."""
        return QueryResult(self._held.slice(first, count), self._flagged, is_cut=self._is_cut)

    def noted(self, flagged: Sequence[FlaggedRun], *, is_cut: bool) -> QueryResult:
        """The same rows, with the flagged runs behind them, and whether the query gives more."""
        return QueryResult(self._held, flagged, is_cut=is_cut)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows, by the name that they have in Python's database interface (PEP 249)."""
        return self.rows()

    def rows(self) -> list[tuple[Any, ...]]:
        """One tuple per row; NULL is None, and a sum of integers is an int.

        Raises:
            QueryError: a struct has two fields with the same name, such as `row('a', 'b')` in DuckDB 1.5.
        """
        if isinstance(self._held, TypedRows):
            return list(self._held.rows)
        try:
            values = [_integers(self._table.column(i)) for i in range(self._table.num_columns)]
        except ValueError as error:  # raised by pyarrow, although an Arrow table can hold such a struct
            raise QueryError(f"a struct in the result cannot be a dict ({error}); rename one of the fields") from None
        return list(zip(*values, strict=True))

    def kept(self, is_kept: Sequence[bool]) -> QueryResult:
        """The result with only those rows for which the sequence, which has a value for each row, is true."""
        return QueryResult(self._held.filter(list(is_kept)), self._flagged, is_cut=self._is_cut)

    def distinct(self, column: str) -> set[Any]:
        """The distinct values of a column; if columns share the name, those of the first."""
        place = self.columns.index(column)
        if isinstance(self._held, TypedRows):
            return {row[place] for row in self._held.rows}
        values = self._held.column(place)
        # pyarrow.compute takes longer to import than a small list takes to build
        return set((values if len(values) < 10_000 else values.unique()).to_pylist())

    def dicts(self) -> list[dict[str, Any]]:
        """One dict per row; if columns share a name, the last one is kept."""
        columns = self.columns
        return [dict(zip(columns, row, strict=True)) for row in self.rows()]

    def scalar(self) -> Any:
        """The only value of a result with one row and one column.

        Raises:
            ValueError: the result has another shape.
        """
        if (shape := (len(self), len(self.columns))) != (1, 1):
            raise ValueError(f"scalar() wants one row of one column, the result has shape {shape}")
        return self.rows()[0][0]

    def arrow(self) -> pa.Table:
        """The result as a pyarrow table; DuckDB's HUGEINT, such as `sum` of a BIGINT, becomes decimal128(38, 0)."""
        return self._table

    def df(self) -> pandas.DataFrame:
        """The result as a pandas data frame.

        Raises:
            TracewarehouseError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise TracewarehouseError(
                ".df() needs pandas, which is not installed; run `pip install 'tracewarehouse[pandas]'` or use .arrow()"
            ) from None
        return self._table.to_pandas()

    def pl(self) -> polars.DataFrame:
        """The result as a polars data frame.

        Raises:
            TracewarehouseError: polars is not installed.
        """
        try:
            import polars
        except ImportError:
            raise TracewarehouseError(
                ".pl() needs polars, which is not installed; run `pip install 'tracewarehouse[polars]'` or use .arrow()"
            ) from None
        frame = polars.from_arrow(self._table)
        assert isinstance(frame, polars.DataFrame)  # noqa: S101  a table never becomes a Series
        return frame


def _integers(column: pa.ChunkedArray) -> list[Any]:
    """A column's values; decimals without a fraction (HUGEINT) become int."""
    values: list[Any] = column.to_pylist()
    if str(column.type).startswith("decimal") and column.type.scale == 0:
        return [int(v) if isinstance(v, Decimal) else v for v in values]
    return values
