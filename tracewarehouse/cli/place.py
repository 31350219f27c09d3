"""Holds the options before the verb: the warehouse, and the folder of the user's own metrics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracewarehouse.definitions.reading import Definitions
    from tracewarehouse.warehouse import Warehouse


@dataclass(frozen=True)
class Place:
    """The warehouse's folder or URI, and the folder of the user's own metrics or None."""

    warehouse: str
    sql: Path | None = None

    def __str__(self) -> str:
        return self.warehouse

    def open(self, *, create: bool = False) -> Warehouse:
        """The warehouse; see `open_warehouse`."""
        from tracewarehouse.warehouse import open_warehouse

        return open_warehouse(self.warehouse, create=create, sql=self.sql)

    def open_spark(self, master: str | None) -> Warehouse:
        """The warehouse, with Spark to answer its queries; see `tracewarehouse.spark.warehouse.open_spark`."""
        from tracewarehouse.spark.warehouse import open_spark

        return open_spark(self.warehouse, sql=self.sql, master=master)

    def definitions(self) -> Definitions:
        """The package's metrics and the user's own.

        Raises:
            MetricError: a definition is not valid.
        """
        from tracewarehouse.definitions.reading import load_with

        return load_with(self.sql)
