"""Finds the rows that the name of a table, view or metric, or a query, stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tracewarehouse.ingest.lake.schema import TABLES

if TYPE_CHECKING:
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.warehouse import Warehouse

_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)?[A-Za-z_]\w*")


def rows_of(warehouse: Warehouse, source: str) -> QueryResult:
    """The rows of a source.

    Args:
        warehouse: the warehouse.
        source: the name of a table, such as `ops`; of a view with its schema, such as `models.steps`; of a metric, such
            as `tpot`, which stands for its newest stable version; or a query.

    Raises:
        MetricError: a single name belongs to no table and no metric.
        QueryError: the query was refused or failed.
        WarehouseError: the runs cannot be read.
    """
    if not _NAME.fullmatch(source.strip()):
        return warehouse.query(source)
    name = source.strip()
    if name in TABLES:
        name = f"main.{name}"
    if "." in name:
        return warehouse.query(f"SELECT * FROM {name}")
    return warehouse.metric(name)
