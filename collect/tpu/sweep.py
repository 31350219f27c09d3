"""Runs an experiment on a TPU slice: records on all of its hosts, and copies captures back as they finish."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import yaml

from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.experiment import Experiment
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.captures import REMOTE_FOLDER, fetch, pending
from tracewarehouse.collect.tpu.gcloud import READY
from tracewarehouse.collect.tpu.plan import runs_of_slice, tpu_runs
from tracewarehouse.collect.tpu.slices import InterruptionError, Slices
from tracewarehouse.collect.tpu.state import Slice

REMOTE_EXPERIMENT = "tracewarehouse-experiment.yaml"
ENDED = "tracewarehouse-ended"
"""What each host prints when its collector ended, however; without it, the connection or the host was lost."""

SSH_FAILED = 255
"""Exit code of ssh when it could not connect; any other is that of the command."""


@dataclass(frozen=True)
class SweepResult:
    """What became of the runs on one slice."""

    recorded: list[Path]
    """Captures that are in the output, those of earlier calls included."""
    missing: list[str]
    """Names of runs without a capture."""
    other_sizes: list[str]
    """Names of runs whose mesh needs a slice of another size."""


@dataclass(frozen=True)
class Installation:
    """How the collector comes to the hosts."""

    wheel: Path | None = None
    """The collector to install; from the package index when absent."""
    command: str | None = None
    """Shell command to use in place of the installation."""


def run_sweep(
    slices: Slices,
    name: str,
    experiment: Experiment,
    output: Path,
    *,
    installation: Installation = Installation(),
    poll_s: float = 60.0,
    attempts: int = 10,
) -> SweepResult:
    """Record the runs that fit the slice and copy each capture back when it is finished.

    A capture that is in `output` already is not recorded again. When the slice is preempted or the connection lost, it
    is created again if need be, and the run goes on with what is missing.

    Args:
        slices: Among them the one to use.
        name: Of the slice.
        experiment: Runs whose mesh has another size than the slice are left out.
        output: Folder for the capture directories.
        installation: Of the collector.
        poll_s: Seconds between two looks for finished captures.
        attempts: How often to start before giving up.

    Raises:
        InterruptionError: interrupted in every attempt.
        TpuError: the slice was not created here, cannot be created again or set up; or no run fits it.
    """
    entry = slices.state.get(name)
    specs = runs_of_slice(experiment, entry, slices.quota.generation(entry.generation).kind)
    output.mkdir(parents=True, exist_ok=True)
    if pending(specs, output):
        sweep = _Sweep(slices, entry, experiment, specs, output)
        for attempt in slices.attempts(attempts):
            with attempt:
                slices.ensure(entry)
                sweep.set_up(installation)
                sweep.record(poll_s)
    missing = [s.name for s in pending(specs, output)]
    recorded = [output / s.name for s in specs if s.name not in missing]
    return SweepResult(recorded, missing, [s.name for s in tpu_runs(experiment) if s.mesh.size != entry.chips])


def setup_command(package: str) -> str:
    """Shell command that installs the collector on a host; its own Python, because that of the image is too old."""
    uv = '"$HOME/.local/bin/uv"'
    venv = '"$HOME/tracewarehouse-venv"'
    return (
        f"python3 -m pip install --user --quiet uv && {uv} venv --quiet --clear --python 3.12 {venv} && "
        f"{uv} pip install --quiet --python {venv} {shlex.quote(package + '[collect]')} 'torch_xla[tpu]==2.9.0'"
    )


def collect_command(specs: list[RunSpec]) -> str:
    """Shell command that records on a host, with the files of published models fetched first.

    It waits for a collector that still runs there because only the connection to it was lost.
    """
    models = sorted({s.model for s in specs if s.is_published})
    patterns = " ".join(f"--include '{p}'" for p in ("*.json", "*.safetensors"))
    download = "".join(f'"$HOME/tracewarehouse-venv/bin/hf" download {shlex.quote(m)} {patterns}; ' for m in models)
    record = f'"$HOME/tracewarehouse-venv/bin/tw" collect {REMOTE_EXPERIMENT} --output {REMOTE_FOLDER}'
    return f'{download}PJRT_DEVICE=TPU flock "$HOME/tracewarehouse.lock" {record}; echo "{ENDED} $?"'


class _Sweep:
    """One experiment on one slice."""

    def __init__(
        self, slices: Slices, entry: Slice, experiment: Experiment, specs: list[RunSpec], output: Path
    ) -> None:
        self._slices = slices
        self._gcloud = slices.gcloud
        self._entry = entry
        self._experiment = experiment
        self._specs = specs
        self._output = output

    def set_up(self, installation: Installation) -> None:
        """Install the collector on all hosts, unless that is done.

        Raises:
            InterruptionError: the connection was lost.
            TpuError: it cannot be installed.
        """
        entry = self._entry
        if entry.is_set_up:
            return
        package = "tracewarehouse"
        if (wheel := installation.wheel) is not None:
            self._must(self._gcloud.upload(entry, wheel, wheel.name), "the wheel could not be copied")
            package = f"./{wheel.name}"
        done = self._gcloud.ssh(entry, installation.command or setup_command(package))
        if done.returncode not in (0, SSH_FAILED) and self._slices.found(entry) == READY:
            said = " ".join(done.stderr.split())[-300:]
            raise TpuError(f"{entry.name}: the collector could not be installed (exit code {done.returncode}): {said}")
        self._must(done, "the collector could not be installed")
        entry.is_set_up = True
        self._slices.state.put(entry)

    def record(self, poll_s: float) -> None:
        """Record what is missing on all hosts, and copy it back meanwhile and at the end.

        Raises:
            InterruptionError: not all hosts ended.
        """
        entry, missing = self._entry, pending(self._specs, self._output)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "experiment.yaml"
            settings = {k: getattr(self._experiment, k) for k in ("name", "timeout_s", "retries")}
            content = Experiment.of(*missing, **settings).model_dump(mode="json")
            file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
            self._must(self._gcloud.upload(entry, file, REMOTE_EXPERIMENT), "the experiment could not be copied")
        log = self._output / f"{entry.name}.log"
        with log.open("w", encoding="utf-8") as file_:
            process = self._gcloud.start_ssh(entry, collect_command(missing), file_)
            try:
                self._copy_while(process, poll_s)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        ended = log.read_text(encoding="utf-8", errors="replace").count(f"{ENDED} ")
        try:
            self._fetch()
        except InterruptionError:
            if not ended:
                raise self._slices.interruption(entry, f"exit code {process.returncode} of ssh") from None
            raise
        if ended < entry.hosts and pending(self._specs, self._output):
            raise self._slices.interruption(entry, f"{ended} of {entry.hosts} hosts ended; see {log}")

    def _copy_while(self, process: subprocess.Popen[str], poll_s: float) -> None:
        # Without anything left to copy, a connection that hangs is not waited for.
        while pending(self._specs, self._output):
            try:
                process.wait(poll_s)
            except subprocess.TimeoutExpired:
                try:
                    self._fetch()
                except InterruptionError as error:
                    self._slices.show(f"# {error}; trying again later")
                    # Where Google does not say either, it is the way there that is lost for a while, not the slice.
                    if self._slices.found(self._entry) not in (READY, None):
                        return
            else:
                return

    def _fetch(self) -> None:
        fetch(self._gcloud, self._entry, self._specs, self._output, self._slices.show)

    def _must(self, done: subprocess.CompletedProcess[str], what: str) -> None:
        if done.returncode:
            raise self._slices.interruption(self._entry, f"{what}: {' '.join(done.stderr.split())[-300:]}")
