"""A definition that is not valid is refused with the file and the field."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from counting_definitions import METRIC, MODEL

from tracewarehouse.definitions.reading import Definitions, fingerprint, load_definitions
from tracewarehouse.definitions.texts import column_sentences, normalised
from tracewarehouse.ingest.errors import MetricError
from tracewarehouse.ingest.lake.schema import TABLES


def _load(folder: Path, **files: str) -> Definitions:
    for name, text in files.items():
        schema, _, stem = name.partition("__")
        (folder / schema).mkdir(exist_ok=True)
        (folder / schema / (f"{stem}.sql" if stem else "preconditions.yaml")).write_text(text)
    return load_definitions(folder)


def test_definitions_come_in_order_of_dependency(tmp_path: Path) -> None:
    found = _load(tmp_path, metrics__m_v1=METRIC, models__base=MODEL)
    assert [v.qualified for v in found.ordered] == ["models.base", "metrics.m_v1"]
    [metric] = found.metrics
    assert (metric.name, metric.version, metric.header.grain) == ("m", 1, ["run_id"])
    assert metric.view.depends_on == {"models.base"}
    assert found.metric("m").version == found.metric("m", 1).version == 1


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("/*---", "/*", "must begin with a front matter"),
        ("---*/", "*/", "is not closed"),
        ("unit: count", "unit: [", "is not YAML"),
        ("status: stable", "metric: m\nstatus: stable", "says metric, which the file's name tells"),
        ("unit: count\n", "", "unit: Field required"),
        ("polarity: none", "polarity: up", "polarity: Input should be"),
        ("status: stable", "status: done", "status: Input should be"),
        ("status: stable", "status: deprecated", "must say in `deprecated` why"),
        ("status: stable", "status: stable\ndeprecated: Wrong.", "other versions must not"),
        ("grain: [run_id]", "grain: [n]", "grain must begin with run_id"),
        ("grain: [run_id]", "grain: [run_id, phase]", "columns says nothing about phase"),
        ("grain: [run_id]", "grain: [run_id, n]", "both value and grain"),
        ("value: n", "value: x", "columns says nothing about x"),
        ("n: How many.", "n: How many", "columns.n: String should match"),
        ("unit: count", "unit: count\nchanges: First version.", "changes: Extra inputs"),
        ("unit: count", "unit: count\nchanged: TODO say.", "changed must say what is new before the version is stable"),
        ("COUNT(*) AS n", "COUNT(* AS n", "the query cannot be parsed"),
        ("SELECT b.run_id", "DELETE FROM main.runs; SELECT b.run_id", "must be one SELECT"),
        ("FROM models.base AS b", "FROM base AS b", "write it with its schema"),
        ("FROM models.base AS b", "FROM models.bass AS b", "reads models.bass, which is not a table, model or metric"),
    ],
)
def test_an_invalid_file_is_named_with_its_field(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in METRIC
    with pytest.raises(MetricError) as error:
        _load(tmp_path, metrics__m_v1=METRIC.replace(old, new, 1), models__base=MODEL)
    assert "m_v1.sql" in str(error.value)
    assert said in str(error.value)


PRECONDITION = """runs:
  reason: there is no run
  remedy: ingest a capture
  runs: SELECT run_id FROM main.runs
"""


def test_needs_come_after_what_they_need_themselves(tmp_path: Path) -> None:
    found = _load(
        tmp_path,
        models__base=MODEL,
        preconditions__=PRECONDITION + PRECONDITION.replace("runs:\n", "more:\n  needs: [runs]\n"),
        metrics__m_v1=METRIC.replace("grain:", "needs: [more, runs]\ngrain:"),
    )
    assert [(n.precondition, n.sentence) for n in found.needs(found.metric("m"))] == [
        ("runs", "there is no run; ingest a capture."),
        ("more", "there is no run; ingest a capture."),
    ]


def test_what_a_metric_needs_is_no_part_of_its_meaning(tmp_path: Path) -> None:
    before = _load(tmp_path, models__base=MODEL, preconditions__=PRECONDITION, metrics__m_v1=METRIC)
    after = _load(tmp_path, metrics__m_v1=METRIC.replace("grain:", "needs: [runs]\ngrain:"))
    assert before.all_fingerprint == after.all_fingerprint


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  reason: there is no run\n", "", "preconditions.yaml: runs: reason: Field required"),
        ("there is no run", "There is none.", "runs: reason: String should match pattern"),
        ("runs:\n", "Runs:\n", "Runs: precondition: String should match pattern"),
        ("runs:\n", "runs:\n  needs: [steps]\n", "yaml: runs: needs steps, but there is no precondition of that name"),
        ("runs:\n", "runs:\n  needs: [runs]\n", "in a circle: runs -> runs"),
        ("main.runs", "main.rans", "preconditions.yaml: runs: reads main.rans"),
        ("main.runs", "main.runs (", "preconditions.yaml: runs: the query cannot be parsed"),
        ("runs:\n", "- runs\n", "not YAML"),
        (PRECONDITION, "- runs", "must have an entry with `reason` and `runs` for each name"),
    ],
)
def test_an_invalid_precondition_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    metric = METRIC.replace("grain:", "needs: [runs]\ngrain:")
    with pytest.raises(MetricError, match=re.escape(said)):
        _load(tmp_path, models__base=MODEL, preconditions__=PRECONDITION.replace(old, new), metrics__m_v1=metric)


def test_a_metric_cannot_need_what_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"m_v1\.sql: needs runs, but there is no precondition of that name"):
        _load(tmp_path, models__base=MODEL, metrics__m_v1=METRIC.replace("grain:", "needs: [runs]\ngrain:"))


def test_a_value_of_one_run_may_not_come_from_others(tmp_path: Path) -> None:
    """What other runs change is never stored with a run, so nothing that is stored may read it."""
    across = METRIC.replace("grain:", "scope: warehouse\ngrain:")
    across = across.replace("models.base AS b", "main.metric_values AS b")
    found = _load(tmp_path, models__base=MODEL, metrics__across_v1=across)
    assert found["metrics.across_v1"].compares_runs
    reader = METRIC.replace("models.base", "metrics.across_v1")
    with pytest.raises(MetricError, match=r"m_v1\.sql: reads metrics\.across_v1, which compares runs"):
        _load(tmp_path, metrics__m_v1=reader)
    with pytest.raises(MetricError, match=r"m_v1\.sql: reads main\.metric_values, which only"):
        _load(tmp_path, metrics__m_v1=METRIC.replace("models.base", "main.metric_values"))


def test_a_circle_is_refused(tmp_path: Path) -> None:
    a = MODEL.replace("main.runs", "models.b")
    b = MODEL.replace("main.runs", "models.a")
    with pytest.raises(MetricError, match=r"in a circle: models\.\w -> models\.\w -> models\.\w"):
        _load(tmp_path, models__a=a, models__b=b)


def test_a_macro_may_read_a_macro_but_a_model_may_not(tmp_path: Path) -> None:
    macro = "/*---\nparameters: {{runs: The runs.}}\ndescription: Rows.\n---*/\nSELECT a -- One.\nFROM {0}"
    found = _load(
        tmp_path,
        macros__above=macro.format("macros.below(runs)"),
        macros__below=macro.format("main.runs"),
        macros__between=macro.format("macros.below(runs) AS b, macros.above(runs)"),
    )
    assert [m.name for m in found.macros] == ["below", "above", "between"]
    with pytest.raises(MetricError, match=r"circle: .*macros\.below"):
        _load(tmp_path, macros__below=macro.format("macros.above(runs)"))
    (tmp_path / "macros" / "below.sql").write_text(macro.format("main.runs"))
    with pytest.raises(MetricError, match=r"base\.sql: reads macros\.below, which is not a table, model or metric"):
        _load(tmp_path, models__base=MODEL[: MODEL.index("---*/")] + "---*/\nSELECT * FROM macros.below([])")


def test_a_parameter_without_a_sentence_is_refused(tmp_path: Path) -> None:
    macro = "/*---\nparameters: [runs, x]\ndescription: Rows.\n---*/\nSELECT a -- One.\nFROM main.runs"
    with pytest.raises(MetricError, match=r"few\.sql: parameter x has no sentence in columns\.yaml"):
        _load(tmp_path, macros__few=macro)
    assert _load(tmp_path, macros__few=macro.replace(", x", "")).macros[0].name == "few"


def test_a_later_version_says_what_is_new(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match=r"m_v2\.sql: .*changed must say what is new"):
        _load(tmp_path, models__base=MODEL, metrics__m_v2=METRIC)


def test_a_name_is_defined_once(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        _load(tmp_path / folder, models__base=MODEL)
    with pytest.raises(MetricError, match=r"models\.base is already defined by"):
        load_definitions(tmp_path / "one", tmp_path / "two")


def test_a_name_of_the_package_means_one_thing() -> None:
    found = load_definitions()
    names = [*TABLES, *found.aliases, *(v.name for v in found.ordered if v.schema in ("models", "preconditions"))]
    assert not [n for n, times in Counter(names).items() if times > 1]


def test_the_name_stands_for_the_newest_stable_version(tmp_path: Path) -> None:
    second = METRIC.replace("description:", "changed: Runs count once.\ndescription:")
    third = second.replace("status: stable", "status: experimental")
    found = _load(tmp_path, models__base=MODEL, metrics__m_v1=METRIC, metrics__m_v2=second, metrics__m_v3=third)
    assert found.aliases["m"].version == 2
    with pytest.raises(MetricError, match="no version 4; it has 1, 2, 3"):
        found.metric("m", 4)
    with pytest.raises(MetricError, match=r"there is no metric 'n'; .tw metrics list. shows all"):
        found.metric("n")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT a.b AS c FROM x AS a", "select  a.b as c -- why\nfrom /* what */ x as a"),
        ("SELECT 'A' AS c", "SELECT 'A'  AS c"),
        ("SELECT a.b AS b FROM x AS a", "SELECT b FROM x"),
        (
            "SELECT a.b AS b, c.d FROM x AS a JOIN y AS c ON a.i = c.i",
            "SELECT p.b, q.d AS d FROM x p JOIN y q ON p.i = q.i",
        ),
        (
            "WITH z AS (SELECT a.b AS b FROM x AS a) SELECT z.b AS b FROM z",
            "WITH z AS (SELECT b FROM x) SELECT b FROM z",
        ),
        ("SELECT (a * b) + c AS d, NOT (e) AS f FROM x", "SELECT a * b + c AS d, NOT e AS f FROM x"),
        ('SELECT "index" FROM x WHERE a <> 1', "SELECT index FROM x WHERE a != 1"),
        ("SELECT CAST(a AS BIGINT) AS b FROM x", "SELECT a::BIGINT b FROM x"),
    ],
)
def test_how_it_is_spelt_is_not_the_meaning(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 'A' AS c", "SELECT 'a' AS c"),
        ("SELECT 1 AS c", "SELECT 2 AS c"),
        ("a = b", "a <> b"),
        ("SELECT (a + b) * c AS d FROM x", "SELECT a + b * c AS d FROM x"),
        ("SELECT a FROM x WHERE NOT (b AND c)", "SELECT a FROM x WHERE NOT b AND c"),
        ("SELECT a.b FROM x AS a JOIN y AS c ON a.i = c.i", "SELECT c.b FROM x AS a JOIN y AS c ON a.i = c.i"),
        ("SELECT a FROM x", "SELECT a AS b FROM x"),
        ("SELECT a - (b - c) AS d FROM x", "SELECT a - b - c AS d FROM x"),
    ],
)
def test_text_numbers_and_the_tree_are_the_meaning(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_a_sentence_may_stand_beside_its_column(tmp_path: Path) -> None:
    sql = """WITH a AS (
      SELECT
        b.run_id, -- not of the last SELECT
        COUNT(*) AS n
      FROM models.base AS b
      GROUP BY b.run_id
    )

    SELECT
      a.run_id, -- The run.
      -- Rows of it,
      -- all of them.
      COALESCE(a.n, 0) AS n,
      a.n AS "index" -- The same.
    FROM a -- not of a column
    """
    front, closing, _ = METRIC.partition("---*/")
    head, _, _ = front.partition("columns:")
    text = head + closing + "\n" + sql
    found = _load(tmp_path, models__base=MODEL, metrics__m_v1=text.replace("value: v", "value: n"))
    columns = found["metrics.m_v1"].header.columns
    assert columns == {"run_id": "The run.", "n": "Rows of it, all of them.", "index": "The same."}

    with pytest.raises(MetricError, match=r"m_v1\.sql: columns\.index: .*pattern"):
        _load(tmp_path, metrics__m_v1=text.replace("value: v", "value: n").replace("The same.", "The same"))
    with pytest.raises(MetricError, match=r"m_v1\.sql: the query cannot be parsed"):
        _load(tmp_path, metrics__m_v1=text.replace('"index" --', '"index --'))
    twice = text.replace("value: v", "value: n").replace("description:", "columns:\n  n: Rows.\ndescription:")
    with pytest.raises(MetricError, match=r"m_v1\.sql: column n is described in the front matter and beside it"):
        _load(tmp_path, metrics__m_v1=twice)


def test_notes_follow_the_description_and_are_no_part_of_the_meaning(tmp_path: Path) -> None:
    plain = _load(tmp_path, models__base=MODEL, metrics__m_v1=METRIC)["metrics.m_v1"]
    text = METRIC.replace("description:", "notes: >\n  Ties\n  count once.\ndescription:")
    noted = _load(tmp_path, models__base=MODEL, metrics__m_v1=text)["metrics.m_v1"]
    assert plain.header.notes is None
    assert noted.header.about == f"{plain.header.about} Ties count once."
    assert noted.fingerprint == plain.fingerprint

    with pytest.raises(MetricError, match=r"m_v1\.sql: notes: .*pattern"):
        _load(tmp_path, metrics__m_v1=text.replace("count once.", "count once"))


def test_a_description_has_at_most_three_sentences() -> None:
    """The rest of what is to say stands in notes."""
    package = load_definitions()
    views = [v for v in (*package.ordered, *package.macros, *package.audits) if v.schema != "preconditions"]
    sentences = {v.qualified: re.findall(r"[.?!](?= |$)", " ".join(v.header.description.split())) for v in views}
    assert len(sentences) > 100
    assert [name for name, ends in sentences.items() if len(ends) > 3] == []


def test_the_list_of_columns_does_not_end_at_is_distinct_from() -> None:
    sql = """
    SELECT
      run_id, -- The run.
      a IS DISTINCT FROM b AS differs, -- They differ.
      a IS NOT DISTINCT FROM b AS is_same -- They do not.
    FROM main.t -- all of them
    """
    assert column_sentences(sql) == {"run_id": "The run.", "differs": "They differ.", "is_same": "They do not."}


def test_what_reproduces_another_tool_is_read_by_its_like_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics/other_tool").mkdir(parents=True)
    other = METRIC.replace("status: stable", "status: compatibility")
    (tmp_path / "metrics/other_tool/other_v1.sql").write_text(other)
    reader = METRIC.replace("models.base", "metrics.other_v1")
    with pytest.raises(MetricError, match=r"m_v1\.sql: reads metrics\.other_v1, which only another"):
        _load(tmp_path, models__base=MODEL, metrics__m_v1=reader)
    found = _load(tmp_path, metrics__m_v1=reader.replace("status: stable", "status: compatibility"))
    assert not found.metric("other").header.is_stored


def test_the_fingerprint_of_a_metric_covers_its_models(tmp_path: Path) -> None:
    def found() -> str:
        definitions: Any = load_definitions(tmp_path)
        return str(definitions.fingerprint(definitions["metrics.m_v1"]))

    _load(tmp_path, metrics__m_v1=METRIC, models__base=MODEL)
    before = found()
    _load(tmp_path, models__base=MODEL.replace("main.runs AS r", "main.runs AS r WHERE true"))
    assert found() != before
    assert len(fingerprint()) == 64


def test_fingerprints_do_not_follow_the_hash_seed_of_the_process() -> None:
    code = "from tracewarehouse.definitions.reading import fingerprint; print(fingerprint())"
    found = {
        subprocess.check_output([sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


def test_an_installation_without_sql_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracewarehouse.definitions.reading.SQL", tmp_path / "sql")

    with pytest.raises(MetricError, match="sql: no metric, model or audit found; the installation is incomplete"):
        load_definitions()
