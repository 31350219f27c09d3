"""Runs an experiment on a TPU slice: creates it, records on all of its hosts, copies captures back, deletes it."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import ValidationError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from collect.capture import MANIFEST, is_recorded, partial_directory, remove_leftovers, staged_capture
from collect.errors import CollectError
from collect.experiment import Experiment, RunSpec, plan
from collect.memory import MemoryNeed, require_memory
from collect.models import ARCHITECTURES
from collect.tpu_gcloud import GONE, READY, CapacityError, Gcloud, TakenError
from collect.tpu_quota import Pool, Quota, TpuError
from collect.tpu_state import Slice, State

REMOTE_FOLDER = "tracewarehouse-captures"
REMOTE_EXPERIMENT = "tracewarehouse-experiment.yaml"
ENDED = "tracewarehouse-ended"
"""What each host prints when its collector ended, however; without it, the connection or the host was lost."""

SSH_FAILED = 255
"""Exit code of ssh when it could not connect; any other is that of the command."""


class InterruptionError(TpuError):
    """The slice was preempted or the connection lost; the run can go on."""


@dataclass(frozen=True)
class PlannedSlice:
    """The runs of an experiment that need a slice of one size."""

    accelerator_type: str
    chips: int
    hosts: int
    pool: Pool
    runs: list[RunSpec]
    memory: dict[str, MemoryNeed] = field(default_factory=dict)
    """Need of each run of a published model."""


@dataclass(frozen=True)
class SweepResult:
    """What became of the runs on one slice."""

    recorded: list[Path]
    """Captures that are in the output, those of earlier calls included."""
    missing: list[str]
    """Names of runs without a capture."""
    other_sizes: list[str]
    """Names of runs whose mesh needs a slice of another size."""


def plan_slices(
    experiment: Experiment,
    generation: str,
    quota: Quota,
    *,
    zone: str | None = None,
    spot: bool | None = None,
    used: Iterable[Slice] = (),
) -> list[PlannedSlice]:
    """The slices that an experiment needs, smallest first, one after the other, beside those that exist.

    Raises:
        ExperimentError: a run does not fit into the memory of its chips.
        TpuError: a run is not for TPUs, or no slice of its size exists.
        QuotaError: a slice is outside of the quota.
    """
    details = quota.generation(generation)
    by_size: dict[int, list[RunSpec]] = {}
    for spec in plan(experiment):
        _require_tpu(spec)
        by_size.setdefault(spec.mesh.size, []).append(spec)
    slices, existing = [], list(used)
    for chips, runs in sorted(by_size.items()):
        accelerator_type = details.accelerator_type(chips)
        pool = quota.pool(generation, chips, zone=zone, spot=spot, used=existing)
        memory = {s.name: require_memory(s, details.kind) for s in runs if s.model not in ARCHITECTURES}
        slices.append(PlannedSlice(accelerator_type, chips, details.hosts[chips], pool, runs, memory))
    return slices


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
    fetch = "".join(f'"$HOME/tracewarehouse-venv/bin/hf" download {shlex.quote(m)} {patterns}; ' for m in models)
    record = f'"$HOME/tracewarehouse-venv/bin/tw" collect {REMOTE_EXPERIMENT} --output {REMOTE_FOLDER}'
    return f'{fetch}PJRT_DEVICE=TPU flock "$HOME/tracewarehouse.lock" {record}; echo "{ENDED} $?"'


class TpuSweep:
    """The slices of one state file and what is done with them."""

    def __init__(self, state: State, quota: Quota, show: Callable[[str], None], *, backoff_s: float = 30.0) -> None:
        self._state = state
        self._quota = quota
        self._gcloud = Gcloud(show)
        self._show = show
        self._backoff_s = backoff_s

    def create(
        self,
        name: str,
        accelerator_type: str,
        *,
        zone: str | None = None,
        spot: bool | None = None,
        project: str | None = None,
        attempts: int = 1,
    ) -> Slice:
        """Create a slice, or find the one that an earlier call created.

        Raises:
            QuotaError: outside of the quota.
            CapacityError: no free chips after all attempts.
            TpuError: another failure, or a slice of this name that is different.
        """
        generation, chips = self._quota.of_type(accelerator_type)

        def choose(used: list[Slice]) -> Slice:
            pool = self._quota.pool(generation, chips, zone=zone, spot=spot, used=used)
            details = self._quota.generation(generation)
            try:
                return Slice(
                    name=name,
                    owner=secrets.token_hex(8),
                    generation=generation,
                    accelerator_type=accelerator_type,
                    chips=chips,
                    hosts=details.hosts[chips],
                    zone=pool.zone,
                    spot=pool.spot,
                    runtime=details.runtime,
                    project=project,
                )
            except ValidationError:
                raise TpuError(
                    f"{name!r} is no name for a slice: it has at most 63 small letters, digits and hyphens, begins "
                    "with a letter and does not end with a hyphen"
                ) from None

        # On record before any command: a slice must not be forgotten when this process is killed meanwhile.
        entry, is_new = self._state.reserve(name, choose)
        if entry.accelerator_type != accelerator_type or zone not in (None, entry.zone):
            raise TpuError(f"{name} is there already as {entry.accelerator_type} in {entry.zone}; delete it first")
        if spot not in (None, entry.spot) or project not in (None, entry.project):
            raise TpuError(f"{name} is there already with another provisioning or project; delete it first")
        try:
            for attempt in self._attempts(attempts):
                with attempt:
                    self._ensure(entry)
        except TakenError:
            if is_new:
                self._state.remove(name)
            raise
        except TpuError:
            if is_new and self._found(entry) == GONE:
                self._state.remove(name)
            raise
        return entry

    def delete(self, name: str) -> None:
        """Delete a slice that was created here.

        Raises:
            TakenError: the slice that now has the name is another one; it is left alone.
            TpuError: it was not, or could not be deleted.
        """
        self._gcloud.delete(self._state.get(name))
        self._state.remove(name)

    def run(
        self,
        name: str,
        experiment: Experiment,
        output: Path,
        *,
        wheel: Path | None = None,
        setup: str | None = None,
        poll_s: float = 60.0,
        attempts: int = 10,
    ) -> SweepResult:
        """Record the runs that fit the slice and copy each capture back when it is finished.

        A capture that is in `output` already is not recorded again. When the slice is preempted or the connection lost,
        it is created again if need be, and the run goes on with what is missing.

        Args:
            name: Of the slice.
            experiment: Runs whose mesh has another size than the slice are left out.
            output: Folder for the capture directories.
            wheel: The collector to install; from the package index when absent.
            setup: Shell command to use in place of the installation.
            poll_s: Seconds between two looks for finished captures.
            attempts: How often to start before giving up.

        Raises:
            InterruptionError: interrupted in every attempt.
            TpuError: the slice was not created here, cannot be created again or set up; or no run fits it.
        """
        entry = self._state.get(name)
        specs = plan(experiment)
        for spec in specs:
            _require_tpu(spec)
        mine = [s for s in specs if s.mesh.size == entry.chips]
        if not mine:
            sizes = sorted({s.mesh.size for s in specs})
            raise TpuError(f"no run fits {name} with its {entry.chips} chips; their meshes have {sizes} devices")
        kind = self._quota.generation(entry.generation).kind
        for spec in mine:
            if spec.model not in ARCHITECTURES:
                require_memory(spec, kind)
        output.mkdir(parents=True, exist_ok=True)
        if _pending(mine, output):
            for attempt in self._attempts(attempts):
                with attempt:
                    self._run_once(entry, experiment, mine, output, wheel, setup, poll_s)
        missing = [s.name for s in _pending(mine, output)]
        recorded = [output / s.name for s in mine if s.name not in missing]
        return SweepResult(recorded, missing, [s.name for s in specs if s.mesh.size != entry.chips])

    def fetch(self, name: str, specs: list[RunSpec], output: Path) -> list[Path]:
        """Copy the captures that every host has finished and `output` has not.

        Raises:
            InterruptionError: a host does not answer.
            CollectError: something else is in the way of a capture, or the hosts recorded different things.
        """
        entry = self._state.get(name)
        remove_leftovers(output)
        pending = _pending(specs, output)
        for worker in range(entry.hosts):
            if not pending:
                return []
            listed = self._gcloud.ssh(entry, f"ls -1 {REMOTE_FOLDER} 2>/dev/null || true", str(worker))
            if listed.returncode:
                raise InterruptionError(f"{name}: host {worker} does not answer: {listed.stderr.strip()}")
            finished = listed.stdout.split()
            pending = [s for s in pending if s.name in finished]
        return [self._fetch_one(entry, spec, output) for spec in pending]

    def _run_once(
        self,
        entry: Slice,
        experiment: Experiment,
        specs: list[RunSpec],
        output: Path,
        wheel: Path | None,
        setup: str | None,
        poll_s: float,
    ) -> None:
        self._ensure(entry)
        self._set_up(entry, wheel, setup)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "experiment.yaml"
            settings = {k: getattr(experiment, k) for k in ("name", "timeout_s", "retries")}
            pending = Experiment.of(*_pending(specs, output), **settings)
            file.write_text(yaml.safe_dump(pending.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
            self._must(self._gcloud.upload(entry, file, REMOTE_EXPERIMENT), entry, "the experiment could not be copied")
        command = collect_command(_pending(specs, output))
        log = output / f"{entry.name}.log"
        with log.open("w", encoding="utf-8") as file_:
            process = self._gcloud.start_ssh(entry, command, file_)
            try:
                self._copy_while(process, entry, specs, output, poll_s)
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        ended = log.read_text(encoding="utf-8", errors="replace").count(f"{ENDED} ")
        try:
            self.fetch(entry.name, specs, output)
        except InterruptionError:
            if not ended:
                raise self._interruption(entry, f"exit code {process.returncode} of ssh") from None
            raise
        if ended < entry.hosts and _pending(specs, output):
            raise self._interruption(entry, f"{ended} of {entry.hosts} hosts ended; see {log}")

    def _copy_while(
        self, process: subprocess.Popen[str], entry: Slice, specs: list[RunSpec], output: Path, poll_s: float
    ) -> None:
        # Without anything left to copy, a connection that hangs is not waited for.
        while _pending(specs, output):
            try:
                process.wait(poll_s)
            except subprocess.TimeoutExpired:
                try:
                    self.fetch(entry.name, specs, output)
                except InterruptionError as error:
                    self._show(f"# {error}; trying again later")
                    if self._gcloud.state(entry) != READY:
                        return
            else:
                return

    def _ensure(self, entry: Slice) -> None:
        """Make sure that the slice is there: create it, or delete and create it again when it was preempted."""
        found = self._gcloud.state(entry)
        if found == READY:
            entry.status = "ready"
            self._state.put(entry)
            return
        if found in ("CREATING", "STARTING", "RESTARTING", "REPAIRING"):
            raise InterruptionError(f"{entry.name} is {found}")
        if found != GONE:
            self._show(f"# {entry.name} is {found}: it is deleted and created again")
            self._gcloud.delete(entry)
        entry.status, entry.is_set_up = "creating", False
        self._state.put(entry)
        self._gcloud.create(entry)
        entry.status = "ready"
        self._state.put(entry)

    def _found(self, entry: Slice) -> str | None:
        try:
            return self._gcloud.state(entry)
        except TpuError:
            return None

    def _set_up(self, entry: Slice, wheel: Path | None, setup: str | None) -> None:
        if entry.is_set_up:
            return
        package = "tracewarehouse"
        if wheel is not None:
            self._must(self._gcloud.upload(entry, wheel, wheel.name), entry, "the wheel could not be copied")
            package = f"./{wheel.name}"
        done = self._gcloud.ssh(entry, setup or setup_command(package))
        if done.returncode not in (0, SSH_FAILED) and self._found(entry) == READY:
            said = " ".join(done.stderr.split())[-300:]
            raise TpuError(f"{entry.name}: the collector could not be installed (exit code {done.returncode}): {said}")
        self._must(done, entry, "the collector could not be installed")
        entry.is_set_up = True
        self._state.put(entry)

    def _must(self, done: subprocess.CompletedProcess[str], entry: Slice, what: str) -> None:
        if done.returncode:
            raise self._interruption(entry, f"{what}: {' '.join(done.stderr.split())[-300:]}")

    def _interruption(self, entry: Slice, why: str) -> InterruptionError:
        return InterruptionError(f"{entry.name} ({self._found(entry) or 'state not known'}): {why}")

    def _attempts(self, count: int) -> Retrying:
        return Retrying(
            stop=stop_after_attempt(count),
            wait=wait_exponential(multiplier=self._backoff_s, max=20 * self._backoff_s),
            retry=retry_if_exception_type((CapacityError, InterruptionError)),
            before_sleep=lambda call: self._show(
                f"# {call.outcome.exception() if call.outcome else ''}; attempt {call.attempt_number} of {count}, "
                f"the next in {call.upcoming_sleep:g} s"
            ),
            sleep=time.sleep,
            reraise=True,
        )

    def _fetch_one(self, entry: Slice, spec: RunSpec, output: Path) -> Path:
        with partial_directory(output, f"fetch-{spec.name}") as folder:
            parts = []
            for worker in range(entry.hosts):
                target = folder / str(worker)
                target.mkdir()
                done = self._gcloud.download(entry, f"{REMOTE_FOLDER}/{spec.name}", target, worker)
                self._must(done, entry, f"{spec.name} could not be copied from host {worker}")
                parts.append(target / spec.name)
            merge_hosts(parts, output, spec)
        self._show(f"# {spec.name} is here")
        return output / spec.name


def merge_hosts(parts: list[Path], output: Path, spec: RunSpec) -> None:
    """Make one capture directory of those that the hosts of a slice recorded: one profile per host.

    Card and manifest are those of the first host; the manifest names the profiles of all.

    Raises:
        CollectError: a part is not a capture of this run, or two hosts have the same name.
        InterruptionError: a part is there without its profile.
    """
    for part in parts:
        if not is_recorded(part.parent, spec):
            raise CollectError(f"{part}: no finished capture of {spec.name} was copied")
        profiles = list(part.rglob("*.xplane.pb"))
        if not any(profile.stat().st_size for profile in profiles):
            raise InterruptionError(f"{spec.name}: a host's copy has no profile in it; it is copied again")
    with staged_capture(output, spec.name) as staging:
        shutil.copytree(parts[0], staging, dirs_exist_ok=True)
        for part in parts[1:]:
            for profile in sorted(part.rglob("*.xplane.pb")):
                target = staging / profile.relative_to(part)
                if target.exists():
                    raise CollectError(f"{spec.name}: two hosts recorded a profile named {profile.name}")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(profile, target)
        manifest = json.loads((staging / MANIFEST).read_text(encoding="utf-8"))
        manifest["hosts"] = sorted(p.name.removesuffix(".xplane.pb") for p in staging.rglob("*.xplane.pb"))
        text = json.dumps(manifest, indent=1, ensure_ascii=False)
        (staging / MANIFEST).write_text(text + "\n", encoding="utf-8")


def _pending(specs: list[RunSpec], output: Path) -> list[RunSpec]:
    return [s for s in specs if not is_recorded(output, s)]


def _require_tpu(spec: RunSpec) -> None:
    if spec.device != "tpu":
        raise TpuError(f"{spec.name} is for device {spec.device}; set device: tpu in the experiment")
