"""Hands rows to others: those of a table, a metric or a query, or whole runs as one DuckDB file.

The file holds its rows and names no path, so it can be moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from tracewarehouse.database.catalogue import files_error
from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.database.lens import comment_on_tables, create_lens, new_file, table_source
from tracewarehouse.exports.files import naming_the_unwritable
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.durable_files import placed_whole
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.memory_limit import set_memory_limit

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.warehouse import Warehouse

ENDINGS = (".duckdb", ".db")
_NAME = re.compile(r"(?:[A-Za-z_]\w*\.)?[A-Za-z_]\w*")


def source_rows(warehouse: Warehouse, source: str) -> QueryResult:
    """The rows of a source.

    Args:
        source: the name of a table, such as `ops`; of a view with its schema, such as `models.steps`; of a metric, such
            as `tpot`, which stands for its newest stable version; or a query. Rows of a metric say by `origin` whether
            their run was recorded, compiled or predicted.
    """
    name = source.strip()
    if not _NAME.fullmatch(name):
        return warehouse.query(source)
    if name in TABLES:
        name = f"main.{name}"
    if "." in name:
        return warehouse.query(f"SELECT * FROM {name}")
    view = warehouse.definitions.metric(name).view.name
    if "run_id" not in (columns := warehouse.query(f"FROM metrics.{view} LIMIT 0").columns) or "origin" in columns:
        return warehouse.metric(name)
    return warehouse.query(
        f"SELECT m.*, r.origin FROM metrics.{view} AS m LEFT JOIN main.runs AS r USING (run_id) ORDER BY ALL"
    )


def export_duckdb(warehouse: Warehouse, runs: Sequence[RunVersion], target: Path) -> Path:
    """Write tables with the runs' rows, all models, metrics and macros over them, comments and the catalogue.

    Args:
        runs: the runs that the file holds.
        target: the file, which is replaced at once or not at all.
    """
    if target.suffix not in ENDINGS:
        raise TracewarehouseError(f"{target}: a DuckDB file ends in {' or '.join(ENDINGS)}; name such a file")
    with naming_the_unwritable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with placed_whole(target) as part:
            try:
                _write(warehouse, runs, part)
            except duckdb.Error as error:
                raise TracewarehouseError(f"{target}: cannot be written: {str(error).splitlines()[0]}") from None
            finally:
                part.with_name(f"{part.name}.wal").unlink(missing_ok=True)
    return target


def _write(warehouse: Warehouse, runs: Sequence[RunVersion], part: Path) -> None:
    CheckedFiles(warehouse.lake).check(runs)
    with new_file(part) as connection:
        set_memory_limit(connection)
        if warehouse.lake.filesystem is not None:
            connection.register_filesystem(warehouse.lake.filesystem)
        for name, table in TABLES.items():
            columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
            connection.execute(f"CREATE TABLE main.{name} ({columns})")
            source = table_source(warehouse.lake.root, runs, name)
            if source is None:
                continue
            try:
                connection.execute(f"INSERT INTO main.{name} SELECT {table.names_sql} FROM {source}")
            except duckdb.Error as error:
                if part.name in str(error):  # it is the new file that cannot be written
                    raise
                raise WarehouseError(files_error(warehouse.lake, runs, error)) from None
        in_place = {name: f"main.{name}" for name in TABLES}
        create_lens(connection, in_place, warehouse.definitions)
        comment_on_tables(connection, in_place)
