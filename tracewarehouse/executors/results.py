"""Lists the results of an ingest, and shows the list as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Self

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.queries.result import QueryResult, TypedRows

if TYPE_CHECKING:
    from tracewarehouse.executors.executor import Outcome
    from tracewarehouse.ingest.pipeline import IngestResult


class IngestResults(list["IngestResult"]):
    """The results of one ingest, one for each capture."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> Self:
        """The results of outcomes, in the order of their captures.

        Raises:
            TracewarehouseError: a capture could not be ingested; several are one CaptureError with all reasons.
        """
        ended = sorted(outcomes, key=lambda o: o.number)
        failures = [o.error for o in ended if o.error]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            reasons = "; ".join(map(str, failures))
            raise CaptureError(f"{len(failures)} of {len(ended)} captures could not be ingested: {reasons}")
        return cls(o.result for o in ended if o.result)

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
