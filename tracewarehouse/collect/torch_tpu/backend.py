"""Records with torch_tpu: a process for each device of one host, each with its own profile."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from tracewarehouse.collect.errors import CheckError, CollectError, require_packages
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.processes import start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture_names import XPLANE_SUFFIX, host_name, xplane_files

if TYPE_CHECKING:
    from tracewarehouse.collect.torch_tpu.stack import TorchTpuStack

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
"""Google's number among the vendors of PCI devices, by which torch_tpu too finds TPUs."""
_RECORDING = "recording.json"


class TorchTpuBackend:
    """torch_tpu, with dense models written out for one device."""

    name = "torch_tpu"

    def require(self) -> None:
        """Make sure that torch_tpu is installed and this host has a TPU: torch_tpu has no other device."""
        require_packages(("torch", "torch_tpu", "libtpu"), "recording with torch_tpu", "torch_tpu")
        if not has_tpu():
            raise CollectError(
                "torch_tpu needs a TPU, and this host has none; record there, or use --backend jax, which has virtual "
                "devices too"
            )

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables that the stack reads once; every process adds its own rank."""
        return {"WORLD_SIZE": str(spec.mesh.size), "LOCAL_WORLD_SIZE": str(spec.mesh.size)}

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration in a process for each device; the profiles become hosts of one run, in their order."""
        self.prepare(spec)
        with tempfile.TemporaryDirectory(prefix="processes-", dir=capture) as folder:
            command = [sys.executable, "-m", "tracewarehouse.collect.run_process", spec.model_dump_json(), str(capture)]
            run_together([[*command, str(rank), folder] for rank in range(spec.mesh.size)], Path(folder))
            return gathered(spec, Path(folder), capture)

    def record_part(self, spec: RunSpec, number: int, shared: Path) -> None:
        """Run one process of a run; the first writes what is known of the run into the folder `shared`."""
        from tracewarehouse.collect.harness.recording import record_generation

        stack = self.stack(spec, number, shared / "rendezvous")
        logdir = profile_folder(shared, number)
        logdir.mkdir()
        recording = record_generation(spec, logdir, lambda _: stack, total=stack.total, wait=stack.wait_for_all)
        stack.wait_for_all()  # all profiles are written
        if number == 0:
            (shared / _RECORDING).write_bytes(TypeAdapter(Recording).dump_json(recording))

    def prepare(self, spec: RunSpec) -> None:
        """Put into the environment what all processes must agree on, as torch_tpu tells it."""
        from torch.tpu.distributed import set_tpu_launch_env  # type: ignore[import-not-found, unused-ignore]

        set_tpu_launch_env(nproc_per_node=spec.mesh.size)

    def stack(self, spec: RunSpec, number: int, rendezvous: Path) -> TorchTpuStack:
        """Return the device of a process, which finds the others by a file."""
        from tracewarehouse.collect.torch_tpu.stack import TorchTpuStack

        return TorchTpuStack(spec, number, rendezvous)


def has_tpu() -> bool:
    """Return whether a TPU is attached to this host."""
    try:
        return any(file.read_text(encoding="ascii").strip() == _GOOGLE for file in _PCI_DEVICES.glob("*/vendor"))
    except OSError:
        return False


def profile_folder(shared: Path, rank: int) -> Path:
    """Return the log directory of a process."""
    return shared / f"rank{rank}"


def run_together(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Run processes that need each other, and end all when one fails.

    Raises:
        CheckError: a process failed; its last line.
    """
    logs = [folder / f"rank{rank}.log" for rank in range(len(commands))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank, (command, log) in enumerate(zip(commands, logs, strict=True)):
            with log.open("wb") as told:
                ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(start_process(command, ranks, stdout=told, stderr=subprocess.STDOUT))
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            time.sleep(0.1)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
                process.returncode = 0  # it was ended here
    for rank, (process, log) in enumerate(zip(processes, logs, strict=True)):
        if process.returncode:
            told_lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            print("\n".join(told_lines), file=sys.stderr)
            last = told_lines[-1].removeprefix("error: ") if told_lines else f"exit code {process.returncode}"
            raise CheckError(f"process {rank} of {len(commands)} failed: {last}")


def gathered(spec: RunSpec, shared: Path, capture: Path) -> Recording:
    """Move the profiles of all processes into one folder of the capture, and return the recording of the first."""
    recording = TypeAdapter(Recording).validate_json((shared / _RECORDING).read_bytes())
    session = capture / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    session.mkdir(parents=True)
    hosts = []
    for rank in range(spec.mesh.size):
        [file] = xplane_files(profile_folder(shared, rank))
        name = host_name(file)
        hosts.append(name if name.endswith(f"_{rank}") else f"{name}_{rank}")
        shutil.move(file, session / f"{hosts[-1]}{XPLANE_SUFFIX}")
    return replace(recording, hosts=hosts)
