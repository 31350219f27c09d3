"""Tables, metrics and queries in the formats of `tw export`, read back; and endings that name another format."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tiny_capture import write_capture_directory

from tracewarehouse import cli
from tracewarehouse.exports.rows import source_rows
from tracewarehouse.ingest.errors import MetricError, TracewarehouseError
from tracewarehouse.queries.output import suffix_format, write
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse of one run."""
    made = tmp_path_factory.mktemp("rows")
    with open_warehouse(made / "warehouse", create=True) as warehouse:
        warehouse.ingest(write_capture_directory(made / "tiny"))
    return made / "warehouse"


def tw(folder: Path, *arguments: str | Path) -> int:
    return cli.run(["-w", str(folder), "export", *map(str, arguments)])


def test_a_source_is_a_table_a_view_a_metric_or_a_query(folder: Path) -> None:
    with open_warehouse(folder) as warehouse:
        ops = warehouse.query("SELECT count(*) FROM main.ops").scalar()
        assert len(source_rows(warehouse, "ops")) == len(source_rows(warehouse, "main.ops")) == ops
        assert len(source_rows(warehouse, "models.steps")) > 0
        told = source_rows(warehouse, "step_time")
        assert told.columns[-1] == "origin"
        assert told.rows() == [(*row, "recorded") for row in warehouse.metric("step_time").rows()]
        assert source_rows(warehouse, "SELECT 1 AS a").rows() == [(1,)]
        with pytest.raises(MetricError, match="no metric"):
            source_rows(warehouse, "nothing_of_that_name")


def test_parquet_and_csv_come_back(folder: Path, tmp_path: Path) -> None:
    assert tw(folder, "rows", "ops", "-o", tmp_path / "ops.parquet") == 0
    assert tw(folder, "rows", "SELECT name, opcode FROM instructions", "-o", tmp_path / "i.csv") == 0
    with open_warehouse(folder) as warehouse:
        rows = warehouse.query("SELECT * FROM main.ops ORDER BY event_id").rows()
        assert duckdb.sql(f"SELECT * FROM '{tmp_path / 'ops.parquet'}' ORDER BY event_id").fetchall() == rows
        wanted = warehouse.query("SELECT name, opcode FROM main.instructions ORDER BY ALL").rows()
        assert duckdb.sql(f"SELECT * FROM '{tmp_path / 'i.csv'}' ORDER BY ALL").fetchall() == wanted


def test_arrow_comes_back(folder: Path, tmp_path: Path) -> None:
    assert tw(folder, "rows", "metrics.tpot", "-o", tmp_path / "t.arrow") == 0
    with open_warehouse(folder) as warehouse, pa.OSFile(str(tmp_path / "t.arrow")) as file:
        assert pa.ipc.open_file(file).read_all().equals(warehouse.query("SELECT * FROM metrics.tpot").arrow())


def cells(path: Path) -> dict[str, str]:
    """The values of a workbook's only sheet by cell."""
    with zipfile.ZipFile(path) as book:
        sheet = book.read("xl/worksheets/sheet1.xml").decode()
        texts = re.findall(r"<si><t[^>]*>(.*?)</t></si>", book.read("xl/sharedStrings.xml").decode())
    found = re.findall(r'<c r="([A-Z]+\d+)"(?: t="(\w)")?><v>(.*?)</v></c>', sheet)
    return {cell: texts[int(value)] if kind == "s" else value for cell, kind, value in found}


def test_a_workbook_holds_values_as_they_are(tmp_path: Path) -> None:
    """Whole numbers that a cell would round are text, and a text that begins like a formula is none."""
    table = pa.table({"n": [7, (1 << 53) + 1, None], "x": [0.5, float("nan"), 2.0], "t": ["=1+1", "a<b", None]})
    write(QueryResult(table.append_column("l", pa.array([[1, 2], None, None]))), "xlsx", tmp_path / "r.xlsx")
    assert cells(tmp_path / "r.xlsx") == {
        "A1": "n", "B1": "x", "C1": "t", "D1": "l", "A2": "7", "B2": "0.5", "C2": "=1+1", "D2": "[1, 2]",
        "A3": "9007199254740993", "C3": "a&lt;b", "B4": "2",
    }  # fmt: skip


def test_a_workbook_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    with pytest.raises(TracewarehouseError, match="holds 1,048,575 rows, and the result has 1,048,576"):
        write(QueryResult(pa.table({"a": pa.nulls(1 << 20)})), "xlsx", tmp_path / "r.xlsx")
    with pytest.raises(TracewarehouseError, match="holds 32,767 characters, and a value has 40,000"):
        write(QueryResult(pa.table({"a": ["x" * 40_000]})), "xlsx", tmp_path / "r.xlsx")
    assert not any(tmp_path.iterdir())


def test_an_unknown_ending_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TracewarehouseError, match=r"no format for the ending \.pdf; expected one of \.csv"):
        suffix_format(Path("x.pdf"))
    with pytest.raises(TracewarehouseError, match=r"--format; `tw report` writes pages$"):
        suffix_format(Path("x.html"))
    assert cli.run(["-w", str(folder), "query", "SELECT 1", "-o", str(tmp_path / "x.pdf")]) == 1
    assert "no format for the ending .pdf" in capsys.readouterr().err
    assert tw(folder, "rows", "ops", "--format", "parquet", "-o", tmp_path / "x.csv") == 2
    assert tw(folder, "rows", "ops", "-o", tmp_path / "x.pdf") == 1
    assert not any(tmp_path.iterdir())


def test_a_named_format_goes_before_the_ending(folder: Path, tmp_path: Path) -> None:
    """Who names the format may call the file as they like."""
    path = tmp_path / "x.data"
    assert cli.run(["-w", str(folder), "query", "SELECT 1 AS a", "--format", "csv", "-o", str(path)]) == 0
    assert path.read_text() == "a\n1\n"
