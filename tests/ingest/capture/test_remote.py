"""Captures in object stores and on web servers: copied once per version, resumed, retried, refused with a reason."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from gcs_server import gcs_server
from tiny_capture import tiny_capture, write_capture_directory
from web_server import WebServer, web_server

from tracewarehouse.ingest.capture import remote
from tracewarehouse.ingest.capture.locations import is_remote
from tracewarehouse.ingest.capture.remote import local_copy
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test, and no long pauses."""
    monkeypatch.setenv(remote.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "_FIRST_WAIT_SECONDS", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    """A web server with the capture directory `logs/tiny`."""
    write_capture_directory(tmp_path / "www" / "logs" / "tiny", "tiny")
    with web_server(tmp_path / "www") as running:
        yield running


def tree(folder: Path) -> dict[str, bytes]:
    """Content of all visible files by relative path."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and not p.name.startswith(".")
    }


def put(uri: str, folder: Path) -> None:
    """Copy a folder into a store."""
    filesystem, path = fsspec.core.url_to_fs(uri)
    for name, content in tree(folder).items():
        filesystem.makedirs(f"{path}/{name}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{path}/{name}", content)


class TestLocations:
    @pytest.mark.parametrize("text", ["gs://b/x", "S3://b/x", "https://host/x?y=1", "memory://x"])
    def test_uris_are_remote(self, text: str) -> None:
        assert is_remote(text)

    @pytest.mark.parametrize("text", ["a/b", "/a/b", "C:\\x", "./gs:", "x:/y", "", "://x"])
    def test_paths_are_not(self, text: str) -> None:
        assert not is_remote(text)
        assert local_copy(text) == Path(text)


class TestEveryStoreGivesTheSameRun:
    def check(self, uri: str, folder: Path, tmp_path: Path) -> None:
        local = ingest_one(folder, tmp_path / "local")
        there = ingest_one(uri, tmp_path / "there")
        assert (there.run_id, there.name, there.entry.version) == (local.run_id, local.name, local.entry.version)
        assert there.entry.rows == local.entry.rows

    def test_memory(self, tmp_path: Path) -> None:
        folder = write_capture_directory(tmp_path / "tiny", "tiny")
        put("memory://bucket/logs/tiny", folder)
        self.check("memory://bucket/logs/tiny", folder, tmp_path)

    def test_web_server(self, server: WebServer, tmp_path: Path) -> None:
        self.check(f"{server.url}/logs/tiny", tmp_path / "www" / "logs" / "tiny", tmp_path)

    def test_s3(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        server_module = pytest.importorskip("moto.server", reason="moto is not installed")
        pytest.importorskip("s3fs", reason="s3fs is not installed")
        server = server_module.ThreadedMotoServer(port=0, verbose=False)
        server.start()
        try:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                monkeypatch.setenv(name, "test")
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.get_host_and_port()[1]}")
            folder = write_capture_directory(tmp_path / "tiny", "tiny")
            put("s3://traces/logs/tiny", folder)
            self.check("s3://traces/logs/tiny", folder, tmp_path)
        finally:
            server.stop()

    def test_google_cloud_storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("gcsfs", reason="gcsfs is not installed")
        folder = write_capture_directory(tmp_path / "tiny", "tiny")
        objects = {f"logs/tiny/{name}": content for name, content in tree(folder).items()}
        with gcs_server("traces", objects) as address:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
            self.check("gs://traces/logs/tiny", folder, tmp_path)

    def test_a_single_file_by_its_uri(self, server: WebServer, tmp_path: Path) -> None:
        (tmp_path / "www" / "host.xplane.pb").write_bytes(tiny_capture().to_bytes())
        result = ingest_one(f"{server.url}/host.xplane.pb?download=1", tmp_path / "warehouse")
        assert result.name == "host"


class TestCopying:
    def test_a_file_is_copied_once_per_version(self, server: WebServer, tmp_path: Path) -> None:
        source = tmp_path / "www" / "logs" / "tiny"
        first = local_copy(f"{server.url}/logs/tiny")
        assert tree(first) == tree(source)
        asked = len(server.served)
        assert local_copy(f"{server.url}/logs/tiny/") == first
        assert len(server.served) == asked

        (source / "card.yaml").write_text("title: another\n")
        assert tree(local_copy(f"{server.url}/logs/tiny")) == tree(source)
        assert [name for name, _ in server.served[asked:]] == ["card.yaml"]

    def test_without_etags_nothing_is_taken_for_current(self, server: WebServer, tmp_path: Path) -> None:
        server.has_etags = False
        local_copy(f"{server.url}/logs/tiny")
        asked = len(server.served)
        (tmp_path / "www" / "logs" / "tiny" / "card.yaml").write_text("title: another\n")
        copy = local_copy(f"{server.url}/logs/tiny")
        assert (copy / "card.yaml").read_text() == "title: another\n"
        assert len(server.served) > asked

    def test_what_is_gone_there_goes_here(self, server: WebServer, tmp_path: Path) -> None:
        card = tmp_path / "www" / "logs" / "tiny" / "card.yaml"
        card.write_text("title: one\n")
        copy = local_copy(f"{server.url}/logs/tiny")
        assert (copy / "card.yaml").is_file()
        card.unlink()
        assert local_copy(f"{server.url}/logs/tiny") == copy
        assert not (copy / "card.yaml").exists()

    def test_only_captures_and_their_descriptions_are_copied(self, server: WebServer, tmp_path: Path) -> None:
        source = tmp_path / "www" / "logs" / "tiny"
        (source / "weights.safetensors").write_bytes(b"x" * 1000)
        (source / ".hidden.xplane.pb").write_bytes(b"x")
        (source / "dp_rank_0").mkdir()
        (source / "dp_rank_0" / "batch_composition_stats_1.json").write_text("{}")
        (source / "dp_rank_0" / "rank.json").write_text("{}")
        copied = tree(local_copy(f"{server.url}/logs/tiny"))
        assert sorted(copied) == sorted(
            set(tree(source)) - {"weights.safetensors", ".hidden.xplane.pb", "dp_rank_0/rank.json"}
        )

    def test_the_caller_hears_how_far_it_is(self, server: WebServer) -> None:
        heard: dict[str, tuple[int, int | None]] = {}
        copy = local_copy(f"{server.url}/logs/tiny", lambda name, done, size: heard.update({name: (done, size)}))
        assert heard == {name: (len(c), len(c)) for name, c in tree(copy).items()}


class TestPassingFaults:
    def big(self, server: WebServer, tmp_path: Path) -> tuple[str, bytes]:
        content = bytes(range(256)) * 4096 * 24  # three pieces
        (tmp_path / "www" / "big.xplane.pb").write_bytes(content)
        return f"{server.url}/big.xplane.pb", content

    def test_a_broken_transfer_goes_on_where_it_stopped(self, server: WebServer, tmp_path: Path) -> None:
        uri, content = self.big(server, tmp_path)
        server.failures = 3
        assert local_copy(uri).read_bytes() == content
        assert len(server.served) > 3

    def test_an_interrupted_copy_is_resumed_by_the_next(self, server: WebServer, tmp_path: Path, cache: Path) -> None:
        uri, content = self.big(server, tmp_path)

        def stop(name: str, done: int, size: int | None) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            local_copy(uri, stop)
        assert tree(cache) == {}
        server.served.clear()
        assert local_copy(uri).read_bytes() == content
        assert min(low for _, low in server.served) >= 8 << 20

    def test_a_server_without_ranges_sends_all_again(self, server: WebServer, tmp_path: Path) -> None:
        uri, content = self.big(server, tmp_path)
        server.has_ranges = False
        server.failures = 2
        assert local_copy(uri).read_bytes() == content

    @pytest.mark.parametrize("status", [500, 503, 429])
    def test_a_server_that_never_recovers_ends_in_one_error(self, server: WebServer, status: int) -> None:
        server.status = status
        with pytest.raises(CaptureError, match="gave up after 6 tries"):
            local_copy(f"{server.url}/logs/tiny")

    def test_a_file_that_changes_meanwhile_is_not_taken(self, server: WebServer, tmp_path: Path) -> None:
        uri, content = self.big(server, tmp_path)

        def change(name: str, done: int, size: int | None) -> None:
            (tmp_path / "www" / "big.xplane.pb").write_bytes(content[::-1])

        with pytest.raises(CaptureError, match=r"changed while it was copied|bytes came"):
            local_copy(uri, change)
        assert local_copy(uri).read_bytes() == content[::-1]


class TestRefusals:
    def test_nothing_there(self, server: WebServer) -> None:
        with pytest.raises(CaptureError, match="no such file or folder"):
            local_copy(f"{server.url}/elsewhere")

    def test_no_capture_there(self, server: WebServer, tmp_path: Path) -> None:
        (tmp_path / "www" / "empty").mkdir()
        (tmp_path / "www" / "empty" / "notes.txt").write_text("x")
        with pytest.raises(CaptureError, match=r"no capture there; looked for \*\.xplane\.pb"):
            local_copy(f"{server.url}/empty")

    def test_no_access_is_not_tried_again(self, server: WebServer) -> None:
        server.status = 403
        with pytest.raises(CaptureError, match=r"403.*has credentials"):
            local_copy(f"{server.url}/logs/tiny")

    def test_unknown_protocol(self) -> None:
        with pytest.raises(CaptureError, match=r"known are gs://, s3://, https://"):
            local_copy("gopher://x/y")

    def test_missing_driver_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def absent(uri: str) -> None:
            raise ImportError("Please install gcsfs to access Google Storage")

        monkeypatch.setattr(fsspec.core, "url_to_fs", absent)
        with pytest.raises(CaptureError, match=r"pip install 'tracewarehouse\[gs\]'"):
            local_copy("gs://bucket/logs")

    @pytest.mark.parametrize("name", ["../up.xplane.pb", "a/../../up.xplane.pb", "a//b.xplane.pb", "n\0ul.xplane.pb"])
    def test_names_that_lead_out_of_the_folder(self, name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        filesystem = fsspec.filesystem("memory")
        found = {f"/bucket/bad/{name}": {"type": "file", "size": 1, "etag": "1", "name": name}}
        monkeypatch.setattr(type(filesystem), "find", lambda self, path, detail: found)
        monkeypatch.setattr(type(filesystem), "info", lambda self, path: {"type": "directory"})
        with pytest.raises(CaptureError, match="holds a file that no folder here can hold"):
            local_copy("memory://bucket/bad")
        assert not cache.exists()

    def test_a_cache_that_cannot_be_written(self, server: WebServer, cache: Path) -> None:
        cache.write_text("a file where the folder should be")
        with pytest.raises(CaptureError, match=f"set {remote.CACHE_VARIABLE} to a folder with room"):
            local_copy(f"{server.url}/logs/tiny")

    def test_the_cache_can_be_deleted_at_any_time(self, server: WebServer, cache: Path) -> None:
        before = tree(local_copy(f"{server.url}/logs/tiny"))
        shutil.rmtree(cache)
        assert tree(local_copy(f"{server.url}/logs/tiny")) == before
