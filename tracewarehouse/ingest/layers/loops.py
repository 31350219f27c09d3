"""Finds the iteration of a loop in which each op runs, from what repeats in the loop.

On a TPU the events of loops hold those of their bodies. On GPUs and virtual CPU devices the program tells which loops
an instruction is in, and its ops are counted within an execution. In a run of a loop, most instructions of the body run
once in each iteration. Any other op, as in a branch, belongs to the iteration of the ops before it.

Of nested loops one is counted. It is the outermost with at least three products of its own, without those of the
embedding and the output head: a loop over layers has them, a loop over the blocks of an attention, over the tokens of
an answer or over the parts of a batch has not. Two are enough where a loop in it has the third. Without such a loop it
is the innermost. A loop that has no work of its own but a loop counts as one with that loop. It does not if it carries
all that the other takes a part of in each iteration, such as weights: then it is over tokens or parts of a batch, and
each of its iterations runs all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.columns.keys import Integers, occurrence, packed
from tracewarehouse.ingest.columns.nesting import Flags, Nesting
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction import Loop
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow, OpFacts

MIN_PRODUCTS, _LEAST_OWN = 3, 2
"""Fewest different products in a layer of a transformer, without collectives, and how many must be in no loop in it."""
Arrays = Sequence[frozenset[str]]
"""The arrays that each loop carries, as text."""


@dataclass(frozen=True)
class LoopPlaces:
    """The places of ops in loops, each of shape (n,).

    Attributes:
        loop: number of the loop that is counted, -1 for none.
        iteration: iteration of that loop, from 0; -1 for none, or if the ops do not show it.
    """

    loop: Int32
    iteration: Int32

    @classmethod
    def nowhere(cls, count: int) -> LoopPlaces:
        """Return the places of ops that are in no loop."""
        return cls(np.full(count, -1, np.int32), np.full(count, -1, np.int32))

    def __getitem__(self, at: Any) -> LoopPlaces:
        return LoopPlaces(self.loop[at], self.iteration[at])


@dataclass(frozen=True)
class LoopFacts:
    """The facts about instructions that loops are counted by, each of shape (instructions,).

    Attributes:
        trips: iterations of a loop; 0 if the compiler does not tell them, -1 if the instruction is no loop.
        is_product: it is a matrix product, but not one of the embedding or the output head.
        is_other: it is a collective or one of these.
        arrays: what a loop carries; empty if none is known.
    """

    trips: Int64
    is_product: Flags
    is_other: Flags
    arrays: Arrays = ()


def loop_facts(facts: Sequence[OpFacts]) -> LoopFacts:
    """Return the facts of these instructions that loops are counted by."""
    trips = [-1 if f.trips is None else f.trips for f in facts]
    columns = ([f.contracts and not f.is_outside for f in facts], [f.is_collective or f.is_outside for f in facts])
    is_product, is_other = (np.array(column, bool) for column in columns)
    return LoopFacts(np.array(trips, np.int64), is_product, is_other, [f.arrays for f in facts])


def loop_chains(rows: Sequence[InstructionRow]) -> tuple[Int32, list[Loop]]:
    """Return the loops of instructions whose programs tell them, for `places_in_programs`.

    Returns:
        The numbers of the loops of each instruction, outermost first, then -1, shape (instructions, depth), and the
        loops by number.
    """
    numbers: dict[tuple[int | None, str | None, str], int] = {}
    loops: list[Loop] = []
    chains = np.full((len(rows), max((len(r.loops) for r in rows), default=0)), -1, np.int32)
    for i, row in enumerate(rows):
        for level, loop in enumerate(row.loops):
            number = chains[i, level] = numbers.setdefault((row.program_id, row.module, loop.name), len(numbers))
            if number == len(loops):
                loops.append(loop)
    return chains, loops


def places_in_containers(nesting: Nesting, instruction: Int32, facts: LoopFacts) -> LoopPlaces:
    """Return the places of events that nest on a line, in the order of `nesting`; a loop's number is its instruction.

    Args:
        nesting: what holds what.
        instruction: the instruction of each event, shape (n,).
    """
    trips = facts.trips[instruction]
    is_loop = trips >= 0
    if not is_loop.any():
        return LoopPlaces.nowhere(len(instruction))
    bounds.check(int(nesting.depth.max(initial=0)), bounds.NESTED, "nested ops", "a loop")
    holder = np.full(len(instruction), -1, np.int64)
    for depth in range(1, int(nesting.depth.max(initial=0)) + 1):
        at = np.flatnonzero(nesting.depth == depth)
        parent = nesting.parent[at]
        holder[at] = np.where(is_loop[parent], parent, holder[parent])
    iteration = np.full(len(instruction), -1, np.int32)
    at = np.flatnonzero(holder >= 0)
    is_direct = nesting.parent[at] == holder[at]
    iteration[at] = _iterations(holder[at], instruction[at], trips[holder[at]], is_direct)
    loops: list[Int32] = []
    iterations: list[Int32] = []
    held, by = iteration, holder
    while (by >= 0).any():
        loops.append(np.where(by >= 0, instruction[by], -1).astype(np.int32))
        iterations.append(np.where(by >= 0, held, -1).astype(np.int32))
        held, by = iteration[by], np.where(by >= 0, holder[by], -1)
    return _counted(loops, iterations, instruction, facts, facts.arrays) if loops else LoopPlaces.nowhere(len(held))


def places_in_programs(
    execution: Integers, start: Int64, instruction: Int32, chains: Int32, loops: Sequence[Loop], facts: LoopFacts
) -> LoopPlaces:
    """Return the places of the ops of a device, whose programs tell the loops of their instructions.

    Args:
        execution: the execution of each op, -1 for none, shape (n,).
        start: its start, shape (n,).
        instruction: its instruction, shape (n,).
        chains: numbers of the loops of each instruction, outermost first, then -1, shape (instructions, depth).
        loops: the loops by number.
    """
    n = len(instruction)
    trips = np.array([loop.trips for loop in loops], np.int64)
    places = LoopPlaces.nowhere(n)
    at = np.flatnonzero((chains[instruction, 0] >= 0) & (execution >= 0)) if chains.shape[1] else np.zeros(0, np.int64)
    if not len(at):
        return places
    at = at[np.argsort(start[at], kind="stable")]
    own, of = chains[instruction[at]], instruction[at]
    depth = (own >= 0).sum(axis=1)
    run = packed([execution[at]])
    found = np.full_like(own, -1)
    for level in range(own.shape[1]):
        inside = np.flatnonzero(own[:, level] >= 0)
        if not len(inside):
            break
        loop = own[inside, level]
        key = packed([run[inside], loop])
        deeper = np.where(own[inside, level + 1 :] >= 0, trips[own[inside, level + 1 :]], 1).prod(
            axis=1, dtype=np.int64
        )
        is_direct = depth[inside] == level + 1
        found[inside, level] = _iterations(key, of[inside], trips[loop], is_direct, deeper)
        run[inside] = packed([key, found[inside, level]])
    # innermost first, as chains differ in length
    back = depth[:, None] - 1 - np.arange(own.shape[1])
    rows = np.arange(len(at))[:, None]
    around, iterations = (list(np.where(back >= 0, values[rows, back], -1).T) for values in (own, found))
    counted = _counted(around, iterations, of, facts, [loop.arrays for loop in loops])
    places.loop[at], places.iteration[at] = counted.loop, counted.iteration
    return places


def _iterations(run: Int64, instruction: Int32, trips: Int64, is_direct: Flags, inner: Int64 | None = None) -> Int32:
    """Return the iteration of each op in its run of a loop, -1 if not known; ops in order of start, shape (n,).

    Args:
        trips: iterations of the loop, 0 if not known.
        is_direct: the op is of the loop's own body, and in no loop or branch in it.
        inner: how often loops within the loop run the op in each iteration; by default once.
    """
    key = packed([run, instruction])
    number = occurrence(key)
    _, inverse, counts = np.unique(key, return_inverse=True, return_counts=True)
    count = counts[inverse]
    runs, of_run = np.unique(run, return_inverse=True)
    told, has_told = np.zeros(len(runs), np.int64), np.zeros(len(runs), bool)
    np.maximum.at(told, of_run, trips)
    has_told[of_run[is_direct & (count == told[of_run])]] = True
    usual = _usual_counts(of_run, count, is_direct & (number == 0), len(runs))
    in_run = np.where(has_told | (usual == 0), told, usual)
    each = np.maximum(in_run, 1)[of_run]
    is_regular = np.where(is_direct, count % each == 0, count == each * (1 if inner is None else inner))
    iteration = np.where(is_regular, number // np.maximum(count // each, 1), 0)
    # the others belong to the iteration of the ops before them
    order = np.argsort(of_run, kind="stable")
    base = of_run[order] * (int(iteration.max(initial=0)) + 1)
    reached = np.maximum.accumulate(base + iteration[order]) - base
    iteration[order] = np.where(is_regular[order], iteration[order], reached)
    is_known = (in_run > 0) & ((told == 0) | (in_run == told))
    return np.where(is_known[of_run], iteration, -1).astype(np.int32)


def _usual_counts(of_run: Integers, count: Integers, is_counted: Flags, runs: int) -> Int64:
    """Return how often most instructions of each run's body run in it, shape (runs,); 0 if no op is counted."""
    usual = np.zeros(runs, np.int64)
    at = np.flatnonzero(is_counted)
    if len(at):
        pairs, votes = np.unique(np.column_stack([of_run[at], count[at]]), axis=0, return_counts=True)
        order = np.lexsort((pairs[:, 1], votes, pairs[:, 0]))
        usual[pairs[order, 0]] = pairs[order, 1]  # of a run's counts, the last one stays
    return usual


def _counted(
    loops: Sequence[Int32], iterations: Sequence[Int32], instruction: Int32, facts: LoopFacts, arrays: Arrays
) -> LoopPlaces:
    """Choose the loop that is counted for each op.

    Args:
        loops: those around the op, innermost first.
        iterations: the op's iteration of each.
        facts: the facts of all instructions.
        arrays: what each loop carries.
    """
    count = int(max(level.max(initial=-1) for level in loops)) + 1
    own = loops[0]
    is_layers = _are_layers(loops, instruction, facts.is_product, count)
    is_bare = _distinct(own, instruction, facts.is_product | facts.is_other, count) == 0
    trips = np.ones(count, np.int64)
    for loop, of_level in zip(loops, iterations, strict=True):
        inside = np.flatnonzero(loop >= 0)
        np.maximum.at(trips, loop[inside], of_level[inside] + 1)
    chosen = np.zeros(len(own), np.int64)
    for level, loop in enumerate(loops):
        chosen[(loop >= 0) & is_layers[loop]] = level
    ops = np.arange(len(own))
    found: Int32 = np.stack(loops)[chosen, ops]
    iteration: Int64 = np.stack(iterations)[chosen, ops].astype(np.int64)
    is_known, is_one, within = iteration >= 0, found >= 0, trips[found]
    for level in range(1, len(loops)):
        around, outer = loops[level], iterations[level]
        is_whole = (around >= 0) & is_bare[around]
        for inner, outside in np.unique(np.column_stack([loops[level - 1], around])[is_whole], axis=0).tolist():
            if _carries_all(arrays, outside, inner, int(trips[inner])):
                is_whole &= (loops[level - 1] != inner) | (around != outside)
        is_one &= (level <= chosen) | is_whole
        at = np.flatnonzero(is_one & (level > chosen))
        is_known[at] &= outer[at] >= 0
        iteration[at] += within[at] * outer[at]
        within[at] *= trips[around[at]]
    return LoopPlaces(found.astype(np.int32), np.where(is_known, iteration, -1).astype(np.int32))


def _are_layers(loops: Sequence[Int32], instruction: Int32, is_product: Flags, count: int) -> Flags:
    """Return which loops run layers, by their own products and whether loops in them have more, shape (count,)."""
    own = _distinct(loops[0], instruction, is_product, count)
    has_more, holds_layers = np.zeros(count, bool), np.zeros(count, bool)
    for around in loops[1:]:
        has_more[around[(around >= 0) & is_product[instruction]]] = True
    may_be = (own >= MIN_PRODUCTS) | ((own >= _LEAST_OWN) & has_more)
    is_within = np.zeros(len(instruction), bool)
    for inner, around in pairwise(loops):
        is_within |= may_be[inner]
        holds_layers[around[(around >= 0) & is_within]] = True
    is_layers: Flags = may_be & ((own >= MIN_PRODUCTS) | ~holds_layers)
    return is_layers


def _carries_all(arrays: Arrays, outside: int, inner: int, trips: int) -> bool:
    """Whether a loop carries most arrays from which a loop in it takes a part in each of its iterations."""
    if max(outside, inner) >= len(arrays):
        return False
    taken = {array for array in arrays[inner] if f"[{trips}," in array}
    return bool(taken) and 2 * len(taken & arrays[outside]) > len(taken)


def _distinct(loop: Int32, instruction: Int32, is_wanted: Flags, loops: int) -> Int64:
    """Return the number of different wanted instructions directly in each loop, shape (loops,)."""
    at = np.flatnonzero((loop >= 0) & is_wanted[instruction])
    pairs = np.unique(np.column_stack([loop[at], instruction[at]]), axis=0)
    return np.bincount(pairs[:, 0], minlength=loops)
