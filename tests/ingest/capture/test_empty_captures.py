"""A long profile may end with an empty .xplane.pb beside a good .trace.json.gz."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one

EVENTS = [
    {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
    {"ph": "M", "pid": 3, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}},
    {"ph": "X", "pid": 3, "tid": 1, "name": "dot.1", "ts": 1, "dur": 5},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run folder with the export of one host."""
    made = tmp_path / "logs" / "plugins" / "profile" / "now"
    made.mkdir(parents=True)
    (made / "vm.trace.json.gz").write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    return made


@pytest.mark.parametrize(("suffix", "content"), [("", b""), (".gz", gzip.compress(b"", mtime=0)), (".gz", b"")])
@pytest.mark.parametrize("is_named", [False, True])
def test_the_export_is_read_and_flagged(
    folder: Path, tmp_path: Path, tables_in: Any, suffix: str, content: bytes, is_named: bool
) -> None:
    empty = folder / f"vm.xplane.pb{suffix}"
    empty.write_bytes(content)
    result = ingest_one(empty if is_named else tmp_path / "logs", tmp_path / "w")
    assert "empty_file" in result.entry.flags
    assert any(f"{empty.name} is empty" in note for note in result.notes)
    assert tables_in(tmp_path / "w")("SELECT count(*) FROM ops") == [(1,)]


def test_a_capture_with_events_goes_before_its_export(folder: Path) -> None:
    (folder / "vm.xplane.pb").write_bytes(b"\n\x00")
    [capture] = find_captures(folder)
    assert [f.name for f in capture.files] == ["vm.xplane.pb"]
    assert capture.empty_files == []


def test_an_empty_capture_alone_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "other.xplane.pb").write_bytes(b"")
    with pytest.raises(CaptureError, match=r"other\.xplane\.pb: the file is empty"):
        ingest_one(tmp_path / "logs", tmp_path / "w")
