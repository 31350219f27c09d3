"""The `gcloud` commands for TPU virtual machines; each is shown before it runs."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tracewarehouse.collect.errors import QuotaError, TpuError
from tracewarehouse.collect.tpu.state import Slice

GONE = "NOT_FOUND"
READY = "READY"
LABEL = "tracewarehouse"
ANSWER_S = 600.0
"""Time after which a question to a slice that hangs, such as to a host that was preempted, counts as failed."""
TIMED_OUT = 255
"""Exit code of such a question; that of ssh when it cannot connect."""
_REFUSALS = ("PERMISSION_DENIED", "UNAUTHENTICATED", "gcloud auth login")


class CapacityError(TpuError):
    """The zone has no free chips at the moment; later it may."""


class TakenError(TpuError):
    """A slice of this name is there, and it is somebody else's."""


class StateError(TpuError):
    """Google does not say what became of a slice; it will when it can be reached again."""


class RefusedError(StateError):
    """Google does not let this user ask, and will not before something is done about it."""


class DeletionError(TpuError):
    """A slice is not deleted yet, and may cost."""


class Gcloud:
    """Runs `gcloud compute tpus tpu-vm`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show = show

    def create(self, entry: Slice) -> None:
        """Create a slice and wait until it is there.

        Raises:
            QuotaError: Google refuses because of the quota.
            CapacityError: no free chips in the zone.
            TakenError: a slice of this name is there.
            TpuError: another failure.
        """
        options = [f"--accelerator-type={entry.accelerator_type}", f"--version={entry.runtime}"]
        options.append(f"--labels={LABEL}={entry.owner}")
        done = self._run(self._command("create", entry, *options, *(["--spot"] if entry.spot else [])))
        if done.returncode:
            raise _create_error(entry, done.stderr)

    def delete(self, entry: Slice) -> None:
        """Delete a slice; that it is gone already is no failure.

        Raises:
            TakenError: the slice of this name is not the one that was created here; nothing is deleted.
            DeletionError: it could not be deleted.
        """
        try:
            if self.state(entry) == GONE:
                return
        except StateError as error:
            raise DeletionError(f"{entry.name} could not be deleted and may still cost: {error}") from None
        done = self._run(self._command("delete", entry, "--quiet"))
        if done.returncode and not _is_gone(done.stderr):
            raise DeletionError(f"{entry.name} could not be deleted and may still cost: {_last_line(done.stderr)}")

    def state(self, entry: Slice) -> str:
        """State of the slice as Google reports it, such as READY or PREEMPTED; NOT_FOUND when there is none.

        Raises:
            TakenError: the slice of this name is not the one that was created here.
            StateError: it does not say.
            RefusedError: nor will it, as this user may not ask.
        """
        done = self._run(self._command("describe", entry, f"--format=value(state,labels.{LABEL})"))
        if done.returncode == 0:
            state, _, owner = done.stdout.strip("\n").partition("\t")
            if owner.strip() != entry.owner:
                raise TakenError(
                    f"the slice {entry.name} in {entry.zone} was not created here: its label {LABEL} is "
                    f"{owner.strip() or 'absent'}, not {entry.owner}; it is left alone, choose another name"
                )
            return state.strip()
        if _is_gone(done.stderr):
            return GONE
        is_refused = any(text in done.stderr for text in _REFUSALS)
        error = RefusedError if is_refused else StateError
        raise error(f"the state of {entry.name} is not known: {_last_line(done.stderr)}")

    def ssh(self, entry: Slice, command: str, worker: str = "all") -> subprocess.CompletedProcess[str]:
        """Run a shell command on one or all virtual machines of a slice."""
        return self._run(self._command("ssh", entry, f"--worker={worker}", f"--command={command}"))

    def start_ssh(self, entry: Slice, command: str, log: IO[str]) -> subprocess.Popen[str]:
        """Start a shell command on all virtual machines; its output goes to `log`."""
        arguments = self._command("ssh", entry, "--worker=all", f"--command={command}")
        self._announce(arguments)
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True)  # noqa: S603

    def upload(self, entry: Slice, file: Path, remote: str) -> subprocess.CompletedProcess[str]:
        """Copy a file to all virtual machines."""
        return self._run(self._copy(entry, str(file), f"{entry.name}:{remote}", "--worker=all"))

    def download(self, entry: Slice, remote: str, folder: Path, worker: int) -> subprocess.CompletedProcess[str]:
        """Copy a directory of one virtual machine into `folder`."""
        return self._run(self._copy(entry, "--recurse", f"{entry.name}:{remote}", str(folder), f"--worker={worker}"))

    def _command(self, verb: str, entry: Slice, *options: str) -> list[str]:
        return [_gcloud(), "compute", "tpus", "tpu-vm", verb, entry.name, *_place(entry), *options]

    def _copy(self, entry: Slice, *options: str) -> list[str]:
        return [_gcloud(), "compute", "tpus", "tpu-vm", "scp", *options, *_place(entry)]

    def _run(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        self._announce(arguments)
        limit = ANSWER_S if arguments[4] in ("describe", "ssh") else None
        try:
            return subprocess.run(  # noqa: S603
                arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, TIMED_OUT, "", f"no answer within {limit:g} s")

    def _announce(self, arguments: list[str]) -> None:
        self._show(shlex.join(["gcloud", *arguments[1:]]))


def _gcloud() -> str:
    path = shutil.which("gcloud")
    if path is None:
        raise TpuError("gcloud is not on PATH; install the Google Cloud CLI and run `gcloud auth login`")
    return path


def _place(entry: Slice) -> list[str]:
    return [f"--zone={entry.zone}", *([f"--project={entry.project}"] if entry.project else [])]


def _create_error(entry: Slice, stderr: str) -> TpuError:
    said, lower = _last_line(stderr), stderr.lower()
    what = f"{entry.name} ({entry.accelerator_type} in {entry.zone}) was not created: {said}"
    if "no more capacity" in lower or "stockout" in lower or "not enough resources" in lower:
        return CapacityError(what)
    if "already_exists" in lower or "already exists" in lower:
        return TakenError(f"{what}; it was not created here and is left alone, choose another name")
    return QuotaError(what) if "quota" in lower else TpuError(what)


def _is_gone(stderr: str) -> bool:
    return "NOT_FOUND" in stderr or "was not found" in stderr


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "gcloud said nothing"
