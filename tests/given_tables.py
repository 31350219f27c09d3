"""A warehouse made of given rows: DuckDB tables with the lens over them, for tests of SQL.

Columns that a row does not name take a default: keys count, `run_id` is 'r', `self_ps` is the duration, an op is a leaf
of instruction 0; other columns are NULL, or where that is not allowed, 0, false or a typical text. Times may be
written in microseconds or milliseconds (`start_us`, `duration_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.ingest.lake.schema import TABLES, Column
from tracewarehouse.lens import create_lens

_PICOSECONDS = {"_us": 1_000_000, "_ms": 1_000_000_000}
_TEXTS = {
    "host": "host0",
    "plane": "/device:TPU:0",
    "line": "XLA Ops",
    "backend": "tpu",
    "format": "xplane",
    "source": "marker",
    "window_source": "op",
    "axis": "tp",
    "unit": "1",
}

Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]


def warehouse_of(given: Mapping[str, Rows], definitions: Definitions | None = None) -> duckdb.DuckDBPyConnection:
    """A database in memory with the lens over tables of the given rows, in schema given.

    Args:
        given: rows by table; a list of mappings, or `columns` and `rows`.
        definitions: the models and metrics; by default those of the package.
    """
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("CREATE SCHEMA given")
    for name, table in TABLES.items():
        columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
        connection.execute(f"CREATE TABLE given.{name} ({columns})")
    create_lens(connection, {t: f"given.{t}" for t in TABLES}, definitions, comments=False)
    fill(connection, given)
    return connection


def fill(connection: duckdb.DuckDBPyConnection, given: Mapping[str, Rows]) -> None:
    """Put these rows in place of the ones that a database of `warehouse_of` holds."""
    unknown = given.keys() - TABLES.keys()
    if unknown:
        raise KeyError(f"there is no table {', '.join(sorted(unknown))}")
    for name, table in TABLES.items():
        connection.execute(f"TRUNCATE given.{name}")
        rows = [_complete(name, row, position) for position, row in enumerate(_mappings(given.get(name, ())))]
        if rows:
            schema = pa.schema([c.arrow.with_nullable(True) for c in table.columns])
            connection.register("arrow_rows", pa.Table.from_pylist(rows, schema))
            connection.execute(f"INSERT INTO given.{name} SELECT * FROM arrow_rows")
            connection.unregister("arrow_rows")
    if "instructions" not in given:
        connection.execute(
            "INSERT INTO given.instructions BY NAME SELECT DISTINCT run_id, 0 AS instruction_id, 'fusion.0' AS name, "
            "'fusion' AS opcode, 'loop fusion' AS category, false AS is_container FROM given.ops"
        )


def order_ops(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill what ingest tells of the order of ops on a device with one op line, in what `fill` has put there."""
    connection.execute(
        """
        UPDATE given.ops AS o
        SET idle_before_ps = n.idle_ps, compute_before_ps = CASE WHEN n.is_compute THEN NULL ELSE n.compute_ps END
        FROM (
          SELECT
            l.run_id, l.event_id, l.is_compute, l.start_ps - max(l.end_ps) OVER before AS idle_ps,
            coalesce(sum(l.end_ps - l.start_ps) FILTER (l.is_compute) OVER before, 0) AS compute_ps
          FROM models.leaf_ops AS l
          WINDOW before AS (
            PARTITION BY l.run_id, l.device_id ORDER BY l.start_ps, l.event_id
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
          )
        ) AS n
        WHERE o.run_id = n.run_id AND o.event_id = n.event_id
        """
    )


def _mappings(rows: Rows) -> Iterable[Mapping[str, Any]]:
    if isinstance(rows, Mapping):
        return [dict(zip(rows["columns"], row, strict=True)) for row in rows["rows"]]
    return rows


def _complete(table: str, given: Mapping[str, Any], position: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in given.items():
        scale = _PICOSECONDS.get(name[-3:])
        row[f"{name[:-3]}_ps" if scale else name] = round(value * scale) if scale and value is not None else value
    columns = {c.name: c for c in TABLES[table].columns}
    unknown = row.keys() - columns.keys()
    if unknown:
        raise KeyError(f"table {table} has no column {', '.join(sorted(unknown))}")
    if table == "ops":
        row = {"self_ps": row["duration_ps"], "is_leaf": True, "device_id": 0} | row
    for name, column in columns.items():
        if name not in row:
            row[name] = _default(column, position)
    return row


def _default(column: Column, position: int) -> Any:
    if column.name == "run_id":
        return "r"
    if column.is_nullable:
        return None
    if column.is_key and column.name in ("event_id", "instruction_id", "line_index"):
        return position
    if column.type == "VARCHAR":
        return _TEXTS.get(column.name, column.name)
    return False if column.type == "BOOLEAN" else 0
