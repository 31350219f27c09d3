"""Every format gives the same rows back."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.output import Format, encoded, suffix_format, text, write
from tracewarehouse.queries.result import FlaggedRun, QueryResult, TypedRows


@pytest.fixture
def result() -> QueryResult:
    return QueryResult(
        pa.table(
            {
                "name": ["a,b", 'say "x"\nagain', None],
                "n": pa.array([1, 2**63, None], pa.uint64()),
                "total": pa.array([Decimal(3), Decimal(10**20), None], pa.decimal128(38, 0)),
                "share": [0.1, math.nan, None],
                "flag": [True, False, None],
                "parts": [[1, 2], [], None],
            }
        )
    )


def test_csv_is_read_back(result: QueryResult) -> None:
    rows = list(csv.reader(io.StringIO("".join(text(result, "csv")))))
    assert rows == [
        ["name", "n", "total", "share", "flag", "parts"],
        ["a,b", "1", "3", "0.1", "true", "[1, 2]"],
        ['say "x"\nagain', str(2**63), str(10**20), "nan", "false", "[]"],
        ["", "", "", "", "", ""],
    ]


def test_csv_tells_null_from_empty_text() -> None:
    assert "".join(text(QueryResult(pa.table({"a": ["", None]})), "csv")) == 'a\n""\n\n'


def test_a_file_without_room_for_a_note_says_which_rows_are_predicted(tmp_path: Path) -> None:
    flagged = [FlaggedRun("p", "plan", ("predicted",)), FlaggedRun("t", "cut", ("truncated",))]
    rows = TypedRows(["run_id", "value"], ["VARCHAR", "BIGINT"], [("p", 1), ("t", 2), (None, 3)])
    told = b"run_id,value,is_predicted\np,1,true\nt,2,false\n,3,false\n"
    for held in (rows, rows.arrow()):
        result = QueryResult(held, flagged)
        assert encoded(result, "csv") == told
        assert json.loads(encoded(result, "json"))[0] == {"run_id": "p", "value": 1, "is_predicted": True}
        assert b"is_predicted" not in encoded(result, "table")  # which a note follows
        assert pq.read_table(io.BytesIO(encoded(result, "parquet"))).column_names == ["run_id", "value"]
    write(QueryResult(rows, flagged), "csv", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_bytes() == told


@pytest.mark.parametrize("form", ["csv", "json"])
@pytest.mark.parametrize("column", ["origin", "mesh"])
def test_rows_that_say_it_or_are_of_no_run_stay_as_they_are(column: str, form: Format) -> None:
    of_run = ["run_id"] if column == "origin" else []
    result = QueryResult(pa.table({name: ["p"] for name in (*of_run, column)}), [FlaggedRun("p", "p", ("predicted",))])
    assert b"is_predicted" not in encoded(result, form)


def test_json_is_strict_and_read_back(result: QueryResult) -> None:
    rows = json.loads("".join(text(result, "json")))
    assert rows[0] == {"name": "a,b", "n": 1, "total": 3, "share": 0.1, "flag": True, "parts": [1, 2]}
    assert rows[1]["total"] == 10**20
    assert rows[1]["share"] is None
    assert rows[2] == dict.fromkeys(rows[0])


def test_ndjson_has_a_row_a_line(result: QueryResult) -> None:
    lines = "".join(text(result, "ndjson")).splitlines()
    assert [json.loads(line)["n"] for line in lines] == [1, 2**63, None]


def test_json_of_no_rows_is_an_empty_list() -> None:
    assert json.loads("".join(text(QueryResult(pa.table({"a": pa.array([], pa.int64())})), "json"))) == []


def test_json_writes_bytes_and_times_as_text() -> None:
    table = pa.table({"b": [b"\x00\x01"], "d": [datetime.date(2026, 1, 2)], "m": [Decimal("1.50")]})
    assert json.loads("".join(text(QueryResult(table), "json"))) == [{"b": "AAE=", "d": "2026-01-02", "m": 1.5}]


def test_parquet_keeps_types(result: QueryResult, tmp_path: Path) -> None:
    write(result, "parquet", tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").schema.types == result.arrow().schema.types


def test_a_file_that_cannot_be_written_leaves_nothing(result: QueryResult, tmp_path: Path) -> None:
    with pytest.raises(TracewarehouseError, match="cannot be written"):
        write(result, "csv", tmp_path / "nowhere" / "out.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TracewarehouseError, match="cannot be written"):
        write(result, "csv", tmp_path / "folder.csv")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.csv"]


def test_the_name_of_a_file_says_its_format() -> None:
    names = ["x.csv", "x.JSON", "x.jsonl", "x.parquet", "x.txt", "x"]
    assert [suffix_format(Path(n)) for n in names] == ["csv", "json", "ndjson", "parquet", "table", "table"]


def test_sums_of_integers_are_integers(result: QueryResult) -> None:
    assert [type(row[2]) for row in result.rows()] == [int, int, type(None)]
    assert result.dicts()[0]["total"] == 3
    assert result.columns == ["name", "n", "total", "share", "flag", "parts"]
    assert len(result) == 3


def test_scalar_wants_one_value(result: QueryResult) -> None:
    assert QueryResult(pa.table({"a": [5]})).scalar() == 5
    with pytest.raises(ValueError, match="one row of one column"):
        result.scalar()


def test_polars_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch, result: QueryResult) -> None:
    assert result.pl().shape == (3, 6)
    monkeypatch.setitem(__import__("sys").modules, "polars", None)
    with pytest.raises(TracewarehouseError, match=r"tracewarehouse\[polars\]"):
        result.pl()
