"""Metrics of a user's own folder: checked, evaluated, locked and versioned as those of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
import yaml
from given_tables import warehouse_of

import tracewarehouse as tw
from tracewarehouse.cli import run
from tracewarehouse.definitions.derived import UNTOLD
from tracewarehouse.definitions.lock import new_metric
from tracewarehouse.definitions.portable import portability_notes
from tracewarehouse.definitions.reading import MOST_CHARACTERS, MOST_DEFINITIONS, MOST_NESTED, SQL, load_with
from tracewarehouse.ingest.errors import MetricError

MODEL = """/*---
description: Ops by run.
columns:
  run_id: The run.
  n: Ops.
---*/
SELECT
  o.run_id AS run_id,
  COUNT(*) AS n
FROM main.ops AS o
GROUP BY o.run_id
"""
METRIC = """/*---
status: stable
unit: count
polarity: none
grain: [run_id]
value: n
description: Ops of the run per step.
columns:
  run_id: The run.
  n: Ops per step.
---*/
SELECT
  m.run_id AS run_id,
  CAST(m.n AS DOUBLE) / CAST(COUNT(*) AS DOUBLE) AS n
FROM models.my_ops AS m
INNER JOIN metrics.step_time_v1 AS s ON m.run_id = s.run_id
GROUP BY m.run_id, m.n
"""


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A folder with one metric over one model."""
    return _write(tmp_path / "mine", {"models/my_ops": MODEL, "metrics/my_ops_per_step_v1": METRIC})


def _write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / f"{name}.sql"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_metric_of_ones_own_may_read_columns_without_their_names(capture: Path, tmp_path: Path) -> None:
    query = "SELECT w.run_id AS run_id, COUNT(*) AS n FROM (SELECT DISTINCT * FROM models.communication_windows) AS w"
    text = METRIC.partition("---*/")[0] + f"---*/\n{query} GROUP BY w.run_id"
    sql = _write(tmp_path / "mine", {"metrics/my_ops_per_step_v1": text})
    with tw.open(tmp_path / "warehouse", create=True, sql=sql) as warehouse:
        warehouse.ingest(capture)
        windows = warehouse.query("SELECT COUNT(*) FROM main.collectives").scalar()
        stored = "SELECT value FROM main.metric_values WHERE metric = 'my_ops_per_step'"
        assert warehouse.query(stored).scalar() == windows > 10


def test_a_metric_of_ones_own_is_evaluated_at_ingest(capture: Path, sql: Path, tmp_path: Path) -> None:
    with tw.open(tmp_path / "warehouse", create=True, sql=sql) as warehouse:
        warehouse.ingest(capture)
        [(now,)] = warehouse.query("SELECT n FROM metrics.my_ops_per_step").rows()
        [stored] = warehouse.values(metrics=["my_ops_per_step"]).dicts()
        assert stored["value"] == now > 0
        [(fingerprint,)] = warehouse.query(
            "SELECT fingerprint FROM main.metric_values WHERE metric = 'my_ops_per_step'"
        ).rows()
        definitions = load_with(sql)
        assert fingerprint == definitions.fingerprint(definitions["metrics.my_ops_per_step_v1"])
        assert [m for m in warehouse.metrics().dicts() if m["metric"] == "my_ops_per_step"]
        assert warehouse.metric("my_ops_per_step").rows() == warehouse.metric("my_ops_per_step", version=1).rows()
        assert warehouse.stale_runs() == []


def test_a_model_beyond_its_type_fails_only_whoever_needs_the_number(capture: Path, tmp_path: Path) -> None:
    """Also when it is read again, although its rows are then to be kept for all readers."""
    wide = MODEL.replace("COUNT(*) AS n", "COUNT(*) AS n,\n  CAST(COUNT(*) + 300 AS TINYINT) AS low").replace(
        "  n: Ops.", "  n: Ops.\n  low: Ops, in too few bits."
    )
    with tw.open(
        tmp_path / "warehouse", create=True, sql=_write(tmp_path / "mine", {"models/my_ops": wide})
    ) as warehouse:
        warehouse.ingest(capture)
        run_id = warehouse.run("").run_id
        for _ in range(3):
            assert warehouse.query("SELECT n FROM models.my_ops WHERE run_id = $run", run=run_id).scalar() > 0
            with pytest.raises(tw.QueryError, match=r"TINYINT|INT8"):
                warehouse.query("SELECT low FROM models.my_ops WHERE run_id = $run", run=run_id)


def test_a_deprecated_version_answers_who_names_it_and_is_not_stored(capture: Path, tmp_path: Path) -> None:
    first = METRIC.replace("status: stable", "status: deprecated\ndeprecated: Wrong; use 2.").replace(
        "m.n AS D", "-m.n AS D"
    )
    second = METRIC.replace("description:", "changed: Ops count once.\ndescription:")
    files = {"my_ops": MODEL, "my_ops_per_step_v1": first, "my_ops_per_step_v2": second}
    with tw.open(tmp_path / "warehouse", create=True, sql=_write(tmp_path / "mine", files)) as warehouse:
        warehouse.ingest(capture)
        stored = {tuple(r) for r in warehouse.query("SELECT metric, version FROM main.metric_values").rows()}
        assert {v for m, v in stored if m == "my_ops_per_step"} == {2}
        assert not {m for m, _ in stored if m.startswith("ccl_")}
        rows = warehouse.values(metrics=["my_ops_per_step"]).dicts()
        assert {(r["version"], r["status"], r["value"] > 0) for r in rows} == {
            (1, "deprecated", False),
            (2, "stable", True),
        }
        [value] = [r["value"] for r in rows if r["version"] == 1]
        assert warehouse.query("SELECT n FROM metrics.my_ops_per_step_v1").scalar() == value
        assert warehouse.query("SELECT n FROM metrics.my_ops_per_step").scalar() == -value


PRECONDITION = """wide_batch:
  reason: the batch has fewer than a thousand sequences
  remedy: record a larger one
  runs: SELECT run_id FROM main.runs WHERE batch_size >= 1000
"""


def test_a_precondition_of_ones_own_tells_why_a_metric_is_missing(capture: Path, tmp_path: Path) -> None:
    """Beside those of the package; a metric that names none says so, in the API and in warehouse.duckdb."""
    never = METRIC.replace("GROUP BY m.run_id, m.n\n", "WHERE false\nGROUP BY m.run_id, m.n\n")
    other = never.replace("grain:", "needs: [device_ops, wide_batch]\ngrain:")
    files = {"models/my_ops": MODEL, "metrics/my_ops_per_step_v1": never, "metrics/my_other_v1": other}
    sql = _write(tmp_path / "mine", files)
    (sql / "preconditions.yaml").write_text(PRECONDITION)
    expected = [
        ("my_ops_per_step", None, UNTOLD),
        ("my_other", "wide_batch", "the batch has fewer than a thousand sequences; record a larger one."),
    ]
    question = "SELECT metric, unmet, reason FROM metrics.missing WHERE metric LIKE 'my%' ORDER BY metric"
    with tw.open(tmp_path / "warehouse", create=True, sql=sql) as warehouse:
        warehouse.ingest(capture)
        assert warehouse.query(question).rows() == expected
        with duckdb.connect(str(warehouse.build()), read_only=True) as database:
            assert database.execute(question).fetchall() == expected


def test_refresh_adds_it_to_the_runs_that_lack_it_and_follows_a_change(folder: Path, sql: Path) -> None:
    with tw.open(folder, sql=sql) as warehouse:
        [before] = warehouse.stale_runs()
        assert [r.run_id for r in warehouse.refresh_metrics()] == [before.run_id]
        [(first,)] = warehouse.query("SELECT value FROM main.metric_values WHERE metric = 'my_ops_per_step'").rows()
        model = sql / "models/my_ops.sql"
        model.write_text(model.read_text().replace("COUNT(*) AS n", "2 * COUNT(*) AS n"))
        warehouse.refresh()
        assert len(warehouse.refresh_metrics()) == 1
        [(second,)] = warehouse.query("SELECT value FROM main.metric_values WHERE metric = 'my_ops_per_step'").rows()
        assert second == 2 * first


def test_who_has_not_the_folder_leaves_its_values_alone(folder: Path, sql: Path) -> None:
    with tw.open(folder, sql=sql) as warehouse:
        warehouse.refresh_metrics()
    with tw.open(folder) as warehouse:
        assert warehouse.stale_runs() == []
        [stored] = warehouse.values().pl().filter(metric="my_ops_per_step").rows()
        assert stored


def test_a_refresh_without_the_folder_keeps_its_values(folder: Path, sql: Path) -> None:
    """The package has changed and the folder is not here: its values stay, with their fingerprint."""
    stored = "SELECT value, fingerprint FROM main.metric_values WHERE metric = 'my_ops_per_step'"
    with tw.open(folder, sql=sql) as warehouse:
        own = warehouse.definitions.all_fingerprint.partition("+")[2]
        warehouse.definitions.__dict__["all_fingerprint"] = f"{'0' * 64}+{own}"
        warehouse.refresh_metrics()
        before = warehouse.query(stored).rows()
        all_of_package = warehouse.query("SELECT count(*) FROM main.metric_values").rows()
    assert len(before) == 1
    with tw.open(folder) as warehouse:
        assert len(warehouse.refresh_metrics()) == 1
        assert warehouse.query(stored).rows() == before
        assert warehouse.query("SELECT count(*) FROM main.metric_values").rows() == all_of_package
        assert warehouse.stale_runs() == []
        assert warehouse.refresh_metrics() == []
    with tw.open(folder, sql=sql) as warehouse:
        assert warehouse.stale_runs() == []


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("metrics/ttft_v1", METRIC, "metrics.ttft_v1 is a name of the package"),
        (
            "metrics/ttft_v9",
            METRIC.replace("description:", "changed: Other steps.\ndescription:"),
            "metrics.ttft is a name of the package",
        ),
        ("metrics/missing_v1", METRIC, "metrics.missing is a name of the package"),
        ("metrics/catalog_v1", METRIC, "metrics.catalog is a name of the package"),
        ("metrics/ttft_v1_v1", METRIC, "metrics.ttft_v1 is a name of the package"),
        (
            "metrics/my_ops_per_step_v1_v1",
            METRIC,
            "also the name of a version of another metric",
        ),
        ("models/steps", MODEL, "models.steps is a name of the package"),
        ("models/other", MODEL.replace("/*---", "/*---\nmodel: other"), "says model, which the file's name tells"),
        ("models/other", MODEL.replace("main.ops", "main.opps"), "reads main.opps"),
        (
            "models/other",
            MODEL.replace("main.ops", "read_csv('/etc/passwd')"),
            "read_csv() is not for read-only queries",
        ),
    ],
)
def test_a_mistake_is_one_clear_sentence(sql: Path, folder: Path, name: str, text: str, said: str) -> None:
    _write(sql, {name: text})
    with pytest.raises(MetricError) as error:
        tw.open(folder, sql=sql)
    assert said in str(error.value)
    assert str(sql) in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"), [("o.run_id AS run_id", "o.nosuch AS run_id", "nosuch"), ("AS n", "AS m", '"n"')]
)
def test_sql_that_duckdb_refuses_is_named_by_its_file(sql: Path, folder: Path, old: str, new: str, said: str) -> None:
    _write(sql, {"models/my_ops": MODEL.replace(old, new)})
    with tw.open(folder, sql=sql) as warehouse, pytest.raises(MetricError) as error:
        warehouse.query("SELECT * FROM metrics.my_ops_per_step")
    assert str(error.value).startswith(str(sql / "models/my_ops.sql"))
    assert said in str(error.value)


def test_a_grain_that_is_not_unique_is_refused_when_it_is_evaluated(sql: Path, folder: Path) -> None:
    _write(
        sql,
        {
            "metrics/my_ops_per_step_v1": METRIC[: METRIC.index("SELECT\n")]
            + "SELECT o.run_id, 1 AS n FROM main.ops AS o"
        },
    )
    with tw.open(folder, sql=sql) as warehouse, pytest.raises(MetricError, match="grain run_id is not unique"):
        warehouse.refresh_metrics()


def test_a_folder_must_hold_definitions(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(MetricError, match="no folder"):
        tw.open(folder, sql=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(MetricError, match="holds no metric, model or audit"):
        tw.open(folder, sql=tmp_path / "empty")


def test_what_is_not_portable_is_a_note_and_no_error(sql: Path) -> None:
    assert portability_notes(load_with(sql)) == []
    _write(sql, {"models/my_ops": MODEL.replace("COUNT(*)", "median(o.self_ps)")})
    [note] = portability_notes(load_with(sql))
    assert "Median is not in the portable subset" in note


class TestCommandLine:
    def test_the_environment_names_the_folder(
        self, sql: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        query = ["-w", str(folder), "query", "SELECT run_id FROM metrics.my_ops_per_step", "--format", "json"]
        assert run(query) == 1
        monkeypatch.setenv("TRACEWAREHOUSE_SQL", str(sql))
        capsys.readouterr()
        assert run(query) == 0
        assert len(json.loads(capsys.readouterr().out)) == 1
        assert run(["metrics", "show", "my_ops_per_step"]) == 0
        assert "Ops of the run per step." in capsys.readouterr().out

    @pytest.mark.usefixtures("asked_once_here")
    def test_pages_of_ones_own_metrics(
        self, sql: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        command = ["-w", str(folder), "--sql", str(sql), "metrics", "docs"]
        assert run([*command, "my_ops_per_step"]) == 0
        page = capsys.readouterr().out
        assert "Ops of the run per step." in page
        assert "models_my_ops" in page
        assert "From run `tiny-tp2`:" in page  # an example from the run that is there, and of no other
        assert re.search(r"FROM metrics.my_ops_per_step\nWHERE run_id = 'r\w+'\n", page)
        pages = tmp_path / "pages"
        own = [*command, "my_ops_per_step", "-o", str(pages), "--check"]
        assert run(own) == 1
        assert "my_ops_per_step.md is not current" in capsys.readouterr().err
        assert run([*command, "-o", str(pages)]) == 0
        assert (pages / "metrics/my_ops_per_step.md").read_text() == page
        assert "[my_ops_per_step](metrics/my_ops_per_step.md)" in (pages / "metrics.md").read_text()
        assert run(own) == 0
        (pages / "metrics/ttft.md").write_text("old")
        capsys.readouterr()
        assert run([*command, "-o", str(pages), "--check"]) == 1
        [stale] = [line for line in capsys.readouterr().err.splitlines() if "is not current" in line]
        assert "ttft.md" in stale  # and all others are
        assert run([*command, "--check"]) == 2
        assert run([*command, "ttfft"]) == 1
        assert "did you mean ttft?" in capsys.readouterr().err

    def test_versions_of_ones_own_are_locked_and_go_on(self, sql: Path, capsys: pytest.CaptureFixture[str]) -> None:
        command = ["--sql", str(sql), "metrics"]
        assert run([*command, "lock"]) == 0
        assert run([*command, "lock", "--check"]) == 0
        first = sql / "metrics/my_ops_per_step_v1.sql"
        released = first.read_text()
        first.write_text(released.replace("COUNT(*)", "MAX(s.step)"))
        capsys.readouterr()
        assert run([*command, "lock", "--check"]) == 1
        assert f"restore it and put the change into {sql}/metrics/my_ops_per_step_v2.sql" in capsys.readouterr().err
        assert run([*command, "lock"]) == 1
        first.write_text(released.replace("status: stable", "status: deprecated\ndeprecated: >\n  Wrong, use\n  none."))

        capsys.readouterr()
        assert run([*command, "new-version", "my_ops_per_step"]) == 0
        second = sql / "metrics/my_ops_per_step_v2.sql"
        assert capsys.readouterr().out.strip() == str(second)
        header = load_with(sql).metric("my_ops_per_step", 2).header
        assert (header.status, header.deprecated) == ("experimental", None)
        assert second.read_text().partition("---*/")[2] == released.partition("---*/")[2]
        assert run([*command, "new-version", "my_ops_per_step"]) == 1
        assert "still experimental; change it there" in capsys.readouterr().err
        second.write_text(second.read_text().replace("experimental", "stable"))
        assert run([*command, "lock"]) == 1
        assert "changed must say what is new" in capsys.readouterr().err

    def test_a_new_metric_works_and_is_locked_once_it_is_released(
        self, capture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run(["metrics", "new", "--help"]) == 0
        example = re.search(r"Example: tw (--sql \S+ metrics new \S+)", " ".join(capsys.readouterr().out.split()))
        assert example is not None
        assert run([*example[1].split(), "--needs", "timed", "--needs", "with_ops"]) == 0
        shown = capsys.readouterr()
        files = ["mine/ops_per_phase_v1.sql", "mine/cases/ops_per_phase_v1.yaml", "mine/preconditions.yaml"]
        assert shown.out.split() == files
        assert "tw --sql mine metrics lock" in " ".join(shown.err.split())

        sql = tmp_path / "mine"
        definitions = load_with(sql)
        assert [p.precondition for p in definitions.needs(definitions.metric("ops_per_phase"))] == ["timed", "with_ops"]
        for case in yaml.safe_load((tmp_path / files[1]).read_text()):
            with warehouse_of(case["given"], definitions) as database:
                found = database.execute("SELECT run_id, phase, ops FROM metrics.ops_per_phase_v1").fetchall()
            assert found == [tuple(row.values()) for row in case["expect"]]
        with tw.open(tmp_path / "warehouse", create=True, sql=sql) as warehouse:
            warehouse.ingest(capture)
            ops = "SELECT COUNT(*) FROM main.ops WHERE is_leaf AND device_id IS NOT NULL"
            counted = warehouse.query("SELECT SUM(value) FROM main.metric_values WHERE metric = 'ops_per_phase'")
            assert counted.scalar() == warehouse.query(ops).scalar() > 0

        definition, own = sql / "ops_per_phase_v1.sql", ["--sql", "mine", "metrics", "lock"]
        assert run(own) == 0
        assert "0 metric versions" in capsys.readouterr().out  # an experimental one is free to change
        definition.write_text(definition.read_text().replace("experimental", "stable"))
        assert run(own) == 1
        assert "description must say what the metric is" in capsys.readouterr().err
        definition.write_text(re.sub("description: TODO.*", "description: Ops of a phase.", definition.read_text()))
        assert run([*own, "--check"]) == 1
        assert run(own) == 0
        definition.write_text(definition.read_text().replace("COUNT(*)", "2 * COUNT(*)"))
        capsys.readouterr()
        assert run([*own, "--check"]) == 1
        assert "was released and has changed" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["ttft"], "there is a metric ttft already"),
            (["my_ops_per_step"], "there is a metric my_ops_per_step already"),
            (["Ops"], "is no name"),
            (["ops_v1"], "is no name"),
            (["catalog"], "cannot be defined anew"),
            (["ops", "--topic", "../elsewhere"], "is not a folder in"),
            (["ops", "--needs", "No Name"], "is no name"),
            (["taken"], "exists already"),
        ],
    )
    def test_a_new_metric_that_cannot_be_leaves_nothing(
        self, sql: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
    ) -> None:
        (sql / "cases").mkdir()
        (sql / "cases" / "taken_v1.yaml").write_text("[]")
        before = {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")}
        assert run(["--sql", str(sql), "metrics", "new", *arguments]) == 1
        assert words in capsys.readouterr().err
        assert {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")} == before

    def test_a_new_metric_of_the_package_has_a_topic(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert run(["metrics", "new", "ops_per_phase"]) == 1
        assert "name one of audits," in capsys.readouterr().err
        checkout = tmp_path / "checkout"
        copied = shutil.copytree(SQL, checkout / "tracewarehouse" / "sql")
        (checkout / "pyproject.toml").touch()
        for module in ("lock", "reading"):
            monkeypatch.setattr(f"tracewarehouse.definitions.{module}.SQL", copied)
        written = new_metric("ops_per_phase", None, "ops", ["with_ops"])
        assert [str(p.relative_to(checkout)) for p in written] == [
            "tracewarehouse/sql/ops/ops_per_phase_v1.sql",
            "tests/sql/cases/ops_per_phase_v1.yaml",
            "tracewarehouse/sql/preconditions.yaml",
        ]
        entries = yaml.safe_load(written[2].read_text())
        assert list(entries) == [*yaml.safe_load((SQL / "preconditions.yaml").read_text()), "with_ops"]

    def test_a_metric_of_the_package_gets_no_version_in_a_folder(
        self, sql: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(["--sql", str(sql), "metrics", "new-version", "ttft"]) == 1
        assert "ttft is a metric of the package" in capsys.readouterr().err


ATTACKS = (
    *(f"SELECT 1 AS run_id FROM main.ops{end}" for end in ("; {c}", "/* /* */ */; {c}", "-- \r; {c}", "\0; {c}")),
    *(f"SELECT {text} AS run_id FROM main.ops; {{c}}; --'" for text in ("E'\\''", "'\\'", "$$'$$", '"\\"')),
    *(
        "{c}",
        "PRAGMA version",
        "SET threads = 1",
        "ATTACH '{p}' AS x",
        "INSTALL httpfs",
        "LOAD '{p}'",
        "CALL checkpoint()",
    ),
    *(
        "INSERT INTO main.ops FROM main.ops",
        "CREATE TABLE x AS FROM main.ops",
        "EXPLAIN ANALYZE {c}",
        "SELECT 1; SELECT 2",
    ),
    *("WITH x AS ({c}) SELECT 1 AS run_id FROM main.ops", "WITH x AS (DELETE FROM main.ops RETURNING 1) FROM main.ops"),
    *(
        f"SELECT run_id FROM {s}"
        for s in ("read_text('{p}')", "'{p}'", "main.read_csv('{p}')", "query('{c}')", "x.main.t")
    ),
    *("SELECT (SELECT content FROM read_text('{p}')) AS run_id FROM main.ops", "FROM main.ops AT (VERSION => ({c}))"),
    *("SELECT run_id FROM main.ops AS o, glob('{p}')", "PIVOT main.ops ON line USING count(*)", "SELECT 1 FROM", ""),
    *("SELECT " + "(" * 5000 + "1" + ")" * 5000 + " AS run_id FROM main.ops", "SELECT '" + "x" * MOST_CHARACTERS),
    "SELECT run_id FROM models.my_model",
)
FRONTS = (
    "[" * 60_000,
    '{"a":' * 60_000,
    "- " * 60_000,
    "&a [*a]",
    "!!int x",
    "\n? a\n\n  b\n: 1",
    "9" * 5000,
    "a: b: c",
)
"""Values of a header: nested until a parser in C has no stack, or said in many lines."""


@pytest.mark.parametrize("kind", ["model", "audit", "macro", "precondition"])
def test_a_folder_of_definitions_only_reads(tmp_path: Path, kind: str) -> None:
    """Whatever it holds is refused in one sentence that names the file, before anything of it runs."""
    passed = []
    for number, attack in enumerate(ATTACKS):
        folder, canary = tmp_path / str(number), tmp_path / "secret.csv"
        sql = attack.replace("{c}", f"COPY (SELECT 42 AS a) TO '{canary}'").replace("{p}", str(tmp_path / "secret.csv"))
        folder.mkdir()
        if kind == "precondition":
            entry = {"my_model": {"reason": "None.", "remedy": "Do.", "runs": sql}}
            (folder / "preconditions.yaml").write_text(yaml.safe_dump(entry))
        else:
            front = "/*---\ndescription: Runs.\ncolumns: {run_id: The run.}\n"
            front += "parameters: {run: The run.}\n---*/\n" if kind == "macro" else "---*/\n"
            _write(folder, {f"{kind}s/my_model": front + sql})
        try:
            load_with(folder)
            passed.append(attack)
        except MetricError as error:
            assert str(folder) in str(error) or "in a circle" in str(error)
            assert len(str(error).splitlines()) == 1
            assert len(str(error)) < 1000
        assert not canary.exists()
    assert passed == ([ATTACKS[-1]] if kind in ("audit", "macro") else [])  # what they read is checked when they run


@pytest.mark.parametrize("front", FRONTS, ids=lambda front: front[:12])
def test_a_hostile_header_is_one_sentence(tmp_path: Path, front: str) -> None:
    for name, text in (
        ("m.sql", f"/*---\nnotes: {front}\n---*/\nSELECT 1"),
        ("preconditions.yaml", f"m:\n  reason: {front}"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(MetricError) as refused:
            load_with(tmp_path)
        (tmp_path / name).unlink()
        assert str(refused.value).startswith(f"{tmp_path / name}: ")
        assert len(str(refused.value).splitlines()) == 1
        assert len(str(refused.value)) < 600


def test_a_folder_has_so_many_definitions_in_a_row_and_in_all(tmp_path: Path) -> None:
    """DuckDB takes a minute to refuse 500 views that read each other."""
    (tmp_path / "chain").mkdir()
    for i in range(MOST_NESTED + 1):
        front = "/*---\ndescription: All runs.\ncolumns: {run_id: The run.}\n---*/\n"
        source = f"models.m{i - 1}" if i else "main.runs"
        (tmp_path / "chain" / f"m{i}.sql").write_text(f"{front}SELECT run_id FROM {source}")
    with pytest.raises(
        MetricError, match=f"models.m{MOST_NESTED}: more than {MOST_NESTED} definitions read each other"
    ):
        load_with(tmp_path / "chain")
    (tmp_path / "chain" / f"m{MOST_NESTED}.sql").unlink()
    assert f"models.m{MOST_NESTED - 1}" in load_with(tmp_path / "chain").names
    (tmp_path / "many").mkdir()
    entry = "p{}: {{reason: no run, remedy: do it, runs: SELECT run_id FROM main.runs}}\n"
    (tmp_path / "many" / "preconditions.yaml").write_text("".join(entry.format(i) for i in range(MOST_DEFINITIONS + 1)))
    with pytest.raises(MetricError, match="holds more than 1,024 definitions"):
        load_with(tmp_path / "many")
    needs = "p{}: {{reason: no run, remedy: do it, needs: [p{}], runs: SELECT run_id FROM main.runs}}\n"
    row = "".join(needs.format(i, i + 1) for i in range(MOST_NESTED + 2)) + entry.format(MOST_NESTED + 2)
    (tmp_path / "many" / "preconditions.yaml").write_text(row)
    metric = METRIC.replace("grain:", "needs: [p0]\ngrain:", 1)
    (tmp_path / "many" / "my_ops_per_step_v1.sql").write_text(metric)
    (tmp_path / "many" / "my_ops.sql").write_text(MODEL)
    with pytest.raises(MetricError, match=f"more than {MOST_NESTED} preconditions need each other in a row"):
        load_with(tmp_path / "many")


def test_a_definition_may_end_in_a_semicolon_or_a_comment(folder: Path, sql: Path) -> None:
    with tw.open(folder, sql=sql) as warehouse:
        want = warehouse.metric("my_ops_per_step").rows()
    for end in (";", " -- by run;"):
        _write(sql, {"models/my_ops": MODEL.rstrip() + end})
        with tw.open(folder, sql=sql) as warehouse:
            assert warehouse.metric("my_ops_per_step").rows() == want != []


@pytest.mark.parametrize("name", ["own_v1.sql", "preconditions.yaml"])
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "found a pipe or device"),
        (lambda path: path.symlink_to("/dev/zero"), "found a pipe or device"),
        (Path.mkdir, "found a folder"),
        (lambda path: path.symlink_to(path.name), "cannot be read"),
        (lambda path: path.write_text("-" * (MOST_CHARACTERS + 1)), "found more than 1,048,576 characters"),
    ],
)
def test_what_is_no_file_of_definitions_is_refused(
    tmp_path: Path, name: str, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(MetricError) as refused:
        load_with(tmp_path)
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path / name}: ")
