"""Gives instructions the costs that a user states for their kernels, and finds how much time has no cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.devices.flags import Flag
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.opcodes import kernel_name

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.costs import Costs

_MOST_UNSIZED = 0.1
"""Share of the compute time that may lack a cost; a larger share is flagged."""


def give_costs(rows: Iterable[InstructionRow], costs: Costs | None) -> list[Flag]:
    """Set the given costs of the instructions that compute, and return a flag that names the file and its patterns.

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


def unsized_time(rows: Sequence[InstructionRow], time_ps: Iterable[npt.NDArray[np.float64]]) -> Iterator[Flag]:
    """Yield a flag if much of the compute time is in ops whose bytes or operations are unknown while others' are known.

    Args:
        rows: the instructions of the run, with the given costs.
        time_ps: self time by instruction id, of parts of the run.
    """
    total = np.zeros(len(rows))
    for of_part in time_ps:
        total[: len(of_part)] += of_part
    computing = [(row, ps) for row, ps in zip(rows, total.tolist(), strict=True) if ps and row.op_class == "compute"]
    compute_ps = sum(ps for _, ps in computing)
    unsized: dict[str, dict[str, float]] = {}
    for what, stated in (("bytes", "bytes_accessed"), ("flops", "model_flops")):
        kernels: dict[str, float] = {}
        for row, ps in computing:
            if not _is_sized(row, getattr(row.given, what, None), getattr(row, stated)):
                kernels[kernel_name(row.name)] = kernels.get(kernel_name(row.name), 0) + ps
        if _MOST_UNSIZED * compute_ps < sum(kernels.values()) < compute_ps:
            unsized[what] = kernels
    if unsized:
        shares = " and ".join(f"the {what} of {sum(k.values()) / compute_ps:.0%}" for what, k in unsized.items())
        of_kernel = max(unsized.values(), key=lambda k: sum(k.values()))
        longest = sorted(of_kernel.items(), key=lambda item: (-item[1], item[0]))[:3]
        kernels_named = ", ".join(f"{shown(n)} {ps / compute_ps:.0%}" for n, ps in longest if ps >= compute_ps / 100)
        sentence = (
            f"{shares} of the compute time are unknown ({kernels_named}); give them with `--costs FILE` at ingest"
        )
        yield Flag("unsized_time", sentence)


def _is_sized(row: InstructionRow, given: int | None, stated: int | None) -> bool:
    if given is not None:
        return True
    is_custom = row.hlo is not None and row.hlo.opcode == "custom-call"
    return bool(stated) if is_custom else stated is not None
