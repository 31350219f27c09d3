"""A run appears whole or not at all, whoever writes and whenever a writer dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.errors import WarehouseError
from ingest.lake import Lake, RunVersion
from ingest.schema import SCHEMA_VERSION


def version(run_id: str = "r1", number: str = "1") -> RunVersion:
    return RunVersion(run_id, f"v{number}", "name", SCHEMA_VERSION, "1", "digest", {"ops": ["ops.parquet"]}, {"ops": 1})


def publish(lake: Lake, run: RunVersion, content: bytes = b"x") -> RunVersion:
    with lake.stage(run.run_id, run.version) as folder:
        (folder / "ops.parquet").write_bytes(content)
        return lake.publish(folder, run)


def test_a_published_run_is_read_back(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version())
    assert lake.runs() == [placed]
    assert [p.read_bytes() for p in lake.paths(placed, "ops")] == [b"x"]
    assert lake.paths(placed, "phases") == []


def test_a_staged_version_is_not_a_run(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    with lake.stage("r1", "v1") as folder:
        (folder / "ops.parquet").write_bytes(b"x")
        assert lake.runs() == []
    assert not list((tmp_path / "lake").glob(".staging-*"))


def test_a_new_version_replaces_and_the_old_one_goes_after_a_while(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    old = publish(lake, version(number="1"), b"old")
    new = publish(lake, version(number="2"), b"new")
    assert lake.runs() == [new]
    assert lake.paths(old, "ops")[0].read_bytes() == b"old"  # a reader that listed it can still read it
    assert lake.collect_garbage(grace_seconds=3600) == []
    assert [p.name for p in lake.collect_garbage(grace_seconds=0)] == ["v=v1"]
    assert lake.paths(new, "ops")[0].read_bytes() == b"new"


def test_the_same_version_twice_keeps_the_first(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version(), b"first")
    second = publish(lake, version(), b"second")
    assert lake.paths(second, "ops")[0].read_bytes() == b"first"


def test_a_damaged_folder_of_the_same_version_is_written_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    first = publish(lake, version())
    lake.paths(first, "ops")[0].unlink()
    second = publish(lake, version(), b"again")
    assert lake.paths(second, "ops")[0].read_bytes() == b"again"


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
    assert lake.runs()[0].files == {"ops": ["lake/run_id=r1/v=v2/ops.parquet"]}


def test_a_removed_run_is_gone_and_its_files_follow(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version())
    assert lake.remove("r1")
    assert not lake.remove("r1")
    assert lake.runs() == []
    lake.collect_garbage(grace_seconds=0)
    assert not list((tmp_path / "lake").glob("run_id=*"))


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
        lake.runs()


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version())
    (tmp_path / "manifests" / "r1.json").write_text(json.dumps({"run_id": "r1"}))
    with pytest.raises(WarehouseError, match=r"r1\.json: not a run manifest"):
        lake.runs()


def test_a_warehouse_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match="cannot write"), Lake(tmp_path).stage("r1", "v1"):
        pass


WRITER = """
import sys
from pathlib import Path
from ingest.lake import Lake, RunVersion
from ingest.schema import SCHEMA_VERSION
lake, number = Lake(Path(sys.argv[1])), 0
print("ready", flush=True)
while True:
    number += 1
    content = f"{number:08d}".encode() * 4096
    files = {t: [t + ".parquet"] for t in ("ops", "phases")}
    run = RunVersion("r1", f"v{number}", "n", SCHEMA_VERSION, "1", "d", files)
    with lake.stage("r1", run.version) as folder:
        for table in ("ops", "phases"):
            (folder / f"{table}.parquet").write_bytes(content)
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
        while time.monotonic() < until:
            for run in lake.runs():
                contents = {p.read_bytes() for t in ("ops", "phases") for p in lake.paths(run, t)}
                assert len(contents) == 1
                assert len(contents.pop()) == 8 * 4096
                reads += 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
    assert reads > 0
    [run] = lake.runs()
    lake.collect_garbage(grace_seconds=0)
    assert {p.name for p in (tmp_path / "lake" / "run_id=r1").iterdir()} == {f"v={run.version}"}
    assert not list((tmp_path / "lake").glob(".staging-*"))
