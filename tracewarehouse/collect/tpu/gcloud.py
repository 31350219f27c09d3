"""Runs `gcloud`, and defines what a provider of slices does; the Cloud TPU API is the first of two."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from tracewarehouse.collect.errors import QuotaError, TpuError
from tracewarehouse.collect.tpu.state import Slice

GONE = "NOT_FOUND"
READY = "READY"
WAITING = ("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
"""States of a queued resource that Google has not granted yet."""
COMING = ("CREATING", "STARTING", "RESTARTING", "REPAIRING", "ACTIVE")
"""States of a slice that will be ready by itself; ACTIVE is a granted request whose slice is not visible yet."""
LABEL = "tracewarehouse"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
ALIVE = "-oServerAliveInterval=30"
"""Flag that makes ssh and scp end when a host no longer answers, for example because it was preempted."""
KEY = "~/.ssh/google_compute_engine"
"""The key with which gcloud connects."""
ADD_KEY = f'eval "$(ssh-agent -s)" && ssh-add {KEY}'
ANSWER_S = 600.0
"""Time after which a hanging command counts as failed, such as one to a preempted host."""
LOST = 255
"""Exit code of ssh when it cannot connect, and of a command without an answer in time."""
_REFUSALS = ("PERMISSION_DENIED", "UNAUTHENTICATED", "gcloud auth login")
_PASSING = ("unavailable", "internal error", "deadline exceeded", "broken pipe", "connection reset", "timed out")
_NO_CAPACITY = ("no more capacity", "stockout", "enough resources")


class CapacityError(TpuError):
    """The zone has no free chips at the moment, but may have some later."""


class TakenError(TpuError):
    """A slice of this name exists and belongs to somebody else."""


class StateError(TpuError):
    """Google does not give the state of a slice; it will once it can be reached again."""


class RefusedError(TpuError):
    """Google refuses to answer this user, until the user logs in or gets the permission."""


class DeletionError(TpuError):
    """A slice is not deleted yet and may cost money."""


class KeyAgentError(TpuError):
    """The key for the hosts is not in the agent, so several hosts cannot be reached at the same time."""


class Gcloud:
    """Runs commands of gcloud, each of which is shown before it runs."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def project(self, entry: Slice) -> str:
        """Return the project of a slice, by default gcloud's own."""
        if entry.place.project:
            return entry.place.project
        name = self.ask("config", "get-value", "project").stdout.strip()
        if not name:
            raise TpuError("gcloud has no project; `gcloud config set project ID` sets one, or give --project")
        return name

    def ask(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another gcloud command that only reads."""
        return self.run([gcloud(), *arguments])

    def described(self, entry: Slice, command: list[str]) -> Any:
        """Return the JSON that a command prints of a slice; None if there is no such thing.

        Raises:
            StateError: Google does not say.
            RefusedError: this user may not ask.
        """
        done = self.run(command)
        if done.returncode:
            if is_gone(done.stderr):
                return None
            is_refused = any(text in done.stderr for text in _REFUSALS)
            error = RefusedError if is_refused else StateError
            mend = "; `gcloud auth login` logs in" if is_refused else ""
            raise error(f"the state of {entry.name} is not known: {reason(done.stderr)}{mend}")
        try:
            return json.loads(done.stdout)
        except ValueError:
            raise StateError(f"the state of {entry.name} is not known: gcloud printed no JSON") from None

    def run(self, arguments: list[str], limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; one that takes too long ends with LOST."""
        self.announce(arguments)
        limit = limit_s or (None if "create" in arguments or "scp" in arguments else ANSWER_S)
        try:
            return subprocess.run(  # noqa: S603
                arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, LOST, "", f"no answer within {limit:g} s")

    def announce(self, arguments: list[str]) -> None:
        """Show a command."""
        self._show(shlex.join(["gcloud", *arguments[1:]]))


class Provider(Protocol):
    """What a provider of slices does with one of them. Groups of instances and the Cloud TPU API are two."""

    def create(self, entry: Slice) -> None:
        """Create a slice and wait until it is there; request one that goes into the queue, without waiting.

        Raises:
            QuotaError: Google refuses because of the quota.
            CapacityError: the zone has no free chips.
            TakenError: a slice of this name exists.
            StateError: Google gave no answer.
            TpuError: another failure.
        """

    def delete(self, entry: Slice) -> None:
        """Delete a slice; a slice that is already gone is no failure.

        Raises:
            TakenError: the slice of this name is not the one that was created here; nothing is deleted.
            RefusedError: this user may not ask.
            DeletionError: it could not be deleted.
        """

    def state(self, entry: Slice) -> str:
        """Return READY, GONE, one of WAITING or COMING, or another state in which the slice is of no use any more.

        Raises:
            TakenError: the slice of this name is not the one that was created here.
            StateError: Google does not say.
            RefusedError: this user may not ask.
        """

    def ssh(self, entry: Slice, command: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command on all virtual machines of a slice; end with LOST if one cannot be reached."""

    def start_ssh(self, entry: Slice, command: str, log: IO[str]) -> Running:
        """Start a shell command on all virtual machines; its output goes to `log`."""

    def upload(self, entry: Slice, file: Path, remote: str) -> subprocess.CompletedProcess[str]:
        """Copy a file to all virtual machines."""

    def download(self, entry: Slice, remote: str, folder: Path, worker: int) -> subprocess.CompletedProcess[str]:
        """Copy a directory of one virtual machine into `folder`."""


class Running(Protocol):
    """A command that runs on all virtual machines; the methods are those of `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None:
        """Exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def kill(self) -> None:
        """End it here; what it detached on the virtual machines goes on."""


class TpuApi(Gcloud):
    """Slices of the Cloud TPU API: `gcloud compute tpus tpu-vm` and `queued-resources`."""

    def create(self, entry: Slice) -> None:
        """Create a slice, or ask for one that goes into the queue; see `Provider.create`."""
        place = entry.place
        options = [f"--accelerator-type={entry.accelerator_type}", f"--labels={LABEL}={entry.owner}"]
        options += [f"--network={place.network}"] if place.network else []
        options += [f"--subnetwork={place.subnetwork}"] if place.subnetwork else []
        options += [f"--service-account={place.service_account}"] if place.service_account else []
        options += [f"--scopes={SCOPE}"] if place.service_account or place.bucket else []
        if place.data_disk:
            source = f"projects/{self.project(entry)}/zones/{entry.zone}/disks/{place.data_disk}"
            options.append(f"--data-disk=source={source},mode={disk_mode(entry.hosts)}")
        options += ["--spot"] if entry.spot else []
        if place.queue:
            options += [f"--runtime-version={entry.runtime}", f"--node-id={entry.name}"]
            options.append(f"--valid-until-duration={place.queue}")
            done = self.run(self._queue("create", entry, *options))
        else:
            done = self.run(self._command("create", entry, f"--version={entry.runtime}", *options))
        if done.returncode:
            raise create_error(entry, done.stderr)

    def delete(self, entry: Slice) -> None:
        """Delete a slice; see `Provider.delete`."""
        try:
            if self.state(entry) == GONE:
                return
        except StateError as error:
            raise DeletionError(f"{entry.name} could not be deleted and may still cost: {error}") from None
        if entry.place.queue:
            done = self.run(self._queue("delete", entry, "--force", "--quiet"))
        else:
            done = self.run(self._command("delete", entry, "--quiet"))
        if done.returncode and not is_gone(done.stderr):
            raise DeletionError(f"{entry.name} could not be deleted and may still cost: {reason(done.stderr)}")

    def state(self, entry: Slice) -> str:
        """Return the state of the slice as Google reports it, such as READY or PREEMPTED; NOT_FOUND if there is none.

        The state of a slice in the queue is that of its request, until that is granted.
        """
        if entry.place.queue:
            request = self.described(entry, self._queue("describe", entry, "--format=json"))
            if request is None:
                return GONE
            nodes = request.get("tpu", {}).get("nodeSpec") or [{}]
            _require_owner(entry, nodes[0].get("node", {}).get("labels", {}))
            state = str(request.get("state", {}).get("state", "")) or "CREATING"
            if state != "ACTIVE":
                return state
        node = self.described(entry, self._command("describe", entry, "--format=json"))
        if node is None:
            return "ACTIVE" if entry.place.queue else GONE
        _require_owner(entry, node.get("labels", {}))
        return str(node.get("state", "")) or "CREATING"

    def ssh(self, entry: Slice, command: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command on all virtual machines of a slice."""
        return _with_key(self.run(self._shell(entry, command, "all"), limit_s or ANSWER_S))

    def start_ssh(self, entry: Slice, command: str, log: IO[str]) -> subprocess.Popen[str]:
        """Start a shell command on all virtual machines; its output goes to `log`."""
        arguments = self._shell(entry, command, "all")
        self.announce(arguments)
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True)  # noqa: S603

    def upload(self, entry: Slice, file: Path, remote: str) -> subprocess.CompletedProcess[str]:
        """Copy a file to all virtual machines."""
        return _with_key(self.run(self._copy(entry, str(file), f"{entry.name}:{remote}", "--worker=all")))

    def download(self, entry: Slice, remote: str, folder: Path, worker: int) -> subprocess.CompletedProcess[str]:
        """Copy a directory of one virtual machine into `folder`."""
        return self.run(self._copy(entry, "--recurse", f"{entry.name}:{remote}", str(folder), f"--worker={worker}"))

    def _command(self, verb: str, entry: Slice, *options: str) -> list[str]:
        return [gcloud(), "compute", "tpus", "tpu-vm", verb, entry.name, *where(entry), *options]

    def _queue(self, verb: str, entry: Slice, *options: str) -> list[str]:
        return [gcloud(), "compute", "tpus", "queued-resources", verb, entry.name, *where(entry), *options]

    def _shell(self, entry: Slice, command: str, worker: str) -> list[str]:
        options = (f"--worker={worker}", f"--command={command}", f"--ssh-flag={ALIVE}", "--quiet")
        return self._command("ssh", entry, *options)

    def _copy(self, entry: Slice, *options: str) -> list[str]:
        command = [gcloud(), "compute", "tpus", "tpu-vm", "scp", *options]
        return [*command, *where(entry), f"--scp-flag={ALIVE}", "--quiet"]


def failed_on_host(returncode: int | None, said: str) -> bool:
    """Return whether a command failed on a host, not in the connection or in gcloud."""
    return returncode not in (None, 0, LOST) and "ERROR: (gcloud." not in said


def disk_mode(hosts: int) -> Literal["read-write", "read-only"]:
    """Return the mode in which a data disk is attached: several hosts can only read one."""
    return "read-write" if hosts == 1 else "read-only"


def gcloud() -> str:
    """Return the path of gcloud."""
    path = shutil.which("gcloud")
    if path is None:
        raise TpuError("gcloud is not on PATH; install the Google Cloud CLI and run `gcloud auth login`")
    return path


def where(entry: Slice) -> list[str]:
    """Return the flags for the zone of a slice and, behind it, its project."""
    return [f"--zone={entry.zone}", *([f"--project={entry.place.project}"] if entry.place.project else [])]


def _require_owner(entry: Slice, labels: dict[str, str]) -> None:
    owner = labels.get(LABEL)
    if owner != entry.owner:
        raise TakenError(
            f"the slice {entry.name} in {entry.zone} was not created here: its label {LABEL} is {owner or 'absent'}, "
            f"not {entry.owner}; it is left alone, choose another name"
        )


def create_error(entry: Slice, stderr: str) -> TpuError:
    """Return what Google said when a slice was not created, as the error of its kind."""
    said, lower = reason(stderr), stderr.lower()
    what = f"{entry.name} ({entry.accelerator_type} in {entry.zone}) was not created: {said}"
    if any(text in lower for text in _NO_CAPACITY):
        return CapacityError(f"{what}; --attempts or --queue wait for free chips")
    if "already_exists" in lower or "already exists" in lower:
        return TakenError(f"{what}; it was not created here and is left alone, choose another name")
    if "quota" in lower:
        project = entry.place.project or "$(gcloud config get-value project)"
        return QuotaError(
            f"{what}; `gcloud quotas info list --service=tpu.googleapis.com --project={project}` prints what is granted"
        )
    if "has not been used" in lower or "service_disabled" in lower:
        return TpuError(f"{what}; `gcloud services enable tpu.googleapis.com` enables it")
    if any(text in lower for text in _PASSING):
        return StateError(what)
    return TpuError(what)


def _with_key(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode and "not present in the SSH agent" in done.stderr:
        raise KeyAgentError(f"the key for the hosts is not in the SSH agent; run {ADD_KEY}")
    return done


def is_gone(stderr: str) -> bool:
    """Return whether a command failed because what it names does not exist."""
    return "NOT_FOUND" in stderr or "was not found" in stderr


def reason(text: str) -> str:
    """Return the line with the error; Google's errors are JSON over several lines, and the last says most."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" {}")]
    errors = [line for line in lines if line.startswith("ERROR: ") and not line.endswith("{")]
    return (errors or lines or ["gcloud said nothing"])[-1]
