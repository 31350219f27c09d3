"""Records with JAX: one program over the devices of all hosts, written out for each device."""

from __future__ import annotations

import os
from pathlib import Path

from tracewarehouse.collect.errors import require_packages
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.run_spec import RunSpec


class JaxBackend:
    """JAX, with the models of transformers rewritten in it."""

    name = "jax"

    def require(self) -> None:
        """Make sure that jax is installed."""
        require_packages(("jax",), "recording with JAX", "jax")

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables that the stack reads once, when it is imported or first used."""
        if spec.device == "tpu":
            return {"JAX_PLATFORMS": "tpu"}
        count = spec.mesh.size // spec.hosts
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration; hosts of virtual devices have a process each."""
        if spec.hosts > 1:
            from tracewarehouse.collect.harness.processes import record_in_processes

            return record_in_processes(spec, spec.hosts, capture)
        if not spec.has_model:
            from tracewarehouse.collect.jax.microbenchmarks import record_microbenchmarks

            return record_microbenchmarks(spec, capture)
        from tracewarehouse.collect.harness.recording import record_generation
        from tracewarehouse.collect.jax.stack import JaxStack

        return record_generation(spec, capture, JaxStack)

    def record_part(self, spec: RunSpec, number: int, shared: Path) -> None:
        """Run one host of virtual devices."""
        from tracewarehouse.collect.harness.processes import record_process
        from tracewarehouse.collect.jax.stack import JaxStack, join_hosts

        join_hosts(spec.hosts, number, shared)
        record_process(spec, number, shared, JaxStack(spec))
