"""The programs of a run, compiled ahead of time for TPUs that are not there.

Under torch_xla the model is traced on virtual CPU devices, as a capture of it is (`python -m
tracewarehouse.collect.ahead_of_time SPEC FOLDER`); XLA dumps what torch_xla gives it, and libtpu compiles that, in an
interpreter that has jax and libtpu. JAX compiles its own model for the chips directly.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracewarehouse.collect.backend import BACKENDS
from tracewarehouse.collect.chips import chip_memory, known_chips
from tracewarehouse.collect.errors import CollectError, MissingDependencyError, require_torch_xla
from tracewarehouse.collect.memory import require_host_memory
from tracewarehouse.collect.processes import end_with_parent, exit_code_of, start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.errors import shown

_COMPILER = Path(__file__).parent / "tpu" / "compile_ahead.py"
INSTALL = "pip install 'tracewarehouse[plan]', or name an interpreter that has jax and libtpu with --python"
_JAX = "tracewarehouse.collect.jax.ahead_of_time"
_DUMP = ("--xla_dump_hlo_as_text", "--xla_dump_hlo_module_re=^(prefill|decode)")


@dataclass(frozen=True)
class CompiledStep:
    """A step of a run, compiled for a TPU.

    Attributes:
        phase: prefill or decode.
        file: the compiled program, with the run's manifest beside it.
        chip: kind of the chips, as in the table of hardware.
        memory: what the compiler says that a chip holds, in bytes: arguments, outputs, aliased (outputs in the memory
            of arguments), temporaries, program.
    """

    phase: str
    file: Path
    chip: str
    memory: Mapping[str, int]

    @property
    def bytes_per_chip(self) -> int:
        """All that a chip holds while the step runs."""
        m = self.memory
        return m["arguments"] + m["outputs"] - m["aliased"] + m["temporaries"] + m["program"]

    @property
    def fits(self) -> bool:
        """Whether a chip has so much memory."""
        return self.bytes_per_chip <= chip_memory(self.chip)


def compile_ahead(spec: RunSpec, topology: str, folder: Path, python: str = sys.executable) -> list[CompiledStep]:
    """Compile prefill and decode of a run for a topology.

    Args:
        spec: The run, on device cpu with one host.
        topology: As libtpu names it, such as v6e:2x4.
        folder: Gets the programs and the run's manifest.
        python: An interpreter that has jax and libtpu; for backend jax also torch, transformers and tracewarehouse.

    Raises:
        MissingDependencyError: torch_xla, jax or libtpu is not installed; the message says what to install.
        ExperimentError: a published model does not fit the memory of this host, which holds zeros for its weights.
        CollectError: the model cannot be traced, or the compiler refuses the topology or the program.
    """
    if spec.backend not in BACKENDS:
        raise CollectError(f"{spec.backend} cannot compile ahead of time; backends that can are {', '.join(BACKENDS)}")
    compile_with = _compile_jax if spec.backend == "jax" else _compile_torch_xla
    compile_with(spec, topology, folder, python)
    found = []
    for phase in ("prefill", "decode")[: spec.output_length]:
        said = json.loads((folder / f"{phase}.json").read_text(encoding="utf-8"))
        found.append(CompiledStep(phase, folder / f"{phase}.hlo.pb.gz", _chip(said["device_kind"]), said["memory"]))
    return found


def _compile_jax(spec: RunSpec, topology: str, folder: Path, python: str) -> None:
    """Compile the programs as a TPU runs them, with its attention kernel."""
    _require_compiler(python, ("jax", "libtpu", "torch", "transformers", "tracewarehouse"))
    folder.mkdir(parents=True)
    on_tpu = spec.model_copy(update={"device": "tpu"})
    _run([python, "-m", _JAX, on_tpu.model_dump_json(), topology, str(folder)], f"compiling for {topology}")


def _compile_torch_xla(spec: RunSpec, topology: str, folder: Path, python: str) -> None:
    require_torch_xla()
    _require_compiler(python, ("jax", "libtpu"))
    if spec.is_published:
        require_host_memory(spec)
    dumps = folder / "dumps"
    dumps.mkdir(parents=True)
    trace = [sys.executable, "-m", "tracewarehouse.collect.ahead_of_time", spec.model_dump_json(), str(folder)]
    _run(trace, "tracing the model")
    programs = sorted(dumps.glob("*.before_optimizations.txt"))
    if not programs:
        raise CollectError(f"XLA dumped no program of {spec.name} into {dumps}")
    _run([python, str(_COMPILER), topology, str(folder), *map(str, programs)], f"compiling for {topology}")


def _chip(kind: str) -> str:
    """Kind of a chip in the table of hardware, from what libtpu calls it."""
    for name, entry in known_chips().items():
        if kind.lower() in (match.lower() for match in entry["match"]):
            return name
    return kind


def _require_compiler(python: str, packages: tuple[str, ...]) -> None:
    check = f"import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, {packages!r})))"
    try:
        is_there = subprocess.run([python, "-c", check], check=False, capture_output=True).returncode == 0  # noqa: S603
    except OSError as error:
        raise MissingDependencyError(f"{python}: cannot be started: {error.strerror}; {INSTALL}") from None
    if not is_there:
        needed = f"{', '.join(packages[:-1])} and {packages[-1]}"
        raise MissingDependencyError(f"compiling for TPUs needs {needed}, of which {python} lacks some: {INSTALL}")


def _run(command: Sequence[str], what: str) -> None:
    process = start_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, told = process.communicate()
    if process.returncode:
        lines = [line for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
        raise CollectError(f"{what} failed: {shown(lines[-1]) if lines else f'exit code {process.returncode}'}")


def trace(spec: RunSpec, folder: Path) -> None:
    """Trace the steps of a run, while XLA dumps them, and write the manifest of what they promise.

    Raises:
        CollectError: the model cannot be traced.
    """
    from tracewarehouse.collect.recording import manifest_of
    from tracewarehouse.collect.torch_xla_backend import trace_steps

    recording = trace_steps(spec, folder)
    manifest: Any = manifest_of(spec, spec.backend, recording)
    (folder / "manifest.json").write_text(manifest.model_dump_json(indent=2), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Entry of the process that traces; prints one line that starts with `error:` when it fails."""
    specification, folder = arguments
    end_with_parent()
    spec = RunSpec.model_validate_json(specification)
    from tracewarehouse.collect.torch_xla_backend import environment

    os.environ |= environment(spec)
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), f"--xla_dump_to={folder}/dumps", *_DUMP])
    return exit_code_of(lambda: trace(spec, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
