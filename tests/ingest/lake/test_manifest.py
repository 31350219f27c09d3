"""A manifest that is damaged, or of another schema version, is named and hides only its own run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from small_runs import publish, version

from tracewarehouse.ingest.errors import SkippedEntryWarning, UnreadRunWarning, WarehouseError
from tracewarehouse.ingest.lake.fsck import fsck
from tracewarehouse.ingest.lake.garbage import collect_garbage, leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import manifest_text
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION, TABLES


def test_another_schema_version_names_the_command(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, replace(version(), schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(WarehouseError, match="tw ingest"):
        lake.run("r1")
    with pytest.raises(WarehouseError, match=r"has table schema .*: r1 \(name\); run `tw ingest` on its"):
        lake.runs()


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
    assert "`tw plan`" not in str(warning.message)
    publish(lake, replace(version("r2"), name="old-predicted", schema_version=SCHEMA_VERSION + 1))
    with pytest.warns(UnreadRunWarning, match=r"no capture is kept, so remove that and `tw plan` again"):
        lake.runs()
    (tmp_path / "manifests" / "r2.json").write_text("{")
    with pytest.warns(UnreadRunWarning, match=r"left out: cannot be read: r2 .*its capture again"):
        lake.runs()
    found, unread = lake.listing()
    assert found == [placed]
    assert [(r.run_id, r.is_outdated) for r in unread] == [("r2", False), ("r3", False)]


CHANGES: dict[str, dict[str, Any]] = {
    "more than 64 bits": {"rows": {"ops": 10**30}},
    "negative rows": {"rows": {"ops": -1}},
    "rows as text": {"rows": {"ops": "many"}},
    "rows as a list": {"rows": [1]},
    "flags as a number": {"flags": 7},
    "a flag that is none": {"flags": [None]},
    "files as a list": {"files": ["ops"]},
    "a file as text": {"files": {"ops": "lake/r1/v1/ops.parquet"}},
    "no file": {"files": {"ops": None}},
    "version as a number": {"version": 3},
    "a version that leads out": {"version": "../.."},
    "digests as numbers": {"digests": {"lake/r1/v1/ops.parquet": 3}},
    "short digests": {"digests": {"lake/r1/v1/ops.parquet": "ab"}},
    "no digests": {"digests": {}},
    "name as a list": {"name": []},
    "half a surrogate pair": {"name": "\ud800"},
    "source as a number": {"source_digest": 5},
    "fingerprint as a number": {"metrics_fingerprint": 5},
    "schema that is true": {"schema_version": True},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_wrong_values_in_a_sealed_manifest_cost_only_its_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    lake = Lake(tmp_path)
    publish(lake, version("r1"))
    other = publish(lake, version("r2"))
    path = tmp_path / "manifests" / "r1.json"
    content = json.loads(path.read_text()) | changes
    del content["checksum"]
    checksum = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(content | {"checksum": checksum}))
    with pytest.warns(UnreadRunWarning, match=r"r1\.json: not a run manifest"):
        assert lake.runs() == [other]


def test_a_link_counts_as_a_damaged_manifest_even_if_it_leads_to_one(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    publish(lake, version("r1"))
    other = publish(lake, version("r2"))
    path = tmp_path / "manifests" / "r1.json"
    path.symlink_to(path.rename(tmp_path / "r1.json"))
    with pytest.warns(UnreadRunWarning, match=r"r1\.json: not a run manifest \(it is not a file\)"):
        assert lake.runs() == [other]


ENTRIES: dict[str, Callable[[Path], object]] = {
    "link to itself": lambda p: p.symlink_to(p.name),
    "link to nothing": lambda p: p.symlink_to("nothing"),
    "link to a device": lambda p: p.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
}
PLACES = {
    "manifest": "manifests/r3.json",
    "manifest of no run": "manifests/R 3\udcff.json",
    "lock": "manifests/.lock",
    "part": "manifests/.part-abcdef01",
    "run": "lake/r3",
    "version": "lake/r1/v3",
    "file": "lake/r1/v1/ops.parquet",
    "other file": "lake/r1/v1/ops-0001.parquet",
    "staging": "lake/.staging-999999-abcdef01",
    "lock of staging": "lake/.staging-999999-abcdef02/.lock",
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.filterwarnings("ignore::tracewarehouse.ingest.errors.UnreadRunWarning")
@pytest.mark.filterwarnings("ignore::tracewarehouse.ingest.errors.SkippedEntryWarning")
def test_whatever_stands_in_a_folder_of_the_warehouse_harms_nothing_else(
    tmp_path: Path, place: str, entry: Callable[[Path], object]
) -> None:
    """A pipe that is opened would block this test until its time is over."""
    lake = Lake(tmp_path)
    publish(lake, version("r1"))
    other = publish(lake, version("r2"))
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    entry(path)
    assert other in lake.runs()
    [unread] = lake.listing()[1] if "3" in place and "manifests" in place else [None]
    assert unread is None or unread.run_id.isprintable()
    assert lake.is_whole(other)
    assert bool(lake.lacking(lake.runs())) == (place == PLACES["file"])
    told = [
        p
        for p in fsck(tmp_path)
        if p.run_id == "r1" and "is no" in p.sentence + "is not a file" * ("cannot" in p.sentence)
    ]
    assert bool(told) == (place == PLACES["file"])
    for collect in (leftovers, collect_garbage):
        if place == PLACES["lock"] and collect is collect_garbage:
            with pytest.raises(WarehouseError, match="cannot be cleaned"):
                collect(lake, 0)
        else:
            collect(lake, 0)
    if place == PLACES["lock"]:
        with pytest.raises(WarehouseError, match="cannot write to this warehouse"):
            publish(lake, version("r4"))
    else:
        publish(lake, version("r4"))
        assert lake.is_whole(other)


def test_a_lock_that_is_a_link_leaves_what_it_leads_to(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "warehouse")
    publish(lake, version("r1"))
    (tmp_path / "letter").write_text("dear")
    lock = lake.manifests_folder / ".lock"
    lock.unlink()
    lock.symlink_to(tmp_path / "letter")
    with pytest.raises(WarehouseError, match="cannot be removed"):
        lake.remove("r1")
    assert (tmp_path / "letter").read_text() == "dear"


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    placed = publish(lake, version("r1"))
    with (tmp_path / "manifests" / "r2.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.warns(UnreadRunWarning, match="it is larger than 64 MB"):
        assert lake.runs() == [placed]


@pytest.mark.parametrize("of", ["run", "version"])
def test_a_folder_that_cannot_be_listed_is_named_and_left_alone(
    tmp_path: Path, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root can list any folder, so the refusal is played."""
    lake = Lake(tmp_path)
    for number in ("1", "2"):
        publish(lake, version("r1", number))
        publish(lake, version("r2", number))
    closed = tmp_path / "lake" / "r1" / ("" if of == "run" else "v1")
    listdir, iterdir = os.listdir, Path.iterdir

    def refuse(path: Path) -> None:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", lambda path=".": refuse(path) or listdir(path))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Path, "iterdir", lambda path: refuse(path) or iterdir(path))  # type: ignore[func-returns-value]
    with pytest.warns(SkippedEntryWarning, match=rf"left alone: {closed}: Permission denied"):
        gone = collect_garbage(lake, 0)
    assert tmp_path / "lake" / "r2" / "v1" in [x.path for x in gone]


def test_another_column_raises_the_version_of_the_schema() -> None:
    """After a change, raise SCHEMA_VERSION and put both values here: warehouses tell older runs by the version."""
    shapes = [(t.name, c.name, c.type, c.is_key, c.is_nullable) for t in TABLES.values() for c in t.columns]
    assert (SCHEMA_VERSION, hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]) == (16, "3f97953248861ddf")
