"""Records with torch_xla, as one SPMD program per host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.checks.promises import promised_collectives
from tracewarehouse.collect.errors import CheckError, require_torch_xla
from tracewarehouse.collect.harness.backend import Recording
from tracewarehouse.collect.harness.checked_run import agreement, finished, generations, record_generation
from tracewarehouse.collect.harness.generation import (
    dropped_on_host,
    generate_timed,
    logits_on_host,
    timing_checks,
    warm_up,
)
from tracewarehouse.collect.harness.subject import Subject, tiny_subject, traced_subject
from tracewarehouse.collect.parallel.attention_forms import attention_forms
from tracewarehouse.collect.torch_xla.replay import wait_for_devices
from tracewarehouse.ingest.capture_names import xplane_files

if TYPE_CHECKING:
    from tracewarehouse.collect.harness.backend import DeviceModel
    from tracewarehouse.collect.run_spec import RunSpec
    from tracewarehouse.collect.torch_xla.replay import TraceableModel


def environment(spec: RunSpec) -> dict[str, str]:
    """Return the variables that the stack reads once, when it is imported or first used.

    XLA_HLO_DEBUG puts the scopes of layers and parts into the op_name of every instruction.
    """
    common = {"PJRT_DEVICE": spec.device.upper(), "XLA_HLO_DEBUG": "1"}
    return common | (_cpu_environment(spec) if spec.device == "cpu" else {})


def _cpu_environment(spec: RunSpec) -> dict[str, str]:
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if spec.hosts > 1 and sys.platform == "linux" else {}
    return {"CPU_NUM_DEVICES": str(spec.mesh.size // spec.hosts)} | loopback


class TorchXlaBackend:
    """torch_xla, as one SPMD program per host."""

    name = "torch_xla"

    def require(self) -> None:
        """Make sure that torch, torch_xla and transformers are installed."""
        require_torch_xla()

    def environment(self, spec: RunSpec) -> dict[str, str]:
        """Return the variables that the stack reads once, when it is imported or first used."""
        return environment(spec)

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration; the stages of a pipeline over hosts have a process each."""
        if spec.hosts == 1:
            return record_generation(spec, capture, TorchXlaStack)
        from tracewarehouse.collect.torch_xla.stage_hosts import other_stages

        with other_stages(spec, capture) as shared_folder:
            recording = record_stage(spec, 0, shared_folder, capture)
        assert recording is not None  # noqa: S101
        return recording


class TorchXlaStack:
    """The devices of a run under torch_xla, as one mesh; see `tracewarehouse.collect.harness.backend.Stack`."""

    def __init__(self, spec: RunSpec) -> None:
        import torch_xla.runtime as xr

        from tracewarehouse.collect.torch_xla.mesh import DeviceMesh

        xr.use_spmd()
        count = xr.global_runtime_device_count()
        if count != spec.mesh.size:
            raise CheckError(
                f"the mesh {spec.mesh} needs {spec.mesh.size} devices, the {spec.device} backend has {count}"
            )
        self.mesh = DeviceMesh(spec)

    @property
    def devices_per_host(self) -> int:
        """Number of devices of this host."""
        import torch_xla.runtime as xr

        return int(xr.addressable_runtime_device_count())

    def model(self, subject: Subject) -> DeviceModel:
        """Bring a model to the devices; its steps are traced once and then replayed."""
        from tracewarehouse.collect.torch_xla.replay import ReplayedModel

        return ReplayedModel(subject.spec, self.traceable(subject))

    def traceable(self, subject: Subject) -> TraceableModel:
        """Bring a model to the devices, for its steps to be traced."""
        spec = subject.spec
        model = subject.model if subject.weights is None else subject.weights.on_devices(spec, self.mesh)
        if spec.axis("pp") > 1:
            from tracewarehouse.collect.torch_xla.pipelined_model import PipelinedModel

            return PipelinedModel(spec, model, self.mesh, subject.weights)
        from tracewarehouse.collect.torch_xla.sharded_model import ShardedModel

        return ShardedModel(spec, model, self.mesh)

    def place(self, prompt: Any) -> Any:
        """Bring prompt tokens [batch, length] to the devices."""
        import torch_xla
        import torch_xla.core.xla_model as xm

        from tracewarehouse.collect.parallel.partition import BATCH

        tokens = self.mesh.place(prompt, (BATCH, None))
        torch_xla.sync()
        xm.wait_device_ops()
        return tokens

    def mark(self, name: str, step: int) -> Any:
        """Return a host event with the phase and number of a step; `_r` makes it one of the profiler's own steps."""
        import torch_xla

        return torch_xla._XLAC.profiler.TraceMe(name, step_num=step, _r=1)

    def wait(self, value: Any) -> None:
        """Wait until all devices have a value."""
        wait_for_devices(value)

    def on_host(self, value: Any) -> Any:
        """Return a value on the devices as a torch tensor on the host."""
        from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

        return unwrap_sharded_tensor(value).cpu()

    def compile_count(self) -> int:
        """Return how many programs were compiled so far in this process."""
        import torch_xla.debug.metrics as xla_metrics

        data = xla_metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def start_profiler(self, logdir: Path) -> None:
        """Begin to record into a log directory."""
        import torch_xla.debug.profiler as xp

        xp.start_trace(str(logdir))

    def stop_profiler(self) -> None:
        """End the recording and write it."""
        import torch_xla.debug.profiler as xp

        xp.stop_trace()


def lower_steps(spec: RunSpec, folder: Path) -> Recording:
    """Write the program of each step on TPU as the HLO text that the compiler would get; nothing is compiled or run.

    `folder` also gets the configuration of a published model, whose files are not read.
    """
    from tracewarehouse.collect.torch_xla.replay import ReplayedModel

    subject = traced_subject(spec, folder)
    model = ReplayedModel(spec, TorchXlaStack(spec).traceable(subject))
    for phase, length in spec.step_lengths:
        (folder / f"{phase}.txt").write_text(model.lowered(phase, length), encoding="utf-8")
    return Recording(
        subject.facts, [], [], checks=attention_forms(spec), promised_collectives=promised_collectives(spec)
    )


def record_stage(spec: RunSpec, stage: int, shared: Path, staging: Path | None) -> Recording | None:
    """Run one stage of a pipeline over hosts; the first returns the recording with all profiles, the others None.

    The processes of all stages use the folder `shared`; the first also has `staging`, the capture directory.
    """
    import torch

    from tracewarehouse.collect.torch_xla import stage_hosts

    subject = tiny_subject(spec)
    stage_hosts.join(shared, stage, spec.hosts)
    own = stage_hosts.stage_spec(spec, stage)
    stack = TorchXlaStack(own)
    prepared = generations(stack, stage_hosts.StageModel(spec, subject.model, stack.mesh, stage), subject)
    warmups = warm_up(lambda: prepared()(), stage_hosts.total)
    logdir = shared / f"stage{stage}"
    logdir.mkdir()
    timed = generate_timed(stack, prepared, logdir, stage_hosts.wait_for_all)

    logits = stage_hosts.from_last_stage(logits_on_host(stack, timed.profiled))
    dropped = None
    if own.capacity_factor is not None:
        of_stage = dropped_on_host(stack, timed.profiled)
        nothing = torch.zeros(spec.batch, spec.output_length, dtype=torch.int64)
        dropped = stage_hosts.total_of(nothing if of_stage is None else of_stage.long())
    stage_hosts.wait_for_all()  # All captures are written.
    if staging is None:
        return None
    checks = agreement(subject.reference, logits, dropped, spec)
    captures = [f for s in range(spec.hosts) for f in xplane_files(shared / f"stage{s}")]
    names = stage_hosts.gather_captures(captures, staging)
    return finished(stack, subject, timed.profiled, names, checks | timing_checks(warmups, timed))
