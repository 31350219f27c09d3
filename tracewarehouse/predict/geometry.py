"""Finds where the devices of a collective lie in a slice, and which links its messages take.

Chips form a grid, whose dimensions close to rings in some slices. A message goes along one dimension after the other.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from tracewarehouse.collect.tpu.compile_ahead import Topology, wraps

Groups = tuple[tuple[int, ...], ...]
Place = tuple[int, ...]
"""Coordinates of a device: x, y, z and the core on its chip."""
Link = tuple[Place, int, int]
"""A chip that a link leaves, the dimension, and the direction; dimension 3 leads to the other core of the chip."""
Form = Literal["die", "pair", "line", "ring", "cycle", "grid", "torus"]

_DIE = 3


class Shape(NamedTuple):
    """How the groups of a collective lie in the slice.

    Attributes:
        sides: chips in each dimension in which a group extends, longest first.
        shared: groups on the busiest link.
        stride: chips from one member to the next.
    """

    form: Form
    size: int
    sides: tuple[int, ...]
    shared: float = 1
    stride: int = 1


class Routed(NamedTuple):
    """Messages on the busiest link of each class, and the hops of the longest route."""

    on_ici: float
    on_die: float
    hops: int


@lru_cache(maxsize=64)
def busiest(topology: Topology, pairs: Groups) -> Routed:
    """Return the messages on the busiest link of each class, and the longest route."""
    load: defaultdict[Link, float] = defaultdict(float)
    hops = 1
    for source, target in pairs:
        if source == target:
            continue
        route = list(_route(topology, place(topology, source), place(topology, target)))
        for link, share in route:
            load[link] += share
        hops = max(hops, round(sum(share for link, share in route if link[1] != _DIE)))
    on_die = max((count for link, count in load.items() if link[1] == _DIE), default=0.0)
    on_ici = max((count for link, count in load.items() if link[1] != _DIE), default=0.0)
    return Routed(on_ici, on_die, hops)


def _route(topology: Topology, source: Place, target: Place) -> Iterator[tuple[Link, float]]:
    """Yield the links between two devices, one dimension after the other, and the share of a message on each.

    A message takes the shorter way around a ring, or both halfway.
    """
    at = list(source)
    for dimension, (side, closed) in enumerate(zip(topology.sides, wraps(topology.sides), strict=True)):
        distance = target[dimension] - source[dimension]
        ways = [(1 if distance > 0 else -1, abs(distance), 1.0)]
        if closed and abs(distance) * 2 > side:
            ways = [(-ways[0][0], side - abs(distance), 1.0)]
        elif closed and abs(distance) * 2 == side:
            ways = [(1, side // 2, 0.5), (-1, side // 2, 0.5)]
        for direction, length, share in ways:
            for step in range(length):
                chip = (*at[:dimension], (source[dimension] + direction * step) % side, *at[dimension + 1 : 3], 0)
                yield (chip, dimension, direction), share
        at[dimension] = target[dimension]
    if source[3] != target[3] and source[:3] == target[:3]:
        yield (source, _DIE, 1), 1.0


@lru_cache(maxsize=1024)
def shape_of(topology: Topology, groups: Groups) -> Shape:
    """Return how groups lie in the slice; all have the shape of the first, which SPMD programs give them."""
    places = [place(topology, device) for device in groups[0]]
    along = [d for d in range(3) if len({p[d] for p in places}) > 1]
    size, chips = len(places), len({p[:3] for p in places})
    if not along:
        return Shape("die", size, (size,))
    sides = tuple(sorted((len({p[d] for p in places}) for d in along), reverse=True))
    if math.prod(sides) != chips:  # no box: it goes from one member to the next
        steps = tuple(pair for group in groups for pair in itertools.pairwise(group))
        routed = busiest(topology, steps + tuple((b, a) for a, b in steps))
        return Shape("line" if chips > 2 else "pair", size, (chips,), routed.on_ici, routed.hops)
    stride = max(b - a for d in along for a, b in itertools.pairwise(sorted({p[d] for p in places})))
    shared = _shared(topology, groups)
    closed = all(wraps(topology.sides)[d] and len({p[d] for p in places}) == topology.sides[d] for d in along)
    if len(along) == 1:
        form: Form = "pair" if sides[0] == 2 else "ring" if closed else "line"
    else:
        form = "torus" if closed else "grid"
    return Shape(form, size, sides, shared, stride)


def _shared(topology: Topology, groups: Groups) -> float:
    """Return how many groups use the busiest link, if each uses those between its neighbours in every dimension."""
    load: Counter[Link] = Counter()
    for group in groups:
        used: set[Link] = set()
        places = [place(topology, device) for device in group]
        for dimension in range(3):
            lines: dict[Place, set[int]] = {}
            for p in places:
                lines.setdefault((*p[:dimension], 0, *p[dimension + 1 : 3], 0), set()).add(p[dimension])
            for line, at in lines.items():
                for step in range(min(at), max(at)):
                    used.add(((*line[:dimension], step, *line[dimension + 1 : 3], 0), dimension, 1))
        load.update(used)
    return max(load.values(), default=1)


def place(topology: Topology, device: int) -> Place:
    """Return where a device is: x counts fastest, and the cores of a chip count first."""
    chip, core = divmod(device, topology.devices // topology.chips)
    x, y, z = (*topology.sides, 1)[:3]
    return chip % x, chip // x % y, chip // (x * y) % z, core
