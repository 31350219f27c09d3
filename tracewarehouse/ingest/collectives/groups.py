"""Finds the devices of the run that take part in each collective, and the mesh axis along which it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.collectives.axis_inference import CollectiveSeen, InferredAxis, infer_axes
from tracewarehouse.ingest.collectives.numbering import (
    CLEARLY,
    Assignment,
    DeviceNumbers,
    Numbering,
    Orders,
    Overlap,
    ProgramKey,
    RankTimes,
)
from tracewarehouse.ingest.collectives.participants import (
    ALGORITHMS,
    NOT_KNOWN,
    UNKNOWN_AXIS,
    Participants,
    traffic_edges,
    without_members,
)
from tracewarehouse.ingest.columns.keys import distinct
from tracewarehouse.ingest.columns.records import Int32
from tracewarehouse.ingest.errors import shown
from tracewarehouse.ingest.hlo.collectives import SYNCHRONISING
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part
from tracewarehouse.ingest.hlo.replica_groups import MAX_MEMBERS


class CollectiveGroups:
    """Matches the groups of a run's collective instructions with its devices.

    Args:
        numbers: what their logical numbers mean.
        coordinates: device id to its coordinate on every mesh axis; None without a mesh, and then axes are inferred.
        coordinates_by_number: the same by global id, for devices that the capture lacks; None without a mesh.
        is_mesh_assumed: nothing tells where the devices lie on the mesh; if ranks' times tell, that is taken.

    Attributes:
        coordinates: as given, or as the ranks' times tell.
        inferred: the inferred axes, outermost first, of the set of devices with most numbers; empty with a mesh, or if
            the groups fit no mesh.
        missing_devices: devices that programs count but the capture lacks.
        orders: after `confirm`, orders other than that of the devices that ranks' times tell, a sentence for each.
        unverified: after `confirm`, programs whose devices nothing tells, a sentence for each.
    """

    def __init__(
        self,
        instructions: Sequence[InstructionRow],
        numbers: DeviceNumbers,
        coordinates: Mapping[int, Mapping[str, int]] | None,
        coordinates_by_number: Mapping[int, Mapping[str, int]] | None = None,
        *,
        is_mesh_assumed: bool = False,
    ) -> None:
        self._instructions = instructions
        self._numbers = numbers
        self.coordinates = coordinates
        self._is_mesh_assumed = is_mesh_assumed
        self._by_number = coordinates_by_number or {}
        self._participants: dict[int, Participants] = {}
        self._chosen: dict[tuple[tuple[int, ...], int], int] = {}
        self._known: dict[tuple[tuple[Assignment, ...], ProgramKey], list[Numbering] | None] = {}
        self._usual: dict[tuple[int, ProgramKey], Orders | None] = {}
        self.missing_devices = 0
        self.orders: list[str] = []
        self.unverified: list[str] = []
        self._assumed: set[str] = set()
        self._unjoined: set[str] = set()
        self._device_count = len(numbers.devices)
        self._world: dict[ProgramKey, int] = {}  # program without an assignment -> devices that its collectives count
        for row in instructions:
            if row.members and not row.assignments:
                highest = max(max(g, default=-1) for g in row.members)
                self._world[_program(row)] = max(self._world.get(_program(row), 0), highest + 1)
        self._meshes = self._infer() if coordinates is None else {}
        self.inferred = self._main_axes()

    def confirm(self, measure: Callable[[], RankTimes]) -> None:
        """Choose among the orders of the devices the one in which the ranks of executions overlap in time.

        It is for programs without a device assignment whose groups are a part of their devices. If there are some,
        `measure` returns the times.
        """
        open_rows: dict[tuple[tuple[int, ...], int], tuple[Orders, list[int]]] = {}
        for number, row in enumerate(self._instructions):
            world = self._world_of(row)
            groups = row.members or ()
            if (
                row.assignments or world > MAX_MEMBERS or all(len(g) in (1, world) for g in groups)
            ):  # any order has the same members
                continue
            orders = self._orders(row)
            if orders and len(orders.devices) > 1:
                open_rows.setdefault((orders.devices, world), (orders, []))[1].append(number)
        if not open_rows:
            return
        times = measure()
        for key, (orders, rows) in open_rows.items():
            found = [self._overlap(copies, rows, times) for copies in orders.possible]
            best = max(range(len(found)), key=lambda i: found[i].overlapping / max(1, found[i].tried))
            fitting = [i for i, overlap in enumerate(found) if overlap.tried == overlap.overlapping > 0]
            rivals: list[int] = []
            if len(fitting) > 1:
                members = {i: self._members(orders.possible[i], rows) for i in fitting}
                closest = min(fitting, key=lambda i: found[i].spread_ps)
                others = [i for i in fitting if members[i] != members[closest]]
                if any(found[i].spread_ps <= CLEARLY * found[closest].spread_ps for i in others):
                    rivals = others
                else:
                    best = closest
            self._tell(key, orders, best, found[best], rows[0], len(rivals))
        self._participants.clear()

    def assume_world(self) -> None:
        """Take collectives whose ranks nothing names for ones of all devices, until `doubt` says otherwise.

        It is for kernels of GPUs whose process group is not recorded, in runs of all their ranks.
        """
        for row in self._instructions:
            stated = row.stated
            if (
                stated is not None
                and stated.communicator is not None
                and row.members is None
                and stated.kind in SYNCHRONISING
                and stated.group_size in (None, self._device_count)
                and self._world_of(row) == self._device_count > 1
            ):
                self._restate(row, ())
                self._assumed.add(stated.communicator)
        self._infer_again()
        if self._assumed:
            self.orders.append(
                f"nothing names the ranks of some collectives: those of all {self._device_count} devices overlap"
            )

    def doubt(self, late: Mapping[str, tuple[int, int]]) -> None:
        """Join no ranks of communicators whose ranks do not overlap in time.

        Args:
            late: for each, pairs of ranks of which one begins after the other has ended, and all pairs.
        """
        for name, (apart, pairs) in late.items():
            if name in self._assumed:
                for row in self._instructions:
                    if row.stated and row.stated.communicator == name and row.stated.groups == ():
                        self._restate(row, None)
                self._assumed.discard(name)
            self._unjoined.add(name)
            self.unverified.append(
                f"process group {name}: {apart} of {pairs} pairs of ranks do not overlap in time: none are joined"
            )
        if not self._assumed:
            self.orders = [sentence for sentence in self.orders if not sentence.startswith("nothing names")]
        self._infer_again()

    def _restate(self, row: InstructionRow, groups: tuple[tuple[int, ...], ...] | None) -> None:
        if row.stated:
            row.stated = replace(row.stated, groups=groups)
            row.__dict__.pop("collective", None)  # which was made with the groups before

    def _infer_again(self) -> None:
        if self._assumed or self._unjoined:
            self._meshes = self._infer() if self.coordinates is None else {}
            self.inferred = self._main_axes()
        self._participants.clear()

    def _overlap(self, copies: Sequence[Numbering], rows: Iterable[int], times: RankTimes) -> Overlap:
        total = Overlap()
        for number in rows:
            row = self._instructions[number]
            is_permute = row.collective is not None and row.collective.pairs is not None
            total = total.plus(times.overlap(number, _devices(row.members or (), copies), is_permute=is_permute))
        return total

    def _members(self, copies: Sequence[Numbering], rows: Iterable[int]) -> list[set[frozenset[int | None]]]:
        """Return the devices of each group of these instructions, in whatever order."""
        return [{frozenset(g) for g in _devices(self._instructions[n].members or (), copies)} for n in rows]

    def _tell(
        self,
        key: tuple[tuple[int, ...], int],
        orders: Orders,
        best: int,
        overlap: Overlap,
        number: int,
        rivals: int,
    ) -> None:
        """Take an order and say how it is known; `rivals` are the orders with other members that fit as well."""
        module = shown(self._instructions[number].module or self._instructions[number].name)
        pairs = f"{overlap.overlapping} of {overlap.tried} pairs of ranks overlap in time"
        order = ",".join(str(d) for d in orders.possible[best][0])
        if rivals:
            self.unverified.append(
                f"{module}: the ranks' times fit the order {order}, which is taken, and {rivals} more"
            )
        elif overlap.is_verified:
            self._chosen[key] = best
            order_of_mesh = orders.possible[best][0] if len(orders.possible[best]) == 1 else []
            if self._is_mesh_assumed and len(order_of_mesh) == len(self._by_number):
                places = zip(order_of_mesh, self._by_number.values(), strict=True)
                self.coordinates = {device: place for device, place in places if device is not None}
            if best:
                self.orders.append(f"{module} counts the devices in the order {order}: {pairs}")
        elif overlap.tried:
            tried = f"none of {len(orders.possible)} usual orders" if len(orders.possible) > 1 else "no usual order"
            self.unverified.append(f"{module}: {tried} of the devices fits, in the best ({order}) {pairs}")
        else:
            self.unverified.append(
                f"{module}: the capture has no two ranks of an execution whose times can be compared"
            )

    def participants(self, instruction_id: int) -> Participants:
        """Return the participants of an instruction; they are found once and then kept."""
        participants = self._participants.get(instruction_id)
        if participants is None:
            participants = self._participants[instruction_id] = self._match(self._instructions[instruction_id])
        return participants

    def components(self, instruction: Int32, device: int) -> Int32:
        """Return the component of each execution of an instruction on a device; NOT_KNOWN or OUTSIDE if it has none."""
        used, of_row = distinct(instruction)
        return np.array([self._component(i, device) for i in used.tolist()], np.int32)[of_row]

    def _component(self, instruction_id: int, device: int) -> int:
        stated = self._instructions[instruction_id].stated
        is_unjoined = stated is not None and stated.communicator in self._unjoined
        return NOT_KNOWN if is_unjoined else self.participants(instruction_id).component(device)

    def group_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of main.collective_groups for the instructions whose participants were found."""
        for instruction_id, participants in sorted(self._participants.items()):
            unknown = [(None,) * len(g) for g in participants.logical]
            for index, members in enumerate(participants.groups if participants.groups is not None else unknown):
                logical = participants.logical[index % len(participants.logical)]
                for rank, (number, device) in enumerate(zip(logical, members, strict=True)):
                    yield {
                        "instruction_id": instruction_id,
                        "group_index": index,
                        "rank": rank,
                        "logical_id": number,
                        "device_id": device,
                    }

    def traffic_rows(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of main.traffic for those of these instructions whose devices are all known."""
        for instruction_id, participants in sorted(self._participants.items()):
            collective = self._instructions[instruction_id].collective
            algorithm = ALGORITHMS.get(participants.kind)
            if (
                collective is None
                or collective.message_bytes is None
                or algorithm is None
                or participants.groups is None
                or (algorithm == "direct" and collective.pairs is None)  # a group does not tell who sends to whom
            ):
                continue
            complete = [tuple(d for d in g if d is not None) for g in participants.groups if None not in g]
            for source, target, size in traffic_edges(participants.kind, complete, collective.message_bytes):
                yield {
                    "instruction_id": instruction_id,
                    "source_device_id": source,
                    "target_device_id": target,
                    "algorithm": algorithm,
                    "bytes": size,
                }

    def _match(self, row: InstructionRow) -> Participants:
        kind = row.collective.kind if row.collective else ""
        if row.members is None:
            return Participants(kind) if row.collective is None else without_members(row.collective)
        world = self._world_of(row)
        is_possible = world <= MAX_MEMBERS  # a list of more must not cost memory
        logical = row.members or (tuple(range(world if is_possible else 0)),)  # HLO's {} is one group of all devices
        sizes = {len(g) for g in logical}
        participants = Participants(kind, logical, sizes.pop() if len(sizes) == 1 else None)
        copies = self._copies(row) if is_possible else None
        if copies is None or any(None in c for c in copies):
            self.missing_devices = max(self.missing_devices, world - self._device_count)
        if copies is None:
            return participants
        participants.groups = _devices(logical, copies)
        if self.coordinates is not None:
            participants.axis = _axis_of(participants.groups, self.coordinates)
            if participants.axis == UNKNOWN_AXIS and world == len(self._by_number):
                stated = next((a for a in row.assignments if len(a) == world), None)
                numbers = stated or range(world)
                participants.axis = _axis_of([tuple(numbers[i] for i in g) for g in logical], self._by_number)
        elif (mesh := self._meshes.get(_all_of(copies))) and mesh.world == world:
            participants.axis = mesh.axis(row, logical)
        if participants.axis != UNKNOWN_AXIS:
            participants.axis_source = "inferred" if self.coordinates is None else "mesh"
        if self.coordinates is None and row.collective and row.collective.axis:
            participants.axis, participants.axis_source = row.collective.axis, "described"
        participants.place(row.collective.message_bytes if row.collective else None)
        return participants

    def _world_of(self, row: InstructionRow) -> int:
        stated = max(map(len, row.assignments), default=0)
        return stated or self._world.get(_program(row)) or len(self._numbers.run_by(_program(row)))

    def _copies(self, row: InstructionRow) -> list[Numbering] | None:
        """Return the numberings of an instruction's program: several if sets of devices each run it on their own."""
        if row.assignments:
            key = row.assignments, _program(row)
            if key not in self._known:
                self._known[key] = self._numbers.assigned(*key)
            return self._known[key]
        orders = self._orders(row)
        world = self._world_of(row)
        return list(orders.possible[self._chosen.get((orders.devices, world), 0)]) if orders else None

    def _orders(self, row: InstructionRow) -> Orders | None:
        key = self._world_of(row), _program(row)
        if key not in self._usual:
            self._usual[key] = self._numbers.orders(*key)
        return self._usual[key]

    def _infer(self) -> dict[frozenset[int | None], _InferredMesh]:
        of_set: dict[frozenset[int | None], list[InstructionRow]] = {}
        for row in self._instructions:
            if row.collective and row.members is not None and self._world_of(row) <= MAX_MEMBERS:
                of_set.setdefault(_all_of(self._copies(row) or ()), []).append(row)
        has_experts = any(layer_and_part(row.op_name)[1] == "moe" for row in self._instructions)
        return {devices: self._inferred_mesh(rows, has_experts) for devices, rows in of_set.items()}

    def _inferred_mesh(self, rows: Sequence[InstructionRow], has_experts: bool) -> _InferredMesh:
        world = max(map(self._world_of, rows))
        whole = [row for row in rows if self._world_of(row) == world]
        assigned = Counter(a for row in whole for a in row.assignments if len(a) == world)
        main = assigned.most_common(1)[0][0] if assigned else ()
        mesh = _InferredMesh(world, {number: place for place, number in enumerate(main)}, len(whole))
        seen = [
            CollectiveSeen(
                row.collective.kind,
                tuple(mesh.places(row, row.members or (tuple(range(world)),))),
                layer_and_part(row.op_name)[1],
            )
            for row in whole
            if row.collective
        ]
        mesh.axes = infer_axes(seen, world, has_experts=has_experts)
        mesh.parts = {frozenset(copy) for row in whole for copy in self._copies(row) or ()}
        return mesh

    def _main_axes(self) -> list[InferredAxis]:
        main = max(self._meshes.values(), key=lambda m: (m.world, m.collectives), default=None)
        if main is None or not main.axes:
            return []
        parts: set[frozenset[int | None]] = set()
        for part in sorted((p for m in self._meshes.values() if m.world == main.world for p in m.parts), key=str):
            if not any(part & other for other in parts):
                parts.add(part)
        if len(parts) < 2:
            return main.axes
        # no collective tells whether these are stages of a pipeline, replicas, or devices for prefill and decode
        which = "hosts" if parts == set(map(frozenset, self._numbers.hosts)) else "sets of devices"
        evidence = f"{which} that run programs of their own"
        return [InferredAxis(None, len(parts), main.world, 0.0, evidence), *main.axes]


@dataclass
class _InferredMesh:
    """The mesh of one set of devices, for programs over `world` logical numbers."""

    world: int
    order: dict[int, int]
    """Place of each global id in the main device assignment, which other programs may order differently."""
    collectives: int
    """Instructions that tell its axes."""
    axes: list[InferredAxis] = field(default_factory=list)
    parts: set[frozenset[int | None]] = field(default_factory=set)
    """Devices that run the programs on their own: all of the set, or those of each host."""

    def places(self, row: InstructionRow, logical: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        """Return groups as places of the main device assignment."""
        assignment = next((a for a in row.assignments if len(a) == self.world), ())
        if set(assignment) != self.order.keys() or not assignment:
            return logical
        return tuple(tuple(self.order[assignment[i]] for i in g) for g in logical)

    def axis(self, row: InstructionRow, logical: Sequence[tuple[int, ...]]) -> str:
        """Return the axes on which members of a group differ, joined by '+'."""
        if not self.axes:
            return UNKNOWN_AXIS
        groups = self.places(row, logical)
        differing = {a.axis for a in self.axes if any(len({a.place(d) for d in g}) > 1 for g in groups)}
        return UNKNOWN_AXIS if None in differing else _joined({a for a in differing if a})


def _program(row: InstructionRow) -> ProgramKey:
    return row.module if row.program_id is None else row.program_id


def _devices(logical: Sequence[tuple[int, ...]], copies: Sequence[Numbering]) -> list[tuple[int | None, ...]]:
    return [tuple(n[i] if i < len(n) else None for i in g) for n in copies for g in logical]


def _all_of(copies: Iterable[Numbering]) -> frozenset[int | None]:
    return frozenset(device for copy in copies for device in copy)


def _joined(axes: Collection[str]) -> str:
    return "+".join(a for a in AXES if a in axes) or "none"


def _axis_of(groups: Sequence[tuple[int | None, ...]], coordinates: Mapping[int, Mapping[str, int]]) -> str:
    differing: set[str] = set()
    for members in groups:
        places = [coordinates[m] for m in members if m is not None and m in coordinates]
        if len(places) < len(members):
            return UNKNOWN_AXIS
        differing |= {a for a in AXES if len({p.get(a) for p in places}) > 1}
    return _joined(differing)
