"""What the planes and lines of a capture are, by the names that XLA's profilers give them; the rest is unknown."""

from __future__ import annotations

import re

_PLANES = (
    (r"/device:(TPU|GPU):\d+", "device"),
    (r"/device:TPU:\d+ SparseCore \d+", "sparse_core"),
    (r"/device:CUSTOM:Megascale.*", "megascale"),
    (r"/device:CUSTOM:.*", "custom"),
    (r"#Chip.*|/device:TPU:\d+ ?#Chip.*", "chip"),
    (r"/host:CPU|/host:TPU-runtime|/host:python-tracer|/host:CUPTI|/host:ROCTRACER|/host:NVTX-CUPTI", "host"),
    (r"Host CPUs|Syscalls|/host:tfstreamz", "host"),
    (r"/host:metadata|/host:__ScopeRangeCallStack__", "metadata"),
    (r"Task Environment", "task"),
)
PLANE_KINDS = (*dict.fromkeys(kind for _, kind in _PLANES), "unknown")
_LINES = (
    (r"XLA Modules|Sparse Core Modules", "modules"),
    (r"XLA Ops|Sparse Core Ops|Stream #.*", "ops"),
    (r"Async XLA Ops", "async_ops"),
    (r"Steps|Sparse Core Steps", "steps"),
    (r"XLA TraceMe", "trace_me"),
    (r"_counters_|counters_\d+", "counters"),
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


def plane_kind(name: str) -> str:
    """One of PLANE_KINDS."""
    return next((kind for pattern, kind in _PLANE_PATTERNS if pattern.fullmatch(name)), "unknown")


def line_kind(plane: str, name: str) -> str:
    """One of LINE_KINDS: a host plane's line is a thread, unless its name says otherwise; on Megascale planes dcn."""
    found = next((kind for pattern, kind in _LINE_PATTERNS if pattern.fullmatch(name)), None)
    if found is not None:
        return found
    return {"host": "thread", "megascale": "dcn"}.get(plane_kind(plane), "unknown")
