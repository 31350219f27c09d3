from __future__ import annotations

import errno
import importlib.util
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.running_processes import running, wait_until
from tracewarehouse.collect import errors, runner
from tracewarehouse.collect.capture import is_recorded
from tracewarehouse.collect.errors import CollectError, MissingDependencyError, require_libtpu
from tracewarehouse.collect.experiment import Experiment, run_spec
from tracewarehouse.collect.jax.backend import JaxBackend
from tracewarehouse.collect.processes import exit_code
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.runner import Progress, collect, dry_run

ONE = RunSpec()
TWO = run_spec(mesh="tp=2")

# Records like the real harness, only that nothing runs; files in the output directory say how it shall behave.
STAND_IN = """
import os, sys, time
from pathlib import Path
from tracewarehouse.collect.capture import staged_capture, write_manifest
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.processes import end_with_parent
from tracewarehouse.ingest.capture.manifest import Manifest, ModelFacts

end_with_parent()
spec = RunSpec.model_validate_json(sys.argv[1])
output = Path(sys.argv[2])
behaviour = output / f"{spec.name}.behaviour"
todo = behaviour.read_text().split() if behaviour.exists() else []
if todo:
    behaviour.write_text(" ".join(todo[1:]))
    if todo[0] == "check":
        sys.exit("error: the logits differ")
    if todo[0] in ("nothing", "silence"):
        sys.exit(todo[0] == "silence")
    if todo[0] == "abort":
        print("the last words", flush=True)
        os.abort()
with staged_capture(output, spec.name) as staging:
    (staging / "half").touch()
    if todo and todo[0] == "hang":
        time.sleep(60)
    write_manifest(staging, Manifest(
        name=spec.name, model=ModelFacts(name=spec.model), dtype=spec.dtype, batch_size=spec.batch, mesh=spec.mesh,
        input_length=spec.input_length, output_length=spec.output_length, spec_digest=spec.digest))
"""


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stand_in = tmp_path / "stand_in.py"
    stand_in.write_text(STAND_IN)
    monkeypatch.setattr(runner, "HARNESS", (sys.executable, str(stand_in)))
    monkeypatch.setattr(JaxBackend, "require", lambda self: None)
    folder = tmp_path / "captures"
    folder.mkdir()
    return folder


def behave(output: Path, spec: RunSpec, *attempts: str) -> None:
    (output / f"{spec.name}.behaviour").write_text(" ".join(attempts))


def captures(output: Path) -> set[str]:
    return {p.name for p in output.iterdir() if p.is_dir()}


def test_every_run_is_recorded_and_reported(output: Path) -> None:
    seen: list[Progress] = []

    results = collect(Experiment.from_runs(ONE, TWO), output, on_progress=seen.append)

    assert [(r.status, r.attempts) for r in results] == [("recorded", 1), ("recorded", 1)]
    assert [(p.number, p.total, p.state) for p in seen] == [
        (1, 2, "started"),
        (1, 2, "recorded"),
        (2, 2, "started"),
        (2, 2, "recorded"),
    ]
    assert captures(output) == {ONE.name, TWO.name}
    assert all((r.path / "manifest.json").exists() for r in results)


def test_finished_runs_are_skipped(output: Path) -> None:
    collect(Experiment.from_runs(ONE), output)

    planned = dry_run(Experiment.from_runs(ONE, TWO), output)
    assert [(p.spec.name, p.is_recorded) for p in planned] == [(ONE.name, True), (TWO.name, False)]
    assert captures(output) == {ONE.name}
    (result,) = collect(Experiment.from_runs(ONE), output, resume=False)
    assert result.status == "failed"
    assert "is there already" in str(result.error)

    results = collect(Experiment.from_runs(ONE, TWO), output)
    assert [r.status for r in results] == ["skipped", "recorded"]


def test_captures_by_model_and_parallelism(output: Path) -> None:
    """Each is in its folder, is found there again, and what a killed collector left there is removed."""
    split = run_spec(model="qwen3", mesh="dp=2,tp=2", sequence_parallelism="megatron")
    left = output / "qwen3" / "dp2tp2-sp" / f".{split.name}.999999999.partial"
    left.mkdir(parents=True)

    results = collect(Experiment.from_runs(ONE, split), output, by_model=True)

    assert [r.path for r in results] == [output / spec.folder / spec.name for spec in (ONE, split)]
    assert [str(spec.folder) for spec in (ONE, split)] == ["llama/tp4", "qwen3/dp2tp2-sp"]
    assert all((r.path / "manifest.json").is_file() for r in results)
    assert not left.exists()
    assert sorted(p.name for p in output.iterdir()) == ["llama", "qwen3"]
    assert [r.is_recorded for r in dry_run(Experiment.from_runs(ONE, split), output, by_model=True)] == [True, True]
    assert [r.is_recorded for r in dry_run(Experiment.from_runs(ONE, split), output)] == [False, False]
    again = collect(Experiment.from_runs(ONE, split), output, by_model=True)
    assert [r.status for r in again] == ["skipped", "skipped"]


def test_a_failed_attempt_is_repeated(output: Path) -> None:
    behave(output, ONE, "abort")

    (result,) = collect(Experiment.from_runs(ONE, retries=1), output)

    assert (result.status, result.attempts) == ("recorded", 2)


def test_a_failure_does_not_stop_the_others(output: Path) -> None:
    behave(output, ONE, "check", "check")

    first, second = collect(Experiment.from_runs(ONE, TWO, retries=1), output)

    assert (first.status, first.error) == ("failed", "the logits differ")
    assert second.status == "recorded"
    assert captures(output) == {TWO.name}


def test_a_process_that_ends_well_but_leaves_nothing_has_failed(output: Path) -> None:
    behave(output, ONE, "nothing", "nothing", "nothing")

    (result,) = collect(Experiment.from_runs(ONE), output)

    assert result.status == "failed"
    assert result.error == f"{sys.executable} ended without an error, and left no capture"


def test_a_full_disk_is_named_also_where_no_word_found_room(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert exit_code(write) == 1
    assert capsys.readouterr().err == "error: the disk is full; make room, or choose another output\n"

    behave(output, ONE, "silence")
    usage = shutil.disk_usage(output)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
    (result,) = collect(Experiment.from_runs(ONE, retries=0), output)

    assert result.error == f"the disk of {output} is full; make room, or choose another output"


def test_a_crash_says_the_signal_and_the_last_words(output: Path) -> None:
    behave(output, ONE, "abort")

    (result,) = collect(Experiment.from_runs(ONE, retries=0), output)

    assert "SIGABRT" in str(result.error)
    assert "the last words" in str(result.error)
    assert result.log is not None
    assert "the last words" in result.log.read_text()


def test_a_run_that_hangs_is_stopped(output: Path) -> None:
    behave(output, ONE, "hang")

    (result,) = collect(Experiment.from_runs(ONE, retries=0, timeout_s=2), output)
    collect(Experiment.from_runs(ONE), output)

    assert "longer than 2 s" in str(result.error)
    assert captures(output) == {ONE.name}


def collector(output: Path, *meshes: str) -> subprocess.Popen[bytes]:
    """Another process that records into `output`, as `tw collect` does."""
    program = textwrap.dedent(f"""
        from pathlib import Path
        from tracewarehouse.collect import runner
        from tracewarehouse.collect.experiment import Experiment
        from tracewarehouse.collect.experiment import run_spec
        runner.HARNESS = {runner.HARNESS!r}
        from tracewarehouse.collect.jax.backend import JaxBackend
        JaxBackend.require = lambda self: None
        runner.collect(Experiment.from_runs(*(run_spec(mesh=m) for m in {meshes!r})), Path({str(output)!r}))
    """)
    return subprocess.Popen([sys.executable, "-c", program])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_killed_at_any_moment_and_started_again_it_ends_with_the_same_captures(output: Path) -> None:
    meshes = ["tp=4", "tp=2", "dp=2", "dp=4", "dp=2,tp=2", "pp=2"]
    specs = [run_spec(mesh=m) for m in meshes]
    chance = random.Random(7)
    for _ in range(5):
        process = collector(output, *meshes)
        try:
            process.wait(chance.uniform(0.0, 2.0))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        # What it started ends with it, so nothing writes beside the next one.
        wait_until(lambda: not running(runner.HARNESS[1], str(output)))
        for spec in specs:
            assert is_recorded(output, spec) or not (output / spec.name).exists()

    results = collect(Experiment.from_runs(*specs), output)

    assert {r.status for r in results} <= {"skipped", "recorded"}
    assert captures(output) == {s.name for s in specs}
    for spec in specs:
        assert {p.name for p in (output / spec.name).iterdir()} == {"half", "manifest.json"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_process_whose_collector_is_gone_before_it_begins_leaves(output: Path) -> None:
    # The parent ends while the child still starts, so the kernel has nobody left to tell.
    child = (
        "import sys, time; from pathlib import Path; time.sleep(1); "
        "from tracewarehouse.collect.processes import end_with_parent; "
        "end_with_parent(); Path(sys.argv[1]).touch()"
    )
    parent = (
        "import sys; from tracewarehouse.collect.processes import start_process; "
        f"start_process([sys.executable, '-c', {child!r}, sys.argv[1]])"
    )
    mark = output / "mark"
    subprocess.run([sys.executable, "-c", parent + "; import os; os._exit(0)", str(mark)], check=True)

    wait_until(lambda: not running(str(mark)))
    assert not mark.exists()

    kept = subprocess.run([sys.executable, "-c", parent + ".wait()", str(mark)], check=True)
    assert kept.returncode == 0
    assert mark.exists()


def test_two_collectors_do_not_share_an_output(output: Path) -> None:
    def another(progress: Progress) -> None:
        with pytest.raises(CollectError, match="another collector"):
            collect(Experiment.from_runs(TWO), output)

    collect(Experiment.from_runs(ONE), output, on_progress=another)

    assert captures(output) == {ONE.name}


def test_without_the_stack_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingDependencyError, match=r"JAX needs jax, .*pip install 'tracewarehouse\[jax\]'"):
        collect(Experiment.from_runs(ONE), tmp_path)
    with pytest.raises(MissingDependencyError, match="torch, torch_xla, transformers"):
        errors.require_torch_xla()


def test_an_output_that_cannot_be_written_to_is_one_error(output: Path) -> None:
    (output / "file").touch()

    with pytest.raises(CollectError, match="file/captures: captures cannot be written there: Not a directory; choose"):
        collect(Experiment.from_runs(ONE), output / "file" / "captures")


def test_an_interrupted_collector_leaves_nothing_half_written(output: Path) -> None:
    behave(output, TWO, "hang")
    process = collector(output, "tp=4", "tp=2")
    wait_until(lambda: any(p.name.startswith(f".{TWO.name}.") for p in output.iterdir()))
    process.send_signal(signal.SIGINT)
    process.wait()

    assert captures(output) == {ONE.name}


def test_runs_go_on_when_nobody_reads_what_is_said(output: Path, tmp_path: Path) -> None:
    """As `tw collect FILE 2>&1 | head -1`: the reader leaves after the first line."""
    file = tmp_path / "three.yaml"
    file.write_text("matrix: {backend: ['fake_backend:FakeBackend'], mesh: [tp=2], seed: [1, 2, 3]}")
    tests = Path(__file__).parents[1]
    tw = shlex.join([sys.executable, "-m", "tracewarehouse", "collect", str(file), "-o", str(output)])
    environment = os.environ | {"PYTHONPATH": f"{tests.parent}:{tests}"}

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {tw} 2>&1 | head -1"], env=environment, capture_output=True, text=True
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "1/3" in done.stdout
    assert len(list(output.glob("*/manifest.json"))) == 3


def test_without_libtpu_the_message_says_what_to_install(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "libtpu" else real(name))

    for backend, package in (("jax", r"jax\[tpu\]"), ("torch_xla", r"torch_xla\[tpu\]==2.9.0")):
        with pytest.raises(MissingDependencyError, match=rf"needs libtpu.*pip install '{package}'"):
            require_libtpu(backend)
    with pytest.raises(MissingDependencyError, match="needs libtpu"):
        collect(Experiment.from_runs(run_spec(device="tpu")), output)
