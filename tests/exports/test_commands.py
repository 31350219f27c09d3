"""`tw export chrome` and `tw export ccl-bench` from the command line: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_capture import write_served_capture

from tracewarehouse import cli
from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with the run `served`."""
    made = tmp_path_factory.mktemp("commands")
    with open_warehouse(made / "warehouse", create=True) as warehouse:
        warehouse.ingest(write_served_capture(made / "served.xplane.pb", 4))
    return made / "warehouse"


def test_a_chrome_trace_is_named_after_its_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["-w", str(folder), "export", "chrome", "served"]) == 0
    assert capsys.readouterr().out == "served.trace.json\n"
    assert json.loads((tmp_path / "served.trace.json").read_text())["traceEvents"]


def test_errors_name_the_run_and_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-w", str(folder), "export", "chrome", "nothing", "-o", str(tmp_path / "x.json")]) == 1
    assert "no run 'nothing'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert cli.run(["-w", str(folder), "export", "chrome", "served", "-o", str(tmp_path / "file" / "x.json")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_rows_are_printed_and_warnings_go_to_standard_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["-w", str(folder), "export", "ccl-bench", "served", "--out", str(tmp_path)]
    assert cli.run(command) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{tmp_path / 'served-tpu'}\n{tmp_path / 'website' / 'parquet'}\n"
    assert "warning: served-tpu: no public trace_url" in shown.err
    assert cli.run([*command, "--name", "qwen3-4b-tp2-tpu"]) == 0
    assert (tmp_path / "qwen3-4b-tp2-tpu" / "qwen3-4b-tp2-tpu.yaml").is_file()
    assert cli.run([*command, "served", "--name", "a-tpu"]) == 2
    assert cli.run([*command, "--name", "qwen3"]) == 1
    assert "look for 'tpu' in it" in capsys.readouterr().err
