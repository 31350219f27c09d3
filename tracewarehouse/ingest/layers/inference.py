"""Infers the layers and parts of programs that do not name them, from repetition in a few executions."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part, stage_layer_and_tick
from tracewarehouse.ingest.layers.repetition import MIN_CONFIDENCE, MIN_LAYERS, Pieces, find_pieces
from tracewarehouse.ingest.layers.sequence import Execution, Kind, OpSequence, op_kind

_BLOCKS = frozenset({"attn", "mlp", "moe"})
_NORM = re.compile(r"rsqrt|aten::mean|variance|rms_?norm|layer_?norm|aten(?:__|::)pow", re.IGNORECASE)
_HINTS = (
    ("moe", re.compile(r"gmm|megablox|ragged_dot", re.IGNORECASE)),
    ("attn", re.compile(r"\brpa-|flash|index_copy|softmax", re.IGNORECASE)),
    ("mlp", re.compile(r"MergedColumnParallel|silu|swiglu", re.IGNORECASE)),
)
"""Kernels and functions that identify a part, but only in a layer: outside, a sampler has a softmax too."""


def said_part(name: str, op_name: str | None) -> str | None:
    """Return the part that an instruction's names state if it is in a layer; None if they state none."""
    _, part = layer_and_part(op_name)
    text = f"{op_name or ''} {name}"
    return part or next((p for p, pattern in _HINTS if pattern.search(text)), None)


def is_norm(name: str, op_name: str | None) -> bool:
    """Return whether the functions of an instruction are those of a norm."""
    return _NORM.search(f"{op_name or ''} {name}") is not None


def parts_in_layers(
    said: Sequence[str | None], norms: Flags, layer: Int64, contracts: Flags, moves: Flags
) -> list[str | None]:
    """Return the part of each op of an execution; None if the op is in no layer or its part is unknown.

    Args:
        said: the part that the names of each op state.
        norms: which ops have the functions of a norm, shape (n,).
        layer: layer of each op, -1 for none, shape (n,).
        contracts: products and collectives, shape (n,).
        moves: copies, shape (n,).
    """
    parts: list[str | None] = [None] * len(said)
    for number in range(int(layer.max(initial=-1)) + 1):
        at = np.flatnonzero(layer == number).tolist()
        of_layer = _of_layer([said[i] for i in at], [bool(contracts[i]) for i in at], [bool(moves[i]) for i in at])
        for i, part in zip(at, of_layer, strict=True):
            parts[i] = part or ("norm" if norms[i] else None)
    return parts


def _of_layer(said: list[str | None], contracts: list[bool], moves: list[bool]) -> list[str | None]:
    is_seed = [part in _BLOCKS and c for part, c in zip(said, contracts, strict=True)]
    if len({part for part, seed in zip(said, is_seed, strict=True) if seed}) < 2:
        return said  # names of one kind of block do not tell where another kind begins
    parts = list(said)
    block: str | None = None
    pending: list[int] = []
    for i, part in enumerate(said):
        if is_seed[i] and part != block:
            for p in pending:
                if said[p] in (None, block) and not moves[p]:
                    parts[p] = "norm"
                else:
                    parts[p] = said[p] or part
            block, pending = part, []
        elif contracts[i] or (block and part == block):
            for p in pending:
                parts[p] = said[p] or block
            parts[i], pending = part or block, []
        else:
            pending.append(i)
    for p in pending:
        parts[p] = said[p] or block
    return parts


MIN_PRODUCTS = 3
"""Fewest different products in a layer, without collectives; with fewer, it is the loop of a benchmark."""
_TRIED = 2
"""Orders of a program's ops that are tried before it counts as a program without layers."""
Program = tuple[str, int | None]
"""Module name and program id."""


@dataclass(frozen=True)
class ProgramLayers:
    """The layers of a program, inferred from its executions.

    Attributes:
        program: module name and id.
        is_marked: names of its instructions state layers, so nothing is inferred.
        count: number of layers found.
        confidence: confidence of the inference, from 0 to 1.
        refusal: why no layers are inferred; None if they are.
        layer: layer by instruction id; instructions in no layer are absent; empty if refused.
        part: part by instruction id, for instructions in a layer.
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
        """True if layers were inferred that no name states."""
        return not self.is_marked and self.refusal is None


def infer_layers(
    executions: Iterable[Execution], rows: Sequence[InstructionRow], *, with_parts: bool = True
) -> list[ProgramLayers]:
    """Infer the layers of each program from some executions of it, in the order in which programs are first met.

    Args:
        executions: a few of each program, ideally three on each device.
        rows: the instructions by id; their texts have been read.
        with_parts: infer the parts too.
    """
    by_program: defaultdict[Program, list[Execution]] = defaultdict(list)
    for e in executions:
        by_program[e.module, e.program_id].append(e)
    return [_program_layers(p, its, rows, with_parts) for p, its in by_program.items()]


def programs_with_layers(executions: Iterable[Execution], rows: Sequence[InstructionRow]) -> set[Program]:
    """Find the programs that run transformer layers, by the names of their instructions or by the repetition in them.

    A server launches such a program once per step, and also small programs that sample or copy.

    Args:
        executions: a few of each program.
        rows: the instructions by id; their texts have been read.
    """
    return {p.program for p in infer_layers(executions, rows, with_parts=False) if p.is_marked or p.is_inferred}


@dataclass
class _Order:
    """Executions that run the same instructions in the same order, as compiled schedules usually do."""

    instruction_id: npt.NDArray[np.int32]
    time: npt.NDArray[np.float64]
    count: int = 1


def _program_layers(
    program: Program, executions: Sequence[Execution], rows: Sequence[InstructionRow], with_parts: bool
) -> ProgramLayers:
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
        if votes.are_hopeless:
            break
    return votes.result(program, with_parts)


def _is_marked(executions: Sequence[Execution], rows: Sequence[InstructionRow]) -> bool:
    used = np.unique(np.concatenate([e.instruction_id for e in executions])).tolist()
    return any(
        layer_and_part(rows[i].op_name)[0] is not None or stage_layer_and_tick(rows[i].op_name) != (None, None)
        for i in used
    )


class _Votes:
    """The votes of a program's executions, instruction by instruction."""

    def __init__(self, rows: Sequence[InstructionRow]) -> None:
        self._rows = rows
        self._kinds: dict[int, Kind] = {}
        self._found: list[tuple[_Order, OpSequence, Pieces]] = []

    def add(self, order: _Order) -> None:
        """Count the votes of some executions."""
        ids = order.instruction_id.tolist()
        for i in ids:
            if i not in self._kinds:
                self._kinds[i] = op_kind(self._rows[i])
        sequence = OpSequence.from_kinds([self._kinds[i] for i in ids], order.time)
        self._found.append((order, sequence, find_pieces(sequence)))

    @property
    def are_hopeless(self) -> bool:
        """True if several orders of ops have been tried and none has confident layers."""
        return len(self._found) >= _TRIED and all(p.confidence < MIN_CONFIDENCE for _, _, p in self._found)

    def result(self, program: Program, with_parts: bool) -> ProgramLayers:
        """Return the result on which most executions agree, or the reason for a refusal."""
        counts: Counter[int] = Counter()
        for order, _, pieces in self._found:
            counts[pieces.count] += order.count
        count, n = counts.most_common(1)[0]
        same = [pieces for _, _, pieces in self._found if pieces.count == count]
        layer, agreement = self._layers()
        confidence = float(np.median([p.confidence for p in same])) * agreement * n / counts.total()
        refusal = self._refusal(count, confidence, int(np.median([p.products for p in same])), layer)
        if refusal:
            return ProgramLayers(program, count=count, confidence=confidence, refusal=refusal)
        return ProgramLayers(program, False, count, confidence, None, layer, self._parts(layer) if with_parts else {})

    def _layers(self) -> tuple[dict[int, int], float]:
        """Return the layer that most executions give each instruction, and the share of time on which all agree."""
        ids = np.concatenate([order.instruction_id for order, _, _ in self._found])
        layers = np.concatenate([pieces.layer for _, _, pieces in self._found])
        counts = np.concatenate([np.full(len(order.time), order.count) for order, _, _ in self._found])
        times = np.concatenate([order.time for order, _, _ in self._found])
        votes, which = np.unique(np.column_stack([ids, layers]), axis=0, return_inverse=True)
        which = which.reshape(-1)
        weight = np.bincount(which, weights=counts)
        by_weight = np.lexsort((weight, votes[:, 0]))
        layer = dict(votes[by_weight].tolist())  # of an instruction's votes, the last one stays
        is_agreed = np.bincount(votes[:, 0])[votes[:, 0]] == 1
        agreement = float(times[is_agreed[which]].sum() / max(times.sum(), 1.0))
        return {i: number for i, number in layer.items() if number >= 0}, agreement

    def _parts(self, layer: dict[int, int]) -> dict[int, str]:
        """Return the part that most executions give each instruction in a layer."""
        said = {i: said_part(self._rows[i].name, self._rows[i].op_name) for i in self._kinds}
        norms = {i: is_norm(self._rows[i].name, self._rows[i].op_name) for i in self._kinds}
        votes: defaultdict[int, Counter[str | None]] = defaultdict(Counter)
        for order, sequence, pieces in self._found:
            ids = order.instruction_id.tolist()
            is_norm_op = np.array([norms[i] for i in ids], bool)
            of_ops = parts_in_layers(
                [said[i] for i in ids], is_norm_op, pieces.layer, sequence.contracts, sequence.moves
            )
            for i, part in zip(ids, of_ops, strict=True):
                votes[i][part] += order.count
        return {i: part for i in layer if (part := votes[i].most_common(1)[0][0])}

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
