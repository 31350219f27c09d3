"""Slices that Compute Engine provides, as TPU7x comes: managed groups of instances that are created together.

A group waits until there are chips for all of its virtual machines (bulk mode). A workload policy gives several of them
the links of one slice. Google's pages "Create a MIG with multi-host TPU slice" and "Create Cloud TPU VMs with MIGs" say
so. Template and policy carry the label of their slice in their names, which shows whose group it is.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from tracewarehouse.collect.errors import TpuError
from tracewarehouse.collect.tpu.gcloud import (
    ALIVE,
    ANSWER_S,
    GONE,
    LABEL,
    LOST,
    READY,
    SCOPE,
    CapacityError,
    DeletionError,
    Gcloud,
    StateError,
    TakenError,
    create_error,
    disk_mode,
    gcloud,
    is_gone,
    reason,
    where,
)
from tracewarehouse.collect.tpu.state import Slice

IMAGES = "ubuntu-os-accelerator-images"
"""Project of the images with TPU drivers."""
PATIENCE_S = 900
"""Time after which a group without chips counts as one that gets none."""
BOOT_DISK_GB = 200
_ENDED = ("STOPPING", "STOPPED", "SUSPENDING", "SUSPENDED", "TERMINATED")
"""States of an instance that Google took back."""
_GROUP = ("compute", "instance-groups", "managed")


class InstanceGroups(Gcloud):
    """Slices as groups of instances; see `tracewarehouse.collect.tpu.gcloud.Provider`."""

    def create(self, entry: Slice) -> None:
        """Create a slice and wait until it is there; leave nothing if that fails for good."""
        if entry.place.queue:
            raise TpuError(f"{entry.name}: --queue is for the Cloud TPU API; a group of instances waits by --attempts")
        project = self.project(entry)
        region = f"projects/{project}/regions/{_region(entry)}"
        commands = [self._policy(entry)] if entry.hosts > 1 else []
        commands += [self._template(entry, project), self._group(entry, region)]
        for command in commands:
            done = self.run(command)
            if done.returncode and not ("already exists" in done.stderr and command[-1].endswith(_own(entry))):
                error = create_error(entry, done.stderr)
                if not isinstance(error, StateError):  # without an answer it may be there
                    self._remove_leftovers(entry)
                raise error
        waiting = ("wait-until", entry.name, "--stable", f"--timeout={PATIENCE_S}", *where(entry))
        waited = self.run([gcloud(), *_GROUP, *waiting], PATIENCE_S + ANSWER_S)
        state = self.state(entry)
        if state == READY:
            return
        what = f"{entry.name} ({entry.accelerator_type} in {entry.zone}) is {state}"
        if waited.returncode and "timeout" not in waited.stderr.lower():
            raise StateError(f"{what}: {reason(waited.stderr)}")
        self.delete(entry)
        why = f"after {PATIENCE_S} s: no free chips" if waited.returncode else "as soon as it was there"
        raise CapacityError(f"{what} {why}; --attempts waits for some")

    def delete(self, entry: Slice) -> None:
        """Delete the group with its instances, then its template and policy."""
        try:
            state = self.state(entry)
        except StateError as error:
            raise DeletionError(f"{entry.name} could not be deleted and may still cost: {error}") from None
        if state != GONE:
            done = self.run([gcloud(), *_GROUP, "delete", entry.name, *where(entry), "--quiet"])
            if done.returncode and not is_gone(done.stderr):
                raise DeletionError(f"{entry.name} could not be deleted and may still cost: {reason(done.stderr)}")
        self._remove_leftovers(entry)

    def state(self, entry: Slice) -> str:
        """Return READY if all instances run, CREATING while some are awaited, GONE, or PREEMPTED if some ended."""
        found = self.described(entry, [gcloud(), *_GROUP, "describe", entry.name, *where(entry), "--format=json"])
        if found is None:
            return GONE
        if not str(found.get("instanceTemplate", "")).endswith(f"/{_own(entry)}"):
            raise TakenError(
                f"the group {entry.name} in {entry.zone} was not created here: its template is not {_own(entry)}; it "
                "is left alone, choose another name"
            )
        listed = [gcloud(), *_GROUP, "list-instances", entry.name, *where(entry), "--format=json"]
        instances = self.described(entry, listed) or []
        running = [i for i in instances if i.get("instanceStatus") == "RUNNING" and i.get("currentAction") == "NONE"]
        if len(running) == entry.hosts:
            entry.instances = sorted(str(i["instance"]).rpartition("/")[2] for i in running)
            return READY
        has_ended = any(i.get("instanceStatus") in _ENDED for i in instances)
        # A preempted instance is deleted, and the group does not replace it.
        is_short = found.get("status", {}).get("isStable") and len(instances) < entry.hosts
        return "PREEMPTED" if has_ended or is_short else "CREATING"

    def ssh(self, entry: Slice, command: str, limit_s: float | None = None) -> subprocess.CompletedProcess[str]:
        """Run a shell command on all virtual machines at the same time."""
        return self._on_all(entry, lambda name: self.run(self._shell(entry, name, command), limit_s or ANSWER_S))

    def start_ssh(self, entry: Slice, command: str, log: IO[str]) -> _Together:
        """Start a shell command on all virtual machines; its output goes to `log`."""
        started = []
        for name in entry.instances:
            arguments = self._shell(entry, name, command)
            self.announce(arguments)
            started.append(
                subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, text=True)  # noqa: S603
            )
        return _Together(started)

    def upload(self, entry: Slice, file: Path, remote: str) -> subprocess.CompletedProcess[str]:
        """Copy a file to all virtual machines."""
        return self._on_all(entry, lambda name: self.run(self._copy(entry, str(file), f"{name}:{remote}")))

    def download(self, entry: Slice, remote: str, folder: Path, worker: int) -> subprocess.CompletedProcess[str]:
        """Copy a directory of one virtual machine into `folder`."""
        name = entry.instances[worker]
        return self.run(self._copy(entry, "--recurse", f"{name}:{remote}", str(folder)))

    def _policy(self, entry: Slice) -> list[str]:
        command = [gcloud(), "compute", "resource-policies", "create", "workload-policy", "--type=HIGH_THROUGHPUT"]
        command += [f"--accelerator-topology={entry.topology}", "--accelerator-topology-mode=AUTO_CONNECT"]
        return [*command, f"--region={_region(entry)}", *where(entry)[1:], _own(entry)]

    def _template(self, entry: Slice, project: str) -> list[str]:
        place = entry.place
        options = [f"--instance-template-region={_region(entry)}", f"--machine-type={entry.machine_type}"]
        options += [f"--image-project={IMAGES}", f"--image-family={entry.runtime}"]
        options += [f"--boot-disk-size={BOOT_DISK_GB}GB", "--boot-disk-type=hyperdisk-balanced"]
        options += ["--maintenance-policy=TERMINATE", f"--labels={LABEL}={entry.owner}"]
        options += ["--provisioning-model=SPOT", "--instance-termination-action=DELETE"] if entry.spot else []
        options += [f"--network={place.network}"] if place.network else []
        options += [f"--subnet={place.subnetwork}", f"--region={_region(entry)}"] if place.subnetwork else []
        options += [f"--service-account={place.service_account}"] if place.service_account else []
        options += [f"--scopes={SCOPE}"] if place.service_account or place.bucket else []
        if place.data_disk:
            mode = "rw" if disk_mode(entry.hosts) == "read-write" else "ro"
            source = f"projects/{project}/zones/{entry.zone}/disks/{place.data_disk}"
            options.append(f"--disk=name={source},mode={mode},auto-delete=no")
        return [gcloud(), "compute", "instance-templates", "create", *options, *where(entry)[1:], _own(entry)]

    def _group(self, entry: Slice, region: str) -> list[str]:
        options = [f"--size={entry.hosts}", f"--template={region}/instanceTemplates/{_own(entry)}"]
        options += ["--target-size-policy-mode=bulk", "--default-action-on-vm-failure=do-nothing"]
        options += [f"--workload-policy={region}/resourcePolicies/{_own(entry)}"] if entry.hosts > 1 else []
        return [gcloud(), *_GROUP, "create", *options, *where(entry), entry.name]

    def _remove_leftovers(self, entry: Slice) -> None:
        """Delete template and policy, which cost nothing; what is not there is no failure."""
        region, project = f"--region={_region(entry)}", where(entry)[1:]
        self.run([gcloud(), "compute", "instance-templates", "delete", _own(entry), region, *project, "--quiet"])
        if entry.hosts > 1:
            self.run([gcloud(), "compute", "resource-policies", "delete", _own(entry), region, *project, "--quiet"])

    def _shell(self, entry: Slice, name: str, command: str) -> list[str]:
        options = (f"--command={command}", f"--ssh-flag={ALIVE}", "--quiet")
        return [gcloud(), "compute", "ssh", name, *where(entry), *options]

    def _copy(self, entry: Slice, *options: str) -> list[str]:
        return [gcloud(), "compute", "scp", *options, *where(entry), f"--scp-flag={ALIVE}", "--quiet"]

    def _on_all(
        self, entry: Slice, act: Callable[[str], subprocess.CompletedProcess[str]]
    ) -> subprocess.CompletedProcess[str]:
        if not entry.instances:
            return subprocess.CompletedProcess([], LOST, "", f"the instances of {entry.name} are not known")

        def act_twice(name: str) -> subprocess.CompletedProcess[str]:
            """Connect again if the connection was lost: of many at the same time, one is, now and then."""
            done = act(name)
            return act(name) if done.returncode == LOST else done

        with ThreadPoolExecutor(len(entry.instances)) as threads:
            done = list(threads.map(act_twice, entry.instances))
        outputs = ("".join(d.stdout for d in done), "".join(d.stderr for d in done))
        return subprocess.CompletedProcess([], joint_code([d.returncode for d in done]) or 0, *outputs)


class _Together:
    """The same command on several virtual machines; see `tracewarehouse.collect.tpu.gcloud.Running`."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self._processes = processes

    @property
    def returncode(self) -> int | None:
        """Exit code; None while one runs."""
        return joint_code([process.returncode for process in self._processes])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of all."""
        end = None if timeout is None else time.monotonic() + timeout
        for process in self._processes:
            process.wait(None if end is None else max(0.0, end - time.monotonic()))
        return self.returncode or 0

    def poll(self) -> int | None:
        """Return the exit code; None while one runs."""
        return joint_code([process.poll() for process in self._processes])

    def kill(self) -> None:
        """End all here."""
        for process in self._processes:
            with suppress(OSError):
                process.kill()


def joint_code(codes: Sequence[int | None]) -> int | None:
    """Return one exit code for several: None while one runs, else first that of a failure on a host, then LOST."""
    known = [code for code in codes if code is not None]
    if len(known) < len(codes):
        return None
    return next((c for c in known if c not in (0, LOST)), next((c for c in known if c), 0))


def _own(entry: Slice) -> str:
    """Return the name of a slice's template and policy, which no other slice has."""
    return f"{entry.name[:40]}-{entry.owner}"


def _region(entry: Slice) -> str:
    return entry.zone.rpartition("-")[0]
