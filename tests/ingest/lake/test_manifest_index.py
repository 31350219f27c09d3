"""The index of manifests: always the runs that the manifests tell, however they change."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake import lake as lake_module
from tracewarehouse.ingest.lake import manifest_index
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text, read_manifest
from tracewarehouse.ingest.lake.schema import SCHEMA_VERSION

DIGEST = "5" * 64


def run_of(run_id: str, version: str = "v1", name: str = "a", *, schema: int = SCHEMA_VERSION) -> RunVersion:
    """A run with two tables, one of them in two files."""
    names = {"runs": ["runs.parquet"], "ops": ["ops-0000.parquet", "ops-0001.parquet"]}
    files = {t: [f"lake/{run_id}/{version}/{f}" for f in named] for t, named in names.items()}
    digests = {f: DIGEST[:-2] + f"{i:02}" for i, f in enumerate(f for named in files.values() for f in named)}
    rows = {"runs": 1, "ops": len(name)}
    return RunVersion(run_id, version, name, schema, "0.1", DIGEST, files, rows, "print", ["flag"], digests)


def place(warehouse: Path, run: RunVersion, *, in_place: bool = False) -> None:
    """Write a manifest as `Lake.publish` does, or over the old one."""
    path = warehouse / "manifests" / f"{run.run_id}.json"
    part = path if in_place else path.with_name(".part-00000000")
    part.write_text(manifest_text(run))
    part.replace(path)


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A warehouse of three runs, which are enough for an index here."""
    monkeypatch.setattr(manifest_index, "FEWEST", 2)
    monkeypatch.setattr(manifest_index, "_SETTLED_NS", 0)
    (tmp_path / "manifests").mkdir()
    for run_id in "abc":
        place(tmp_path, run_of(run_id, name=f"name of {run_id}"))
    yield tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that were read."""
    names: list[str] = []

    def counted(path: Path) -> RunVersion | None:
        names.append(path.stem)
        return read_manifest(path)

    monkeypatch.setattr(lake_module, "read_manifest", counted)
    return names


def test_a_second_reader_reads_no_manifest_and_finds_the_same(warehouse: Path, read: list[str]) -> None:
    first = Lake(warehouse).listing()
    assert read == ["a", "b", "c"]
    read.clear()
    runs, unread = Lake(warehouse).listing()
    assert (runs, unread, read) == (*first, [])
    assert [r.digests_of("runs") for r in runs] == [bytes.fromhex(DIGEST[:-2] + "00")] * 3
    assert [r.packed_digest() for r in runs] == [r.packed_digest() for r in first[0]]
    assert runs == [run_of(r, name=f"name of {r}") for r in "abc"]
    assert Lake(warehouse).runs_of(["b", "x", "../b"]) == runs[1:2]


def test_what_changed_is_read_again(warehouse: Path, read: list[str]) -> None:
    Lake(warehouse).listing()
    read.clear()
    place(warehouse, run_of("b", "v2"))
    place(warehouse, run_of("d"))
    (warehouse / "manifests" / "a.json").unlink()
    runs, _ = Lake(warehouse).listing()
    assert runs == [run_of("b", "v2"), run_of("c", name="name of c"), run_of("d")]
    assert read == ["b", "d"]


def test_a_manifest_that_is_damaged_in_place_is_noticed(warehouse: Path) -> None:
    Lake(warehouse).listing()
    path = warehouse / "manifests" / "b.json"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"name of b", b"game of b"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    runs, [unread] = Lake(warehouse).listing()
    assert [r.run_id for r in runs] == ["a", "c"]
    assert unread.run_id == "b"
    assert "checksum" in unread.why


@pytest.mark.parametrize("damage", ["cut", "changed", "other", "empty", "folder"])
def test_a_damaged_index_is_ignored_and_written_anew(warehouse: Path, read: list[str], damage: str) -> None:
    expected = Lake(warehouse).listing()
    index = warehouse / "cache" / manifest_index.FILE
    whole = index.read_bytes()
    if damage == "folder":
        index.unlink()
        index.mkdir()
    else:
        index.write_bytes(
            {"cut": whole[:-9], "changed": whole.replace(b"name", b"game"), "other": b"x" + whole, "empty": b""}[damage]
        )
    read.clear()
    assert Lake(warehouse).listing() == expected
    assert read == ["a", "b", "c"]
    assert not list((warehouse / "cache").glob(".part-*"))
    read.clear()
    assert Lake(warehouse).listing() == expected
    assert read == (["a", "b", "c"] if damage == "folder" else [])


def test_a_manifest_that_just_changed_is_not_indexed(
    warehouse: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_index, "_SETTLED_NS", 60 * 10**9)
    Lake(warehouse).listing()
    read.clear()
    Lake(warehouse).listing()
    assert read == ["a", "b", "c"]


def test_a_warehouse_that_cannot_be_written_needs_no_index(warehouse: Path) -> None:
    (warehouse / "cache").write_text("a file in its place")
    assert len(Lake(warehouse).listing()[0]) == 3


@pytest.mark.parametrize("name", ["../../secret.parquet", "", "/etc/x.parquet", "a'b.parquet"])
def test_an_index_cannot_name_files_outside_the_folder_of_a_run(warehouse: Path, name: str) -> None:
    runs, _ = Lake(warehouse).listing()
    state = Lake(warehouse).state()
    lists = msgspec.Raw(msgspec.msgpack.encode(("v1", {}, {"ops": [(name, b"")]})))
    entry = manifest_index.Entry(state["a"], "a", "v1", SCHEMA_VERSION, "", "", None, [], {}, b"", lists)
    manifest_index.write(warehouse / "cache", {"a": entry})
    found = Lake(warehouse).listing()[0][0]
    for use in (lambda: list(found.files), lambda: found.paths, lambda: found.rows["ops"], lambda: dict(found.digests)):
        with pytest.raises(WarehouseError, match="outside its folder; delete it"):
            use()
    assert runs[0].files


@pytest.mark.parametrize("seed", range(20))
def test_any_changes_leave_the_index_right(warehouse: Path, seed: int) -> None:
    dice = Random(seed)
    kept = Lake(warehouse)
    for step in range(40):
        run_id = dice.choice("abcdef")
        path = warehouse / "manifests" / f"{run_id}.json"
        act = dice.randrange(6)
        if act == 0:
            path.unlink(missing_ok=True)
        elif act == 1 and path.exists():
            path.write_bytes(path.read_bytes()[:-3])
        else:
            schema = SCHEMA_VERSION - (act == 2)
            name = "s" * (step + 1)  # sizes differ, as times might not
            run = run_of(run_id, dice.choice(["v1", "v2"]), name, schema=schema)
            place(warehouse, run, in_place=act == 3)
        if dice.random() < 0.1:
            (warehouse / "cache" / manifest_index.FILE).unlink(missing_ok=True)
        found = Lake(warehouse).listing()
        assert kept.listing() == found
        without = Lake(warehouse)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(manifest_index, "FEWEST", 10**9)
            assert without.listing() == found


def test_a_run_of_the_index_is_the_run_of_its_manifest(warehouse: Path, read: list[str]) -> None:
    parsed = Lake(warehouse).runs()
    read.clear()
    indexed = Lake(warehouse).runs()
    assert not read
    assert indexed == parsed
    assert parsed == indexed
    for run, same in zip(indexed, parsed, strict=True):
        assert manifest_text(run) == manifest_text(same)
        assert run.packed_digest() == same.packed_digest()
        assert [run.digests_of(t) for t in ("runs", "ops", "devices")] == [
            same.digests_of(t) for t in ("runs", "ops", "devices")
        ]
        assert repr(run) == repr(same)
        moved = replace(run, run_id="d", files={"ops": ["elsewhere"]}, digests={"elsewhere": DIGEST})
        assert moved.digests_of("ops") == bytes.fromhex(DIGEST)
        assert moved.packed_digest() == manifest_index.packed_digest(moved.files, moved.digests)
    assert pickle.loads(pickle.dumps(indexed)) == parsed
