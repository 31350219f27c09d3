"""Gives the instructions of a run the costs that a user knows of their kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tracewarehouse.ingest.devices.quality import Flag
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instructions import InstructionRow
from tracewarehouse.ingest.hlo.opcodes import kernel_name

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs


def give_costs(rows: Iterable[InstructionRow], costs: Costs | None) -> list[Flag]:
    """Set the given costs of the instructions that compute, and return a flag that says whose they are.

    Args:
        rows: the instructions of the run.
        costs: the costs by pattern of kernel names; None if the user gave none.
    """
    if costs is None:
        return []
    matched: Counter[str] = Counter()
    for row in rows:
        pattern = costs.pattern_of(kernel_name(row.name)) if row.op_class == "compute" else None
        if pattern is not None:
            row.given = costs.kernels[pattern]
            matched[pattern] += 1
    used = [f"{shown(p)} ({matched[p]} instructions)" for p in costs.kernels if matched[p]]
    unused = [shown(p) for p in costs.kernels if not matched[p]]
    sentence = f"{shown(costs.name)} gives the costs of {', '.join(used) or 'no kernel of the run'}"
    return [Flag("given_costs", f"{sentence}; {', '.join(unused)} matches none" if unused else sentence)]
