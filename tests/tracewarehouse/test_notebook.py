"""In Python and a notebook: results that show themselves and go anywhere, captures that open in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tracewarehouse as tw
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.result import QueryResult

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def result() -> QueryResult:
    return QueryResult(pa.table({"name": ["<b>&", None], "n": [1, 2]}))


def test_it_shows_as_a_table(result: QueryResult) -> None:
    html = result._repr_html_()
    assert html.startswith("<table><thead><tr><th>name</th><th>n</th></tr></thead>")
    assert "<td>&lt;b&gt;&amp;</td><td>1</td>" in html
    assert "<td>NULL</td><td>2</td>" in html
    assert str(result).splitlines()[2:] == ["<b>&  1", "NULL  2"]


def test_what_is_not_shown_is_said() -> None:
    long = QueryResult(pa.table({"n": range(1000)}))
    assert long._repr_html_().count("<tr>") == 21
    assert long._repr_html_().endswith("<p>20 of 1000 rows</p>")
    assert str(long).splitlines()[-1] == "20 of 1000 rows"


def test_it_goes_over_rows_and_to_other_libraries(result: QueryResult, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(result) == result.rows() == [("<b>&", 1), (None, 2)]
    assert pl.DataFrame(result).rows() == result.rows()
    assert pa.table(result) == result.arrow()
    assert duckdb.sql("SELECT sum(n) FROM result").fetchall() == [(3,)]
    assert isinstance(result.df(), pd.DataFrame)
    assert result.df()["n"].tolist() == [1, 2]
    assert result.df()["name"].isna().tolist() == [False, True]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TracewarehouseError, match=r"tracewarehouse\[pandas\]"):
        result.df()


def test_one_line_asks_a_capture_or_a_warehouse(folder: Path, capture: Path) -> None:
    for target in (folder, capture, str(capture), *capture.rglob("*.xplane.pb")):
        assert tw.query(target, "SELECT count(*) FROM runs WHERE name <> $n", n="none").scalar() == 1
    assert tw.query(folder, "FROM metrics.tpot").rows() == tw.query(capture, "FROM metrics.tpot").rows() != []


def test_an_opened_capture_is_a_warehouse_until_it_is_closed(capture: Path, tmp_path: Path) -> None:
    before = sorted(p for p in capture.rglob("*"))
    with tw.open(capture) as wh:
        home = Path(wh.path)
        assert repr(wh) == f"CaptureWarehouse({str(capture)!r})"
        assert wh.values("tiny-tp2", metrics=["tpot"]).rows()
        assert home.is_dir()
    assert not home.exists()
    assert sorted(p for p in capture.rglob("*")) == before
    with pytest.raises(tw.WarehouseError, match="no warehouse at"):
        tw.open(tmp_path / "nowhere")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "note.txt").write_text("x")
    with pytest.raises(tw.WarehouseError, match="holds files but no warehouse"):
        tw.open(tmp_path / "other")


def test_what_ingest_did_is_a_short_table(folder: Path, capture: Path) -> None:
    with tw.open(folder) as wh:
        done = wh.ingest(capture)
        assert [r.status for r in done] == ["unchanged"]
        header, _, row = repr(done).splitlines()
        assert header.split() == ["run_id", "name", "status", "events"]
        assert row.split()[1:3] == ["tiny-tp2", "unchanged"]
        assert "<td>unchanged</td>" in done._repr_html_()


def test_the_notebook_runs_as_a_script(tmp_path: Path) -> None:
    notebook = ROOT / "docs" / "notebook.py"
    done = subprocess.run([sys.executable, notebook], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "all-reduce" in done.stdout
