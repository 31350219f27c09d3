"""Finds the executions of programs on a GPU from the ops of its streams, because its planes have no line of modules."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tracewarehouse.ingest.columns.batches import codes, integers
from tracewarehouse.ingest.columns.records import EventBatch, Int64
from tracewarehouse.ingest.devices.timeline import Run


def launches(batches: Iterable[EventBatch]) -> list[Run]:
    """Find the executions on one GPU, sorted by start.

    A new execution of a program begins after another program has run, and whenever the program's first op runs again.
    An op in a loop runs several times in one execution. The first op is therefore the earliest among the ops that run
    least often, or once more than these, as the end of the capture may cut off an execution.

    Args:
        batches: events of all streams, on the run's clock.
    """
    columns: list[list[Int64]] = [[], [], [], []]
    programs: dict[tuple[str, int | None], int] = {}
    ops: dict[str, int] = {}
    for batch in batches:
        n = len(batch)
        stats = {s.name: s for s in batch.stats}
        op, op_names = codes(stats.get("hlo_op"), n)
        module, module_names = codes(stats.get("hlo_module"), n)
        number, has_number = integers(stats.get("program_id"), n)
        at = np.flatnonzero((op >= 0) & (module >= 0))
        if not len(at):
            continue
        keys = zip(module[at].tolist(), number[at].tolist(), has_number[at].tolist(), strict=True)
        program = [
            programs.setdefault((module_names[m], p % (1 << 64) if has else None), len(programs)) for m, p, has in keys
        ]
        op_code = np.array([ops.setdefault(name, len(ops)) for name in op_names] or [0], np.int64)[op[at]]
        kernel = (op_code << 31) + batch.metadata[at]
        start = batch.start_ps[at]
        for column, values in zip(
            columns, (np.array(program, np.int64), kernel, start, start + batch.duration_ps[at]), strict=True
        ):
            column.append(values)
    if not columns[0]:
        return []
    program_of, kernel_of, start, end = (np.concatenate(c) for c in columns)
    order = np.argsort(start, kind="stable")
    program_of, kernel_of, start, end = program_of[order], kernel_of[order], start[order], end[order]
    is_first = np.diff(program_of, prepend=-1) != 0
    for code in range(len(programs)):
        at = np.flatnonzero(program_of == code)
        is_first[at[_delimiters(kernel_of[at])]] = True
    first = np.flatnonzero(is_first)
    last = np.maximum.reduceat(end, first)
    names = [list(programs)[p] for p in program_of[first].tolist()]
    edges = zip(names, start[first].tolist(), last.tolist(), strict=True)
    return [Run(module, number, low, high) for (module, number), low, high in edges]


def _delimiters(kernel: Int64) -> Int64:
    """Return the positions of a program's first op among its ops in order of start, without its very first event."""
    _, first, count = np.unique(kernel, return_index=True, return_counts=True)
    least = int(count.min())
    often = count <= (least + 1 if least > 1 else 1)
    chosen = int(first[often].min())
    at: Int64 = np.flatnonzero(kernel == kernel[chosen])
    return at[1:]
