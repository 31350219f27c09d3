"""Main numbers of a TPU capture, and the host's latencies of any other, straight from the bytes of its xplane file.

Protobuf's own parser reads the events; steps, containers and collectives are told by the simplest rules that fit the
captures: the program with most device time begins a step, the profiler's hlo_category tells what an op is.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from plain_metrics import MS, length

from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import PlainLine, PlainPlane, plain_planes

COLLECTIVE = re.compile(r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start|-done)?")
CONTAINERS = {"while", "conditional", "call"}
_SHAPE = re.compile(r"([a-z]+[0-9]+)\[([0-9,]*)\]")


@dataclass(frozen=True)
class Event:
    """An event with the stats of its metadata and its own."""

    name: str
    start: int
    end: int
    stats: dict[str, Any]

    @property
    def category(self) -> str:
        """The profiler's hlo_category."""
        return bytes(self.stats.get("hlo_category", b"")).decode()

    @property
    def hbm_bytes(self) -> int:
        """Bytes in memory space 1 of the profiler's breakdown, whose numbers are all varints; else all bytes."""
        breakdown = self.stats.get("memory_access_breakdown")
        if breakdown is None:
            return int(self.stats.get("bytes_accessed", 0))
        rest, total = bytes(breakdown), 0
        while rest:
            access, rest = rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
            fields = {}
            while access:
                length_of_value = next(i for i, byte in enumerate(access[1:], 1) if byte < 128)
                fields[access[0] >> 3] = sum((b & 127) << 7 * i for i, b in enumerate(access[1 : length_of_value + 1]))
                access = access[length_of_value + 1 :]
            total += fields[3] if fields.get(2) == 1 else 0
        return total

    @property
    def message_bytes(self) -> int:
        """Bytes of the shapes before the opcode in the HLO text: of an all-reduce or all-gather, its message."""
        shapes = _SHAPE.findall(self.name.partition(" = ")[2].partition(f" {self.category}(")[0])
        return sum(math.prod(map(int, filter(None, s.split(",")))) * int(re.sub(r"\D", "", t)) // 8 for t, s in shapes)


def numbers_from_bytes(path: Path, phase: str) -> dict[tuple[str, str], float]:
    """The numbers by metric and part, as `main_numbers` has them; those of device steps stand under `phase`."""
    planes = list(plain_planes(CaptureFile(path)))
    devices = [p for p in planes if re.fullmatch(r"/device:TPU:\d+", p.name)]
    return dict(_of_devices(devices, phase)) | dict(_of_host([p for p in planes if p.name == "/host:CPU"]))


def _of_host(planes: Iterable[PlainPlane]) -> Iterator[tuple[tuple[str, str], float]]:
    """The durations of prefill marks, and the times from a decode mark to the next."""
    marks = sorted(
        (e.start, e.end, e.name)
        for p in planes
        for line in p.lines
        for e in events_of(p, line)
        if "step_num" in e.stats
    )
    if prefills := [end - start for start, end, name in marks if "prefill" in name]:
        yield ("ttft", "host"), prefills[0] / MS
    if gaps := [b[0] - a[0] for a, b in pairwise(marks) if "decode" in a[2] and "decode" in b[2]]:
        yield ("tpot", "host"), sum(gaps) / len(gaps) / MS


def _of_devices(planes: list[PlainPlane], phase: str) -> Iterator[tuple[tuple[str, str], float]]:
    lines = [{line.name: list(events_of(p, line)) for line in p.lines} for p in planes]
    if not lines:
        return
    program = main_program(lines)
    steps, gaps, busy, moved, idle, timed = 0, defaultdict(list), 0, 0, [0, 0], 0
    sums = {phase: [0, 0, 0], "outside": [0, 0, 0]}  # exposed time, number and message bytes of collectives
    first, last = math.inf, 0
    for of_device in lines:
        modules = sorted(of_device["XLA Modules"], key=lambda e: e.start)
        starts = [e.start for e in modules if e.name == program]
        until = max(e.end for e in modules)
        steps += len(starts)
        for number, (one, following) in enumerate(pairwise(starts)):
            gaps[number].append(following - one)
        ops = [e for e in of_device["XLA Ops"] if e.category not in CONTAINERS and starts[0] <= e.start < until]
        first, last = min(first, *(e.start for e in ops)), max(last, *(e.end for e in ops))
        own = length((e.start, e.end) for e in ops)
        busy += own
        known = starts[-1] if len(starts) > 1 else until  # the wait after the last step is not known
        timed += max(1, len(starts) - 1)
        idle[0] += known - starts[0] - length((e.start, e.end) for e in ops if e.start < known)
        idle[1] += known - starts[0]
        for place, total in sums.items():
            collectives = [
                e
                for e in of_device["XLA Ops"]
                if COLLECTIVE.fullmatch(e.category) and (starts[0] <= e.start < until) == (place != "outside")
            ]
            total[0] += length((e.start, e.end) for e in collectives if place == "outside" or e.start < known)
            total[1] += len(collectives)
            total[2] += sum(e.message_bytes for e in collectives)
        moved += sum(e.hbm_bytes for e in ops if not e.category.endswith("-done"))
    if gaps:
        yield ("step_time", phase), sum(sum(g) / len(g) for g in gaps.values()) / len(gaps) / MS
    yield ("device_idle", phase), 100 * max(0, idle[0] / idle[1])
    yield ("hbm_bandwidth", phase), 1000 * moved / busy
    for place, (exposed, count, size) in sums.items():
        if count:
            parts = len(lines) if place == "outside" else steps
            yield ("exposed_communication", place), exposed / (parts if place == "outside" else timed) / MS
            yield ("collective_count", place), count / parts
            yield ("traffic_volume", place), size / parts
    if phase == "prefill" and steps == len(lines):
        yield ("ttft", "device"), (last - first) / MS


def main_program(lines: list[dict[str, list[Event]]]) -> str:
    """The program with most device time, which begins a step; '' without devices."""
    time: dict[str, int] = defaultdict(int)
    for module in (e for of_device in lines for e in of_device["XLA Modules"]):
        time[module.name] += module.end - module.start
    return max(time, key=lambda name: time[name], default="")


def events_of(plane: PlainPlane, line: PlainLine) -> Iterator[Event]:
    """The events of a line."""
    metadata = {m.metadata_id: m for m in plane.metadata}
    for metadata_id, start, duration, stats in line.events():
        about = metadata.get(metadata_id) if metadata_id is not None else None
        told = {name: value for name, _, value in (*(about.stats if about else ()), *stats)}
        yield Event(about.name if about else "", start, start + duration, told)
