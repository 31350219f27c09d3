"""The study that ships: its findings hold in its table, whose rows are configurations that it asks."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

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


def test_kept_programs_come_first_then_prefills_of_the_fastest_meshes(tmp_path: Path) -> None:
    def asked(steps: str, mesh: str, batch: int) -> study.Asked:
        return study.Asked(study.Place(mesh, "v6e:2x4", batch), "v6e-8", steps, "Llama-3.1-8B", mesh)

    both = [asked(steps, mesh, batch) for steps in study.STEPS for batch in (1, 8) for mesh in ("tp=8", "dp=2,tp=4")]
    results = study.Results(tmp_path / "none.parquet", "0.0")
    for each in both[:3]:  # the slower mesh of the larger batch is not known, so its fastest is not either
        results.rows[each.key] = results.row(each, {"tpot_ms": 2.0 if each.mesh == "tp=8" else 3.0})
    turn = results.turn(both)
    assert [(turn(each), each.steps, each.mesh, each.key[-1]) for each in sorted(both, key=turn)] == [
        (0, "decode", "tp=8", 1),
        (0, "decode", "dp=2,tp=4", 1),
        (0, "decode", "tp=8", 8),
        (1, "decode", "dp=2,tp=4", 8),
        (2, "both", "tp=8", 1),
        (3, "both", "dp=2,tp=4", 1),
        (3, "both", "tp=8", 8),
        (3, "both", "dp=2,tp=4", 8),
    ]
    results.add(both[3], {"refused": "does not fit"})
    assert list(results.rows[both[3].key]) == study.SCHEMA.names
    turn = results.turn(both)
    assert [(each.mesh, each.key[-1]) for each in both if turn(each) == 2] == [("tp=8", 1), ("tp=8", 8)]


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
