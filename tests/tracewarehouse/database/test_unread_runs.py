"""A run whose manifest is damaged, or whose tables are of another schema, is named and left out; all others answer."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from msgspec.structs import replace
from tiny_capture import write_capture_directory

import tracewarehouse as tw
from tracewarehouse.cli import run as cli
from tracewarehouse.database.sessions import ScanPlanner
from tracewarehouse.definitions.reading import Definitions
from tracewarehouse.ingest.capture.locations import CACHE_VARIABLE
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import manifest_text
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with the runs a, b and c, beside their captures."""
    folder = tmp_path_factory.mktemp("unread")
    with tw.open(folder / "warehouse", create=True) as warehouse:
        for name, period in (("a", 150), ("b", 170), ("c", 190)):
            warehouse.ingest(write_capture_directory(folder / name, name, period=period))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """The same, for one test alone."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"


def cut(manifest: Path) -> None:
    """As after a disk lost the end of the file."""
    manifest.write_text(manifest.read_text()[:100])


def flip(manifest: Path) -> None:
    """A bit of a digest."""
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"source_digest": "0" * 64}))


def age(manifest: Path) -> None:
    """As an older version of tracewarehouse wrote it."""
    run = Lake(manifest.parent.parent).run(manifest.stem)
    assert run
    manifest.write_text(manifest_text(replace(run, schema_version=SCHEMA_VERSION - 1)))


Change = Callable[[Path], None]
CHANGES = pytest.mark.parametrize("change", [cut, age])


def manifest_of(warehouse: Path, name: str) -> Path:
    [path] = [m for m in (warehouse / "manifests").glob("*.json") if json.loads(m.read_text())["name"] == name]
    return path


def names(warehouse: tw.Warehouse) -> list[str]:
    return [name for (name,) in warehouse.query("SELECT name FROM main.runs ORDER BY name").rows()]


@CHANGES
def test_the_other_runs_answer(folder: Path, change: Change) -> None:
    manifest = manifest_of(folder / "warehouse", "b")
    change(manifest)
    with tw.open(folder / "warehouse") as warehouse:
        with pytest.warns(tw.UnreadRunWarning, match=f"{manifest.stem}.*tw ingest") as caught:
            assert names(warehouse) == ["a", "c"]
            assert {r[0] for r in warehouse.metric("step_time").rows()} == {r.run_id for r in warehouse.lake.runs()}
            assert {r[1] for r in warehouse.values().rows()} == {"a", "c"}
            assert warehouse.run("a").name == "a"
        assert len(caught) == 1
        assert [r.run_id for r in warehouse.unread_runs()] == [manifest.stem]
        with pytest.raises(tw.WarehouseError, match=f"run {manifest.stem}"):
            warehouse.run(manifest.stem)


def test_the_other_runs_are_audited_refreshed_and_built(folder: Path) -> None:
    cut(manifest_of(folder / "warehouse", "b"))
    with tw.open(folder / "warehouse") as warehouse, pytest.warns(tw.UnreadRunWarning) as caught:
        assert warehouse.audit() == []
        assert warehouse.refresh_metrics() == []
        assert warehouse.build().exists()
    assert len(caught) == 1


@CHANGES
def test_nothing_is_lost_and_ingesting_again_mends_it(folder: Path, change: Change) -> None:
    manifest = manifest_of(folder / "warehouse", "b")
    before = sorted(p for p in (folder / "warehouse" / "lake").rglob("*.parquet"))
    change(manifest)
    with tw.open(folder / "warehouse") as warehouse, pytest.warns(tw.UnreadRunWarning):
        names(warehouse)
        warehouse.collect_garbage(grace_seconds=0)
        assert sorted(p for p in (folder / "warehouse" / "lake").rglob("*.parquet")) == before
        warehouse.ingest(folder / "b")
        assert names(warehouse) == ["a", "b", "c"]
        assert warehouse.unread_runs() == []


def names_it_once(warehouse: Path, run_id: str, capfd: pytest.CaptureFixture[str], *command: str) -> None:
    assert cli(["-w", str(warehouse), *command]) == 0
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(said) == 1
    assert run_id in said[0]


@pytest.mark.parametrize("command", ["metrics refresh", "audit"])
def test_a_command_that_reads_all_runs_names_it_once(
    folder: Path, command: str, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = manifest_of(folder / "warehouse", "b")
    cut(manifest)
    names_it_once(folder / "warehouse", manifest.stem, capfd, *command.split())


@pytest.mark.parametrize("change", [cut, age])
def test_the_command_line_names_it_once(folder: Path, change: Change, capfd: pytest.CaptureFixture[str]) -> None:
    manifest = manifest_of(folder / "warehouse", "b")
    change(manifest)
    asked = ["-w", str(folder / "warehouse")]
    names_it_once(folder / "warehouse", manifest.stem, capfd, "query", "SELECT name FROM runs ORDER BY name")
    names_it_once(folder / "warehouse", manifest.stem, capfd, "metrics", "values", "-m", "tpot")
    assert cli([*asked, "runs", "--format", "csv"]) == 0
    out, err = capfd.readouterr()
    quality = "outdated" if change is age else "unreadable"
    assert [line.split(",")[0] for line in out.splitlines() if quality in line] == [manifest.stem]
    assert err.count("warning: ") == 1
    assert cli([*asked, "fsck"]) == 1
    assert manifest.stem in capfd.readouterr().out
    assert cli([*asked, "remove", manifest.stem]) == 0
    assert cli([*asked, *(["fsck"] if change is cut else ["runs"])]) == 0
    assert manifest.stem not in capfd.readouterr().err


def test_a_warehouse_of_outdated_runs_names_what_to_ingest(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        age(manifest_of(folder / "warehouse", name))
    asked = ["-w", str(folder / "warehouse")]
    assert cli([*asked, "query", "SELECT count(*) AS n FROM runs"]) == 1
    error = capfd.readouterr().err
    for name in "abc":
        assert f"({name})" in error
    assert error.count(f"has table schema {SCHEMA_VERSION - 1}") == 1
    assert "run `tw ingest` on their captures again" in error
    assert cli([*asked, "runs", "--format", "csv"]) == 0
    out, err = capfd.readouterr()
    assert sorted(line.split(",")[1:] for line in out.splitlines()) == [
        *([n, "outdated"] for n in "abc"),
        ["name", "quality"],
    ]
    assert err.count("warning: ") == 1
    assert cli([*asked, "ingest", *(str(folder / n) for n in "abc")]) == 0
    assert cli([*asked, "query", "SELECT count(*) AS n FROM runs", "--format", "csv"]) == 0
    assert capfd.readouterr().out.endswith("n\n3\n")


@CHANGES
def test_a_remote_warehouse_answers_too(
    folder: Path, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    local = folder / "warehouse"
    change(manifest_of(local, "b"))
    store = fsspec.filesystem("memory")
    for path in local.rglob("*"):
        if path.is_file():
            store.pipe_file(f"/unread/warehouse/{path.relative_to(local)}", path.read_bytes())
    try:
        with tw.open("memory://unread/warehouse") as there:
            with pytest.warns(tw.UnreadRunWarning):
                assert names(there) == ["a", "c"]
            assert len(there.unread_runs()) == 1
    finally:
        store.rm("/unread", recursive=True)


def file_of(warehouse: Path, name: str, table: str) -> Path:
    [path] = [p for r in Lake(warehouse).runs() if r.name == name for p in Lake(warehouse).paths(r, table)]
    return path


def test_a_missing_file_is_told_by_its_run_and_what_to_do(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file_of(folder / "warehouse", "b", "ops").unlink()
    start = ["-w", str(folder / "warehouse")]
    run_id = manifest_of(folder / "warehouse", "b").stem
    told = f"{run_id} (b lacks ops.parquet); run `tw ingest` on its capture again, or `tw remove` what is not needed"
    for command in (
        ["query", "SELECT count(*) FROM ops"],
        ["query", "SELECT count(*) FROM metrics.device_idle"],
        ["query", "SELECT count(*) FROM ops", "--unrestricted"],
        ["audit"],
        ["build"],
    ):
        assert cli([*start, *command]) == 1
        out, err = capfd.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("error: ")
        assert told in err
    assert cli([*start, "query", "SELECT count(*) FROM devices"]) == 0  # the other tables answer
    capfd.readouterr()
    assert cli([*start, "runs", "--format", "json"]) == 0
    out, err = capfd.readouterr()
    assert {r["name"]: r["quality"] for r in json.loads(out)} == {"a": "ok", "b": "incomplete", "c": "ok"}
    assert err == f"warning: cannot be read: {told}\n"
    assert cli([*start, "fsck"]) == 1
    assert "there is no such file" in capfd.readouterr().out
    assert cli([*start, "ingest", str(folder / "b")]) == 0
    capfd.readouterr()
    assert cli([*start, "query", "SELECT count(DISTINCT run_id) AS n FROM ops", "--format", "csv"]) == 0
    assert capfd.readouterr().out == "n\n3\n"


OF_ONE = {
    "its text": "SELECT count(*) FROM ops WHERE run_id = '{a}'",
    "a parameter": "SELECT count(*) FROM ops WHERE run_id = $run",
    "a list of parameters": "SELECT count(*) FROM ops JOIN devices USING (run_id) WHERE run_id IN ($run, '{c}')",
    "a parameter that is a list": "SELECT count(*) FROM ops WHERE run_id IN $runs",
    "a macro and a parameter": "SELECT count(*) FROM macros.top_ops($run, 3)",
    "outside a window": "SELECT count(*), sum(n) FROM (SELECT run_id, row_number() OVER "
    "(PARTITION BY run_id ORDER BY start_ps) AS n FROM ops) WHERE run_id = '{a}'",
    "one side of a self-join": "SELECT count(*) FROM ops AS x, ops AS y "
    "WHERE x.run_id = '{a}' AND x.run_id = y.run_id AND x.event_id = y.event_id",
    "a window and a parameter": "SELECT max(n) FROM (SELECT run_id, count(*) OVER (PARTITION BY run_id) AS n FROM ops) "
    "WHERE run_id = $run",
    "groups": "SELECT run_id, count(*) FROM ops GROUP BY run_id HAVING run_id IN ('{a}', '{c}') ORDER BY run_id",
    "an alternative": "SELECT count(*) FROM ops WHERE run_id = '{a}' OR run_id = $run",
    "a prefix": "SELECT count(*) FROM ops WHERE starts_with(run_id, '{a}')",
    "a model inside": "SELECT count(*) FROM (SELECT * FROM models.leaf_ops) WHERE run_id = '{a}'",
}
OF_OTHERS = {
    "all": "SELECT count(*) FROM ops",
    "its text": "SELECT count(*) FROM ops WHERE run_id = '{b}'",
    "a parameter": "SELECT count(*) FROM ops WHERE run_id <> $run",
    "a list": "SELECT count(*) FROM ops WHERE run_id IN $both",
    "a text that holds an id": "SELECT count(*) FROM ops WHERE contains($text, run_id)",
    "a window over all": "SELECT * FROM (SELECT run_id, count(*) OVER () AS n FROM ops) WHERE run_id = '{a}'",
    "a self-join by device": "SELECT count(*) FROM ops AS x JOIN ops AS y USING (device_id) WHERE x.run_id = '{a}'",
    "one of two": "SELECT (SELECT count(*) FROM ops WHERE run_id = '{a}'), (SELECT count(*) FROM ops)",
    "runs by name": "SELECT count(*) FROM ops WHERE run_id IN (SELECT run_id FROM runs WHERE name = 'a')",
}


def test_a_damaged_run_stops_only_the_questions_that_may_read_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether by their text, their parameters or DuckDB's plan: the others answer as before.

    The database that plans them is made once for all questions, and leaves out what costs time or loses tables.
    """
    planners: list[ScanPlanner] = []
    make = ScanPlanner.__init__

    def counted(self: ScanPlanner, definitions: Definitions) -> None:
        make(self, definitions)
        planners.append(self)

    monkeypatch.setattr(ScanPlanner, "__init__", counted)

    def asked(opened: tw.Warehouse, sql: str) -> list[tuple[object, ...]]:
        named = {w: ids[w[0]] for w in ("a", "b", "c")}
        given = {"run": ids["a"], "runs": [ids["a"], ids["c"]], "both": [ids["a"], ids["b"]], "text": str(ids)}
        return opened.query(
            sql.format(**named), **{k: v for k, v in given.items() if re.search(rf"\${k}\b", sql)}
        ).rows()

    path = file_of(folder / "warehouse", "b", "ops")
    with tw.open(folder / "warehouse") as opened:
        ids = {r.name: r.run_id for r in opened.lake.runs()}
        want = {name: asked(opened, sql) for name, sql in OF_ONE.items()}
        assert all(repr(rows[0][-1]) not in ("0", "None") for rows in want.values())
        path.write_bytes(path.read_bytes()[:-100])
        for name, sql in OF_ONE.items():
            assert asked(opened, sql) == want[name], name
        for sql in OF_OTHERS.values():
            with pytest.raises(tw.WarehouseError, match=r"\(b\) is damaged"):
                asked(opened, sql)
        path.unlink()
        [planner] = planners
        known = {name for (name,) in planner._database.execute("SELECT name FROM duckdb_optimizers()").fetchall()}
        [(left_out,)] = planner._database.execute("SELECT current_setting('disabled_optimizers')").fetchall()
        assert set(left_out.split(",")) == {"statistics_propagation", "projection_pullup"} & known
    with tw.open(folder / "warehouse") as opened:
        assert asked(opened, OF_ONE["outside a window"]) == want["outside a window"]
