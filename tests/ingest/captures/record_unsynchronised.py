"""Records torch_xla-unsynchronised.xplane.pb.gz: programs on 4 virtual CPU devices, launched without waiting.

python tests/ingest/captures/record_unsynchronised.py, with torch_xla 2.9 and nothing else of this repository. Each
program reduces over three of the devices and over the fourth alone, so the profile states which devices reduce
together. If no program waits, as by luck, record again.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}

import numpy as np
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.profiler as xp
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

ROUNDS = 3

xr.use_spmd()
mesh = xs.Mesh(np.arange(4), (4,), ("x",))
device = torch_xla.device()


def placed(values: torch.Tensor, *axes: str | None) -> Any:
    on_device = values.to(device)
    xs.mark_sharding(on_device, mesh, axes)
    return on_device


up, down = placed(torch.randn(256, 1024), None, "x"), placed(torch.randn(1024, 256), "x", None)
inputs, rows = placed(torch.randn(64, 256), None, None), placed(torch.ones(4, 8), "x", None)
kept = []


def launch(alone: int) -> None:
    """Launch a program that reduces over all devices but one, and does not wait for it."""
    product = xs.mark_sharding(torch.relu(inputs @ up) @ down, mesh, (None, None))
    local = unwrap_sharded_tensor(xs.enable_manual_sharding(rows, ("x", None), mesh=mesh))
    groups = [[alone], [d for d in range(4) if d != alone]]
    summed = torch_xla._XLAC._xla_spmd_all_reduce(xm.REDUCE_SUM, local, 1.0, groups)
    kept.append((product, xs.disable_manual_sharding(summed, ("x", None), torch.Size((4, 8)), mesh=mesh)))
    torch_xla._XLAC._set_current_graph_name(f"all_but_{alone}")
    torch_xla.sync()
    torch_xla._XLAC._set_current_graph_name("")


def launch_all() -> None:
    for _ in range(ROUNDS):
        for alone in range(4):
            launch(alone)
    xm.wait_device_ops()
    time.sleep(0.3)


launch_all()
with tempfile.TemporaryDirectory() as folder:
    xp.start_trace(folder)
    launch_all()
    xp.stop_trace()
    [recorded] = Path(folder).rglob("*.xplane.pb")
    out = Path(__file__).with_name("torch_xla-unsynchronised.xplane.pb.gz")
    out.write_bytes(gzip.compress(recorded.read_bytes(), 9, mtime=0))
