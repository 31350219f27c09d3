"""The devices that take part in one collective instruction, and the bytes that they send to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.collectives import DCN, Collective

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
        logical: groups or pairs of device numbers as HLO counts them.
        group_size: devices in a group; None if groups differ or are unknown.
        axis: mesh axes on which members of a group differ, joined by '+'; 'none' for groups of one, 'dcn' for groups
            between slices, whose members are not known.
        axis_source: 'mesh' if the mesh was given, 'described' if the process group's description names the axis,
            'inferred' if its axes were inferred, None if the axis is unknown.
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

    def place(self, message_bytes: int | None) -> None:
        """Find every device's place, and what it sends of a message, once the groups are known."""
        groups, is_permute = self.groups or [], self.kind == PERMUTE
        component = _linked(groups) if is_permute else list(range(len(groups)))
        devices: list[set[int | None]] = [set() for _ in range(max(component, default=-1) + 1)]
        for index, members in enumerate(groups):
            devices[component[index]].update(members)
            for rank, device in enumerate(members):
                if device is None or (is_permute and rank == 1 and device in self.members):
                    continue
                sent = None
                if message_bytes is not None:
                    is_silent = (is_permute and rank == 1) or set(members) == {device}
                    sent = 0 if is_silent else wire_bytes(self.kind, len(members), message_bytes)
                self.members[device] = Membership(index, rank, component[index], sent)
        if is_permute and groups and message_bytes is not None:
            self.bytes_of_others = 0
        self.component_size = [None if None in d else len(d) for d in devices]

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


def without_members(collective: Collective) -> Participants:
    """Return what is known of a collective whose members are not: between slices, its axis and what a device sends."""
    if collective.link is None:
        return Participants(collective.kind)
    size, message = collective.group_size, collective.message_bytes
    sent = None if size is None or message is None else wire_bytes(collective.kind, size, message)
    return Participants(collective.kind, group_size=size, axis=DCN, bytes_of_others=sent)


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
