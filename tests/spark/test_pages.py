"""What the pages show of Spark is what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from transcripts import check, transcripts

from tracewarehouse.cli import run

pytestmark = pytest.mark.spark
DATA = Path(__file__).parents[2] / "data"


def test_transcripts_are_real(
    spark_installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRACEWAREHOUSE", raising=False)
    monkeypatch.setenv("SPARK_MASTER", "local[2,4]")  # of all tests here: a process has one
    monkeypatch.chdir(tmp_path)
    run(["ingest", str(DATA / "captures" / "llama-tp4-b4-i16-o17")])
    capsys.readouterr()
    assert sum(check(*transcript, capsys) for transcript in transcripts(on_spark=True)) >= 1
