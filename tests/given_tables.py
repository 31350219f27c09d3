"""A warehouse made of given rows: DuckDB tables with the lens over them, for tests of SQL.

Columns that a row does not name take a default: keys count, `run_id` is 'r', `self_ps` is the duration, an op is a leaf
of instruction 0, an instruction's `op_class` follows from its opcode; other columns are NULL, or where that is not
allowed, 0, false or a typical text. What leaf ops owe to the order of their device's ops is filled as ingest does it.
Times may be written in microseconds or milliseconds (`start_us`, `duration_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tracewarehouse.definitions.reading import Definitions, View
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES, op_class
from tracewarehouse.ingest.lake.parquet import Nullable
from tracewarehouse.ingest.lake.schema import TABLES, Column
from tracewarehouse.ingest.tables.leaf_order import of_lines
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

LEAF_TIMES = ("idle_before_ps", "overlap_ps", "class_overlap_ps", "work_before_ps", "work_during_ps")
_LEAF_TIMES_SCHEMA = pa.schema([("run_id", pa.string()), *((n, pa.int64()) for n in ("event_id", *LEAF_TIMES))])

Rows = Sequence[Mapping[str, Any]] | Mapping[str, Any]


def warehouse_of(
    given: Mapping[str, Rows], definitions: Definitions | None = None, views: Iterable[View] | None = None
) -> duckdb.DuckDBPyConnection:
    """A database in memory with the lens over tables of the given rows, in schema given.

    Args:
        given: rows by table; a list of mappings, or `columns` and `rows`.
        definitions: the models and metrics; by default those of the package.
        views: only these of them, which takes less than all, without macros and metrics.all_values.
    """
    connection = duckdb.connect(":memory:", config={"threads": 1})
    connection.execute("CREATE SCHEMA given")
    for name, table in TABLES.items():
        columns = ", ".join(f'"{c.name}" {c.type}' for c in table.columns)
        connection.execute(f"CREATE TABLE given.{name} ({columns})")
    create_lens(connection, {t: f"given.{t}" for t in TABLES}, definitions, comments=False, views=views)
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
            "'fusion' AS opcode, 'loop fusion' AS category, 'compute' AS op_class FROM given.ops"
        )
    _fill_leaf_times(connection)


def _fill_leaf_times(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill what ingest tells of leaf ops, by the same function, and of collectives from the others of their device."""
    found = connection.execute(
        """
        SELECT run_id, device_id, event_id, start_ps, start_ps + duration_ps AS end_ps, op_class
        FROM given.ops JOIN given.instructions USING (run_id, instruction_id)
        WHERE is_leaf AND device_id IS NOT NULL
        ORDER BY run_id, device_id, event_id
        """
    ).fetchall()
    rows = []
    for (run_id, _), ops in groupby(found, key=itemgetter(0, 1)):
        _, _, events, starts, ends, classes = zip(*ops, strict=True)
        codes = np.array([OP_CLASSES.index(c) for c in classes], np.int8)
        [times] = of_lines([(np.array(starts, np.int64), np.array(ends, np.int64), codes)])
        columns = [_nullable(c) for c in times.columns().values()]
        names = ("run_id", "event_id", *LEAF_TIMES)
        rows += [dict(zip(names, (run_id, *row), strict=True)) for row in zip(events, *columns, strict=True)]
    if rows:
        connection.register("leaf_times", pa.Table.from_pylist(rows, _LEAF_TIMES_SCHEMA))
        sets = ", ".join(f"{name} = t.{name}" for name in LEAF_TIMES)
        same = "o.run_id = t.run_id AND o.event_id = t.event_id"
        connection.execute(f"UPDATE given.ops AS o SET {sets} FROM leaf_times AS t WHERE {same}")
        connection.unregister("leaf_times")
    connection.execute(
        """
        UPDATE given.collectives AS c SET exposed_added_ps = coalesce((
          SELECT sum(o.duration_ps - o.class_overlap_ps) FROM given.ops AS o
          WHERE o.run_id = c.run_id AND o.event_id IN (c.event_id, c.done_event_id)
        ), 0)
        """
    )


def _nullable(column: Nullable) -> list[int | None]:
    return [v if known else None for v, known in zip(column.values.tolist(), column.is_known.tolist(), strict=True)]


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
    if table == "instructions" and "op_class" not in row:
        opcode = row.get("opcode") or (f"async-{row['async_role']}" if row.get("async_role") else None)
        row["op_class"] = op_class(opcode, is_collective=row.get("collective") is not None)
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
