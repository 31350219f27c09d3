"""Compiles the steps of runs for TPU slices that need not exist: `... KEPT`, with jax and libtpu.

One process compiles many runs. Each line of its standard input is JSON with a run, the run of the whole model, of which
it may be the first layers, a topology, phases and a folder. For each it prints a line: null, or the compiler's reason
why it refuses the run. KEPT is a folder that keeps the programs, by the digest of what the compiler is given; "" keeps
none. No weight is read or made: the programs need only shapes.

Nine tenths of the time make code that nobody runs. The compiler cannot be left before: only as it makes code does it
write the cycles of most fusions and the algorithms of collectives into the program (libtpu 0.0.42.1).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tracewarehouse.collect.ahead_of_time import PROGRAM, REFUSED, take_kept
from tracewarehouse.collect.capture import MANIFEST, staged_capture
from tracewarehouse.collect.errors import CheckError, CollectError
from tracewarehouse.collect.harness.recording import write_promises
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.collect.jax.mesh import JaxMesh
from tracewarehouse.collect.jax.microbenchmarks import microbenchmarks
from tracewarehouse.collect.jax.model import JaxModel
from tracewarehouse.collect.parallel.partition import Partition
from tracewarehouse.collect.processes import end_with_parent, exit_code
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import Topology, chips, without_folders, write_program
from tracewarehouse.ingest.capture.manifest import ModelFacts

_LINES = re.compile(r'("[^"\s]*\.py"):\d+:\d+( to \d*:\d+)?')
"""Places in source files, which any edit above them moves."""
MOST_MEMORY = 2_500_000_000
"""Bytes from which the process ends after a run; the compiler keeps memory, and another process can take the rest."""


class ShapesOnly(JaxMesh):
    """A mesh of chips that are not there; its arrays are only shapes."""

    def assemble(self, shape: tuple[int, ...], partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """Return the shape of an array with its dtype, which comes from an empty slice of it."""
        import jax

        dtype = read(tuple(slice(0, min(1, n)) for n in shape)).dtype
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.placed(partition))


def compile_steps(
    spec: RunSpec, whole: RunSpec, topology: str, phases: Sequence[str], folder: Path, kept: Path | None = None
) -> dict[str, str]:
    """Compile the steps of these phases of a run on device tpu, or all microbenchmarks.

    The manifest has the promises of the `whole` run, of which `spec` may be the first layers.

    Returns:
        The digests of the kept programs by name.

    Raises:
        CollectError: libtpu does not know the topology, or refuses a step; its reason.
    """
    import jax

    try:
        devices = chips(topology)
    except Exception as error:  # libtpu raises nothing more special
        raise CollectError(f"{topology}: {error}") from None
    if len(devices) != spec.mesh.size:
        raise CheckError(f"{topology} has {len(devices)} devices, and {spec.mesh} is a mesh of {spec.mesh.size}")
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    folder.mkdir(parents=True, exist_ok=True)
    facts, programs = _programs(spec, devices, phases)
    digests = {}
    for name, program in programs:
        if kept is None:
            _compile(program, devices[0].device_kind, folder, name)
        else:
            digests[name] = _digest(program, topology)
            take_kept(_kept(program, devices[0].device_kind, kept / digests[name]), folder, name)
    if facts is not None and whole.layers != spec.layers:
        facts = traced_subject(whole).facts
    write_promises(whole, facts, folder)
    return digests


def _programs(
    spec: RunSpec, devices: Any, phases: Sequence[str]
) -> tuple[ModelFacts | None, Iterator[tuple[str, Any]]]:
    """Return the facts of the run's model, and its programs by name, each lowered when it is asked for."""
    if not spec.has_model:
        mesh = JaxMesh(spec, devices)
        return None, ((small.name, small.lowered(mesh)) for small in microbenchmarks(spec))
    subject = traced_subject(spec)
    model = JaxModel(subject, ShapesOnly(spec, devices))
    lengths = [(phase, length) for phase, length in spec.step_lengths if phase in phases]
    return subject.facts, ((phase, model.lowered(phase, length)) for phase, length in lengths)


def _kept(program: Any, kind: str, folder: Path) -> Path:
    """Return the folder with a compiled program, or with the reason why there is none."""
    if folder.exists():
        return folder
    try:
        with staged_capture(folder.parent, folder.name) as staging:
            try:
                _compile(program, kind, staging, PROGRAM)
            except CollectError as refused:
                (staging / REFUSED).write_text(str(refused), encoding="utf-8")
    except CollectError:
        if not folder.exists():  # otherwise another process has kept the same program meanwhile
            raise
    return folder


def _digest(program: Any, topology: str) -> str:
    """Return the digest of all that a compiled program depends on, but for the lines of our source."""
    flags = [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    versions = [version(package) for package in ("jax", "jaxlib", "libtpu")]
    text = _LINES.sub(r"\1", without_folders(program.as_text(debug_info=True)))
    given = [text, topology, Topology.parse(topology).options]
    return hashlib.sha256(json.dumps([*given, *flags, *versions]).encode()).hexdigest()


def _compile(program: Any, kind: str, folder: Path, name: str) -> None:
    import jax

    try:
        executable = program.compile().runtime_executable()
    except jax.errors.JaxRuntimeError as error:
        raise CollectError(str(error).partition("\n")[0]) from None
    write_program(folder, name, executable, kind)


def compile_all(kept: Path | None) -> None:
    """Compile the runs of standard input, until it ends or the process has grown."""
    import jax

    for line in sys.stdin:
        task = json.loads(line)
        refused = None
        try:
            spec, whole = (RunSpec.model_validate(task[name]) for name in ("spec", "whole"))
            folder = Path(task["folder"])
            digests = compile_steps(spec, whole, task["topology"], task["phases"], folder, kept)
            if task["traced"]:
                _note(Path(task["traced"]), digests, (folder / MANIFEST).read_text(encoding="utf-8"))
        except CollectError as error:
            refused = str(error)
        print(json.dumps(refused), flush=True)
        jax.clear_caches()
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_MEMORY:
            return


def _note(file: Path, digests: dict[str, str], manifest: str) -> None:
    """Write what a run came to, so that nobody needs to trace it again: whole or not at all."""
    file.parent.mkdir(exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_text(json.dumps({"programs": digests, "manifest": manifest}), encoding="utf-8")
    part.replace(file)


def main(arguments: list[str]) -> int:
    """Run the process; print one line that starts with `error:` when it fails."""
    [kept] = arguments
    end_with_parent()
    return exit_code(lambda: compile_all(Path(kept) if kept else None))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
