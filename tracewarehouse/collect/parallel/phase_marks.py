"""Sets the marks of torch_xla that tell ingest the phase, step, layer and part of every device op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tracewarehouse.collect.device_threads import wait_until_asleep


def wait_for_devices(value: Any) -> None:
    """Wait until all devices have a result of the last program.

    `wait_device_ops` alone waits for the first device; copying every device's shard waits for all, and adds no program
    of its own. For virtual devices, also wait until their threads sleep.
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
    """Return a context whose operations carry `name` in their op_name (it must not hold a sync)."""
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
