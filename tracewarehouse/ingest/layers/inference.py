"""Infers the layers and parts of programs that do not name them, from repetition in a few executions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int32
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow, LoopPlace
from tracewarehouse.ingest.hlo.op_names import layer_and_part, stage_layer_and_tick
from tracewarehouse.ingest.layers.layer_loops import KnownModel, find_layer_loops
from tracewarehouse.ingest.layers.loops import MIN_PRODUCTS
from tracewarehouse.ingest.layers.repetition import MIN_CONFIDENCE, MIN_LAYERS, Pieces, find_pieces
from tracewarehouse.ingest.layers.sequence import (
    Execution,
    Kind,
    OpSequence,
    is_norm,
    op_kind,
    parts_in_layers,
    said_part,
)
from tracewarehouse.ingest.layers.shared_kernels import repeated_layers

_MOSTLY = 0.5
"""Share of a program's op time from which on marks cover it, and nothing is inferred."""
_LEAST_REPEATED = 0.25
"""Least share of an execution's time in what repeats, for it to be the layers of the model."""
_AGREED = 0.9
"""Share of the marked instructions in inferred layers whose marks must agree with these."""
_FEW_LAYERS = 2
"""Layers that a program may have whose products alone make it look like a model."""
_TRIED = 2
"""Orders of a program's ops that are tried before it counts as a program without layers."""
Program = tuple[str, int | None]
"""Module name and program id."""


@dataclass(frozen=True)
class ProgramLayers:
    """The layers of a program, inferred from its executions.

    Attributes:
        program: module name and id.
        marked_share: share of its op time in instructions whose names state a layer.
        is_marked: that is most of the time, so nothing is inferred.
        count: number of layers found.
        first: the first of them, if marks tell that it is another than 0.
        confidence: confidence of the inference, from 0 to 1.
        refusal: why no layers are inferred; None if they are.
        layer: layer by instruction id; instructions in no layer are absent; empty if refused.
        part: part by instruction id, for instructions in a layer.
        in_loop: the places of instructions in loops over layers, by instruction id; if there are any, `layer` has only
            those of layers that the compiler has taken out of the loops.
        instructions: the instructions that it runs, by id, ascending.
        has_layers: names state a layer, or it runs as many products as a model with a few layers.
    """

    program: Program
    marked_share: float = 0.0
    is_marked: bool = False
    count: int = 0
    confidence: float = 0.0
    refusal: str | None = None
    first: int = 0
    layer: dict[int, int] = field(default_factory=dict)
    part: dict[int, str] = field(default_factory=dict)
    in_loop: dict[int, LoopPlace] = field(default_factory=dict)
    instructions: tuple[int, ...] = ()
    has_layers: bool = False

    @property
    def is_inferred(self) -> bool:
        """True if layers were inferred that no name states."""
        return not self.is_marked and self.refusal is None

    def __str__(self) -> str:
        if any(place.confidence is None for place in self.in_loop.values()):
            return f"{self.count} layers, which a loop runs"
        sure = f"confidence {self.confidence if self.confidence == 1 else min(self.confidence, 0.99):.2f}"
        if self.in_loop:
            return f"{self.count} layers, in which kernels repeat, {sure}"
        return self.refusal or f"{self.count} layers, {sure}"


def infer_layers(
    executions: Iterable[Execution],
    rows: Sequence[InstructionRow],
    model: KnownModel | None = None,
    *,
    with_parts: bool = True,
) -> list[ProgramLayers]:
    """Infer the layers of each program from some executions of it, in the order in which programs are first met.

    Args:
        executions: a few of each program, ideally three on each device.
        rows: the instructions by id; their texts have been read.
        model: what is known of the model.
        with_parts: infer the parts too.
    """
    by_program: defaultdict[Program, list[Execution]] = defaultdict(list)
    for e in executions:
        by_program[e.module, e.program_id].append(e)
    return [
        replace(
            _program_layers(p, its, rows, model or KnownModel(), with_parts),
            instructions=tuple(np.unique(np.concatenate([e.instruction_id for e in its])).tolist()),
            has_layers=_has_layers(its, rows),
        )
        for p, its in by_program.items()
    ]


def programs_with_layers(executions: Iterable[Execution], rows: Sequence[InstructionRow]) -> set[Program]:
    """Find the programs that run transformer layers, by the names of their instructions or by the repetition in them.

    A server launches such a program once per step, and also small programs that sample or copy.

    Args:
        executions: a few of each program.
        rows: the instructions by id; their texts have been read.
    """
    found = infer_layers(executions, rows, with_parts=False)
    return {p.program for p in found if p.marked_share or p.is_marked or p.is_inferred}


@dataclass
class _Order:
    """Executions that run the same instructions in the same order, as compiled schedules usually do."""

    instruction_id: npt.NDArray[np.int32]
    time: npt.NDArray[np.float64]
    count: int = 1


def _program_layers(
    program: Program,
    executions: Sequence[Execution],
    rows: Sequence[InstructionRow],
    model: KnownModel,
    with_parts: bool,
) -> ProgramLayers:
    marks, share, has_stages = _marks(executions, rows)
    if has_stages:
        return ProgramLayers(program, share, is_marked=True)
    if loops := find_layer_loops(executions, rows, model):
        in_loop = {i: place for loop in loops for i, place in loop.places.items()}
        count = max(loop.first + loop.count for loop in loops)
        peeled = {i: layer for loop in loops for i, layer in loop.peeled.items()}
        return ProgramLayers(program, share, count=count, confidence=1.0, layer=peeled, in_loop=in_loop)
    if share >= _MOSTLY:
        return ProgramLayers(program, share, is_marked=True)
    orders: dict[bytes, _Order] = {}
    for e in executions:
        once = None if e.has_loop else _run_once(e)
        if once is None:
            if repeated := _repeated(program, executions, rows, marks):
                return replace(repeated, marked_share=share)
            refusal = "an instruction runs several times in an execution, and no loop tells why"
            return ProgramLayers(program, share, refusal=refusal)
        if e.is_cut or not len(e.instruction_id):
            continue
        ids, time = once
        same = orders.setdefault(ids.tobytes(), _Order(ids, np.zeros(len(time)), 0))
        same.time += time
        same.count += 1
    if not orders:
        return ProgramLayers(program, share, refusal="every execution lacks ops at its start or end")
    votes = _Votes(rows)
    for order in orders.values():
        votes.add(order)
        if votes.are_hopeless:
            break
    return _checked(replace(votes.result(program, with_parts), marked_share=share), marks)


def _marks(executions: Sequence[Execution], rows: Sequence[InstructionRow]) -> tuple[dict[int, int], float, bool]:
    """Return the layers that names state by instruction id, their share of the time, and whether stages are stated."""
    ids = np.concatenate([e.instruction_id for e in executions])
    time = np.bincount(ids, np.concatenate([e.self_ps for e in executions])) if len(ids) else np.zeros(0)
    used = np.unique(ids).tolist()
    stated = {i: layer for i in used if (layer := layer_and_part(rows[i].op_name)[0]) is not None}
    has_stages = any(stage_layer_and_tick(rows[i].op_name) != (None, None) for i in used)
    return stated, float(time[list(stated)].sum() / max(time.sum(), 1.0)), has_stages


def _has_layers(executions: Sequence[Execution], rows: Sequence[InstructionRow]) -> bool:
    if _marks(executions, rows)[0]:
        return True
    products = [i for e in executions for i in e.instruction_id.tolist() if rows[i].contracts]
    return len(set(products)) >= MIN_PRODUCTS and len(products) >= _FEW_LAYERS * MIN_PRODUCTS * len(executions)


def _repeated(
    program: Program, executions: Sequence[Execution], rows: Sequence[InstructionRow], marks: Mapping[int, int]
) -> ProgramLayers | None:
    """Return the layers of executions whose kernels run for several layers; None if there are none, or names differ."""
    placed = [(e, e.loops.iteration) for e in executions if e.loops is not None and (e.loops.iteration >= 0).any()]
    if not placed:
        return None
    longest, iteration = max(placed, key=lambda item: len(item[1]))
    pieces = repeated_layers(longest.instruction_id, rows)
    if pieces is None or longest.self_ps[iteration >= 0].sum() < _LEAST_REPEATED * longest.self_ps.sum():
        return None
    stated = np.array([marks.get(i, -1) for i in longest.instruction_id.tolist()])
    both = (stated >= 0) & (iteration >= 0)
    shift = int(np.median((stated - iteration)[both])) if both.any() else 0
    if shift < 0 or (both.any() and (stated == iteration + shift)[both].mean() < _AGREED):
        return None
    used = {i for e, at in placed for i in e.instruction_id[at >= 0].tolist()}
    in_loop = {i: LoopPlace(shift, 1, None, pieces.confidence) for i in used}
    return ProgramLayers(program, count=pieces.count, confidence=pieces.confidence, first=shift, in_loop=in_loop)


def _run_once(e: Execution) -> tuple[Int32, npt.NDArray[np.float64]] | None:
    """Return the instructions of an execution in order of their first op, and their time; each loop as one iteration.

    It is None if an instruction runs several times outside of the loops.
    """
    ids, first, inverse, count = np.unique(e.instruction_id, return_index=True, return_inverse=True, return_counts=True)
    is_looping = e.loops.loop[first] >= 0 if e.loops else np.zeros(len(ids), bool)
    if (count[~is_looping] > 1).any():
        return None
    order = np.argsort(first)
    return ids[order], np.bincount(inverse, e.self_ps, len(ids)).astype(np.float64)[order]


def _checked(found: ProgramLayers, marks: Mapping[int, int]) -> ProgramLayers:
    """Return the layers if the marks of some instructions agree with them, or refuse them.

    If the marks of most layers agree on another first layer, as in a stage of a pipeline, that is the first.
    """
    both = [i for i in found.layer if i in marks]
    if not both:
        return found
    ((shift, _),) = Counter(marks[i] - found.layer[i] for i in both).most_common(1)
    if shift < 0 or 2 * len({found.layer[i] for i in both}) < found.count:
        shift = 0
    differing = sum(marks[i] != found.layer[i] + shift for i in both)
    if differing > (1 - _AGREED) * len(both):
        refusal = f"names state other layers for {differing} of {len(both)} instructions than repetition shows"
        return ProgramLayers(found.program, found.marked_share, False, found.count, found.confidence, refusal)
    return replace(found, first=shift, layer={i: layer + shift for i, layer in found.layer.items()})


class _Votes:
    def __init__(self, rows: Sequence[InstructionRow]) -> None:
        self._rows = rows
        self._kinds: dict[int, Kind] = {}
        self._found: list[tuple[_Order, OpSequence, Pieces]] = []

    def add(self, order: _Order) -> None:
        ids = order.instruction_id.tolist()
        for i in ids:
            if i not in self._kinds:
                self._kinds[i] = op_kind(self._rows[i])
        sequence = OpSequence.from_kinds([self._kinds[i] for i in ids], order.time)
        self._found.append((order, sequence, find_pieces(sequence)))

    @property
    def are_hopeless(self) -> bool:
        return len(self._found) >= _TRIED and all(p.confidence < MIN_CONFIDENCE for _, _, p in self._found)

    def result(self, program: Program, with_parts: bool) -> ProgramLayers:
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
        parts = self._parts(layer) if with_parts else {}
        return ProgramLayers(program, count=count, confidence=confidence, layer=layer, part=parts)

    def _layers(self) -> tuple[dict[int, int], float]:
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
