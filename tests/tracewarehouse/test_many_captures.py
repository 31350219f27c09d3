"""Many captures at once: the same runs as one after another, and no capture in another's way."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from running_processes import wait_until
from tiny_capture import tiny_capture

from tracewarehouse.executors import executor
from tracewarehouse.executors.executor import IngestTask, LocalProcesses, Outcome, ingest_task
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import Capture, find_captures
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.warehouse import open_warehouse

FAULTS = """
import os, signal, time
from tracewarehouse.ingest import pipeline
write = pipeline.write_tables
identify = pipeline._identify
names = []

def remembering(source, capture, *rest):
    names.append(capture.name)
    return identify(source, capture, *rest)

def faulty(*arguments):
    written = write(*arguments)
    if names[-1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if names[-1] == "wrong":
        raise ValueError("of a new kind")
    while names[-1] == "endless":
        time.sleep(0.05)
    return written

pipeline._identify, pipeline.write_tables = remembering, faulty
"""
WITH_FAULTS = """
from tracewarehouse.executors import executor
executor._MODULES += ("faults_of_ingest",)
from tracewarehouse.cli import main
main()
"""
"""`tw` whose helpers import the faults: they are killed, fail unexpectedly, or go on for ever, with their tables half
published."""


@pytest.fixture
def captures(tmp_path: Path) -> Path:
    """A folder of five captures."""
    for number in range(5):
        tiny_capture(150 + 10 * number).write(tmp_path / "captures" / f"c{number}" / f"c{number}.xplane.pb")
    return tmp_path / "captures"


@pytest.fixture
def faulty_tw(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `tw` with the faults above, in a group of processes of its own."""
    (tmp_path / "faults_of_ingest.py").write_text(FAULTS)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", WITH_FAULTS, "-w", str(tmp_path / "w"), *map(str, arguments)],
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def digests(warehouse: Path) -> dict[str, str]:
    """SHA-256 of every file of a warehouse."""
    files = [p for folder in ("lake", "manifests") for p in (warehouse / folder).rglob("*") if p.is_file()]
    return {str(p.relative_to(warehouse)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_several_processes_write_the_same_bytes(captures: Path, tmp_path: Path) -> None:
    for name in ("c3", "c4"):  # three are more than there are processes
        shutil.rmtree(captures / name)
    with open_warehouse(tmp_path / "one", create=True) as one:
        expected = [one.ingest_capture(c) for c in find_captures(captures)]
    with open_warehouse(tmp_path / "many", create=True) as many:
        results = many.ingest(captures, jobs=2)
        assert [r.run_id for r in results] == [r.run_id for r in expected]
        assert [r.notes for r in results] == [r.notes for r in expected]
    assert len(expected) == 3
    assert digests(tmp_path / "many") == digests(tmp_path / "one")


def test_an_error_names_all_captures_that_failed_and_the_others_are_there(captures: Path, tmp_path: Path) -> None:
    (captures / "c1" / "c1.xplane.pb").write_bytes(b"junk" * 100)
    with open_warehouse(tmp_path / "w", create=True) as warehouse:
        (captures / "c3" / "c3.xplane.pb").write_bytes(b"junk" * 200)
        with pytest.raises(CaptureError, match=r"^2 of 5 captures could not be ingested: .*c1\.xplane.*; .*c3\.xpl"):
            warehouse.ingest(captures, jobs=1)
        assert sorted(r.name for r in warehouse.lake.runs()) == ["c0", "c2", "c4"]


def test_a_killed_process_and_an_unknown_fault_cost_only_their_captures(
    captures: Path, tmp_path: Path, faulty_tw: Callable[..., subprocess.Popen[str]]
) -> None:
    (captures / "c1").rename(captures / "killed")
    (captures / "killed" / "c1.xplane.pb").rename(captures / "killed" / "killed.xplane.pb")
    (captures / "c2" / "c2.xplane.pb").rename(captures / "c2" / "wrong.xplane.pb")
    process = faulty_tw("ingest", captures, tmp_path / "nowhere", "--jobs", "2")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1, err
    assert sorted(line.split("\t")[1] for line in out.splitlines()) == ["c0", "c3", "c4"]
    lines = err.splitlines()
    assert [line for line in lines if "killed.xplane.pb: " in line and "SIGKILL" in line]
    assert [line for line in lines if "wrong.xplane.pb: a fault of tracewarehouse" in line and "of a new kind" in line]
    assert [line for line in lines if "nowhere: no such file or folder" in line]
    assert lines[-1] == "3 of 6 were not ingested, for the reasons above"
    with open_warehouse(tmp_path / "w") as warehouse:
        assert sorted(r.name for r in warehouse.lake.runs()) == ["c0", "c3", "c4"]
        assert warehouse.leftovers() == []
        assert sorted(r.name for r in warehouse.ingest(captures)) == ["c0", "c3", "c4", "killed", "wrong"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_takes_back_what_is_unfinished(
    captures: Path, tmp_path: Path, faulty_tw: Callable[..., subprocess.Popen[str]], number: signal.Signals
) -> None:
    (captures / "c4" / "c4.xplane.pb").rename(captures / "c4" / "endless.xplane.pb")
    process = faulty_tw("ingest", captures, "--jobs", "2")
    assert process.stdout
    done = [process.stdout.readline().split("\t")[1] for _ in range(4)]
    wait_until(lambda: any((tmp_path / "w" / "lake").glob(".staging-*/*/*/ops.parquet")))
    os.killpg(process.pid, number)  # as a terminal does
    process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert sorted(done) == ["c0", "c1", "c2", "c3"]
    with open_warehouse(tmp_path / "w") as warehouse:
        assert sorted(r.name for r in warehouse.lake.runs()) == sorted(done)
        assert warehouse.leftovers() == []


class _Recorded:
    """A helper that does no task before it is asked for its answer."""

    pid = 0

    def __init__(self) -> None:
        self.reading, self._writing = os.pipe()
        self.task: IngestTask | None = None
        self.jobs = 0

    def send(self, _: object, work: tuple[IngestTask, int]) -> None:
        self.task, self.jobs = work
        os.write(self._writing, b".")

    def fileno(self) -> int:
        return self.reading

    def answer(self) -> Outcome:
        os.read(self.reading, 1)
        assert self.task
        return Outcome(self.task.number)

    def end(self) -> None:
        os.close(self.reading)
        os.close(self._writing)


def test_a_large_capture_has_all_processes_for_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    large, small = tmp_path / "large.xplane.pb", tmp_path / "small.xplane.pb.gz"
    os.truncate(os.open(large, os.O_CREAT | os.O_WRONLY), 33 << 20)
    small.write_bytes(bytes(1 << 20))
    helpers: list[_Recorded] = []

    def start() -> _Recorded:
        helpers.append(_Recorded())
        return helpers[-1]

    monkeypatch.setattr(executor, "_started", start)
    processes = LocalProcesses(3)
    for number, file in enumerate([small, small, small, small, large, small, large]):
        processes.submit(IngestTask(number, Capture(file.name, (file,)), tmp_path / "w"))
    seen = []
    for outcome in processes.results():
        at_once = {h.task.number: h.jobs for h in processes._busy if isinstance(h, _Recorded) and h.task}
        seen.append((outcome.number, at_once))
        assert list(at_once.values()) in ([], [3], [1], [1, 1], [1, 1, 1])
    processes.cancel()
    assert sorted(number for number, _ in seen) == list(range(7))
    assert [number for number, _ in seen][-3:] == [4, 5, 6]
    assert len(helpers) == 3


def test_without_another_process_this_one_ingests(
    captures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_started", lambda: None)
    with open_warehouse(tmp_path / "w", create=True) as warehouse:
        assert [r.name for r in warehouse.ingest(captures)] == ["c0", "c1", "c2", "c3", "c4"]


def test_another_executor_gets_the_tasks_and_is_cancelled(captures: Path, tmp_path: Path) -> None:
    class Here:
        """Ingests in this process, the last capture first."""

        def __init__(self) -> None:
            self.tasks: list[IngestTask] = []
            self.is_cancelled = False

        def submit(self, task: IngestTask) -> None:
            self.tasks.append(task)

        def results(self) -> Iterator[Outcome]:
            while self.tasks:
                yield ingest_task(self.tasks.pop())

        def cancel(self) -> None:
            self.is_cancelled = True

    here = Here()
    with open_warehouse(tmp_path / "w", create=True) as warehouse:
        outcomes = warehouse.ingest_captures(find_captures(captures), RunOptions.parse("tp=2"), executor=here)
        first = next(outcomes)
        assert first.result
        assert (first.number, first.result.name) == (4, "c4")
        outcomes.close()
        assert here.is_cancelled
        assert len(here.tasks) == 4
        assert [r.name for r in warehouse.lake.runs()] == ["c4"]
        assert warehouse.query("SELECT tp FROM runs").scalar() == 2


@pytest.mark.parametrize(("cores", "free", "jobs"), [(8, 64 << 30, 8), (8, 1 << 30, 2), (8, 0, 1), (1, 64 << 30, 1)])
def test_processes_fit_the_cores_and_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int, jobs: int
) -> None:
    monkeypatch.setattr(executor, "usable_cores", lambda: cores)
    monkeypatch.setattr(executor, "_free_memory", lambda: free)
    assert executor.default_jobs() == jobs
    monkeypatch.undo()
    assert executor._free_memory() > 0
