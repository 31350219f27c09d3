"""Finds the loops of a program that run the layers of its model, one layer or a few in each iteration."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow, LoopPlace
from tracewarehouse.ingest.hlo.op_names import layer_and_part
from tracewarehouse.ingest.layers.loops import MIN_PRODUCTS
from tracewarehouse.ingest.layers.repetition import MIN_CONFIDENCE, MIN_LAYERS, find_copies, find_pieces
from tracewarehouse.ingest.layers.sequence import (
    Execution,
    Kind,
    OpSequence,
    is_norm,
    op_kind,
    parts_in_layers,
    said_part,
)

_FEW_PRODUCTS, _MAIN = 2, 0.5
"""Products of a body that is taken for a layer all the same if its loop takes at least this share of the time."""
_MOSTLY = 0.5
"""Share of a body's time that marks must cover to number its layers."""

_SENDS = re.compile(r"/.*(?<![a-z])(p?permute|roll|shift|send|recv|stages?|pipeline)(?![a-z])", re.IGNORECASE)
"""How the places of permutes are called by which stages of a pipeline send on what they have."""


@dataclass(frozen=True)
class KnownModel:
    """What card, manifest or user tell of the model.

    Attributes:
        layers: its number of layers; None if not known.
        has_stages: whether the mesh has a pipeline; None if it is not known.
    """

    layers: int | None = None
    has_stages: bool | None = None


@dataclass(frozen=True)
class LayerLoop:
    """A loop over layers.

    Attributes:
        first: the lowest layer that it runs.
        count: the number of its layers.
        places: the places of the instructions in its body, by instruction id.
        peeled: layer by instruction id, of layers that the compiler has taken out of the loop; `count` has them too.
    """

    first: int
    count: int
    places: dict[int, LoopPlace]
    peeled: dict[int, int]


@dataclass(frozen=True)
class _Body:
    """What a loop runs in an execution: each instruction once, in order of its first op, shape (n,)."""

    number: int
    instruction: Int32
    sequence: OpSequence
    iterations: int
    is_backward: bool

    @property
    def products(self) -> int:
        return int((self.sequence.contracts & ~self.sequence.collective).sum())


def find_layer_loops(
    executions: Sequence[Execution], rows: Sequence[InstructionRow], model: KnownModel
) -> list[LayerLoop]:
    """Find the loops over layers in the executions of a program, in order; none if no loop looks like one.

    Loops with the same number of iterations run the same layers, as those of prefill and decode in one program, or the
    way back in training; others run further layers of the model, as those of dense and of sparse layers do. So do those
    that hold other weights, as the layers of an encoder and of a decoder.
    """
    whole = [e for e in executions if e.loops is not None and not e.is_cut and not e.has_loop]
    whole = whole or [e for e in executions if e.loops is not None and not e.has_loop]
    if not whole:
        return []
    longest = max(whole, key=lambda e: len(e.instruction_id))
    found = [b for b in _bodies(longest, rows) if not _has_stages(b, rows, model)]
    alike = Counter((b.iterations, b.products) for b in found)
    found = [b for b in found if alike[b.iterations, b.products] < MIN_LAYERS]  # more are loops within the layers
    each = [(b, copy) for b in found if (copy := _copies(b, rows, model)) is not None]
    bodies, copies = [b for b, _ in each], [copy for _, copy in each]
    looped = [b.iterations * (int(copy.max(initial=0)) + 1) for b, copy in zip(bodies, copies, strict=True)]
    peeled = [
        ([], [])
        if n == model.layers or b.is_backward or sum(looped) == model.layers
        else _peeled(longest, b, copy, rows)
        for b, copy, n in zip(bodies, copies, looped, strict=True)
    ]
    counts = [len(before) + n + len(after) for n, (before, after) in zip(looped, peeled, strict=True)]
    are_one_stack = model.layers is not None and sum(counts) == model.layers
    loops: list[LayerLoop] = []
    stacks: list[tuple[int, Counter[str], int]] = []
    reached = 0
    for body, copy, count, own, (before, after) in zip(bodies, copies, counts, looped, peeled, strict=True):
        weights = _weights(body, rows)
        same = [at for n, others, at in stacks if n == count and (not weights or not others or weights == others)]
        first = reached
        if not are_one_stack and (same or count == model.layers):
            first = same[0] if same else 0
        stacks.append((count, weights, first))
        reached = max(reached, first + count)
        alone = {i: first + k for k, ids in enumerate(before) for i in ids}
        alone |= {i: first + len(before) + own + k for k, ids in enumerate(after) for i in ids}
        loops.append(LayerLoop(first, count, _places(body, rows, copy, first + len(before), own), alone))
    return loops


def _weights(body: _Body, rows: Sequence[InstructionRow]) -> Counter[str]:
    """Return the shapes of the stacked weights that a loop carries, one for each iteration; none if nothing tells them.

    Caches of keys and values are stacked too, and have more dimensions than weights.
    """
    loop = rows[body.number].hlo if body.number < len(rows) else None
    if loop is None or loop.opcode != "while":
        return Counter()
    arrays = [leaf for leaf in loop.shape.leaves if len(leaf.dimensions) in (2, 3)]
    return Counter(leaf.text for leaf in arrays if leaf.dimensions[0] == body.iterations)


def _peeled(
    e: Execution, body: _Body, copy: Int64, rows: Sequence[InstructionRow]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the instructions of each layer that stands before a loop and is like its body, and of each behind it.

    Such a layer has the products of a layer of the body in the same order, next to the loop: behind it those of the
    first layers of an iteration, before it those of the last. Other ops count to it that lie between them, or at its
    ends as in the body. `copy` says which layer of an iteration each instruction of the body is in, shape (n,).
    """
    if e.loops is None:
        return [], []
    ids, own = e.instruction_id.tolist(), body.instruction.tolist()
    kinds = {i: op_kind(rows[i]) for i in {*ids, *own}}
    layers = [[i for i, c in zip(own, copy.tolist(), strict=True) if c == k] for k in range(int(copy.max()) + 1)]
    if any(sum(_is_product(kinds[i]) for i in layer) < MIN_PRODUCTS for layer in layers):
        return [], []
    usual = {kinds[i].coarse for i in own}
    inside = np.flatnonzero(e.loops.loop == body.number)
    free = np.flatnonzero(e.loops.loop < 0)
    before = [ids[k] for k in free[free < inside[0]].tolist()[::-1]]
    after = [ids[k] for k in free[free > inside[-1]].tolist()]
    back = [layer[::-1] for layer in reversed(layers)]
    return _copies_of(before, kinds, back, usual, is_back=True)[::-1], _copies_of(after, kinds, layers, usual)


def _is_product(kind: Kind) -> bool:
    return kind.contracts and not kind.collective


def _copies_of(
    ops: Sequence[int], kinds: Mapping[int, Kind], layers: list[list[int]], usual: set[str], is_back: bool = False
) -> list[list[int]]:
    """Return the instructions of the layers that follow each other from the first op on.

    Args:
        ops: instructions, from the loop away.
        layers: the instructions of the layers that must follow each other, in the order of `ops`; after the last of
            them the first follows.
        usual: families of all ops of a layer.
        is_back: the ops run backwards, so that a layer ends before a collective, which is of what comes before it.
    """
    found: list[list[int]] = []
    low = 0
    is_product = [_is_product(kinds[i]) for i in ops]
    while True:
        layer = layers[len(found) % len(layers)]
        products = [k for k, i in enumerate(layer) if _is_product(kinds[i])]
        at = [k for k in range(low, len(ops)) if is_product[k]][: len(products)]
        if not at or [kinds[ops[k]].coarse for k in at] != [kinds[layer[k]].coarse for k in products]:
            return found
        end, trail = at[-1] + 1, len(layer) - 1 - products[-1]
        while end < min(len(ops), at[-1] + 1 + trail) and kinds[ops[end]].coarse in usual and not is_product[end]:
            if is_back and kinds[ops[end]].collective:
                break
            end += 1
        found.append(list(ops[low:end]))
        low = end


def _bodies(e: Execution, rows: Sequence[InstructionRow]) -> list[_Body]:
    """Return the bodies of the loops in an execution whose products make them look like layers, in order."""
    if e.loops is None:
        return []
    found: list[_Body] = []
    loop, iteration = e.loops.loop, e.loops.iteration
    _, begin = np.unique(loop, return_index=True)
    for number in loop[np.sort(begin)].tolist():
        at = np.flatnonzero((loop == number) & (iteration >= 0))
        if number < 0 or not len(at):
            continue
        ids, first, inverse = np.unique(e.instruction_id[at], return_index=True, return_inverse=True)
        order = np.argsort(first)
        ids, time = ids[order], np.bincount(inverse, e.self_ps[at], len(ids)).astype(np.float64)[order]
        sequence = OpSequence.from_kinds([op_kind(rows[i]) for i in ids.tolist()], time)
        back = [bool(rows[i].op_name and "transpose(" in (rows[i].op_name or "")) for i in ids.tolist()]
        is_backward = float(time[back].sum()) > time.sum() / 2
        body = _Body(number, ids, sequence, int(iteration[at].max()) + 1, is_backward)
        is_main = float(time.sum()) >= _MAIN * float(e.self_ps.sum())
        if body.iterations > 1 and body.products >= (_FEW_PRODUCTS if is_main else MIN_PRODUCTS):
            found.append(body)
    return found


def _has_stages(body: _Body, rows: Sequence[InstructionRow], model: KnownModel) -> bool:
    """Whether the iterations are ticks of a pipeline, after which stages send on what they have.

    The compiler also makes permutes where it shards a layer anew; those are not named for sending on.
    """
    if model.has_stages is False:
        return False
    for row in (rows[i] for i in body.instruction.tolist()):
        if row.collective and row.collective.kind == "collective-permute" and _SENDS.search(row.op_name or ""):
            return True
    return False


def _copies(body: _Body, rows: Sequence[InstructionRow], model: KnownModel) -> Int64 | None:
    """Return which of the layers of an iteration each instruction of a body is in, from 0, shape (n,).

    It is None if the body holds a whole model, as that of a loop over tokens does: its layers, and the output head.
    """
    sequence = body.sequence
    is_product = sequence.contracts & ~sequence.collective
    told = [layer_and_part(rows[i].op_name) for i in body.instruction.tolist()]
    if any(
        part in ("embed", "lm_head") for (_, part), product in zip(told, is_product.tolist(), strict=True) if product
    ):
        return None
    marks = np.array([-1 if layer is None else layer for layer, _ in told], np.int64)
    if sequence.time[marks >= 0].sum() < _MOSTLY * sequence.time.sum():
        if not body.is_backward and _ends_in_head(body, rows):
            return None
        copies = find_copies(sequence)
        if copies.any() or (pieces := find_pieces(sequence)).confidence < MIN_CONFIDENCE:
            return copies
        if pieces.count == model.layers or (pieces.layer[is_product] < 0).any():  # such as the output head
            return None
        starts = [np.flatnonzero(pieces.layer == i)[0] for i in range(1, pieces.count)]
        return np.searchsorted(starts, np.arange(len(copies)), side="right")
    if (marks[is_product] < 0).any():
        return None
    copy: Int64 = marks - marks[marks >= 0].min()
    for i in np.flatnonzero(marks < 0).tolist():  # in the layer of the op before it
        copy[i] = copy[i - 1] if i else 0
    return copy


def _ends_in_head(body: _Body, rows: Sequence[InstructionRow]) -> bool:
    """Whether the last product of a body is an output head: its result has a width that nothing before it has.

    The last product of a layer gives back what the layer began with.
    """
    ids = body.instruction.tolist()
    last = int(np.flatnonzero(body.sequence.contracts & ~body.sequence.collective)[-1])
    hlo = rows[ids[last]].hlo
    if hlo is None or not hlo.shape.dimensions or any(rows[i].hlo is None for i in ids[last:]):
        return False  # a kernel of unknown shape may be a product
    before = [rows[i].hlo for i in ids[:last]]
    shapes = [s for h in before if h for s in (h.shape, *h.operand_shapes) if s is not None]
    widths = {d for s in shapes for leaf in (s.leaves or (s,)) for d in leaf.dimensions}
    return hlo.shape.dimensions[-1] not in widths


def _places(body: _Body, rows: Sequence[InstructionRow], copy: Int64, first: int, count: int) -> dict[int, LoopPlace]:
    ids, sequence = body.instruction.tolist(), body.sequence
    texts = [(rows[i].name, rows[i].op_name) for i in ids]
    said, norms = [said_part(*t) for t in texts], np.array([is_norm(*t) for t in texts], bool)
    parts = parts_in_layers(said, norms, copy, sequence.contracts, sequence.moves)
    each = count // body.iterations
    columns = zip(ids, copy.tolist(), parts, strict=True)
    if body.is_backward:
        last = first + count - 1
        return {i: LoopPlace(last - k, -each, part) for i, k, part in columns}
    return {i: LoopPlace(first + k, each, part) for i, k, part in columns}
