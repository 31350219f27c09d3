"""Metrics of servers made up at random are what plain Python makes of the same rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from given_tables import warehouse_of
from plain_metrics import Run
from plain_server_metrics import COLUMNS

from tracewarehouse.definitions.reading import load_definitions

DEFINITIONS = load_definitions()
RUNS = 60
Row = dict[str, Any]
_READ = (
    "runs", "devices", "instructions", "ops", "collectives", "phases", "step_batches", "host_events", "event_stats",
    "plane_stats", "counters",
)  # fmt: skip
_CACHE = '(bf16[8,128] %q, bf16[700,64,4,2,128]{4,3,2,1,0} %cache), custom_call_target="tpu_custom_call"'
_US = 1_000_000


def _made_up(run_id: str, seed: int) -> dict[str, list[Row]]:
    """A server of one or two data-parallel ranks on two devices."""
    pick = random.Random(seed)

    def maybe(value: Any, chance: float = 0.02) -> Any:
        return None if pick.random() < chance else value

    tables: dict[str, list[Row]] = {name: [] for name in _READ if name != "collectives"}
    tables["runs"] = [{"batch_size": maybe(4, 0.3), "input_length": maybe(16, 0.3)}]
    tables["devices"] = [{"device_id": d} for d in (0, 1)]
    tables["instructions"] = [
        {"instruction_id": 0, "name": "fusion.0", "opcode": "fusion"},
        {"instruction_id": 1, "name": "RPA-bq.1", "opcode": "custom-call", "hlo_text": f"%RPA = x custom-call{_CACHE}"},
    ]
    ranks, at = pick.choice([1, 1, 2]), 0
    requests = pick.choice([1, 2])
    shortest = [pick.randrange(10, 14) for _ in range(ranks)]
    for step in range(pick.randrange(3, 40)):
        phase = pick.choices(["decode", "prefill", "mixed", "step"], [26, 1, 1, 1])[0]
        name = phase if phase != "step" else None
        length = pick.randrange(20, 200)
        for device in (0, 1):
            start = at + pick.randrange(5)
            tables["phases"].append(
                {"device_id": device, "kind": "step", "name": phase, "index": step}
                | {"start_ps": start * _US, "end_ps": (at + length) * _US}
            )
            for number in range(pick.randrange(1, 4)):
                begin, kernel = start + 5 * number, pick.choice([0, 1])
                place = {"device_id": device, "phase": name, "step": step, "instruction_id": kernel}
                tables["ops"].append(
                    place
                    | {"event_id": len(tables["ops"]), "start_ps": begin * _US, "duration_ps": pick.randrange(5) * _US}
                )
        for rank in range(ranks):
            shortest[rank] = shortest[rank] + 1 if pick.random() < 0.95 else pick.randrange(10, 14)
            is_prefill = phase in ("prefill", "mixed") or pick.random() < 0.05
            scheduled = pick.randrange(1, 50)
            tables["step_batches"].append(
                {
                    "rank": rank,
                    "position": step,
                    "step": maybe(step),
                    "kind": maybe(pick.choice(["prefill_only", "decode_only", "balanced"])),
                    "scheduled_tokens": maybe(scheduled),
                    "padded_tokens": pick.choice([None, 0, 64, 128]),
                    "prefill_tokens": maybe(pick.randrange(60) if is_prefill else 0),
                    "decode_tokens": pick.choice([0, None, 2]) if is_prefill else maybe(requests),
                    "requests": maybe(requests),
                    "min_kv_length": maybe(shortest[rank]),
                }
            )
        at += length + pick.randrange(10)
    for event in range(pick.randrange(12)):
        kind = pick.choice(["MemoryAllocation", "MemoryDeallocation", "something else"])
        tables["host_events"].append(
            {"event_id": 1000 + event, "name": kind, "host": pick.choice(["a", "b"]), "start_ps": event}
            | {"duration_ps": 0}
        )
        for stat in ("bytes_allocated", "bytes_reserved", "index_on_host", "bytes_available"):
            if pick.random() < 0.8:
                size = pick.randrange(2) if stat == "index_on_host" else pick.randrange(1000)
                tables["event_stats"].append({"event_id": 1000 + event, "name": stat, "int_value": size})
        if pick.random() < 0.3:
            tables["event_stats"].append({"event_id": 1000 + event, "name": "allocator_name", "string_value": "bfc"})
    for number in range(pick.randrange(4)):
        unit = pick.choice(["matrix_unit", "vector_unit"])
        tables["plane_stats"].append(
            {"host": pick.choice(["a", "b"]), "plane": f"p{number}", "name": f"{unit}_utilization_percent"}
            | pick.choice([{"double_value": pick.random() * 100}, {"int_value": pick.randrange(101)}, {}])
        )
    for number in range(pick.choice([0, 0, 3, 8])):
        name = pick.choice(["MXU: % util", "VALU: % util", "HBM bytes"])
        sample = {"event_id": 2000 + number, "host": "a", "device_id": pick.randrange(2), "name": name}
        tables["counters"].append(sample | {"start_ps": number, "value": maybe(pick.random() * 100, 0.2)})
    return {name: [{"run_id": run_id} | row for row in rows] for name, rows in tables.items()}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    tables: dict[str, list[Row]] = {}
    for seed in range(RUNS):
        for name, rows in _made_up(f"r{seed}", seed).items():
            tables.setdefault(name, []).extend(rows)
    with warehouse_of(tables, DEFINITIONS) as database:
        yield database


@pytest.fixture(scope="module")
def runs(connection: duckdb.DuckDBPyConnection) -> dict[str, Run]:
    found: dict[str, dict[str, list[Row]]] = {f"r{seed}": {name: [] for name in _READ} for seed in range(RUNS)}
    for name in _READ:
        for row in connection.sql(f"SELECT * FROM given.{name}").to_arrow_table().to_pylist():
            found[row.pop("run_id")][name].append(row)
    return {run_id: Run(tables) for run_id, tables in found.items()}


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_plain_python_computes_the_same(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, Run], name: str, column: str
) -> None:
    metric = DEFINITIONS.metric(name)
    names = ", ".join(["run_id", *(g for g in metric.header.grain if g != "run_id"), column])
    found: dict[str, dict[Any, Any]] = {run_id: {} for run_id in runs}
    for run_id, *grain, value in connection.execute(f"SELECT {names} FROM metrics.{metric.view.name}").fetchall():
        found[run_id][tuple(grain)] = value
    with_rows = sum(1 for rows in found.values() if rows)
    assert RUNS / 6 < with_rows < RUNS or name == "padding_waste", "runs with rows and runs without are both wanted"
    for run_id, run in runs.items():
        expected = COLUMNS[name, column](run)
        assert found[run_id].keys() == expected.keys(), run_id
        assert found[run_id] == pytest.approx(expected, rel=1e-6, abs=1e-6), run_id
