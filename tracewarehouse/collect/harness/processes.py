"""Records one run in several processes, each with a profile of its own, and joins their profiles to one capture.

A backend that does so has `record_part`, which every process calls with its number and the folder that all share.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.backend import Recording, Stack
from tracewarehouse.collect.harness.recording import record_generation
from tracewarehouse.collect.processes import start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture_names import XPLANE_SUFFIX, host_name, xplane_files

_RECORDING = "recording.json"


def record_in_processes(spec: RunSpec, count: int, capture: Path) -> Recording:
    """Run one configuration in `count` processes; their profiles become hosts of one run, in their order."""
    with tempfile.TemporaryDirectory(prefix="processes-", dir=capture) as folder:
        command = [sys.executable, "-m", "tracewarehouse.collect.run_process", spec.model_dump_json(), str(capture)]
        run_together([[*command, str(number), folder] for number in range(count)], Path(folder))
        return _joined(count, Path(folder), capture)


def record_process(spec: RunSpec, number: int, shared: Path, stack: Stack) -> None:
    """Run one process of a run; the first writes what is known of the run into the folder `shared`."""
    logdir = _profile_folder(shared, number)
    logdir.mkdir()
    recording = record_generation(spec, logdir, lambda _: stack)
    stack.wait_for_all()  # all profiles are written
    if number == 0:
        (shared / _RECORDING).write_bytes(TypeAdapter(Recording).dump_json(recording))


def run_together(commands: Sequence[Sequence[str]], folder: Path) -> None:
    """Run processes that need each other, and end all when one fails."""
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
            said = [line.removeprefix("error: ") for line in told_lines if line.startswith("error: ")]
            last = [f"exit code {process.returncode}", *told_lines[-1:], *said][-1]
            raise CheckError(f"process {rank} of {len(commands)} failed: {last}")


def _profile_folder(shared: Path, number: int) -> Path:
    return shared / f"rank{number}"


def _joined(count: int, shared: Path, capture: Path) -> Recording:
    """Move the profiles of all processes into one folder of the capture, and return the recording of the first."""
    recording = TypeAdapter(Recording).validate_json((shared / _RECORDING).read_bytes())
    session = capture / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    session.mkdir(parents=True)
    hosts = []
    for number in range(count):
        [file] = xplane_files(_profile_folder(shared, number))
        name = host_name(file)
        hosts.append(name if name.endswith(f"_{number}") else f"{name}_{number}")
        shutil.move(file, session / f"{hosts[-1]}{XPLANE_SUFFIX}")
    return replace(recording, hosts=hosts)
