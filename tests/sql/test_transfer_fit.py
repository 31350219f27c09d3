"""Fits of transfer time, and what follows from them, are what exact fractions give on transfers made up on a line."""

from __future__ import annotations

import random
from typing import Any

import duckdb
import pytest
from given_tables import warehouse_of
from plain_metrics import OF_FITS, Run, student_quantile

RUNS = 40
_TABLES = ("runs", "devices", "instructions", "ops", "collectives", "phases")
Row = dict[str, Any]


def _made_up(run_id: str, seed: int) -> dict[str, list[Row]]:
    """A run of one step on two devices whose collectives take a latency and a time per byte, with some noise."""
    pick = random.Random(seed)
    latency, slope = pick.randrange(0, 4_000_000), pick.uniform(5, 200)  # ps and ps per byte
    noise = pick.choice([0, 0, 100_000, 2_000_000])
    sizes = pick.sample(range(1_000, 300_000), pick.randrange(2, 6))
    rows: list[Row] = []
    at = 0
    for number in range(pick.randrange(8, 40)):
        size, is_async = pick.choice(sizes), pick.random() < 0.3
        time = max(latency + round(slope * size) + pick.randrange(-noise, noise + 1), 1_000)
        for device in (0, 1):
            late = pick.randrange(500_000) if device else 0
            rows.append(
                {
                    "event_id": len(rows),
                    "instance": number,
                    "device_id": device,
                    "kind": "collective-permute",
                    "group_size": 2,
                    "is_partial": number % 7 == 6,
                    "is_async": is_async,
                    "message_bytes": size,
                    "start_ps": at - late,
                    "end_ps": at + time,
                    "exposed_ps": pick.randrange(time) if is_async else time + late,
                    "phase": "decode",
                    "step": 1,
                }
            )
        at += time + 1_000_000
    places = [{"device_id": d, "start_ps": -1_000_000} for d in (0, 1)]
    tables: dict[str, list[Row]] = {
        "runs": [{}],
        "devices": [{"device_id": d, "peak_ici_gbps": pick.choice([None, 20.0, 400.0])} for d in (0, 1)],
        "instructions": [{"instruction_id": 0, "opcode": "fusion"}],
        "ops": [
            p | {"event_id": 1000 + d, "phase": "decode", "step": 1, "duration_ps": 5} for d, p in enumerate(places)
        ],
        "collectives": rows,
        "phases": [p | {"kind": "step", "name": "decode", "index": 1, "end_ps": at} for p in places],
    }
    return {name: [{"run_id": run_id} | row for row in of_table] for name, of_table in tables.items()}


@pytest.fixture(scope="module")
def connection() -> Any:
    tables: dict[str, list[Row]] = {}
    for seed in range(RUNS):
        for name, rows in _made_up(f"r{seed}", seed).items():
            tables.setdefault(name, []).extend(rows)
    with warehouse_of(tables) as database:
        yield database


@pytest.fixture(scope="module")
def runs(connection: duckdb.DuckDBPyConnection) -> dict[str, Run]:
    found: dict[str, dict[str, list[Row]]] = {f"r{seed}": {} for seed in range(RUNS)}
    for name in _TABLES:
        for of_run in found.values():
            of_run[name] = []
        for row in connection.sql(f"SELECT * FROM main.{name}").to_arrow_table().to_pylist():
            found[row.pop("run_id")][name].append(row)
    return {run_id: Run(tables) for run_id, tables in found.items()}


@pytest.mark.parametrize(("metric", "column"), OF_FITS)
def test_exact_fractions_give_the_same(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, Run], metric: str, column: str
) -> None:
    grain = "phase, link, axis, basis, factor" if metric == "faster_links" else "kind, axis"
    found: dict[str, dict[Any, Any]] = {run_id: {} for run_id in runs}
    for run_id, *key, value in connection.execute(f"SELECT run_id, {grain}, {column} FROM metrics.{metric}").fetchall():
        found[run_id][tuple(key)] = value
    with_rows = sum(1 for rows in found.values() if any("exposed" not in key for key in rows))
    assert RUNS / 6 < with_rows < RUNS, "runs with a fit and runs without one are both wanted"
    near = 1e-3 if column.endswith(("_high_us", "_low_gbps")) else 1e-6  # the quantile is an expansion
    for run_id, run in runs.items():
        assert found[run_id] == pytest.approx(OF_FITS[metric, column](run), rel=near, abs=1e-6), run_id


def test_the_plain_quantile_is_the_one_of_printed_tables() -> None:
    printed = {4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042}
    assert {n: round(student_quantile(n), 3) for n in printed} == printed
