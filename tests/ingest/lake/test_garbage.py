"""What nothing uses goes, once nobody can be reading it; what somebody uses, or others wrote, stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace
from small_runs import publish, said, table_file, version

from tracewarehouse.ingest.lake.garbage import collect_garbage, leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION


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


def test_files_of_another_schema_version_stay_until_their_run_is_ingested_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, replace(version(number="1"), schema_version=SCHEMA_VERSION - 1), "old")
    assert collect_garbage(lake, grace_seconds=0) == []
    assert said(lake.paths(old, "ops")[0]) == "old"
    new = publish(lake, version(number="2"), "new")
    assert [x.path.name for x in collect_garbage(lake, grace_seconds=0)] == ["v1"]
    assert said(lake.paths(new, "ops")[0]) == "new"


STAGER = """
import sys, time
from pathlib import Path
from tracewarehouse.ingest.lake.lake import Lake
with Lake(Path(sys.argv[1])).stage("r1", "v9") as folder:
    (folder / "ops.parquet").write_bytes(b"x" * 1000)
    print("staged", flush=True)
    time.sleep(600)
"""


def test_what_a_dead_writer_left_goes_at_once_and_a_live_one_keeps_its_own(tmp_path: Path) -> None:
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


def test_parts_of_manifests_and_databases_go(tmp_path: Path) -> None:
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


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
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


def test_a_folder_goes_only_where_a_file_of_it_says_whose_it_is(tmp_path: Path) -> None:
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


def test_a_run_whose_manifest_cannot_be_read_keeps_its_files(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    run = publish(lake, version())
    publish(lake, replace(version("r2"), schema_version=SCHEMA_VERSION + 1))
    (tmp_path / "manifests" / "r1.json").write_text("{")
    assert collect_garbage(lake, grace_seconds=0) == []
    assert lake.paths(run, "ops")[0].is_file()


def test_files_in_use_elsewhere_stay(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, version(number="1"))
    publish(lake, version(number="2"))
    assert collect_garbage(lake, 0, in_use=old.paths) == []
    assert len(collect_garbage(lake, 0)) == 1


def test_a_version_that_was_never_published_goes_after_its_grace(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    run = publish(lake, version())
    orphan = tmp_path / "lake" / "r1" / "v9"
    shutil.copytree(lake.paths(run, "ops")[0].parent, orphan)
    assert leftovers(lake, 3600) == []
    assert [x.path for x in collect_garbage(lake, 0)] == [orphan]


def test_listing_changes_nothing(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version(number="1"))
    publish(lake, version(number="2"))
    assert leftovers(lake, 0) == leftovers(lake, 0) != []
