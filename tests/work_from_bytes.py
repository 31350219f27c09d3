"""What devices work on, straight from the bytes of an xplane file: kernels, collectives, layers and memory.

Protobuf's own parser reads events and Hlo Protos. Ops of virtual devices name their program, a prefill or a decode; of
TPUs, all ops from the first step on are of the one phase that these captures have. Numbers of virtual devices are sums
over all threads of a host, so that it does not matter which thread works for which device.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from numbers_from_bytes import COLLECTIVE, CONTAINERS, Event, events_of, main_program
from plain_metrics import MS, US

from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import PlainPlane, plain_planes

_WIDTHS = {2: 1, 3: 2, 4: 4, 6: 1, 8: 4, 9: 8, 10: 2, 11: 4, 16: 2}  # bytes of HLO's primitive types
Numbers = dict[tuple[str, ...], float]
WHOLE = "whole capture"
"""Stands for a phase where all of them are meant."""


@dataclass
class Op:
    """A leaf op: where it ran, what it is, and its time without what is nested in it."""

    line: int
    phase: str
    name: str
    kind: str
    message_bytes: int
    start: int
    end: int
    self_time: int

    @property
    def kernel(self) -> str:
        """The name without the numbers at its end."""
        return re.sub(r"(\.\d+)+$", "", self.name)


def work_from_bytes(path: Path, phase: str, facts: Mapping[str, Any]) -> Numbers:
    """The numbers by metric and parts.

    Args:
        path: an xplane file of a whole run.
        phase: the phase of the steps of TPUs.
        facts: number of devices, batch size and input length of the run; the card's, which no trace has.
    """
    planes = list(plain_planes(CaptureFile(path)))
    on_threads = list(_of_programs(planes))
    ops, is_virtual = [*_of_tpus(planes, phase), *on_threads], bool(on_threads)
    marks = _marks(planes)
    steps = defaultdict(lambda: 0 if marks else 1, Counter(of_phase for _, of_phase in marks))
    found: Numbers = {}
    for of_phase in ({o.phase for o in ops} | {WHOLE}) if ops else ():
        mine = [o for o in ops if of_phase in (o.phase, WHOLE)]
        largest, share = _largest(mine)
        found["top_kernels", of_phase, largest] = share
        if of_phase == WHOLE:
            continue
        collectives = [o for o in mine if o.kind]
        parts = facts["devices"] * (1 if of_phase == "outside" else steps[of_phase])
        for kind in {o.kind for o in collectives}:
            of_kind = [o for o in collectives if o.kind == kind]
            found["traffic_volume", of_phase, kind] = sum(o.message_bytes for o in of_kind) / parts
        if collectives:
            found["traffic_volume", of_phase] = sum(o.message_bytes for o in collectives) / parts
        if collectives and is_virtual:
            found["collective_count", of_phase] = len(collectives) / parts
            begin, last = marks[-1] if marks else (math.inf, "")
            if of_phase == last and steps[last] > 1:  # no step follows it, so its time is not known
                collectives = [o for o in collectives if o.start < begin]
                parts -= facts["devices"]
            found["exposed_communication", of_phase] = sum(o.end - o.start for o in collectives) / parts / MS
    prefill = [o for o in ops if o.phase == "prefill"]
    if prefill and steps["prefill"] == 1:
        time = max(o.end for o in prefill) - min(o.start for o in prefill)
        found["ttft", "device"] = time / MS
        if facts["batch_size"] and facts["input_length"]:
            found["prefill_throughput", ""] = 1e12 * facts["batch_size"] * facts["input_length"] / time
    return found | dict(_memory(planes)) | dict(_of_pairs(ops, facts)) | dict(_layers(ops))


def _largest(ops: list[Op]) -> tuple[str, float]:
    """The kernel that takes most time, and its share in %."""
    times: dict[str, int] = defaultdict(int)
    for o in ops:
        times[o.kernel] += o.self_time
    largest = max(times, key=lambda k: times[k])
    return largest, 100 * times[largest] / sum(times.values())


def _marks(planes: list[PlainPlane]) -> list[tuple[int, str]]:
    """Starts and phases of the host's marks; a phase of a TPU, which has none here, is one step."""
    return sorted(
        (e.start, "prefill" if "prefill" in e.name else "decode")
        for p in planes
        for line in p.lines
        for e in events_of(p, line)
        if "step_num" in e.stats
    )


def _of_tpus(planes: list[PlainPlane], phase: str) -> Iterator[Op]:
    lines = [
        {line.name: list(events_of(p, line)) for line in p.lines}
        for p in planes
        if re.fullmatch(r"/device:TPU:\d+", p.name)
    ]
    program = main_program(lines)
    for number, of_device in enumerate(lines):
        first = min(e.start for e in of_device["XLA Modules"] if e.name == program)
        until = max(e.end for e in of_device["XLA Modules"])
        for e, own in _own_times(of_device["XLA Ops"]):
            if e.category in CONTAINERS:
                continue
            is_collective = COLLECTIVE.fullmatch(e.category)
            yield Op(
                number,
                phase if first <= e.start < until else "outside",
                e.name.partition(" = ")[0].lstrip("%"),
                is_collective[1] if is_collective else "",
                e.message_bytes if is_collective else 0,
                e.start,
                e.end,
                own,
            )


def _of_programs(planes: list[PlainPlane]) -> Iterator[Op]:
    sizes = dict(_message_bytes(planes))
    for p in planes:
        for number, line in enumerate(p.lines):
            ops = [e for e in events_of(p, line) if "hlo_op" in e.stats and "hlo_module" in e.stats]
            for e, own in _own_times(ops):
                program, name = e.stats["hlo_module"].decode(), e.stats["hlo_op"].decode()
                named = re.match(r"(prefill|decode)", program)
                is_collective = COLLECTIVE.match(name)
                if named and name.partition(".")[0] not in CONTAINERS:
                    kind = is_collective[1] if is_collective else ""
                    yield Op(number, named[1], name, kind, sizes.get((program, name), 0), e.start, e.end, own)


def _own_times(events: list[Event]) -> Iterator[tuple[Event, int]]:
    """Each event of a line with its time without the events nested in it."""
    open_: list[tuple[Event, list[int]]] = []
    for e in sorted(events, key=lambda e: (e.start, -e.end)):
        while open_ and open_[-1][0].end <= e.start:
            done, own = open_.pop()
            yield done, own[0]
        if open_:
            open_[-1][1][0] -= e.end - e.start
        open_.append((e, [e.end - e.start]))
    yield from ((e, own[0]) for e, own in open_)


def _message_bytes(planes: list[PlainPlane]) -> Iterator[tuple[tuple[str, str], int]]:
    """Of each collective by program and name: what it results in, of a reduce-scatter what goes in."""
    for p in planes:
        for stat in (s for m in p.metadata for s in m.stats if isinstance(s[2], bytes) and s[0] == "Hlo Proto"):
            module = CLASSES["HloProto"].FromString(stat[2]).hlo_module
            instructions = [i for c in module.computations for i in c.instructions]
            by_id = {i.id: i for i in instructions}
            for i in instructions:
                if (found := COLLECTIVE.match(i.opcode.decode())) is not None:
                    shapes = [by_id[n].shape for n in i.operand_ids] if found[1] == "reduce-scatter" else [i.shape]
                    yield (module.name.decode(), i.name.decode()), sum(map(_size, shapes))


def _size(shape: Any) -> int:
    if shape.tuple_shapes:
        return sum(map(_size, shape.tuple_shapes))
    return math.prod(shape.dimensions) * _WIDTHS.get(shape.element_type, 0)


def _of_pairs(ops: list[Op], facts: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Shares of transfer and arrival where every device of a TPU takes part in every collective, in one order."""
    ranks: dict[Any, list[list[int]]] = defaultdict(lambda: [[] for _ in range(facts["devices"])])
    for o in sorted(ops, key=lambda o: o.start):
        if o.kind and o.phase != "outside" and o.line < facts["devices"]:
            ranks[o.phase, o.kind, o.name][o.line].append(o.end - o.start)
    total: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for (phase, kind, _), of_devices in ranks.items():
        if len({len(times) for times in of_devices}) > 1:
            return
        for times in zip(*of_devices, strict=True):
            total[phase, kind][0] += min(times) * len(times)
            total[phase, kind][1] += sum(times)
    for (phase, kind), (transfer, windows) in total.items():
        yield ("collective_attribution", phase, kind, "transfer"), 100 * transfer / windows
        yield ("collective_attribution", phase, kind, "arrival"), 100 * (1 - transfer / windows)


def _layers(ops: list[Op]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Mean time from one ragged paged attention to the next: a layer, cut elsewhere than ours and with its gaps."""
    times: dict[str, list[int]] = defaultdict(list)
    for line in {o.line for o in ops}:
        anchors = sorted((o.start, o.phase) for o in ops if o.line == line and o.kernel.startswith("RPA"))
        for (start, phase), (following, _) in pairwise(anchors):
            times[phase].append(following - start)
    for phase, found in times.items():
        yield ("layer_time", phase), sum(found) / len(found) / US


def _memory(planes: list[PlainPlane]) -> Iterator[tuple[tuple[str, ...], float]]:
    """Most bytes in use of the allocator that has most."""
    used = [
        e.stats["bytes_allocated"] + e.stats.get("bytes_reserved", 0)
        for p in planes
        for line in p.lines
        for e in events_of(p, line)
        if e.name in ("MemoryAllocation", "MemoryDeallocation") and "bytes_allocated" in e.stats
    ]
    if used:
        yield ("memory_in_use", ""), max(used)
