"""A warehouse in an object store answers as the folder it was copied from, and is for reading only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from tiny_capture import write_capture_directory
from web_server import web_server

import tracewarehouse as tw
from tracewarehouse.cli import run
from tracewarehouse.ingest.capture.locations import CACHE_VARIABLE
from tracewarehouse.ingest.errors import QueryError, WarehouseError
from tracewarehouse.warehouse import Warehouse


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with two runs."""
    folder = tmp_path_factory.mktemp("local")
    with tw.open(folder / "warehouse", create=True) as warehouse:
        for period in (150, 170):
            warehouse.ingest(write_capture_directory(folder / f"tiny{period}", f"tiny{period}", period=period))
    return folder / "warehouse"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def upload(folder: Path, uri: str) -> None:
    """Copy a warehouse into a store."""
    filesystem, root = fsspec.core.url_to_fs(uri)
    for path in folder.rglob("*"):
        if path.is_file():
            filesystem.pipe_file(f"{root}/{path.relative_to(folder)}", path.read_bytes())


@pytest.fixture
def uri(local: Path) -> Iterator[str]:
    """The same warehouse in memory."""
    uri = "memory://bucket/warehouse"
    upload(local, uri)
    yield uri
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def everything(warehouse: Warehouse) -> dict[str, list[tuple[object, ...]]]:
    """Rows of the tables and of two metrics."""
    queries = ["main.runs", "main.ops", "main.collectives", "metrics.all_values", "metrics.step_time_v1"]
    return {q: warehouse.query(f"SELECT * FROM {q} ORDER BY ALL").rows() for q in queries}


class TestReading:
    def test_from_memory(self, local: Path, uri: str) -> None:
        with tw.open(local) as here, tw.open(uri) as there:
            assert everything(there) == everything(here)
            assert [r.run_id for r in there.lake.runs()] == [r.run_id for r in here.lake.runs()]

    def test_from_a_web_server(self, local: Path) -> None:
        with web_server(local) as server, tw.open(local) as here, tw.open(server.url) as there:
            assert everything(there) == everything(here)

    def test_only_manifests_are_copied(self, uri: str, cache: Path) -> None:
        with tw.open(uri) as there:
            there.query("SELECT count(*) FROM ops").rows()
        assert {p.suffix for p in cache.rglob("*") if p.is_file() and not p.name.startswith(".")} == {".json"}

    def test_a_query_sees_a_run_that_was_added_or_removed(self, local: Path, uri: str) -> None:
        filesystem = fsspec.filesystem("memory")
        [first, second] = filesystem.glob("/bucket/warehouse/manifests/*.json")
        content = filesystem.cat_file(first)
        with tw.open(uri) as there:
            assert len(there.runs().rows()) == 2
            filesystem.rm_file(first)
            assert [r[0] for r in there.runs().rows()] == [Path(second).stem]
            filesystem.pipe_file(first, content)
            assert len(there.runs().rows()) == 2

    def test_the_command_line(self, uri: str, capfd: pytest.CaptureFixture[str]) -> None:
        assert run(["-w", uri, "query", "SELECT count(*) AS n FROM runs", "--format", "csv"]) == 0
        assert capfd.readouterr().out == "n\n2\n"
        assert run(["-w", uri, "metrics", "values", "-m", "tpot", "--format", "csv"]) == 0
        assert "tiny150" in capfd.readouterr().out


class TestClosed:
    @pytest.mark.parametrize(
        "sql",
        [
            "SELECT * FROM read_parquet('memory://bucket/secret.parquet')",
            "SELECT * FROM read_text('memory://bucket/warehouse/manifests/*')",
            "SELECT * FROM read_text('memory://bucket/warehouse/lake/../secret')",
            "SELECT * FROM read_text('/etc/hostname')",
            "SELECT * FROM read_text('file:///etc/hostname')",
        ],
    )
    def test_a_query_reads_nothing_but_the_lake(self, uri: str, sql: str) -> None:
        for name in ("secret.parquet", "secret", "warehouse/secret"):
            fsspec.filesystem("memory").pipe_file(f"/bucket/{name}", b"secret")
        with tw.open(uri) as there, pytest.raises(QueryError):
            there.query(sql)

    def test_writing_is_refused(self, uri: str, tmp_path: Path) -> None:
        capture = write_capture_directory(tmp_path / "tiny", "tiny", period=190)
        before = sorted(fsspec.filesystem("memory").find("/bucket"))
        with tw.open(uri) as there:
            for write in (
                lambda: there.ingest(capture),
                there.refresh_metrics,
                there.build,
                there.collect_garbage,
            ):
                with pytest.raises(WarehouseError, match="a remote warehouse can only be read"):
                    write()
        assert sorted(fsspec.filesystem("memory").find("/bucket")) == before

    def test_no_warehouse_there(self) -> None:
        with pytest.raises(WarehouseError, match="no warehouse at memory://bucket/nothing"):
            tw.open("memory://bucket/nothing")
