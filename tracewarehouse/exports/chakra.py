"""Writes a run as Chakra execution traces, one per rank, which simulators such as ASTRA-sim read.

A trace is a graph of what a device executed: its leaf ops in their order. Overlapping collectives of a group may begin
in different orders on its ranks; here they get one order. Compute ops are merged until they take a microsecond, the
unit of the format's clock. Collectives are nodes with their kind, bytes and communicator group, and a
collective-permute is a send and a receive. What runs between the start and the done of an asynchronous collective does
not depend on it.

The schema is et_def.proto of https://github.com/mlcommons/chakra. Attributes have the types that the simulators' feeder
reads: an attribute of another type counts as 0 there.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.files import naming_the_unwritable, whole_file
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.protobuf import Field, message_classes, varint
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

_CLASSES = message_classes(
    "tracewarehouse.chakra",
    {
        "GlobalMetadata": [Field(1, "version", "bytes")],
        "Attribute": [
            Field(1, "name", "bytes"),
            Field(7, "int32_val", "int32", oneof="value"),
            Field(9, "int64_val", "int64", oneof="value"),
            Field(13, "uint64_val", "uint64", oneof="value"),
            Field(27, "bool_val", "bool", oneof="value"),
            Field(29, "string_val", "bytes", oneof="value"),
        ],
        "Node": [
            Field(1, "id", "uint64"),
            Field(2, "name", "bytes"),
            Field(3, "type", "int32"),
            Field(5, "data_deps", "uint64", is_repeated=True),
            Field(6, "start_time_micros", "uint64"),
            Field(7, "duration_micros", "uint64"),
            Field(10, "attr", "Attribute", is_repeated=True),
        ],
    },
)
_VERSION = b"0.0.4"
_COMPUTE, _SEND, _RECEIVE, _COLLECTIVE = 4, 5, 6, 7
"""Types of nodes."""
_COMM_TYPES = {
    "all-reduce": 0,
    "all-gather": 2,
    "collective-broadcast": 5,
    "all-to-all": 6,
    "ragged-all-to-all": 6,
    "reduce-scatter": 7,
}
_TYPE_OF_ATTRIBUTE = {
    "is_cpu_op": "bool_val",
    "num_ops": "int64_val",
    "tensor_size": "uint64_val",
    "comm_type": "int64_val",
    "comm_size": "int64_val",
    "comm_src": "int32_val",
    "comm_dst": "int32_val",
    "comm_tag": "int32_val",
    "pg_name": "string_val",
}
_MICROSECOND_PS = 10**6
_TAGS = 1 << 31
Value = int | bytes | bool


@dataclass(frozen=True)
class ChakraExport:
    """One trace per rank and `comm_group.json`, and sentences on what the traces do not say."""

    files: list[Path]
    warnings: list[str]


@dataclass(frozen=True)
class _Call:
    """A collective in the graph of one rank. Those of one group must have one order; a send or receive has no group."""

    type: int
    attributes: Mapping[str, Value]
    group: tuple[int, ...] | None = None
    instance: int = 0


@dataclass(frozen=True)
class _Communication:
    """The collectives of a run.

    Attributes:
        calls: the nodes of each collective, by event.
        windows: device, start and end of each event in `calls`, in order of device and start.
        start_of_done: the event that starts the collective, by the event that ends it.
    """

    calls: dict[int, list[_Call]] = field(default_factory=dict)
    windows: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    start_of_done: dict[int, int] = field(default_factory=dict)
    group_names: dict[tuple[int, ...], str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Node:
    """A node of the graph; `busy_ps` becomes its duration."""

    name: str
    type: int
    depends_on: list[int]
    start_ps: int
    busy_ps: int
    attributes: Mapping[str, Value]


@dataclass
class _Compute:
    names: list[tuple[int, str]] = field(default_factory=list)
    start_ps: int = 0
    busy_ps: int = 0
    flops: int = 0
    bytes_accessed: int = 0


def export_chakra(warehouse: Warehouse, run: str, folder: Path) -> ChakraExport:
    """Write `<name of the run>.<rank>.et` for each device of a run, and `comm_group.json` with its replica groups.

    A rank is the number of the device in the run. The durations of a rank's nodes add up to the busy time of its
    device, to the microsecond; an asynchronous collective has the time of its start and its done together.

    Args:
        run: a run id, the beginning of one, or a name.
        folder: the folder to write to; it is created if it does not exist.
    """
    entry = warehouse.run(run)
    in_run = f"run_id = {literal(entry.run_id)}"
    communication = _communication(warehouse, in_run)
    ranks = warehouse.query(f"SELECT device_id FROM main.devices WHERE {in_run} ORDER BY 1").rows()
    moved = _in_one_order(entry.name, communication)
    traces = {rank: _nodes(warehouse, in_run, rank, communication, moved) for (rank,) in ranks}
    if not any(traces.values()):
        raise TracewarehouseError(f"run {entry.name} has no ops of devices, so there is nothing to simulate")
    is_told = "predicted" in entry.flags and "predicted" not in entry.name
    prefix = re.sub(r"[^\w.-]", "_", entry.name) + "-predicted" * is_told
    files = []
    with naming_the_unwritable(folder):
        for rank, nodes in traces.items():
            files.append(folder / f"{prefix}.{rank}.et")
            with whole_file(files[-1]) as file:
                file.writelines(_messages(nodes))
        files.append(folder / "comm_group.json")
        with whole_file(files[-1]) as file:
            groups = {name: members for members, name in communication.group_names.items()}
            file.write(f"{json.dumps(groups, indent=1)}\n".encode())
    told = ["the run is predicted: its times were computed, not measured"] if "predicted" in entry.flags else []
    return ChakraExport(files, [*told, *communication.warnings])


def _communication(warehouse: Warehouse, in_run: str) -> _Communication:
    """The collectives of a run as a simulator needs them.

    A collective that lacks ranks, or that no simulator knows, has no call: it counts as compute on its device, since a
    simulator would wait for the other ranks for ever.
    """
    members: dict[tuple[int, int], list[int | None]] = {}
    for instruction, group, device in warehouse.query(
        f"SELECT instruction_id, group_index, device_id FROM main.collective_groups WHERE {in_run} "
        "ORDER BY instruction_id, group_index, rank"
    ).rows():
        members.setdefault((instruction, group), []).append(device)
    pairs: dict[int, list[tuple[int | None, int | None]]] = {}
    for (instruction, _), devices in members.items():
        if len(devices) == 2:
            pairs.setdefault(instruction, []).append((devices[0], devices[1]))
    rows = warehouse.query(
        "SELECT c.event_id, c.done_event_id, c.device_id, c.instruction_id, c.instance, c.kind, c.group_index, "
        "coalesce(c.message_bytes, 0), o.start_ps, c.end_ps, c.window_source = 'fused op' "
        "FROM main.collectives AS c INNER JOIN main.ops AS o USING (run_id, event_id) "
        f"WHERE {in_run} AND o.is_leaf ORDER BY c.device_id, o.start_ps, c.event_id"
    ).rows()
    here = Counter((instance, device) for _, _, device, _, instance, *_ in rows)
    communication = _Communication()
    lacking: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    fused: Counter[str] = Counter()
    for event_id, done, device, instruction, instance, kind, group, size, start, end, is_fused in rows:
        calls: list[_Call] = []
        if is_fused:
            fused[kind] += 1
            continue
        if kind == "collective-permute":
            if not any(device in pair for pair in pairs.get(instruction, [(device, device)])):
                continue  # it neither sends nor receives
            calls = _transfers(device, instance, pairs.get(instruction, []), size, here)
        elif kind in _COMM_TYPES:
            ranks = members.get((instruction, -1 if group is None else group), [])
            known = tuple(rank for rank in ranks if rank is not None)
            is_whole = bool(known) and len(known) == len(ranks) and all(here[instance, r] == 1 for r in known)
            calls = [_call(kind, instance, known, size, communication.group_names)] if is_whole else []
        else:
            unknown[kind] += 1
            continue
        if not calls:
            lacking[kind] += 1
            continue
        communication.calls[event_id] = calls
        communication.windows[event_id] = device, start, end
        if done is not None:
            communication.start_of_done[done] = event_id
    for kinds, why in (
        (lacking, "lack ranks that are not in the run"),
        (unknown, "are of a kind that Chakra lacks"),
        (fused, "are part of ops that compute"),
    ):
        for kind, count in sorted(kinds.items()):
            communication.warnings.append(f"{count} executions of {kind} {why}, and count as compute")
    return communication


def _call(kind: str, instance: int, ranks: tuple[int, ...], size: int, groups: dict[tuple[int, ...], str]) -> _Call:
    # simulators take 0 for all ranks; the size of an all-gather is what one rank contributes
    name = groups.setdefault(ranks, str(len(groups) + 1))
    sent = size // len(ranks) if kind == "all-gather" else size
    attributes: dict[str, Value] = {"comm_type": _COMM_TYPES[kind], "comm_size": sent, "pg_name": name.encode()}
    return _Call(_COLLECTIVE, attributes, ranks, instance)


def _transfers(
    device: int,
    instance: int,
    pairs: Sequence[tuple[int | None, int | None]],
    size: int,
    here: Mapping[tuple[int, int], int],
) -> list[_Call]:
    """The receives and sends of a device in a collective-permute, with partners that the run has too."""
    calls: list[_Call] = []
    for source, target in pairs:
        if source is None or target is None or source == target:
            continue
        if not (here[instance, source] == here[instance, target] == 1):
            continue
        tag = instance % _TAGS
        attributes: dict[str, Value] = {"comm_src": source, "comm_dst": target, "comm_size": size, "comm_tag": tag}
        if target == device:
            calls.insert(0, _Call(_RECEIVE, attributes))
        elif source == device:
            calls.append(_Call(_SEND, attributes))
    return calls


def _nodes(
    warehouse: Warehouse, in_run: str, device: int, communication: _Communication, moved: Mapping[int, int]
) -> list[_Node]:
    ops = warehouse.query(
        "SELECT event_id, name, start_ps, busy_ps, coalesce(flops, model_flops, 0), coalesce(bytes_accessed, 0) "
        "FROM models.leaf_ops "
        f"WHERE {in_run} AND device_id = {device} ORDER BY start_ps, event_id"
    ).rows()
    if moved:
        by_event = {op[0]: op for op in ops}
        ops = [by_event[moved.get(op[0], op[0])] for op in ops]
    nodes: list[_Node] = []
    last: list[int] = []
    """Ids of the nodes that the next one waits for."""
    compute = _Compute()
    started: dict[int, int] = {}

    def finish() -> None:
        nonlocal compute, last
        if compute.names:
            _, name = max(compute.names, key=lambda n: n[0])
            more = len(compute.names) - 1
            facts: dict[str, Value] = {"num_ops": compute.flops, "tensor_size": compute.bytes_accessed}
            shown = f"{name} and {more} more" if more else name
            nodes.append(_Node(shown, _COMPUTE, last, compute.start_ps, compute.busy_ps, facts))
            last = [len(nodes)]
            compute = _Compute()

    asynchronous = set(communication.start_of_done.values())
    for event_id, name, start, busy, flops, bytes_accessed in ops:
        if event_id in communication.calls:
            finish()
            before = len(nodes)
            calls = communication.calls[event_id]
            nodes.extend(_Node(name, call.type, last, start, 0, call.attributes) for call in calls)
            nodes[before].busy_ps = busy
            made = list(range(before + 1, len(nodes) + 1))
            if event_id in asynchronous:
                started[event_id] = before + 1
            else:
                last = made
        elif communication.start_of_done.get(event_id) in started:
            finish()
            first = started.pop(communication.start_of_done[event_id])
            nodes[first - 1].busy_ps += busy
            calls = communication.calls[communication.start_of_done[event_id]]
            last = sorted({*last, *range(first, first + len(calls))})
        else:
            if not compute.names:
                compute.start_ps = start
            compute.names.append((busy, name))
            compute.busy_ps += busy
            compute.flops += flops
            compute.bytes_accessed += bytes_accessed
            if compute.busy_ps >= _MICROSECOND_PS:
                finish()
    finish()
    return nodes


def _in_one_order(run: str, communication: _Communication) -> dict[int, int]:
    """Map an event to the one that takes its place, so that all ranks of a group have its collectives in one order.

    Collectives are ordered by the time at which the last rank began them. A collective ends on no rank before that
    time, so two of them change places only on ranks where they overlap; others in different orders are refused.
    """
    orders: dict[tuple[int, ...], dict[int, list[int]]] = {}
    for event, calls in communication.calls.items():
        rank = communication.windows[event][0]
        if calls[0].group is not None:
            orders.setdefault(calls[0].group, {}).setdefault(rank, []).append(event)
    instance = {event: calls[0].instance for event, calls in communication.calls.items()}
    moved: dict[int, int] = {}
    for group, by_rank in orders.items():
        first = [instance[event] for event in by_rank[group[0]]]
        if all([instance[event] for event in events] == first for events in by_rank.values()):
            continue
        begun: dict[int, int] = {}
        for event in (event for events in by_rank.values() for event in events):
            start = communication.windows[event][1]
            begun[instance[event]] = max(start, begun.get(instance[event], start))
        for rank, events in by_rank.items():
            latest = None
            ordered = sorted(events, key=lambda e: (begun[instance[e]], instance[e]))
            for place, event in zip(events, ordered, strict=True):
                _, start, end = communication.windows[event]
                if latest is not None and end <= latest:
                    members = ", ".join(map(str, group))
                    raise TracewarehouseError(
                        f"run {run}: rank {rank} ran collectives of group {members} in another order than other "
                        "ranks, one after the other, so a simulator would wait for ever; nothing was written"
                    )
                latest = start if latest is None else max(start, latest)
                if event != place:
                    moved[place] = event
    return moved


def _messages(nodes: Sequence[_Node]) -> Iterator[bytes]:
    yield _delimited(_CLASSES["GlobalMetadata"](version=_VERSION))
    total = written = 0
    for number, node in enumerate(nodes, 1):
        total += node.busy_ps
        micros = (total + _MICROSECOND_PS // 2) // _MICROSECOND_PS - written  # so rounding does not change the sum
        written += micros
        attributes: dict[str, Value] = {"is_cpu_op": False, **node.attributes}
        yield _delimited(
            _CLASSES["Node"](
                id=number,
                name=node.name.encode("utf-8", "replace"),
                type=node.type,
                data_deps=node.depends_on,
                start_time_micros=max(0, node.start_ps) // _MICROSECOND_PS,
                duration_micros=micros,
                attr=[
                    _CLASSES["Attribute"](name=name.encode(), **{_TYPE_OF_ATTRIBUTE[name]: value})
                    for name, value in attributes.items()
                ],
            )
        )


def _delimited(message: Any) -> bytes:
    content: bytes = message.SerializeToString()
    return varint(len(content)) + content
