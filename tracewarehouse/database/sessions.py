"""Keeps the databases with which a warehouse answers queries open for the queries that follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from tracewarehouse.database.catalogue import Catalogue
from tracewarehouse.database.scanned_runs import ScanPlanner
from tracewarehouse.database.session import Session
from tracewarehouse.ingest.lake.lake import Lake

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.queries.tables_read import ParsedSql


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
