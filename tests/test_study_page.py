"""The study that ships: its findings hold in its table, whose rows are configurations that it asks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from tests.predict.test_capture import write
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.dashboards.report import study_report
from tracewarehouse.warehouse import open_warehouse

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "study"))

import study  # noqa: E402

WORDS = study.WORDS.read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", WORDS, re.S)


@pytest.fixture(scope="module")
def table() -> Any:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW configurations AS FROM read_parquet('{study.TABLE}')")
        yield connection


@pytest.fixture(scope="module")
def asked() -> set[Any]:
    return {each.key for each in study.asked(yaml.safe_load((study.HERE / "grid.yaml").read_text(encoding="utf-8")))}


def test_the_page_of_rows_is_that_of_their_runs(tmp_path: Path) -> None:
    model = "meta-llama/Llama-3.1-8B"
    facts = traced_subject(run_spec(model=model, mesh="tp=1", backend="jax")).facts
    results = study.Results(tmp_path / "configurations.parquet", "0.0")
    with open_warehouse(tmp_path / "warehouse", create=True) as warehouse:
        for batch in (4, 8):
            capture = write(tmp_path / str(batch), model=facts, batch_size=batch, capacity_bytes=batch * 8_000_000_000)
            [result] = warehouse.ingest(capture, name=f"b{batch}")
            [row] = warehouse.query(f"FROM macros.planned_runs(['{result.run_id}'])").dicts()
            each = study.Asked(study.Place("tp=2", "v6e:1x2", batch), "v6e-2", "both", facts.name, "tp=2")
            results.add(each, row | study.lists(warehouse, result.run_id))
            assert results.has(each)
        [of_runs] = study_report(warehouse, "SELECT run_id FROM main.runs ORDER BY name", study.CHARTS).sections
    [of_rows] = study.page(tmp_path / "configurations.parquet", [model], [("other", "too large")]).sections
    assert of_rows.words[:-1] == of_runs.words
    assert [figure.name for figure in of_rows.figures] == ["pareto", "study-parts", "sweep", "faster-links"]
    for own, other in zip(of_rows.figures, of_runs.figures, strict=True):
        assert (own.title, own.subtitle, own.description) == (other.title, other.subtitle, other.description)
        named = [[{k: v for k, v in row.items() if k != "name"} for row in each.rows] for each in (own, other)]
        assert named[0] == named[1]
    rows = [[row[1:] for row in section.values[0].rows] for section in (of_rows, of_runs)]
    assert rows[0] == rows[1]
    assert of_rows.values[1].rows == [("other", "too large")]


def test_a_row_without_its_prefill_or_its_links_is_not_done(tmp_path: Path) -> None:
    both = [study.Asked(study.Place("tp=8", "v6e:2x4", 8), "v6e-8", steps, "m", "tp=8") for steps in study.STEPS]
    results = study.Results(tmp_path / "none.parquet", "0.0")
    assert [results.has(each) for each in both] == [False, False]
    results.add(both[0], {"tpot_ms": 2.0, "links": []})
    assert [results.has(each) for each in both] == [True, False]
    results.add(both[1], {"tpot_ms": 2.0, "ttft_ms": 9.0})
    assert [results.has(each) for each in both] == [True, False]
    results.add(both[1], {"tpot_ms": 2.0, "ttft_ms": 9.0, "links": []})
    assert [results.has(each) for each in both] == [True, True]
    results.add(both[1], {"refused": "does not fit"})  # the decode step stays
    assert results.rows[both[1].key]["tpot_ms"] == 2.0
    again = study.Results(tmp_path / "none.parquet", "0.0")
    assert again.rows == results.rows
    assert study.Results(tmp_path / "none.parquet", "0.1").rows == {}


def test_the_page_has_ten_findings_with_a_query_each() -> None:
    assert len(re.findall(r"^### \d+\. ", WORDS, re.M)) == len(QUERIES) >= 10


@pytest.mark.parametrize("query", QUERIES)
def test_a_finding_holds_in_every_row_of_its_answer(table: Any, query: str) -> None:
    result = table.execute(query)
    assert [column[0] for column in result.description][-1] == "holds"
    rows = result.fetchall()
    assert rows
    assert all(row[-1] is True for row in rows)


def test_the_answers_on_the_page_are_those_of_the_table(asked: set[Any]) -> None:
    said = study.answered(WORDS, study.TABLE, len(asked))
    assert said == WORDS, "run `python docs/study/study.py --hours 0`"
    assert f"{len(asked)} configurations are asked" in WORDS


def test_what_is_shipped_is_small_and_says_what_it_is(table: Any) -> None:
    assert study.TABLE.stat().st_size + study.PAGE.stat().st_size < 10_000_000
    said = table.execute("SELECT DISTINCT compiler, rules_version FROM configurations").fetchall()
    assert len(said) == 1, "rows of several compilers or rules are not compared"
    wrong = """SELECT * FROM configurations
               WHERE NOT (tpot_low_ms <= tpot_ms AND tpot_ms <= tpot_high_ms)
                  OR NOT (ttft_low_ms <= ttft_ms AND ttft_ms <= ttft_high_ms)
                  OR (tpot_ms IS NULL AND refused IS NULL)
                  OR memory_bytes > capacity_bytes"""
    assert table.execute(wrong).fetchall() == []


def test_the_rows_are_configurations_that_the_study_asks(table: Any, asked: set[Any]) -> None:
    rows = table.execute(f"SELECT {', '.join(study.KEY)} FROM configurations").fetchall()
    assert set(rows) <= asked
    assert len(set(rows)) == len(rows)
