"""Keeps the ops of a few executions of each program on a device, while all ops are written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.devices.timeline import Run
from tracewarehouse.ingest.layers.sequence import Execution

EXECUTIONS = 3
"""Number of executions of a program that are kept on each device."""
MOST_OPS = 1 << 16
"""Most ops of an execution that are kept; a program that runs more has loops."""
_LACKING, _LACKING_AT_EDGE = 5, 50
"""An execution is cut if more than a fifth of it lies before its ops, or after; at the profile's edges, a fiftieth."""


class SampledExecutions:
    """The leaf ops of some executions of a device.

    Args:
        device_id: the device.
        runs: its executions, by start.
    """

    def __init__(self, device_id: int, runs: Sequence[Run]) -> None:
        self._device_id = device_id
        self._runs = runs
        self._is_wanted = np.zeros(len(runs) + 1, bool)  # the last one is for ops in no execution
        self._is_wanted[_chosen(runs)] = True
        self._ops: defaultdict[int, list[tuple[Int32, Int64, Int64]]] = defaultdict(list)
        self._count = np.zeros(len(runs), np.int64)

    def follow(self, execution: Int32, instruction: Int32, start: Int64, self_ps: Int64, is_leaf: Flags) -> None:
        """Keep the wanted ones among some events of an op line; arrays of shape (n,), times in ps."""
        at = np.flatnonzero(self._is_wanted[execution])
        at = at[is_leaf[at]]
        if not len(at):
            return
        self._count += np.bincount(execution[at], minlength=len(self._runs))
        for number in np.unique(execution[at]).tolist():
            if self._count[number] > MOST_OPS:
                self._is_wanted[number] = False
                self._ops[number].clear()
            else:
                of_run = at[execution[at] == number]
                self._ops[number].append((instruction[of_run], start[of_run], self_ps[of_run]))

    def executions(self) -> list[Execution]:
        """The executions that were kept; complete once `follow` has seen all ops of the device."""
        return [self._execution(number, ops) for number, ops in sorted(self._ops.items())]

    def _execution(self, number: int, ops: list[tuple[Int32, Int64, Int64]]) -> Execution:
        run = self._runs[number]
        has_loop = not ops
        if has_loop:
            none = np.zeros(0, np.int64)
            return Execution(run.module, run.program_id, self._device_id, none.astype(np.int32), none, has_loop=True)
        instruction, start, self_ps = (np.concatenate(columns) for columns in zip(*ops, strict=True))
        order = np.argsort(start, kind="stable")
        lacking = max(int(start.min()) - run.start_ps, run.end_ps - int((start + self_ps).max()))
        is_edge = number in (0, len(self._runs) - 1)
        is_cut = lacking * (_LACKING_AT_EDGE if is_edge else _LACKING) > run.end_ps - run.start_ps
        return Execution(run.module, run.program_id, self._device_id, instruction[order], self_ps[order], is_cut)


def sampled_until(runs: Sequence[Run]) -> int:
    """Return the end of the last execution that is kept of a device, which has at least one."""
    return max(runs[i].end_ps for i in _chosen(runs))


def _chosen(runs: Sequence[Run]) -> list[int]:
    """Return the first executions of each program; those at the profile's edges, which may be cut, only if need be."""
    of_program: defaultdict[tuple[str, int | None], list[int]] = defaultdict(list)
    edges = (0, len(runs) - 1)
    for i in sorted(range(len(runs)), key=lambda i: (i in edges, i)):
        sampled = of_program[runs[i].module, runs[i].program_id]
        if len(sampled) < EXECUTIONS:
            sampled.append(i)
    return [i for sampled in of_program.values() for i in sampled]
