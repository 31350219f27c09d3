"""Executions of collectives: windows of asynchronous ones, exposed time, and the instances that ranks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ingest.collective_groups import CollectiveGroups, Membership
from ingest.instructions import InstructionRow
from ingest.nesting import Coverage
from ingest.parquet import Coded
from ingest.records import Int32, Int64
from ingest.timeline import PHASES

WINDOW_SOURCES = ("op", "start/done pair", "async line", "start only")
_OP, _PAIR, _SPAN, _START_ONLY = range(4)


@dataclass
class CollectiveOps:
    """Op-line events of one device that are collectives or halves of them; columns of shape (n,).

    `phase` is a code into timeline.PHASES; phase, step and execution are -1 where unknown.
    """

    device_id: int
    host: str
    event_id: Int64
    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64
    execution: Int32
    phase: Int32
    step: Int32


@dataclass
class AsyncSpans:
    """Events of a device's Async XLA Ops line, each the whole span of an asynchronous op; columns of shape (n,)."""

    instruction_id: Int32
    start_ps: Int64
    end_ps: Int64

    @classmethod
    def joined(cls, parts: Sequence[AsyncSpans]) -> AsyncSpans:
        """All parts as one."""
        return cls(
            np.concatenate([p.instruction_id for p in parts]),
            np.concatenate([p.start_ps for p in parts]),
            np.concatenate([p.end_ps for p in parts]),
        )


def collective_columns(
    instructions: Sequence[InstructionRow],
    groups: CollectiveGroups,
    ops: Sequence[CollectiveOps],
    spans: Mapping[int, Sequence[AsyncSpans]],
) -> tuple[int, dict[str, Any]]:
    """Rows of main.collectives: their number, and their columns.

    Args:
        instructions: all instructions of the run.
        groups: matches their groups with devices.
        ops: the op events, one entry or more per device.
        spans: Async XLA Ops events by device, for starts whose done is not in the capture.
    """
    parts = [_windows(instructions, o, spans.get(o.device_id)) for o in _by_device(ops)]
    if not parts:
        return 0, {}
    table: dict[str, Any] = {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
    n = len(table["event_id"])
    component = _describe(table, instructions, groups)
    table["instance"], table["is_partial"] = _instances(table, instructions, groups, component)
    hosts = list(dict.fromkeys(o.host for o in ops))
    host_of_device = {o.device_id: hosts.index(o.host) for o in ops}
    table["host"] = Coded([host_of_device[d] for d in table["device_id"].tolist()], hosts)
    table["window_source"] = Coded(table["window_source"], WINDOW_SOURCES)
    table["phase"] = Coded(table["phase"], PHASES)
    table["step"] = np.ma.masked_less(table["step"], 0)
    table["done_event_id"] = np.ma.masked_less(table["done_event_id"], 0)
    del table["execution"]
    return n, table


def _by_device(ops: Sequence[CollectiveOps]) -> list[CollectiveOps]:
    """One entry per device: a device's line may have come in several chunks, or on several threads."""
    of_device: dict[int, list[CollectiveOps]] = {}
    for o in ops:
        of_device.setdefault(o.device_id, []).append(o)
    columns = ("event_id", "instruction_id", "start_ps", "end_ps", "execution", "phase", "step")
    return [
        CollectiveOps(device, found[0].host, *(np.concatenate([getattr(o, c) for o in found]) for c in columns))
        for device, found in sorted(of_device.items())
    ]


def _windows(
    instructions: Sequence[InstructionRow], ops: CollectiveOps, spans: Sequence[AsyncSpans] | None
) -> dict[str, npt.NDArray[Any]]:
    """One row per execution on a device: a synchronous op, or a start joined with its done; by start."""
    n = len(ops.event_id)
    used, inverse = np.unique(ops.instruction_id, return_inverse=True)
    found = [instructions[i].collective for i in used.tolist()]
    roles = np.array([_ROLES[f.role if f else None] for f in found])[inverse]
    is_start, is_op = roles == _ROLES["start"], roles == _ROLES[None]
    partner = np.full(n, -1, np.int64)
    if is_start.any():
        pair = np.array(_pair_numbers(instructions, used.tolist()), np.int64)[inverse]
        partner = _partners(pair, ops, np.flatnonzero(is_start), np.flatnonzero(roles == _ROLES["done"]))
    is_joined = partner >= 0
    end = np.where(is_joined, ops.end_ps[partner], ops.end_ps)
    source = np.where(is_joined, _PAIR, np.where(is_start, _START_ONLY, _OP)).astype(np.int32)
    if spans:
        _take_spans(np.flatnonzero(is_start & ~is_joined), ops, AsyncSpans.joined(spans), end, source)
    kept = np.flatnonzero(is_op | is_start)
    order = kept[np.argsort(ops.start_ps[kept], kind="stable")]
    start, end = ops.start_ps[order], end[order]
    return {
        "event_id": ops.event_id[order],
        "done_event_id": np.where(is_joined, ops.event_id[partner], -1)[order],
        "device_id": np.full(len(order), ops.device_id, np.int32),
        "instruction_id": ops.instruction_id[order],
        "is_async": is_start[order],
        "start_ps": start,
        "end_ps": end,
        "exposed_ps": Coverage(ops.start_ps, ops.end_ps).within(start, end),
        "window_source": source[order],
        "execution": ops.execution[order],
        "phase": ops.phase[order],
        "step": ops.step[order],
    }


_ROLES: dict[str | None, int] = {None: 0, "start": 1, "update": 2, "done": 3}


def _pair_numbers(instructions: Sequence[InstructionRow], used: Sequence[int]) -> list[int]:
    """A number per instruction that a start shares with the done that ends it, also through updates between."""
    by_name = {(instructions[i].program_id, instructions[i].name): i for i in used}
    numbers = []
    for i in used:
        seen = 0
        number = i
        while seen < 16:
            found = instructions[number].collective
            before = by_name.get((instructions[number].program_id, found.start_name or "")) if found else None
            if before is None or before == number:
                break
            number = before
            seen += 1
        numbers.append(number)
    return numbers


def _partners(pair: Int64, ops: CollectiveOps, starts: Int64, dones: Int64) -> Int64:
    """For each event the index of the done that ends it, -1 for none.

    In one execution of a program the k-th done of a pair ends the k-th start.
    """
    partner = np.full(len(pair), -1, np.int64)

    def numbered(at: Int64) -> Int64:
        key = np.stack([pair[at], ops.execution[at].astype(np.int64)])
        return np.concatenate([key, _occurrence(key, ops.start_ps[at])[None]])

    keys = np.concatenate([numbered(starts), numbered(dones)], axis=1)
    dense, _ = _dense(keys)
    of_done = np.full(int(dense.max(initial=-1)) + 1, -1, np.int64)
    of_done[dense[len(starts) :]] = dones
    found = of_done[dense[: len(starts)]]
    is_after = (found >= 0) & (ops.start_ps[found] >= ops.start_ps[starts])
    partner[starts] = np.where(is_after, found, -1)
    return partner


def _take_spans(at: Int64, ops: CollectiveOps, spans: AsyncSpans, end: Int64, source: npt.NDArray[np.int32]) -> None:
    """Take the window of a start without a done from the async line's event of that instruction and time."""
    for instruction in np.unique(ops.instruction_id[at]).tolist():
        of_instruction = np.flatnonzero(spans.instruction_id == instruction)
        if not len(of_instruction):
            continue
        order = of_instruction[np.argsort(spans.start_ps[of_instruction], kind="stable")]
        starts = at[ops.instruction_id[at] == instruction]
        last = order[spans.start_ps[order].searchsorted(ops.end_ps[starts], side="right") - 1]
        is_inside = (spans.start_ps[last] <= ops.end_ps[starts]) & (ops.end_ps[starts] <= spans.end_ps[last])
        end[starts[is_inside]] = spans.end_ps[last[is_inside]]
        source[starts[is_inside]] = _SPAN


def _describe(table: dict[str, Any], instructions: Sequence[InstructionRow], groups: CollectiveGroups) -> Int64:
    """Fill what follows from instruction and device; returns the component of each row, -1 where not known."""
    used, inverse = np.unique(table["instruction_id"], return_inverse=True)
    facts = [instructions[i].collective for i in used.tolist()]
    participants = [groups.of(i) for i in used.tolist()]
    table["kind"] = Coded(inverse, [f.kind if f else "" for f in facts])
    table["axis"] = Coded(inverse, [p.axis for p in participants])
    table["dtype"] = Coded(inverse, [f.dtype if f else None for f in facts])
    table["channel_id"] = _nullable([f.channel_id if f else None for f in facts])[inverse]
    table["group_size"] = _nullable([p.group_size for p in participants])[inverse]
    table["message_bytes"] = _nullable([f.message_bytes if f else None for f in facts])[inverse]
    width = int(table["device_id"].max()) + 1
    places, place_of = np.unique(inverse * width + table["device_id"], return_inverse=True)
    members: list[Membership | None] = [participants[p // width].members.get(p % width) for p in places.tolist()]
    table["group_index"] = _nullable([m.group_index if m else None for m in members])[place_of]
    table["rank_in_group"] = _nullable([m.rank if m else None for m in members])[place_of]
    table["wire_bytes"] = _nullable([m.wire_bytes if m else None for m in members])[place_of]
    return np.array([m.component if m else -1 for m in members], np.int64)[place_of]


def _instances(
    table: dict[str, Any], instructions: Sequence[InstructionRow], groups: CollectiveGroups, component: Int64
) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """The number of the instance that each row is a rank of, by first start, and whether that misses a member.

    Ranks share the instruction and component, the execution of the program and the occurrence in it, both counted
    on each device. Where groups are not known no rank can be joined, and each row is an instance of its own.
    """
    instruction, device = table["instruction_id"].astype(np.int64), table["device_id"].astype(np.int64)
    used, inverse = np.unique(instruction, return_inverse=True)
    programs = {p: i for i, p in enumerate(dict.fromkeys(instructions[i].program_id for i in used.tolist()))}
    program = np.array([programs[instructions[i].program_id] for i in used.tolist()], np.int64)[inverse]
    launch = _rank(np.stack([device, program]), table["execution"])
    occurrence = _occurrence(np.stack([device, instruction, launch]), table["start_ps"])
    alone = np.where(component < 0, device, -1)
    dense, first = _dense(np.stack([instruction, component, alone, launch, occurrence]))
    number = np.empty(len(first), np.int64)
    start_of = np.full(len(first), np.iinfo(np.int64).max)
    np.minimum.at(start_of, dense, table["start_ps"])
    number[np.argsort(start_of, kind="stable")] = np.arange(len(first))
    present = np.bincount(dense, minlength=len(first))
    expected = np.zeros(len(first), np.int64)
    for i, (op, c) in enumerate(zip(instruction[first].tolist(), component[first].tolist(), strict=True)):
        expected[i] = (groups.of(op).component_size[c] or 0) if c >= 0 else 0
    return number[dense], (present != expected)[dense]


def _nullable(values: Sequence[int | None]) -> np.ma.MaskedArray[Any, Any]:
    data = np.array([v if v is not None else 0 for v in values], np.int64)
    return np.ma.masked_array(data, np.array([v is None for v in values], bool))


def _dense(keys: Int64) -> tuple[Int64, Int64]:
    """Number equal columns of `keys` alike, from 0; also a column index for each number."""
    order = np.lexsort(keys[::-1])
    is_new = _is_new(keys[:, order])
    dense = np.empty(keys.shape[1], np.int64)
    dense[order] = np.cumsum(is_new) - 1
    return dense, order[is_new]


def _is_new(sorted_keys: Int64) -> npt.NDArray[np.bool_]:
    is_new = np.ones(sorted_keys.shape[1], bool)
    is_new[1:] = (sorted_keys[:, 1:] != sorted_keys[:, :-1]).any(axis=0)
    return is_new


def _occurrence(keys: Int64, start: Int64) -> Int64:
    """For each column of `keys` its count among equal columns, in order of start; from 0."""
    order = np.lexsort((start, *keys[::-1]))
    at = np.arange(len(order))
    count = np.empty(len(order), np.int64)
    count[order] = at - np.maximum.accumulate(np.where(_is_new(keys[:, order]), at, 0))
    return count


def _rank(keys: Int64, value: Int32) -> Int64:
    """For each column of `keys` the rank of its value among the distinct values of that key; from 0."""
    order = np.lexsort((value, *keys[::-1]))
    new_key = _is_new(keys[:, order])
    new_value = new_key.copy()
    new_value[1:] |= value[order][1:] != value[order][:-1]
    dense = np.cumsum(new_value) - 1
    rank = np.empty(len(order), np.int64)
    rank[order] = dense - np.maximum.accumulate(np.where(new_key, dense, 0))
    return rank
