"""Finds the pieces that repeat in an execution's ops, which are a transformer's layers, and where each begins and ends.

1. Anchors are every k-th op of a family of products or collectives, for an op that every layer contains k times.
2. The score of a choice of anchors measures how many of the ops between two anchors are the same everywhere, and
   whether the ops around the anchors are the same: anchors that drift through a layer have other neighbours each time.
   Pairs of layers repeat as well as single ones, so of the choices near the best score, the one with most pieces wins.
3. The core of a layer consists of the products and collectives that occur in every piece equally often. The ops before
   the first core decide how the ops between two cores are divided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tracewarehouse.ingest.columns.keys import occurrence
from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.layers.loops import MIN_PRODUCTS
from tracewarehouse.ingest.layers.sequence import OpSequence

MIN_LAYERS = 4
"""Fewest pieces; two or three equal pieces prove nothing."""
MIN_CONFIDENCE = 0.8
_MOST_IN_LAYER = 4
"""Most occurrences in a layer of the op that serves as anchor."""
_MOST_FAMILIES = 100
"""Families that are tried as anchors, most time first; this bounds the work."""
_SHORTEST = 4
"""Fewest ops between two anchors."""
_LEAST_FAMILIES = 2
"""Fewest families of products that show where one of several layers ends: those of a single one repeat anyhow."""
_HEAVY = 0.005
"""Share of the products' time that a family needs to serve as anchor."""
_NEAR, _LEAST = 0.3, 0.5
"""Most that a score with more pieces may lie below the best, and the least it may be: first layers may differ."""
_SURE = max(_LEAST, 1 - _NEAR)
"""A score that is always near enough to the best."""
_USUAL = 2 / 3
"""Share of the pieces in which a family must occur equally often; some layers may be of another kind."""
_AROUND = 3
"""Number of ops before and after an anchor that are compared."""
_MOST_FOREIGN = 8
"""Number of ops before the first core that start no other layer, after which the search for its start ends."""


@dataclass(frozen=True)
class Pieces:
    """The pieces that repeat in an execution.

    Attributes:
        count: number of pieces; 0 if nothing repeats.
        layer: piece of each op, -1 for none, shape (n,).
        score: how many of the ops repeat, at the same place in other pieces, from 0 to 1.
        ordered: share of neighbouring pieces in which one ends before the next begins.
        products: number of different products in the median piece, without collectives.
    """

    count: int
    layer: Int64
    score: float = 0.0
    ordered: float = 0.0
    products: int = 0

    @property
    def confidence(self) -> float:
        """Confidence that these are layers in the right order, from 0 to 1."""
        return self.score * self.ordered if self.count >= MIN_LAYERS else 0.0


def find_pieces(s: OpSequence) -> Pieces:
    """Find the pieces of an execution, by families of name, shape and place, or of shape alone if that finds more.

    If layers of two kinds alternate, they differ in names but not in shapes.
    """
    fine = _find(s, s.fine)
    coarse = _find(s, s.coarse, more_than=fine.count)
    return coarse if coarse.count > fine.count and coarse.confidence >= MIN_CONFIDENCE else fine


def find_copies(s: OpSequence) -> Int64:
    """Return which copy of a layer each op of a loop's body is in, from 0, shape (n,); several if a loop is unrolled.

    The body has as many copies as divide the number of ops of every family of products, so that each ends before the
    next begins: a family may have several ops in a layer.
    """
    copy = np.zeros(len(s.time), np.int64)
    is_product = s.contracts & ~s.collective
    families, inverse, counts = np.unique(s.fine[is_product], return_inverse=True, return_counts=True)
    if len(families) < _LEAST_FAMILIES:
        return copy
    at = np.flatnonzero(is_product)
    number = occurrence(s.fine[is_product])
    divided = int(np.gcd.reduce(counts))
    for copies in range(min(divided, len(at) // MIN_PRODUCTS), 1, -1):
        if divided % copies:
            continue
        of_product = number * copies // counts[inverse]
        first, last = np.full(copies, len(copy)), np.full(copies, -1)
        np.minimum.at(first, of_product, at)
        np.maximum.at(last, of_product, at)
        if (last[:-1] < first[1:]).all():
            layer = _with_loose_ops(s, first, last)
            starts = np.array([np.flatnonzero(layer == i)[0] for i in range(1, copies)])
            copy[:] = np.searchsorted(starts, np.arange(len(copy)), side="right")
            break
    return copy


def _find(s: OpSequence, family: Int64, more_than: int = 0) -> Pieces:
    anchors, score = _best_anchors(s, family, more_than)
    layer_of_core = _core(s, family, anchors)
    at = np.flatnonzero(layer_of_core >= 0)
    if not len(at):
        return Pieces(0, np.full(len(s.time), -1, np.int64))
    count = len(anchors)
    of_core = layer_of_core[at]
    first = np.full(count, len(s.time))
    last = np.full(count, -1)
    np.minimum.at(first, of_core, at)
    np.maximum.at(last, of_core, at)
    ordered = float((last[:-1] < first[1:]).mean())
    if ordered < 1:
        last = np.minimum(last, np.append(first[1:] - 1, len(s.time)))
    layer = _with_loose_ops(s, first, last)
    is_product = s.contracts & ~s.collective & (layer >= 0)
    piece_of_product = np.unique(np.column_stack([layer[is_product], family[is_product]]), axis=0)[:, 0]
    products = int(np.median(np.bincount(piece_of_product, minlength=count)))
    return Pieces(count, layer, score, ordered, products)


def _best_anchors(s: OpSequence, family: Int64, more_than: int) -> tuple[Int64, float]:
    """Return the positions of the anchors, and their score; empty if no product or collective repeats.

    Choices are scored from the most pieces down, until one wins against any score of fewer pieces.

    Args:
        s: the ops.
        family: family of each op, shape (n,).
        more_than: number of pieces that a confident result must exceed to be of use.
    """
    product_time = np.where(s.collective, 0, s.time)
    time_of = np.bincount(family, weights=product_time)
    choices = []
    for f in _anchor_families(s, family, time_of, _HEAVY * product_time.sum()):
        at = np.flatnonzero(family == f)
        for k in range(1, _MOST_IN_LAYER + 1):
            extra = len(at) % k  # before the first layer or after the last, like an embedding's all-reduce
            choices += [
                (len(chosen), -k, float(time_of[f]), chosen)
                for chosen in [at[extra::k], at[: len(at) - extra : k]][: 2 if extra else 1]
                if len(chosen) >= 2 and np.median(np.diff(chosen)) >= _SHORTEST
            ]
    best, score, anchors = 0.0, 0.0, np.zeros(0, np.int64)
    scored: list[tuple[int, float, int, float, Int64]] = []
    for count, alike in groupby(sorted(choices, key=lambda c: -c[0]), key=lambda c: c[0]):
        if count <= more_than and best < MIN_CONFIDENCE:
            break
        for _, k, time, chosen in alike:
            share = _explained_share(s, family, chosen) * _same_place(family, s.moves, chosen)
            scored.append((count, share, k, time, chosen))
            best = max(best, share)
        near = [c for c in scored if c[1] >= min(best, max(_LEAST, best - _NEAR))]
        _, score, _, _, anchors = max(near, key=lambda c: c[:4])
        if score >= _SURE:
            break
    return anchors, score


def _anchor_families(s: OpSequence, family: Int64, time_of: Int64, heavy: float) -> list[int]:
    """Return the families that may serve as anchors: collectives, and products that take some time."""
    count = np.bincount(family)
    of_contracts = np.bincount(family, weights=s.contracts) > 0
    of_collectives = np.bincount(family, weights=s.collective) > 0
    families = np.flatnonzero(of_contracts & (count >= 2) & (of_collectives | (time_of >= heavy)))
    all_time = np.bincount(family, weights=s.time)
    return families[np.argsort(-all_time[families], kind="stable")][:_MOST_FAMILIES].tolist()  # type: ignore[no-any-return]


def _explained_share(s: OpSequence, family: Int64, anchors: Int64) -> float:
    """Return the share of ops between the anchors whose family occurs equally often between most of them.

    It is the smaller of two shares: of the number of ops, and of the time without collectives, whose waiting hides all
    else.
    """
    low, high, pieces = anchors[0], anchors[-1], len(anchors) - 1
    inside = slice(low, high)
    piece = np.repeat(np.arange(pieces), np.diff(anchors))
    count = np.bincount(family[inside], minlength=int(family.max()) + 1)
    tried = np.flatnonzero(count >= pieces / 2)
    row_of = np.full(len(count), -1)
    row_of[tried] = np.arange(len(tried))
    row = row_of[family[inside]]
    at = np.flatnonzero(row >= 0)
    table = np.bincount(row[at] * pieces + piece[at], minlength=len(tried) * pieces).reshape(len(tried), pieces)
    # The count that two thirds of the pieces share is also their median.
    usual = np.partition(table, pieces // 2, axis=1)[:, pieces // 2]
    is_usual = (usual > 0) & ((table == usual[:, None]).mean(axis=1) >= _USUAL)
    is_good = np.zeros(high - low, bool)
    is_good[at] = is_usual[row[at]] & (table[row[at], piece[at]] == usual[row[at]])
    stays = ~s.moves[inside]
    weights = np.stack([np.where(s.collective[inside], 0, s.time[inside]), np.ones(high - low)]) * stays
    return float((weights[:, is_good].sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)).min())


def _same_place(family: Int64, moves: Flags, anchors: Int64) -> float:
    """Return the share of the ops around the anchors that are the usual ones there."""
    order = np.flatnonzero(~moves)
    at = np.searchsorted(order, anchors)
    shares = []
    for distance in (d for d in range(-_AROUND, _AROUND + 1) if d):
        there = at + distance
        neighbours = family[order[there[(there >= 0) & (there < len(order))]]]
        shares.append(np.bincount(neighbours).max() / len(neighbours) if len(neighbours) else 0.0)
    return float(np.mean(shares))


def _core(s: OpSequence, family: Int64, anchors: Int64) -> Int64:
    """Return the layer of products and collectives that occur in every piece equally often; -1 for all other ops.

    If a family occurs k times in every layer, its j-th op is in layer j // k, wherever in the layer the anchor is.
    """
    layer = np.full(len(family), -1, np.int64)
    if not len(anchors):
        return layer
    piece = np.searchsorted(anchors, np.arange(len(family)), side="right")
    of_contracts = np.bincount(family, weights=s.contracts) > 0
    for f in np.flatnonzero(of_contracts & (np.bincount(family) >= len(anchors))).tolist():
        at = np.flatnonzero(family == f)
        count = np.bincount(piece[at], minlength=len(anchors) + 1)
        k = int(count[1])
        if k and (count[1:-1] == k).all() and count[0] + count[-1] == k:
            layer[at] = np.arange(len(at)) // k
    return layer


def _with_loose_ops(s: OpSequence, first: Int64, last: Int64) -> Int64:
    """Return the layer of each op, given the first and the last op of each layer's core.

    Ops between two cores that also occur before the first core, such as a norm, start the next layer. The ops before
    these, such as a residual add, end the layer before; the last layer ends in the same way.
    """
    count, n = len(first), len(s.time)
    reach = 4 * int(np.median(first[1:] - last[:-1])) + _MOST_FOREIGN
    before = set(s.place[max(0, int(first[0]) - reach) : first[0]].tolist())
    gaps = [_staying(s, int(last[i]) + 1, int(first[i + 1]) if i + 1 < count else n) for i in range(count)]
    lengths = [(len(gap), _lead(s.place[gap], before)) for gap in gaps[:-1]]
    (usual_length, lead), _ = Counter(lengths).most_common(1)[0]
    ends = []
    for i, gap in enumerate(gaps):
        take = max(0, len(gap) - lead) if i + 1 < count else usual_length - lead
        ends.append(int(gap[take - 1]) + 1 if 0 < take <= len(gap) else int(last[i]) + 1)
    starts = [_first_start(s, int(first[0]), set(s.place[ends[0] : first[1]].tolist())), *ends[:-1]]
    layer = np.full(n, -1, np.int64)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        layer[start:end] = i
    return layer


def _staying(s: OpSequence, start: int, end: int) -> Int64:
    return start + np.flatnonzero(~s.moves[start:end])


def _lead(places: Int64, before: set[int]) -> int:
    """Return how many consecutive places at the end of a gap also occur before the first layer."""
    is_foreign = [p not in before for p in places[::-1].tolist()]
    return is_foreign.index(True) if True in is_foreign else len(places)


def _first_start(s: OpSequence, core: int, usual: set[int]) -> int:
    """Return where the first layer, with its core at `core`, begins: with the ops that start other layers."""
    start, foreign = core, 0
    for i in range(core - 1, -1, -1):
        if s.moves[i]:
            continue
        if int(s.place[i]) in usual:
            start = i
            continue
        foreign += 1
        if s.contracts[i] or foreign > _MOST_FOREIGN:
            break
    return start
