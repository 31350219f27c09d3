"""The newest DuckDB command line that users can install reads an ingested warehouse, and never stands in its way."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from tracewarehouse.cli import run
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

DUCKDB = Path(sys.executable).parent / "duckdb"
CAPTURES = ("llama-pp2tp2-b4-i16-o5-hosts2", "deepseek_v2-ep4-b4-i16-o9")
"""Two that differ in all: hosts, stages, experts."""


@pytest.fixture(scope="module")
def warehouse(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    if not DUCKDB.is_file():
        pytest.skip("the duckdb command line is not installed; it is in the development dependencies")
    with open_warehouse(copy_of_captures(tmp_path_factory.mktemp("cli") / "warehouse", *CAPTURES)) as opened:
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


def test_every_metric_gives_the_same_rows_everywhere(warehouse: Warehouse, capsys: pytest.CaptureFixture[str]) -> None:
    """The Python API and the DuckDB command line.

    For some metrics also with the warehouse attached under another name, and `tw query`, which prints what the Python
    API gives.
    """
    metrics = warehouse.query("SELECT metric || '_v' || version FROM metrics.catalog ORDER BY ALL").rows()
    assert len(metrics) > 50
    sql = {view: f"SELECT * FROM metrics.{view} ORDER BY ALL" for (view,) in metrics}
    direct = printed_by_view(sql, "-readonly", database(warehouse))
    attached = printed_by_view(
        {v: sql[v].replace("metrics.", "elsewhere.metrics.") for v in list(sql)[::6]},
        ":memory:", "-cmd", f"ATTACH '{database(warehouse)}' AS elsewhere (READ_ONLY)",
    )  # fmt: skip
    filled = 0
    for number, (view, query) in enumerate(sql.items()):
        expected = warehouse.query(query).rows()
        filled += bool(expected)
        if number % 6 == 0:
            assert run(["-w", str(warehouse.path), "query", query, "--format", "csv"]) == 0
            assert_same(list(csv.reader(io.StringIO(capsys.readouterr().out)))[1:], expected, view, null="")
            assert_same(attached[view], expected, view)
        assert_same(direct[view], expected, view)
    assert filled > 30


def printed_by_view(sql: dict[str, str], *arguments: str) -> dict[str, list[list[str]]]:
    """Rows that one process of the command line prints for each query."""
    script = "".join(f".print view {view}\n{query};\n" for view, query in sql.items())
    command = [str(DUCKDB), "-csv", "-noheader", "-nullvalue", "NULL", *arguments]
    done = subprocess.run(command, input=script, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[list[str]]] = {}
    for block in done.stdout.split("view ")[1:]:
        view, _, rows = block.partition("\n")
        found[view] = list(csv.reader(io.StringIO(rows)))
    return found


def assert_same(printed: list[list[str]], expected: list[tuple[object, ...]], view: str, null: str = "NULL") -> None:
    """Printed rows are the expected ones: integers and texts to the letter, doubles to nine digits."""
    assert len(printed) == len(expected), view
    for texts, row in zip(printed, expected, strict=True):
        for text, value in zip(texts, row, strict=True):
            if isinstance(value, float):
                assert float(text) == pytest.approx(value, rel=1e-9), view
            else:
                shown = null if value is None else str(value).lower() if isinstance(value, bool) else str(value)
                assert text == shown, view


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
