"""Executions and instructions of an ingested run without what their names say of layers, and what they said."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.shapes import parse_shape
from tracewarehouse.ingest.layers.sequence import Execution

_LAYER = re.compile(r"[^/;]*(?:layer|tick)[^/;]*")
_USES = re.compile(r"\.\d+(?=/|;|$)")


@dataclass(frozen=True)
class Hidden:
    """A run whose marks are hidden.

    Attributes:
        executions: the first three of each program on each device.
        rows: the instructions by id.
        layer: the layer that the names told, by instruction id.
        time: self time of leaf ops by instruction id.
    """

    executions: list[Execution]
    rows: list[InstructionRow]
    layer: dict[int, int]
    time: dict[int, int]


def hide_marks(query: Any, run_id: str, *, names_too: bool = False) -> Hidden:
    """The run without the scopes of layers in op_name, or without op_name and source."""
    rows, layer = [], {}
    facts = """SELECT name, program_id, module, category, opcode, shape, op_name, source, layer
               FROM instructions WHERE run_id = ? ORDER BY instruction_id"""
    for i, (name, program, module, category, opcode, shape, op_name, source, told) in enumerate(query(facts, run_id)):
        hlo = Instruction(name, opcode, parse_shape(shape)) if opcode else None
        row = InstructionRow(name, program, module, category, hlo)
        if not names_too:
            row.op_name, row.source = _LAYER.sub("", _USES.sub("", op_name or "")) or None, source
        rows.append(row)
        if told is not None:
            layer[i] = told
    ops = query(
        """SELECT device_id, execution, instruction_id, self_ps FROM ops
           WHERE run_id = ? AND is_leaf AND execution IS NOT NULL ORDER BY device_id, execution, start_ps""",
        run_id,
    )
    of_execution: defaultdict[tuple[int, int, str, int | None], list[tuple[int, int]]] = defaultdict(list)
    time: defaultdict[int, int] = defaultdict(int)
    for device, execution, i, self_ps in ops:
        time[i] += self_ps
        of_execution[device, execution, rows[i].module or "", rows[i].program_id].append((i, self_ps))
    executions = []
    seen: defaultdict[tuple[int, str, int | None], int] = defaultdict(int)
    for (device, _, module, program), found in of_execution.items():
        seen[device, module, program] += 1
        if seen[device, module, program] <= 3:
            ids, times = zip(*found, strict=True)
            executions.append(Execution(module, program, device, np.array(ids, np.int32), np.array(times, np.int64)))
    return Hidden(executions, rows, layer, dict(time))
