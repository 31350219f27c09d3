"""Finds the collectives of a program, in all their forms, on the devices of the slice that it runs on."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

from tracewarehouse.ingest.hlo.collectives import DCN, KINDS, find_collective
from tracewarehouse.ingest.hlo.instruction import with_logical_numbers
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.opcodes import base_opcode, is_spread_step
from tracewarehouse.ingest.hlo.replica_groups import Groups, Pairs
from tracewarehouse.ingest.hlo.schedule import Schedule, ScheduledOp
from tracewarehouse.predict.links import SliceCollective, TimeRange, collective_time
from tracewarehouse.predict.machine import Machine


class PlacedCollective(NamedTuple):
    """A collective of a program.

    Attributes:
        collective: what it is, on the devices of the slice.
        time: how long it takes.
        direction: 1 or -1 for pairs that send ahead or back in the order of the devices, which do not meet; else 0.
        group_size: devices of its largest group.
    """

    collective: SliceCollective
    time: TimeRange
    direction: int
    group_size: int


class Exchange(NamedTuple):
    """What the devices that share experts send each other.

    Attributes:
        sent: rows that a device sends at most, one for each of its tokens and device that the token goes to.
        devices: how many they are.
        load: pairs of token and expert on the busiest of them, as a multiple of the mean; the others wait for it.
    """

    sent: int
    devices: int
    load: float = 1.0

    def expected(self, rows: int) -> float:
        """Return how many of the rows of a product of experts are filled on the busiest device.

        With equal loads a device computes as many pairs of token and expert as its own tokens choose. The rows are for
        all tokens of all devices with each expert here that a token may choose: with as many experts here as a token
        chooses, one of `devices` rows is filled; with fewer, each choice of a token is another device, to which it is
        sent.
        """
        return min(float(rows), max(self.sent, rows / self.devices) * self.load)


class ProgramCollectives:
    """The collectives of a program.

    Args:
        module: the program, whose device assignment says which devices its groups name.
        schedule: its ops.
        machine: what it runs on.
        busiest_load: see `Exchange`.
    """

    def __init__(self, module: HloModule, schedule: Schedule, machine: Machine, busiest_load: float = 1.0) -> None:
        self._module, self._schedule, self._machine, self._load = module, schedule, machine, busiest_load
        self._found: dict[str, PlacedCollective | None] = {}
        self._times: dict[SliceCollective, TimeRange] = {}

    def find(self, op: ScheduledOp) -> PlacedCollective | None:
        """Return the collective within the slice that an op is, carries or starts; None if it is none."""
        if op.name not in self._found:
            self._found[op.name] = self._placed(op)
        return self._found[op.name]

    @cached_property
    def exchange(self) -> Exchange | None:
        """The exchange of rows between the devices that share experts; None without one.

        On the way to the experts the result has room for the rows of all devices, on the way back the operand has.
        """
        ragged = [op for op in self._schedule.ops(self._schedule.entry) if op.opcode == "ragged-all-to-all"]
        rows = [min(op.operands[0][0].dimensions[0], op.results[0].dimensions[0]) for op in ragged if _has_rows(op)]
        sizes = [found.group_size for op in ragged if (found := self.find(op))]
        return Exchange(max(rows), max(sizes), self._load) if rows and sizes else None

    def _placed(self, op: ScheduledOp) -> PlacedCollective | None:
        if not any(base_opcode(opcode) in KINDS for opcode in (op.opcode, *self._schedule.opcodes(op))):
            return None
        stated = self._module.instruction(op.name)
        if stated is None or is_spread_step(stated):
            return None
        found = find_collective(with_logical_numbers(stated, *self._module.device_counts))
        if found is None or found.link == DCN:
            return None
        says = next((each for each in (op, *self._schedule.inside(op)) if each.emitter), op)
        collective = SliceCollective(
            found.kind,
            found.message_bytes or 0,
            self._on_devices(found.groups, found.pairs),
            found.pairs is not None,
            says.emitter,
            says.strategy,
            op.thread == "sparsecore",
        )
        if collective not in self._times:
            self._times[collective] = collective_time(self._machine, collective)
        ahead = sum(1 if b > a else -1 for a, b in collective.groups) if collective.is_pairs else 0
        size = max(map(len, collective.groups), default=1)
        return PlacedCollective(collective, self._times[collective], (ahead > 0) - (ahead < 0), size)

    def _on_devices(self, groups: Groups | None, pairs: Pairs | None) -> Groups:
        """Return groups, or pairs, of logical numbers as those of devices; no groups mean one of all devices."""
        places = self._module.assignment
        members = pairs if pairs is not None else groups or (tuple(range(self._machine.topology.devices)),)
        return tuple(tuple(places[n] if n < len(places) else n for n in group) for group in members)


def _has_rows(op: ScheduledOp) -> bool:
    """Return whether a ragged all-to-all states the rows that it takes and the room for those that it gives."""
    given = [*op.operands[0], *op.results] if op.operands else []
    return len(given) > 1 and all(buffer.dimensions and buffer.dimensions[0] for buffer in given)
