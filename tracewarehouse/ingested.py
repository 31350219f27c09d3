"""What became of captures: a list that shows as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    from tracewarehouse.ingest.pipeline import IngestResult


class IngestResults(list["IngestResult"]):
    """The results of one ingest, one for each capture."""

    def __repr__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> QueryResult:
        import pyarrow as pa

        notes = ["; ".join(r.notes) or None for r in self]
        rows: dict[str, list[object]] = {
            "run_id": [r.run_id for r in self],
            "name": [r.name for r in self],
            "status": [r.status for r in self],
            "events": [r.event_count for r in self],
        }
        if any(notes):
            rows["notes"] = [*notes]
        return QueryResult(pa.table(rows))
