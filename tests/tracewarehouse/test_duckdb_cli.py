"""The newest DuckDB command line that users can install reads an ingested warehouse, and never stands in its way."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from ingest.schema import TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

ROOT = Path(__file__).resolve().parents[2]
DUCKDB = Path(sys.executable).parent / "duckdb"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    if not DUCKDB.is_file():
        pytest.skip("the duckdb command line is not installed; it is in the development dependencies")
    with open_warehouse(tmp_path_factory.mktemp("cli") / "warehouse", create=True) as opened:
        opened.ingest(ROOT / "data" / "captures")
        opened.build()
        yield opened


def duckdb(*arguments: str) -> list[list[str]]:
    """Rows that the command line prints, without the header."""
    command = [str(DUCKDB), "-csv", "-noheader", "-nullvalue", "NULL", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return list(csv.reader(io.StringIO(done.stdout)))


def database(warehouse: Warehouse) -> str:
    return str(warehouse.path / "warehouse.duckdb")


def test_every_column_of_every_table_is_read(warehouse: Warehouse) -> None:
    """Whole columns, so that every encoding is decoded: row counts and sums equal those of the Python API."""
    for name, table in TABLES.items():
        numbers = [f'sum("{c.name}")' for c in table.columns if c.type in ("INTEGER", "BIGINT", "UBIGINT")]
        texts = [f'count("{c.name}")' for c in table.columns if c.type in ("VARCHAR", "BLOB", "DOUBLE", "BOOLEAN")]
        sql = f"SELECT count(*), {', '.join(numbers + texts)} FROM main.{name}"
        [expected] = warehouse.query(sql).rows()
        [found] = duckdb("-readonly", database(warehouse), sql)
        assert found == ["NULL" if v is None else str(v) for v in expected], name


def test_every_metric_answers_also_attached_under_another_name(warehouse: Warehouse) -> None:
    metrics = warehouse.query("SELECT metric || '_v' || version, value FROM metrics.catalog ORDER BY ALL").rows()
    assert len(metrics) > 10
    attach = f"ATTACH '{database(warehouse)}' AS elsewhere (READ_ONLY);"
    for view, value in metrics:
        sql = f"SELECT count(*), sum({value}) FROM {{}}metrics.{view}"
        [expected] = warehouse.query(sql.format("")).rows()
        for found in (
            duckdb("-readonly", database(warehouse), sql.format("")),
            duckdb(":memory:", attach + sql.format("elsewhere.")),
        ):
            assert int(found[0][0]) == expected[0], view
            if expected[1] is not None:
                assert float(found[0][1]) == pytest.approx(float(expected[1]), rel=1e-9), view


def test_an_open_reader_does_not_block_ingest_nor_is_blocked(warehouse: Warehouse, tmp_path: Path) -> None:
    reader = subprocess.Popen(
        [str(DUCKDB), "-csv", "-noheader", "-readonly", database(warehouse)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdin is not None
    assert reader.stdout is not None

    def ask(sql: str) -> str:
        assert reader.stdin is not None
        assert reader.stdout is not None
        reader.stdin.write(f"{sql};\n")
        reader.stdin.flush()
        return reader.stdout.readline().strip()

    with reader:
        before = ask("SELECT count(*) FROM main.runs")
        warehouse.ingest(write_capture_directory(tmp_path / "tiny"))
        warehouse.build()
        assert ask("SELECT count(*) FROM main.runs") == before  # what it has open stays as it was
        assert duckdb("-readonly", database(warehouse), "SELECT count(*) FROM main.runs") == [[str(int(before) + 1)]]
        reader.stdin.close()


def test_tables_and_columns_have_comments(warehouse: Warehouse) -> None:
    sql = """SELECT count(*) FILTER (comment IS NULL), count(*) > 100 FROM duckdb_columns()
             WHERE schema_name IN ('main', 'metrics') AND NOT internal"""
    assert duckdb("-readonly", database(warehouse), sql) == [["0", "true"]]
