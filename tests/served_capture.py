"""A made-up capture of two TPUs that serve a model, with everything that CCL-Bench's rules tell apart, from a seed."""

from __future__ import annotations

from pathlib import Path
from random import Random

from xplane_builder import Space, TpuPlane, Unsigned

US = 1_000_000
NAMES = {
    "all-reduce.1": "all-reduce",
    "all-gather.7": "all-gather",
    "all_reduce": "all-reduce",
    "reduce-scatter.3": "reduce-scatter",
    "all-to-all.2": "all-to-all",
    "Broadcast": "data formatting",
    "broadcast.4": "broadcast",
    "fusion.12": "loop fusion",
    "all-reduce-scatter-fusion": "output fusion",
    "while.1": "while",
    "copy-start": "copy-start",
    "copy-done": "copy-done",
    "copy-start.1": "copy-start",
    "copy-done.1": "copy-done",
    "slice-copy-start.22.clone": "copy-start",
    "slice-copy-done.22": "copy-done",
    "dependency-wait.1": "",
    "custom-call.9": "custom-call",
}
"""Names of events on the op line, and their categories."""


def write_served_capture(path: Path, seed: int, steps: int = 5, mark: str = "$core.py:331 step") -> Path:
    """Write `path`: two TPU v6e with 200 events each, and steps of vLLM, or others, on a thread of the host."""
    r = Random(seed)
    space = Space(hostnames=["host"])
    for index in range(2):
        _device(space.tpu(index), r)
    host = space.host()
    thread, other = host.line("main", line_id=7), host.line("worker", line_id=8)
    at = 0
    starts = []
    for _ in range(steps):
        starts.append((at, r.randrange(20 * US, 60 * US)))
        at += starts[-1][1] + r.randrange(0, 9 * US)
    r.shuffle(starts)  # as a file may have them
    for start, duration in starts:
        thread.event(mark, start, duration)
    for name in ("collective_rpc", "Run all_gather", "nccl init", "compute", "python"):
        for _ in range(3):
            other.event(name, r.randrange(0, 200 * US), r.randrange(0, 20 * US))
    return space.write(path)


def _device(tpu: TpuPlane, r: Random) -> None:
    metadata = {}
    for name, category in NAMES.items():
        stats: dict[str, int | str | Unsigned] = {"hlo_category": category} if category else {}
        if r.random() < 0.8:
            stats["bytes_accessed"] = r.randrange(0, 1 << 30)
        if r.random() < 0.5:
            stats["raw_bytes_accessed"] = r.randrange(1, 1 << 30)
        if r.random() < 0.6:
            stats["model_flops"] = r.randrange(0, 1 << 40)
        metadata[name] = tpu.metadata(name, "", stats)
    at = 0
    tpu.modules.event("jit_step(42)", 0, 250 * US, device_offset_ps=Unsigned(5), device_duration_ps=Unsigned(250 * US))
    tpu.modules.event("SyncTensors(43)", 250 * US, US, device_offset_ps=Unsigned(9), device_duration_ps=Unsigned(US))
    for _ in range(200):
        name = r.choice(list(NAMES))
        duration = r.choice((0, r.randrange(1, 2 * US)))
        stats = {}
        if r.random() < 0.9:
            stats |= {"device_offset_ps": Unsigned(at + 1000), "device_duration_ps": Unsigned(duration)}
        if name.startswith("all-reduce.") and r.random() < 0.7:
            stats["all_reduce_unique_id"] = Unsigned(r.choice((7, 8, 1 << 63)))
        tpu.ops.event(metadata[name], at, duration, **stats)
        at += duration + r.randrange(0, US)
    tpu.async_ops.event(metadata["all-reduce.1"], 0, 900 * US)
    tpu.line("counters_1").event("power", 3, 0, watts=1)
