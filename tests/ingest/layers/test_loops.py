"""The iteration of every op in nested loops and branches, against a program that is run step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracewarehouse.ingest.columns.nesting import nest
from tracewarehouse.ingest.hlo.instruction import Loop as ProgramLoop
from tracewarehouse.ingest.layers.loops import LoopFacts, LoopPlaces, places_in_containers, places_in_programs

Chain = tuple[tuple[int, int], ...]
"""The loops around an op with the iteration of each, outermost first."""


@dataclass(frozen=True)
class Loop:
    """A loop whose body holds ops, by kind (p a product, c a collective, o another), and loops; `branch` is in some."""

    trips: int
    body: tuple[str | Loop, ...]
    branch: tuple[str | Loop, ...] = ()
    taken: frozenset[int] = frozenset()
    arrays: frozenset[str] = frozenset()


@dataclass
class Ran:
    """A program that has run: its events in order of start, and the truth."""

    instruction: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    truth: list[Chain] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    trips: dict[int, int] = field(default_factory=dict)
    loops: dict[int, tuple[int, ...]] = field(default_factory=dict)
    arrays: dict[int, frozenset[str]] = field(default_factory=dict)
    _ids: dict[tuple[object, ...], int] = field(default_factory=dict)

    def run(self, body: tuple[str | Loop, ...], path: tuple[object, ...] = (), chain: Chain = ()) -> None:
        """Run the ops of a body, each for 10 time units; a loop begins with its body."""
        for place, item in enumerate(body):
            number = self._ids.setdefault((*path, place), len(self._ids))
            self.kinds[number] = item if isinstance(item, str) else "w"
            self.loops[number] = tuple(loop for loop, _ in chain)
            at = len(self.start)
            self._begin(number, chain)
            if isinstance(item, str):
                self.end[at] += 10
                continue
            self.trips[number], self.arrays[number] = item.trips, item.arrays
            for i in range(item.trips):
                inside = (*chain, (number, i))
                self.run(item.body, (*path, place), inside)
                if i in item.taken:
                    branch = self._ids.setdefault((*path, place, "branch"), len(self._ids))
                    self.kinds[branch], self.loops[branch] = "b", tuple(loop for loop, _ in inside)
                    held = len(self.start)
                    self._begin(branch, inside)
                    self.run(item.branch, (*path, place, "branch"), inside)
                    self.end[held] = self._now()
            self.end[at] = self._now()

    def _now(self) -> int:
        return max(self.end, default=0)

    def _begin(self, number: int, chain: Chain) -> None:
        self.start.append(self._now())
        self.end.append(self.start[-1])
        self.instruction.append(number)
        self.truth.append(chain)

    @property
    def facts(self) -> LoopFacts:
        kinds = [self.kinds[i] for i in range(len(self.kinds))]
        trips = [self.trips.get(i, -1) for i in range(len(kinds))]
        is_product, is_other = (np.array([k == w for k in kinds], bool) for w in "pc")
        return LoopFacts(
            np.array(trips), is_product, is_other, [self.arrays.get(i, frozenset()) for i in range(len(kinds))]
        )

    def expected(self) -> list[tuple[int, int]]:
        """The loop and the iteration that count, by the rule in the head of the module."""
        own: dict[int, set[int]] = {loop: set() for loop in self.trips}
        work: dict[int, set[int]] = {loop: set() for loop in self.trips}
        for number, kind in self.kinds.items():
            if self.loops[number] and kind in "pc":
                work[self.loops[number][-1]].add(number)
                if kind == "p":
                    own[self.loops[number][-1]].add(number)
        rows = []
        for chain in self.truth:
            if not chain:
                rows.append((-1, -1))
                continue
            layers = [k for k, (loop, _) in enumerate(chain) if self._is_layers(loop, own)]
            k = layers[0] if layers else len(chain) - 1
            iteration, size = chain[k][1], self.trips[chain[k][0]]
            for loop, outer in chain[:k][::-1]:
                if work[loop] or self._carries_all(loop, chain[chain.index((loop, outer)) + 1][0]):
                    break
                iteration += size * outer
                size *= self.trips[loop]
            rows.append((chain[k][0], iteration))
        return rows

    def _inside(self, loop: int) -> set[int]:
        return {i for around in self.loops.values() if loop in around for i in around[around.index(loop) + 1 :]}

    def _is_layers(self, loop: int, own: dict[int, set[int]]) -> bool:
        """Three products of its own; or two, and more in loops in it, none of which may run layers itself."""
        inside = self._inside(loop)
        return len(own[loop]) >= 3 or (self._may_be(loop, own) and not any(self._may_be(i, own) for i in inside))

    def _may_be(self, loop: int, own: dict[int, set[int]]) -> bool:
        return len(own[loop]) + any(own[i] for i in self._inside(loop)) >= 3

    def _carries_all(self, loop: int, inner: int) -> bool:
        taken = {a for a in self.arrays[inner] if a.startswith(f"f32[{self.trips[inner]},")}
        return len(taken & self.arrays[loop]) > len(taken) / 2

    def in_containers(self, *, are_trips_told: bool = True) -> LoopPlaces:
        facts = self.facts
        if not are_trips_told:
            facts = replace(facts, trips=np.minimum(facts.trips, 0))
        start, end = np.array(self.start), np.array(self.end)
        return places_in_containers(nest(start, end), np.array(self.instruction, np.int32), facts)

    def in_programs(self) -> LoopPlaces:
        """As on a GPU, whose events do not nest, with a second execution behind the first."""
        numbers = list(self.trips)
        chains = np.full((len(self.kinds), 4), -1, np.int32)
        for i, loops in self.loops.items():
            chains[i, : len(loops)] = [numbers.index(loop) for loop in loops]
        n = len(self.start)
        twice = np.array(self.instruction * 2, np.int32)
        known = [ProgramLoop(str(loop), self.trips[loop], self.arrays.get(loop, frozenset())) for loop in numbers]
        start = np.append(self.start, np.array(self.start) + 10**6)
        places = places_in_programs(np.repeat([0, 1], n), start, twice, chains, known, self.facts)
        assert places.iteration[:n].tolist() == places.iteration[n:].tolist()
        loops = np.append(np.array(numbers, np.int32), -1)[places.loop[:n]]
        return LoopPlaces(loops, places.iteration[:n])


def ran(*body: str | Loop) -> Ran:
    program = Ran()
    program.run(body)
    return program


def pairs(places: LoopPlaces) -> list[tuple[int, int]]:
    return list(zip(places.loop.tolist(), places.iteration.tolist(), strict=True))


LAYER = ("o", "p", "c", "p", "p", "c", "p")
WEIGHTS = ("f32[4,8,8]", "f32[4,8,9]")
PROGRAMS = {
    "one loop over layers": ran("o", Loop(8, LAYER), "p"),
    "two layers": ran(Loop(2, LAYER)),
    "blocks of attention within the layers": ran(Loop(6, ("p", Loop(3, ("p", "p", "o")), "p", "p", "o"))),
    "tokens around the layers": ran("o", Loop(5, ("o", Loop(4, LAYER), "p", "o")), "o"),
    "layers in two nested loops": ran(Loop(3, (Loop(4, LAYER),)), "p"),
    "two products around the blocks of attention": ran(Loop(6, ("p", Loop(3, ("p", "p", "o")), "p", "o"))),
    "tokens around layers of two products": ran(Loop(4, (Loop(6, ("p", Loop(3, ("p",)), "p")), "p", "p"))),
    "parts of a batch around the layers": ran(
        Loop(3, (Loop(4, LAYER, arrays=frozenset(WEIGHTS)),), arrays=frozenset({*WEIGHTS, "f32[3,2,8]"})), "p"
    ),
    "groups of layers, each with its weights": ran(
        Loop(3, (Loop(4, LAYER, arrays=frozenset(WEIGHTS)),), arrays=frozenset({"f32[3,4,8,8]", "f32[3,4,8,9]"})), "p"
    ),
    "dense layers, then sparse ones": ran(Loop(3, LAYER), Loop(5, (*LAYER, "c", "p"))),
    "other attention in some layers": ran(Loop(6, LAYER, ("p", "o", "p"), frozenset({1, 3, 4}))),
    "a loop in a branch": ran(Loop(4, LAYER, (Loop(2, ("p", "o")), "o"), frozenset({1, 2}))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_models_compile_to(name: str) -> None:
    program = PROGRAMS[name]
    assert pairs(program.in_containers()) == program.expected()
    assert pairs(program.in_containers(are_trips_told=False)) == program.expected()
    assert pairs(program.in_programs()) == program.expected()


def test_layers_by_hand() -> None:
    """Five tokens run four layers each; three iterations of a loop run four layers each, which are twelve."""
    for name, layers in (
        ("tokens around the layers", [*range(4)] * 5),
        ("layers in two nested loops", [*range(12)]),
        ("parts of a batch around the layers", [*range(4)] * 3),
        ("groups of layers, each with its weights", [*range(12)]),
    ):
        program = PROGRAMS[name]
        found = program.in_containers().iteration[[len(chain) == 2 for chain in program.truth]]
        assert found.tolist() == [i for i in layers for _ in LAYER]


def test_a_cut_loop_has_no_iterations() -> None:
    """The program says eight, the device ran five before the profile ended."""
    program = ran(Loop(5, LAYER), "p")
    program.trips[0] = 8
    assert set(program.in_containers().iteration.tolist()) == {-1}
    assert set(program.in_programs().iteration.tolist()) == {-1}


def test_a_lost_op_moves_no_other() -> None:
    program = ran(Loop(8, LAYER))
    expected = program.expected()
    for column in (program.instruction, program.start, program.end, program.truth, expected):
        del column[20]  # type: ignore[attr-defined]
    assert pairs(program.in_containers()) == expected
    assert pairs(program.in_programs()) == expected


def bodies(depth: int) -> st.SearchStrategy[tuple[str | Loop, ...]]:
    items: st.SearchStrategy[str | Loop] = st.sampled_from("opc")
    if depth:
        items |= loops(depth - 1)
    return st.lists(items, max_size=5).map(lambda rest: ("o", *rest))


@st.composite
def loops(draw: st.DrawFn, depth: int) -> Loop:
    trips = draw(st.integers(1, 5))
    branch = draw(bodies(0))
    return Loop(trips, draw(bodies(depth)), branch, draw(st.frozensets(st.integers(0, trips - 1))))


@given(bodies(3))
@settings(max_examples=60, deadline=None)
def test_any_program(body: tuple[str | Loop, ...]) -> None:
    program = ran(*body)
    assert pairs(program.in_containers()) == program.expected()
    assert pairs(program.in_programs()) == program.expected()
