"""Records the runs of an experiment, each in a fresh Python process."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tracewarehouse.collect.capture import Output, is_recorded, require_writable, write_error
from tracewarehouse.collect.errors import CollectError, MissingDependencyError, require_libtpu
from tracewarehouse.collect.experiment import Experiment, plan
from tracewarehouse.collect.harness.backend import BACKENDS, find_backend
from tracewarehouse.collect.memory import MemoryNeed, memory_need, require_host_memory, require_memory
from tracewarehouse.collect.models.checkpoint import model_folder
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.collect.processes import start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.quota import host_chip

HARNESS = (sys.executable, "-m", "tracewarehouse.collect.run_process")
"""Command that records one run. Its arguments are the specification as JSON and the output directory, or only a
backend's name, to say whether the interpreter has what the backend needs."""

FULL = 2**20
"""Free bytes of the disk below which a process that printed nothing had no room to print."""

Status = Literal["recorded", "skipped", "failed"]


@dataclass(frozen=True)
class CaptureResult:
    """The outcome of one run."""

    spec: RunSpec
    status: Status
    path: Path
    """The capture directory; it exists unless the run failed."""
    attempts: int = 0
    seconds: float = 0.0
    error: str | None = None
    log: Path | None = None
    """Output of the last failed attempt."""


@dataclass(frozen=True)
class Progress:
    """An event: a run started, will be tried again, or ended."""

    spec: RunSpec
    number: int
    """Number of the run, from 1."""
    total: int
    state: Literal["started", "retrying", "recorded", "skipped", "failed"]
    message: str = ""


@dataclass(frozen=True)
class PlannedRun:
    """One line of a dry run."""

    spec: RunSpec
    is_recorded: bool
    """Whether the finished capture is there."""
    memory: MemoryNeed | None = None
    """Memory per device, for a published model."""
    refusal: str | None = None
    """Reason why it would not be recorded: on virtual devices, it does not fit into this host."""


def dry_run(spec: Experiment, output: Path, *, by_model: bool = False) -> list[PlannedRun]:
    """Return what `collect` would do with the same arguments; nothing is run, written or imported for it."""
    return [
        PlannedRun(
            run,
            is_recorded(Output(output, by_model).folder(run), run),
            memory_need(pretrained_model(run.model), run) if run.is_published else None,
            _refusal(run),
        )
        for run in plan(spec)
    ]


def require_fit(spec: RunSpec) -> MemoryNeed | None:
    """Refuse a run that does not fit into the chips or the memory of this host; return what it needs per device.

    A tiny model always fits: None.
    """
    if not spec.is_published:
        return None
    if spec.device == "cpu":
        return require_host_memory(spec)
    kind = host_chip()
    # If the table does not have this kind of TPU, only the devices themselves can refuse.
    return require_memory(spec, kind) if kind else memory_need(pretrained_model(spec.model), spec)


def _refusal(run: RunSpec) -> str | None:
    if run.device == "cpu":  # the chips of a TPU are elsewhere, as a rule; tw tpu plan knows them
        try:
            require_fit(run)
        except CollectError as error:
            return str(error)
    return None


def collect(
    spec: Experiment,
    output: Path,
    *,
    resume: bool = True,
    by_model: bool = False,
    pythons: Mapping[str, str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> list[CaptureResult]:
    """Record every run of an experiment into `output/<name of the run>`.

    With `by_model` into `output/<model>/<parallelism>/<name of the run>`.

    Each run has a process of its own. `pythons` gives the interpreter for the runs of a backend, if it is not this one:
    two backends may need packages that exclude each other.

    A run that fails is tried again, then reported in the result; the other runs go on. With `resume`, a run whose
    finished capture is in `output` is skipped; without, that is an error of this run, because a capture is never
    overwritten.

    Raises:
        MissingDependencyError: what a run's backend needs is not installed.
        ExperimentError: the experiment is not valid.
        CollectError: another collector is writing to `output`, or it cannot be written to.
    """
    specs = plan(spec)
    pythons = pythons or {}
    for backend in {run.backend for run in specs}:
        if backend in pythons:
            _require_elsewhere(backend, pythons[backend])
            continue
        find_backend(backend).require()
        if backend in BACKENDS and any(run.device == "tpu" for run in specs if run.backend == backend):
            require_libtpu(backend)
    require_writable(output)
    report = on_progress or (lambda progress: None)
    results = []
    with _only_collector(output):
        place = Output(output, by_model)
        place.remove_leftovers(specs)
        try:
            for number, run in enumerate(specs, 1):

                def tell(state: Status | Literal["started", "retrying"], message: str = "") -> None:
                    report(Progress(run, number, len(specs), state, message))  # noqa: B023 (in this iteration only)

                python = pythons.get(run.backend, HARNESS[0])
                result = _record(run, place.folder(run), spec, resume, tell, (python, *HARNESS[1:]))
                tell(result.status, result.error or "")
                results.append(result)
        finally:  # also after Ctrl-C, which ends the process of the run midway
            place.remove_leftovers(specs)
    return results


def _require_elsewhere(backend: str, python: str) -> None:
    try:
        done = subprocess.run([python, *HARNESS[1:], backend], capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise MissingDependencyError(f"{python}: cannot be started: {error.strerror}") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        said = last.removeprefix("error: ")
        mend = "" if said != last else "; it needs tracewarehouse of the same version there too"
        raise MissingDependencyError(f"{python} cannot record with {backend}: {said}{mend}")


def _record(
    run: RunSpec,
    output: Path,
    experiment: Experiment,
    resume: bool,
    tell: Callable[..., None],
    harness: Sequence[str],
) -> CaptureResult:
    capture, log = output / run.name, output / f"{run.name}.log"
    start, attempts, failure = time.monotonic(), 0, ""
    try:
        if is_recorded(output, run):
            if resume:
                log.unlink(missing_ok=True)  # left by a collector that was killed after its run
                return CaptureResult(run, "skipped", capture)
            taken = f"{capture} is there already; remove it or choose another output"
            return CaptureResult(run, "failed", capture, error=taken)
        require_fit(run)
        output.mkdir(parents=True, exist_ok=True)
        if run.is_published:
            model_folder(run.model)  # its files are here
        for attempts in range(1, experiment.retries + 2):
            tell("retrying" if failure else "started", failure)
            failure = (
                _attempt([*harness, run.model_dump_json(), str(output.resolve())], experiment.timeout_s, log) or ""
            )
            # Also after a failure: the process of a collector that was killed may have finished the same run meanwhile.
            if is_recorded(output, run):
                log.unlink(missing_ok=True)
                return CaptureResult(run, "recorded", capture, attempts, time.monotonic() - start)
            failure = failure or f"{harness[0]} ended without an error, and left no capture"
    except CollectError as error:
        failure = str(error)
    except OSError as error:  # the disk is full, as a rule
        failure = str(write_error(output, error))
    kept = log if log.exists() else None
    return CaptureResult(run, "failed", capture, attempts, time.monotonic() - start, failure, kept)


def _attempt(command: Sequence[str], timeout_s: float, log: Path) -> str | None:
    """Run one process to its end; return None if it succeeded, else what went wrong."""
    with (
        log.open("wb") as log_file,
        start_process(command, stdin=subprocess.DEVNULL, stdout=log_file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"took longer than {timeout_s:g} s and was stopped; its output is in {log}"
        except BaseException:
            process.kill()
            process.wait()  # after Ctrl-C, leaving the block does not wait
            raise
    if code == 0:
        return None
    return _failure(code, log)


def _failure(code: int, log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    said = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    if said:
        return said[-1]
    if not lines and shutil.disk_usage(log.parent).free < FULL:
        return f"the disk of {log.parent} is full; make room, or choose another output"
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the run's process {how}: {lines[-1] if lines else 'it printed nothing'}; its output is in {log}"


@contextmanager
def _only_collector(output: Path) -> Iterator[None]:
    """Lock the output directory for this process; the lock ends with the process, however that ends."""
    descriptor = os.open(output, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CollectError(f"another collector is writing to {output}; wait or choose another output") from None
        yield
    finally:
        os.close(descriptor)
