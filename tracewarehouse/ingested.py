"""What became of captures: a list that shows as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracewarehouse.queries.result import QueryResult, TypedRows

if TYPE_CHECKING:
    from tracewarehouse.ingest.pipeline import IngestResult


class IngestResults(list["IngestResult"]):
    """The results of one ingest, one for each capture."""

    def __repr__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> QueryResult:
        columns = {"run_id": "VARCHAR", "name": "VARCHAR", "status": "VARCHAR", "events": "BIGINT"}
        rows: list[tuple[object, ...]] = [(r.run_id, r.name, r.status, r.event_count) for r in self]
        if any(r.notes for r in self):
            columns["notes"] = "VARCHAR"
            rows = [(*row, "; ".join(r.notes) or None) for row, r in zip(rows, self, strict=True)]
        return QueryResult(TypedRows(list(columns), list(columns.values()), rows))
