"""The devices of a run under JAX, with its marks, barrier and profiler."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.multihost_utils import process_allgather

from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.jax.mesh import JaxMesh
from tracewarehouse.collect.jax.model import JaxModel
from tracewarehouse.collect.parallel.partition import BATCH
from tracewarehouse.collect.processes import wait_until_asleep
from tracewarehouse.collect.run_spec import RunSpec


def join_hosts(count: int, number: int, shared: Path) -> None:
    """Make one set of the virtual devices of `count` processes; the first tells the others where it is by a file."""
    told = shared / "coordinator"
    if number == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        (shared / "part").write_text(address, encoding="ascii")
        (shared / "part").rename(told)
    while not told.exists():
        time.sleep(0.02)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(told.read_text(encoding="ascii"), count, number)


_COMPILED = "/jax/core/compile/backend_compile_duration"


class JaxStack:
    """The devices of a run under JAX; see `tracewarehouse.collect.harness.backend.Stack`."""

    def __init__(self, spec: RunSpec) -> None:
        # Keep the folders of this machine out of the programs, which the capture contains.
        jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
        self._compiled = 0
        jax.monitoring.register_event_duration_secs_listener(self._count)
        self.mesh = JaxMesh(spec)

    @property
    def is_virtual(self) -> bool:
        """Whether the devices are virtual ones of this machine."""
        return bool(self.mesh.mesh.devices.flat[0].platform == "cpu")

    @property
    def devices_per_host(self) -> int:
        """Number of devices of this host."""
        return int(jax.local_device_count())

    def model(self, subject: Subject) -> JaxModel:
        """Bring a model to the devices."""
        return JaxModel(subject, self.mesh)

    def place(self, prompt: Any) -> Any:
        """Bring prompt tokens [batch, length] to the devices."""
        tokens = self.mesh.assemble(prompt.shape, (BATCH, None), prompt.__getitem__)
        self.wait(tokens)
        return tokens

    def mark(self, name: str, step: int) -> Any:
        """Return a host event with the phase and number of a step, which the profiler counts as a step of its own."""
        return jax.profiler.StepTraceAnnotation(name, step_num=step)

    def wait(self, value: Any) -> None:
        """Wait until all devices have a value; for virtual devices also until their threads sleep."""
        jax.block_until_ready(value)
        if self.is_virtual:
            wait_until_asleep()

    def wait_for_all(self) -> None:
        """Wait for the other hosts."""
        self.total(0)

    def total(self, count: int) -> int:
        """Sum a number over all hosts."""
        return int(process_allgather(np.array(count)).sum())

    def on_host(self, value: Any) -> Any:
        """Return a value on the devices in numpy; values that are not integers become float32."""
        array = np.asarray(value if value.is_fully_addressable else process_allgather(value, tiled=True))
        return array if array.dtype.kind == "i" else array.astype(np.float32)

    def compile_count(self) -> int:
        """Return how many programs were compiled since the devices were taken."""
        return self._compiled

    def _count(self, event: str, _: float, **__: Any) -> None:
        self._compiled += event == _COMPILED

    def start_profiler(self, logdir: Path) -> None:
        """Begin to record devices and marks, but not Python calls, into a log directory."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        jax.profiler.start_trace(str(logdir), profiler_options=options)

    def stop_profiler(self) -> None:
        """End the recording and write it."""
        jax.profiler.stop_trace()
