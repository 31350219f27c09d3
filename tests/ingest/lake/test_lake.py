"""A run appears whole or not at all, whoever writes and whenever a writer dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tracewarehouse.ingest.errors import UnreadRunWarning, WarehouseError
from tracewarehouse.ingest.lake.garbage import collect_garbage, leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION


def table_file(run_id: str | None = "r1", name: str = "x", table: str = "ops") -> bytes:
    """A file of a table that names its run, if one is given, and holds one name."""
    columns = {"run_id": [run_id]} if run_id else {}
    found = pa.BufferOutputStream()
    rows = pa.table(columns | {"name": [name]}).replace_schema_metadata({"table": table})
    pq.write_table(rows, found)
    return bytes(found.getvalue())


def version(run_id: str = "r1", number: str = "1") -> RunVersion:
    return RunVersion(run_id, f"v{number}", "name", SCHEMA_VERSION, "1", "digest", {"ops": ["ops.parquet"]}, {"ops": 1})


def publish(lake: Lake, run: RunVersion, content: str = "x") -> RunVersion:
    with lake.stage(run.run_id, run.version) as folder:
        (folder / "ops.parquet").write_bytes(table_file(run.run_id, content))
        return lake.publish(folder, run)


def said(path: Path) -> str:
    """The name that a file of `publish` holds."""
    [name] = pq.ParquetFile(path).read(["name"]).column("name").to_pylist()
    return str(name)


def test_a_published_run_is_read_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version())
    assert lake.runs() == [placed]
    assert [said(p) for p in lake.paths(placed, "ops")] == ["x"]
    assert lake.paths(placed, "phases") == []


def test_a_staged_version_is_not_a_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.stage("r1", "v1") as folder:
        (folder / "ops.parquet").write_bytes(b"x")
        assert lake.runs() == []
    assert not list((tmp_path / "lake").glob(".staging-*"))


def test_a_new_version_replaces_and_the_old_one_goes_after_a_while(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, version(number="1"), "old")
    new = publish(lake, version(number="2"), "new")
    assert lake.runs() == [new]
    assert said(lake.paths(old, "ops")[0]) == "old"  # a reader that listed it can still read it
    assert collect_garbage(lake, grace_seconds=3600) == []
    assert [x.path.name for x in collect_garbage(lake, grace_seconds=0)] == ["v1"]
    assert said(lake.paths(new, "ops")[0]) == "new"


def test_the_same_version_twice_keeps_the_first(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version(), "first")
    second = publish(lake, version(), "second")
    assert said(lake.paths(second, "ops")[0]) == "first"


def test_a_damaged_version_is_written_again_beside_it(tmp_path: Path) -> None:
    """A reader that opened the other tables of the damaged one can go on."""
    lake = Lake(tmp_path)
    first = publish(lake, version())
    lake.paths(first, "ops")[0].write_bytes(b"y")
    second = publish(lake, version(), "again")
    assert lake.paths(first, "ops")[0].read_bytes() == b"y"
    assert said(lake.paths(second, "ops")[0]) == "again"
    assert lake.is_whole(second)


def test_grace_counts_from_the_replacement(tmp_path: Path) -> None:
    """However old the version is: a reader may have listed it a moment before."""
    lake = Lake(tmp_path)
    old = publish(lake, version(number="1"), "old")
    [file] = lake.paths(old, "ops")
    for path in (file, file.parent):
        os.utime(path, (0, 0))
    publish(lake, version(number="2"), "new")
    assert collect_garbage(lake, grace_seconds=3600) == []
    assert said(file) == "old"
    [file] = lake.paths(lake.runs()[0], "ops")
    for path in (file, file.parent):
        os.utime(path, (0, 0))
    lake.remove("r1")
    assert collect_garbage(lake, grace_seconds=3600) == []
    assert said(file) == "new"


class TestGarbage:
    def test_what_a_dead_writer_left_goes_at_once_and_a_live_one_keeps_its_own(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        publish(lake, version())
        writer = subprocess.Popen([sys.executable, "-c", STAGER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        with lake.stage("r2", "v1"):
            assert collect_garbage(lake, grace_seconds=0) == []
            writer.kill()
            writer.wait()
            writer.stdout.close()
            [left] = leftovers(lake)
            assert (left.what, left.bytes >= 1000) == ("an interrupted ingest", True)
            assert collect_garbage(lake) == [left]
            assert leftovers(lake, 0) == []
        assert len(lake.runs()) == 1

    def test_parts_of_manifests_and_databases_go(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        publish(lake, version())
        parts = [
            tmp_path / ".part-0123abcd",
            tmp_path / ".part-0123abcd.wal",
            tmp_path / "manifests" / ".part-0123abcd",
        ]
        for part in parts:
            part.write_bytes(b"x")
        assert [x.path for x in collect_garbage(lake)] == parts
        assert not any(part.exists() for part in parts)

    def test_what_is_not_ours_stays(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        old = publish(lake, version(number="1"))
        publish(lake, version(number="2"))
        [file] = lake.paths(old, "ops")
        other = tmp_path / "other"
        other.mkdir()
        (other / "ops.parquet").write_bytes(b"x")
        run = file.parent.parent
        (other / "v1").mkdir()
        (other / "v1" / "ops.parquet").write_bytes(table_file("link"))
        (run / "link").symlink_to(other)
        (tmp_path / "lake" / "link").symlink_to(other)
        (tmp_path / ".staging-1-0123abcd").mkdir()
        theirs = [
            *(file.parent / "notes.txt", file.parent / "My Table.parquet", run / "README"),
            *(run / "v3.bak" / "ops.parquet", tmp_path / "lake" / "a.parquet", tmp_path / "lake" / "notes"),
            *(run / "notes", tmp_path / "lake" / "backup" / "ops.parquet"),
            *(tmp_path / ".part-of-mine", tmp_path / "lake" / ".staging-mine" / "x"),
        ]
        for path in theirs:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"x")
        assert [x.path for x in collect_garbage(lake, grace_seconds=0)] == [file]
        assert all(
            p.exists() for p in [*theirs, other / "v1" / "ops.parquet", run / "link", tmp_path / ".staging-1-0123abcd"]
        )

    def test_a_folder_goes_only_where_a_file_of_it_says_whose_it_is(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        publish(lake, version("r2"))
        contents = {
            "ours": {"ops.parquet": table_file()},
            "damaged": {"ops.parquet": b"x", "phases.parquet": table_file(table="phases")},
            "another-run": {"ops.parquet": table_file("r2")},
            "no-run": {"ops.parquet": table_file(None)},
            "another-table": {"ops.parquet": table_file(table="phases")},
            "no-table": {"my_rows.parquet": table_file()},
            "no-parquet": {"ops.parquet": b"x"},
            "something-else": {"notes.txt": b"x"},
        }
        for name, files in contents.items():
            folder = tmp_path / "lake" / "r1" / name
            folder.mkdir(parents=True)
            for file, content in files.items():
                (folder / file).write_bytes(content)
        gone = {x.path.name for x in collect_garbage(lake, grace_seconds=0)}
        assert gone == {"ours", "damaged"}
        assert {p.name for p in (tmp_path / "lake" / "r1").iterdir()} == contents.keys() - gone

    def test_a_run_whose_manifest_cannot_be_read_keeps_its_files(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        run = publish(lake, version())
        publish(lake, replace(version("r2"), schema_version=SCHEMA_VERSION + 1))
        (tmp_path / "manifests" / "r1.json").write_text("{")
        assert collect_garbage(lake, grace_seconds=0) == []
        assert lake.paths(run, "ops")[0].is_file()

    def test_files_in_use_elsewhere_stay(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        old = publish(lake, version(number="1"))
        publish(lake, version(number="2"))
        assert collect_garbage(lake, 0, in_use=old.paths) == []
        assert len(collect_garbage(lake, 0)) == 1

    def test_a_version_that_was_never_published_goes_after_its_grace(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        run = publish(lake, version())
        orphan = tmp_path / "lake" / "r1" / "v9"
        shutil.copytree(lake.paths(run, "ops")[0].parent, orphan)
        assert leftovers(lake, 3600) == []
        assert [x.path for x in collect_garbage(lake, 0)] == [orphan]

    def test_listing_changes_nothing(self, tmp_path: Path) -> None:
        lake = Lake(tmp_path)
        publish(lake, version(number="1"))
        publish(lake, version(number="2"))
        assert leftovers(lake, 0) == leftovers(lake, 0) != []


STAGER = """
import sys, time
from pathlib import Path
from tracewarehouse.ingest.lake.lake import Lake
with Lake(Path(sys.argv[1])).stage("r1", "v9") as folder:
    (folder / "ops.parquet").write_bytes(b"x" * 1000)
    print("staged", flush=True)
    time.sleep(600)
"""


def test_metric_values_are_replaced_only_for_the_version_they_were_made_from(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, version(number="1"))
    values = tmp_path / "values.parquet"
    values.write_bytes(b"values")
    placed = lake.replace_metric_values(old, values, 3, "f" * 64)
    assert placed is not None
    assert [p.read_bytes() for p in lake.paths(placed, "metric_values")] == [b"values"]
    assert placed.rows["metric_values"] == 3
    publish(lake, version(number="2"))
    values.write_bytes(b"late")
    assert lake.replace_metric_values(old, values, 3, "f" * 64) is None
    assert lake.runs()[0].files == {"ops": ["lake/r1/v2/ops.parquet"]}


def test_a_removed_run_is_gone_and_its_files_follow(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version())
    assert lake.remove("r1")
    assert not lake.remove("r1")
    assert lake.runs() == []
    collect_garbage(lake, grace_seconds=0)
    assert not list((tmp_path / "lake").iterdir())


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "r" * 65, ".hidden", "a b", "a\x00"])
def test_names_that_could_leave_the_folder_are_refused(name: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with pytest.raises(WarehouseError, match="not a run id"):
        lake.run(name)
    with pytest.raises(WarehouseError, match="not a run id"), lake.stage(name, "v1"):
        pass


def test_another_schema_version_names_the_command(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, replace(version(), schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(WarehouseError, match="tw ingest"):
        lake.run("r1")
    with pytest.raises(WarehouseError, match=r"has table schema .*: r1 \(name\); run `tw ingest` on its"):
        lake.runs()


def test_files_of_another_schema_version_stay_until_their_run_is_ingested_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, replace(version(number="1"), schema_version=SCHEMA_VERSION - 1), "old")
    assert collect_garbage(lake, grace_seconds=0) == []
    assert said(lake.paths(old, "ops")[0]) == "old"
    new = publish(lake, version(number="2"), "new")
    assert [x.path.name for x in collect_garbage(lake, grace_seconds=0)] == ["v1"]
    assert said(lake.paths(new, "ops")[0]) == "new"


def test_a_manifest_names_files_of_its_own_run_only(tmp_path: Path) -> None:
    """Queries take the run of a row from the file's path."""
    lake = Lake(tmp_path)
    publish(lake, version("r1"))
    run = publish(lake, version("r2"))
    (tmp_path / "manifests" / "r2.json").write_text(
        manifest_text(replace(run, files={"ops": ["lake/r1/v1/ops.parquet"]}))
    )
    with pytest.raises(WarehouseError, match=r"names 'lake/r1/v1/ops.parquet', outside the run's folder"):
        lake.run("r2")


@pytest.mark.parametrize("schema", [SCHEMA_VERSION - 1, SCHEMA_VERSION])
def test_a_damaged_manifest_is_named(tmp_path: Path, schema: int) -> None:
    lake = Lake(tmp_path)
    publish(lake, replace(version(), schema_version=schema))
    content = json.loads((tmp_path / "manifests" / "r1.json").read_text())
    (tmp_path / "manifests" / "r1.json").write_text(json.dumps(content | {"rows": {"ops": 2}}))
    with pytest.raises(WarehouseError, match=r"r1\.json: not a run manifest \(its checksum"):
        lake.runs()


def test_runs_that_cannot_be_read_do_not_hide_the_others(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version("r1"))
    publish(lake, replace(version("r2"), name="old", schema_version=SCHEMA_VERSION + 1))
    publish(lake, version("r3"))
    (tmp_path / "manifests" / "r3.json").write_text('{"files": {"ops": 3}}')
    with pytest.warns(UnreadRunWarning) as caught:
        assert lake.runs() == [placed]
    assert lake.runs() == [placed]  # says it no second time
    [warning] = caught
    for part in ("r2 (old)", "r3.json: not a run manifest", "their captures again"):
        assert part in str(warning.message)
    (tmp_path / "manifests" / "r2.json").write_text("{")
    with pytest.warns(UnreadRunWarning, match=r"left out: cannot be read: r2 .*its capture again"):
        lake.runs()
    found, unread = lake.listing()
    assert found == [placed]
    assert [(r.run_id, r.is_outdated) for r in unread] == [("r2", False), ("r3", False)]


@pytest.mark.parametrize(
    "content",
    ['{"files": 3}', '{"run_id": 1}', "[" * 100_000, '{"checksum": {}}', "\x00", '{"files": {"ops": [[1]]}}'],
)
def test_whatever_stands_in_a_manifest_only_hides_its_run(tmp_path: Path, content: str) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version("r1"))
    fields = json.loads((tmp_path / "manifests" / "r1.json").read_text())
    for text in (content, content[:1] + json.dumps({**fields, "run_id": "r2"})[1:-1] + "," + content[1:]):
        (tmp_path / "manifests" / "r2.json").write_text(text)
        assert lake.listing()[0] == [placed]
        assert [r.run_id for r in lake.listing()[1]] == ["r2"]


def test_a_warehouse_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match="cannot write"), Lake(tmp_path).stage("r1", "v1"):
        pass


WRITER = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION
lake, number = Lake(Path(sys.argv[1])), 0
print("ready", flush=True)
while True:
    number += 1
    rows = pa.table({"run_id": ["r1"], "name": [f"{number:08d}" * 4096]})
    files = {t: [t + ".parquet"] for t in ("ops", "phases")}
    run = RunVersion("r1", f"v{number}", "n", SCHEMA_VERSION, "1", "d", files)
    with lake.stage("r1", run.version) as folder:
        for table in ("ops", "phases"):
            pq.write_table(rows.replace_schema_metadata({"table": table}), folder / f"{table}.parquet")
        lake.publish(folder, run)
"""


def test_readers_see_whole_versions_while_writers_are_killed(tmp_path: Path) -> None:
    """Both tables of a run are of one version at every read, with writers dying at any moment."""
    lake = Lake(tmp_path)
    reads = 0
    for round_ in range(8):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        until = time.monotonic() + 0.05 + 0.03 * round_
        while time.monotonic() < until or reads == 0:
            for run in lake.runs():
                contents = {said(p) for t in ("ops", "phases") for p in lake.paths(run, t)}
                assert len(contents) == 1
                assert len(contents.pop()) == 8 * 4096
                reads += 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    [run] = lake.runs()
    collect_garbage(lake, grace_seconds=0)
    assert {p.name for p in (tmp_path / "lake" / "r1").iterdir()} == {lake.paths(run, "ops")[0].parent.name}
    assert not list((tmp_path / "lake").glob(".staging-*"))
