"""Predicts how long a collective takes on the links of a TPU slice, from the algorithm that libtpu wrote for it.

A collective takes a constant, a latency for each hop, and the bytes on its busiest link by what that link reaches
(Hockney's model; jax-ml.github.io/scaling-book/sharding). Which link is the busiest follows from the algorithm, the
places of the groups in the slice, and what other groups of the same collective send over it.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import NamedTuple

from tracewarehouse.collect.tpu.compile_ahead import Topology
from tracewarehouse.predict.geometry import Form, Groups, Shape, busiest, shape_of
from tracewarehouse.predict.machine import Machine

_ROUTED = ("all-to-all", "ragged-all-to-all")
"""Kinds that send a part of the message from each member to each other."""
_MEASURED_CYCLE = 8
"""Chips of the longest cycle through a grid that somebody has measured."""


class TimeRange(NamedTuple):
    """A predicted time and the range in which the true one is believed to lie, in picoseconds."""

    low_ps: int
    mid_ps: int
    high_ps: int


class SliceCollective(NamedTuple):
    """One execution of a collective on all devices of a slice.

    Attributes:
        kind: HLO opcode without -start.
        message_bytes: the full buffer: the result of an all-gather, otherwise the operand of one device.
        groups: devices by their numbers in the topology, or pairs of source and target.
        emitter, strategy: the algorithm that libtpu names in the instruction's configuration, if it does.
        on_sparsecore: libtpu hands the collective to the SparseCores.
    """

    kind: str
    message_bytes: int
    groups: Groups
    is_pairs: bool = False
    emitter: str | None = None
    strategy: str | None = None
    on_sparsecore: bool = False


def collective_time(machine: Machine, collective: SliceCollective) -> TimeRange:
    """Return how long a collective takes on the slice.

    The range takes every rate of the table at its low or at its high end. Devices beyond those of the slice are on
    further slices, which the data center network connects.
    """
    if not collective.groups or all(len(set(group)) < 2 for group in collective.groups):
        return TimeRange(0, 0, 0)
    if min(map(min, collective.groups)) < 0:
        raise ValueError(f"{collective.kind}: devices are counted from 0, found {min(map(min, collective.groups))}")
    low, mid, high = (
        round(_seconds(machine, collective, _Rates(machine, end)) * 1e12) for end in ("low", "value", "high")
    )
    return TimeRange(low, mid, high)


class _Rates:
    """The rates of links at one end of their ranges: `low` gives the shortest times."""

    def __init__(self, machine: Machine, end: str) -> None:
        table = machine.rates
        opposite = {"low": "high", "high": "low"}.get(end, end)
        self.share = {name: float(getattr(row, opposite)) for (name, what), row in table.items() if what == "share"}
        self.bytes_per_s = {
            name: float(getattr(row, opposite)) * 1e9 * machine.ici_factor
            for (name, what), row in table.items()
            if what == "gbps"
        }
        self.seconds = {name: float(getattr(row, end)) / 1e6 for (name, what), row in table.items() if what == "us"}
        self.fill_bytes_per_s = self.share["fill"] * machine.hbm_bytes_per_s * machine.hbm_factor

    def measured(self, used: Algorithm) -> float | None:
        """Return the seconds by the line that a calibration put through times of this algorithm, if there is one."""
        if used.name in self.seconds and used.name in self.bytes_per_s:
            return self.seconds[used.name] + used.busiest_bytes / self.bytes_per_s[used.name]
        return None

    def link(self, form: str) -> float:
        """Return what a link reaches in one direction, in bytes per second."""
        if form == "dcn":
            return self.bytes_per_s["dcn"]
        if form == "die" and "die" in self.bytes_per_s:
            return self.bytes_per_s["die"]
        return self.bytes_per_s["ici"] * self.share.get(form, 1.0)


class Algorithm(NamedTuple):
    """What a collective does on the links of its slice, whatever these reach.

    Attributes:
        name: kind, form, members, stride, such as 'all-reduce cycle 8'; hops of pairs. Calibrations have lines of it.
        link_bytes: bytes on its busiest link, of pairs and all-to-alls on that between chips.
        die_bytes: of pairs and all-to-alls, bytes between the cores of a chip.
        hops: of others than pairs and all-to-alls those of one phase.
    """

    name: str
    form: str
    link_bytes: float
    die_bytes: float
    hops: float

    @property
    def busiest_bytes(self) -> float:
        """Bytes on the busiest link of the slowest class."""
        return self.link_bytes or self.die_bytes


@lru_cache(maxsize=1024)
def algorithm(topology: Topology, collective: SliceCollective) -> Algorithm:
    """Return what a collective between devices of one slice does on its links."""
    shape, size = shape_of(topology, collective.groups), float(collective.message_bytes)
    where = f" stride {shape.stride}" * (shape.stride > 1) + " on SparseCores" * collective.on_sparsecore
    if collective.is_pairs or collective.kind in _ROUTED:
        pairs = collective.groups
        if not collective.is_pairs:
            pairs = tuple(pair for group in collective.groups for pair in itertools.permutations(group, 2))
            size /= max(map(len, collective.groups))
        routed = busiest(topology, pairs)
        form = f"{routed.hops} hop{'s' * (routed.hops > 1)}" if collective.is_pairs and routed.on_ici else shape.form
        name = f"{collective.kind} {form}{'' if collective.is_pairs else f' {shape.size}'}{where}"
        return Algorithm(name, form, size * routed.on_ici, size * routed.on_die, routed.hops)
    form = _form(shape, collective)
    load, hops = _ring_load(form, shape)
    if "SinglePhase" in (collective.emitter or ""):
        load, hops = (shape.size - 1) / 2, shape.size / 2
    link_bytes = size * load * (1.0 if _is_whole(collective) else 0.5) * shape.shared
    name = f"{collective.kind} {form} {shape.size}{where}"
    return Algorithm(name, form, link_bytes, 0.0, hops * shape.stride)


def _is_whole(collective: SliceCollective) -> bool:
    """Return whether it has both phases of an all-reduce."""
    return collective.kind == "all-reduce" and "ReduceScatter" not in (collective.emitter or "")


def _seconds(machine: Machine, collective: SliceCollective, known: _Rates) -> float:
    slices = max(len({device // machine.topology.devices for device in group}) for group in collective.groups)
    if slices > 1:
        return _between_slices(collective, slices, known)
    used = algorithm(machine.topology, collective)
    if (measured := known.measured(used)) is not None:
        return measured
    if collective.is_pairs or collective.kind in _ROUTED:
        return _routed(collective, used, known)
    form, count = used.form, max(map(len, collective.groups))
    phases = 2.0 if _is_whole(collective) and "SinglePhase" not in (collective.emitter or "") else 1.0
    seconds = known.seconds["start"] + _latency(form, used.hops, phases, collective, known)
    seconds += used.link_bytes / known.link("long_cycle" if form == "cycle" and count > _MEASURED_CYCLE else form)
    if collective.kind in ("all-reduce", "reduce-scatter"):  # the first and the last shard overlap with no other
        seconds += collective.message_bytes / count / known.fill_bytes_per_s
    return seconds


def _between_slices(collective: SliceCollective, slices: int, known: _Rates) -> float:
    """Return the time over the data center network: each host sends and gets what its devices exchange with others."""
    load = 1.0 if collective.is_pairs else (slices - 1) / slices * (2 if collective.kind == "all-reduce" else 1)
    return known.seconds["dcn"] + collective.message_bytes * load / known.link("dcn")


def _latency(form: str, hops: float, phases: float, collective: SliceCollective, known: _Rates) -> float:
    hops *= phases
    if collective.on_sparsecore and "sparsecore_hop" in known.seconds:
        return hops * known.seconds["sparsecore_hop"]
    emitter = collective.emitter or ""
    if "Short" in emitter or "SinglePhase" in emitter:
        return hops * known.seconds["hop"]
    if form in ("die", "pair"):
        return hops / phases * known.seconds["hop"]
    return hops * known.seconds["hop"] / 2  # large emitters begin a hop before the one before it ends


def _form(shape: Shape, collective: SliceCollective) -> Form:
    """Return the form of the algorithm: one ring through a grid, such as 2x4, is a cycle."""
    if shape.form != "grid":
        return shape.form
    strategy, emitter = collective.strategy or "", collective.emitter or ""
    is_ring = "1DRing" in strategy or "StrategyRing" in strategy or "1DAllGather" in emitter
    is_narrow = "ND" not in strategy and collective.kind != "all-reduce" and shape.sides[-1] == 2
    return "cycle" if is_ring or is_narrow else "grid"


def _ring_load(form: Form, shape: Shape) -> tuple[float, float]:
    """Return what an all-reduce puts on its busiest link, in messages, and its hops in one phase."""
    count, longest = shape.size, shape.sides[0]
    if form in ("die", "pair"):
        return 1.0, 1.0
    if form == "line":
        return 2 * (count - 1) / count, longest - 1.0
    if form == "ring":
        return (count - 1) / count, longest / 2
    if form == "cycle":
        return (count - 1) / count, count / 2
    # parts of the message go through the dimensions in different orders; each phase leaves a part for the next
    rest, left = 0.0, 1.0
    for side in reversed(shape.sides):
        rest, left = rest + left, left / side
    load = 2 / len(shape.sides) * (longest - 1) / longest * rest
    hops = sum(side - 1.0 for side in shape.sides)
    return (load / 2, sum(shape.sides) / 2) if form == "torus" else (load, hops)


def _routed(collective: SliceCollective, used: Algorithm, known: _Rates) -> float:
    """Return the time of pairs, which send the whole message, or of all-to-alls, which send a part to each member."""
    start = known.seconds["start" if collective.is_pairs else "all_to_all"]
    slowest = max(used.link_bytes / known.link("ici"), used.die_bytes / known.link("die"))
    if used.hops > 1:
        slowest /= known.share["routes"]
    return start + used.hops * known.seconds["hop"] + slowest
