"""Compiles the programs of a run ahead of time, for TPUs that are not there.

Under torch_xla one process traces the model, and libtpu compiles the programs that torch_xla would give to the compiler
in another, whose interpreter has jax and libtpu. JAX compiles its own model for the chips directly.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from tracewarehouse.collect.capture import MANIFEST
from tracewarehouse.collect.errors import CollectError, MissingDependencyError, require_torch_xla
from tracewarehouse.collect.memory import require_host_memory
from tracewarehouse.collect.models.pretrained import pretrained_model
from tracewarehouse.collect.processes import start_process
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.ingest import capture
from tracewarehouse.ingest.capture.hardware import chip_named
from tracewarehouse.ingest.errors import shown

_COMPILER = Path(__file__).parent / "tpu" / "compile_ahead.py"
COMPILING = ("jax", "torch_xla")
"""Backends whose programs can be compiled without a TPU."""
INSTALL = "pip install 'tracewarehouse[jax]', or name an interpreter that has jax and libtpu with --python"
_PROCESS = "tracewarehouse.collect.{}.ahead_of_time"
"""Module of a backend that traces or compiles a run in a process of its own."""
_ON_CPU = {"JAX_PLATFORMS": "cpu"}
"""JAX reads the variable when it is imported; a TPU of this host, if there is one, is not used."""
_ERROR_CLASS = re.compile(r"^(?:error: |[\w.]+Error: )")
"""The text before the reason in the last line of a process."""
PROGRAM, REFUSED, _TRACED = "program", "refused.txt", "traced"
"""Names of a kept program, of the reason why there is none, and of the folder that has digests by run."""
PHASES = ("prefill", "decode")
"""The steps of a run that generates tokens."""


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
    compiled_layers: int | None = None
    """The first so many layers are compiled; by default as many as the configuration says."""


@dataclass(frozen=True)
class Configuration:
    """A run on a slice that need not exist."""

    spec: RunSpec
    """On device cpu with one host."""
    topology: str
    """The slice as libtpu names it: v6e:2x4, v4:2x2x1 (a device a chip) or tpu7x:2x2x1 (two devices a chip)."""
    compiled_layers: int | None = None
    """The first so many layers are compiled; all by default. The manifest is that of all."""
    phases: tuple[str, ...] = PHASES
    """The steps that are compiled, of those that the run has. A decode step takes a fifth of the time of a prefill."""

    @property
    def part(self) -> RunSpec:
        """The run with the layers that are compiled."""
        return self.spec.model_copy(update={"layers": self.compiled_layers or self.spec.layers})


@dataclass(frozen=True)
class CompiledRun:
    """The compiled steps of a configuration, or the reason why there are none."""

    configuration: Configuration
    steps: tuple[CompiledStep, ...] = ()
    refused: str | None = None


def compile_all(
    configurations: Sequence[Configuration], folder: Path, python: str = sys.executable, kept: Path | None = None
) -> Iterator[CompiledRun]:
    """Compile prefill and decode of runs, or all microbenchmarks, in few processes, and give them in order.

    `python` is an interpreter that has jax and libtpu; for backend jax also tracewarehouse.
    `folder` gets the programs. `kept` keeps those of backend jax by the digest of what the compiler is given, so that
    nothing is compiled twice, and the digests by the run and our own source, so that no model is traced twice either.

    A run is refused if the topology and the mesh differ in the number of devices, the model cannot be traced, or the
    compiler refuses the topology or the program; under torch_xla also if a published model does not fit the memory of
    this host, which holds zeros for its weights.
    """
    waiting: deque[_Task] = deque()
    for number, configuration in enumerate(configurations):
        waiting.append(_Task(configuration, folder / str(number)))
    versions = None
    while waiting:
        if waiting[0].is_for_jax:
            versions = versions or _require_compiler(python, ("jax", "jaxlib", "libtpu", "tracewarehouse"))
            yield from _compile_jax(waiting, python, kept, versions)
            continue
        task = waiting.popleft()
        refused = task.misfit or _refusal(task, python)
        yield CompiledRun(task.configuration, refused=refused) if refused else task.compiled()


@dataclass(frozen=True)
class _Task:
    """A configuration that is to be compiled into a folder."""

    configuration: Configuration
    folder: Path

    @property
    def spec(self) -> RunSpec:
        """What is compiled, on device tpu."""
        return self.configuration.part.model_copy(update={"device": "tpu"})

    @property
    def topology(self) -> str:
        return self.configuration.topology

    @property
    def phases(self) -> list[str]:
        """What is compiled of the steps of the run, in their order."""
        return [phase for phase, _ in self.spec.step_lengths if phase in self.configuration.phases]

    def traced(self, kept: Path, versions: str) -> Path:
        """Return the file that names the kept programs of the run; without it the model is traced."""
        spec = self.spec
        config = pretrained_model(spec.model).config if spec.is_published else None
        flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
        whole = self.configuration.spec.model_dump(mode="json")
        given = [spec.model_dump(mode="json"), whole, self.topology, self.phases, config, *flags, versions, _source()]
        return kept / _TRACED / f"{hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()}.json"

    @property
    def is_for_jax(self) -> bool:
        return self.spec.backend == "jax" and self.misfit is None

    @cached_property
    def misfit(self) -> str | None:
        """Why the run cannot be compiled, as far as can be told before a model is traced."""
        backend = self.spec.backend
        if backend not in COMPILING:
            return f"{backend} cannot compile ahead of time; backends that can are {', '.join(COMPILING)}"
        try:
            topology = Topology.parse(self.topology)
        except ValueError as error:
            return str(error)
        if topology.devices == self.spec.mesh.size:
            return None
        has = f"{topology.chips} chips"
        has += f", which are {topology.devices} devices" if topology.devices != topology.chips else ""
        return f"topology {self.topology} has {has}, and {self.spec.mesh} is a mesh of {self.spec.mesh.size}"

    def compiled(self) -> CompiledRun:
        steps = []
        small = sorted(file.name.removesuffix(".hlo.pb.gz") for file in self.folder.glob("micro.*.hlo.pb.gz"))
        for phase in self.phases if self.spec.has_model else small:
            said = json.loads((self.folder / f"{phase}.json").read_text(encoding="utf-8"))
            program = self.folder / f"{phase}.hlo.pb.gz"
            known = chip_named(said["device_kind"])  # libtpu's name of it
            chip = str(known["kind"]) if known else said["device_kind"]
            steps.append(CompiledStep(phase, program, chip, said["memory"]))
        return CompiledRun(self.configuration, tuple(steps))


def _compile_jax(waiting: deque[_Task], python: str, kept: Path | None, versions: str) -> Iterator[CompiledRun]:
    """Compile the next runs of the backend in one process, until it ends; it may leave some to another one.

    Those whose programs are kept come first, and need no process. A run with which it ends unexpectedly is refused.
    """
    while kept is not None and waiting and waiting[0].is_for_jax and waiting[0].traced(kept, versions).exists():
        yield _kept_run(waiting.popleft(), kept, versions)
    tasks = list(
        itertools.takewhile(
            lambda task: task.is_for_jax and not (kept and task.traced(kept, versions).exists()), waiting
        )
    )
    if not tasks:
        return
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        for task in tasks:
            whole = task.configuration.spec.model_copy(update={"device": "tpu"})
            values = {
                "spec": task.spec.model_dump(mode="json"),
                "whole": whole.model_dump(mode="json"),
                "topology": task.topology,
                "phases": task.phases,
                "folder": str(task.folder),
                "traced": str(task.traced(kept.absolute(), versions)) if kept else None,
            }
            given.write(json.dumps(values).encode() + b"\n")
        given.seek(0)
        command = [python, "-m", _PROCESS.format("jax"), str(kept.absolute()) if kept else ""]
        with start_process(command, _ON_CPU, stdin=given, stdout=subprocess.PIPE, stderr=told) as process:
            try:
                for task, line in zip(tasks, process.stdout or (), strict=False):
                    refused = json.loads(line)
                    waiting.popleft()
                    if refused is None:
                        yield task.compiled()
                    else:
                        yield CompiledRun(task.configuration, refused=_failure(task.topology, refused))
            except GeneratorExit:  # nobody wants the rest
                process.kill()
                raise
        if process.returncode == 0 and (not waiting or waiting[0] is not tasks[0]):
            return
        told.seek(0)
        task = waiting.popleft()
        yield CompiledRun(task.configuration, refused=_failure(task.topology, _last_line(process, told.read())))


def take_kept(kept: Path, folder: Path, name: str) -> None:
    """Copy a kept program, with what is said of it, to files of a name in a folder.

    Raises:
        CollectError: the compiler refused it; its reason.
    """
    if (kept / REFUSED).exists():
        raise CollectError((kept / REFUSED).read_text(encoding="utf-8"))
    for file in kept.iterdir():
        shutil.copyfile(file, folder / file.name.replace(PROGRAM, name, 1))


def _kept_run(task: _Task, kept: Path, versions: str) -> CompiledRun:
    """Return a run that was traced before, from its kept programs."""
    said = json.loads(task.traced(kept, versions).read_text(encoding="utf-8"))
    task.folder.mkdir(parents=True)
    try:
        for name, digest in said["programs"].items():
            take_kept(kept / digest, task.folder, name)
    except CollectError as refused:
        return CompiledRun(task.configuration, refused=_failure(task.topology, str(refused)))
    (task.folder / MANIFEST).write_text(said["manifest"], encoding="utf-8")
    return task.compiled()


@cache
def _source() -> str:
    """Return the digest of all of our own source that decides what a run's programs and manifest are."""
    digest = hashlib.sha256()
    for folder in (Path(__file__).parent, Path(capture.__file__).parent):
        for file in sorted([*folder.rglob("*.py"), *folder.rglob("*.yaml")]):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _refusal(task: _Task, python: str) -> str | None:
    """Compile a run of torch_xla; return the reason if that fails."""
    try:
        _compile_torch_xla(task, python)
    except MissingDependencyError:
        raise
    except CollectError as error:
        return str(error)
    return None


def _compile_torch_xla(task: _Task, python: str) -> None:
    require_torch_xla()
    _require_compiler(python, ("jax", "libtpu"))
    spec, folder = task.spec, task.folder
    if spec.is_published:
        require_host_memory(spec)
    folder.mkdir(parents=True)
    trace = [sys.executable, "-m", _PROCESS.format("torch_xla"), spec.model_dump_json(), str(folder)]
    _run(trace, lambda said: f"tracing the model failed: {shown(said)}")
    programs = [str(folder / f"{phase}.txt") for phase, _ in spec.step_lengths]
    _run([python, str(_COMPILER), task.topology, str(folder), *programs], lambda said: _failure(task.topology, said))


def _require_compiler(python: str, packages: tuple[str, ...]) -> str:
    """Return the versions of the packages, as text."""
    check = f"import importlib.metadata as m; print([m.version(name) for name in {packages!r}])"
    try:
        found = subprocess.run([python, "-c", check], check=False, capture_output=True)  # noqa: S603
    except OSError as error:
        raise MissingDependencyError(f"{python}: cannot be started: {error.strerror}; {INSTALL}") from None
    if found.returncode:
        needed = f"{', '.join(packages[:-1])} and {packages[-1]}"
        raise MissingDependencyError(f"compiling for TPUs needs {needed}, and {python} lacks some of them: {INSTALL}")
    return found.stdout.decode("utf-8", "replace")


def _run(command: Sequence[str], failure: Callable[[str], str]) -> None:
    process = start_process(command, _ON_CPU, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, told = process.communicate()
    if process.returncode:
        raise CollectError(failure(_last_line(process, told)))


def _last_line(process: subprocess.Popen[bytes], told: bytes) -> str:
    """Return the reason why a process failed: that somebody ended it, or what it gives in its last line."""
    if -process.returncode in (signal.SIGTERM, signal.SIGKILL):
        return f"its process was ended by {signal.Signals(-process.returncode).name}; run the same again"
    lines = [line for line in told.decode("utf-8", "replace").splitlines() if line.strip()]
    return _ERROR_CLASS.sub("", lines[-1]) if lines else f"exit code {process.returncode}"


def _failure(topology: str, said: str) -> str:
    mend = "; use more chips, a smaller batch or shorter prompts" if "Ran out of memory" in said else ""
    return f"compiling for {topology} failed: {shown(said)}{mend}"


PROGRAMS = "TRACEWAREHOUSE_PROGRAMS"
"""Environment variable that names the folder of kept programs."""


def kept_programs() -> Path:
    """Return the folder of programs that were compiled before; it may be removed at any time."""
    if given := os.environ.get(PROGRAMS):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tracewarehouse" / "programs"
