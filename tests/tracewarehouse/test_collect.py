"""`tw collect` on recorded captures: no torch is needed, because finished runs are skipped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from collect import runner
from tracewarehouse.cli import app

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
NAME = "llama-tp4-b4-i16-o17"
RUN = ["collect", "--mesh", "tp=4", "--batch", "4", "--input-length", "16", "--output-length", "17"]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the run is recorded already."""
    from collect.experiment import RunSpec

    monkeypatch.setattr(runner, "require_torch_xla", lambda: None)
    shutil.copytree(CAPTURES / NAME, tmp_path / NAME)
    file = tmp_path / NAME / "manifest.json"
    content = json.loads(file.read_text())
    # What resuming compares follows from the fields of this version.
    content["spec_digest"] = RunSpec.model_validate(content["spec"]).digest
    file.write_text(json.dumps(content))
    return tmp_path


def test_a_capture_that_keeps_its_promises(recorded: Path) -> None:
    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(recorded / NAME)


def test_a_capture_without_the_promised_collectives_fails(recorded: Path) -> None:
    file = recorded / NAME / "manifest.json"
    content = json.loads(file.read_text())
    content["promised_collectives"].append({"phase": "prefill", "kind": "reduce-scatter", "axis": "tp", "count": 4})
    file.write_text(json.dumps(content))

    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert f"error: {NAME}: promised collectives are missing: the manifest promises at least 4 reduce-scatter" in (
        result.stderr
    )


def test_a_capture_that_cannot_be_read_fails(recorded: Path) -> None:
    (xplane,) = (recorded / NAME).rglob("*.xplane.pb")
    xplane.write_bytes(b"")
    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 1
    assert "cannot be ingested" in result.stderr
