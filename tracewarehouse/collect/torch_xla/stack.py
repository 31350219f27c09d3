"""The devices of a run under torch_xla, with its marks, barrier and profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as xla_metrics
import torch_xla.debug.profiler as xp
import torch_xla.runtime as xr
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.parallel.partition import BATCH
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_xla.mesh import DeviceMesh
from tracewarehouse.collect.torch_xla.pipelined_model import PipelinedModel
from tracewarehouse.collect.torch_xla.replay import ReplayedModel, TraceableModel, wait_for_devices
from tracewarehouse.collect.torch_xla.sharded_model import ShardedModel
from tracewarehouse.collect.torch_xla.transformers_model import as_tensor, on_devices, on_host


class TorchXlaStack:
    """See `tracewarehouse.collect.harness.backend.Stack`."""

    def __init__(self, spec: RunSpec) -> None:
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
        return int(xr.addressable_runtime_device_count())

    def model(self, subject: Subject) -> ReplayedModel:
        """Bring a model to the devices; its steps are traced once and then replayed."""
        return ReplayedModel(subject.spec, self.traceable(subject))

    def traceable(self, subject: Subject) -> TraceableModel:
        """Bring a model to the devices, for its steps to be traced."""
        spec = subject.spec
        weights = subject.weights if spec.is_published else None
        model = on_host(spec, subject.weights) if weights is None else on_devices(spec, weights, self.mesh)
        if spec.axis("pp") > 1:
            return PipelinedModel(spec, model, self.mesh, weights)
        return ShardedModel(spec, model, self.mesh)

    def place(self, prompt: Any) -> Any:
        """Bring prompt tokens [batch, length] to the devices."""
        tokens = self.mesh.place(as_tensor(prompt), (BATCH, None))
        torch_xla.sync()
        xm.wait_device_ops()
        return tokens

    def mark(self, name: str, step: int) -> Any:
        """Return a host event with the phase and number of a step; `_r` makes it one of the profiler's own steps."""
        return torch_xla._XLAC.profiler.TraceMe(name, step_num=step, _r=1)

    def wait(self, value: Any) -> None:
        """Wait until all devices have a value."""
        wait_for_devices(value)

    def wait_for_all(self) -> None:
        """Wait for no other process: hosts of a slice meet in their programs."""

    def total(self, count: int) -> int:
        """Return the number of this process."""
        return count

    def on_host(self, value: Any) -> Any:
        """Return a value on the devices in numpy; values that are not integers become float32."""
        tensor = unwrap_sharded_tensor(value).cpu()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()

    def compile_count(self) -> int:
        """Return how many programs were compiled so far in this process."""
        data = xla_metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def start_profiler(self, logdir: Path) -> None:
        """Begin to record into a log directory."""
        xp.start_trace(str(logdir))

    def stop_profiler(self) -> None:
        """End the recording and write it."""
        xp.stop_trace()
