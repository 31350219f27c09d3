"""Evaluates the metrics of one run into rows of main.metric_values.

Models that several definitions read are evaluated once, into tables of a scratch database whose tables are the run's
rows; every metric then reads those under the names it knows. Models with a row per op stay views: to keep their rows
takes longer, and far more memory, than to compute them again. No metric is computed here: this only runs SQL of sql/.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb

from ingest.errors import MetricError
from ingest.schema import TABLES
from tracewarehouse.cursors import Task, run_tasks
from tracewarehouse.definitions import Definitions, Metric, ModelHeader, View, load_definitions
from tracewarehouse.query import literal

if TYPE_CHECKING:
    import pyarrow as pa


_Row = tuple[str, float | None]
"""Dimensions as JSON, and the value."""

_AT_ONCE = 2
"""Statements at once; each of them may hold rows of the whole run."""

_BEYOND_RANGE = (duckdb.ConversionException, duckdb.OutOfRangeException)
"""What DuckDB raises where the numbers of a run, and not the SQL, are at fault: a sum beyond 64 bits."""


def evaluate(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    definitions: Definitions | None = None,
    beyond_range: dict[str, str] | None = None,
    *,
    deprecated: bool = False,
) -> pa.Table:
    """Rows of main.metric_values, without run_id, for every version of every metric that the run has.

    Metrics that compare runs have none: other runs would change them, so metrics.all_values evaluates them each time.
    Nor have deprecated versions, whose views answer who still asks for them.
    A metric whose numbers do not fit their type has one row, without dimensions, whose value is NULL; the others have
    theirs. Rows are in order of metric, version and dimensions.

    Args:
        connection: a database whose schema main holds the tables, such as a lens; it is left as it was.
        run_id: the run.
        definitions: the models and metrics; by default those of the package.
        beyond_range: takes in the views of metrics whose numbers do not fit, with what DuckDB says of them.
        deprecated: evaluate deprecated versions as well.

    Raises:
        MetricError: a metric fails, or its grain does not identify its rows.
    """
    import pyarrow as pa

    found = definitions or load_definitions()
    metrics = [m for m in found.metrics if not m.view.compares_runs and (deprecated or m.header.status != "deprecated")]
    rows, too_large = _evaluated(connection, run_id, found, metrics)
    if beyond_range is not None:
        beyond_range |= {
            m.view.qualified: too_large[m.view.qualified] for m in metrics if m.view.qualified in too_large
        }
    schema = TABLES["metric_values"].arrow
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for metric in metrics:
        fingerprint = found.fingerprint(metric.view)
        for dimensions, value in rows[metric.view.qualified]:
            columns["metric"].append(metric.name)
            columns["version"].append(metric.version)
            columns["dimensions"].append(dimensions)
            columns["value"].append(value)
            columns["unit"].append(metric.header.unit)
            columns["fingerprint"].append(fingerprint)
    return pa.table(columns, schema=schema)


def _evaluated(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    definitions: Definitions,
    metrics: Sequence[Metric],
) -> tuple[dict[str, list[_Row]], dict[str, str]]:
    """The rows of each metric by its view's name, and what DuckDB says of those whose numbers do not fit."""
    failed: dict[str, str] = {}
    rows: dict[str, list[_Row]] = {}
    too_large: dict[str, str] = {}

    def make(view: View, kind: str, cursor: duckdb.DuckDBPyConnection) -> None:
        if (reason := _reason(failed, view)) is not None:
            failed[view.qualified] = reason
            return
        try:
            cursor.execute(f"CREATE {kind} {view.qualified} AS {view.sql}")
        except _BEYOND_RANGE as error:
            failed[view.qualified] = str(error)
        except duckdb.Error as error:
            raise MetricError(f"{view.path}: {error}") from None

    def value(metric: Metric, cursor: duckdb.DuckDBPyConnection) -> None:
        reason = _reason(failed, metric.view)
        try:
            rows[metric.view.qualified] = sorted(_rows(cursor, metric)) if reason is None else []
        except _BEYOND_RANGE as error:
            reason = str(error)
        if reason is not None:
            too_large[metric.view.qualified] = reason.partition("\n")[0]
            rows[metric.view.qualified] = [("{}", None)]

    tasks: dict[str, Task] = {}
    needs: dict[str, frozenset[str]] = {}
    for view, kind in _beneath(definitions, metrics):
        tasks[view.qualified] = partial(make, view, kind)
        needs[view.qualified] = view.depends_on
    for metric in metrics:
        name = f"value of {metric.view.qualified}"
        tasks[name] = partial(value, metric)
        needs[name] = metric.view.depends_on | metric.view.probe_depends_on
    with _scratch(connection, run_id) as cursors:
        run_tasks(tasks, needs, cursors)
    return rows, too_large


def _rows(connection: duckdb.DuckDBPyConnection, metric: Metric) -> Iterator[_Row]:
    header, view = metric.header, metric.view
    try:
        if not connection.execute(f"SELECT 1 FROM ({header.requires}) LIMIT 1").fetchall():  # noqa: S608
            return
        names = ", ".join((*header.grain[1:], f"CAST({header.value} AS DOUBLE)"))
        rows = connection.execute(f"SELECT {names} FROM ({view.sql})").fetchall()  # noqa: S608
    except _BEYOND_RANGE:
        raise
    except duckdb.Error as error:
        raise MetricError(f"{view.path}: {error}") from None
    seen = set()
    for *dimensions, value in rows:
        text = json.dumps(dict(zip(header.grain[1:], dimensions, strict=True)), ensure_ascii=False)
        if text in seen:
            raise MetricError(
                f"{view.path}: grain {', '.join(header.grain)} is not unique, there are two rows of {text}"
            )
        seen.add(text)
        yield text, value


def _reason(failed: Mapping[str, str], view: View) -> str | None:
    """Why a view that reads a failed model has no rows; None where it reads none."""
    return next((failed[n] for n in sorted(view.depends_on | view.probe_depends_on) if n in failed), None)


def _beneath(definitions: Definitions, metrics: Sequence[Metric]) -> Iterator[tuple[View, str]]:
    """What the metrics read, in order: a table where several read it, so that it is evaluated once, else a view."""
    readers: Counter[str] = Counter()
    for metric in metrics:
        readers.update(metric.view.depends_on | metric.view.probe_depends_on)
    for view in reversed(definitions.ordered):
        if view.schema == "models" and readers[view.qualified]:
            readers.update(view.depends_on)
    for view in definitions.ordered:
        if count := readers[view.qualified]:
            yield view, "TABLE" if count > 1 and not _is_inline(view) else "VIEW"


def _is_inline(view: View) -> bool:
    return isinstance(view.header, ModelHeader) and view.header.inline


@contextmanager
def _scratch(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[list[duckdb.DuckDBPyConnection]]:
    """Cursors of a database in memory whose views are the run's rows of the tables."""
    [(source,)] = connection.execute("SELECT current_database()").fetchall()
    name = f"scratch_{uuid.uuid4().hex}"
    cursors = [connection.cursor() for _ in range(_AT_ONCE)]
    connection.execute(f"ATTACH ':memory:' AS {name} (READ_WRITE)")
    try:
        for cursor in cursors:
            cursor.execute(f"USE {name}")
        quoted = literal(run_id)
        # every window and join carries run_id: as the only value of an ENUM it is a byte and not a string
        statements = ["CREATE SCHEMA models", "CREATE SCHEMA metrics", f"CREATE TYPE main.run AS ENUM ({quoted})"]
        for table in TABLES.values():
            only = f"* REPLACE (CAST({quoted} AS main.run) AS run_id)"
            rows = f'SELECT {only} FROM "{source}".main.{table.name} WHERE run_id = {quoted}'  # noqa: S608
            statements.append(f"CREATE VIEW main.{table.name} AS {rows}")
        cursors[0].execute(";\n".join(statements))
        yield cursors
    finally:
        for cursor in cursors:
            cursor.close()
        connection.execute(f"DETACH {name}")
