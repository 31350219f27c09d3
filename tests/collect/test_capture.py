from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.cli.collect import say_proved
from tracewarehouse.collect.capture import is_recorded, remove_leftovers, staged_capture, unproved, write_manifest
from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.experiment import run_spec
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import Manifest, ModelFacts


def finish(staging: Path, spec: RunSpec, **checks: Any) -> None:
    manifest = Manifest(
        name=spec.name,
        model=ModelFacts(name=spec.model),
        dtype=spec.dtype,
        batch_size=spec.batch,
        input_length=spec.input_length,
        output_length=spec.output_length,
        mesh=spec.mesh,
        spec_digest=spec.digest,
        checks=checks,
    )
    write_manifest(staging, manifest)


def test_a_capture_is_there_when_it_is_whole(tmp_path: Path) -> None:
    spec = RunSpec()
    with staged_capture(tmp_path / "out", spec.name) as staging:
        finish(staging, spec)
        assert not is_recorded(tmp_path / "out", spec)

    assert is_recorded(tmp_path / "out", spec)
    assert [p.name for p in (tmp_path / "out").iterdir()] == [spec.name]


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    spec = RunSpec()
    with pytest.raises(RuntimeError), staged_capture(tmp_path, spec.name) as staging:
        finish(staging, spec)
        raise RuntimeError

    assert list(tmp_path.iterdir()) == []


def test_a_finished_capture_is_never_replaced(tmp_path: Path) -> None:
    spec = RunSpec()
    for expected in ("first", "second"):
        try:
            with staged_capture(tmp_path, spec.name) as staging:
                finish(staging, spec)
                (staging / "mark").write_text(expected)
        except CollectError as error:
            assert spec.name in str(error)

    assert (tmp_path / spec.name / "mark").read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == [spec.name]


def test_another_configuration_of_that_name_is_an_error(tmp_path: Path) -> None:
    spec, other = RunSpec(), run_spec(batch=8)
    with staged_capture(tmp_path, spec.name) as staging:
        finish(staging, other)

    with pytest.raises(CollectError, match="another configuration"):
        is_recorded(tmp_path, spec)


def test_a_folder_without_manifest_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / RunSpec().name).mkdir()

    with pytest.raises(CollectError, match="in the way"):
        is_recorded(tmp_path, RunSpec())


def test_leftovers_of_ended_processes_go(tmp_path: Path) -> None:
    """Also those of a killed process that nobody has waited for, which has its number still."""
    code = (
        "import sys, time; from pathlib import Path; from tracewarehouse.collect.capture import partial_directory\n"
        "with partial_directory(Path(sys.argv[1]), 'run') as staging:\n"
        "    (staging / 'half').touch(); print(flush=True); time.sleep(60)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        killed, running = writers
        killed.kill()
        assert killed.stdout is not None
        killed.stdout.read()  # to its end: the process is gone
        (tmp_path / ".someone.partial").touch()

        remove_leftovers(tmp_path)

        assert sorted(p.name for p in tmp_path.iterdir()) == [f".run.{running.pid}.partial", ".someone.partial"]
        assert (tmp_path / f".run.{running.pid}.partial" / "half").exists()
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ({"reference": "full", "tokens_equal": True}, None),
        ({"reference": "full", "tokens_equal": None, "comparable_share": 0.0}, "its tokens are not compared: in every"),
        (
            {"reference": "full", "tokens_equal": True, "tied_steps": 2},
            "2 steps are not compared: a token went to",
        ),
        (
            {"reference": "first_layers", "first_layers": 3, "first_layers_tokens_equal": True}
            | {"first_layers_tied_steps": 1},
            "only the tokens of its first 3 layers are compared; the host cannot hold the whole reference; 1 step is",
        ),
        (
            {"reference": "full", "tokens_equal": False, "tied_steps": 1},
            "its tokens differ from the reference's where two logits are equal within rounding; 1 step is not",
        ),
        ({"reference": "full", "tokens_equal": None, "tied_steps": 4}, "its tokens are not compared; 4 steps are not"),
        ({"reference": "full", "tokens_equal": False}, "its tokens differ from the reference's where two logits are"),
        ({}, "its backend names no reference, so its tokens are not compared"),
        ({"reference": "finite_logits"}, "no reference was computed, so its tokens are not compared"),
        (
            {"reference": "first_layers", "first_layers": 3, "first_layers_tokens_equal": True},
            "only the tokens of its first 3 layers are compared",
        ),
        (
            {"reference": "first_layers", "first_layers": 3, "first_layers_tokens_equal": None},
            "the tokens of its first 3 layers are not compared",
        ),
    ],
)
def test_what_a_recorded_run_did_not_prove_is_said(tmp_path: Path, checks: dict[str, Any], said: str | None) -> None:
    spec = RunSpec()
    with staged_capture(tmp_path, spec.name) as staging:
        finish(staging, spec, **checks)
    found = unproved(tmp_path / spec.name)
    assert found is None if said is None else found is not None and found.startswith(said)
    proved: list[str] = []
    say_proved(tmp_path / spec.name, proved.append)
    assert proved == ([f"{spec.name}: its tokens equal those of the reference"] if said is None else [])
