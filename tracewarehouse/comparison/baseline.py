"""Reads and writes baseline files: metric values of some runs as newline-delimited JSON, for version control.

The first line names the format. One line per run follows, with the run's columns of main.runs, then one line per value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

from tracewarehouse.database.checked_files import CheckedFiles
from tracewarehouse.database.lens import add_tables, add_views, begin_lens, run_sources
from tracewarehouse.database.session import COMPARED, behind
from tracewarehouse.definitions.derived import CATALOG
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.read_only import literal, run_query
from tracewarehouse.queries.result import QueryResult

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_HEAD = {"format": "tracewarehouse baseline", "version": 1}


@dataclass(frozen=True)
class Baseline:
    """The contents of a baseline file.

    Attributes:
        runs: rows of main.runs.
        values: rows of main.metric_values of these runs.
    """

    runs: list[dict[str, Any]]
    values: list[dict[str, Any]]

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs."""
        return [r["run_id"] for r in self.runs]


def baseline_lines(warehouse: Warehouse, run_ids: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a baseline file for some runs, always in the same order."""
    wanted = ", ".join(map(literal, run_ids))
    # the card is long, and no comparison reads it
    runs = warehouse.query(f"SELECT * REPLACE (NULL AS card) FROM main.runs WHERE run_id IN ({wanted}) ORDER BY run_id")
    values = warehouse.query(f"SELECT * FROM main.metric_values WHERE run_id IN ({wanted}) ORDER BY ALL")
    yield json.dumps(_HEAD)
    for row in runs.dicts():
        yield json.dumps({"run": {k: v for k, v in row.items() if v is not None}}, ensure_ascii=False)
    for row in values.dicts():
        yield json.dumps({"value": row}, ensure_ascii=False)


def read_baseline(path: Path) -> Baseline:
    """Read a baseline file.

    Its runs are renamed to `<run id> in <file name>`, so that they never share an id with a run of a warehouse.
    """
    try:
        with path.open(encoding="utf-8") as file:
            is_baseline = json.loads(file.readline(10_000)) == _HEAD
            lines = [json.loads(line) for line in file] if is_baseline else []
        runs = [_renamed(line["run"], path) for line in lines if "run" in line]
        values = [_renamed(line["value"], path) for line in lines if "value" in line]
    except OSError as error:
        raise WarehouseError(f"{path}: cannot be read as a baseline: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        is_baseline = False
    if not is_baseline:
        raise WarehouseError(
            f"{path}: is neither a run nor a baseline file; write one with `tw baseline RUN -o FILE`, or name a run"
        )
    if not runs:
        raise WarehouseError(f"{path}: holds no run; write it again with `tw baseline RUN -o FILE`")
    return Baseline(runs, values)


def _renamed(row: dict[str, Any], path: Path) -> dict[str, Any]:
    return {**row, "run_id": f"{row['run_id']} in {path.name}"}


@contextmanager
def open_with(warehouse: Warehouse, baseline: Baseline) -> Iterator[Callable[[str], QueryResult]]:
    """Open a database with the runs of a warehouse and of a baseline side by side, and yield a function to query it.

    The database holds only the tables and macros that a comparison reads.
    """
    import pyarrow as pa

    runs = warehouse.lake.runs()
    sources = run_sources(warehouse.lake.root, runs)
    read = behind(warehouse.definitions, COMPARED)
    CheckedFiles(warehouse.lake).check(runs, [t for t in TABLES if f"main.{t}" in read])
    with duckdb.connect(":memory:") as connection:
        try:
            if warehouse.lake.filesystem is not None:
                connection.register_filesystem(warehouse.lake.filesystem)
            connection.execute("CREATE SCHEMA baseline")
            for name, rows in (("runs", baseline.runs), ("metric_values", baseline.values)):
                schema = pa.schema([c.arrow.with_nullable(True) for c in TABLES[name].columns])
                connection.register("arrow_rows", pa.Table.from_pylist(rows, schema))
                connection.execute(f"CREATE TABLE baseline.{name} AS FROM arrow_rows")
                connection.unregister("arrow_rows")
                parts = [f"SELECT {TABLES[name].names_sql} FROM {s}" for s in (sources[name], f"baseline.{name}") if s]
                sources[name] = f"({' UNION ALL '.join(parts)})"
            begin_lens(connection)
            add_tables(connection, {t: sources[t] for t in TABLES if f"main.{t}" in read})
            add_views(
                connection,
                warehouse.definitions,
                [v for v in warehouse.definitions.ordered if v.qualified in read],
                own=[CATALOG],
                macros=[m for m in warehouse.definitions.macros if m.qualified in read],
            )
        except (duckdb.Error, pa.ArrowException) as error:
            raise WarehouseError(f"the runs of {warehouse.path} and the baseline cannot be read: {error}") from None
        yield lambda sql: run_query(connection, sql, read_only=False)
