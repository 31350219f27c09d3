"""Finds out from the shapes of its matrix products whether a program prefills or decodes, if no name says so.

A prefill step runs the layers on all tokens of its prompts, but the output head on one token of each prompt. A decode
step runs both on one token of each sequence.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from tracewarehouse.ingest.columns.keys import packed
from tracewarehouse.ingest.columns.profiler_names import OP_LINE
from tracewarehouse.ingest.devices.sampled_executions import sampled_until
from tracewarehouse.ingest.devices.survey import HostSurvey
from tracewarehouse.ingest.devices.timeline import Timeline
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.instructions import Instructions

_FIRST_EVENTS = 1 << 17
"""Number of the first op events of a device that are read."""
_FEWEST = 8
"""Fewest products with the same number of tokens in a program with layers."""
_PREFILL_RATIO, _OTHER_RATIO = 16, 4
"""Ratio of tokens to output rows from which on a program prefills (padding less than doubles either), and ratio to
another program's tokens."""
_PRODUCT = re.compile(r"convolution|dot|gemm|matmul")
_HEAD = re.compile(r"lm_head|logits|unembed")

Program = tuple[str, int | None]
"""Module and program id."""


def phases_of_programs(surveys: Sequence[HostSurvey], instructions: Instructions) -> dict[Program, str]:
    """Find the phase of the programs on the run's first TPU, if shapes show it; numbers their instructions.

    Raises:
        CaptureError: the bytes are not events, or the file changed.
    """
    for survey in surveys:
        for position, core in survey.planes.items():
            if core.is_sparse_core or core.device.backend == "gpu":
                continue
            time = _times(survey, position, core.timeline, instructions)
            if time:
                return _phases(time, instructions)
    return {}


def _times(
    survey: HostSurvey, position: int, timeline: Timeline, instructions: Instructions
) -> dict[tuple[Program, int], int]:
    """Device time by program and instruction, in the executions up to the third of each program."""
    if not timeline.runs:
        return {}
    plane, until = survey.host.trace.planes[position], sampled_until(timeline.runs)
    of_row = instructions.add_metadata(plane, survey.modules)
    numbers: dict[Program, int] = {}
    of_run = np.array([numbers.setdefault((r.module, r.program_id), len(numbers)) for r in timeline.runs] + [-1])
    programs = list(numbers)
    time: Counter[tuple[Program, int]] = Counter()
    count = 0
    for line in plane.lines:
        if line.name != OP_LINE:
            continue
        for batch in survey.host.trace.batches(plane, line):
            start = batch.start_ps + survey.host.clock_offset_ps
            program, instruction = of_run[timeline.executions_at(start)], of_row[batch.metadata]
            _, first, inverse = np.unique(packed([program, instruction]), return_index=True, return_inverse=True)
            total = np.bincount(inverse, batch.duration_ps)
            columns = (program[first].tolist(), instruction[first].tolist(), total.tolist())
            for number, of_instruction, ps in zip(*columns, strict=True):
                if number >= 0:
                    time[programs[number], of_instruction] += int(ps)
            count += len(batch)
            if count >= _FIRST_EVENTS or (len(start) and start[-1] >= until):
                break
    return dict(time)


def _phases(time: dict[tuple[Program, int], int], instructions: Instructions) -> dict[Program, str]:
    layers: dict[Program, Counter[int]] = {}
    products: dict[Program, Counter[int]] = {}
    heads: dict[Program, Counter[int]] = {}
    for (program, number), ps in time.items():
        row = instructions.rows[number]
        tokens = _tokens(row)
        if tokens is None:
            continue
        if _HEAD.search(f"{row.op_name} {program[0]}"):
            heads.setdefault(program, Counter())[tokens] += ps
        else:
            layers.setdefault(program, Counter())[tokens] += ps
            products.setdefault(program, Counter())[tokens] += 1
    tokens_of = {p: c.most_common(1)[0][0] for p, c in layers.items()}
    tokens_of = {p: n for p, n in tokens_of.items() if products[p][n] >= _FEWEST}
    sampled = {p: c.most_common(1)[0][0] for p, c in heads.items()}
    shared = next(iter(sampled.values())) if len(set(sampled.values())) == 1 else None
    phase_of = {}
    for program, tokens in tokens_of.items():
        alike = [
            n
            for p, n in tokens_of.items()
            if p != program and sum(products[p].values()) == sum(products[program].values())
        ]
        phase = phase_of_shapes(tokens, sampled.get(program, shared), alike)
        if phase:
            phase_of[program] = phase
    return phase_of


def _tokens(row: InstructionRow) -> int | None:
    """Return the product of all dimensions but the last of a matrix product's result; None for other instructions."""
    opcode = row.hlo.opcode if row.hlo else ""
    if row.collective or not row.hlo or not _PRODUCT.search(f"{row.category} {opcode}"):
        return None
    dimensions = [d for d in row.hlo.shape.dimensions if d is not None]
    return math.prod(dimensions[:-1]) if len(dimensions) > 1 else None


def phase_of_shapes(tokens: int, sampled: int | None, others: Sequence[int]) -> str | None:
    """Prefill or decode, from the padded number of tokens in the layers; None if it does not show the phase.

    A batch that both prefills and decodes looks like prefill. One output row for each token does not prove decode: the
    program may compute the logits of all tokens of a short prompt.

    Args:
        tokens: tokens that the program's layers run on.
        sampled: rows of the output head.
        others: tokens of the run's other programs with the same products.
    """
    if sampled and tokens >= _PREFILL_RATIO * sampled:
        return "prefill"
    if others and tokens >= _OTHER_RATIO * min(others):
        return "prefill"
    if others and _OTHER_RATIO * tokens <= max(others):
        return "decode"
    return None
