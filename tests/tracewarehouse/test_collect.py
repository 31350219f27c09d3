"""`tw collect` on recorded captures: no JAX is needed, because finished runs are skipped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tracewarehouse as tw
from tracewarehouse.cli import app
from tracewarehouse.cli.collect import _unmarked as unmarked
from tracewarehouse.collect.jax.backend import JaxBackend

CAPTURES = Path(__file__).parents[2] / "data" / "captures"
NAME = "llama-tp4-b4-i16-o17-jax"
RUN = ["collect", "--mesh", "tp=4", "--batch", "4", "--input-length", "16", "--output-length", "17"]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which the run is recorded already."""
    from tracewarehouse.collect.run_spec import RunSpec

    monkeypatch.setattr(JaxBackend, "require", lambda self: None)
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


def test_a_capture_whose_ops_have_no_layer_fails(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracewarehouse.ingest.hlo import op_names

    monkeypatch.setattr(op_names, "layer_and_part", lambda name: (None, None))
    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 1
    assert f"error: {NAME}: only 0 % of the op time has a layer or part of the model" in result.stderr


def test_a_capture_whose_ops_have_no_step_fails(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracewarehouse.ingest.devices import timeline

    set_steps = timeline.Timeline.set_steps
    monkeypatch.setattr(timeline.Timeline, "set_steps", lambda self, steps: set_steps(self, []))
    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 1
    assert "op events have no phase or step" in result.stderr


NOT_COMPARED = f"note: {NAME}: its tokens are not compared: in every sequence the first step already dropped a token"


def say_nothing_of_tokens(recorded: Path) -> None:
    """As where experts drop a token of every sequence in its first step."""
    file = recorded / NAME / "manifest.json"
    content = json.loads(file.read_text())
    content["checks"] |= {"tokens_equal": None, "comparable_share": 0.0}
    file.write_text(json.dumps(content))


def test_several_runs_end_with_a_summary(recorded: Path, tmp_path: Path) -> None:
    say_nothing_of_tokens(recorded)
    (recorded / NAME.replace("o17", "o9")).mkdir()
    file = tmp_path / "experiment.yaml"
    file.write_text("defaults: {mesh: tp=4, input_length: 16}\nruns: [{output_length: 17}, {output_length: 9}]\n")
    result = CliRunner().invoke(app, ["collect", str(file), "-o", str(recorded)])
    assert result.exit_code == 1
    assert result.stdout.strip() == str(recorded / NAME)
    assert NOT_COMPARED in result.stderr
    counts, failed = result.stderr.splitlines()[-2:]
    assert counts == "2 runs: 1 skipped, 1 failed"
    assert failed.startswith("  llama-tp4-b4-i16-o9-jax: ")
    assert "is in the way" in failed


def test_a_dry_run_says_the_plan_and_writes_nothing(recorded: Path) -> None:
    before = sorted(recorded.iterdir())
    planned = CliRunner().invoke(app, [*RUN, "-o", str(recorded), "--dry-run"])
    assert (planned.exit_code, planned.stdout) == (0, f"{NAME}\t4 devices\t1 file\trecorded\n")
    assert planned.stderr == "1 run, 0 to record, on up to 4 devices\n"
    two = CliRunner().invoke(app, ["collect", "--mesh", "tp=4", "--hosts", "2", "-o", str(recorded), "--dry-run"])
    assert two.stdout == "llama-tp4-b4-i32-o17-hosts2-jax\t4 devices\t2 files\tto record\n"
    assert sorted(recorded.iterdir()) == before
    say_nothing_of_tokens(recorded)
    assert CliRunner().invoke(app, [*RUN, "-o", str(recorded), "--dry-run"]).stderr.startswith(NOT_COMPARED)


def test_a_capture_that_cannot_be_read_fails(recorded: Path) -> None:
    (xplane,) = (recorded / NAME).rglob("*.xplane.pb")
    xplane.write_bytes(b"")
    result = CliRunner().invoke(app, [*RUN, "-o", str(recorded)])
    assert result.exit_code == 1
    assert "cannot be ingested" in result.stderr


def test_a_dry_run_says_what_would_be_refused(tmp_path: Path) -> None:
    model = ["collect", "--model", "deepseek-ai/DeepSeek-V3.1-Base", "--mesh", "tp=4", "-o", str(tmp_path), "--dry-run"]
    planned = CliRunner().invoke(app, model)
    assert planned.exit_code == 1
    assert "to record\t677.00 GB (weights 676.90" in planned.stdout
    assert "error: DeepSeek-V3.1-Base-tp4-b4-i32-o17-l61-jax: needs 677.00 GB" in planned.stderr
    # Whether it fits a TPU is said where the chips are known.
    assert CliRunner().invoke(app, [*model, "--device", "tpu"]).exit_code == 0


def test_a_capture_without_an_op_fails(tmp_path: Path) -> None:
    """As the profiler of an older JAX leaves it, which does not say the device of an op."""
    with tw.open(tmp_path, create=True):
        pass
    assert unmarked(tmp_path) == ["the capture has no op of a device"]
