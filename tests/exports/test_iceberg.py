"""Iceberg tables over the lake's files: the rows that we give, changed by what has changed, and no file touched."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space, Unsigned

from tracewarehouse import cli
from tracewarehouse.exports import iceberg
from tracewarehouse.exports.iceberg import CATALOGUE, export_iceberg
from tracewarehouse.ingest.errors import TracewarehouseError, WarehouseError
from tracewarehouse.ingest.lake.durable_files import file_digest
from tracewarehouse.ingest.lake.schema import TABLES
from tracewarehouse.warehouse import Warehouse, open_warehouse

if TYPE_CHECKING:  # their import takes long, and tests are collected in every process
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

LEFT_OUT = {("instructions", "program_id")}
"""Columns that Iceberg has no type for."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captures and a warehouse of three runs, in a folder with a space; one program has a number beyond 63 bits."""
    folder = tmp_path_factory.mktemp("iceberg")
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    dot = tpu.instruction("%dot.1 = f32[8]{0} dot(%a, %b)", program_id=Unsigned(2**63 + 5))
    tpu.modules.event("step(1)", 0, 10**7, run_id=Unsigned(1))
    tpu.ops.event(dot, 0, 10**6)
    space.write(folder / "other.xplane.pb")
    with open_warehouse(folder / "a lake", create=True) as opened:
        for name, period in (("a", 150), ("b", 170)):
            opened.ingest(write_capture_directory(folder / name, name, period=period), name=name)
        opened.ingest(folder / "other.xplane.pb")
    return folder


@pytest.fixture
def warehouse(made: Path, tmp_path: Path) -> Iterator[Warehouse]:
    """A copy of the warehouse."""
    shutil.copytree(made / "a lake", tmp_path / "a lake")
    with open_warehouse(tmp_path / "a lake") as opened:
        yield opened


@contextmanager
def catalogue(folder: Path) -> Iterator[SqlCatalog]:
    from pyiceberg.catalog.sql import SqlCatalog

    opened = SqlCatalog("tracewarehouse", uri=f"sqlite:///{folder / CATALOGUE}")
    try:
        yield opened
    finally:
        opened.close()


def tables(folder: Path) -> dict[str, Table]:
    with catalogue(folder) as opened:
        return {name: opened.load_table(f"main.{name}") for name in TABLES}


def source_rows(table: pa.Table) -> list[str]:
    return sorted(str(sorted(row.items())) for row in table.to_pylist())


def ours(warehouse: Warehouse, name: str, where: str = "true") -> list[str]:
    columns = ", ".join(f'"{c.name}"' for c in TABLES[name].columns if (name, c.name) not in LEFT_OUT)
    return source_rows(warehouse.query(f"SELECT {columns} FROM main.{name} WHERE {where}").arrow())


def assert_same_rows(warehouse: Warehouse, folder: Path) -> None:
    found = tables(folder)
    for name, table in found.items():
        assert source_rows(table.scan().to_arrow()) == ours(warehouse, name), name


def test_every_table_has_our_rows(warehouse: Warehouse, tmp_path: Path) -> None:
    exported = export_iceberg(warehouse, tmp_path / "catalogue")
    assert [t.name for t in exported] == [*TABLES]
    assert sum(t.added for t in exported) == sum(len(run.paths) for run in warehouse.lake.runs())
    assert_same_rows(warehouse, tmp_path / "catalogue")
    columns = {(name, c.name) for name, table in TABLES.items() for c in table.columns}
    there = tables(tmp_path / "catalogue")
    assert {(name, f.name) for name, table in there.items() for f in table.schema().fields} == columns - LEFT_OUT
    ops = there["ops"]
    assert ops.schema().find_field("start_ps").doc == "Start since the run's profile start. [ps]"
    assert ops.properties["gc.enabled"] == "false"
    run_id = warehouse.run("b").run_id
    of_one = ops.scan(row_filter=f"run_id = '{run_id}'")
    assert source_rows(of_one.to_arrow()) == ours(warehouse, "ops", f"run_id = '{run_id}'") != []
    assert [Path(t.file.file_path).parts[-3] for t in of_one.plan_files()] == [run_id]  # the others are not opened


def test_an_export_commits_what_has_changed(warehouse: Warehouse, made: Path, tmp_path: Path) -> None:
    """And touches no file of the lake, and writes none like them."""

    def files() -> dict[Path, tuple[int, str]]:
        return {p: (p.stat().st_mtime_ns, file_digest(p)) for p in warehouse.lake.warehouse.rglob("*.parquet")}

    folder = tmp_path / "catalogue"
    lake = files()
    first = {t.name: t.metadata for t in export_iceberg(warehouse, folder)}
    assert {t.name: t.metadata for t in export_iceberg(warehouse, folder)} == first
    assert files() == lake
    assert not list(folder.rglob("*.parquet"))

    before = warehouse.run("a").version
    warehouse.ingest(made / "a", name="a", mesh="dp=2")
    assert warehouse.run("a").version != before
    replaced = {t.name: t for t in export_iceberg(warehouse, folder)}
    ops = replaced["ops"]
    assert (ops.added, ops.removed) == (1, 1)
    assert_same_rows(warehouse, folder)
    snapshots = tables(folder)["ops"].snapshots()
    assert len(snapshots) == 2
    assert snapshots[1].summary is not None
    assert snapshots[1].summary["total-data-files"] == "3"

    warehouse.remove("b")
    removed = {t.name: t for t in export_iceberg(warehouse, folder)}
    assert (removed["ops"].added, removed["ops"].removed) == (0, 1)
    assert_same_rows(warehouse, folder)
    assert {t.name for t in removed.values() if t.metadata == replaced[t.name].metadata} == {
        t.name for t in removed.values() if not t.removed
    }


def test_a_moved_warehouse_is_found_again(warehouse: Warehouse, tmp_path: Path) -> None:
    export_iceberg(warehouse, tmp_path / "catalogue")
    count = len(warehouse.lake.runs())
    warehouse.close()
    (tmp_path / "a lake").rename(tmp_path / "moved")
    with open_warehouse(tmp_path / "moved") as moved:
        runs = next(t for t in export_iceberg(moved, tmp_path / "catalogue") if t.name == "runs")
        assert (runs.added, runs.removed) == (count, count)
        assert_same_rows(moved, tmp_path / "catalogue")


def test_tables_of_another_schema_version_are_made_anew(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(iceberg, "SCHEMA_VERSION", 0)
        export_iceberg(warehouse, tmp_path / "catalogue")
    added = sum(t.added for t in export_iceberg(warehouse, tmp_path / "catalogue"))
    assert added == sum(len(run.paths) for run in warehouse.lake.runs())
    assert_same_rows(warehouse, tmp_path / "catalogue")


def test_duckdb_reads_the_tables(warehouse: Warehouse, tmp_path: Path) -> None:
    """DuckDB's extension for Iceberg comes in packages that are made for the version of the command line here."""
    command = shutil.which("duckdb", path=Path(sys.executable).parent)
    places = [find_spec(f"duckdb_extension_{name}") for name in ("avro", "iceberg")]
    if command is None or None in places:
        pytest.skip("DuckDB's command line or its extensions avro and iceberg are not installed")
    files = [next(Path(p.origin).parent.rglob("*.duckdb_extension")) for p in places if p and p.origin]
    sql = [f"LOAD '{f}';" for f in files]
    tables = export_iceberg(warehouse, tmp_path / "catalogue")
    for table in tables:
        sql.append(f"COPY (FROM iceberg_scan('{table.metadata}')) TO '{tmp_path / table.name}.parquet';")
    subprocess.run([command, "-c", "".join(sql)], check=True)
    assert {t.name for t in tables} >= {"runs", "ops", "collectives", "phases"}
    for table in tables:
        columns = [c.name for c in TABLES[table.name].columns if (table.name, c.name) not in LEFT_OUT]
        found = pq.read_table(tmp_path / f"{table.name}.parquet", columns=columns)
        assert source_rows(found) == ours(warehouse, table.name)


def test_without_pyiceberg_the_extra_is_named(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog.sql", None)
    with pytest.raises(TracewarehouseError, match=r"pip install 'tracewarehouse\[iceberg\]'"):
        export_iceberg(warehouse, tmp_path / "catalogue")


def test_what_cannot_be_exported_is_refused(warehouse: Warehouse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TracewarehouseError, match=r"file: cannot be written"):
        export_iceberg(warehouse, tmp_path / "file")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / CATALOGUE).write_text("no database " * 100)
    with pytest.raises(TracewarehouseError, match=r"catalog\.db: cannot be used: .*not a database"):
        export_iceberg(warehouse, tmp_path / "damaged")
    [path] = warehouse.lake.paths(warehouse.run("a"), "ops")
    path.write_bytes(b"PAR1")
    with pytest.raises(WarehouseError, match=r"ops.*\.parquet: cannot be read"):
        export_iceberg(warehouse, tmp_path / "catalogue")
    warehouse.lake.filesystem = object()
    with pytest.raises(WarehouseError, match="of warehouses on this machine"):
        export_iceberg(warehouse, tmp_path / "catalogue")


def test_command(warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-w", str(tmp_path / "a lake"), "export", "iceberg", "-o", str(tmp_path / "i")]) == 0
    shown = capsys.readouterr()
    first, *lines = shown.out.splitlines()
    assert first == str(tmp_path / "i" / CATALOGUE)
    assert [line.split("\t")[0] for line in lines] == [*TABLES]
    assert "files were added and 0 removed" in shown.err
    assert all(Path(line.split("\t")[1].removeprefix("file://")).is_file() for line in lines)
