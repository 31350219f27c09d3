"""Metrics of runs made up at random are what plain Python makes of the same rows.

The captures at hand lack what some metrics need, such as the peaks of a chip; these runs have it, and corners besides.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from given_tables import warehouse_of
from plain_metrics import COLUMNS, METRICS, Run
from random_runs import RandomRun

from tracewarehouse.definitions.reading import load_definitions

DEFINITIONS = load_definitions()
RUNS = 60
_READ = ("runs", "devices", "instructions", "ops", "collectives", "traffic", "phases")
_LACKING = {"launch_overhead"}
"""Metrics of what these runs have none of, the host's dispatches."""
_COLUMNS = {
    (name, DEFINITIONS.metric(name).header.value): compute for name, compute in METRICS.items() if name not in _LACKING
} | COLUMNS


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """All runs in one warehouse."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for seed in range(RUNS):
        for name, rows in RandomRun(f"r{seed}", seed).tables.items():
            tables.setdefault(name, []).extend(rows)
    with warehouse_of(tables, DEFINITIONS) as database:
        yield database


@pytest.fixture(scope="module")
def runs(connection: duckdb.DuckDBPyConnection) -> dict[str, Run]:
    """The runs as the plain computation reads them, by run id."""
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {f"r{seed}": {} for seed in range(RUNS)}
    for name in _READ:
        found = connection.execute(f"SELECT * FROM main.{name}")
        columns = [d[0] for d in found.description]
        for of_run in tables.values():
            of_run[name] = []
        for row in found.fetchall():
            cells = dict(zip(columns, row, strict=True))
            tables[cells.pop("run_id")][name].append(cells)
    return {run_id: Run(of_run) for run_id, of_run in tables.items()}


@pytest.mark.parametrize(("name", "column"), _COLUMNS, ids=lambda text: text)
def test_plain_python_computes_the_same(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, Run], name: str, column: str
) -> None:
    metric = DEFINITIONS.metric(name)
    names = ", ".join([*metric.header.grain, column])
    found: dict[str, dict[Any, Any]] = {run_id: {} for run_id in runs}
    for run_id, *grain, value in connection.execute(f"SELECT {names} FROM metrics.{metric.view.name}").fetchall():
        found[run_id][tuple(grain)] = value
    assert sum(map(len, found.values())) > RUNS / 6, "too few rows to prove anything"
    for run_id, run in runs.items():
        expected = _COLUMNS[name, column](run)
        assert found[run_id].keys() == expected.keys(), run_id
        for key, value in expected.items():
            is_number = isinstance(value, float | int)
            assert found[run_id][key] == (pytest.approx(value, rel=1e-9, abs=1e-9) if is_number else value), (
                run_id,
                key,
            )
