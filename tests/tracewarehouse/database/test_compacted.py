"""Packs of many runs: no row more, none less and none changed, whatever happens to runs, packs and the process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import many_runs

from tracewarehouse.cli import run as cli
from tracewarehouse.database import compacted
from tracewarehouse.ingest.errors import WarehouseError
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.warehouse import Warehouse, open_warehouse

RUNS = 12
ONE_MB = 1 << 20
"""Of about three runs here: the size of a pack."""
KILLED = """
import os, signal, sys
from pathlib import Path
from tracewarehouse.database import compacted
from tracewarehouse.cli import run
compacted.PACK = 1 << 20
left = int(sys.argv[2])

def killed(whole):
    def call(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*arguments, **options)
    return call

for name in ("mkdir", "rename", "write_bytes", "touch"):
    setattr(Path, name, killed(getattr(Path, name)))
run(["-w", sys.argv[1], "compact"])
"""
"""`tw compact` that is killed before the n-th change of the warehouse."""


@pytest.fixture(scope="module")
def made(all_captures: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "warehouse"
    real, _ = many_runs.patterns(generated=False, stretched=(), ingested=Path(all_captures.path))
    many_runs.write(folder, real, real, RUNS)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compacted, "PACK", ONE_MB)
    return Path(shutil.copytree(made, tmp_path / "it's a=b", copy_function=shutil.copy))


def answers(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Rows and a checksum of them, for each table and run."""
    with open_warehouse(folder) as warehouse:
        return {table: asked(warehouse, table) for table in compacted.PACKED}


def asked(warehouse: Warehouse, table: str) -> list[tuple[object, ...]]:
    sums = "count(*), bit_xor(hash(t)), sum(hash(t)::HUGEINT)"
    return warehouse.query(f"SELECT run_id, {sums} FROM main.{table} AS t GROUP BY ALL ORDER BY ALL").rows()


def without_packs(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    packs = folder / "cache" / "packs"
    packs.rename(folder / "aside")
    try:
        return answers(folder)
    finally:
        (folder / "aside").rename(packs)


def compact(folder: Path) -> list[compacted.Pack]:
    with open_warehouse(folder) as warehouse:
        return list(warehouse.compact())


def rows_of_files(folder: Path) -> dict[str, int]:
    """The ops of each run, as another tool counts them in the files that it is told."""
    with open_warehouse(folder) as warehouse:
        ids = ds.dataset(warehouse.files("ops")).to_table(["run_id"])["run_id"].cast(pa.string())
    return {c["values"]: c["counts"] for c in pc.value_counts(ids).to_pylist()}


def ops_of_runs(folder: Path) -> dict[str, int]:
    return {r.run_id: r.rows["ops"] for r in Lake(folder).runs()}


def test_no_row_changes_and_few_files_are_opened(folder: Path) -> None:
    before = answers(folder)
    assert all(len(rows) for table, rows in before.items() if table in ("ops", "instructions", "collectives"))
    packs = compact(folder)
    assert sum(len(p.contents.runs) for p in packs) == RUNS
    assert 2 < len(packs) < RUNS / 2
    assert answers(folder) == before == without_packs(folder)
    assert rows_of_files(folder) == ops_of_runs(folder)
    with open_warehouse(folder) as warehouse:
        assert sorted(warehouse.files("ops")) == sorted(str(p.file("ops")) for p in packs)
        plan = str(warehouse.query("EXPLAIN SELECT count(*) FROM ops WHERE duration_ps > 0").rows())
        assert "UNION" not in plan
        assert warehouse.fsck() == [p for p in warehouse.fsck() if "its id does not follow" in p.sentence]
    assert compact(folder) == []


def test_runs_that_are_replaced_removed_or_new_are_right_at_once(folder: Path) -> None:
    compact(folder)
    with open_warehouse(folder) as warehouse:
        first, second, third, *_ = warehouse.lake.runs()
        warehouse.remove(first.run_id)
        shutil.rmtree(folder / "lake" / first.run_id)
        path = warehouse.lake.paths(second, "ops")[0]
        half = ds.dataset(path).to_table().slice(0, 10)
        with warehouse.lake.stage(second.run_id, "another") as staging:
            pa.parquet.write_table(half, staging / "ops.parquet")
            shutil.copy(warehouse.lake.paths(second, "runs")[0], staging / "runs.parquet")
            files = {"ops": ["ops.parquet"], "runs": ["runs.parquet"]}
            changed = many_runs.replace(second, version="another", files=files, rows={"ops": 10, "runs": 1})
            warehouse.lake.publish(staging, changed)
        assert dict(warehouse.query("SELECT run_id, count(*) FROM ops GROUP BY ALL").rows()) == ops_of_runs(folder)
    now = answers(folder)
    assert now == without_packs(folder)
    assert ops_of_runs(folder)[second.run_id] == 10
    assert rows_of_files(folder) == ops_of_runs(folder)
    packs = compact(folder)
    assert {second.run_id, third.run_id} <= {r for p in packs for r in p.contents.runs}
    assert answers(folder) == now
    assert rows_of_files(folder) == ops_of_runs(folder)
    with open_warehouse(folder) as warehouse:
        kept = {p.path for p in compacted.read(warehouse.lake)}
        assert [x for x in warehouse.leftovers() if "pack" in x.what] == []
        gone = [x for x in warehouse.collect_garbage(0) if x.what == "a replaced pack"]
        assert gone
        assert kept == {p for p in (folder / "cache" / "packs").resolve().iterdir() if p.name != ".lock"}
    assert answers(folder) == now
    with pytest.MonkeyPatch.context() as patch:  # packs that are small by now are joined
        patch.setattr(compacted, "PACK", 100 * ONE_MB)
        [pack] = compact(folder)
    assert len(pack.contents.runs) == RUNS - 1
    assert answers(folder) == now


def test_readers_see_the_same_rows_while_packs_are_written(folder: Path) -> None:
    with open_warehouse(folder) as reader, open_warehouse(folder) as writer:
        before = asked(reader, "ops")
        for _ in writer.compact():
            assert asked(reader, "ops") == before
            with open_warehouse(folder) as late:
                assert asked(late, "ops") == before
                assert rows_of_files(folder) == ops_of_runs(folder)
        assert asked(reader, "ops") == before


@pytest.mark.parametrize("damage", ["contents", "cut", "gone", "renamed"])
def test_a_damaged_pack_is_not_read(folder: Path, damage: str) -> None:
    before = answers(folder)
    pack, *_ = compact(folder)
    ops = pack.file("ops")
    if damage == "contents":
        content = (pack.path / "contents").read_bytes()
        (pack.path / "contents").write_bytes(content.replace(b"ops", b"opz"))
    elif damage == "cut":
        ops.write_bytes(ops.read_bytes()[:-4])
    elif damage == "gone":
        ops.unlink()
    else:
        pack.path.rename(pack.path.with_name("0" * 24))
    assert answers(folder) == before
    assert rows_of_files(folder) == ops_of_runs(folder)
    with open_warehouse(folder) as warehouse:
        list(warehouse.compact())
        warehouse.collect_garbage(0)
        assert asked(warehouse, "ops") == before["ops"]
        assert len([f for f in warehouse.files("ops") if "packs" not in f]) == 0


def test_changed_bytes_of_a_pack_are_found_by_fsck(folder: Path) -> None:
    pack, *_ = compact(folder)
    content = bytearray(pack.file("ops").read_bytes())
    content[1000] ^= 1
    pack.file("ops").write_bytes(content)
    with open_warehouse(folder) as warehouse:
        [problem] = [p for p in warehouse.fsck() if p.file and "packs" in p.file]
    assert problem.file == f"cache/packs/{pack.path.name}/ops.parquet"
    assert "remove the folder" in problem.action


def test_a_damaged_run_is_not_packed(folder: Path) -> None:
    run = Lake(folder).runs()[0]
    path = Lake(folder).paths(run, "ops")[0]
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(WarehouseError, match=rf"{run.run_id}.*ops\.parquet is damaged"):
        compact(folder)
    assert not list((folder / "cache" / "packs").glob(".part-*"))


def test_a_killed_compaction_loses_nothing(folder: Path) -> None:
    before = answers(folder)
    for changes in (3, 4, 5, 7):
        command = [sys.executable, "-c", KILLED, str(folder), str(changes)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
        with open_warehouse(folder) as warehouse:
            assert asked(warehouse, "ops") == before["ops"]
    assert list((folder / "cache" / "packs").iterdir())
    compact(folder)
    assert answers(folder) == before
    with open_warehouse(folder) as warehouse:
        warehouse.collect_garbage(0)
        assert not list((folder / "cache" / "packs").glob(".part-*"))
        assert asked(warehouse, "ops") == before["ops"]


def test_the_command_says_what_it_wrote(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli(["-w", str(folder), "compact"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sum(int(line.split("\t")[1].removesuffix(" runs")) for line in lines) == RUNS
    assert cli(["-w", str(folder), "compact"]) == 0
    assert capfd.readouterr().err == "nothing to compact\n"
