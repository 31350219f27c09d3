"""The backend torch_tpu on CPU devices, with gloo, a compiler that runs op by op and a profile written by hand.

Everything else is the backend's own: its processes, program, barrier, checks, and how it joins the profiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.xplane_builder import Space, Unsigned, integer
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_tpu.backend import TorchTpuBackend

START_NS = 1_790_000_000_000_000_000
STEP_PS = 1_000_000_000


class CpuBackend(TorchTpuBackend):
    """torch_tpu without a TPU."""

    def require(self) -> None:
        """There is nothing to install."""

    def prepare(self, spec: RunSpec) -> None:
        """gloo needs to be told nothing."""

    def stack(self, spec: RunSpec, number: int, rendezvous: Path) -> Any:
        """Return a stack of the CPU whose profiler writes what a TPU's would."""
        from tracewarehouse.collect.torch_tpu.stack import TorchTpuStack

        class CpuStack(TorchTpuStack):
            def start_profiler(self, logdir: Path) -> None:
                self._logdir = logdir
                self._profile = self

            def stop(self) -> None:
                hand_made_profile(spec, number).write(self._logdir / f"vm_{number}.xplane.pb")

        return CpuStack(spec, number, rendezvous, {"device": "cpu", "group": "gloo", "compiler": "eager"})


def hand_made_profile(spec: RunSpec, rank: int) -> Space:
    """The profile of one process: its device is number 0 of the process, and has the promised all-reduces."""
    space = Space(hostnames=["vm"])
    tpu = space.tpu(0)
    tpu.stat("core_details", integer(2, 0) + integer(6, 0))
    members = ",".join(map(str, range(spec.mesh.size)))
    reduces = {}
    for program, phase in enumerate(("prefill", "decode"), 1):
        hlo = "%all-reduce.{} = f32[256]{{0}} all-reduce(f32[256]{{0}} %x), channel_id={}, replica_groups={{{{{}}}}}"
        reduces[phase] = [
            tpu.instruction(
                hlo.format(10 * program + n, n + 1, members), hlo_category="all-reduce", program_id=Unsigned(program)
            )
            for n in range(2 * spec.layers)
        ]
    for step in range(spec.output_length):
        phase, at = ("decode" if step else "prefill"), step * STEP_PS
        tpu.modules.event(f"{phase}_split0_fwd({2 if step else 1})", at, STEP_PS - 1000, run_id=Unsigned(step + 1))
        for n, reduce in enumerate(reduces[phase]):
            tpu.ops.event(reduce, at + n * 1_000_000 + 1000 * rank, 500_000)
    space.profiled(START_NS, START_NS + 1_000_000_000)
    return space
