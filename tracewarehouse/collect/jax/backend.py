"""Records with JAX: one program over the devices of one host, written out for each device."""

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
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={spec.mesh.size}"
        return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration."""
        if not spec.has_model:
            from tracewarehouse.collect.jax.microbenchmarks import record_microbenchmarks

            return record_microbenchmarks(spec, capture)
        from tracewarehouse.collect.harness.recording import record_generation
        from tracewarehouse.collect.jax.stack import JaxStack

        return record_generation(spec, capture, JaxStack)
