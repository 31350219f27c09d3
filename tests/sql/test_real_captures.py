"""What the metrics say of real captures, against what is known of these."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from given_tables import evaluated

from tracewarehouse.warehouse import Warehouse

VLLM = "tpu-2chip-vllm-tp2-prefill"
VLLM_CHROME = "chrome"


@pytest.fixture(scope="module")
def runs(shared_captures: Warehouse) -> dict[str, str]:
    """Run id by capture."""
    return {run.name: run.run_id for run in shared_captures.lake.runs()}


@pytest.fixture(scope="module")
def connection(shared_captures: Warehouse) -> duckdb.DuckDBPyConnection:
    return shared_captures.connection()


def _rows(connection: duckdb.DuckDBPyConnection, view: str, run_id: str) -> list[dict[str, Any]]:
    return _dicts(connection.execute(f"SELECT * FROM {view} WHERE run_id = ? ORDER BY ALL", [run_id]))


def _dicts(found: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return [dict(zip([d[0] for d in found.description], row, strict=True)) for row in found.fetchall()]


def _values_by_name(connection: duckdb.DuckDBPyConnection, run_id: str) -> dict[tuple[str, str], float | None]:
    """Values by metric and dimensions; instructions by program and name, since each form numbers them in its order."""
    instructions = connection.execute(
        "SELECT instruction_id, program_id, name FROM main.instructions WHERE run_id = ?", [run_id]
    ).fetchall()
    named = {i: f"{program} {name}" for i, program, name in instructions}
    assert len({*named.values()}) == len(named)
    found = {}
    columns = evaluated(connection, run_id).columns
    for metric, dimensions, value in zip(columns["metric"], columns["dimensions"], columns["value"], strict=True):
        dimensions = json.loads(dimensions)
        if "instruction_id" in dimensions:
            dimensions["instruction_id"] = named[dimensions["instruction_id"]]
        found[metric, json.dumps(dimensions)] = value
    return found


def test_both_forms_of_a_capture_give_the_same_values(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    xplane, chrome = (_values_by_name(connection, runs[c]) for c in (VLLM, VLLM_CHROME))
    assert {k for k, v in xplane.items() if v is None} == {k for k, v in chrome.items() if v is None}
    known = {k: v for k, v in xplane.items() if v is not None}
    assert known == pytest.approx({k: v for k, v in chrome.items() if v is not None}, rel=1e-6)


def test_the_caches_of_vllm_hold_four_heads_on_each_device(
    connection: duckdb.DuckDBPyConnection, runs: dict[str, str]
) -> None:
    """Eight heads of keys and of values, 128 wide, in bf16 over two devices: 4 x 2 x 128 x 2 bytes of a token."""
    for capture in (VLLM, VLLM_CHROME):
        rows = _rows(connection, "models.attention_caches", runs[capture])
        assert len(rows) == 64
        assert {(r["token_bytes"], r["capacity_tokens"]) for r in rows} == {(2048, 7007 * 64)}
