"""Audits reach the user: after ingest as a note, and by `tw audit`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_capture import overlapping, write_capture_directory

from tracewarehouse.cli import run
from tracewarehouse.warehouse import open_warehouse


def test_a_sound_run_has_no_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_warehouse(tmp_path / "w", create=True) as warehouse:
        [result] = warehouse.ingest(write_capture_directory(tmp_path / "tiny"))
        assert result.notes == []
    assert run(["-w", str(tmp_path / "w"), "audit"]) == 0
    assert capsys.readouterr().out == ""


def test_what_must_not_be_is_named_with_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_warehouse(tmp_path / "w", create=True) as warehouse:
        warehouse.ingest(write_capture_directory(tmp_path / "tiny"))
        [result] = warehouse.ingest(overlapping(tmp_path))
        assert result.notes == [f"audit op_line_overlap found something; see `tw audit {result.run_id}`"]
        [finding] = warehouse.audit()
        assert finding.audit == "op_line_overlap"
        assert {row[finding.columns.index("run_id")] for row in finding.rows} == {result.run_id}
    assert run(["-w", str(tmp_path / "w"), "audit", "overlapping"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("op_line_overlap: ")
    assert result.run_id in out
