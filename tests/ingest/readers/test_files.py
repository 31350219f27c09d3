"""Capture files: plain, gzipped, damaged, changing while they are read."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.readers import files
from tracewarehouse.ingest.readers.files import HEAD, CaptureFile, FileBytes

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "x.pb"
    path.write_bytes(CONTENT)
    return path


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


class TestPlainAndGzip:
    @pytest.mark.parametrize(
        "packed",
        {
            "plain": CONTENT,
            "gzip": gzip.compress(CONTENT),
            "several members": gzip.compress(CONTENT[:100]) + gzip.compress(b"") + gzip.compress(CONTENT[100:]),
            "zeros after the end": gzip.compress(CONTENT) + bytes(512),
        }.items(),
        ids=lambda p: p[0],
    )
    @pytest.mark.parametrize("name", ["x.xplane.pb", "x.xplane.pb.gz", "x"])
    def test_content_digest_and_size(self, packed: tuple[str, bytes], name: str, tmp_path: Path) -> None:
        file = CaptureFile(written(tmp_path / name, packed[1]))
        assert file.is_gzip == (packed[0] != "plain")
        assert file.size == len(CONTENT)
        assert file.digest == hashlib.sha256(CONTENT).hexdigest()
        assert file.head == CONTENT[:HEAD]
        assert file.contents() == CONTENT
        assert file.read(250, 260) == CONTENT[250:260]

    def test_digest_of_pieces(self, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "CHUNK", 777)
        assert CaptureFile(plain).digest == hashlib.sha256(CONTENT).hexdigest()

    @pytest.mark.parametrize("is_kept", [False, True])
    def test_array_is_padded_with_zeros(self, is_kept: bool, plain: Path) -> None:
        file = CaptureFile(plain)
        if is_kept:
            file.contents()
        assert file.array(10_230, 10_240, 6).tobytes() == CONTENT[-10:] + bytes(6)
        assert file.array(5, 9).tobytes() == CONTENT[5:9]

    def test_descriptors_are_closed(self, plain: Path, tmp_path: Path) -> None:
        packed = written(tmp_path / "y.gz", gzip.compress(CONTENT))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for path in (plain, packed) * 3:
            CaptureFile(path).digest  # noqa: B018
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    def test_no_temporary_file_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "tmp"
        folder.mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        file = CaptureFile(written(tmp_path / "y.gz", gzip.compress(CONTENT)))
        assert file.size == len(CONTENT)
        assert not list(folder.iterdir())


class TestFileBytes:
    @pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
    def test_items_and_slices(self, chunk: int, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "CHUNK", chunk)
        data = FileBytes(CaptureFile(plain))
        assert len(data) == len(CONTENT)
        for i in (0, 99, 100, 5000, 3, len(CONTENT) - 1):
            assert data[i] == CONTENT[i]
        for low, high in ((0, 0), (0, 1), (99, 101), (5, 4000), (10_000, 10_240), (0, 10_240)):
            assert data[low:high] == CONTENT[low:high]

    def test_a_large_file_is_not_kept(self, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "IN_MEMORY", 100)
        assert isinstance(CaptureFile(plain).contents(), FileBytes)


class TestRefused:
    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"", "the file is empty"),
            (gzip.compress(b"", mtime=0), "the file is empty"),
            (gzip.compress(CONTENT, mtime=0)[:-5], "damaged gzip"),
            (gzip.compress(CONTENT, mtime=0)[:5], "damaged gzip"),
            (gzip.compress(CONTENT, mtime=0) + b"garbage", "damaged gzip"),
            (gzip.compress(CONTENT, mtime=0)[:-8] + bytes(8), "damaged gzip"),
            (gzip.compress(CONTENT, mtime=0)[:40] + b"\xff" * 40, "damaged gzip"),
            (b"\x1f\x8b", "damaged gzip"),
        ],
    )
    def test_content(self, data: bytes, reason: str, tmp_path: Path) -> None:
        file = CaptureFile(written(tmp_path / "x.gz", data))
        with pytest.raises(CaptureError, match=reason):
            file.digest  # noqa: B018

    def test_bomb(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "_RATIO_FREE", 1 << 20)
        path = written(tmp_path / "x.gz", gzip.compress(bytes(5 << 20)))
        with pytest.raises(CaptureError, match="over 200 times its size"):
            CaptureFile(path).size  # noqa: B018
        assert CaptureFile(path, max_gzip_ratio=2000).size == 5 << 20

    def test_small_files_may_be_packed_tightly(self, tmp_path: Path) -> None:
        assert CaptureFile(written(tmp_path / "x.gz", gzip.compress(bytes(1 << 20)))).size == 1 << 20

    def test_absent(self, tmp_path: Path) -> None:
        with pytest.raises(CaptureError, match="no such file"):
            CaptureFile(tmp_path / "absent").size  # noqa: B018

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(CaptureError, match="is a folder"):
            CaptureFile(tmp_path).size  # noqa: B018

    def test_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(CaptureError, match="is a pipe or device"):
            CaptureFile(tmp_path / "pipe").size  # noqa: B018

    def test_nul_in_the_path(self) -> None:
        with pytest.raises(CaptureError, match="cannot be read"):
            CaptureFile(Path("a\0b")).size  # noqa: B018

    def test_no_room_to_uncompress(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
        with pytest.raises(CaptureError, match="cannot be uncompressed"):
            CaptureFile(written(tmp_path / "x.gz", gzip.compress(CONTENT))).size  # noqa: B018


class TestChanges:
    """A file that another process still writes."""

    @pytest.mark.parametrize("change", ["shrinks", "grows", "is overwritten"])
    def test_is_an_error(self, change: str, plain: Path) -> None:
        file = CaptureFile(plain)
        assert file.size == len(CONTENT)
        match change:
            case "shrinks":
                os.truncate(plain, 100)
            case "grows":
                with plain.open("ab") as f:
                    f.write(b"more")
            case _:
                with plain.open("r+b") as f:
                    f.write(b"other")
                os.utime(plain, ns=(1, 1))
        with pytest.raises(CaptureError, match="changed while it was read"):
            file.read(0, 50)

    def test_a_deleted_or_replaced_file_is_still_read(self, plain: Path, tmp_path: Path) -> None:
        file = CaptureFile(plain)
        assert file.size == len(CONTENT)
        written(tmp_path / "new", b"other").replace(plain)
        assert file.contents() == CONTENT

    def test_a_gzip_file_is_read_once(self, tmp_path: Path) -> None:
        path = written(tmp_path / "x.gz", gzip.compress(CONTENT))
        file = CaptureFile(path)
        assert file.size == len(CONTENT)
        os.truncate(path, 3)
        assert file.contents() == CONTENT
