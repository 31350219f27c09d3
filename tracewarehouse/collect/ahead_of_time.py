"""Compiles the programs of a run ahead of time, for TPUs that are not there.

Under torch_xla one process traces the model, and libtpu compiles the programs that torch_xla would give to the compiler
in another, whose interpreter has jax and libtpu. JAX compiles its own model for the chips directly.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tracewarehouse.collect.errors import CollectError, MissingDependencyError, require_torch_xla
from tracewarehouse.collect.harness.backend import BACKENDS
from tracewarehouse.collect.memory import chip_memory, require_host_memory
from tracewarehouse.collect.processes import start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest.capture.hardware import chip_named
from tracewarehouse.ingest.errors import shown

_COMPILER = Path(__file__).parent / "tpu" / "compile_ahead.py"
INSTALL = "pip install 'tracewarehouse[jax]', or name an interpreter that has jax and libtpu with --python"
_PROCESS = "tracewarehouse.collect.{}.ahead_of_time"
"""Module of a backend that traces or compiles a run in a process of its own."""
_ERROR_CLASS = re.compile(r"^(?:error: |[\w.]+Error: )")
"""The text before the reason in the last line of a process."""


@dataclass(frozen=True)
class CompiledStep:
    """A step of a run, compiled for a TPU."""

    phase: str
    """prefill or decode; of microbenchmarks the name of the program."""
    file: Path
    """The compiled program, with the run's manifest beside it."""
    chip: str
    """Kind of the chips, as in the table of hardware."""
    memory: Mapping[str, int]
    """Bytes of a device by the compiler's account: arguments, outputs, aliased (outputs in the memory of arguments),
    temporaries, program."""

    @property
    def bytes_per_device(self) -> int:
        """Bytes that a device holds while the step runs."""
        m = self.memory
        return m["arguments"] + m["outputs"] - m["aliased"] + m["temporaries"] + m["program"]

    def fits(self, size: int) -> bool:
        """Return whether a device has that much memory, in bytes."""
        return size <= chip_memory(self.chip)


def compile_ahead(spec: RunSpec, topology: str, folder: Path, python: str = sys.executable) -> list[CompiledStep]:
    """Compile prefill and decode of a run, or all microbenchmarks, for a topology.

    The run is on device cpu with one host; the topology is libtpu's name, such as v6e:2x4, v4:2x2x1 (a device a chip)
    or tpu7x:2x2x1 (two devices a chip). `python` is an interpreter that has jax and libtpu; for backend jax also
    tracewarehouse.

    Raises:
        MissingDependencyError: torch_xla, jax or libtpu is not installed; the message says what to install.
        ExperimentError: a published model does not fit the memory of this host, which holds zeros for its weights.
        CollectError: the topology and the mesh differ in the number of devices, the model cannot be traced, or the
            compiler refuses the topology or the program.
    """
    _require_topology(spec, topology)
    if spec.backend not in BACKENDS:
        raise CollectError(f"{spec.backend} cannot compile ahead of time; backends that can are {', '.join(BACKENDS)}")
    compile_with = _compile_jax if spec.backend == "jax" else _compile_torch_xla
    compile_with(spec.model_copy(update={"device": "tpu"}), topology, folder, python)
    steps = []
    small = sorted(file.name.removesuffix(".hlo.pb.gz") for file in folder.glob("micro.*.hlo.pb.gz"))
    for phase in [phase for phase, _ in spec.step_lengths] if spec.has_model else small:
        said = json.loads((folder / f"{phase}.json").read_text(encoding="utf-8"))
        steps.append(CompiledStep(phase, folder / f"{phase}.hlo.pb.gz", _chip(said["device_kind"]), said["memory"]))
    return steps


def _require_topology(spec: RunSpec, name: str) -> None:
    """Refuse a topology that does not fit the mesh, before a model is traced."""
    try:
        topology = Topology.parse(name)
    except ValueError as error:
        raise CollectError(str(error)) from None
    if topology.devices != spec.mesh.size:
        has = f"{topology.chips} chips"
        has += f", which are {topology.devices} devices" if topology.devices != topology.chips else ""
        raise CollectError(f"topology {name} has {has}, and {spec.mesh} is a mesh of {spec.mesh.size}")


def _compile_jax(spec: RunSpec, topology: str, folder: Path, python: str) -> None:
    _require_compiler(python, ("jax", "libtpu", "tracewarehouse"))
    folder.mkdir(parents=True)
    _run(
        [python, "-m", _PROCESS.format("jax"), spec.model_dump_json(), topology, str(folder)],
        f"compiling for {topology}",
    )


def _compile_torch_xla(spec: RunSpec, topology: str, folder: Path, python: str) -> None:
    require_torch_xla()
    _require_compiler(python, ("jax", "libtpu"))
    if spec.is_published:
        require_host_memory(spec)
    folder.mkdir(parents=True)
    trace = [sys.executable, "-m", _PROCESS.format("torch_xla"), spec.model_dump_json(), str(folder)]
    _run(trace, "tracing the model")
    programs = [str(folder / f"{phase}.txt") for phase, _ in spec.step_lengths]
    _run([python, str(_COMPILER), topology, str(folder), *programs], f"compiling for {topology}")


def _chip(kind: str) -> str:
    """Return the kind of a chip in the table of hardware, given libtpu's name of it."""
    entry = chip_named(kind)
    return str(entry["kind"]) if entry else kind


def _require_compiler(python: str, packages: tuple[str, ...]) -> None:
    check = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {packages!r})))"
    try:
        is_there = subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError as error:
        raise MissingDependencyError(f"{python}: cannot be started: {error.strerror}; {INSTALL}") from None
    if not is_there:
        needed = f"{', '.join(packages[:-1])} and {packages[-1]}"
        raise MissingDependencyError(f"compiling for TPUs needs {needed}, and {python} lacks some of them: {INSTALL}")


def _run(command: Sequence[str], what: str) -> None:
    # JAX reads the variable when it is imported; a TPU of this host, if there is one, is not used.
    platform = {"JAX_PLATFORMS": "cpu"}
    process = start_process(command, platform, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, told = process.communicate()
    if process.returncode:
        lines = [line for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
        said = shown(_ERROR_CLASS.sub("", lines[-1])) if lines else f"exit code {process.returncode}"
        mend = "; use more chips, a smaller batch or shorter prompts" if "Ran out of memory" in said else ""
        raise CollectError(f"{what} failed: {said}{mend}")
