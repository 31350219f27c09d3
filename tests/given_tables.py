"""A warehouse made of given rows: DuckDB tables with the lens over them, for tests of SQL.

Columns that a row does not name take a default: keys count, `run_id` is 'r', `self_ps` is the duration, an op is a leaf
of instruction 0, an instruction's `op_class` follows from its opcode, a collective is at time 0; others are NULL, or
where that is not allowed, 0, false or a typical text. What leaf ops and collectives owe to the order of those of
their device, and the copies that follow from ops, are filled as ingest does it. A collective without an op of its own
adds the exposed time that is given, and a window that does not say what is hidden is never idle.
Times may be written in microseconds or milliseconds (`start_us`, `duration_ms`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any
from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import pyarrow as pa

from tracewarehouse.database.lens import create_lens
from tracewarehouse.definitions.reading import Definitions, load_definitions
from tracewarehouse.evaluation.audits import Evaluation
from tracewarehouse.evaluation.values import PreparedMetrics
from tracewarehouse.ingest.hlo.instruction_row import OpFacts
from tracewarehouse.ingest.hlo.opcodes import OP_CLASSES, op_class
from tracewarehouse.ingest.lake.parquet import Nullable
from tracewarehouse.ingest.lake.schema import TABLES, Column
from tracewarehouse.ingest.tables.leaf_ops import CopyOps, copy_windows, lines_leaf_times

_PICOSECONDS = {"_us": 1_000_000, "_ms": 1_000_000_000}
_TEXTS = {
    "host": "host0",
    "plane": "/device:TPU:0",
    "line": "XLA Ops",
    "origin": "recorded",
    "backend": "tpu",
    "format": "xplane",
    "source": "marker",
    "window_source": "op",
    "axis": "tp",
    "unit": "1",
}

LEAF_TIMES = ("idle_before_ps", "overlap_ps", "class_overlap_ps")
_COPY_COLUMNS = ("done_event_id", "instruction_id", "is_async", "start_ps", "end_ps", "exposed_added_ps", "bytes")
_LEAF_TIMES_SCHEMA = pa.schema([("run_id", pa.string()), *((n, pa.int64()) for n in ("event_id", *LEAF_TIMES))])

_DERIVED = ("instructions", "copies")
"""Tables that may have rows without being given any."""
_filled: WeakKeyDictionary[duckdb.DuckDBPyConnection, list[str]] = WeakKeyDictionary()
"""The tables that may have rows, by database."""

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
    create_lens(connection, {t: f"given.{t}" for t in TABLES}, definitions or load_definitions())
    fill(connection, given)
    return connection


def evaluated(connection: duckdb.DuckDBPyConnection, run_id: str, definitions: Definitions | None = None) -> Evaluation:
    """What ingest evaluates of a run, by the tables of a lens."""
    [(name,)] = connection.execute("SELECT current_database()").fetchall()
    sources = {t: f"(SELECT * FROM \"{name}\".main.{t} WHERE run_id = '{run_id}')" for t in TABLES}
    return PreparedMetrics(connection, definitions or load_definitions()).evaluate(connection, run_id, sources)


def fill(connection: duckdb.DuckDBPyConnection, given: Mapping[str, Rows]) -> None:
    """Put these rows in place of the ones that a database of `warehouse_of` holds."""
    unknown = given.keys() - TABLES.keys()
    if unknown:
        raise KeyError(f"there is no table {', '.join(sorted(unknown))}")
    if filled := _filled.get(connection):  # each TRUNCATE takes time, and most tables are empty
        connection.execute("; ".join(("BEGIN", *(f"TRUNCATE given.{name}" for name in filled), "COMMIT")))
    _filled[connection] = sorted({*given, *_DERIVED})
    for name in TABLES:
        rows = [_complete(name, row, position) for position, row in enumerate(_mappings(given.get(name, ())))]
        if rows:
            _insert(connection, name, rows)
    if "instructions" not in given:
        connection.execute(
            "INSERT INTO given.instructions BY NAME SELECT DISTINCT run_id, 0 AS instruction_id, 'fusion.0' AS name, "
            "'fusion' AS opcode, 'loop fusion' AS category, 'compute' AS op_class FROM given.ops"
        )
    if "ops" in given:
        _fill_leaf_times(connection)
    if "collectives" in given:
        _fill_collectives(connection)


def _fill_leaf_times(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill what ingest tells of leaf ops, and the copies among them, by the same functions."""
    found = connection.execute(
        """
        SELECT run_id, device_id, event_id, start_ps, start_ps + duration_ps AS end_ps, op_class, instruction_id, phase,
          step
        FROM given.ops JOIN given.instructions USING (run_id, instruction_id)
        WHERE is_leaf AND device_id IS NOT NULL
        ORDER BY run_id, device_id, event_id
        """
    ).fetchall()
    rows, copies = [], []
    facts = _facts(connection)
    stated = "SELECT run_id, event_id, int_value FROM given.event_stats WHERE name = 'bytes' AND int_value >= 0"
    sizes = {(run, event): size for run, event, size in connection.execute(stated).fetchall()}
    for (run_id, device_id), ops in groupby(found, key=itemgetter(0, 1)):
        _, _, events, starts, ends, classes, instructions, phases, steps = zip(*ops, strict=True)
        codes = np.array([OP_CLASSES.index(c) for c in classes], np.int8)
        start, end = np.array(starts, np.int64), np.array(ends, np.int64)
        [times] = lines_leaf_times([(start, end, codes)])
        columns = [_nullable(getattr(times, name.removesuffix("_ps"))) for name in LEAF_TIMES]
        names = ("run_id", "event_id", *LEAF_TIMES)
        rows += [dict(zip(names, (run_id, *row), strict=True)) for row in zip(events, *columns, strict=True)]
        at = np.flatnonzero(codes == OP_CLASSES.index("copy"))
        if len(at):
            of_event = dict(zip(events, zip(phases, steps, strict=True), strict=True))
            unknown = np.full(len(at), -1, np.int32)
            of_device = CopyOps(
                np.array(events, np.int64)[at],
                np.array(instructions, np.int32)[at],
                start[at],
                end[at],
                times.work_before.values[at],
                times.work_during.values[at],
                unknown,
                unknown,
                np.array([sizes.get((run_id, e), -1) for e in events], np.int64)[at],
            )
            windows = copy_windows(facts[run_id], {}, of_device)
            for event, *row in zip(
                windows["event_id"].tolist(), *(windows[n].tolist() for n in _COPY_COLUMNS), strict=True
            ):
                phase, step = of_event[event]
                place = {"run_id": run_id, "device_id": device_id, "event_id": event, "phase": phase, "step": step}
                copies.append(place | {"host": "host0"} | dict(zip(_COPY_COLUMNS, row, strict=True)))
    if copies:
        for copy in copies:
            copy["done_event_id"] = copy["done_event_id"] if copy["is_async"] else None
            copy["bytes"] = None if copy["bytes"] < 0 else copy["bytes"]
        _insert(connection, "copies", copies)
    if rows:
        connection.register("leaf_times", pa.Table.from_pylist(rows, _LEAF_TIMES_SCHEMA))
        sets = ", ".join(f"{name} = t.{name}" for name in LEAF_TIMES)
        same = "o.run_id = t.run_id AND o.event_id = t.event_id"
        connection.execute(f"UPDATE given.ops AS o SET {sets} FROM leaf_times AS t WHERE {same}")
        connection.unregister("leaf_times")


def _fill_collectives(connection: duckdb.DuckDBPyConnection) -> None:
    """Fill what a collective owes to its ops, and to the collective before it on its device."""
    connection.execute(
        """
        UPDATE given.collectives AS c SET previous_axis = p.axis, previous_end_ps = p.end_ps,
          previous_phase = p.phase, previous_step = p.step
        FROM (
          SELECT n.run_id, n.event_id AS next, unnest(max_by(b, (b.end_ps, b.start_ps, b.event_id)))
          FROM given.collectives AS n JOIN given.collectives AS b
          ON n.run_id = b.run_id AND n.device_id = b.device_id AND (b.start_ps, b.event_id) < (n.start_ps, n.event_id)
          GROUP BY n.run_id, n.event_id
        ) AS p
        WHERE c.run_id = p.run_id AND c.event_id = p.next
        """
    )
    connection.execute(
        """
        UPDATE given.collectives AS c SET exposed_added_ps = coalesce((
          SELECT sum(o.duration_ps - o.class_overlap_ps) FROM given.ops AS o
          WHERE o.run_id = c.run_id AND o.event_id IN (c.event_id, c.done_event_id)
        ), c.exposed_ps), exposed_done_ps = coalesce(c.exposed_done_ps, (
          SELECT o.duration_ps - o.class_overlap_ps FROM given.ops AS o
          WHERE o.run_id = c.run_id AND o.event_id = c.done_event_id
        ))
        WHERE c.start_ps IS NOT NULL
        """
    )


def _facts(connection: duckdb.DuckDBPyConnection) -> dict[str, list[OpFacts]]:
    """What ingest knows of the instructions of each run, by instruction id."""
    facts: dict[str, list[OpFacts]] = {}
    columns = "run_id, instruction_id, name, program_id, op_class, async_role, async_start"
    nothing = OpFacts("", None, False, "compute", None, None, None)
    for run_id, number, *row in connection.execute(f"SELECT {columns} FROM given.instructions").fetchall():
        name, program_id, op_class, role, start_name = row
        of_run = facts.setdefault(run_id, [])
        of_run += [nothing] * (number + 1 - len(of_run))
        of_run[number] = OpFacts(name, program_id, True, op_class, role, start_name, None)
    return facts


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: list[dict[str, Any]]) -> None:
    schema = pa.schema([c.arrow.with_nullable(True) for c in TABLES[table].columns])
    connection.register("arrow_rows", pa.Table.from_pylist(rows, schema))
    connection.execute(f"INSERT INTO given.{table} SELECT * FROM arrow_rows")
    connection.unregister("arrow_rows")


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
    if table == "collectives":  # NULL only in a compiled program, which says so
        row = {"start_ps": 0, "end_ps": 0} | row
        is_exposed = row["start_ps"] is not None and not row.get("is_async")
        row = {"exposed_ps": row["end_ps"] - row["start_ps"] if is_exposed else 0} | row
        if row["start_ps"] is not None:
            row = {"hidden_ps": row["end_ps"] - row["start_ps"] - row["exposed_ps"]} | row
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
