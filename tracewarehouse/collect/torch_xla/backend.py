"""Records with torch_xla, as one SPMD program per host."""

from __future__ import annotations

import sys
from pathlib import Path

from tracewarehouse.collect.errors import require_torch_xla
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.run_spec import RunSpec


class TorchXlaBackend:
    """torch_xla, as one SPMD program per host."""

    name = "torch_xla"

    def require(self) -> None:
        """Make sure that torch, torch_xla and transformers are installed."""
        require_torch_xla()

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables that the stack reads once, when it is imported or first used.

        XLA_HLO_DEBUG puts the scopes of layers and parts into the op_name of every instruction.
        """
        variables = {"PJRT_DEVICE": spec.device.upper(), "XLA_HLO_DEBUG": "1"}
        if spec.device == "cpu":
            variables["CPU_NUM_DEVICES"] = str(spec.mesh.size // spec.hosts)
            if spec.hosts > 1 and sys.platform == "linux":
                variables["GLOO_SOCKET_IFNAME"] = "lo"
        return variables

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration; the stages of a pipeline over hosts have a process each."""
        if spec.hosts > 1:
            from tracewarehouse.collect.harness.processes import record_in_processes

            return record_in_processes(spec, spec.hosts, capture)
        from tracewarehouse.collect.harness.recording import record_generation
        from tracewarehouse.collect.torch_xla.stack import TorchXlaStack

        return record_generation(spec, capture, TorchXlaStack)

    def record_part(self, spec: RunSpec, number: int, shared: Path) -> None:
        """Run one stage of a pipeline over hosts."""
        from tracewarehouse.collect.harness.processes import record_process
        from tracewarehouse.collect.torch_xla.stage_hosts import StageStack

        record_process(spec, number, shared, StageStack(spec, number, shared / "rendezvous"))
