"""The catalogue: equal answers with it and without it, whatever happens to it, to runs and to processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from run_copies import publish_copy

import tracewarehouse as tw
from tracewarehouse.database import catalogue as catalogue_module
from tracewarehouse.database.catalogue import MARK, Catalogue
from tracewarehouse.database.catalogue_store import KEPT
from tracewarehouse.ingest.errors import UnreadRunWarning
from tracewarehouse.ingest.lake import lake as lake_module
from tracewarehouse.ingest.lake.lake import DATABASE, Lake
from tracewarehouse.ingest.lake.manifest import RunVersion, manifest_text, read_manifest
from tracewarehouse.warehouse import Warehouse, open_warehouse

CAPTURE = Path(__file__).parents[3] / "data" / "captures" / "llama-pp2tp2-b4-i16-o5"
TABLES = (*KEPT, "phases", "ops")
QUESTIONS = (
    *(f"SELECT * FROM main.{table} ORDER BY ALL" for table in TABLES),
    "SELECT * FROM metrics.all_values ORDER BY ALL",
    "SELECT r.name, max(v.value) AS most, count(*) AS n FROM metric_values AS v JOIN runs AS r USING (run_id) "
    "GROUP BY ALL ORDER BY ALL",
)
"""None sums doubles: the order of the rows, and with it the last digits of a sum, is not promised."""
Answers = list[list[tuple[object, ...]]]


@pytest.fixture(scope="module")
def one_run(copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_captures(tmp_path_factory.mktemp("one") / "warehouse", CAPTURE.name)


@pytest.fixture
def folder(one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A warehouse of three runs, for which a catalogue is used here."""
    monkeypatch.setattr(lake_module, "MANY_RUNS", 2)
    folder = tmp_path / "it's a=b" / "warehouse"
    shutil.copytree(one_run, folder)
    for number in (1, 2):
        add_copy(folder, number)
    return folder


@pytest.fixture
def warehouse(folder: Path) -> Iterator[Warehouse]:
    """The same, opened, with its catalogue."""
    with open_warehouse(folder) as opened:
        opened.build()
        yield opened


def add_copy(folder: Path, number: int) -> RunVersion:
    """Publish the first run once more under another id and name; the catalogue does not hear of it."""
    lake = Lake(folder)
    run = lake.runs()[0]
    return publish_copy(lake, run, lake, f"{run.run_id[:12]}{number:04}", f"{run.name}-{number}")


def answers(folder: Path) -> Answers:
    with open_warehouse(folder) as opened:
        return [opened.query(q).rows() for q in QUESTIONS]


def answers_from_runs(folder: Path) -> Answers:
    """The same from the runs' own files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_module, "MANY_RUNS", 10**9)
        return answers(folder)


def of_any_duckdb(folder: Path) -> Answers:
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        return [connection.execute(q).fetchall() for q in QUESTIONS]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The manifests that were read."""
    names: list[str] = []

    def counted(path: Path) -> RunVersion | None:
        names.append(path.stem)
        return read_manifest(path)

    monkeypatch.setattr(lake_module, "read_manifest", counted)
    return names


def test_answers_are_those_of_the_runs_own_files(warehouse: Warehouse, read: list[str]) -> None:
    folder = warehouse.lake.warehouse
    expected = answers_from_runs(folder)
    read.clear()
    assert answers(folder) == expected
    assert read == []
    assert of_any_duckdb(folder) == expected
    for run in Lake(folder).runs():  # it is read instead of the runs' files
        for path in (p for t in KEPT for p in warehouse.lake.paths(run, t)):
            path.unlink()
    with open_warehouse(folder) as opened:
        assert [opened.query(f"SELECT * FROM {t} ORDER BY ALL").rows() for t in KEPT] == expected[: len(KEPT)]
        assert opened.query("SELECT count(*) FROM duckdb_databases() WHERE NOT internal").scalar() == 1


def test_few_runs_leave_nothing_behind(one_run: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(one_run, tmp_path / "few"))
    with open_warehouse(folder) as opened:
        opened.ingest(CAPTURE, name="renamed")
        opened.runs()
    assert {p.name for p in folder.iterdir()} == {"lake", "manifests"}


def change_runs(folder: Path, change: str) -> None:
    lake = Lake(folder)
    run = lake.runs()[1]
    if change == "add":
        add_copy(folder, 3)
    elif change == "remove":
        lake.remove(run.run_id)
    else:
        with lake.stage(run.run_id, "replaced") as staging:
            for path in (p for t in run.files for p in lake.paths(run, t)):
                shutil.copyfile(path, staging / path.name)
            values = staging / "metric_values.parquet"
            table = pq.ParquetFile(values).read()
            at = table.column_names.index("value")
            pq.write_table(table.set_column(at, table.field(at), pa.array([0.0] * len(table))), values)
            if change == "replace":
                names = {t: [Path(f).name for f in files] for t, files in run.files.items()}
                lake.publish(staging, replace(run, version="replaced", files=names))
            else:
                lake.replace_metric_values(run, values, len(table), "f" * 64)


@pytest.mark.parametrize("change", ["add", "remove", "refresh", "replace"])
def test_a_stale_one_answers_and_an_update_reads_only_what_changed(
    change: str, warehouse: Warehouse, read: list[str]
) -> None:
    folder = warehouse.lake.warehouse
    before = answers(folder)
    change_runs(folder, change)
    read.clear()
    after = answers(folder)
    assert len(read) == (change != "remove")
    assert after != before
    assert after == answers_from_runs(folder)
    assert of_any_duckdb(folder) == before
    assert not warehouse.is_database_current()
    catalogue = Catalogue(warehouse.lake, None, lambda: warehouse.definitions)
    assert bool(catalogue.replaced_files()) == (change != "add")
    read.clear()
    assert warehouse.update_database()
    assert len(set(read)) == (change != "remove")
    assert of_any_duckdb(folder) == after == answers(folder)
    assert warehouse.is_database_current()
    assert not catalogue.replaced_files()
    assert not warehouse.update_database()
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        ids = connection.execute("SELECT run_id FROM store.manifests ORDER BY ALL").fetchall()
        assert ids == connection.execute("SELECT DISTINCT run_id FROM store.files ORDER BY ALL").fetchall()


def test_any_changes_leave_it_right(warehouse: Warehouse) -> None:
    folder, dice = warehouse.lake.warehouse, Random(1)
    held: dict[str, bytes] = {}
    for step in range(12):
        present = sorted((folder / "manifests").glob("*.json"))
        act = dice.randrange(5)
        if act == 0 and len(present) > 1:
            path = dice.choice(present)
            held[path.name] = path.read_bytes()
            path.unlink()
        elif act == 1 and held:
            name = dice.choice(sorted(held))
            (folder / "manifests" / name).write_bytes(held.pop(name))
        elif act == 2 and present:
            run = read_manifest(dice.choice(present))
            assert run
            (folder / "manifests" / f"{run.run_id}.json").write_text(manifest_text(replace(run, name=f"name {step}")))
        elif act == 3:
            warehouse.update_database()
        else:
            (folder / DATABASE).unlink(missing_ok=True)
            warehouse.build()
        found = Lake(folder)
        found.catalogue = Catalogue(found, None, lambda: warehouse.definitions).runs
        assert found.listing() == Lake(folder).listing()


def test_one_that_cannot_be_used_counts_for_nothing(warehouse: Warehouse, tmp_path: Path) -> None:
    folder = warehouse.lake.warehouse
    expected, file = answers(folder), folder / DATABASE
    whole = file.read_bytes()
    with duckdb.connect(str(file)) as connection:
        connection.execute("UPDATE store.made SET format = format + 1")
    newer = file.read_bytes()
    for content in (newer, whole[:5000], b"no database" * 1000):
        file.write_bytes(content)
        assert answers(folder) == expected
        assert not warehouse.is_database_current()
        assert warehouse.update_database()
        assert of_any_duckdb(folder) == expected
    (folder / MARK).unlink()
    assert not warehouse.is_database_current()
    assert warehouse.update_database()
    assert (folder / MARK).exists()
    catalogue = Catalogue(warehouse.lake, None, lambda: warehouse.definitions)
    assert len(catalogue.runs()) == 3
    file.rename(tmp_path / "elsewhere.duckdb")
    file.symlink_to(tmp_path / "elsewhere.duckdb")
    assert catalogue.runs() == {}
    assert answers(folder) == expected
    file.unlink()
    file.mkdir()
    assert answers(folder) == expected


def test_a_changed_precondition_makes_it_old(folder: Path, tmp_path: Path) -> None:
    """A precondition is a view, though it stands in YAML."""
    own = tmp_path / "own"
    own.mkdir()
    entry = "described:\n  reason: nothing names the model\n  runs: SELECT run_id FROM main.runs WHERE {}\n"
    (own / "preconditions.yaml").write_text(entry.format("model IS NOT NULL"), encoding="utf-8")
    packaged = Path(tw.__file__).parent / "sql" / "serving" / "ttft_v1.sql"
    mine = (
        packaged.read_text(encoding="utf-8")
        .replace("ttft", "my_ttft")
        .replace("status: stable", "status: experimental")
    )
    (own / "my_ttft_v1.sql").write_text(mine, encoding="utf-8")
    with open_warehouse(folder, sql=own) as opened:
        opened.build()
        assert opened.is_database_current()
    (own / "preconditions.yaml").write_text(entry.format("false"), encoding="utf-8")
    with open_warehouse(folder, sql=own) as opened:
        assert not opened.is_database_current()
        assert opened.update_database()
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM preconditions.described").fetchall() == [(0,)]


def test_damage_of_it_costs_no_answer(warehouse: Warehouse) -> None:
    file = warehouse.lake.warehouse / DATABASE
    content, random = file.read_bytes(), Random(5)
    want = answers(warehouse.lake.warehouse)
    for number in range(6):
        damaged = bytearray(content)
        for _ in range(8):
            at = random.randrange(len(damaged))
            damaged[at : at + 200] = bytes(200)
        part = file.with_name("part")
        part.write_bytes(damaged[: random.randrange(len(damaged))] if number % 3 == 2 else damaged)
        part.replace(file)
        assert answers(warehouse.lake.warehouse) == want


@pytest.mark.parametrize("table", ["metric_values", "ops"])
def test_a_damaged_run_is_left_to_its_own_files(table: str, warehouse: Warehouse) -> None:
    folder = warehouse.lake.warehouse
    fresh = add_copy(folder, 3)
    [file] = warehouse.lake.paths(fresh, table)
    if table == "ops":
        file.unlink()
    else:
        content = bytearray(file.read_bytes())
        content[100] ^= 1
        file.write_bytes(content)
    assert warehouse.update_database()
    with duckdb.connect(str(folder / DATABASE), read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM store.manifests").fetchall() == [(3,)]
    assert not warehouse.is_database_current()


def test_a_query_writes_nothing_and_a_writer_of_another_program_does_no_harm(warehouse: Warehouse) -> None:
    folder = warehouse.lake.warehouse
    expected = answers_from_runs(folder)

    def files() -> dict[Path, tuple[int, int]]:
        return {p: (p.stat().st_ino, p.stat().st_mtime_ns) for p in folder.rglob("*")}

    before = files()
    assert answers(folder) == expected
    assert files() == before
    (folder / DATABASE).rename(folder.parent / "aside")
    before = files()
    assert answers(folder) == expected
    assert files() == before
    (folder.parent / "aside").rename(folder / DATABASE)
    code = f"import duckdb, sys; c = duckdb.connect({str(folder / DATABASE)!r}); print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        assert answers(folder) == expected
        assert warehouse.is_database_current()
        other.kill()


def test_it_cannot_name_files_outside_the_folder_of_a_run(warehouse: Warehouse) -> None:
    folder = warehouse.lake.warehouse
    run_id = warehouse.lake.runs()[0].run_id
    for name in ("../../secret.parquet", "", "/etc/x.parquet", "a'b/x.parquet"):
        encoded = catalogue_module.msgspec.msgpack.encode(({"ops": [name]}, {"ops": 1}, bytes(32)))
        with duckdb.connect(str(folder / DATABASE)) as connection:
            changed = "UPDATE store.manifests SET lists = $lists WHERE run_id = $run"
            connection.execute(changed, {"lists": encoded, "run": run_id})
        lake = Lake(folder)
        lake.catalogue = Catalogue(lake, None, lambda: warehouse.definitions).runs
        [run] = [r for r in lake.runs() if r.run_id == run_id]
        uses = (lambda r: list(r.files), lambda r: r.paths, lambda r: r.rows["ops"], lambda r: dict(r.digests))
        for use in uses:
            with pytest.raises(tw.WarehouseError, match="outside its folder; delete it"):
                use(run)


def test_a_manifest_that_changed_just_now_can_change_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update waits until the clock has moved on, and does not keep what a clock ahead of ours has dated."""
    [first, *_] = (folder / "manifests").glob("*.json")
    os.utime(first, (0, 2**32))
    with open_warehouse(folder) as opened:
        opened.build()
        catalogue = Catalogue(opened.lake, None, lambda: opened.definitions)
        assert catalogue.runs().keys() == {r.run_id for r in opened.lake.runs()} - {first.stem}
    assert answers(folder) == answers_from_runs(folder)


def test_ingest_makes_and_extends_it_where_there_are_many_runs(folder: Path) -> None:
    with open_warehouse(folder) as opened:
        opened.ingest(CAPTURE, name="renamed")
        assert (folder / DATABASE).exists()
        assert opened.is_database_current()
        inode = (folder / DATABASE).stat().st_ino
        opened.ingest(CAPTURE, name="renamed")
        assert (folder / DATABASE).stat().st_ino == inode
        opened.remove("renamed")
        assert opened.is_database_current()
    assert of_any_duckdb(folder) == answers_from_runs(folder)


def test_odd_entries_among_the_manifests_cost_one_warning(folder: Path) -> None:
    manifests = folder / "manifests"
    for name, target in (("loop", "loop.json"), ("dangling", "nowhere"), ("device", "/dev/zero")):
        (manifests / f"{name}.json").symlink_to(target)
    os.mkfifo(manifests / "pipe.json")
    (manifests / "folder.json").mkdir()
    odd = ["dangling", "device", "folder", "loop", "pipe"]

    with open_warehouse(folder) as opened:
        with pytest.warns(UnreadRunWarning) as caught:
            assert opened.query("SELECT count(*) FROM runs").scalar() == 3
            assert opened.query("SELECT count(DISTINCT run_id) FROM ops").scalar() == 3
        assert len(caught) == 1
        assert str(caught[0].message).startswith("left out: cannot be read: ")
        assert sorted(r.run_id for r in opened.unread_runs()) == odd
        assert sorted(p.run_id for p in opened.fsck() if p.run_id in odd) == odd
        with pytest.warns(UnreadRunWarning), open_warehouse(folder) as other:
            other.build()
            assert other.is_database_current()
        opened.collect_garbage(0)
