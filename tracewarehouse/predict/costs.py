"""Counts the operations and bytes of a compiled program's instructions, as XLA's cost analysis states them to profilers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tracewarehouse.ingest.hlo.modules import HloModule


@dataclass(frozen=True)
class OpCost:
    """One execution of an instruction; None where a number is not known.

    Attributes:
        category: the profiler's category, such as 'convolution fusion', where it is not that of the opcode.
        flops: floating-point operations of its matrix products.
        bytes: bytes that it reads and writes, in all memories.
        hbm_bytes: the part of them in HBM.
    """

    category: str | None = None
    flops: int | None = None
    bytes: int | None = None
    hbm_bytes: int | None = None


def op_costs(module: HloModule, names: Collection[str]) -> Mapping[str, OpCost]:
    """Return the costs of some of a program's instructions, by name."""
    return {}
