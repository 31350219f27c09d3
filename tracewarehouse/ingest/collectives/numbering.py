"""Finds the devices that the logical numbers of HLO mean.

Replica groups count the places of a program's device assignment, replica by replica. Most captures embed the
assignment, which names devices by their global ids. Where a capture lacks it, programs use one of a few orders: the
devices' own, that of the manifest's mesh, or a ring of a TPU tray. The ranks of one execution of a collective overlap
in time, because none leaves before all have arrived, and they leave together. So the ranks' times tell the order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.records import Int32, Int64

Assignment = tuple[int, ...]
"""Global device ids by logical number."""
Numbering = list[int | None]
"""Device ids of the run by logical number; None for a device that is not in the capture."""
ProgramKey = int | str | None
"""A program's id, or the name of its module if it has none."""

TRAY_ORDERS: tuple[tuple[int, ...], ...] = (
    (0, 1, 3, 2),
    (0, 1, 2, 3, 6, 7, 4, 5),
    (0, 1, 2, 3, 7, 6, 5, 4),
    (0, 4, 2, 6, 1, 5, 3, 7),
    (0, 1, 3, 2, 6, 7, 5, 4),
    (0, 1, 2, 3, 7, 6, 5, 9, 10, 11, 15, 14, 13, 12, 8, 4),
)
"""The orders in which jax.experimental.mesh_utils lays a mesh over the chips of a tray: a tray of 2 x 2; v2, v3 and
TPU7x; v5e in a ring; v5e of 2 x 2 x 2; v5p of 2 x 2 x 2; v5e of 4 x 4."""
OVERLAPPING = 0.99
"""Share of pairs of ranks that must overlap in time before an order counts as verified. Of real captures all do; with
wrong members a few in a hundred do not, as devices often run in step."""


CLEARLY = 2
"""How many times as far apart the ranks must end in any other order that fits, before the times tell the order."""


class Overlap(NamedTuple):
    """Pairs of ranks that were compared, each rank with the first of its execution to leave, and how many overlap.

    `spread_ps` sums the time from the first to the last rank's end over the executions of synchronous collectives.
    """

    tried: int = 0
    overlapping: int = 0
    spread_ps: int = 0

    @property
    def is_verified(self) -> bool:
        """Whether the ranks overlap as those of one execution do."""
        return self.tried > 0 and self.overlapping >= OVERLAPPING * self.tried

    def plus(self, other: Overlap) -> Overlap:
        """Return the pairs of both."""
        return Overlap(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Orders:
    """The numberings that a program without a device assignment may have, the likeliest first.

    A numbering has a copy for each host if every host runs a program of its own.
    """

    devices: tuple[int, ...]
    """The devices that run the program."""
    possible: tuple[tuple[Numbering, ...], ...]


class DeviceNumbers:
    """Matches logical numbers with the devices of a run.

    Args:
        devices_of_host: device ids of each host, in order of their ordinals.
        global_ids: global id by device id; empty if the capture does not state those of all devices.
        runners: the devices that ran each program; a program that is not in it may have run on all.
        mesh_order: global ids by their place in the mesh, if the manifest gives them.

    Attributes:
        hosts: the devices of each host, by their global ids.
        devices: those of all hosts.
    """

    def __init__(
        self,
        devices_of_host: Sequence[Sequence[int]],
        global_ids: Mapping[int, int],
        runners: Mapping[ProgramKey, Collection[int]],
        mesh_order: Sequence[int] | None = None,
    ) -> None:
        self.hosts = [sorted(h, key=lambda d: global_ids.get(d, d)) for h in devices_of_host]
        self.devices = sorted((d for h in self.hosts for d in h), key=lambda d: global_ids.get(d, d))
        self._by_id = {g: d for d, g in global_ids.items()}
        self._runners = runners
        self._mesh_order = mesh_order

    def run_by(self, program: ProgramKey) -> list[int]:
        """Return the devices that ran a program, by their global ids; all if that is not known."""
        ran = self._runners.get(program)
        return [d for d in self.devices if d in ran] if ran else self.devices

    def assigned(self, assignments: Sequence[Assignment], program: ProgramKey) -> list[Numbering] | None:
        """Return the numbering of each device assignment of a program, or of each host that runs it on its own.

        Global ids that the capture states decide. Otherwise the ids ascend in the order of the devices. The result is
        None if they cannot be matched, as in the capture of one of several hosts.
        """
        ids, ran = {i for a in assignments for i in a}, self.run_by(program)
        is_stated = self._by_id and (ids <= self._by_id.keys() or self._by_id.keys() <= ids)
        if is_stated and (program not in self._runners or {self._by_id.get(i) for i in ids} >= set(ran)):
            return _apart([self._by_id.get(i) for i in a] for a in assignments)
        place = {number: k for k, number in enumerate(sorted(ids))}
        for hosts in ([ran], self._by_host(ran), [self.devices]):
            if hosts and all(len(h) == len(ids) for h in hosts):
                return _apart([h[place[i]] for i in a] for h in hosts for a in assignments)
        if len(self.hosts) == 1 and max(ids) < len(self.devices):
            return _apart([self.devices[i] for i in a] for a in assignments)
        return None

    def orders(self, world: int, program: ProgramKey) -> Orders | None:
        """Return the orders that a program over `world` devices without an assignment may have; None without devices.

        Its devices are those that ran it, if they are as many.
        """
        ran = self.run_by(program)
        by_host, widest = self._by_host(ran), max(map(len, self.hosts), default=0)
        hosts: Sequence[Sequence[int | None]] = [ran]
        if len(ran) != world:
            if 0 < len(self._by_id) < world and max(self._by_id) < world:  # the other hosts are not in the capture
                hosts = [[self._by_id.get(i) for i in range(world)]]
            elif by_host and all(len(h) == world for h in by_host):
                hosts = by_host
            elif len(self.hosts) == 1 or world > widest:
                hosts = [ran] if len(ran) > world else [self.devices]
            else:
                return None
        if any(len(h) < world for h in hosts):
            return None
        possible = (tuple([h[i] for i in order] for h in hosts) for order in self._usual(world, hosts))
        return Orders(tuple(ran), tuple(possible))

    def _by_host(self, ran: Collection[int]) -> list[list[int]]:
        return [here for h in self.hosts if (here := [d for d in h if d in ran])]

    def _usual(self, world: int, hosts: Sequence[Sequence[int | None]]) -> Iterator[Sequence[int]]:
        """Yield the usual orders of the devices; a program that names only some of them has their own order."""
        own = range(len(hosts[0]))
        yield own
        if len(own) != world:
            return
        orders = [self._mesh_order] if self._mesh_order else []
        for order in (*orders, *TRAY_ORDERS):
            if sorted(order) == list(own) and list(order) != list(own):
                yield order
        ring = TRAY_ORDERS[1]  # JAX repeats it for each tray of v2 and v3
        if world > len(ring) and world % len(ring) == 0:
            yield [tray + i for tray in range(0, world, len(ring)) for i in ring]


@dataclass
class RankTimes:
    """The times of collectives' executions on each device, by which ranks of one execution are compared.

    Executions of an instruction are matched over devices by the launch of the program and the occurrence in it.

    Attributes:
        clocks: a number for each device, equal for those whose times can be compared.
    """

    clocks: Mapping[int, int]
    _of_instruction: dict[int, list[tuple[int, Int64, Int64, Int64]]] = field(default_factory=dict)

    def add(self, device: int, instruction: Int32, matched: Int64, start: Int64, end: Int64) -> None:
        """Add the executions of a device; `matched` is equal for the ranks of one, the arrays have shape (n,)."""
        order = np.argsort(instruction, kind="stable")
        used, first = np.unique(instruction[order], return_index=True)
        for number, at in zip(used.tolist(), np.split(order, first[1:]), strict=True):
            self._of_instruction.setdefault(number, []).append((device, matched[at], start[at], end[at]))

    def overlap(self, instruction: int, groups: Iterable[Sequence[int | None]], *, is_permute: bool) -> Overlap:
        """Compare the ranks of each execution of an instruction whose groups, or pairs, are these.

        A rank that arrives after another has left is no rank of that execution. In a permute, only the target waits
        for the source.
        """
        here = self._of_instruction.get(instruction, [])
        if len(here) < 2:
            return Overlap()
        executions, column = np.unique(np.concatenate([h[1] for h in here]), return_inverse=True)
        low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
        shape = len(here), len(executions)
        start, end, runs = np.full(shape, low), np.full(shape, high), np.zeros(shape, bool)
        row = np.repeat(np.arange(len(here)), [len(h[1]) for h in here])
        start[row, column], end[row, column] = (np.concatenate([h[k] for h in here]) for k in (2, 3))
        runs[row, column] = True
        place = {h[0]: k for k, h in enumerate(here)}
        total = Overlap()
        for group in groups:
            on_clock: dict[int, list[int]] = {}
            for device in group:
                if device is not None and device in place:
                    on_clock.setdefault(self.clocks[device], []).append(place[device])
            for ranks in on_clock.values():
                found = (_permuted if is_permute else _synchronised)(ranks, start, end, runs)
                total = total.plus(found)
        return total


def _synchronised(ranks: list[int], start: Int64, end: Int64, runs: npt.NDArray[np.bool_]) -> Overlap:
    if len(ranks) < 2:
        return Overlap()
    is_shared = runs[ranks].sum(axis=0) > 1
    is_late = start[ranks] > end[ranks].min(axis=0)
    tried = int((runs[ranks].sum(axis=0) - 1)[is_shared].sum())
    last = np.where(runs[ranks], end[ranks], np.iinfo(np.int64).min).max(axis=0)
    spread = int((last - end[ranks].min(axis=0))[is_shared].sum())
    return Overlap(tried, tried - int(is_late[:, is_shared].sum()), spread)


def _permuted(ranks: list[int], start: Int64, end: Int64, runs: npt.NDArray[np.bool_]) -> Overlap:
    if len(ranks) < 2 or ranks[0] == ranks[1]:
        return Overlap()
    source, target = ranks
    both = runs[source] & runs[target]
    return Overlap(int(both.sum()), int((both & (start[source] <= end[target])).sum()))


def _apart(numberings: Iterable[Numbering]) -> list[Numbering]:
    """Return the numberings that share no device with one before: no device runs one program in two places."""
    kept: list[Numbering] = []
    for numbering in numberings:
        if not any(set(numbering) & set(other) - {None} for other in kept):
            kept.append(numbering)
    return kept
