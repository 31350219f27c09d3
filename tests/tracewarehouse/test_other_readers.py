"""Every Parquet file names its run, and programs that know nothing of a warehouse read the rows that it gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import ROOT
from msgspec.structs import replace
from run_copies import publish_copy
from tiny_capture import write_capture_directory

from tracewarehouse.comparison.compare import Comparison, Sides
from tracewarehouse.database.session import Session
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import manifest_text
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.queries.tables_read import ParsedSql
from tracewarehouse.warehouse import Warehouse, open_warehouse

Rows = list[str]
Reader = Callable[[list[Path], str, str | None], pa.Table]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of two runs, in folders whose names some readers would take for a column."""
    home = tmp_path_factory.mktemp("run_id=nobody")
    with open_warehouse(home / "w", create=True) as opened:
        for name, period in (("a", 150), ("b", 170)):
            opened.ingest(write_capture_directory(home / name, name, period=period), name=name)
    return home / "w"


def with_duckdb(files: list[Path], table: str, run_id: str | None) -> pa.Table:
    where = f" WHERE run_id = '{run_id}'" if run_id else ""
    return duckdb.sql(f"FROM read_parquet({list(map(str, files))}, hive_partitioning = false){where}").to_arrow_table()


def with_polars(files: list[Path], table: str, run_id: str | None) -> pa.Table:
    rows = pl.scan_parquet(files)
    return (rows.filter(pl.col("run_id") == run_id) if run_id else rows).collect().to_arrow()


def with_pyarrow(files: list[Path], table: str, run_id: str | None) -> pa.Table:
    rows = ds.dataset(list(map(str, files)), format="parquet")
    return rows.to_table(filter=ds.field("run_id") == run_id if run_id else None)


READERS: list[Reader] = [with_duckdb, with_polars, with_pyarrow]
"""PyIceberg reads them in tests/exports/test_iceberg.py."""


def rows_of(table: pa.Table) -> Rows:
    return sorted(str(sorted(row.items())) for row in table.to_pylist())


def test_each_file_alone_says_which_run_it_is_of(folder: Path, tmp_path: Path) -> None:
    lake = Lake(folder)
    assert len(lake.runs()) == 2
    for run in lake.runs():
        assert len(run.paths) > 10
        for table, path in [(t, f) for t, files in run.files.items() for f in files]:
            alone = shutil.copy(folder / path, tmp_path / "copied.parquet")
            assert duckdb.sql(f"SELECT DISTINCT run_id FROM '{alone}'").fetchall() == [(run.run_id,)]
            assert pq.read_schema(alone).remove_metadata() == TABLES[table].arrow.remove_metadata()
            assert pq.read_schema(alone).names[0] == "run_id"


@pytest.mark.parametrize("reader", READERS)
def test_other_readers_give_the_rows_that_we_give(reader: Reader, folder: Path) -> None:
    with Warehouse(folder) as opened:
        runs = opened.lake.runs()
        for table in TABLES:
            files = [p for run in runs for p in opened.lake.paths(run, table)]
            if files:
                expected = rows_of(opened.query(f"FROM main.{table}").arrow())
                assert rows_of(reader(files, table, None)) == expected != []
                of_one = opened.query(f"FROM main.{table} WHERE run_id = $run_id", run_id=runs[1].run_id).arrow()
                assert rows_of(reader(files, table, runs[1].run_id)) == rows_of(of_one) != expected
                assert rows_of(reader(files, table, "nobody")) == []


def test_readers_that_search_folders_find_the_column_once(folder: Path, tmp_path: Path) -> None:
    """Also those that take `key=value` in a path for a column: the lake's folders have none."""
    lake = Path(shutil.copytree(folder / "lake", tmp_path / "lake"))
    with Warehouse(folder) as opened:
        expected = sorted(opened.query("SELECT run_id, count(*) FROM main.ops GROUP BY run_id").rows())
    sql = f"SELECT run_id, count(*) FROM '{lake}/*/*/ops*.parquet' GROUP BY run_id"
    assert sorted(duckdb.sql(sql).fetchall()) == expected
    assert "=" not in "".join(str(p.relative_to(lake)) for p in lake.rglob("*"))
    files = [str(p) for p in lake.glob("*/*/ops*.parquet")]
    found = ds.dataset(files, format="parquet", partitioning="hive").to_table()
    counts = found.group_by("run_id").aggregate([([], "count_all")]).to_pylist()
    assert sorted((row["run_id"], row["count_all"]) for row in counts) == expected
    scanned = pl.scan_parquet(f"{lake}/*/*/ops*.parquet", hive_partitioning=True)
    assert sorted(scanned.group_by("run_id").len().collect().rows()) == expected


CONDITIONS = {
    "equal": "run_id = '{0}'",
    "through a window": "n > 0 AND run_id = '{0}'",
}


LISTED = {
    "a table": "SELECT count(*) FROM main.ops WHERE run_id IN ('r2', 'r3')",
    "a metric, which joins": "SELECT count(*) FROM metrics.device_idle WHERE run_id IN ('r2', 'r3')",
    "a join by USING": "SELECT count(*) FROM ops JOIN instructions USING (run_id, instruction_id) "
    "WHERE run_id IN ('r2', 'r3') AND start_ps >= 0",
    "a join by ON": "SELECT count(*) FROM ops AS o LEFT JOIN main.instructions AS i ON i.run_id = o.run_id "
    "AND i.instruction_id = o.instruction_id JOIN metrics.catalog AS c ON c.metric = 'mfu' "
    "WHERE (o.run_id IN ('r2', 'r3'))",
    "two parts": "SELECT count(*) FROM (SELECT event_id FROM ops WHERE run_id = 'r2' UNION ALL "
    "SELECT event_id FROM ops AS p WHERE p.run_id = 'r3')",
    "a macro": "SELECT count(*) FROM macros.run_points(['r2', 'r3']) WHERE chips > 0 OR chips IS NULL",
    "macros of a run each": "SELECT count(*) FROM macros.top_ops('r2', 3) JOIN macros.top_categories('r3', 3) ON TRUE",
    "a macro, with named arguments": "SELECT count(*) FROM macros.compare_values(['r2'], ['r3'], "
    "baseline_repeats := CAST(NULL AS VARCHAR[]), run_repeats := ['r2', 'r3'])",
    "a macro and a table": "SELECT count(*) FROM macros.step_shares(['r2']) JOIN (SELECT * FROM runs "
    "WHERE run_id = 'r3') ON TRUE",
    "a name by WITH": "WITH t AS (SELECT event_id FROM ops WHERE run_id IN ('r2', 'r3')) SELECT count(*) FROM t",
}


@pytest.mark.parametrize("sql", LISTED.values(), ids=LISTED)
def test_a_query_that_lists_runs_opens_their_files_only(sql: str, listed: Path) -> None:
    with Warehouse(listed) as opened:
        expected = opened.query_runs(["r2", "r3"], sql).rows()
        assert opened.query(sql).rows() == expected
        assert expected[0][0] > 0
        with pytest.raises(WarehouseError, match=r"run r4 .* is damaged"):
            opened.query(sql.replace("'r3'", "'r4'"))


ALL = {
    "another column": "SELECT count(*) FROM ops WHERE host IN ('r2', 'r3')",
    "either": "SELECT count(*) FROM ops WHERE run_id IN ('r2', 'r3') OR depth = 0",
    "neither": "SELECT count(*) FROM ops WHERE run_id NOT IN ('r2', 'r3')",
    "a join across runs": "SELECT count(*) FROM ops AS o JOIN runs AS r ON o.device_id = r.dp "
    "WHERE o.run_id IN ('r2', 'r3')",
    "a subquery": "SELECT count(*), (SELECT count(*) FROM runs) FROM ops WHERE run_id IN ('r2', 'r3')",
    "a metric that compares runs": "SELECT count(*) FROM metrics.scaling_efficiency WHERE run_id IN ('r2', 'r3')",
    "a metric that compares runs, below": "SELECT count(*) FROM metrics.all_values WHERE run_id IN ('r2', 'r3')",
    "a table by its text": "SELECT count(*) FROM query_table('ops') WHERE run_id IN ('r2', 'r3')",
    "a pivot": "SELECT count(*) FROM (PIVOT ops ON depth IN (0) USING count(*) GROUP BY run_id) "
    "WHERE run_id IN ('r2', 'r3')",
    "a sample": "SELECT count(*) FROM ops TABLESAMPLE 10 ROWS WHERE run_id IN ('r2', 'r3')",
    "by position": "SELECT count(*) FROM ops POSITIONAL JOIN runs AS r WHERE ops.run_id IN ('r2', 'r3')",
    "a parameter": "SELECT count(*) FROM ops WHERE run_id IN ('r2', $run)",
    "a macro without runs": "SELECT count(*) FROM macros.configurations() WHERE run_id IN ('r2', 'r3')",
    "a macro of runs by a query": "SELECT count(*) FROM macros.run_points((SELECT list(run_id) FROM runs "
    "WHERE run_id IN ('r2', 'r3')))",
    "a macro of a run and a parameter": "SELECT count(*) FROM macros.run_points(['r2', $run])",
    "a macro beside all runs": "SELECT count(*) FROM macros.top_ops('r2', 3), runs",
    "a macro of no run": "SELECT count(*) FROM macros.run_points([])",
    "a macro of as many runs as the catalogue is for": "SELECT count(*) FROM macros.run_points(["
    + ", ".join(f"'r{n}'" for n in range(64))
    + "])",
    "files": "SELECT run_id FROM read_parquet('lake/r2/*/ops.parquet')",
}


@pytest.mark.parametrize("sql", ALL.values(), ids=ALL)
def test_a_query_that_may_need_other_runs_sees_them_all(sql: str, folder: Path) -> None:
    with Warehouse(folder) as opened:
        session = Session(opened.lake, lambda: opened.definitions, is_restricted=True)
        assert session.runs_read(ParsedSql(sql)) is None
        session.close()


def test_a_macro_of_a_run_says_the_same_without_the_others(folder: Path) -> None:
    """Whatever `reads_runs` promises: all rows come from the runs in these arguments."""
    with Warehouse(folder) as opened:
        run, other = (r.run_id for r in opened.lake.runs())
        given = dict.fromkeys(("runs", "baselines", "run_repeats", "baseline_repeats"), f"['{run}']") | {
            "run": f"'{run}'"
        }
        given |= {"device": "0", "from_ps": "0", "begin_ps": "0", "until_ps": "10000000000", "finish_ps": "10000000000"}
        given |= {
            "slice_ps": "100000000",
            "stretch_ps": "100000000",
            "most": "5",
            "first_event": "0",
            "end_event": "10",
        }
        given["threads"] = """[{"first_event_id": 0, "place": '"pid": 0', "kind": 'op', "is_named": TRUE}]"""
        promised = [m for m in opened.definitions.macros if opened.definitions.macro_runs[m.qualified][1]]
        with_rows = set()
        session = Session(opened.lake, lambda: opened.definitions, is_restricted=True)
        for macro in promised:
            arguments = ", ".join(given.get(p, "NULL") for p in opened.definitions.macro_runs[macro.qualified][0])
            sql = f"SELECT * FROM {macro.qualified}({arguments})"
            assert session.runs_read(ParsedSql(sql)) == {run}, macro.qualified
            alone = opened.query(sql).rows()  # of this run's files alone
            assert sorted(map(repr, alone)) == sorted(map(repr, opened.connection().execute(sql).fetchall()))
            with_rows |= {macro.name} if alone else set()
        session.close()
        assert other != run
        assert {"top_ops", "run_points", "run_tiles", "compare_values", "chrome_events"} <= with_rows


@pytest.mark.parametrize("sql", ["SELECT 1 AS run_id WHERE run_id = 'r2'", "SELECT count(*) FROM metrics.catalog"])
def test_a_query_of_no_table_needs_no_run(sql: str, listed: Path) -> None:
    with Warehouse(listed) as opened:
        session = Session(opened.lake, lambda: opened.definitions, is_restricted=True)
        assert session.runs_read(ParsedSql(sql)) == frozenset()
        session.close()


def test_values_and_comparisons_of_listed_runs_open_their_files_only(listed: Path, folder: Path) -> None:
    run = Lake(folder).runs()[0]
    with Warehouse(listed) as opened, Warehouse(folder) as whole:
        expected = [row[2:] for row in whole.values(run.run_id, metrics=["device_idle", "ccl_mfu"]).rows()]
        found = opened.values(["r2", "r3"], metrics=["device_idle", "ccl_mfu"]).rows()
        assert {row[0] for row in found} == {"r2", "r3"}
        assert [row[2:] for row in found if row[0] == "r2"] == expected
        sides = Sides(("r2",), ("r3",), ("r2",), ("r3",))
        compared = Comparison(partial(opened.query_runs, ["r2", "r3"]), sides, ())
        assert {row["verdict"] for row in compared.values(["device_idle"]).dicts()} == {"same"}


@pytest.fixture(scope="module")
def listed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of five runs; every file of all but r2 and r3 is damaged from the first byte to the last."""
    lake = Lake(tmp_path_factory.mktemp("listed") / "w")
    [run, _] = Lake(folder).runs()
    for number in range(5):
        publish_copy(Lake(folder), run, lake, f"r{number}", f"copy {number}")
    for other in lake.runs():
        for path in (p for t in other.files for p in lake.paths(other, t)) if other.run_id not in ("r2", "r3") else ():
            path.write_bytes(b"\0" * path.stat().st_size)
    return lake.warehouse


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_question_about_one_run_opens_its_files_only(condition: str, folder: Path, tmp_path: Path) -> None:
    """The files of the others are damaged from the first byte to the last, and DuckDB opens none of them.

    Which run the SQL is about is known to DuckDB alone: by its plan where files are found to be damaged, and while it
    reads where the manifests hold the digests of the damaged bytes.
    """
    lake = Lake(tmp_path / "w")
    [run, _] = Lake(folder).runs()
    for number in range(5):
        publish_copy(Lake(folder), run, lake, f"r{number}", f"copy {number}")
    numbered = "SELECT *, row_number() OVER (PARTITION BY run_id ORDER BY event_id) AS n FROM main.ops"
    sql = f"SELECT run_id, count(*) FROM ({numbered}) WHERE {condition.format('r3')} GROUP BY run_id"
    for other in lake.runs():
        for path in lake.paths(other, "ops") if other.run_id not in ("r0", "r3") else ():
            path.write_bytes(b"\0" * path.stat().st_size)  # DuckDB opens the first of all to know the columns
    with Warehouse(tmp_path / "w") as opened:
        metric = opened.metric("step_time", run="r3").rows()
        assert opened.query(sql).rows() == [("r3", run.rows["ops"])]
        with pytest.raises(WarehouseError, match=r"run r1 .* is damaged"):
            opened.query("SELECT count(*) FROM main.ops")
    for other in lake.runs():
        digests = {file: file_digest(tmp_path / "w" / file) for file in other.paths}
        (tmp_path / "w" / "manifests" / f"{other.run_id}.json").write_text(
            manifest_text(replace(other, digests=digests))
        )
    shared = (
        "WITH t AS MATERIALIZED (SELECT run_id FROM main.ops) SELECT count(*) FROM t JOIN (SELECT DISTINCT * FROM t)"
    )
    shared = f"{shared} USING (run_id) WHERE {condition.format('r3').removeprefix('n > 0 AND ')}"
    with Warehouse(tmp_path / "w") as opened:
        assert opened.query(sql).rows() == [("r3", run.rows["ops"])]
        assert opened.query(shared).scalar() == run.rows["ops"]
    with Warehouse(folder) as opened:
        assert [row[1:] for row in metric] == [row[1:] for row in opened.metric("step_time", run=run.run_id).rows()]


def test_dbt_builds_a_model_of_a_metric(folder: Path, tmp_path: Path) -> None:
    """With the profile of docs/reading.md; dbt has an environment of its own, as it pins many packages."""
    dbt = os.environ.get("DBT") or shutil.which("dbt")
    if dbt is None:
        pytest.skip("no dbt here: `pip install 'dbt-core<1.11' dbt-duckdb` elsewhere, and let DBT name its command")
    [profile] = re.findall(r"```yaml\n(mine:.*?)```", (ROOT / "docs" / "reading.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "profiles.yml").write_text(profile)
    (tmp_path / "dbt_project.yml").write_text("{name: mine, version: '1.0', profile: mine, model-paths: [models]}")
    (tmp_path / "models").mkdir()
    model = "SELECT name, phase, idle_ratio FROM traces.metrics.device_idle JOIN traces.main.runs USING (run_id)"
    (tmp_path / "models" / "idle.sql").write_text("{{ config(materialized='table') }} " + model)
    (tmp_path / "warehouse").symlink_to(folder)
    with Warehouse(folder) as opened:
        opened.build()
        expected = opened.query(model.replace("traces.", "")).rows()
    command = [dbt, "--no-send-anonymous-usage-stats", "run", "--profiles-dir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    with duckdb.connect(tmp_path / "mine.duckdb", read_only=True) as built:
        assert sorted(built.sql("FROM idle").fetchall()) == sorted(expected) != []
