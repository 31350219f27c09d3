"""Metrics computed a second time, in plain Python over a run's rows: sorting, merging and adding, without any SQL.

Written from the metrics' descriptions, for the tests alone. Each function gives value by grain, without the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
Values = dict[tuple[Any, ...], float | None]
Interval = tuple[int, int]
MS, US = 1_000_000_000, 1_000_000
COPIES = {"copy", "copy-start", "copy-done"}


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union as disjoint intervals in order."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(intervals: Iterable[Interval]) -> int:
    """Length of the union."""
    return sum(end - start for start, end in merged(intervals))


def rank(values: Iterable[int], percent: int) -> int:
    """Percentile by nearest rank."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]


@dataclass
class Step:
    """A step of a device, or of a host where `device` is None."""

    device: int | None
    number: int
    phase: str | None
    start: int
    end: int
    until: int = 0
    is_last: bool = True
    ops: list[Row] = field(default_factory=list)


class Run:
    """The rows of one run, and what most metrics need of them."""

    def __init__(self, tables: dict[str, list[Row]]) -> None:
        self.tables = tables
        [self.facts] = tables["runs"]
        self.instructions = {i["instruction_id"]: i for i in tables["instructions"]}
        self.collectives = sorted(tables["collectives"], key=lambda c: (c["start_ps"], c["event_id"]))
        self.ops = [
            o | {"end": o["start_ps"] + o["duration_ps"], "i": self.instructions[o["instruction_id"]]}
            for o in sorted(tables["ops"], key=lambda o: (o["start_ps"], o["event_id"]))
            if o["is_leaf"] and o["device_id"] is not None
        ]
        self.device_steps = self._steps(lambda p: p["device_id"] is not None)
        self.host_steps = self._steps(lambda p: p["device_id"] is None)
        self._place()

    def _steps(self, wanted: Callable[[Row], bool]) -> dict[Any, list[Step]]:
        found: dict[Any, list[Step]] = defaultdict(list)
        for p in sorted((p for p in self.tables["phases"] if p["kind"] == "step"), key=lambda p: p["start_ps"]):
            if wanted(p):
                phase = p["name"] if p["name"] in ("prefill", "decode") else None
                found[p["host"], p["device_id"]].append(
                    Step(p["device_id"], p["index"], phase, p["start_ps"], p["end_ps"])
                )
        for steps in found.values():
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                step.until = after.start if after else step.end
                step.is_last = after is None or after.phase != step.phase
        return found

    def _place(self) -> None:
        by_device = {d: steps for (_, d), steps in self.device_steps.items()}
        for o in self.ops:
            steps = by_device.get(o["device_id"], [])
            at = bisect_right([s.start for s in steps], o["start_ps"]) - 1
            if at >= 0 and o["start_ps"] < steps[at].until:
                steps[at].ops.append(o)

    @property
    def all_device_steps(self) -> list[Step]:
        """The steps of all devices."""
        return [s for steps in self.device_steps.values() for s in steps]

    def steps_of(self, device: int, phase: str | None) -> list[Step]:
        """A device's steps of a phase."""
        return [s for s in self.all_device_steps if (s.device, s.phase) == (device, phase)]

    def places(self) -> list[tuple[str | None, int]]:
        """The phases that each device ran."""
        return sorted({(s.phase, s.device) for s in self.all_device_steps}, key=str)  # type: ignore[misc]

    def span(self, phase: str | None, device: int) -> int:
        """Time of a device's steps of a phase."""
        return sum(s.until - s.start for s in self.steps_of(device, phase))

    def busy(self, phase: str | None, device: int, *, compute: bool = False) -> int:
        """Length of the union of a device's ops in each step of a phase, added up."""
        return sum(
            length((o["start_ps"], o["end"]) for o in s.ops if not compute or is_compute(o))
            for s in self.steps_of(device, phase)
        )

    def exposed(self) -> dict[Any, dict[Any, int]]:
        """Time in which the op line runs each kind and axis of collective, by phase and device."""
        ends = {o["event_id"]: (o["start_ps"], o["end"]) for o in self.ops}
        events = [
            (ends[e], c)
            for c in self.collectives
            for e in (c["event_id"], c["done_event_id"])
            if e is not None
        ]  # fmt: skip
        found: dict[Any, dict[Any, int]] = defaultdict(lambda: defaultdict(int))
        reached: dict[int, int] = {}
        for (start, end), c in sorted(events, key=lambda e: e[0]):
            until = reached.get(c["device_id"], start)
            found[c["phase"], c["device_id"]][c["kind"], c["axis"]] += max(0, end - max(start, until))
            reached[c["device_id"]] = max(until, end)
        return found

    def instances(self) -> list[list[Row]]:
        """The ranks of each execution of a collective that is here as a whole."""
        found: dict[int, list[Row]] = defaultdict(list)
        for c in self.collectives:
            if c["instance"] is not None:
                found[c["instance"]].append(c)
        return [ranks for ranks in found.values() if not any(c["is_partial"] for c in ranks)]


def is_compute(op: Row) -> bool:
    """Neither communication nor a copy."""
    i = op["i"]
    return i["collective"] is None and i["async_role"] is None and i["opcode"] not in COPIES


def _grouped(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    found: dict[Any, list[Row]] = defaultdict(list)
    for r in rows:
        found[tuple(r[n] for n in names)].append(r)
    return found


def step_time(run: Run) -> Values:
    by_step: dict[Any, list[int]] = defaultdict(list)
    for s in run.all_device_steps:
        by_step[s.phase, s.number].append(s.until - s.start)
    return {k: max(v) / MS for k, v in by_step.items()}


def tpot(run: Run) -> Values:
    found: Values = {}
    for clock, places in (("host", run.host_steps), ("device", run.device_steps)):
        tokens: dict[int, list[int]] = defaultdict(list)
        for s in (s for steps in places.values() for s in steps):
            if s.phase == "decode":
                tokens[s.number].append((s.end if s.is_last else s.until) - s.start)
        slowest = [max(v) for v in tokens.values()]
        if len(slowest) > 1:
            found[(clock,)] = sum(slowest) / len(slowest) / MS
    return found


def _bounds(run: Run, phase: str) -> dict[str, Interval]:
    """Start and end of a phase on each clock that has it."""
    hosts = [s for steps in run.host_steps.values() for s in steps if s.phase == phase]
    # the marked ops, not those between two steps
    ops = [o for o in run.ops if o["phase"] == phase]
    found = {}
    if hosts:
        found["host"] = (min(s.start for s in hosts), max(s.end for s in hosts))
    if ops:
        found["device"] = (min(o["start_ps"] for o in ops), max(o["end"] for o in ops))
    return found


def ttft(run: Run) -> Values:
    return {(clock,): (end - start) / MS for clock, (start, end) in _bounds(run, "prefill").items()}


def e2e_latency(run: Run) -> Values:
    prefill, decode = _bounds(run, "prefill"), _bounds(run, "decode")
    return {(c,): (decode[c][1] - prefill[c][0]) / MS for c in prefill.keys() & decode.keys()}


def throughput(run: Run) -> Values:
    latency = e2e_latency(run).get(("host",))
    if latency is None or run.facts["batch_size"] is None:
        return {}
    steps = {s.number for steps in run.host_steps.values() for s in steps if s.phase == "decode"}
    return {(): 1000 * run.facts["batch_size"] * (len(steps) + 1) / latency}


def collective_count(run: Run) -> Values:
    return {
        key: len(rows) / sum(len(run.steps_of(d, key[0])) or 1 for d in {c["device_id"] for c in rows})
        for key, rows in _grouped(run.collectives, "phase", "kind", "axis").items()
    }


def collective_frequency(run: Run) -> Values:
    return {
        key: len(rows) * MS / sum(run.span(key[0], d) for d in {c["device_id"] for c in rows})
        for key, rows in _grouped(run.collectives, "phase", "axis").items()
    }


def traffic_volume(run: Run) -> Values:
    return {
        key: sum(c["message_bytes"] for c in rows) / len({c["device_id"] for c in rows})
        for key, rows in _grouped(run.collectives, "phase", "kind", "axis").items()
    }


def traffic_matrix(run: Run) -> Values:
    sent = _grouped(run.tables["traffic"], "instruction_id", "source_device_id")
    found: dict[Any, int] = defaultdict(int)
    for c in run.collectives:
        for t in sent[c["instruction_id"], c["device_id"]]:
            found[c["phase"], c["axis"], t["source_device_id"], t["target_device_id"]] += t["bytes"]
    return dict(found)


def traffic_interval(run: Run) -> Values:
    found: dict[Any, list[int]] = defaultdict(list)
    for rows in _grouped(run.collectives, "device_id").values():
        for at, c in enumerate(rows):
            if at:
                before = max(rows[:at], key=lambda b: (b["end_ps"], b["start_ps"], b["event_id"]))
                if before["phase"] == c["phase"]:
                    gap = max(0, c["start_ps"] - before["end_ps"])
                    found[c["phase"], before["axis"], c["axis"]].append(gap)
    return {k: sum(v) / len(v) / US for k, v in found.items()}


def communication_time(run: Run) -> Values:
    found: dict[Any, int] = defaultdict(int)
    for (phase, device, _), rows in _grouped(run.collectives, "phase", "device_id", "step").items():
        found[phase, device] += length((c["start_ps"], c["end_ps"]) for c in rows)
    return {(p, d): ps / (len(run.steps_of(d, p)) or 1) / MS for (p, d), ps in found.items()}


def exposed_communication(run: Run) -> Values:
    return {
        (p, d, *kind): ps / (len(run.steps_of(d, p)) or 1) / MS
        for (p, d), kinds in run.exposed().items()
        for kind, ps in kinds.items()
    }


def _by_phase(run: Run, of_device: Callable[[str | None, int], int]) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for phase, device in run.places():
        found[phase].append(of_device(phase, device))
    return found


def communication_fraction(run: Run) -> Values:
    exposed, spans = run.exposed(), _by_phase(run, run.span)
    total = _by_phase(run, lambda p, d: sum(exposed[p, d].values()))
    return {(p,): sum(e / s for e, s in zip(total[p], spans[p], strict=True)) / len(spans[p]) for p in spans}


def amdahl_limit(run: Run) -> Values:
    exposed, spans = run.exposed(), _by_phase(run, run.span)
    total = _by_phase(run, lambda p, d: sum(exposed[p, d].values()))
    return {(p,): sum(spans[p]) / (sum(spans[p]) - sum(total[p])) for p in spans}


def comm_to_compute(run: Run) -> Values:
    windows = communication_time(run)
    time = _by_phase(run, lambda p, d: round((windows.get((p, d)) or 0) * len(run.steps_of(d, p)) * MS))
    compute = _by_phase(run, lambda p, d: run.busy(p, d, compute=True))
    return {(p,): sum(time[p]) / sum(compute[p]) for p in time}


def overlap_ratio(run: Run) -> Values:
    return {
        key: 1 - sum(c["exposed_ps"] for c in rows) / sum(c["end_ps"] - c["start_ps"] for c in rows)
        for key, rows in _grouped(run.collectives, "phase", "kind", "axis").items()
    }


def collective_skew(run: Run) -> Values:
    found: dict[Any, list[int]] = defaultdict(list)
    for ranks in run.instances():
        if len(ranks) > 1:
            starts = [c["start_ps"] for c in ranks]
            found[ranks[0]["phase"], ranks[0]["axis"]].append(max(starts) - min(starts))
    return {k: sum(v) / len(v) / US for k, v in found.items()}


def sync_wait(run: Run) -> Values:
    found: dict[Any, int] = defaultdict(int)
    for ranks in run.instances():
        shortest = min(c["end_ps"] - c["start_ps"] for c in ranks)
        for c in ranks:
            found[c["phase"], c["device_id"]] += c["end_ps"] - c["start_ps"] - shortest
    return {k: v / MS for k, v in found.items()}


SIZES = {
    0: "below 4 KiB",
    2**12: "4 KiB to 64 KiB",
    2**16: "64 KiB to 1 MiB",
    2**20: "1 MiB to 16 MiB",
    2**24: "16 MiB to 256 MiB",
    2**28: "256 MiB and more",
}


def _transfers(run: Run) -> dict[Any, list[tuple[int, int, int]]]:
    """Transfer time, message bytes and group size of each whole execution."""
    found: dict[Any, list[tuple[int, int, int]]] = defaultdict(list)
    for ranks in run.instances():
        c = ranks[0]
        size = max(r["message_bytes"] for r in ranks)
        name = SIZES[max(s for s in SIZES if s <= size)]
        time = min(r["end_ps"] - r["start_ps"] for r in ranks)
        found[c["phase"], c["kind"], c["axis"], name].append((time, size, c["group_size"]))
    return found


def collective_latency(run: Run) -> Values:
    return {k: sum(t for t, _, _ in v) / len(v) / US for k, v in _transfers(run).items()}


def collective_bandwidth(run: Run) -> Values:
    def factor(kind: str, n: int) -> float:
        return {"all-reduce": 2 * (n - 1) / n, "collective-permute": 1}.get(kind, (n - 1) / n)

    return {
        k: 1000 * sum(size * factor(k[1], n) for _, size, n in v) / sum(t for t, _, _ in v)
        for k, v in _transfers(run).items()
    }


def device_idle(run: Run) -> Values:
    return {(p, d): 1 - run.busy(p, d) / run.span(p, d) for p, d in run.places()}


def bubble(run: Run) -> Values:
    marked = _grouped(run.ops, "device_id", "phase", "step")
    found: Values = {}
    for phase, device in run.places():
        gap = 0
        for s in run.steps_of(device, phase):
            union = merged((o["start_ps"], o["end"]) for o in marked[device, phase, s.number])
            gaps = [b[0] - a[1] for a, b in pairwise(union)]
            gap += sum(g for g in gaps if g > US)
        found[phase, device] = gap / len(run.steps_of(device, phase)) / MS
    return found


def load_imbalance(run: Run) -> Values:
    busy = _by_phase(run, run.busy)
    return {(p,): max(v) * len(v) / sum(v) for p, v in busy.items() if len(v) > 1}


def host_gap(run: Run) -> Values:
    starts: dict[int, int] = {}
    phases = {s.number: s.phase for s in run.all_device_steps}
    for s in run.all_device_steps:
        starts[s.number] = min(s.start, starts.get(s.number, s.start))
    last = max(s.end for s in run.all_device_steps)
    ordered = sorted(starts.items(), key=lambda s: s[1])
    first = min(starts.values())
    running: list[tuple[int, int]] = []
    for (_,), ops in _grouped(run.ops, "device_id").items():
        of_device = merged([(first, first), *((o["start_ps"], o["end"]) for o in ops), (last, last)])
        for (_, end), (start, _) in pairwise(of_device):
            if start - end <= US:
                running.append((end, start))
        running += of_device
    union = merged(running)
    gap: dict[Any, int] = defaultdict(int)
    time: dict[Any, int] = defaultdict(int)
    for (number, start), (_, until) in zip(ordered, [*ordered[1:], (0, last)], strict=True):
        covered = sum(max(0, min(e, until) - max(s, start)) for s, e in union)
        gap[(phases[number],)] += until - start - covered
        time[(phases[number],)] += until - start
    return {k: gap[k] / t for k, t in time.items()}


def op_time_share(run: Run) -> Values:
    total: dict[Any, int] = defaultdict(int)
    found: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        total[o["phase"]] += o["self_ps"]
        found[o["phase"], o["i"]["category"]] += o["self_ps"]
    return {k: v / total[k[0]] for k, v in found.items()}


def layer_time(run: Run) -> Values:
    devices = {d["device_id"]: d for d in run.tables["devices"]}
    found: dict[Any, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    facts = ("layer", "stage_layer", "part")
    if all(i[fact] is None for i in run.instructions.values() for fact in facts):
        return {}
    for o in run.ops:
        i, layer = o["i"], o["i"]["layer"]
        if layer is None and i["stage_layer"] is not None:
            layer = _layer_in_stage(run, devices[o["device_id"]], i["stage_layer"])
        found[o["phase"], layer, i["part"]][o["device_id"]] += o["self_ps"]
    return {
        k: sum(v.values()) / sum(len(run.steps_of(d, k[0])) or 1 for d in v) / US for k, v in found.items()
    }  # fmt: skip


def _layer_in_stage(run: Run, device: dict[str, Any], slot: int) -> int | None:
    if device["first_slot"] is not None:
        layer = device["first_layer"] + slot - device["first_slot"]
        return layer if device["first_layer"] <= layer <= device["last_layer"] else None
    if run.facts["pp"] and run.facts["num_layers"]:
        return int(device["pp_index"] * (run.facts["num_layers"] // run.facts["pp"]) + slot)
    return None


def launch_overhead(run: Run) -> Values:
    phase_of = {(o["device_id"], o["execution"]): o["phase"] for o in run.ops}
    modules = [p for p in run.tables["phases"] if p["kind"] == "module" and p["device_id"] is not None]
    found: dict[Any, list[int]] = defaultdict(list)
    for (device,), rows in _grouped(sorted(modules, key=lambda p: p["start_ps"]), "device_id").items():
        for at, p in enumerate(rows):
            gaps = found[phase_of.get((device, p["index"])), device]
            if at:
                gaps.append(max(0, p["start_ps"] - max(b["end_ps"] for b in rows[:at])))
    return {k: sum(v) / len(v) / US if v else None for k, v in found.items()}


METRICS: dict[str, Callable[[Run], Values]] = {
    f.__name__: f
    for f in (
        step_time, tpot, ttft, e2e_latency, throughput, collective_count, collective_frequency, traffic_volume,
        traffic_matrix, traffic_interval, communication_time, exposed_communication, communication_fraction,
        amdahl_limit, comm_to_compute, overlap_ratio, collective_skew, sync_wait, collective_latency,
        collective_bandwidth, device_idle, bubble, load_imbalance, host_gap, op_time_share, layer_time,
        launch_overhead,
    )
}  # fmt: skip
"""The newest version of each metric that is computed here."""
