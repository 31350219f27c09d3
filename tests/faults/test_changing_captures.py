"""A capture that grows, shrinks, goes or is replaced while it is read: its bytes when it was opened, or an error."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from xplane_builder import Space

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.ingest.readers import files
from tracewarehouse.ingest.readers.chrome import document
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.tables import parts


def xplane(detail: int = 0) -> bytes:
    space = Space()
    for device in (0, 1):
        tpu = space.tpu(device)
        for i in range(400):
            tpu.ops.event(f"op {i % 7}", i * 1000, 500, detail=detail + i, text=f"text {i}")
    return space.to_bytes()


def chrome() -> bytes:
    events = [{"ph": "X", "pid": 1, "tid": 1, "ts": i, "dur": 0.5, "name": f"op {i % 7}"} for i in range(3000)]
    return json.dumps({"traceEvents": events}).encode()


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(xplane())


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def rewrite(path: Path) -> None:
    """In place, with as many bytes."""
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def vanish(path: Path) -> None:
    path.unlink()


def swap(path: Path) -> None:
    part = path.with_name("part")
    part.write_bytes(xplane(5))
    part.replace(path)


def changing_at(call: int, path: Path, change: Callable[[Path], None], patch: pytest.MonkeyPatch) -> list[int]:
    """Change the file before the n-th time it is read; the list counts the reads."""
    calls: list[int] = []
    read = os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == call:
            change(path)
            os.utime(path, ns=(1, 1)) if path.exists() else None
        return read(descriptor, buffers, offset)

    patch.setattr(os, "preadv", preadv)
    return calls


@pytest.mark.parametrize("change", [grow, shrink, empty, rewrite])
@pytest.mark.parametrize("kind", ["xplane", "chrome", "gzip", "divided"])
def test_a_file_that_changes_is_refused_wherever_it_is_read(
    kind: str, change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in many pieces; a gzip file is unpacked as a whole first, and what was unpacked is good."""
    monkeypatch.setattr(files, "IN_MEMORY", 0)
    monkeypatch.setattr(files, "CHUNK", 4096)
    monkeypatch.setattr(document, "CHUNK", 1 << 14)
    if kind == "divided":
        monkeypatch.setattr(parts, "DIVIDED", 0)
        monkeypatch.setattr(parts, "_SMALLEST", 1000)
    content = gzip.compress(xplane()) if kind == "gzip" else chrome() if kind == "chrome" else xplane()
    path = tmp_path / ("a.trace.json" if kind == "chrome" else "a.xplane.pb")
    call = 0
    while True:
        call += 5
        path.write_bytes(content)
        warehouse = tmp_path / f"w{call}"
        with monkeypatch.context() as patch:
            calls = changing_at(call, path, change, patch)
            try:
                ingest_one(path, warehouse, jobs=1)
            except CaptureError as error:
                assert kind != "gzip"
                assert "changed while it was read" in str(error)
                assert Lake(warehouse).runs() == []
                assert leftovers(Lake(warehouse), 0) == []
            else:
                if kind == "gzip" or len(calls) < call:
                    break
                pytest.fail(f"the change before read {call} went unnoticed")
    assert call > 5 or kind == "gzip"


@pytest.mark.parametrize("change", [vanish, swap])
def test_a_file_that_goes_or_is_replaced_is_read_to_its_end(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "IN_MEMORY", 0)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(xplane())
    expected = CaptureFile(path).digest
    with monkeypatch.context() as patch:
        calls = changing_at(3, path, change, patch)
        ingest_one(path, tmp_path / "w")
        assert len(calls) > 3
    [run] = Lake(tmp_path / "w").runs()
    assert run.rows["ops"] == 800
    assert run.source_digest == ingest_one_digest(expected)


def ingest_one_digest(digest: str) -> str:
    from tracewarehouse.ingest.lake.manifest import run_digest

    return run_digest([digest])


def test_a_file_that_goes_before_it_is_opened(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such file"):
        ingest_one(tmp_path / "a.xplane.pb", tmp_path / "w")
