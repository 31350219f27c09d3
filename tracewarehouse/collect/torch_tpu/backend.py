"""Records with torch_tpu: a process for each device of one host, each with its own profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tracewarehouse.collect.errors import CollectError, require_packages
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.run_spec import RunSpec

if TYPE_CHECKING:
    from tracewarehouse.collect.torch_tpu.stack import TorchTpuStack

_PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
"""Google's number among the vendors of PCI devices, by which torch_tpu too finds TPUs."""


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
        """Run one configuration in a process for each device."""
        from tracewarehouse.collect.harness.processes import record_in_processes

        self.prepare(spec)
        return record_in_processes(spec, spec.mesh.size, capture)

    def record_part(self, spec: RunSpec, number: int, shared: Path) -> None:
        """Run one process of a run."""
        from tracewarehouse.collect.harness.processes import record_process

        record_process(spec, number, shared, self.stack(spec, number, shared / "rendezvous"))

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
