"""Executions of collectives: windows of asynchronous ones, exposed time, and the instances that ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.hlo import traffic
from ingest.instructions import InstructionRow
from ingest.manifest import AXES
from ingest.nesting import Coverage
from ingest.records import Int32, Int64

UNKNOWN_AXIS = "unknown"
_MAX_EDGES = 1 << 20


@dataclass
class CollectiveOps:
    """Op-line events of one device that are collectives or halves of them; columns of shape (n,)."""

    device_id: int
    host: str
    event_id: Int64
    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64
    execution: Int32
    phase: Int32
    step: Int32


@dataclass(frozen=True)
class AsyncSpan:
    """An event of an Async XLA Ops line: the whole span of an asynchronous op."""

    instruction_id: int
    start_ps: int
    end_ps: int


@dataclass
class GroupsOfInstruction:
    """The groups of one instruction over the run's devices, as far as device numbers are known.

    Attributes:
        logical: members as HLO counts devices, one tuple per group or source-target pair.
        devices: the same as device ids, None for a member outside the capture; one list per host that numbers
            its devices from 0 for itself, otherwise a single one.
        is_known: whether HLO's numbers could be matched with devices at all.
    """

    kind: str
    logical: tuple[tuple[int, ...], ...]
    devices: list[list[tuple[int | None, ...]]] = field(default_factory=list)
    is_known: bool = False

    def placements(self) -> Iterator[tuple[int, int, tuple[int | None, ...]]]:
        """(placement, group index, device ids) of every group."""
        for placement, groups in enumerate(self.devices):
            for index, group in enumerate(groups):
                yield placement, index, group


class CollectiveTable:
    """Builds main.collectives, main.collective_groups and main.traffic of a run."""

    def __init__(
        self,
        instructions: Sequence[InstructionRow],
        devices_of_host: Mapping[str, Sequence[int]],
        coordinates: Mapping[int, Mapping[str, int]] | None,
    ) -> None:
        self._instructions = instructions
        self._devices_of_host = devices_of_host
        self._device_count = sum(map(len, devices_of_host.values()))
        self._coordinates = coordinates
        self._groups: dict[int, GroupsOfInstruction] = {}
        self._program_world = self._worlds()
        self.missing_devices = 0

    def _worlds(self) -> dict[int | None, int]:
        """Devices that each program counts: the most that any of its collectives names."""
        worlds: dict[int | None, int] = {}
        for row in self._instructions:
            if row.members:
                size = max(max(g, default=-1) for g in row.members) + 1
                worlds[row.program_id] = max(worlds.get(row.program_id, 0), size)
        return worlds

    def groups(self, instruction_id: int) -> GroupsOfInstruction:
        """The groups of an instruction, matched with the run's devices."""
        known = self._groups.get(instruction_id)
        if known is None:
            known = self._groups[instruction_id] = self._match(instruction_id)
        return known

    def _match(self, instruction_id: int) -> GroupsOfInstruction:
        row = self._instructions[instruction_id]
        kind = row.collective.kind if row.collective else ""
        if row.members is None:
            return GroupsOfInstruction(kind, ())
        world = self._program_world.get(row.program_id, self._device_count)
        groups = GroupsOfInstruction(kind, row.members or (tuple(range(world)),))  # HLO's {} is all devices
        hosts = list(self._devices_of_host.values())
        if world <= self._device_count and (len(hosts) == 1 or world > max(map(len, hosts))):
            numbering: list[Sequence[int]] = [[d for devices in hosts for d in devices]]
        elif len(hosts) > 1 and all(len(h) == world for h in hosts):
            numbering = [list(h) for h in hosts]  # each host is a world of its own, as in a pipeline over processes
        else:
            self.missing_devices = max(self.missing_devices, world - self._device_count)
            return groups
        groups.is_known = True
        groups.devices = [[tuple(n[i] if i < len(n) else None for i in g) for g in groups.logical] for n in numbering]
        return groups

    def axis(self, instruction_id: int) -> str:
        """Mesh axes that the members of a group differ on, joined by '+'; 'unknown' without a mesh."""
        groups = self.groups(instruction_id)
        if self._coordinates is None or not groups.is_known:
            return UNKNOWN_AXIS
        differing: set[str] = set()
        for _, _, members in groups.placements():
            places = [self._coordinates.get(m) if m is not None else None for m in members]
            if None in places:
                return UNKNOWN_AXIS
            known = [p for p in places if p is not None]
            differing |= {a for a in AXES if len({p.get(a) for p in known}) > 1}
        return "+".join(a for a in AXES if a in differing) or "none"

    def rows(self, ops: Sequence[CollectiveOps], spans: Mapping[int, Sequence[AsyncSpan]]) -> dict[str, Any] | None:
        """Columns of main.collectives for the op events of all devices, ordered by device and start.

        `spans` are the Async XLA Ops events by device, for starts whose done is not in the capture.
        """
        parts = [p for p in (self._windows(o, spans.get(o.device_id, ())) for o in ops) if p is not None]
        if not parts:
            return None
        columns: dict[str, Any] = {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
        self._describe(columns)
        self._number_instances(columns)
        return columns

    def _windows(self, ops: CollectiveOps, spans: Sequence[AsyncSpan]) -> dict[str, Any] | None:
        """One row per execution: a synchronous op, or a start joined with its done."""
        n = len(ops.event_id)
        if not n:
            return None
        used, inverse = np.unique(ops.instruction_id, return_inverse=True)
        rows = [self._instructions[i] for i in used.tolist()]
        roles = [r.collective.role if r.collective else None for r in rows]
        is_done = np.array([r == "done" for r in roles])[inverse]
        is_start = np.array([r == "start" for r in roles])[inverse]
        partner = np.full(n, -1, np.int64)
        if is_start.any():
            pair = np.array(self._pairs(used.tolist()), np.int64)[inverse]
            partner = _match_halves(pair, ops.execution, ops.start_ps, is_start, is_done)
        comm = Coverage(ops.start_ps, ops.end_ps)
        keep = np.flatnonzero(~is_done)
        end = ops.end_ps.copy()
        joined = partner >= 0
        end[joined] = ops.end_ps[partner[joined]]
        source = np.where(is_start, _START_ONLY, _OP)
        source[joined] = _PAIR
        if spans:
            _use_spans(np.flatnonzero(is_start & ~joined), ops, spans, end, source)
        done_id = np.where(joined, ops.event_id[np.maximum(partner, 0)], -1)
        order = keep[np.argsort(ops.start_ps[keep], kind="stable")]
        return {
            "event_id": ops.event_id[order],
            "done_event_id": np.ma.masked_less(done_id[order], 0),
            "host": np.full(len(order), ops.host, object),
            "device_id": np.full(len(order), ops.device_id, np.int32),
            "instruction_id": ops.instruction_id[order],
            "is_async": is_start[order],
            "start_ps": ops.start_ps[order],
            "end_ps": end[order],
            "exposed_ps": comm.within(ops.start_ps[order], end[order]),
            "window_source": source[order],
            "execution": ops.execution[order],
            "phase": ops.phase[order],
            "step": ops.step[order],
        }

    def _pairs(self, used: list[int]) -> list[int]:
        """A number per instruction that a start shares with its done."""
        by_name: dict[tuple[int | None, str], int] = {}
        for i in used:
            row = self._instructions[i]
            if row.collective and row.collective.role == "start":
                by_name[row.program_id, row.name] = i
        numbers = []
        for i in used:
            row = self._instructions[i]
            start = row.collective.start_name if row.collective and row.collective.role == "done" else None
            numbers.append(by_name.get((row.program_id, start), i) if start else i)
        return numbers

    def _describe(self, columns: dict[str, Any]) -> None:
        """Fill the columns that follow from the instruction and the device."""
        used, inverse = np.unique(columns["instruction_id"], return_inverse=True)
        facts = [self._instructions[i].collective for i in used.tolist()]
        columns["kind"] = np.array([f.kind if f else "" for f in facts], object)[inverse]
        columns["axis"] = np.array([self.axis(i) for i in used.tolist()], object)[inverse]
        for name, values in (
            ("channel_id", [f.channel_id if f else None for f in facts]),
            ("group_size", [self._group_size(i) for i in used.tolist()]),
            ("message_bytes", [f.message_bytes if f else None for f in facts]),
        ):
            columns[name] = _nullable(values)[inverse]
        columns["dtype"] = np.array([f.dtype if f else None for f in facts], object)[inverse]
        place: dict[tuple[int, int], tuple[int, int, int]] = {}  # (instruction, device) -> group, rank, component
        wire: dict[tuple[int, int], int] = {}
        for i, f in zip(used.tolist(), facts, strict=True):
            if f is not None:
                self._place(i, place)
                self._wire(i, f.message_bytes, wire)
        pairs = list(zip(columns["instruction_id"].tolist(), columns["device_id"].tolist(), strict=True))
        places = [place.get(p) for p in pairs]
        columns["group_index"] = _nullable([p[0] if p else None for p in places])
        columns["rank_in_group"] = _nullable([p[1] if p else None for p in places])
        columns["component"] = np.array([p[2] if p else -1 for p in places], np.int64)
        columns["wire_bytes"] = _nullable([wire.get(p) for p in pairs])

    def _group_size(self, instruction_id: int) -> int | None:
        sizes = {len(g) for g in self.groups(instruction_id).logical}
        return sizes.pop() if len(sizes) == 1 else None

    def _place(self, instruction_id: int, place: dict[tuple[int, int], tuple[int, int, int]]) -> None:
        groups = self.groups(instruction_id)
        component = 0
        for _, found in enumerate(groups.devices):
            joined = _components(found) if groups.kind == "collective-permute" else list(range(len(found)))
            for index, members in enumerate(found):
                for rank, device in enumerate(members):
                    if device is None:
                        continue
                    if rank == 0 or groups.kind != "collective-permute":
                        place[instruction_id, device] = index, rank, component + joined[index]
                    else:  # a permute's target keeps the pair in which it sends, where it sends
                        place.setdefault((instruction_id, device), (index, rank, component + joined[index]))
            component += len(found)

    def _wire(self, instruction_id: int, message_bytes: int | None, wire: dict[tuple[int, int], int]) -> None:
        groups = self.groups(instruction_id)
        if message_bytes is None or not groups.is_known:
            return
        for _, _, members in groups.placements():
            for rank, device in enumerate(members):
                if device is None:
                    continue
                if groups.kind == "collective-permute":
                    sent = message_bytes if rank == 0 and members[0] != members[1] else 0
                    wire[instruction_id, device] = wire.get((instruction_id, device), 0) + sent
                else:
                    found = traffic.wire_bytes(groups.kind, len(members), message_bytes)
                    if found is not None:
                        wire[instruction_id, device] = found

    def _number_instances(self, columns: dict[str, Any]) -> None:
        """Number the executions that ranks share, and flag those that miss a member.

        Ranks share the instruction and component, the execution of the program and the occurrence in it, both
        counted on each device.
        """
        n = len(columns["event_id"])
        programs = {i: self._instructions[i].program_id for i in np.unique(columns["instruction_id"]).tolist()}
        codes = {p: k for k, p in enumerate(dict.fromkeys(programs.values()))}
        program = np.array([codes[programs[i]] for i in columns["instruction_id"].tolist()], np.int64)
        launch = _rank_of_value(np.stack([columns["device_id"].astype(np.int64), program]), columns["execution"])
        device, instruction = columns["device_id"].astype(np.int64), columns["instruction_id"].astype(np.int64)
        occurrence = _occurrence(np.stack([device, instruction, launch]), columns["start_ps"])
        alone = np.where(columns["component"] < 0, device, -1)  # without known groups no rank can be joined
        key = np.stack([instruction, columns["component"], alone, launch, occurrence])
        _, first, inverse = np.unique(key, axis=1, return_index=True, return_inverse=True)
        inverse = inverse.reshape(-1)
        by_time = np.argsort(columns["start_ps"][first], kind="stable")
        number = np.empty(len(first), np.int64)
        number[by_time] = np.arange(len(first))
        columns["instance"] = number[inverse]
        expected = np.array(
            [self._expected(i, c) for i, c in zip(instruction[first].tolist(), key[1][first].tolist(), strict=True)]
        )
        present = np.bincount(inverse, minlength=len(first))
        columns["is_partial"] = ((expected != present) | (expected == 0))[inverse]
        assert len(columns["instance"]) == n  # noqa: S101

    def _expected(self, instruction_id: int, component: int) -> int:
        """Members of a component; 0 where the groups are not known."""
        groups = self.groups(instruction_id)
        if component < 0:
            return 0
        base = 0
        for found in groups.devices:
            if component < base + len(found):
                joined = _components(found) if groups.kind == "collective-permute" else list(range(len(found)))
                inside = [m for g, c in zip(found, joined, strict=True) if c == component - base for m in g]
                return len(set(inside)) if None not in inside else len(inside) + 1
            base += len(found)
        return 0

    def group_rows(self) -> Iterator[dict[str, Any]]:
        """Rows of main.collective_groups for the instructions that were executed."""
        for instruction_id, groups in sorted(self._groups.items()):
            if not groups.is_known:
                for index, g in enumerate(groups.logical):
                    for rank, logical in enumerate(g):
                        yield _group_row(instruction_id, index, rank, logical, None)
                continue
            offset = 0
            for found in groups.devices:
                for index, (g, members) in enumerate(zip(groups.logical, found, strict=True)):
                    for rank, (logical, device) in enumerate(zip(g, members, strict=True)):
                        yield _group_row(instruction_id, offset + index, rank, logical, device)
                offset += len(found)

    def traffic_rows(self) -> Iterator[dict[str, Any]]:
        """Rows of main.traffic for the instructions whose devices are all known."""
        for instruction_id, groups in sorted(self._groups.items()):
            found = self._instructions[instruction_id].collective
            if not found or found.message_bytes is None or not groups.is_known:
                continue
            algorithm = traffic.algorithm(groups.kind)
            for members in groups.devices:
                complete = [tuple(m for m in g if m is not None) for g in members]
                if algorithm is None or [len(g) for g in complete] != [len(g) for g in members]:
                    continue
                for source, target, size in traffic.edges(groups.kind, complete, found.message_bytes):
                    yield {
                        "instruction_id": instruction_id,
                        "source_device_id": source,
                        "target_device_id": target,
                        "algorithm": algorithm,
                        "bytes": size,
                    }


_OP, _PAIR, _SPAN, _START_ONLY = range(4)
WINDOW_SOURCES = ("op", "start/done pair", "async line", "start only")


def _group_row(instruction_id: int, index: int, rank: int, logical: int, device: int | None) -> dict[str, Any]:
    return {
        "instruction_id": instruction_id,
        "group_index": index,
        "rank": rank,
        "logical_id": logical,
        "device_id": device,
    }


def _nullable(values: Sequence[int | None]) -> np.ma.MaskedArray[Any, Any]:
    data = np.array([v if v is not None else 0 for v in values], np.int64)
    return np.ma.masked_array(data, np.array([v is None for v in values], bool))


def _match_halves(
    pair: Int64, execution: Int32, start: Int64, is_start: npt.NDArray[np.bool_], is_done: npt.NDArray[np.bool_]
) -> Int64:
    """For each start the index of its done: the k-th start of a pair with the k-th done in one execution."""
    partner = np.full(len(pair), -1, np.int64)
    starts, dones = np.flatnonzero(is_start), np.flatnonzero(is_done)
    if not len(starts) or not len(dones):
        return partner

    def keyed(at: Int64) -> dict[tuple[int, int, int], int]:
        key = np.stack([pair[at], execution[at].astype(np.int64)])
        count = _occurrence(key, start[at])
        return dict(zip(zip(*key.tolist(), count.tolist(), strict=True), at.tolist(), strict=True))

    of_done = keyed(dones)
    for key, at in keyed(starts).items():
        done = of_done.get(key)
        if done is not None and start[done] >= start[at]:
            partner[at] = done
    return partner


def _use_spans(at: Int64, ops: CollectiveOps, spans: Sequence[AsyncSpan], end: Int64, source: Int64) -> None:
    """Take the window of a start without a done from the async line's event of the same instruction and time."""
    by_instruction: dict[int, list[AsyncSpan]] = {}
    for s in spans:
        by_instruction.setdefault(s.instruction_id, []).append(s)
    for i in at.tolist():
        for s in by_instruction.get(int(ops.instruction_id[i]), ()):
            if s.start_ps <= ops.end_ps[i] and s.end_ps >= ops.end_ps[i]:
                end[i], source[i] = s.end_ps, _SPAN
                break


def _occurrence(key: Int64, start: Int64) -> Int64:
    """For each column of `key` its count, in order of start, among equal columns; from 0."""
    order = np.lexsort((start, *key[::-1]))
    sorted_key = key[:, order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (sorted_key[:, 1:] != sorted_key[:, :-1]).any(axis=0)
    at = np.arange(len(order))
    count = np.empty(len(order), np.int64)
    count[order] = at - np.maximum.accumulate(np.where(is_new, at, 0))
    return count


def _rank_of_value(key: Int64, value: Int32) -> Int64:
    """For each element the rank of its value among the distinct values of its key; from 0."""
    order = np.lexsort((value, *key[::-1]))
    sorted_key, sorted_value = key[:, order], value[order]
    new_key = np.ones(len(order), bool)
    new_key[1:] = (sorted_key[:, 1:] != sorted_key[:, :-1]).any(axis=0)
    new_value = new_key.copy()
    new_value[1:] |= sorted_value[1:] != sorted_value[:-1]
    dense = np.cumsum(new_value) - 1
    base = np.maximum.accumulate(np.where(new_key, dense, 0))
    rank = np.empty(len(order), np.int64)
    rank[order] = dense - base
    return rank


def _components(pairs: Sequence[tuple[int | None, ...]]) -> list[int]:
    """Connected component of each pair: pairs that share a device wait for each other."""
    root: dict[int, int] = {}

    def find(x: int) -> int:
        while root.setdefault(x, x) != x:
            root[x] = root[root[x]]
            x = root[x]
        return x

    for p in pairs:
        known = [d for d in p if d is not None]
        for d in known[1:]:
            root[find(d)] = find(known[0])
    numbers: dict[int, int] = {}
    found = []
    for i, p in enumerate(pairs):
        known = [d for d in p if d is not None]
        found.append(numbers.setdefault(find(known[0]) if known else -1 - i, len(numbers)))
    return found
