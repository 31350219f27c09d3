"""Evaluates the metrics of one run into rows of main.metric_values, and runs its audits.

A scratch database holds the run's rows as tables. A model that several definitions read is evaluated once, into a table
of the same name, which is dropped after its last reader. Models with a row per op stay views: storing their rows takes
longer, and far more memory, than computing them again. This module computes no metric itself; it runs the SQL of sql/.
"""

from __future__ import annotations

import json
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from graphlib import TopologicalSorter
from operator import itemgetter
from typing import Any

import duckdb

from tracewarehouse.definitions import derived
from tracewarehouse.definitions.definition import Metric, View
from tracewarehouse.definitions.reading import Definitions, load_definitions
from tracewarehouse.evaluation.audits import BEYOND_RANGE, Evaluation, Finding, audit_sql, beyond_range, run_audit
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import literal

_Row = tuple[str, float | None, tuple[float | None, ...]]
"""Dimensions as JSON, the value, and the values of the columns that have a range."""

AT_ONCE = 2
"""Statements that run in parallel, as DuckDB plans each on one core, which is most of the work of a small run. Each of
them may hold rows of the whole run."""

_ROW_PER_EVENT = frozenset(("ops", "host_events", "event_stats", "collectives", "copies", "counters"))
"""Tables that are read from their files. The others are so small that copying them once takes less time than opening
their files for every statement."""
Task = Callable[[duckdb.DuckDBPyConnection], None]


def evaluate(
    connection: duckdb.DuckDBPyConnection,
    run_id: str,
    definitions: Definitions | None = None,
    *,
    unstored: bool = False,
) -> Evaluation:
    """Evaluate the metrics and audits of a run in the schema main of a database, such as a lens.

    Args:
        connection: the database; it is not changed.
        definitions: the models, metrics and audits; by default those of the package.
        unstored: evaluate deprecated and compatibility versions as well.
    """
    prepared = prepared_metrics(connection, definitions or load_definitions(), unstored=unstored)
    return prepared.evaluate(connection, run_id, _run_sources(connection, run_id))


def suspected_audits(
    connection: duckdb.DuckDBPyConnection, run_id: str, definitions: Definitions, sources: Mapping[str, str | None]
) -> list[View]:
    """The audits that may find something in a run; the others find nothing.

    Those of what ingest evaluates are evaluated together here, and models that several read are computed once.

    Raises:
        MetricError: a metric or an audit fails.
    """
    audits, metrics = derived.all_audits(definitions), prepared_metrics(connection, definitions)
    evaluation = metrics.evaluate(connection, run_id, {t: source for t, source in sources.items() if source})
    if evaluation.beyond_range:
        return audits
    found = {f.audit for f in evaluation.findings}
    others = {m.view.path for m in definitions.metrics if m.view.compares_runs or not m.header.is_stored}
    return [a for a in audits if a.name in found or a.path in others]


_kept: dict[bool, PreparedMetrics] = {}


def prepared_metrics(
    connection: duckdb.DuckDBPyConnection, definitions: Definitions, *, unstored: bool = False
) -> PreparedMetrics:
    """Prepare metrics, or return those that this process prepared last, if they have the same definitions."""
    kept = _kept.get(unstored)
    if kept is None or kept.definitions is not definitions:
        kept = _kept[unstored] = PreparedMetrics(connection, definitions, unstored=unstored)
    return kept


class PreparedMetrics:
    """The part of evaluating metrics and audits that needs no run: the parsed statements and their order.

    Metrics that compare runs are left out: other runs would change their values, so metrics.all_values evaluates them
    on each query. Metrics of single ops, deprecated and compatibility versions are left out too; query their
    views instead.

    Args:
        connection: any database; only its parser is used.
        definitions: the models, metrics and audits.
        unstored: include metrics of single ops, deprecated and compatibility versions.
    """

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, definitions: Definitions, *, unstored: bool = False
    ) -> None:
        self.definitions = definitions
        self._metrics = [
            m for m in definitions.metrics if not m.view.compares_runs and (unstored or m.header.is_stored)
        ]
        self._steps: dict[str, Callable[[_Run, duckdb.DuckDBPyConnection], None]] = {}
        self._needs: dict[str, frozenset[str]] = {}
        parsed = partial(_parsed, connection)
        beneath = list(_beneath(definitions, self._metrics))
        all_readers = [*(v for v, _ in beneath), *(m.view for m in self._metrics), *definitions.audits]
        tables = {view.qualified for view, kind in beneath if kind == "TABLE"}
        for view, kind in beneath:
            columns = _columns_read(view, [r for r in all_readers if view.qualified in r.depends_on], definitions.added)
            sql = f"SELECT {', '.join(columns)} FROM ({view.sql})" if kind == "TABLE" else view.sql  # noqa: S608
            statement = parsed(view, f"CREATE {kind} {view.qualified} AS {sql}")
            self._add(view.qualified, partial(_Run.make, view=view, statement=statement), view.depends_on)
        for metric in self._metrics:
            header, view = metric.header, metric.view
            numbers = [f"CAST({c} AS DOUBLE)" for c in (header.value, *header.ranges)]
            names = ", ".join((*header.grain[1:], *numbers))
            statement = parsed(view, f"SELECT {names} FROM ({view.sql})")  # noqa: S608
            step = partial(_Run.value, metric=metric, statement=statement)
            self._add(f"value of {view.qualified}", step, view.depends_on)
        for audit in definitions.audits:
            statement = parsed(audit, audit_sql(audit, limit=1))
            self._add(f"audit {audit.name}", partial(_Run.audit, audit=audit, statement=statement), audit.depends_on)
        for name in sorted(frozenset[str]().union(*self._needs.values()) - self._steps.keys()):
            self._add(name, partial(_Run.load, table=name.removeprefix("main.")), frozenset())
        for name, readers in [(name, self._readers(name, tables)) for name in sorted(tables)]:
            self._add(f"end of {name}", partial(_Run.drop, table=name), readers)

    def _add(self, name: str, step: Callable[[_Run, duckdb.DuckDBPyConnection], None], needs: frozenset[str]) -> None:
        self._steps[name], self._needs[name] = step, needs

    def _readers(self, name: str, tables: Collection[str]) -> frozenset[str]:
        readers = [n for n, read in self._needs.items() if name in read]
        return frozenset(readers).union(*(self._readers(n, tables) for n in readers if n not in tables))

    def evaluate(self, connection: duckdb.DuckDBPyConnection, run_id: str, sources: Mapping[str, str]) -> Evaluation:
        """Evaluate a run.

        Args:
            connection: a database; it is not changed.
            sources: maps each table of the schema to the SQL of the run's rows, in a form that can follow FROM; a table
                without rows has no entry.
        """
        run = _Run(run_id, sources)
        tasks = {name: partial(step, run) for name, step in self._steps.items()}
        with _scratch(connection, run_id) as cursors:
            run_tasks(tasks, self._needs, cursors)
        columns: dict[str, list[Any]] = {n: [] for n in TABLES["metric_values"].arrow_of_run.names}
        for metric in self._metrics:
            fingerprint = self.definitions.fingerprint(metric.view)
            for dimensions, value, _ in run.rows[metric.view.qualified]:
                if value is None:
                    continue
                columns["metric"].append(metric.name)
                columns["version"].append(metric.version)
                columns["dimensions"].append(dimensions)
                columns["value"].append(value)
                columns["unit"].append(metric.header.unit)
                columns["fingerprint"].append(fingerprint)
        names = [m.view.qualified for m in self._metrics if m.view.qualified in run.too_large]
        findings = [run.findings[a.name] for a in self.definitions.audits if a.name in run.findings]
        beyond = [
            (run_id, metric.name, metric.version, dimensions, column, value)
            for metric in self._metrics
            for dimensions, _, values in run.rows[metric.view.qualified]
            for column, value in derived.beyond_range(metric, values)
        ]
        if beyond:
            header = derived.range_header()
            findings.append(Finding(header.audit, header.description, tuple(header.columns), (min(beyond),)))
        return Evaluation(columns, {n: run.too_large[n] for n in names}, findings)


class _Run:
    def __init__(self, run_id: str, sources: Mapping[str, str]) -> None:
        self.rows: dict[str, list[_Row]] = {}
        """The rows of each metric, by the name of its view."""
        self.too_large: dict[str, str] = {}
        """DuckDB's message for each metric whose numbers do not fit."""
        self.findings: dict[str, Finding] = {}
        self._run_id = run_id
        self._sources = sources
        self._failed: dict[str, str] = {}

    def load(self, cursor: duckdb.DuckDBPyConnection, table: str) -> None:
        source = self._sources.get(table)
        columns = {c.name: f'"{c.name}"' if source else f"CAST(NULL AS {c.type})" for c in TABLES[table].columns}
        # every window and join carries run_id; an ENUM with one value takes a byte instead of a string
        columns["run_id"] = f"CAST({literal(self._run_id)} AS main.run)"
        selected = ", ".join(f'{sql} AS "{name}"' for name, sql in columns.items())
        rows = f"FROM {source}" if source else "WHERE false"
        kind = "VIEW" if source and table in _ROW_PER_EVENT else "TABLE"
        cursor.execute(f"CREATE {kind} main.{table} AS SELECT {selected} {rows}")

    def make(self, cursor: duckdb.DuckDBPyConnection, view: View, statement: duckdb.Statement) -> None:
        if (reason := self._reason(view)) is not None:
            self._failed[view.qualified] = reason
            return
        try:
            cursor.execute(statement)
        except BEYOND_RANGE as error:
            self._failed[view.qualified] = str(error)
        except duckdb.Error as error:
            raise MetricError(f"{view.path}: {error}") from None

    def drop(self, cursor: duckdb.DuckDBPyConnection, table: str) -> None:
        if table not in self._failed:
            cursor.execute(f"DROP TABLE {table}")

    def value(self, cursor: duckdb.DuckDBPyConnection, metric: Metric, statement: duckdb.Statement) -> None:
        name, reason = metric.view.qualified, self._reason(metric.view)
        try:
            self.rows[name] = []
            if reason is None:
                rows = _rows(metric, cursor.execute(statement).fetchall())
                self.rows[name] = sorted(rows, key=itemgetter(0))
        except BEYOND_RANGE as error:
            reason = str(error)
        except duckdb.Error as error:
            raise MetricError(f"{metric.view.path}: {error}") from None
        if reason is not None:
            self.too_large[name] = reason.partition("\n")[0]
            self.rows[name] = []

    def audit(self, cursor: duckdb.DuckDBPyConnection, audit: View, statement: duckdb.Statement) -> None:
        if (reason := self._reason(audit)) is not None:
            self.findings[audit.name] = beyond_range(audit, reason)
        elif finding := run_audit(cursor, audit, statement):
            self.findings[audit.name] = finding

    def _reason(self, view: View) -> str | None:
        """The reason why a view has no rows, if it reads a failed model; else None."""
        return next((self._failed[n] for n in sorted(view.depends_on) if n in self._failed), None)


def _parsed(connection: duckdb.DuckDBPyConnection, view: View, sql: str) -> duckdb.Statement:
    try:
        [statement] = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise MetricError(f"{view.path}: {error}") from None
    return statement


def _rows(metric: Metric, rows: Sequence[Sequence[Any]]) -> Iterator[_Row]:
    names = metric.header.grain[1:]
    seen = set()
    for row in rows:
        value, *ranged = row[len(names) :]
        text = json.dumps(dict(zip(names, row, strict=False)), ensure_ascii=False)
        if text in seen:
            raise MetricError(
                f"{metric.view.path}: grain {', '.join(metric.header.grain)} is not unique, "
                f"there are two rows of {text}"
            )
        seen.add(text)
        yield text, value, tuple(ranged)


def _beneath(definitions: Definitions, metrics: Sequence[Metric]) -> Iterator[tuple[View, str]]:
    """The models behind metrics and audits, in order: a table if several definitions read it, else a view."""
    readers: Counter[str] = Counter()
    for view in (*(m.view for m in metrics), *definitions.audits):
        readers.update(view.depends_on)
    for view in reversed(definitions.ordered):
        if view.schema == "models" and readers[view.qualified]:
            readers.update(view.depends_on)
    for view in definitions.ordered:
        if count := readers[view.qualified]:
            yield view, "TABLE" if count > 1 and view.is_kept else "VIEW"


def _columns_read(view: View, readers: Sequence[View], added: Collection[str]) -> list[str]:
    """The columns of a model whose names occur in its readers.

    If a reader is a user's own, these are all columns, as it may use `SELECT *`; the package's own definitions may not.
    """
    if any(r.qualified in added for r in readers):
        return list(view.header.columns)
    words = set(re.findall(r"\w+", " ".join(r.sql for r in readers).lower()))
    return [c for c in view.header.columns if c in words]


def _run_sources(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, str]:
    [(name,)] = connection.execute("SELECT current_database()").fetchall()
    where = f"WHERE run_id = {literal(run_id)}"
    return {t: f'(SELECT * FROM "{name}".main.{t} {where})' for t in TABLES}  # noqa: S608


@contextmanager
def _scratch(connection: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[list[duckdb.DuckDBPyConnection]]:
    """Cursors of an empty database in memory, in which main.run is the type for the run's id."""
    name = f"scratch_{uuid.uuid4().hex}"
    cursors = [connection.cursor() for _ in range(AT_ONCE)]
    connection.execute(f"ATTACH ':memory:' AS {name} (READ_WRITE)")
    try:
        for cursor in cursors:
            cursor.execute(f"USE {name}")
        cursors[0].execute(
            f"CREATE SCHEMA models; CREATE SCHEMA metrics; CREATE TYPE main.run AS ENUM ({literal(run_id)})"
        )
        yield cursors
    finally:
        for cursor in cursors:
            cursor.close()
        connection.execute(f"DETACH {name}")


def run_tasks(
    tasks: Mapping[str, Task], needs: Mapping[str, Collection[str]], cursors: Sequence[duckdb.DuckDBPyConnection]
) -> None:
    """Run every task once, after the tasks that it needs.

    Among the tasks that are ready, those that became ready last run first, so that the result of a task is read soon
    and not kept for long. Among tasks that became ready together, the one with the longest chain of tasks after it runs
    first, so that less work is left for a single cursor at the end.

    Args:
        needs: for each task, the names of the tasks that it needs; a name that is not a task counts as done.
        cursors: cursors of one database; each runs one task at a time.
    """
    before = {name: needs[name] & tasks.keys() for name in tasks}
    chain = _chains(before)
    order = TopologicalSorter(before)
    order.prepare()
    idle, ready = list(cursors), sorted(order.get_ready(), key=chain.__getitem__)
    running: dict[Future[None], tuple[str, duckdb.DuckDBPyConnection]] = {}
    with ThreadPoolExecutor(len(cursors)) as threads:
        try:
            while ready or running:
                while ready and idle:
                    name, cursor = ready.pop(), idle.pop()
                    running[threads.submit(tasks[name], cursor)] = name, cursor
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    name, cursor = running.pop(future)
                    idle.append(cursor)
                    future.result()
                    order.done(name)
                ready += sorted(order.get_ready(), key=chain.__getitem__)
        except BaseException:  # Ctrl-C too: the threads wait for their statements
            for cursor in cursors:
                cursor.interrupt()
            raise


def _chains(before: Mapping[str, Collection[str]]) -> dict[str, int]:
    """The number of tasks in the longest chain that begins with each task, the task included."""
    chain = dict.fromkeys(before, 1)
    for name in reversed(list(TopologicalSorter(before).static_order())):
        for needed in before[name]:
            chain[needed] = max(chain[needed], chain[name] + 1)
    return chain
