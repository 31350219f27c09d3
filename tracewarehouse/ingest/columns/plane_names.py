"""Classifies planes and lines by the names that XLA's profilers give them; any other name is of unknown kind."""

from __future__ import annotations

import re
from dataclasses import dataclass

CPU_PLANE = "/host:CPU"
"""Plane of the host's threads, including those that execute the ops of virtual CPU devices."""
TASK_PLANE = "Task Environment"
"""Plane whose stats say when the profile was taken."""
METADATA_PLANE = "/host:metadata"
"""Plane that holds the compiled programs."""
PROFILE_START, PROFILE_STOP = "profile_start_time", "profile_stop_time"
"""Stats with the start and stop of the profile, in Unix nanoseconds."""
DEVICE_PREFIX, GPU_PREFIX = "/device:", "/device:GPU:"

MODULE_LINE = "XLA Modules"
"""Line of the executions of programs."""
STEP_LINE = "Steps"
OP_LINE = "XLA Ops"
"""Line of the ops that the device executes, one after the other."""
ASYNC_LINE = "Async XLA Ops"
"""Line of asynchronous ops, from their start to their done."""
COUNTER_LINE = "_counters_"
"""Line of samples of counters, in a Chrome trace."""
STREAM_PREFIX = "Stream #"
"""Prefix of the lines of a GPU's streams."""

_DEVICE_PLANE = re.compile(r"/device:(TPU|GPU):(\d+)( SparseCore \d+)?")
_PLANES = (
    (r"/device:(TPU|GPU):\d+", "device"),
    (r"/device:TPU:\d+ SparseCore \d+", "sparse_core"),
    (r"/device:CUSTOM:Megascale.*", "megascale"),
    (r"/device:CUSTOM:.*", "custom"),
    (r"#Chip.*|/device:TPU:\d+ ?#Chip.*", "chip"),
    (rf"{CPU_PLANE}|/host:TPU-runtime|/host:python-tracer|/host:CUPTI|/host:ROCTRACER|/host:NVTX-CUPTI", "host"),
    (r"Host CPUs|Syscalls|/host:tfstreamz", "host"),
    (rf"{METADATA_PLANE}|/host:__ScopeRangeCallStack__", "metadata"),
    (TASK_PLANE, "task"),
)
PLANE_KINDS = (*dict.fromkeys(kind for _, kind in _PLANES), "unknown")
_LINES = (
    (rf"{MODULE_LINE}|Sparse Core Modules", "modules"),
    (rf"{OP_LINE}|Sparse Core Ops|{STREAM_PREFIX}.*", "ops"),
    (ASYNC_LINE, "async_ops"),
    (rf"{STEP_LINE}|Sparse Core Steps", "steps"),
    (r"XLA TraceMe", "trace_me"),
    (rf"{COUNTER_LINE}|counters_\d+", "counters"),
    (r"Framework Name Scope|Framework Ops|TensorFlow Name Scope|TensorFlow Ops", "framework"),
    (r"Source code", "source"),
    (r"Host Offload Ops", "offload"),
    (r"Tensor Core Sync Flag|Sparse Core Syncs", "sync_flags"),
    (r"Overlay|TC Overlay|SC Overlay", "overlay"),
    (r"Scalar Unit|.*\bLLO\b.*", "llo"),
    (r"Launch Stats", "launch"),
    (r"DcnHostTraffic|DcnCollectiveTraffic|.*\bDCN\b.*", "dcn"),
)
LINE_KINDS = (*dict.fromkeys(kind for _, kind in _LINES), "thread", "unknown")
_PLANE_PATTERNS = [(re.compile(p), kind) for p, kind in _PLANES]
_LINE_PATTERNS = [(re.compile(p), kind) for p, kind in _LINES]


@dataclass(frozen=True, order=True)
class DeviceName:
    """The facts in the name of a device plane."""

    backend: str
    ordinal: int
    is_sparse_core: bool


def device_plane(name: str) -> DeviceName | None:
    """Read backend, ordinal on the host, and whether it is a SparseCore; None for planes of no device."""
    match = _DEVICE_PLANE.fullmatch(name)
    if not match or len(match.group(2)) > 6:
        return None
    return DeviceName(match.group(1).lower(), int(match.group(2)), match.group(3) is not None)


def plane_kind(name: str) -> str:
    """Return one of PLANE_KINDS."""
    return next((kind for pattern, kind in _PLANE_PATTERNS if pattern.fullmatch(name)), "unknown")


def line_kind(plane: str, name: str) -> str:
    """Return one of LINE_KINDS; by default, lines of host planes are threads, and lines of Megascale planes dcn."""
    kind = next((kind for pattern, kind in _LINE_PATTERNS if pattern.fullmatch(name)), None)
    if kind is not None:
        return kind
    return {"host": "thread", "megascale": "dcn"}.get(plane_kind(plane), "unknown")
