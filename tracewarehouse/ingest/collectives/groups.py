"""Finds the devices of the run that take part in a collective: its groups, mesh axis, and bytes between devices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracewarehouse.ingest.capture_names import AXES
from tracewarehouse.ingest.collectives.axis_inference import CollectiveSeen, InferredAxis, infer_axes
from tracewarehouse.ingest.columns.keys import distinct
from tracewarehouse.ingest.columns.records import Int32
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.collectives import DCN, Collective
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.manifest import Mesh

NOT_KNOWN, OUTSIDE = -1, -2
"""Values in place of a component's number: it is unknown, or the device takes part without moving anything."""
UNKNOWN_AXIS = "unknown"
PERMUTE = "collective-permute"
MAX_EDGES = 1 << 24
"""Most edges that a result may have; an all-to-all of n devices has n (n-1)."""

ALGORITHMS = {
    "all-reduce": "ring",
    "all-gather": "ring",
    "reduce-scatter": "ring",
    "all-to-all": "pairwise",
    "collective-permute": "direct",
    "send": "direct",
    "recv": "direct",
}
"""The algorithm model of each kind of collective, for n devices in a group and a message of S bytes (METRICS):
ring      to the next rank of the group: all-reduce 2 (n-1) S / n, all-gather and reduce-scatter (n-1) S / n
pairwise  all-to-all: S / n to every other rank
direct    collective-permute and send: S from source to target; a recv sends nothing, its send is counted
No model: ragged-all-to-all, whose sizes are data, and collective-broadcast, whose ranks do not send alike. Divisions
round down.
"""


def wire_bytes(kind: str, group_size: int, message_bytes: int) -> int | None:
    """Return the bytes that a device (in pairs, a source) sends in one execution; None without a model or devices."""
    if group_size < 1:
        return None
    others = group_size - 1
    match kind:
        case "all-reduce":
            return 2 * others * message_bytes // group_size
        case "all-gather" | "reduce-scatter":
            return others * message_bytes // group_size
        case "all-to-all":
            return others * (message_bytes // group_size)
        case "collective-permute" | "send":
            return message_bytes
        case "recv":
            return 0
        case _:
            return None


def traffic_edges(
    kind: str, groups_or_pairs: Sequence[Sequence[int]], message_bytes: int
) -> list[tuple[int, int, int]]:
    """Return the bytes from device to device in one execution, as (source, target, bytes), without empty ones.

    The sum over a source's targets is `wire_bytes`, except that a pair of a device with itself moves nothing.

    Raises:
        MalformedError: there are over MAX_EDGES edges.
    """
    model = ALGORITHMS.get(kind)
    if model is None or kind == "recv":
        return []
    if model == "direct":
        return [
            (source, target, message_bytes) for source, target in groups_or_pairs if source != target and message_bytes
        ]
    edges: list[tuple[int, int, int]] = []
    for group in groups_or_pairs:
        size = len(group)
        sent = wire_bytes(kind, size, message_bytes) if size > 1 else 0
        if not sent:
            continue
        if len(edges) + size * (size - 1 if model == "pairwise" else 1) > MAX_EDGES:
            raise MalformedError(f"the traffic of one {kind} has over {MAX_EDGES} pairs of devices")
        if model == "ring":
            edges += [(device, group[(rank + 1) % size], sent) for rank, device in enumerate(group)]
        else:
            edges += [(d, other, message_bytes // size) for d in group for other in group if other != d]
    return edges


@dataclass(frozen=True)
class Membership:
    """One device's place in a collective.

    Attributes:
        group_index: its group or pair; among a permute's pairs, the one in which it sends, if any.
        rank: position in that group.
        component: the devices that wait for each other: a group, or the pairs that are linked by shared devices.
        wire_bytes: bytes that it sends in one execution; None if there is no algorithm model.
    """

    group_index: int
    rank: int
    component: int
    wire_bytes: int | None


@dataclass
class Participants:
    """The groups of one collective instruction over the run's devices.

    Attributes:
        kind: kind of collective.
        logical: groups or pairs of device numbers as HLO counts them.
        group_size: devices in a group; None if groups differ or are unknown.
        axis: mesh axes on which members of a group differ, joined by '+'; 'none' for groups of one, 'dcn' for groups
            between slices, whose members are not known.
        axis_source: 'mesh' if the mesh was given, 'inferred' if its axes were inferred, None if the axis is unknown.
        groups: the same groups as device ids, None for a member outside the capture. If each host counts its own
            devices from 0, there is a copy for each host. None if HLO's numbers could not be matched with devices.
        members: every device's place.
        component_size: devices of a component; None if some are outside the capture.
        bytes_of_others: bytes that a device in no known group sends: 0 in a permute whose pairs are known; between
            slices, what the size of the group tells; else None.
    """

    kind: str
    logical: Sequence[tuple[int, ...]] = ()
    group_size: int | None = None
    axis: str = UNKNOWN_AXIS
    axis_source: str | None = None
    groups: list[tuple[int | None, ...]] | None = None
    members: dict[int, Membership] = field(default_factory=dict)
    component_size: list[int | None] = field(default_factory=list)
    bytes_of_others: int | None = None

    def component(self, device: int) -> int:
        """Return the component of a device; OUTSIDE if it is in no pair of a permute whose pairs are known."""
        place = self.members.get(device)
        if place:
            return place.component
        return OUTSIDE if self.kind == PERMUTE and self.groups else NOT_KNOWN

    def wire_bytes(self, device: int) -> int | None:
        """Return the bytes that a device sends in one execution; None if unknown."""
        place = self.members.get(device)
        return place.wire_bytes if place else self.bytes_of_others


class CollectiveGroups:
    """Matches the groups of a run's collective instructions with its devices.

    Args:
        instructions: all instructions of the run.
        devices_of_host: device ids of each host, in order of their ordinals.
        coordinates: device id to its coordinate on every mesh axis; None without a mesh, and then axes are inferred.
        mesh: the mesh.
        numbers: device id by its number in the mesh, if only some of the mesh's devices are in the capture.

    Attributes:
        inferred: the inferred axes, outermost first; empty with a mesh, or if the groups fit no mesh.
        missing_devices: devices that programs count but the capture lacks.
    """

    def __init__(
        self,
        instructions: Sequence[InstructionRow],
        devices_of_host: Sequence[Sequence[int]],
        coordinates: Mapping[int, Mapping[str, int]] | None,
        mesh: Mesh | None = None,
        numbers: Mapping[int, int] | None = None,
    ) -> None:
        self._instructions = instructions
        self._hosts = devices_of_host
        self._coordinates = coordinates
        self._mesh, self._numbers = mesh, numbers or {}
        self._participants: dict[int, Participants] = {}
        self.missing_devices = 0
        self._device_count = sum(map(len, devices_of_host))
        self._world: dict[int | None, int] = {}  # program -> devices that it counts, from all its collectives
        for row in instructions:
            if row.members:
                size = max(max(g, default=-1) for g in row.members) + 1
                self._world[row.program_id] = max(self._world.get(row.program_id, 0), size)
        self._inferred_world = max(self._world.values(), default=self._device_count)
        self.inferred = self._infer() if coordinates is None else []

    def participants(self, instruction_id: int) -> Participants:
        """Return the participants of an instruction; they are found once and then kept."""
        participants = self._participants.get(instruction_id)
        if participants is None:
            participants = self._participants[instruction_id] = self._match(self._instructions[instruction_id])
        return participants

    def components(self, instruction: Int32, device: int) -> Int32:
        """Return the component of each execution of an instruction on a device; NOT_KNOWN or OUTSIDE if it has none."""
        used, of_row = distinct(instruction)
        return np.array([self.participants(i).component(device) for i in used.tolist()], np.int32)[of_row]

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
            return Participants(kind) if row.collective is None else _without_members(row.collective)
        world = self._world.get(row.program_id, self._device_count)
        logical = row.members or (tuple(range(world)),)  # HLO's {} is one group of all devices
        sizes = {len(g) for g in logical}
        participants = Participants(kind, logical, sizes.pop() if len(sizes) == 1 else None)
        numberings = self._numberings(world)
        if numberings is None:
            self.missing_devices = max(self.missing_devices, world - self._device_count)
            return participants
        participants.groups = [tuple(n[i] if i < len(n) else None for i in g) for n in numberings for g in logical]
        if self._coordinates is not None:
            in_mesh = self._mesh is not None and numberings == [self._in_mesh()]
            coordinates = self._mesh.coordinates() if self._mesh and in_mesh else self._coordinates
            participants.axis = _axis_of(logical if in_mesh else participants.groups, coordinates)
        elif world == self._inferred_world:
            participants.axis = self._inferred_axis(logical)
        if participants.axis != UNKNOWN_AXIS:
            participants.axis_source = "inferred" if self._coordinates is None else "mesh"
        self._place(participants, row.collective.message_bytes if row.collective else None)
        return participants

    def _in_mesh(self) -> list[int | None]:
        return [self._numbers.get(i) for i in range(self._mesh.size)] if self._mesh and self._numbers else []

    def _numberings(self, world: int) -> list[list[int | None]] | None:
        """Return device ids by logical number: one list for all hosts, or one per host if each is its own world."""
        if self._mesh and self._numbers and world == self._mesh.size:
            return [self._in_mesh()]
        widest = max(map(len, self._hosts), default=0)
        if world <= self._device_count and (len(self._hosts) == 1 or world > widest):
            return [[d for devices in self._hosts for d in devices]]
        if len(self._hosts) > 1 and all(len(h) == world for h in self._hosts):
            return [list(h) for h in self._hosts]
        return None

    def _infer(self) -> list[InferredAxis]:
        world = self._inferred_world
        seen = [
            CollectiveSeen(
                row.collective.kind,
                tuple(row.members) or (tuple(range(world)),),
                layer_and_part(row.op_name)[1],
            )
            for row in self._instructions
            if row.collective and row.members is not None and self._world.get(row.program_id, world) == world
        ]
        has_experts = any(layer_and_part(row.op_name)[1] == "moe" for row in self._instructions)
        axes = infer_axes(seen, world, has_experts=has_experts) if seen else []
        numberings = self._numberings(world) or []
        if axes and len(numberings) > 1:
            # no collective tells whether the hosts are stages of a pipeline or replicas
            axes.insert(0, InferredAxis(None, len(numberings), world, 0.0, "hosts that run programs of their own"))
        return axes

    def _inferred_axis(self, logical: Sequence[tuple[int, ...]]) -> str:
        differing = [a.axis for a in self.inferred if any(len({a.place(d) for d in g}) > 1 for g in logical)]
        is_known = self.inferred and None not in differing
        return _joined({a for a in differing if a}) if is_known else UNKNOWN_AXIS

    def _place(self, participants: Participants, message_bytes: int | None) -> None:
        groups = participants.groups or []
        component = _linked(groups) if participants.kind == PERMUTE else list(range(len(groups)))
        devices: list[set[int | None]] = [set() for _ in range(max(component, default=-1) + 1)]
        for index, members in enumerate(groups):
            devices[component[index]].update(members)
            for rank, device in enumerate(members):
                if device is None or (participants.kind == PERMUTE and rank == 1 and device in participants.members):
                    continue
                sent = None
                if message_bytes is not None:
                    is_target = participants.kind == PERMUTE and (rank == 1 or members[0] == members[1])
                    sent = 0 if is_target else wire_bytes(participants.kind, len(members), message_bytes)
                participants.members[device] = Membership(index, rank, component[index], sent)
        if participants.kind == PERMUTE and groups and message_bytes is not None:
            participants.bytes_of_others = 0
        participants.component_size = [None if None in d else len(d) for d in devices]


def _without_members(collective: Collective) -> Participants:
    """Return what is known of a collective whose members are not: between slices, its axis and what a device sends."""
    if collective.link is None:
        return Participants(collective.kind)
    size, message = collective.group_size, collective.message_bytes
    sent = None if size is None or message is None else wire_bytes(collective.kind, size, message)
    return Participants(collective.kind, group_size=size, axis=DCN, bytes_of_others=sent)


def _joined(axes: Collection[str]) -> str:
    return "+".join(a for a in AXES if a in axes) or "none"


def _axis_of(groups: Sequence[tuple[int | None, ...]], coordinates: Mapping[int, Mapping[str, int]]) -> str:
    """Return the mesh axes on which members of a group differ."""
    differing: set[str] = set()
    for members in groups:
        places = [coordinates[m] for m in members if m is not None and m in coordinates]
        if len(places) < len(members):
            return UNKNOWN_AXIS
        differing |= {a for a in AXES if len({p.get(a) for p in places}) > 1}
    return _joined(differing)


def _linked(pairs: Sequence[tuple[int | None, ...]]) -> list[int]:
    """Return the number of each pair's connected component: pairs that share a device wait for each other."""
    root: dict[int, int] = {}

    def find(x: int) -> int:
        while root.setdefault(x, x) != x:
            root[x] = root[root[x]]
            x = root[x]
        return x

    for pair in pairs:
        known = [d for d in pair if d is not None]
        for device in known[1:]:
            root[find(device)] = find(known[0])
    numbers: dict[int, int] = {}
    components = []
    for i, pair in enumerate(pairs):
        first = next((d for d in pair if d is not None), None)
        components.append(numbers.setdefault(find(first) if first is not None else -1 - i, len(numbers)))
    return components
