"""A run appears whole or not at all, whoever writes and whenever a writer dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_runs import publish, said, version

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.garbage import collect_garbage
from tracewarehouse.ingest.lake.lake import Lake


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


def test_a_warehouse_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("a file where the folder should be")
    with pytest.raises(WarehouseError, match="cannot write"), Lake(tmp_path).stage("r1", "v1"):
        pass


def test_what_cannot_be_taken_back_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, folder = Lake(tmp_path), tmp_path / "lake" / "r1" / "v1"
    folder.mkdir(parents=True)

    def stays(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.rmdir", stays)
    with pytest.raises(KeyError, match="the first"), lake._taken_back("r1", folder):
        raise KeyError("the first")
