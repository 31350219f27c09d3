"""Writers that are killed, interrupted, or many: a run is there whole or not at all, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.tpu_captures import write_capture
from tiny_capture import write_capture_directory

from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.capture_comparison import compare_with_capture
from tracewarehouse.ingest.lake.fsck import fsck
from tracewarehouse.ingest.lake.garbage import collect_garbage, leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.ingest.tables import parts

HERE = Path(__file__).resolve().parent


def run(script: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return [write_capture_directory(folder / f"c{i}", f"tiny{i}", period=150 + i) for i in range(3)]


def test_kills_at_some_of_the_steps_of_ingest(tiny: list[Path]) -> None:
    """The script without --stride takes all of them."""
    assert int(run("kill_points.py", "tables", tiny[0], "--steps", "--stride", "7").split()[1]) >= 3


def test_kills_at_the_steps_of_an_update_of_the_catalogue(tiny: list[Path]) -> None:
    assert int(run("kill_points.py", "build", *tiny, "--steps", "--stride", "2").split()[1]) >= 3


def test_several_writers_and_readers_at_once(tiny: list[Path]) -> None:
    assert "0 failures" in run("concurrent_ingest.py", *tiny[:2], "--writers", "2", "--seconds", "1")


def test_a_run_that_several_processes_wrote_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "DIVIDED", 0)
    monkeypatch.setattr(parts, "_SMALLEST", 1000)
    path = tmp_path / "a.xplane.pb"
    write_capture(path, 0.2, devices=3, ops=40)
    ingest_one(path, tmp_path / "w", jobs=2)
    [entry] = Lake(tmp_path / "w").runs()
    assert len(entry.files["ops"]) > 1
    assert fsck(tmp_path / "w") == []
    assert compare_with_capture(find_captures(path)[0], tmp_path / "w").differences == []
    ingest_one(path, tmp_path / "w", RunOptions(name="replaced"), jobs=2)
    assert len(collect_garbage(Lake(tmp_path / "w"), 0)) == 1


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture that takes a while."""
    path = tmp_path_factory.mktemp("large") / "a.xplane.pb"
    write_capture(path, 20, devices=2, ops=40)
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_command_takes_back_what_is_half_done(
    tmp_path: Path, large: Path, number: int, code: int
) -> None:
    command = [sys.executable, "-m", "tracewarehouse", "-w", str(tmp_path / "w"), "ingest", str(large)]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)
    while not list(tmp_path.glob("w/lake/.staging-*/r*/*")) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert out == ""
    assert "Traceback" not in err
    lake = Lake(tmp_path / "w")
    assert lake.runs() == leftovers(lake, 0) == []


def test_an_interrupt_while_a_text_is_executed_ends_with_130(tmp_path: Path) -> None:
    """CPython 3.11 marks the process for death by SIGINT there, even if the interrupt is caught later."""
    program = """
import os, signal, sys
from tracewarehouse import cli
def run(arguments):
    try:
        exec("os.kill(os.getpid(), signal.SIGINT)")
    except KeyboardInterrupt:
        return 130
cli.run = run
cli.main()
"""
    (tmp_path / "executes_a_text.py").write_text(program)
    done = subprocess.run([sys.executable, "-m", "executes_a_text"], cwd=tmp_path, check=False)
    assert done.returncode == 130


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_comes_in_a_finalizer_is_not_lost(tmp_path: Path, number: int, code: int) -> None:
    """Python drops what a finalizer raises."""
    program = f"""
import os, signal, time
from tracewarehouse import cli
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        time.sleep(0)
def app(*_, **__):
    try:
        Finalized()
        time.sleep(100)
    except KeyboardInterrupt:  # as click has it
        raise SystemExit(130) from None
cli.get_command = lambda _: app
cli.main()
"""
    (tmp_path / "finalizes.py").write_text(program)
    command = [sys.executable, "-m", "finalizes"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert "ignored" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_command_changes_nothing(tmp_path: Path, number: int) -> None:
    """Python takes the handlers away before it ends, so that the process would end by the signal."""
    program = f"""
import os
from tracewarehouse import cli
class Late:
    def __del__(self, kill=os.kill, process=os.getpid()):
        kill(process, {int(number)})
late = Late()
cli.get_command = lambda _: lambda *_, **__: print("done")
cli.main()
"""
    (tmp_path / "late.py").write_text(program)
    done = subprocess.run([sys.executable, "-m", "late"], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_garbage_collection_bears_files_that_vanish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Lake(tmp_path / "w")
    for name in ("r1", "r2"):
        (lake.runs_folder / name / "v1").mkdir(parents=True)
    part = lake.warehouse / ".part-01234567"
    part.write_text("half")
    listed = os.listdir

    def vanishing(folder: Path) -> list[str]:
        if Path(folder).name == "v1":
            Path(folder).rmdir()
        return listed(folder)

    monkeypatch.setattr(os, "listdir", vanishing)
    assert [x.path for x in leftovers(lake, 0)] == [part]
