"""The registry of formats: a file is told by its content, a name by its suffix, and a reader is imported when used."""

import gzip
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chrome_reference import plain_planes as plain_chrome
from tiny_capture import tiny_capture
from xplane_builder import Space

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.readers import formats
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import (
    CHROME,
    FORMATS,
    HLO_PROTO,
    HLO_TEXT,
    KINETO,
    NSYS,
    SUFFIXES,
    XPLANE,
    file_format,
    format_by_file_name,
    open_trace,
    profile_window,
)
from tracewarehouse.ingest.readers.xplane.plain import plain_planes

TRACE = (
    b'{"traceEvents": [{"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},'
    b' {"ph": "X", "pid": 3, "tid": 1, "name": "a", "ts": 1, "dur": 2}]}'
)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (TRACE, CHROME),
        (b"\xef\xbb\xbf \n" + TRACE, CHROME),
        (b"[]", CHROME),
        (b'{"metadata":{"addedArguments":[]},"baseTimeNanoseconds":1,"traceEvents":[{"cat":"kernel"}]}', CHROME),
        (b'{"baseTimeNanoseconds":1,"traceEvents":[{"ph":"X"}]}', CHROME),
        (b'{"schemaVersion": 1, "traceEvents": []}', KINETO),
        (b'{"metadata": {}, "traceEvents": [{"ph": "X", "cat": "cpu_op"}]}', KINETO),
        (b"\n\x03abc", XPLANE),
        (b"text", XPLANE),
        (b"SQLite format 3\0\x10\0", NSYS),
        (b"HloModule m, x", HLO_TEXT),
        (b"\n\x83\x01\n\x03abc", HLO_PROTO),
    ],
)
def test_a_file_is_told_by_its_content(tmp_path: Path, pack: Any, content: bytes, expected: formats.Format) -> None:
    path = tmp_path / "named.otherwise"
    path.write_bytes(pack(content))
    assert file_format(CaptureFile(path)) is expected


def test_a_name_is_told_by_its_suffix() -> None:
    assert {s: f.name for s in SUFFIXES if (f := format_by_file_name(f"host{s}"))} == {
        ".xplane.pb": "xplane",
        ".xplane.pb.gz": "xplane",
        ".pt.trace.json": "kineto",
        ".pt.trace.json.gz": "kineto",
        ".sqlite": "nsys",
        ".sqlite.gz": "nsys",
        ".trace.json": "chrome",
        ".trace.json.gz": "chrome",
    }
    assert [format_by_file_name(n) for n in ("a.pb", "a.json", "manifest.json", "a.xplane.pb.txt")] == [None] * 4


def test_reader_and_independent_decoder_see_the_same_planes(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace.json"
    trace.write_bytes(TRACE)
    for path, expected, decode in (
        (trace, CHROME, plain_chrome),
        (tiny_capture().write(tmp_path / "a.xplane.pb"), XPLANE, plain_planes),
    ):
        file = CaptureFile(path)
        opened = open_trace(file)
        assert opened.format == expected.name
        assert [p.name for p in opened.planes] == [p.name for p in decode(file)]
    with pytest.raises(CaptureError, match=r"only an xplane\.pb can be decoded a second time, found chrome"):
        list(plain_planes(CaptureFile(trace)))


def test_a_window_is_asked_for_only_where_the_format_has_one(tmp_path: Path) -> None:
    assert profile_window(tmp_path / "not there.trace.json") is None
    assert profile_window(tmp_path / "not there.txt") is None
    space = Space()
    space.profiled(1_000, 2_000)
    assert profile_window(space.write(tmp_path / "a.xplane.pb")) == (1_000, 2_000)


def test_another_format_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = SimpleNamespace(format="odd", planes=())
    odd = formats.Format("odd", ".odd.bin", "odd", lambda head: head[:3] == b"ODD")
    monkeypatch.setitem(sys.modules, "odd", SimpleNamespace(open_file=lambda _: trace))  # type: ignore[arg-type]
    monkeypatch.setattr(formats, "FORMATS", (*FORMATS, odd))
    path = tmp_path / "host.odd.bin"
    path.write_bytes(b"ODD and more")
    assert open_trace(CaptureFile(path)) is trace
    assert format_by_file_name("host.odd.bin.gz") is odd


def test_finding_captures_imports_no_reader(tmp_path: Path) -> None:
    (tmp_path / "a.trace.json").write_bytes(TRACE)
    code = "import sys; from pathlib import Path; from tracewarehouse.ingest.capture.sources import find_captures; "
    code += "print(len(find_captures(Path(sys.argv[1])))); "
    code += "print(*(m for m in sys.modules if '.readers.xplane' in m or '.readers.chrome' in m or 'google' in m))"
    out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout
    assert out == "1\n\n"
