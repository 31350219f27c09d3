"""One process of torch_tpu, with its device, marks, barrier and profiler, and its exchange with the other processes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh

from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.collect.torch_tpu.model import Place, TorchTpuModel, on_device
from tracewarehouse.ingest.capture_names import XPLANE_SUFFIX

TPU = {"device": "tpu", "group": "cpu:gloo,tpu:tpu_dist", "compiler": "tpu"}
"""What torch_tpu calls its device, its collectives beside those of the hosts, and its compiler."""


class TorchTpuStack:
    """See `tracewarehouse.collect.harness.backend.Stack`; the devices of the other processes are theirs.

    `names` are the device, the process group and the compiler by the names that torch knows.
    """

    def __init__(self, spec: RunSpec, rank: int, rendezvous: Path, names: dict[str, str] = TPU) -> None:
        self._rank, self._names, self._logdir = rank, names, Path()
        self._profile: Any = None
        self.sizes = {axis: spec.axis(axis) for axis in ("dp", "tp")}
        shape = tuple(self.sizes.values())
        init = f"file://{rendezvous}"
        dist.init_process_group(names["group"], init_method=init, rank=rank, world_size=spec.mesh.size)
        self._hosts = dist.new_group(backend="gloo")
        mesh = init_device_mesh(names["device"], shape, mesh_dim_names=tuple(self.sizes))
        place = (int(i) for i in np.unravel_index(rank, shape))
        coordinate = dict(zip(self.sizes, place, strict=True))
        tp_group = mesh.get_group("tp") if self.sizes["tp"] > 1 else None
        self._place = Place(torch.device(names["device"]), self.sizes, coordinate, tp_group)
        self._is_head_split = False

    @property
    def devices_per_host(self) -> int:
        """Number of devices of this process, each of which is a host of the run."""
        return 1

    def model(self, subject: Subject) -> TorchTpuModel:
        """Bring this device's part of a model to it."""
        model = TorchTpuModel(subject, self._place, self._compiled)
        self._is_head_split = model.is_head_split
        return model

    def _compiled(self, step: Any, phase: str) -> Any:
        options = {"name": phase} if self._names is TPU else None  # the profiler shows the program by this name
        return torch.compile(step, backend=self._names["compiler"], options=options, fullgraph=True, dynamic=False)

    def place(self, prompt: Any) -> Any:
        """Bring this device's prompts, of [batch, length], to it."""
        rows = len(prompt) // self.sizes["dp"]
        first = self._place.coordinate["dp"] * rows
        tokens = on_device(prompt[first : first + rows], self._place.device)
        self.wait(tokens)
        return tokens

    def mark(self, name: str, step: int) -> Any:
        """Return a host event with the phase and number of a step, in the form in which XLA encodes both."""
        return torch.profiler.record_function(f"{name}#step_num={step},_r=1#")

    def wait(self, value: Any) -> None:
        """Wait until this device has a value."""
        if value.device.type != "cpu":
            torch.accelerator.synchronize()

    def wait_for_all(self) -> None:
        """Wait for the other processes."""
        dist.barrier(self._hosts)

    def total(self, count: int) -> int:
        """Sum a number over all processes."""
        value = torch.tensor(count)
        dist.all_reduce(value, group=self._hosts)
        return int(value)

    def on_host(self, value: Any) -> Any:
        """Return a value of all devices in numpy: the rows of dp, and of a split head the columns of tp."""
        own = value.detach().cpu()
        own = own.float() if own.is_floating_point() else own
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous(), group=self._hosts)
        rows, columns = self.sizes["dp"], self.sizes["tp"]
        joined = columns if self._is_head_split and own.is_floating_point() else 1
        arrays = [part.numpy() for part in parts]
        return np.concatenate([np.concatenate(arrays[r * columns :][:joined], -1) for r in range(rows)])

    def compile_count(self) -> int:
        """Return how many programs this process compiled."""
        return int(counters["stats"]["unique_graphs"])

    def start_profiler(self, logdir: Path) -> None:
        """Begin to record this process into a log directory."""
        from torch.tpu.profiler import TpuProfilerConfig  # type: ignore[import-not-found, unused-ignore]

        self._logdir = logdir
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.PrivateUse1]
        config = TpuProfilerConfig(run_dir=logdir, worker_rank=str(self._rank))
        self._profile = torch.profiler.profile(activities=kinds, experimental_config=config)
        self._profile.start()

    def stop_profiler(self) -> None:
        """End the recording and write it, into a folder of profiles if torch_tpu has none."""
        self._profile.stop()
        session = self._logdir / "plugins" / "profile" / "process"
        for file in [*self._logdir.rglob(f"*{XPLANE_SUFFIX}")]:
            if "plugins" not in file.relative_to(self._logdir).parts:
                session.mkdir(parents=True, exist_ok=True)
                shutil.move(file, session / file.name)
