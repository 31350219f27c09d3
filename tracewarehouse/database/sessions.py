"""Keeps the databases with which a warehouse answers queries open for the queries that follow."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.database.catalogue import Catalogue
from tracewarehouse.database.lens import add_all_views, begin_lens
from tracewarehouse.database.session import Session
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import restrict, run_query

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.queries.tables_read import ParsedSql

_OPTIONAL = "optional: "
"""Begins a condition that a scan need not apply, because the plan applies it again above."""


class ScanPlanner:
    """A database of empty tables with all views over them, which plans queries; it takes up to a second to make."""

    def __init__(self, definitions: Definitions) -> None:
        self._spill = TemporaryFolder()
        self._database = duckdb.connect(":memory:")
        begin_lens(self._database, "statistics_propagation")  # with it, empty tables are not scanned
        for table in TABLES.values():
            self._database.execute(f"CREATE TABLE main.{table.name} AS SELECT {table.nulls_sql} WHERE false")
        add_all_views(self._database, definitions)
        restrict(self._database, [], self._spill.path)

    def runs_scanned(
        self, sql: str, parameters: Mapping[str, Any] | None, run_ids: Collection[str]
    ) -> frozenset[str] | None:
        """Those of the runs that the conditions of some scan of a table let through; None if it cannot be planned.

        The plan shows what the text does not: a condition outside a window that is partitioned by run, or on one side
        of a join by run.

        Args:
            sql: one SELECT.
            parameters: values of its parameters by name.
            run_ids: the runs to choose from.
        """
        found = set[str]()
        try:
            [(_, plan)] = run_query(self._database, f"EXPLAIN (FORMAT json) {sql}", parameters).rows()
            for filters in _scans(json.loads(plan)):
                found |= _let_through(self._database, filters, run_ids)
        except (QueryError, ValueError):
            return None
        return frozenset(found) or None  # a plan that scans nothing has lost its tables

    def close(self) -> None:
        """Close the database."""
        self._database.close()
        self._spill.close()


def _scans(plan: list[dict[str, Any]]) -> Iterator[list[str]]:
    left = list(plan)
    while left:
        operator = left.pop()
        left += operator["children"]
        said = operator.get("extra_info") or {}
        if "Table" in said or operator["name"].startswith("SEQ_SCAN"):
            filters = said.get("Filters") or []
            yield [filters] if isinstance(filters, str) else filters


def _let_through(planner: duckdb.DuckDBPyConnection, filters: list[str], run_ids: Collection[str]) -> set[str]:
    """The runs that conditions on run_id alone let through."""
    passed = set(run_ids)
    for condition in filters:
        sql = f"SELECT run_id FROM (SELECT unnest($ids) AS run_id) WHERE {condition.removeprefix(_OPTIONAL)}"  # noqa: S608
        try:
            passed = {run_id for (run_id,) in run_query(planner, sql, {"ids": sorted(passed)}).rows()}
        except QueryError:  # it is of another column, or no SQL
            continue
    return passed


class Sessions:
    """Up to three open databases: of all runs, of the runs that the last queries named, and without limits.

    Args:
        catalogue: what is kept of many runs; see `Session`.
        definitions: gives the models and metrics; see `Session`.
    """

    def __init__(self, lake: Lake, catalogue: Catalogue, definitions: Callable[[], Definitions]) -> None:
        self._lake = lake
        self._catalogue = catalogue
        self._definitions = definitions
        self._of_all: Session | None = None
        self._of_some: Session | None = None
        self._unrestricted: Session | None = None
        self._planner: ScanPlanner | None = None

    def for_all(self) -> Session:
        """The session of all runs, as they are now."""
        if self._of_all and not self._of_all.is_current:
            self._of_all.close()
            self._of_all = None
        self._of_all = self._of_all or self.of(None)
        return self._of_all

    def for_query(self, query: ParsedSql, parameters: Mapping[str, Any]) -> Session:
        """A session of the runs that suffice for a query; it is kept for queries of the same runs."""
        now = self._of_some or self._of_all or self.of(None)
        wanted = now.runs_read(query, parameters)
        if wanted is None:
            if now is not self._of_some:
                self._of_all = now
            return self.for_all()
        if now in (self._of_all, self._of_some):
            return self.for_runs(wanted)
        now.only = wanted
        self._of_some = now
        return now

    def for_runs(self, run_ids: frozenset[str]) -> Session:
        """A session of some runs alone, which opens no file of another; it is kept for queries of the same runs."""
        now = self._of_some
        if not (now and now.only == run_ids and now.is_current):
            if now:
                now.close()
            now = self._of_some = self.of(run_ids)
        return now

    def unrestricted(self) -> Session:
        """The session that accepts any statement; kept unchanged until `close`, with everything that its user made."""
        self._unrestricted = self._unrestricted or Session(
            self._lake, self._definitions, is_restricted=False, catalogue=self._catalogue
        )
        return self._unrestricted

    def of(self, run_ids: Collection[str] | None) -> Session:
        """A new session of some runs alone, or of all for None; the caller closes it."""
        return Session(self._lake, self._definitions, is_restricted=True, only=run_ids, catalogue=self._catalogue)

    def undamaged_runs(
        self, session: Session, query: ParsedSql, parameters: Mapping[str, Any]
    ) -> frozenset[str] | None:
        """The runs that suffice for a query where others of a session lack files that it names, or have damaged ones.

        None if no run is damaged, if the query may need one that is, or if it is not known what it needs.
        """
        if not (damaged := session.damaged_runs(query)):
            return None
        self._planner = self._planner or ScanPlanner(self._definitions())
        scanned = self._planner.runs_scanned(query.sql, parameters, [r.run_id for r in session.runs])
        return scanned if scanned is not None and scanned.isdisjoint(damaged) else None

    def close(self) -> None:
        """Close the databases that are kept."""
        for database in (self._of_all, self._of_some, self._unrestricted, self._planner):
            if database:
                database.close()
        self._of_all = self._of_some = self._unrestricted = self._planner = None
