"""The result of a query: all its rows, as tuples, dicts, an Arrow table or a polars frame."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from tracewarehouse.ingest.errors import QueryError, TracewarehouseError

if TYPE_CHECKING:
    import polars
    import pyarrow as pa

    from tracewarehouse.quality import FlaggedRun


class QueryResult:
    """The rows of one query, held in memory."""

    def __init__(self, table: pa.Table, flagged: Sequence[FlaggedRun] = ()) -> None:
        self._table = table
        self._flagged = tuple(flagged)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"QueryResult({len(self)} rows: {', '.join(self.columns)})"

    @property
    def columns(self) -> list[str]:
        """Column names in order; a name may occur twice."""
        return list(self._table.column_names)

    @property
    def flagged_runs(self) -> tuple[FlaggedRun, ...]:
        """The flagged runs that the rows come from; without a column run_id, those that they may come from."""
        return self._flagged

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
