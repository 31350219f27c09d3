"""Marks by which ingest knows the phase, step, layer and part of every device op."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracewarehouse.collect.device_threads import wait_until_asleep
from tracewarehouse.ingest.capture.manifest import PhaseMark


class Step:
    """One step while it runs; `token` is what the barrier waits for."""

    def __init__(self) -> None:
        self.token: Any = None
        self.mark: PhaseMark | None = None
        self.host_ns = 0
        """CPU time of this thread until the program was handed to the devices: nothing that it waited for is in it."""


@contextmanager
def phase(name: str, step: int) -> Iterator[Step]:
    """Run one step of a phase, whose program is handed to the devices inside; the host event carries name and step.

    The program starts and all devices finish inside the host event.
    """
    import torch_xla

    running = Step()
    start, cpu_start = time.time_ns(), time.thread_time_ns()
    with torch_xla._XLAC.profiler.TraceMe(name, step_num=step, _r=1):
        yield running
        running.host_ns = time.thread_time_ns() - cpu_start
        wait_for_devices(running.token)
    running.mark = PhaseMark(name=name, step=step, start_ns=start, end_ns=time.time_ns())


def wait_for_devices(value: Any) -> None:
    """Wait until all devices have a value that the last program gives.

    `wait_device_ops` alone waits for the first device; copying every device's shard waits for all, and adds no program
    of its own. Virtual devices are waited for until their threads sleep.
    """
    import torch_xla
    import torch_xla.core.xla_model as xm
    from torch_xla import runtime
    from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

    xm.wait_device_ops()
    torch_xla._XLAC._get_local_shards([unwrap_sharded_tensor(value)])
    if runtime.device_type() == "CPU":
        wait_until_asleep()


@contextmanager
def graph_name(name: str) -> Iterator[None]:
    """Name the programs that are compiled inside; the profiler shows the name with every execution."""
    import torch_xla

    torch_xla._XLAC._set_current_graph_name(name)
    try:
        yield
    finally:
        torch_xla._XLAC._set_current_graph_name("")


def scope(name: str) -> Any:
    """A context whose operations carry `name` in their op_name (it must not hold a sync)."""
    import torch_xla.debug.profiler as xp

    return xp.Trace(name)


def scope_module(module: Any, name: str) -> None:
    """Run every call of a module inside a scope."""
    forward = module.forward

    def scoped(*args: Any, **kwargs: Any) -> Any:
        with scope(name):
            return forward(*args, **kwargs)

    module.forward = scoped


def scope_parts(decoder_layer: Any) -> None:
    """Name the parts of a decoder layer: attn, mlp or moe, norm."""
    scope_module(decoder_layer.self_attn, "attn")
    scope_module(decoder_layer.mlp, "moe" if hasattr(decoder_layer.mlp, "experts") else "mlp")
    scope_module(decoder_layer.input_layernorm, "norm")
    scope_module(decoder_layer.post_attention_layernorm, "norm")
