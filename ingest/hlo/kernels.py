"""Recognises a collective of NCCL or RCCL, or a copy, by the name of its GPU kernel, if there is no HLO for it."""

from __future__ import annotations

import re
from functools import lru_cache

_COLLECTIVE = re.compile(r"(?:void )?(?:nccl|rccl)(?:Dev)?Kernel_([A-Za-z]+)", re.ASCII)
_KINDS = {
    "AllGather": "all-gather",
    "AllReduce": "all-reduce",
    "AllToAll": "all-to-all",
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
    """The kind of collective that a kernel of NCCL or RCCL executes; None for any other kernel.

    A kernel that sends and receives, or a generic one, serves several kinds: there the HLO op's name decides, which XLA
    makes of its opcode. Without one a kernel that sends and receives counts as a send.

    Args:
        kernel: its name, as ncclDevKernel_AllReduce_Sum_f32_RING_LL or rccl's.
        op: name of the HLO instruction that launched it; the kernel's own where none did.
        kinds: the kinds of collectives.
    """
    found = _COLLECTIVE.match(kernel)
    if found is None:
        return None
    kind = _KINDS.get(found[1])
    if kind is None and found[1] not in _OTHERS:
        return None
    if kind in (None, "send"):
        named = (k for k in kinds if op.startswith(k) and _NUMBER.fullmatch(op[len(k) :]))
        return next(named, kind)
    return kind


@lru_cache(maxsize=1 << 12)
def is_memcpy(kernel: str) -> bool:
    """Whether an event of a stream is a copy by the driver: MemcpyD2H and its like, or the kernel AMD's runtime has."""
    return _COPY.fullmatch(kernel) is not None
