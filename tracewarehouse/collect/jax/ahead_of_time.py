"""Compiles the steps of a run for a TPU slice that need not exist: `... SPEC TOPOLOGY FOLDER`, with jax and libtpu.

No weight is read or made: the programs need only shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracewarehouse.collect.errors import CheckError, CollectError
from tracewarehouse.collect.harness.recording import write_promises
from tracewarehouse.collect.harness.subject import traced_subject
from tracewarehouse.collect.jax.mesh import JaxMesh
from tracewarehouse.collect.jax.microbenchmarks import microbenchmarks
from tracewarehouse.collect.jax.model import JaxModel
from tracewarehouse.collect.parallel.partition import Partition
from tracewarehouse.collect.processes import end_with_parent, exit_code
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.tpu.compile_ahead import chips, write_program


class ShapesOnly(JaxMesh):
    """A mesh of chips that are not there; its arrays are only shapes."""

    def assemble(self, shape: tuple[int, ...], partition: Partition, read: Callable[[tuple[slice, ...]], Any]) -> Any:
        """Return the shape of an array with its dtype, which comes from an empty slice of it."""
        import jax

        dtype = read(tuple(slice(0, min(1, n)) for n in shape)).dtype
        return jax.ShapeDtypeStruct(shape, dtype, sharding=self.split(partition))


def compile_steps(spec: RunSpec, topology: str, folder: Path) -> None:
    """Compile prefill and decode of a run on device tpu, or all microbenchmarks; write the manifest with promises."""
    import jax

    try:
        devices = chips(topology)
    except Exception as error:  # libtpu raises nothing more special
        raise CollectError(f"{topology}: {error}") from None
    if len(devices) != spec.mesh.size:
        raise CheckError(f"{topology} has {len(devices)} devices, and {spec.mesh} is a mesh of {spec.mesh.size}")
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    if not spec.has_model:
        mesh = JaxMesh(spec, devices)
        for small in microbenchmarks(spec):
            executable = small.lowered(mesh).compile().runtime_executable()
            write_program(folder, small.name, executable, devices[0].device_kind)
        write_promises(spec, None, folder)
        return
    subject = traced_subject(spec)
    model = JaxModel(subject, ShapesOnly(spec, devices))
    for phase, length in spec.step_lengths:
        program = model.lowered(phase, length).compile()
        write_program(folder, phase, program.runtime_executable(), devices[0].device_kind)
    write_promises(spec, subject.facts, folder)


def main(arguments: list[str]) -> int:
    """Run the process; print one line that starts with `error:` when it fails."""
    specification, topology, folder = arguments
    end_with_parent()
    spec = RunSpec.model_validate_json(specification)
    return exit_code(lambda: compile_steps(spec, topology, Path(folder)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
