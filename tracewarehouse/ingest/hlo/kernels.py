"""Recognises a collective of NCCL, RCCL or XLA, or a copy, by the name of its GPU kernel, if there is no HLO for it."""

from __future__ import annotations

import re
from functools import lru_cache

_COLLECTIVE = re.compile(r"(?:void )?(?:(?:nccl|rccl)(?:Symk?)?(?:Dev)?|(msccl))Kernel_([A-Za-z]+)", re.ASCII)
_XLA_ALL_REDUCE = re.compile(r"(?:void )?stream_executor::gpu::AllReduceKernelImpl<")
_KINDS = {
    "AllGather": "all-gather",
    "AllReduce": "all-reduce",
    "AllToAll": "all-to-all",
    "AllToAllPivot": "all-to-all",
    "AlltoAll": "all-to-all",
    "Broadcast": "collective-broadcast",
    "ReduceScatter": "reduce-scatter",
    "SendRecv": "send",
}
_OTHERS = frozenset({"Generic", "GenericOp"})
_COPY = re.compile(r"(?i:memcpy)[A-Za-z0-9]*|__amd_rocclr_copyBuffer\w*(?:\.kd)?")
_NUMBER = re.compile(r"(?:-start)?(?:\.\d+|\.clone)*")


@lru_cache(maxsize=1 << 12)
def collective_kind(kernel: str, op: str, kinds: frozenset[str]) -> str | None:
    """Return the kind of collective that a kernel of NCCL, RCCL or XLA executes; None for any other kernel.

    A kernel that sends and receives, a generic one, or one of RCCL's own algorithms (MSCCL) serves several kinds. Then
    the name of the HLO op decides, which XLA derives from its opcode. Without such a name, a kernel that sends and
    receives counts as a send.

    Args:
        kernel: its name, as ncclDevKernel_AllReduce_Sum_f32_RING_LL or rccl's.
        op: name of the HLO instruction that launched it, or the kernel's own name.
        kinds: the kinds of collectives.
    """
    if _XLA_ALL_REDUCE.match(kernel):
        return "all-reduce"
    match = _COLLECTIVE.match(kernel)
    if match is None:
        return None
    kind = _KINDS.get(match[2])
    if kind is None and match[2] not in _OTHERS and not match[1]:
        return None
    if kind in (None, "send"):
        named = (k for k in kinds if op.startswith(k) and _NUMBER.fullmatch(op[len(k) :]))
        return next(named, kind)
    return kind


@lru_cache(maxsize=1 << 12)
def is_memcpy(kernel: str) -> bool:
    """True if an event of a stream is a copy by the driver: such as MemcpyD2H, or the copy kernel of AMD's runtime."""
    return _COPY.fullmatch(kernel) is not None
