"""The result of a query: all its rows, as tuples, dicts, an Arrow table, or a data frame of pandas or Polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.errors import QueryError, TracewarehouseError

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from tracewarehouse.queries.quality import FlaggedRun

_SHOWN = 20


class QueryResult:
    """The rows of one query, held in memory.

    A notebook shows them as a table, `print` writes one, and a loop goes over `rows()`. Libraries that speak the Arrow
    PyCapsule protocol, such as Polars, DuckDB and pandas, take the result itself: `polars.DataFrame(result)`.
    """

    def __init__(self, table: pa.Table, flagged: Sequence[FlaggedRun] = (), *, is_cut: bool = False) -> None:
        self._table = table
        self._flagged = tuple(flagged)
        self._is_cut = is_cut

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"QueryResult({len(self)} rows: {', '.join(self.columns)})"

    def __str__(self) -> str:
        from tracewarehouse.queries.text_table import draw

        lines = list(draw(self.columns, QueryResult(self._table.slice(0, _SHOWN)).rows()))
        return "\n".join([*lines, *self._remarks()])

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def _repr_html_(self) -> str:
        """The first rows as an HTML table, for notebooks."""
        from html import escape

        from tracewarehouse.queries.text_table import cell

        head = "".join(f"<th>{escape(c)}</th>" for c in self.columns)
        rows = QueryResult(self._table.slice(0, _SHOWN)).rows()
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell(v))}</td>' for v in row)}</tr>" for row in rows)
        remarks = "".join(f"<p>{escape(r)}</p>" for r in self._remarks())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{remarks}"

    def _remarks(self) -> list[str]:
        """What the shown rows do not say."""
        from tracewarehouse.queries.quality import note

        more = [f"{_SHOWN} of {len(self)} rows"] if len(self) > _SHOWN else []
        return more + [s for s in [note(self._flagged)] if s]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as a stream of the Arrow PyCapsule protocol."""
        return self._table.__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """Column names in order; a name may occur twice."""
        return list(self._table.column_names)

    @property
    def flagged_runs(self) -> tuple[FlaggedRun, ...]:
        """The flagged runs that the rows come from; without a column run_id, those that they may come from."""
        return self._flagged

    @property
    def is_cut(self) -> bool:
        """Whether the query gives more rows than its limit let through."""
        return self._is_cut

    def part(self, first: int, count: int) -> QueryResult:
        """The result with some of its rows alone, from row `first`, counted from 0."""
        return QueryResult(self._table.slice(first, count), self._flagged, is_cut=self._is_cut)

    def rows(self) -> list[tuple[Any, ...]]:
        """One tuple per row; NULL is None, and a sum of integers is an int.

        Raises:
            QueryError: a struct has two fields with the same name, such as `row('a', 'b')` in DuckDB 1.5.
        """
        try:
            values = [_integers(self._table.column(i)) for i in range(self._table.num_columns)]
        except ValueError as error:  # raised by pyarrow, although an Arrow table can hold such a struct
            raise QueryError(f"a struct in the result cannot be a dict ({error}); rename one of the fields") from None
        return list(zip(*values, strict=True))

    def dicts(self) -> list[dict[str, Any]]:
        """One dict per row; if columns share a name, the last one is kept."""
        columns = self.columns
        return [dict(zip(columns, row, strict=True)) for row in self.rows()]

    def scalar(self) -> Any:
        """The only value of a result with one row and one column.

        Raises:
            ValueError: the result has another shape.
        """
        if self._table.shape != (1, 1):
            raise ValueError(f"scalar() wants one row of one column, the result has shape {self._table.shape}")
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
