"""Layers of programs that name none: what repeats in a few executions of each, if it is sure enough to be told."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.hlo.instructions import InstructionRow
from tracewarehouse.ingest.hlo.op_name import layer_and_part, stage_layer_and_tick
from tracewarehouse.ingest.layers.parts import is_norm, parts_in_layers, said_part
from tracewarehouse.ingest.layers.repetition import MIN_CONFIDENCE, MIN_LAYERS, Pieces, find_pieces
from tracewarehouse.ingest.layers.sequence import Execution, OpSequence, kind_of

MIN_PRODUCTS = 3
"""Different products in a layer, without collectives: fewer are a loop of a benchmark."""
Program = tuple[str, int | None]
"""Module name and program id."""


@dataclass(frozen=True)
class ProgramLayers:
    """What the executions of a program say of its layers.

    Attributes:
        program: its module name and id.
        is_marked: names of its instructions say layers; nothing is inferred.
        count: layers that were found; 0 where there are none.
        confidence: how sure it is, from 0 to 1.
        refusal: why no layer is told; None where they are.
        layer: layer by instruction id, without what is in none; empty where refused.
        part: part by instruction id, of those in a layer.
    """

    program: Program
    is_marked: bool = False
    count: int = 0
    confidence: float = 0.0
    refusal: str | None = None
    layer: dict[int, int] = field(default_factory=dict)
    part: dict[int, str] = field(default_factory=dict)

    @property
    def is_inferred(self) -> bool:
        """Whether layers are told that no name says."""
        return not self.is_marked and self.refusal is None


def infer_layers(executions: Iterable[Execution], rows: Sequence[InstructionRow]) -> list[ProgramLayers]:
    """Infer the layers of each program from some executions of it, in the order in which programs are first met.

    Args:
        executions: a few of each program, best three on each device.
        rows: the instructions by id; their texts have been read.
    """
    of_program: defaultdict[Program, list[Execution]] = defaultdict(list)
    for e in executions:
        of_program[e.module, e.program_id].append(e)
    return [_of_program(program, found, rows) for program, found in of_program.items()]


def programs_with_layers(executions: Iterable[Execution], rows: Sequence[InstructionRow]) -> set[Program]:
    """The programs that run transformer layers, by the names of their instructions or by what repeats in them.

    A server launches such a program once per step, and beside it small ones that sample or copy.

    Args:
        executions: a few of each program.
        rows: the instructions by id; their texts have been read.
    """
    return {p.program for p in infer_layers(executions, rows) if p.is_marked or p.is_inferred}


@dataclass
class _Order:
    """Executions that run the same instructions in the same order, which a compiled schedule makes the rule."""

    instruction_id: npt.NDArray[np.int32]
    time: npt.NDArray[np.float64]
    count: int = 1


def _of_program(program: Program, executions: Sequence[Execution], rows: Sequence[InstructionRow]) -> ProgramLayers:
    if _is_marked(executions, rows):
        return ProgramLayers(program, is_marked=True)
    orders: dict[bytes, _Order] = {}
    for e in executions:
        if e.has_loop or len(np.unique(e.instruction_id)) < len(e.instruction_id):
            return ProgramLayers(program, refusal="an instruction runs several times in an execution, as in a loop")
        if e.is_cut or not len(e.instruction_id):
            continue
        same = orders.setdefault(e.instruction_id.tobytes(), _Order(e.instruction_id, np.zeros(len(e.self_ps)), 0))
        same.time += e.self_ps
        same.count += 1
    if not orders:
        return ProgramLayers(program, refusal="every execution lacks ops at its start or end")
    votes = _Votes(rows)
    for order in orders.values():
        votes.add(order)
    return votes.result(program)


def _is_marked(executions: Sequence[Execution], rows: Sequence[InstructionRow]) -> bool:
    """Whether any instruction names a layer, of the model or of a stage."""
    used = {i for e in executions for i in e.instruction_id.tolist()}
    return any(
        layer_and_part(rows[i].op_name)[0] is not None or stage_layer_and_tick(rows[i].op_name) != (None, None)
        for i in used
    )


class _Votes:
    """What the executions of a program say, instruction by instruction."""

    def __init__(self, rows: Sequence[InstructionRow]) -> None:
        self._rows = rows
        self._found: list[tuple[Pieces, int]] = []
        self._layer: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._part: defaultdict[int, Counter[str | None]] = defaultdict(Counter)
        self._time: Counter[int] = Counter()

    def add(self, order: _Order) -> None:
        """Count the votes of some executions."""
        ids = order.instruction_id.tolist()
        rows = [self._rows[i] for i in ids]
        sequence = OpSequence.of([kind_of(row) for row in rows], order.time)
        pieces = find_pieces(sequence)
        self._found.append((pieces, order.count))
        parts = parts_in_layers(
            [said_part(row.name, row.op_name) for row in rows],
            np.array([is_norm(row.name, row.op_name) for row in rows], bool),
            pieces.layer,
            sequence.contracts,
            sequence.moves,
        )
        for i, layer, part, time in zip(ids, pieces.layer.tolist(), parts, order.time.tolist(), strict=True):
            self._layer[i][layer] += order.count
            self._part[i][part] += order.count
            self._time[i] += int(time)

    def result(self, program: Program) -> ProgramLayers:
        """What most executions agree on, or why nothing is told."""
        counts: Counter[int] = Counter()
        for pieces, n in self._found:
            counts[pieces.count] += n
        count, n = counts.most_common(1)[0]
        same = [pieces for pieces, _ in self._found if pieces.count == count]
        agreed = sum(time for i, time in self._time.items() if len(self._layer[i]) == 1)
        agreement = agreed / max(self._time.total(), 1) * n / counts.total()
        confidence = float(np.median([p.confidence for p in same])) * agreement
        layer = {i: found for i, v in self._layer.items() if (found := v.most_common(1)[0][0]) >= 0}
        refusal = self._refusal(count, confidence, int(np.median([p.products for p in same])), layer)
        if refusal:
            return ProgramLayers(program, count=count, confidence=confidence, refusal=refusal)
        part = {i: said for i in layer if (said := self._part[i].most_common(1)[0][0])}
        return ProgramLayers(program, False, count, confidence, None, layer, part)

    def _refusal(self, count: int, confidence: float, products: int, layer: dict[int, int]) -> str | None:
        collectives = (self._rows[i].collective for i in layer)
        if count == 0:
            return "no product or collective repeats"
        if any(c is not None and c.kind == "collective-permute" for c in collectives):
            return "collective-permutes between the pieces: stages and ticks of a pipeline, not layers"
        if count < MIN_LAYERS:
            return f"{count} equal pieces prove nothing"
        if products < MIN_PRODUCTS:
            return f"{products} different products in a piece are no layer of a transformer"
        if confidence < MIN_CONFIDENCE:
            return f"a confidence of {confidence:.2f} is below {MIN_CONFIDENCE}"
        return None
