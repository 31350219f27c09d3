"""The cache of small tables over many runs: equal answers, and never an old, damaged or foreign one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from run_copies import publish_copy

from tracewarehouse.database import consolidated
from tracewarehouse.database.session import Session
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.lake.manifest import RunVersion
from tracewarehouse.queries.tables_read import tables_read
from tracewarehouse.warehouse import Warehouse, open_warehouse

CAPTURE = Path(__file__).parents[3] / "data" / "captures" / "llama-tp4-b4-i16-o17"
QUESTIONS = (
    "SELECT * FROM main.runs ORDER BY ALL",
    "SELECT * FROM main.devices ORDER BY ALL",
    "SELECT * FROM main.metric_values ORDER BY ALL",
    "SELECT * FROM metrics.all_values ORDER BY ALL",
    "SELECT r.name, max(v.value) AS most, count(*) AS n FROM metric_values AS v JOIN runs AS r USING (run_id) "
    "GROUP BY ALL ORDER BY ALL",
)
"""None sums doubles: the order of the rows, and with it the last digits of a sum, is not promised."""


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "warehouse"
    with open_warehouse(folder, create=True) as warehouse:
        warehouse.ingest(CAPTURE)
    return folder


@pytest.fixture
def warehouse(one_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    """A warehouse of three runs, which are enough for the cache here."""
    monkeypatch.setattr(consolidated, "FEWEST_RUNS", 3)
    folder = tmp_path / "it's a=b" / "warehouse"
    shutil.copytree(one_run, folder)
    for number in (1, 2):
        add_copy(folder, number)
    with open_warehouse(folder) as opened:
        yield opened


def add_copy(folder: Path, number: int) -> RunVersion:
    """Publish the first run once more under another id and name."""
    lake = Lake(folder)
    run = lake.runs()[0]
    return publish_copy(lake, run, lake, f"{run.run_id[:12]}{number:04}", f"{run.name}-{number}")


def answers(warehouse: Warehouse) -> list[list[tuple[object, ...]]]:
    return [warehouse.query(q).rows() for q in QUESTIONS]


def answers_from_runs(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> list[list[tuple[object, ...]]]:
    """The same from the runs' own files, and nothing of what was kept."""
    with monkeypatch.context() as patch:
        patch.setattr(consolidated, "FEWEST_RUNS", 10**9)
        with open_warehouse(warehouse.lake.warehouse) as other:
            return answers(other)


def cached(warehouse: Warehouse, table: str = "metric_values") -> list[Path]:
    return sorted((warehouse.lake.warehouse / "cache").glob(f"{table}-*.parquet"))


def files_read(warehouse: Warehouse, table: str = "metric_values") -> list[str]:
    """The files that a query of a table reads."""
    session = Session(warehouse.lake, lambda: warehouse.definitions, is_restricted=True)
    session.prepare(tables_read(session.connection, f"SELECT * FROM {table}"))
    sql = "SELECT sql FROM duckdb_views() WHERE schema_name = 'main' AND view_name = $table"
    [(text,)] = session.connection.execute(sql, {"table": table}).fetchall()
    session.close()
    quoted = re.findall(r"'((?:[^']|'')+[.]parquet)'", text)
    return [name.replace("''", "'") for name in quoted]


def test_answers_are_those_of_the_runs_own_files(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers_from_runs(warehouse, monkeypatch)
    assert not cached(warehouse)
    assert answers(warehouse) == expected
    assert all(len(cached(warehouse, t)) == 1 for t in ("runs", "metric_values", "devices"))
    with open_warehouse(warehouse.lake.warehouse) as later:
        assert answers(later) == expected
    assert all("/cache/" in f for t in consolidated.CONSOLIDATED for f in files_read(warehouse, t))
    assert len(files_read(warehouse, "phases")) == 3
    assert [f.name for f in (warehouse.lake.warehouse / "cache").iterdir() if f.name[0] == "."] == []


def test_few_runs_leave_nothing_behind(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consolidated, "FEWEST_RUNS", 4)
    answers(warehouse)
    assert not (warehouse.lake.warehouse / "cache").exists()


@pytest.mark.parametrize("change", ["add", "remove", "refresh", "replace"])
def test_follows_the_runs(change: str, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    before = answers(warehouse)
    lake = warehouse.lake
    run = lake.runs()[1]
    if change == "add":
        add_copy(lake.warehouse, 3)
    elif change == "remove":
        add_copy(lake.warehouse, 3)
        warehouse.remove(run.run_id)
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
    after = answers(warehouse)
    assert after != before
    assert after == answers_from_runs(warehouse, monkeypatch)
    assert len(cached(warehouse)) == 2  # the old one stays for readers that still hold it
    assert files_read(warehouse) == [str(max(cached(warehouse), key=lambda p: p.stat().st_mtime))]


def test_takes_the_rows_of_unchanged_runs_from_the_file_before(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(warehouse)
    read: list[str] = []
    original = consolidated._is_as_published
    monkeypatch.setattr(
        consolidated, "_is_as_published", lambda lake, run, table: read.append(run.name) or original(lake, run, table)
    )
    fresh = add_copy(warehouse.lake.warehouse, 3)
    answers(warehouse)
    assert set(read) == {fresh.name}
    assert answers(warehouse) == answers_from_runs(warehouse, monkeypatch)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_passes_over_a_damaged_file(damage: str, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = answers(warehouse)
    [file] = cached(warehouse)
    whole = file.read_bytes()
    content = {
        "cut": whole[: len(whole) // 2],
        "flip": whole[:300] + bytes([whole[300] ^ 1]) + whole[301:],
        "empty": b"",
        "other": cached(warehouse, "runs")[0].read_bytes(),
    }[damage]
    file.write_bytes(content)
    assert [x.path for x in warehouse.leftovers()] == [file]
    with open_warehouse(warehouse.lake.warehouse) as later:
        assert answers(later) == expected
    assert file.read_bytes() != content  # written anew
    assert warehouse.leftovers() == []


def test_what_a_damaged_run_says_does_not_enter_the_cache(warehouse: Warehouse) -> None:
    run = warehouse.lake.runs()[1]
    [file] = warehouse.lake.paths(run, "metric_values")
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    assert all("/lake/" in f for f in files_read(warehouse))
    assert not cached(warehouse)


@pytest.mark.parametrize("is_stale", [False, True])
def test_a_warehouse_that_cannot_be_written(
    is_stale: bool, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = warehouse.lake.warehouse
    if is_stale:
        answers(warehouse)
        add_copy(folder, 3)
    expected = answers_from_runs(warehouse, monkeypatch)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Read-only file system")

    with monkeypatch.context() as patch:  # tests may run as root, who can write anywhere
        patch.setattr(Path, "mkdir", refused)
        patch.setattr(Path, "replace", refused)
        assert answers(warehouse) == expected
    assert len(cached(warehouse)) == is_stale
    shutil.rmtree(folder / "cache", ignore_errors=True)
    (folder / "cache").write_text("a file where the folder should be")
    with open_warehouse(folder) as later:
        assert answers(later) == expected


def test_a_link_is_not_followed(warehouse: Warehouse, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (warehouse.lake.warehouse / "cache").symlink_to(outside)
    expected = answers(warehouse)
    assert not any(outside.iterdir())
    assert all("/lake/" in f for f in files_read(warehouse))
    assert len(expected[0]) == 3


def test_garbage_is_what_is_of_older_runs_for_longer_than_the_grace_time(warehouse: Warehouse) -> None:
    answers(warehouse)
    [first] = cached(warehouse)
    old = set(first.parent.glob("*.parquet"))
    os.utime(first, (0, 0))
    assert warehouse.collect_garbage(0.0) == []  # it is of the runs as they are now, however old it is
    add_copy(warehouse.lake.warehouse, 3)
    assert warehouse.leftovers() == []  # of older runs since now: someone may be reading it
    answers(warehouse)
    assert warehouse.leftovers() == []
    [new] = [f for f in cached(warehouse) if f != first]
    gone = [x.path for x in warehouse.collect_garbage(0.0)]
    assert new not in gone
    assert set(gone) == old
    assert answers(warehouse)
    assert not [p for p in warehouse.fsck() if p.file and "cache" in p.file]


def test_beside_a_run_that_cannot_be_read_nothing_is_called_old(warehouse: Warehouse) -> None:
    answers(warehouse)
    warehouse.lake.manifests()[0].write_text("{")
    assert warehouse.leftovers(0.0) == []
