"""Finds the runs whose rows a query can come to read, by DuckDB's plan of it over empty tables.

This sees what a query's text does not show: a condition outside a window that is partitioned
by run, or on one side of a join by run.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.database.lens import add_all_views, begin_lens
from tracewarehouse.database.temporary import TemporaryFolder
from tracewarehouse.ingest.errors import QueryError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import restrict, run_query

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions

_OPTIONAL = "optional: "
"""Begins a condition that a scan need not apply, because the plan applies it again above."""


class ScanPlanner:
    """A database of empty tables with all views over them, which plans queries; it takes up to a second to make.

    Args:
        definitions: the models, metrics and macros.
    """

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
