"""The warehouse from Python: open, query, ingest, metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space

import tracewarehouse as tw
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.lake.fsck import fsck as lake_fsck
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.warehouse import open_warehouse


def other_capture(path: Path, name: str = "f") -> Path:
    space = Space()
    space.host().line("python").event(name, 1, 2)
    return space.write(path)


def test_importing_it_loads_nothing() -> None:
    code = "import sys, tracewarehouse; print([m for m in ('duckdb', 'pyarrow', 'numpy', 'typer') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_its_names_are_there() -> None:
    assert set(tw.__all__) <= set(dir(tw))
    for name in tw.__all__:
        assert getattr(tw, name)
    assert tw.__version__
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = tw.nothing_such


def test_a_query_takes_parameters_by_name(folder: Path) -> None:
    with tw.open(folder) as wh:
        result = wh.query(
            "SELECT kind, count(*) AS n FROM main.collectives WHERE step >= $first GROUP BY kind", first=1
        )
        assert result.columns == ["kind", "n"]
        assert result.rows() == [("all-reduce", 24)]
        assert result.dicts() == [{"kind": "all-reduce", "n": 24}]
        assert result.arrow().num_rows == 1
        assert result.pl().item(0, "n") == 24
        assert wh.query("SELECT $sql", sql="x").scalar() == "x"


def test_a_struct_with_a_name_twice_is_no_dict() -> None:
    struct = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], fields=[pa.field("", pa.string())] * 2)
    result = QueryResult(pa.table({"pair": struct}))
    assert result.arrow().num_rows == 1
    with pytest.raises(tw.QueryError, match="rename one of the fields"):
        result.rows()


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        ("SELECT lin FROM ops", {}, 'Candidate bindings: "line"'),
        ("FROM main.opz", {}, "Did you mean"),
        ("SELECT $a", {}, "parameters?: a|prepared parameter"),
        ("SELECT $a", {"a": 1, "b": 2}, "excess parameters: b"),
        ("SELEC 1", {}, "syntax error"),
        ("SELECT 'x'::INTEGER", {}, "Could not convert"),
        ("SELECT '\ud800'", {}, "surrogates"),
        ("SELECT $a", {"a": object()}, "object"),
    ],
)
def test_a_failed_query_says_why(folder: Path, sql: str, parameters: dict[str, object], message: str) -> None:
    with tw.open(folder) as wh, pytest.raises(tw.QueryError, match=message):
        wh.query(sql, **parameters)


def test_a_query_is_read_only_unless_told_otherwise(folder: Path, tmp_path: Path) -> None:
    with tw.open(folder) as wh:
        with pytest.raises(tw.QueryError, match="read_only=False"):
            wh.query("CREATE TABLE mine AS FROM main.runs")
        assert wh.query("CREATE TABLE mine AS FROM main.runs", read_only=False).rows() in ([], [(1,)])
        assert wh.query("SELECT count(*) FROM mine", read_only=False).scalar() == 1
        wh.query(f"COPY (FROM main.runs) TO '{tmp_path}/runs.csv'", read_only=False)
        assert (tmp_path / "runs.csv").exists()
        with pytest.raises(tw.QueryError, match="mine"):
            wh.query("FROM mine")


def test_it_follows_new_runs_by_itself(folder: Path, tmp_path: Path) -> None:
    with tw.open(folder) as wh, tw.open(folder) as other:
        assert wh.query("SELECT count(*) FROM main.runs").scalar() == 1
        [result] = other.ingest(other_capture(tmp_path / "b.xplane.pb"))
        assert (result.status, result.name) == ("ingested", "b")
        assert wh.query("SELECT count(*) FROM main.runs").scalar() == 2
        Lake(folder).remove(result.run_id)
        assert wh.query("SELECT count(*) FROM main.runs").scalar() == 1


def test_a_folder_of_captures_is_several_runs(tmp_path: Path) -> None:
    for i in range(2):
        other_capture(tmp_path / "in" / str(i) / "x.xplane.pb", name=f"f{i}")
    with tw.open(tmp_path / "warehouse", create=True) as wh:
        assert len(wh.ingest(tmp_path / "in")) == 2
        with pytest.raises(tw.CaptureError, match="holds 2 captures"):
            wh.ingest(tmp_path / "in", name="both")
        assert len(wh.runs()) == 2


def test_a_mesh_may_be_text(tmp_path: Path) -> None:
    capture = write_capture_directory(tmp_path / "tiny")
    (capture / "manifest.json").unlink()
    with tw.open(tmp_path / "warehouse", create=True) as wh:
        wh.ingest(capture, mesh="dp=2")
        assert wh.query("SELECT DISTINCT axis FROM main.collectives").rows() == [("dp",)]
        for wrong in ("tp", "xx=2", "tp=2,tp=2", "tp=0"):
            with pytest.raises(tw.CaptureError, match="mesh"):
                wh.ingest(capture, mesh=wrong)


def test_a_run_is_found_by_id_beginning_or_name(folder: Path, tmp_path: Path) -> None:
    with tw.open(folder) as wh:
        run_id = wh.query("SELECT run_id FROM main.runs").scalar()
        for reference in (run_id, run_id[:5], "tiny-tp2"):
            assert wh.run(reference).run_id == run_id
        with pytest.raises(tw.WarehouseError, match=r"no run 'nosuch' in .*; `tw runs` lists its runs"):
            wh.run("nosuch")
        assert wh.run("").run_id == wh.run("tiny-").run_id == run_id
        wh.ingest(other_capture(tmp_path / "other.xplane.pb"), name="tiny-tp2")
        with pytest.raises(tw.WarehouseError, match=r"stands for 2 runs: .*; use a run id"):
            wh.run("tiny-tp2")
        with pytest.raises(tw.WarehouseError, match="stands for 2 runs"):
            wh.run("r")
        with pytest.raises(tw.WarehouseError, match="holds 2 runs; name one"):
            wh.run("")


def test_the_catalogue_lists_every_metric(folder: Path) -> None:
    with tw.open(folder) as wh:
        assert {"ttft", "tpot"} <= {m["metric"] for m in wh.metrics().dicts()}


def test_the_id_of_a_run_is_enough_to_ask_about_it_without_the_list_of_all_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tw.open(folder) as wh:
        [known] = wh.lake.runs()
        monkeypatch.setattr(Lake, "listing", None)
        monkeypatch.setattr(Lake, "state", None)
        assert wh.run(known.run_id) == known
        assert wh.find([known.run_id, known.run_id]) == [known]
        assert wh.values(known.run_id).rows()
        assert wh.metric("tpot", [known.run_id]).rows()
        assert wh.stale_runs(known.run_id) == []
        assert not wh.lake.is_empty()


def test_names_are_looked_up_in_one_list(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = write_capture_directory(tmp_path / "other", name="other", period=200)
    with tw.open(folder) as wh:
        wh.ingest(other)
        listed = []
        listing = Lake.listing
        monkeypatch.setattr(Lake, "listing", lambda lake: listed.append(lake) or listing(lake))
        assert [r.name for r in wh.find(["other", "tiny-*", "tiny-tp2"])] == ["other", "tiny-tp2"]
        assert len(listed) == 1


def test_garbage_goes_but_not_what_the_database_reads(folder: Path, capture: Path) -> None:
    with tw.open(folder) as wh:
        database = wh.build()
        rows = wh.query("FROM ops ORDER BY event_id").rows()
        wh.ingest_capture(find_captures(capture)[0], RunOptions(name="renamed"))
        assert wh.collect_garbage(0) == []
        with duckdb.connect(str(database), read_only=True) as connection:
            assert connection.execute("SELECT name FROM runs").fetchall() == [("tiny-tp2",)]
            assert connection.execute("FROM ops ORDER BY event_id").fetchall() == rows
        wh.build()
        assert wh.collect_garbage() == []
        [listed] = wh.leftovers(0)
        assert wh.collect_garbage(0) == [listed]
        assert wh.runs().dicts()[0]["name"] == "renamed"
        assert wh.query("FROM ops ORDER BY event_id").rows() == rows


def test_a_database_in_use_by_a_writer_is_still_respected(folder: Path, capture: Path) -> None:
    with tw.open(folder) as wh:
        with duckdb.connect(str(wh.build())):
            wh.ingest_capture(find_captures(capture)[0], RunOptions(name="renamed"))
            assert wh.collect_garbage(0) == []
        (folder / "warehouse.duckdb").write_bytes(b"no database")
        with pytest.raises(tw.WarehouseError, match="run `tw build`"):
            wh.collect_garbage(0)


def test_a_missing_or_wrong_folder_says_what_to_do(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(tw.WarehouseError, match=r"no warehouse at .*nowhere; make one with `tw -w .*create=True"):
        tw.open(tmp_path / "nowhere")
    file = tmp_path / "run.xplane.pb"
    file.write_bytes(b"x")
    for create in (False, True):
        with pytest.raises(tw.WarehouseError, match="is a file, not a warehouse"):
            open_warehouse(file, create=create)
    with pytest.raises(tw.CaptureError):
        tw.open(file)
    with pytest.raises(tw.WarehouseError, match="holds files but no warehouse"):
        open_warehouse(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_warehouse_behind_a_link_answers(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with tw.open(tmp_path / "link") as wh:
        assert len(wh.runs()) == 1


def test_a_warehouse_may_have_quotes_and_spaces_in_its_path(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "it's a *[warehouse] ü"
    folder.rename(odd)
    with tw.open(odd) as wh:
        assert len(wh.runs()) == 1
        assert wh.metric("tpot").rows()


def test_views_are_there_for_whoever_asks_though_made_when_first_read(tmp_path: Path) -> None:
    with tw.open(tmp_path / "w", create=True) as warehouse:
        warehouse.ingest(write_capture_directory(tmp_path / "c"))
        assert warehouse.query("SELECT count(*) FROM main.runs").scalar() == 1
        assert not warehouse.query("SELECT count(*) FROM runs WHERE name = 'tpot'").scalar()
        for name in ("metrics.tpot", 'METRICS."TPOT"', "metrics /* */ . Step_Time_v1", "models.steps"):
            assert len(warehouse.query(f"SELECT * FROM {name}")), name
        assert warehouse.query("SELECT count(*) FROM metrics.all_values").scalar() > 10
        assert warehouse.query("SELECT count(*) FROM macros.configurations()").scalar() == 0
        with pytest.raises(tw.QueryError, match="Did you mean"):
            warehouse.query("SELECT * FROM metrics.tpots")
        listed = "SELECT count(*) FROM information_schema.tables WHERE table_schema IN ('models', 'metrics')"
        assert warehouse.query(listed).scalar() > 2 * len(warehouse.definitions.aliases)
    with tw.open(tmp_path / "w") as warehouse:
        names = {r[2] for r in warehouse.query("SHOW ALL TABLES").rows()}
        assert {v.name for v in warehouse.definitions.ordered} <= names


def test_models_that_are_read_again_become_tables_with_the_same_rows(capture: Path, tmp_path: Path) -> None:
    ingest_one(capture, tmp_path / "w")
    names = ("op_time_share", "exposed_communication", "collective_skew")
    with tw.open(tmp_path / "w") as warehouse:
        run_id = warehouse.run("").run_id
        asked = {n: f"SELECT * FROM metrics.{n} WHERE run_id = '{run_id}' ORDER BY ALL" for n in names}
        rows = {n: [warehouse.query(sql).rows() for _ in range(2)] for n, sql in asked.items()}
        session = warehouse._sessions.for_runs(frozenset((run_id,)))
        kinds = "SELECT table_name, table_type = 'VIEW' FROM information_schema.tables WHERE table_schema = 'models'"
        is_view = dict(session.connection.execute(kinds).fetchall())
        assert (is_view["collective_ranks"], is_view["leaf_ops"]) == (False, True)
        of_all = warehouse.connection()
        for name, sql in asked.items():
            first, again = rows[name]
            assert first == again == of_all.execute(sql).fetchall() != [], name
        assert not of_all.execute(f"{kinds} AND table_type <> 'VIEW'").fetchall()


@pytest.mark.parametrize("name", ["wh:test", "a:b", "http:", "~"])
def test_a_folder_with_any_name_is_a_folder(
    capture: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also as a relative path, which some libraries take for a URI or for the user's home."""
    monkeypatch.chdir(tmp_path)
    ingest_one(capture, Path(name))
    assert {p.name for p in (tmp_path / name).iterdir()} == {"lake", "manifests"}
    with open_warehouse(name) as warehouse:
        assert warehouse.query("SELECT count(*) > 0 FROM ops").scalar()
        assert warehouse.collect_garbage(0) == []
        assert lake_fsck(Path(name)) == []
