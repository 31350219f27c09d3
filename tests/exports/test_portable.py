"""One DuckDB file with the rows in it: moved elsewhere, the plain DuckDB CLI answers every metric from it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.served_capture import write_served_capture
from tracewarehouse.definitions.reading import load_definitions
from tracewarehouse.exports.rows import export_duckdb
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse

CLI = Path(sys.executable).parent / "duckdb"
DEFINITIONS = load_definitions()


@pytest.fixture(scope="module")
def warehouse(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A warehouse of two runs."""
    names = ("llama-tp4-b4-i16-o17", "llama-pp2tp2-b4-i16-o5-hosts2")
    return open_warehouse(copy_of_captures(tmp_path_factory.mktemp("portable") / "warehouse", *names))


def asked(database: Path, sql: str) -> list[dict[str, Any]]:
    """What the DuckDB CLI answers."""
    if not CLI.exists():
        pytest.skip("the duckdb command line is not installed; it is in the development dependencies")
    done = subprocess.run([CLI, "-readonly", "-jsonlines", database, sql], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_metric_answers_after_a_move(warehouse: Warehouse, tmp_path: Path) -> None:
    first = export_duckdb(warehouse, warehouse.lake.runs(), tmp_path / "one" / "deep" / "runs.duckdb")
    moved = Path(shutil.move(first, tmp_path / "else where.duckdb"))
    assert [*(tmp_path / "one" / "deep").iterdir()] == []
    # one by one, as DuckDB plans the union of all for several seconds
    counts = [f"SELECT '{m.view.qualified}' AS v, count(*) AS n FROM {m.view.qualified}" for m in DEFINITIONS.metrics]
    wanted: dict[str, int] = dict(row for sql in counts for row in warehouse.query(sql).rows())
    assert {row["v"]: row["n"] for row in asked(moved, ";".join(counts))} == wanted
    assert sum(wanted.values()) > 100
    tpot = "SELECT * FROM metrics.tpot ORDER BY ALL"
    assert [list(r.values()) for r in asked(moved, tpot)] == [
        pytest.approx(list(row)) for row in warehouse.query(tpot).rows()
    ]


def test_it_names_no_path_and_has_comments_and_the_catalogue(warehouse: Warehouse, tmp_path: Path) -> None:
    file = export_duckdb(warehouse, warehouse.lake.runs(), tmp_path / "runs.duckdb")
    raw = file.read_bytes()
    assert str(warehouse.path).encode() not in raw
    assert b"read_parquet" not in raw
    sql = "SELECT table_name AS t, comment FROM duckdb_tables() WHERE schema_name = 'main'"
    assert {r["t"]: r["comment"] for r in asked(file, sql)} == {n: t.doc for n, t in TABLES.items()}
    [counts] = asked(file, "SELECT count(*) AS n, count(comment) AS c FROM duckdb_views() WHERE NOT internal")
    assert counts["n"] == counts["c"] > 50
    [catalogue] = asked(file, "SELECT count(*) AS n FROM metrics.catalog")
    assert catalogue["n"] == len(DEFINITIONS.metrics)


def test_it_says_where_its_runs_come_from_and_what_to_read_with_care(tmp_path: Path) -> None:
    """For a reader who has the file alone: provenance, caveats, and what each metric means."""
    ingest_one(write_served_capture(tmp_path / "served.xplane.pb", 1), tmp_path / "warehouse")
    warehouse = open_warehouse(tmp_path / "warehouse")
    file = export_duckdb(warehouse, warehouse.lake.runs(), tmp_path / "runs.duckdb")
    columns = "run_id, name, source_digest, ingest_version, schema_version"
    [told] = asked(file, f"SELECT {columns}, flags FROM models.provenance")
    assert tuple(told.values()) == (*warehouse.query(f"SELECT {columns} FROM runs").fetchall()[0], 2)
    caveats = "SELECT kind, name, value, confidence, host, detail FROM models.caveats ORDER BY ALL"
    found = [tuple(row.values()) for row in asked(file, caveats)]
    assert found == warehouse.query(caveats).fetchall()
    assert [row[:2] for row in found] == [("flag", "inferred_steps"), ("flag", "unsized_time")]
    assert asked(file, "SELECT count(*) AS n FROM metrics.catalog WHERE description IS NULL OR unit IS NULL") == [
        {"n": 0}
    ]


def test_only_the_runs_that_are_asked_for(warehouse: Warehouse, tmp_path: Path) -> None:
    run = warehouse.run("llama-tp4-b4-i16-o17")
    file = export_duckdb(warehouse, [run], tmp_path / "runs.db")
    found = asked(file, "SELECT run_id FROM main.runs UNION SELECT run_id FROM main.ops")
    assert found == [{"run_id": run.run_id}]
