"""Metrics computed a second time, in plain Python over a run's rows: sorting, merging and adding, without any SQL.

Written from the metrics' descriptions, for the tests alone. Each function gives value by grain, without the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

Row = dict[str, Any]
Values = dict[tuple[Any, ...], float | None]
Interval = tuple[int, int]
T = TypeVar("T")
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
    ops: list[Row] = field(default_factory=list)


DECODES = ("decode", "mixed")
"""Phases whose steps give tokens to requests that generate."""


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
        self.hidden: dict[tuple[int, int, int], int] = {}
        """What `_hidden` found, by window."""
        self.device_steps = self._steps(lambda p: p["device_id"] is not None)
        self.host_steps = self._steps(lambda p: p["device_id"] is None)
        self._place()

    def _steps(self, wanted: Callable[[Row], bool]) -> dict[Any, list[Step]]:
        found: dict[Any, list[Step]] = defaultdict(list)
        for p in sorted((p for p in self.tables["phases"] if p["kind"] == "step"), key=lambda p: p["start_ps"]):
            if wanted(p):
                phase = p["name"] if p["name"] in ("prefill", "decode", "mixed") else None
                found[p["host"], p["device_id"]].append(
                    Step(p["device_id"], p["index"], phase, p["start_ps"], p["end_ps"])
                )
        for steps in found.values():
            for step, after in zip(steps, [*steps[1:], None], strict=True):
                step.until = after.start if after else step.end
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

    def timed_steps(self, device: int, phase: str | None) -> list[Step]:
        """A device's steps of a phase before its last step; only the last where the phase has no other."""
        lasts = [steps[-1] for steps in self.device_steps.values()]
        steps = self.steps_of(device, phase)
        return [s for s in steps if not any(s is last for last in lasts)] or steps

    def timed_collectives(self) -> list[Row]:
        """The collectives that belong to timed steps."""
        timed = {(d, s.number) for p, d in self.places() for s in self.timed_steps(d, p)}
        return [c for c in self.collectives if (c["device_id"], c["step"]) in timed]

    def counted_collectives(self) -> list[Row]:
        """The collectives that belong to timed steps, and those outside of steps."""
        return [*self.timed_collectives(), *(c for c in self.collectives if c["phase"] == "outside")]

    def span(self, phase: str | None, device: int) -> int:
        """Time of a device's timed steps of a phase."""
        return sum(s.until - s.start for s in self.timed_steps(device, phase))

    def busy(self, phase: str | None, device: int, *, compute: bool = False, steps: list[Step] | None = None) -> int:
        """Length of the union of a device's ops; each moment is of the step of the op that covers it first."""
        until, total = 0, 0
        mine = {o["event_id"] for s in steps or self.steps_of(device, phase) for o in s.ops}
        for o in self.ops:
            if o["device_id"] == device and (not compute or is_compute(o)):
                total += max(0, o["end"] - max(o["start_ps"], until)) if o["event_id"] in mine else 0
                until = max(until, o["end"])
        return total

    def exposed(self, of: list[Row]) -> dict[Any, dict[Any, int]]:
        """Time in which the op line runs each kind and axis of collective, by phase and device."""
        counted = {c["event_id"] for c in of}
        ends = {o["event_id"]: (o["start_ps"], o["end"]) for o in self.ops}
        events = [
            (ends[e][0], e, ends[e][1], c)
            for c in self.collectives
            if c["window_source"] != "fused op"
            for e in (c["event_id"], c["done_event_id"], c["second_event_id"], c["second_done_event_id"])
            if e is not None
        ]  # fmt: skip
        found: dict[Any, dict[Any, int]] = defaultdict(lambda: defaultdict(int))
        reached: dict[int, int] = {}
        for c in self.collectives:
            if c["window_source"] == "fused op" and c["event_id"] in counted:
                found[c["phase"], c["device_id"]][c["kind"], c["axis"]] += 0  # the op computes all the time
        for start, _, end, c in sorted(events, key=lambda e: e[:2]):
            until = reached.get(c["device_id"], start)
            if c["event_id"] in counted:
                found[c["phase"], c["device_id"]][c["kind"], c["axis"]] += max(0, end - max(start, until))
            reached[c["device_id"]] = max(until, end)
        return found

    def instances(self) -> list[list[Row]]:
        """The ranks of each execution of a collective that is here as a whole."""
        return [ranks for ranks in self.all_instances() if not is_partial(ranks)]

    def all_instances(self) -> list[list[Row]]:
        """The ranks of each execution of a collective, some of which may be missing."""
        found: dict[int, list[Row]] = defaultdict(list)
        for c in self.collectives:
            if c["instance"] is not None:
                found[c["instance"]].append(c)
        return list(found.values())


def is_partial(ranks: list[Row]) -> bool:
    """Whether ranks of an execution are missing."""
    return any(c["is_partial"] for c in ranks)


def whole_first(found: dict[Any, list[tuple[bool, T]]]) -> dict[Any, list[T]]:
    """Of each key the items that are whole, or those that are partial where there are no others."""
    return {k: [item for partial, item in v if partial == all(p for p, _ in v)] for k, v in found.items()}


def is_compute(op: Row) -> bool:
    """Neither communication nor a copy."""
    i = op["i"]
    return not communicates(i) and i["async_role"] is None and i["opcode"] not in COPIES


def communicates(i: Row) -> bool:
    """Executes a collective or half of one, and nothing else, as an op does into which one is fused."""
    return i["collective"] is not None and not (i["opcode"] == "fusion" and i["op_class"] == "compute")


def grouped(rows: Iterable[Row], *names: str) -> dict[Any, list[Row]]:
    """The rows by their values of these columns."""
    found: dict[Any, list[Row]] = defaultdict(list)
    for r in rows:
        found[tuple(r[n] for n in names)].append(r)
    return found


def step_time(run: Run) -> Values:
    return {k: max(v) / MS if v else None for k, v in _by_step(run, is_followed=True).items()}


def last_step(run: Run) -> Values:
    """Beside step_time: the duration where no step follows."""
    return {k: max(v) / MS if v else None for k, v in _by_step(run, is_followed=False).items()}


def _by_step(run: Run, *, is_followed: bool) -> dict[Any, list[int]]:
    """Times of each step on the devices where another step follows, or where none does."""
    found: dict[Any, list[int]] = {(s.phase, s.number): [] for s in run.all_device_steps}
    for steps in run.device_steps.values():
        for s in steps[:-1] if is_followed else steps[-1:]:
            found[s.phase, s.number].append(s.until - s.start)
    return found


def tpot(run: Run) -> Values:
    return {k: sum(v) / len(v) / MS for k, v in _tokens(run).items()}


def _tokens(run: Run) -> dict[Any, list[int]]:
    """Time of each decode step before another one, on its slowest device or host, by clock."""
    found: dict[Any, list[int]] = {}
    for clock, places in (("host", run.host_steps), ("device", run.device_steps)):
        tokens: dict[int, list[int]] = defaultdict(list)
        for s, after in (pair for steps in places.values() for pair in pairwise(steps)):
            if s.phase in DECODES and after.phase in DECODES:
                tokens[s.number].append(after.start - s.start)
        if tokens:
            found[(clock,)] = [max(v) for v in tokens.values()]
    return found


def _bounds(run: Run, phase: str) -> dict[str, Interval]:
    """Start and end of a phase on each clock that has it."""
    phases = DECODES if phase == "decode" else (phase,)
    hosts = [s for steps in run.host_steps.values() for s in steps if s.phase in phases]
    ops = [o for o in run.ops if o["phase"] in phases]
    if phase == "decode":  # those before any prefill are of other requests
        request = _bounds(run, "prefill")
        hosts = [s for s in hosts if s.start >= request.get("host", (0, 0))[0]]
        starts = {k: min(o["start_ps"] for o in v) for k, v in grouped(ops, "device_id", "step").items()}
        ops = [o for o in ops if starts[o["device_id"], o["step"]] >= request.get("device", (0, 0))[0]]
    found = {}
    if hosts:
        found["host"] = (min(s.start for s in hosts), max(s.end for s in hosts))
    if ops:
        found["device"] = (min(o["start_ps"] for o in ops), max(o["end"] for o in ops))
    return found


def ttft(run: Run) -> Values:
    found: Values = {}
    for clock, places in (("host", run.host_steps), ("device", run.device_steps)):
        steps = [s for of_place in places.values() for s in of_place]
        request = min((s.start for s in steps if s.phase == "prefill"), default=0)
        decode = min((s.start for s in steps if s.phase in DECODES and s.start >= request), default=math.inf)
        first = [s for s in steps if s.phase == "prefill" and s.start < decode]
        spans = [(s.start, s.end) for s in first]
        if clock == "device":
            marked = grouped(run.ops, "device_id", "step")
            spans = [(o["start_ps"], o["end"]) for s in first for o in marked[s.device, s.number]]
        if spans:
            found[(clock,)] = (max(end for _, end in spans) - min(start for start, _ in spans)) / MS
    return found


def e2e_latency(run: Run) -> Values:
    prefill, decode = _bounds(run, "prefill"), _bounds(run, "decode")
    alone = set()
    for clock, places in (("host", run.host_steps), ("device", run.device_steps)):
        steps = [s for of_place in places.values() for s in of_place]
        request = prefill.get(clock, (0, 0))[0]
        is_mixed = any(s.phase == "mixed" and s.start >= request for s in steps)
        if clock in decode and len({s.number for s in steps if s.phase == "prefill"}) == 1 and not is_mixed:
            alone.add(clock)
    return {(c,): (decode[c][1] - prefill[c][0]) / MS for c in alone}


def throughput(run: Run) -> Values:
    latency = e2e_latency(run).get(("host",))
    if latency is None or run.facts["batch_size"] is None:
        return {}
    request = min(s.start for steps in run.host_steps.values() for s in steps if s.phase == "prefill")
    decodes = (s for steps in run.host_steps.values() for s in steps if s.phase == "decode")
    steps = {s.number for s in decodes if s.start >= request}
    return {(): 1000 * run.facts["batch_size"] * (len(steps) + 1) / latency}


def collective_count(run: Run) -> Values:
    return {
        key: len(rows) / sum(len(run.steps_of(d, key[0])) or 1 for d in {c["device_id"] for c in rows})
        for key, rows in grouped(run.collectives, "phase", "kind", "axis").items()
    }


def collective_frequency(run: Run) -> Values:
    return {
        key: len(rows) * MS / sum(run.span(key[0], d) for d in {c["device_id"] for c in rows})
        for key, rows in grouped(run.timed_collectives(), "phase", "axis").items()
    }


def traffic_volume(run: Run) -> Values:
    return {
        key: sum(c["message_bytes"] for c in rows) / len({c["device_id"] for c in rows})
        for key, rows in grouped(run.collectives, "phase", "kind", "axis").items()
    }


def traffic_matrix(run: Run) -> Values:
    return {k: size for k, (size, _) in _sent(run, lambda c, t: (c["axis"], c["kind"], *_ends(t))).items()}


def traffic_interval(run: Run) -> Values:
    return {k: sum(v) / len(v) / US for k, v in _intervals(run).items()}


def traffic_interval_histogram(run: Run) -> Values:
    found: dict[Any, int] = defaultdict(int)
    for axes, gaps in _intervals(run).items():
        for gap in gaps:
            found[*axes, max(us for us in (0, 1, 10, 100, 1_000, 10_000) if us * US <= gap)] += 1
    return dict(found)


def _intervals(run: Run) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = defaultdict(list)
    for rows in grouped(run.collectives, "device_id").values():
        for at, c in enumerate(rows):
            if at:
                before = max(rows[:at], key=lambda b: (b["end_ps"], b["start_ps"], b["event_id"]))
                if before["phase"] == c["phase"]:
                    gap = max(0, c["start_ps"] - before["end_ps"])
                    found[c["phase"], before["axis"], c["axis"], before["step"] != c["step"]].append(gap)
    return found


def communication_time(run: Run) -> Values:
    found = _united_windows(run.counted_collectives())
    return {(p, d): ps / (len(run.timed_steps(d, p)) or 1) / MS for (p, d), ps in found.items()}


def _united_windows(collectives: list[Row]) -> dict[Any, int]:
    found: dict[Any, int] = defaultdict(int)
    for (phase, device, _), rows in grouped(collectives, "phase", "device_id", "step").items():
        found[phase, device] += length((c["start_ps"], c["end_ps"]) for c in rows)
    return found


def exposed_communication(run: Run) -> Values:
    return {
        (p, d, *kind): ps / (len(run.timed_steps(d, p)) or 1) / MS
        for (p, d), kinds in run.exposed(run.counted_collectives()).items()
        for kind, ps in kinds.items()
    }


def _by_phase(
    run: Run, of_device: Callable[[str | None, int], int], devices: set[int] | None = None
) -> dict[str | None, list[int]]:
    found: dict[str | None, list[int]] = defaultdict(list)
    for phase, device in run.places():
        if devices is None or device in devices:
            found[phase].append(of_device(phase, device))
    return found


def communication_fraction(run: Run) -> Values:
    return {k: sum(v) / len(v) for k, v in _exposed_shares(run).items()}


def _exposed_shares(run: Run) -> dict[Any, list[float]]:
    exposed, spans = run.exposed(run.timed_collectives()), _by_phase(run, run.span)
    total = _by_phase(run, lambda p, d: sum(exposed[p, d].values()))
    if not run.collectives:
        return {}
    return {(p,): [e / s for e, s in zip(total[p], spans[p], strict=True)] for p in spans}


def speedup_limit(run: Run) -> dict[Any, float | None]:
    """Beside communication_fraction: Amdahl's law with it as the part that vanishes."""
    means = {k: sum(v) / len(v) for k, v in _exposed_shares(run).items()}
    return {k: 1 / (1 - mean) if mean < 1 else None for k, mean in means.items()}


def comm_to_compute(run: Run) -> Values:
    windows = _united_windows(run.collectives)
    time = _by_phase(run, lambda p, d: windows[p, d])
    compute = _by_phase(run, lambda p, d: run.busy(p, d, compute=True))
    return {(p,): sum(time[p]) / sum(compute[p]) for p in time if run.collectives and sum(compute[p])}


def overlap_ratio(run: Run) -> Values:
    return {
        key: sum(_hidden(run, c) for c in rows) / sum(c["end_ps"] - c["start_ps"] for c in rows)
        for key, rows in grouped(run.collectives, "phase", "kind", "axis").items()
        if any(c["end_ps"] > c["start_ps"] for c in rows)
    }


def _hidden(run: Run, c: Row) -> int:
    """Time of a window in which the device runs ops, and none of them communicates."""
    window = c["device_id"], c["start_ps"], c["end_ps"]
    if window not in run.hidden:
        inside: dict[bool, list[Interval]] = {True: [], False: []}
        for o in run.ops:
            start, end = max(o["start_ps"], c["start_ps"]), min(o["end"], c["end_ps"])
            if start < end and o["device_id"] == c["device_id"]:
                inside[communicates(o["i"])].append((start, end))
        run.hidden[window] = length(inside[True] + inside[False]) - length(inside[True])
    return run.hidden[window]


def window_sources(run: Run) -> dict[tuple[Any, ...], str]:
    """Beside overlap_ratio: how the windows were found."""
    found = {}
    for key in overlap_ratio(run):
        rows = grouped(run.collectives, "phase", "kind", "axis")[key]
        sources = {c["window_source"] for c in rows}
        found[key] = sources.pop() if len(sources) == 1 else "mixed"
    return found


def collective_skew(run: Run) -> Values:
    return {k: sum(skew for skew, _ in v) / len(v) / US for k, v in _arrivals(run).items()}


def last_device(run: Run) -> Values:
    """Beside collective_skew: the device that alone was last most often; None if it is not one."""
    found: Values = {}
    for key, v in _arrivals(run).items():
        times = Counter(d for _, d in v if d is not None)
        most = [d for d, n in times.items() if n == max(times.values())]
        found[key] = most[0] if len(most) == 1 else None
    return found


def last_share(run: Run) -> Values:
    """In what share of the executions the device was last that was so most often."""
    counts = {k: Counter(d for _, d in v if d is not None) for k, v in _arrivals(run).items()}
    return {k: max(counts[k].values(), default=0) / len(v) for k, v in _arrivals(run).items()}


def _arrivals(run: Run) -> dict[Any, list[tuple[int, int | None]]]:
    """Skew of each execution that counts, and the device that started last; None if several did."""
    found: dict[Any, list[tuple[bool, tuple[int, int | None]]]] = defaultdict(list)
    for ranks in run.all_instances():
        if len(ranks) > 1:
            first, last = min(c["start_ps"] for c in ranks), max(c["start_ps"] for c in ranks)
            latest = [c["device_id"] for c in ranks if c["start_ps"] == last]
            device = latest[0] if len(latest) == 1 else None
            found[ranks[0]["phase"], ranks[0]["axis"]].append((is_partial(ranks), (last - first, device)))
    return whole_first(found)


def sync_wait(run: Run) -> Values:
    found: dict[Any, int] = defaultdict(int)
    for ranks in run.all_instances():
        if is_partial(ranks) and len(ranks) == 1:
            continue
        shortest = min(c["end_ps"] - c["start_ps"] for c in ranks)
        for c in ranks:
            found[c["phase"], c["device_id"]] += _waited(c, shortest)
    return {k: v / MS for k, v in found.items()}


def _waited(c: Row, transfer: int) -> int:
    """Time of a rank beyond the transfer, at most the time in which the device runs this one's ops and no others'.

    A start does not wait: where the capture has the done, the rank waits only there.
    """
    limit = c["exposed_added_ps"] if c["done_event_id"] is None else c["exposed_done_ps"]
    return min(c["end_ps"] - c["start_ps"] - transfer, limit)


SIZES = {
    0: "below 4 KiB",
    2**12: "4 KiB to 64 KiB",
    2**16: "64 KiB to 1 MiB",
    2**20: "1 MiB to 16 MiB",
    2**24: "16 MiB to 256 MiB",
    2**28: "256 MiB and more",
}


def _transfers(run: Run) -> dict[Any, list[tuple[int, int, int]]]:
    """Transfer time, message bytes and group size of each execution that counts."""
    found: dict[Any, list[tuple[bool, tuple[int, int, int]]]] = defaultdict(list)
    for ranks in run.all_instances():
        c = ranks[0]
        if c["window_source"] == "fused op":
            continue
        size = max(r["message_bytes"] for r in ranks)
        name = SIZES[max(s for s in SIZES if s <= size)]
        time = min(r["end_ps"] - r["start_ps"] for r in ranks)
        found[c["phase"], c["kind"], c["axis"], name].append((is_partial(ranks), (time, size, c["group_size"])))
    return whole_first(found)


def collective_transfer(run: Run) -> Values:
    return {k: sum(t for t, _, _ in v) / len(v) / US for k, v in _transfers(run).items()}


def _bus_bytes(kind: str, size: int, n: int) -> int:
    """Message times the factor of the kind, in whole bytes."""
    factors = {"all-reduce": Fraction(2 * (n - 1), n), "collective-permute": Fraction(1)}
    return math.floor(size * factors.get(kind, Fraction(n - 1, n)))


def bus_bandwidth(run: Run) -> dict[Any, float | None]:
    """Beside collective_transfer: bytes on the bus over transfer time, in decimal GB."""
    sent = {k: [(time, _bus_bytes(k[1], size, n)) for time, size, n in v] for k, v in _transfers(run).items()}
    moved = {k: [(time, size) for time, size in v if size] for k, v in sent.items()}
    times = {k: sum(time for time, _ in v) for k, v in moved.items()}
    return {k: 1000 * sum(size for _, size in v) / times[k] if times[k] else None for k, v in moved.items()}


def collective_wait(run: Run) -> Values:
    """Beside collective_transfer: mean time of a rank beyond the transfer."""
    waits: dict[Any, list[tuple[bool, int]]] = defaultdict(list)
    for ranks in run.all_instances():
        shortest = min(c["end_ps"] - c["start_ps"] for c in ranks)
        size = max(c["message_bytes"] for c in ranks)
        name = SIZES[max(s for s in SIZES if s <= size)]
        key = ranks[0]["phase"], ranks[0]["kind"], ranks[0]["axis"], name
        waits[key] += [(is_partial(ranks), _waited(c, shortest)) for c in ranks]
    return {k: sum(v) / len(v) / US for k, v in whole_first(waits).items()}


_FACTORS = (("2", Fraction(1, 2)), ("4", Fraction(3, 4)), ("infinite", Fraction(1)))
"""How many times faster something is, and the share of its time that this saves."""


def faster_links(run: Run) -> Values:
    peaks = [d["peak_ici_gbps"] for d in run.tables["devices"] if (d["peak_ici_gbps"] or 0) > 0]
    lines = {k: line for k, line in _lines(run).items() if not peaks or 1000 / line.slope <= min(peaks)}
    whole = {ranks[0]["instance"]: ranks for ranks in run.instances()}
    ruled = {o["event_id"]: o["link_ps"] for o in run.ops if o["link_ps"] is not None}
    saved: dict[Any, Fraction] = defaultdict(Fraction)
    for c in run.timed_collectives():
        ranks, line = whole.get(c["instance"]), lines.get((c["kind"], c["axis"]))
        sent = ranks and _bus_bytes(c["kind"], max(r["message_bytes"] or 0 for r in ranks), c["group_size"])
        for factor, share in _FACTORS:
            exposed = Fraction(c["exposed_added_ps"])
            if c["event_id"] in ruled:
                saved[c["phase"], c["link"], c["axis"], "rules", factor] += min(share * ruled[c["event_id"]], exposed)
                continue
            if line is None or not ranks or not sent:
                saved[c["phase"], c["link"], c["axis"], "exposed", factor] += share * exposed
                continue
            transfer = min(r["end_ps"] - r["start_ps"] for r in ranks)
            most = max(transfer - max(line.intercept, Fraction(0)), Fraction(0))
            shorter = min(share * line.slope * sent, most, exposed)
            saved[c["phase"], c["link"], c["axis"], "fit", factor] += shorter
    spans = {p: sum(v) for p, v in _by_phase(run, run.span).items()}
    return {key: float(100 * ps / spans[key[0]]) for key, ps in saved.items() if spans.get(key[0])}


def faster_chips(run: Run) -> Values:
    needs = {number: n for (number,), n in _needs(run).items() if max(n.values(), default=0)}
    until: dict[int, int] = defaultdict(int)
    timed = {(d, s.number): s.phase for p, d in run.places() for s in run.timed_steps(d, p)}
    saved: dict[Any, float] = defaultdict(float)
    for o in run.ops:
        added = max(0, o["end"] - max(o["start_ps"], until[o["device_id"]]))
        until[o["device_id"]] = max(until[o["device_id"]], o["end"])
        of_op, place = needs.get(o["instruction_id"]), (o["device_id"], o["step"])
        if of_op is None or place not in timed or o["i"]["op_class"] == "communication":
            continue
        compute, memory, links = of_op["compute"], of_op["memory"], of_op.get("ici", 0)
        for factor, share in _FACTORS:
            left = float(1 - share)
            for resource, now in (
                ("hbm", max(compute, memory * left, links)),
                ("compute", max(compute * left, memory, links)),
            ):
                saved[timed[place], resource, factor, o["instruction_id"]] += added * (1 - now / max(of_op.values()))
    spans = {p: sum(v) for p, v in _by_phase(run, run.span).items()}
    whole: dict[Any, float] = defaultdict(float)
    for key, ps in saved.items():
        whole[key[:3]] += round(1000 * ps) / 1000  # to the femtosecond, as the sum is of integers
    return {key: 100 * ps / spans[key[0]] for key, ps in whole.items() if spans.get(key[0])}


def hbm_bandwidth(run: Run) -> Values:
    found: Values = {}
    for phase, device in run.places():
        ops = [o for s in run.steps_of(device, phase) for o in s.ops]
        counted = [o for o in ops if o["i"]["async_role"] != "done" and cost(o, "bytes_accessed")]
        if counted and run.busy(phase, device):
            found[phase, device] = 1000 * sum(map(hbm_bytes, counted)) / run.busy(phase, device)
    return found


def hbm_bytes(op: Row) -> int:
    """The bytes in HBM of an op of known bytes: as split by memory, or all of them."""
    i, size = op["i"], cost(op, "bytes_accessed")
    is_split = i["given_bytes_accessed"] is None and i["hbm_bytes_accessed"] is not None
    return int(i["hbm_bytes_accessed"] if is_split and i["bytes_accessed"] in (None, size) else size or 0)


def hbm_unsized(run: Run) -> dict[Any, float | None]:
    """Beside hbm_bandwidth: the share of the self time of ops whose bytes are not known."""
    found: dict[Any, float | None] = {}
    for phase, device in hbm_bandwidth(run):
        ops = [o for s in run.steps_of(device, phase) for o in s.ops]
        unsized = [o for o in ops if o["i"]["async_role"] != "done" and cost(o, "bytes_accessed") is None]
        total = sum(o["self_ps"] for o in ops)
        found[phase, device] = sum(o["self_ps"] for o in unsized) / total if total else None
    return found


def cost(op: Row, name: str) -> int | None:
    """What an op costs, as told, as its event states, or as its instruction; of a custom call 0 is no statement."""
    i = op["i"]
    given = i["given_bytes_accessed"] if name == "bytes_accessed" else i["given_flops"]
    if given is not None:
        return int(given)
    stated = [n for n in (op[name], i[name]) if n is not None and (n or i["opcode"] != "custom-call")]
    return int(stated[0]) if stated else None


def product_type(i: Row) -> str | None:
    """Of a matrix product, the type whose peak it has."""
    if i["operand_dtype"] is None:
        return None
    return {"s8": "int8", "u8": "int8", "f8e4m3fn": "fp8"}.get(i["operand_dtype"], "bf16")


def peak(device: Row, of_type: str | None) -> float | None:
    """Peak rate of a device for a type, that of bf16 where it has no other."""
    bf16 = device["peak_flops_per_s"] or None
    own = {"int8": device["peak_int8_flops_per_s"], "fp8": device["peak_fp8_flops_per_s"]}.get(of_type or "bf16")
    return bf16 and (own or bf16)


def copy_overhead(run: Run) -> Values:
    """Moments in copy windows without other ops, each for the step of the window that covers it first."""
    windows = [(o["start_ps"], o["event_id"], o["end"], o["device_id"]) for o in run.ops if _is_copy_op(o)]
    windows += [(s["start_ps"], s["event_id"], d["end"], s["device_id"]) for s, d in _copies(run)]
    if not windows:
        return {}
    step_of = {o["event_id"]: s for p, d in run.places() for s in run.timed_steps(d, p) for o in s.ops}
    exposed: dict[Any, int] = defaultdict(int)
    until: dict[int, int] = {}
    working = [o for o in run.ops if is_compute(o) or o["i"]["collective"] is not None]
    work = {d: merged((o["start_ps"], o["end"]) for o in working if o["device_id"] == d) for _, d in run.places()}
    for start, event, end, device in sorted(windows):
        begin = max(start, until.get(device, start))
        until[device] = max(until.get(device, end), end)
        if begin < end and event in step_of:
            hidden = sum(max(0, min(e, end) - max(s, begin)) for s, e in work[device])
            exposed[step_of[event].phase] += end - begin - hidden
    return {(p,): exposed[p] / sum(spans) for p, spans in _by_phase(run, run.span).items() if sum(spans)}


def _is_copy_op(op: Row) -> bool:
    i = op["i"]
    return i["collective"] is None and i["async_role"] is None and i["opcode"] in COPIES


def moe_fraction(run: Run) -> Values:
    if all(i["part"] != "moe" for i in run.instructions.values()):
        return {}
    halves = {e for c in run.collectives if c["axis"] == "ep" for e in (c["event_id"], c["done_event_id"])}
    experts: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        if o["i"]["part"] == "moe" or o["event_id"] in halves:
            experts[o["phase"]] += o["self_ps"]
    return {(p,): experts[p] / sum(busy) for p, busy in _by_phase(run, run.busy).items() if sum(busy)}


def device_idle(run: Run) -> Values:
    found: Values = {}
    for phase, device in run.places():
        busy = run.busy(phase, device, steps=run.timed_steps(device, phase))
        found[phase, device] = max(0, 1 - busy / run.span(phase, device))
    return found


def _idle_before(run: Run, kind_wanted: str) -> Values:
    """Time per timed step in gaps that end with an op of this kind; None without steps."""
    marked = grouped(run.ops, "device_id", "phase", "step")
    handing = {e for c in run.collectives if c["axis"] == "pp" for e in (c["event_id"], c["done_event_id"])}
    found: Values = {}
    for phase, device in run.places():
        gap = 0
        timed = run.timed_steps(device, phase)
        for s in timed:
            ops = marked[device, phase, s.number]
            until = [max(o["end"] for o in ops[: at + 1]) for at in range(len(ops))]
            for before, end, o in zip(ops, until, ops[1:], strict=False):
                if o["start_ps"] - end <= US:
                    continue
                kind = "collective" if o["i"]["collective"] else "other"
                kind = "tick" if o["event_id"] in handing else kind
                kind = "launch" if o["execution"] != before["execution"] else kind
                gap += (o["start_ps"] - end) * (kind == kind_wanted)
        found[phase, device] = gap / len(timed) / MS if timed else None
    return found


def load_imbalance(run: Run) -> Values:
    busy = _by_phase(run, run.busy, _ranks(run))
    return {(p,): max(v) * len(v) / sum(v) for p, v in busy.items() if len(v) > 1 and sum(v)}


def _ranks(run: Run) -> set[int]:
    """The devices that compute."""
    return {o["device_id"] for o in run.ops if is_compute(o) and o["duration_ps"]}


def _imbalance(run: Run, of_device: Callable[[str | None, int], int]) -> Values:
    loads = _by_phase(run, of_device, _ranks(run))
    return {k: max(v) * len(v) / sum(v) if sum(v := loads[k[0]]) else None for k in load_imbalance(run)}


def compute_imbalance(run: Run) -> Values:
    return _imbalance(run, lambda p, d: run.busy(p, d, compute=True))


def moe_imbalance(run: Run) -> Values:
    moe: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        if o["i"]["part"] == "moe" and is_compute(o):
            moe[o["phase"], o["device_id"]] += o["self_ps"]
    return _imbalance(run, lambda p, d: moe[p, d])


def host_gap(run: Run) -> Values:
    starts: dict[int, int] = {}
    phases = {s.number: s.phase for s in run.all_device_steps}
    for s in run.all_device_steps:
        starts[s.number] = min(s.start, starts.get(s.number, s.start))
    last = max(s.end for s in run.all_device_steps)
    ordered = sorted(starts.items(), key=lambda s: s[1])
    first = min(starts.values())
    running: list[tuple[int, int]] = []
    for (_,), ops in grouped(run.ops, "device_id").items():
        of_device = merged((o["start_ps"], o["end"]) for o in ops)
        before = [(first, first)] if first < of_device[0][0] else []
        after = [(last, last)] if last > of_device[-1][1] else []
        of_device = [*before, *of_device, *after]
        for (_, end), (start, _) in pairwise(of_device):
            if start - end <= US:
                running.append((end, start))
        running += of_device
    union, timed = merged(running), timed_steps_of(run)
    gap: dict[Any, int] = defaultdict(int)
    time: dict[Any, int] = defaultdict(int)
    for (number, start), (_, until) in zip(ordered, [*ordered[1:], (0, last)], strict=True):
        if number in timed:
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
    for o in run.ops:
        layer = _layer(run, o, devices[o["device_id"]])
        found[o["phase"], layer, o["i"]["part"]][o["device_id"]] += o["self_ps"]
    return {
        k: sum(v.values()) / sum(len(run.steps_of(d, k[0])) or 1 for d in v) / US
        for k, v in found.items()
        if any(layer is not None or part is not None for _, layer, part in found)
    }


def layer_coverage(run: Run) -> Values:
    devices = {d["device_id"]: d for d in run.tables["devices"]}
    known: dict[Any, int] = defaultdict(int)
    total: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        total[(o["phase"],)] += o["self_ps"]
        if _layer(run, o, devices[o["device_id"]]) is not None or o["i"]["part"] in ("embed", "lm_head", "pipeline"):
            known[(o["phase"],)] += o["self_ps"]
    has_parts = any(o["i"]["part"] for o in run.ops)
    return {k: known[k] / ps for k, ps in total.items() if sum(known.values()) or has_parts}


def _layer(run: Run, op: dict[str, Any], device: dict[str, Any]) -> int | None:
    i, stages = op["i"], run.facts["pp"] or 1
    if i["layer"] is not None or (i["stage_layer"] is None and i["loop_layer"] is None):
        return i["layer"]  # type: ignore[no-any-return]
    if i["loop_layer"] is None:
        return _layer_in_stage(run, device, i["stage_layer"])
    if op["iteration"] is None:
        return None
    of_stage = i["loop_layer"] + op["iteration"] * i["layers_per_iteration"]
    return of_stage if stages == 1 else device["pp_index"] * (run.facts["num_layers"] // stages) + of_stage


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
    for (device,), rows in grouped(sorted(modules, key=lambda p: p["start_ps"]), "device_id").items():
        for at, p in enumerate(rows):
            gaps = found[phase_of.get((device, p["index"])), device]
            if at:
                gaps.append(max(0, p["start_ps"] - max(b["end_ps"] for b in rows[:at])))
    return {k: sum(v) / len(v) / US if v else None for k, v in found.items()}


def pipeline_bubble(run: Run) -> Values:
    return {k: bubble / span for k, (bubble, _, span) in _ticks(run).items()}


def pipeline_waiting(run: Run) -> Values:
    return {k: waited / span for k, (_, waited, span) in _ticks(run).items()}


def _ticks(run: Run) -> dict[Any, tuple[int, int, int]]:
    """Time without work of its own, of it in collectives on axis pp, and in all, of the ops of each phase's steps."""
    ends = {o["event_id"]: (o["start_ps"], o["end"]) for o in run.ops}
    halves = [(c, e) for c in run.collectives for e in (c["event_id"], c["done_event_id"]) if e is not None]
    waits = grouped(({**c, "half": e, "span": ends[e]} for c, e in halves), "device_id")
    if (run.facts["pp"] or 0) < 2 or all(c["axis"] != "pp" or c["step"] is None for c in run.collectives):
        return {}
    found: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for phase, device in run.places():
        steps = [s for s in run.steps_of(device, phase) if s.ops]
        span = sum(max(o["end"] for o in s.ops) - min(o["start_ps"] for o in s.ops) for s in steps)
        busy = run.busy(phase, device)
        waited, until = 0, 0
        for w in sorted(waits[(device,)], key=lambda w: (w["span"][0], w["half"])):
            if w["axis"] == "pp" and w["step"] in {s.number for s in steps}:
                waited += max(0, w["span"][1] - max(w["span"][0], until))
            until = max(until, w["span"][1])
        if span:
            for at, part in enumerate((span - busy + waited, waited, span)):
                found[(phase,)][at] += part
    return {k: (v[0], v[1], v[2]) for k, v in found.items()}


def _copies(run: Run) -> list[tuple[Row, Row]]:
    """Starts of asynchronous ops that are no collectives, each with its done, paired per device one by one."""
    waiting: dict[Any, Row | None] = {}
    found = []
    for o in run.ops:
        i = o["i"]
        if i["collective"] is not None or i["async_role"] is None:
            continue
        is_start = i["async_role"] == "start"
        key = o["device_id"], i["program_id"], i["name"] if is_start else i["async_start"]
        start = waiting.get(key)
        if not is_start and start is not None:
            found.append((start, o))
        waiting[key] = o if is_start else None
    return found


def copy_bandwidth(run: Run) -> Values:
    moved: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    for start, done in _copies(run):
        if start["i"]["bytes_accessed"] and done["end"] > start["start_ps"]:
            total = moved[start["device_id"], "copy" if start["i"]["opcode"] in COPIES else "async"]
            total[0] += start["i"]["bytes_accessed"]
            total[1] += done["end"] - start["start_ps"]
    return {k: 1000 * size / time for k, (size, time) in moved.items()}


def ici_utilization(run: Run) -> Values:
    peaks = {d["device_id"]: d["peak_ici_gbps"] or 0 for d in run.tables["devices"]}
    found: dict[Any, list[tuple[bool, tuple[int, int, float]]]] = defaultdict(list)
    for ranks in run.all_instances():
        if ranks[0]["link"] == "dcn" or ranks[0]["window_source"] == "fused op":
            continue  # by another network, or in an op whose time is not that of the transfer
        transfer = min(c["end_ps"] - c["start_ps"] for c in ranks)
        bus = _bus_bytes(ranks[0]["kind"], max(c["message_bytes"] for c in ranks), ranks[0]["group_size"])
        for c in ranks:
            sent = bus if is_partial(ranks) and c["wire_bytes"] is None else c["wire_bytes"]
            if sent and peaks[c["device_id"]] > 0:
                row = (sent, transfer, peaks[c["device_id"]])
                found[c["phase"], c["kind"], c["axis"]].append((is_partial(ranks), row))
    return {
        k: 1000 * sum(size for size, _, _ in v) / sum(time for _, time, _ in v) / min(peak for _, _, peak in v)
        for k, v in whole_first(found).items()
        if sum(time for _, time, _ in v)
    }


@dataclass
class Line:
    """Least squares of transfer time on bytes, in ps and ps per byte, with exact moments."""

    intercept: Fraction
    slope: Fraction
    r2: Fraction
    points: int
    variance: Fraction
    mean_bytes: Fraction
    square_bytes: Fraction

    @property
    def quantile(self) -> float:
        """Student's quantile for a two-sided 95 %: the root of its distribution, integrated step by step."""
        return student_quantile(self.points - 2)

    @property
    def slope_error(self) -> float:
        """Half of the 95 % interval of the slope."""
        return self.quantile * math.sqrt(self.variance / self.square_bytes)

    @property
    def intercept_error(self) -> float:
        """Half of the 95 % interval of the intercept."""
        spread = Fraction(1, self.points) + self.mean_bytes**2 / self.square_bytes
        return self.quantile * math.sqrt(self.variance * spread)


def student_quantile(degrees: int) -> float:
    """Where Student's distribution has 97.5 % below, by bisection over an integral of its density."""
    norm = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(degrees * math.pi)

    def half(end: float) -> float:
        width = end / 400
        weights = [1, *([4, 2] * 199), 4, 1]
        heights = (norm * (1 + (n * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for n in range(401))
        return width / 3 * sum(w * h for w, h in zip(weights, heights, strict=True))

    low, high = 1.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if half(middle) < 0.475 else (low, middle)
    return low


def _lines(run: Run) -> dict[Any, Line]:
    """The fits that three repeated sizes, growing time and an r2 of 0.9 support."""
    points: dict[Any, list[tuple[Fraction, Fraction]]] = defaultdict(list)
    for ranks in run.instances():
        size = max(c["message_bytes"] for c in ranks)
        sent = _bus_bytes(ranks[0]["kind"], size, ranks[0]["group_size"])
        if sent > 0:
            time = min(c["end_ps"] - c["start_ps"] for c in ranks)
            points[ranks[0]["kind"], ranks[0]["axis"]].append((Fraction(sent), Fraction(time)))
    found = {}
    for key, pairs in points.items():
        if sum(n > 1 for n in Counter(size for size, _ in pairs).values()) < 3:
            continue
        x, y = (sum(p[at] for p in pairs) / len(pairs) for at in (0, 1))
        xx, yy = (sum((p[at] - mean) ** 2 for p in pairs) for at, mean in ((0, x), (1, y)))
        xy = sum((a - x) * (b - y) for a, b in pairs)
        if xy > 0 and xy * xy >= Fraction(9, 10) * xx * yy:
            left = (yy - xy * xy / xx) / (len(pairs) - 2)
            found[key] = Line(y - xy / xx * x, xy / xx, xy * xy / (xx * yy), len(pairs), left, x, xx)
    return found


def hockney(run: Run) -> Values:
    return {k: float(line.intercept) / US for k, line in _lines(run).items()}


def hockney_latency_high(run: Run) -> Values:
    return {k: (float(line.intercept) + line.intercept_error) / US for k, line in _lines(run).items()}


def hockney_bandwidth(run: Run) -> Values:
    return {k: 1000 / float(line.slope) for k, line in _lines(run).items()}


def hockney_bandwidth_low(run: Run) -> Values:
    return {k: 1000 / (float(line.slope) + line.slope_error) for k, line in _lines(run).items()}


def hockney_r2(run: Run) -> Values:
    return {k: float(line.r2) for k, line in _lines(run).items()}


def _needs(run: Run) -> dict[Any, dict[str, float]]:
    """The seconds that each resource would take at its peak for all executions of an instruction; none if unknown."""
    devices = {d["device_id"]: d for d in run.tables["devices"]}
    found = {}
    for (number,), ops in grouped(run.ops, "instruction_id").items():
        i = run.instructions[number]
        flops, sizes = [cost(o, "flops") for o in ops], [cost(o, "bytes_accessed") for o in ops]
        if i["async_role"] or not any(o["self_ps"] for o in ops) or not (any(flops) or any(sizes)):
            continue
        sent: list[int | None] = [c["wire_bytes"] for c in run.collectives if c["instruction_id"] == number]
        wire = None if None in sent or not sent else sum(size or 0 for size in sent)
        used = {
            "ici": (wire, "peak_ici_gbps", 1e9),
            "memory": (sum(hbm_bytes(o) for o in ops if cost(o, "bytes_accessed")), "peak_hbm_gbps", 1e9),
            "compute": (sum(n or 0 for n in flops), None, 1.0),
        }
        if not wire:
            del used["ici"]
        needs = {}
        for bound, (amount, name, unit) in used.items():
            of_devices = [devices[o["device_id"]] for o in ops]
            rates = [d[name] if name else peak(d, product_type(i)) for d in of_devices]
            peaks = [p for p in rates if p is not None]
            if peaks and min(peaks):
                needs[bound] = (amount or 0) / (min(peaks) * unit)
        is_unsized = is_compute(ops[0]) and (None in flops or None in sizes)
        is_known = len(needs) == len(used) and not (i["collective"] and wire is None) and not is_unsized
        found[(number,)] = needs if is_known else {}
    return found


def _rooflines(run: Run) -> dict[Any, tuple[float | None, float | None, str | None]]:
    """Operations per second, share of the bound, and the bound of each instruction."""
    found = {}
    for key, needs in _needs(run).items():
        ops = [o for o in run.ops if o["instruction_id"] == key[0]]
        longest = max(needs.values(), default=None)
        bound = next((b for b, need in needs.items() if need == longest), None)
        flops = [(o["self_ps"] / 1e12, n) for o in ops if (n := cost(o, "flops")) is not None]
        counted = sum(time for time, _ in flops)
        rate = sum(n for _, n in flops) / counted if counted else None
        time = sum(o["self_ps"] for o in ops) / 1e12
        found[key] = (rate, None if longest is None else longest / time, bound)
    return found


def roofline(run: Run) -> Values:
    return {k: rate for k, (rate, _, _) in _rooflines(run).items()}


def roofline_attained(run: Run) -> Values:
    return {k: share for k, (_, share, _) in _rooflines(run).items()}


def roofline_bound(run: Run) -> dict[tuple[Any, ...], str | None]:
    return {k: bound for k, (_, _, bound) in _rooflines(run).items()}


def timed_steps_of(run: Run) -> dict[int, tuple[str | None, int]]:
    """Phase and longest time of the steps whose time is known on every device."""
    found: dict[int, tuple[str | None, int]] = {}
    known = {(d, s.number) for p, d in run.places() for s in run.timed_steps(d, p)}
    for s in run.all_device_steps:
        found[s.number] = (s.phase, max(s.until - s.start, found.get(s.number, (None, 0))[1]))
    return {n: found[n] for n in found if all((s.device, n) in known for s in run.all_device_steps if s.number == n)}


def _model_flops(run: Run) -> dict[Any, int]:
    """Operations that the model needs for its timed steps, token by token."""
    f = run.facts
    prefills = {s.number for s in run.all_device_steps if s.phase == "prefill"}
    heads = f["num_heads"] * f["head_dim"] if f["num_heads"] and f["head_dim"] else f["hidden_size"]
    table = f["vocab_size"] and f["vocab_size"] * f["hidden_size"]
    embedding = table if f["num_params_embedding"] is None else f["num_params_embedding"]
    head = table or embedding
    shape = (f["num_params_active"], embedding, f["num_layers"], heads, f["batch_size"], f["input_length"])
    if None in shape:
        return {}
    is_inside = f["has_tied_embeddings"] or embedding >= 2 * head
    body = f["num_params_active"] - embedding - (0 if is_inside else head)
    needed: dict[Any, int] = defaultdict(int)
    for number, (phase, _) in timed_steps_of(run).items():
        contexts = range(1, f["input_length"] + 1) if phase == "prefill" else [f["input_length"] + number]
        of_sequence = 2 * head + sum(2 * body + 4 * f["num_layers"] * heads * c for c in contexts)
        needed[phase] += f["batch_size"] * of_sequence
    return {p: n for p, n in needed.items() if p == "decode" or (p == "prefill" and len(prefills) == 1)}


def _stated_flops(run: Run) -> dict[Any, int]:
    """Operations of the ops that compute in timed steps, of each phase."""
    found: dict[Any, int] = defaultdict(int)
    timed = timed_steps_of(run)
    for s in run.all_device_steps:
        for o in s.ops:
            if s.number in timed and is_compute(o) and (flops := cost(o, "model_flops")) is not None:
                found[s.phase] += flops
    return found


def _peaks(run: Run, phase: str) -> list[float]:
    """Peak of each device that has one, of the type that most of the time of products multiplies."""
    times: dict[str, int] = defaultdict(int)
    for o in (o for s in run.all_device_steps if s.phase == phase for o in s.ops):
        if of_type := product_type(o["i"]):
            times[of_type] += o["self_ps"]
    chosen = min(times, key=lambda t: (-times[t], t), default=None)
    if chosen is None:
        said = (run.facts["dtype"] or "").lower()
        chosen = "int8" if "int8" in said else "fp8" if "float8" in said or "fp8" in said else "bf16"
    return [p for d in run.tables["devices"] if (p := peak(d, chosen))]


def _utilization(run: Run, of_model: bool) -> Values:
    needed, stated = _model_flops(run), _stated_flops(run)
    time: dict[Any, int] = defaultdict(int)
    for phase, longest in timed_steps_of(run).values():
        time[phase] += longest
    found: Values = {}
    for phase in ("prefill", "decode", "mixed"):
        peaks = _peaks(run, phase)
        if peaks and time[phase] and (phase in needed or phase in stated):
            flops = (needed if of_model else stated).get(phase)
            devices = run.facts["device_count"] + (run.facts["missing_devices"] or 0) if of_model else len(peaks)
            found[(phase,)] = None if flops is None else flops * 1e12 / (time[phase] * devices * min(peaks))
    return found


def mfu(run: Run) -> Values:
    return _utilization(run, of_model=True)


def hlo_mfu(run: Run) -> Values:
    return _utilization(run, of_model=False)


def top_kernels(run: Run) -> Values:
    found: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        parts = o["i"]["name"].split(".")
        while len(parts) > 1 and parts[-1].isdecimal():
            parts.pop()
        found[o["phase"], ".".join(parts), o["i"]["category"]] += o["self_ps"]
    totals: dict[Any, int] = defaultdict(int)
    for (phase, *_), time in found.items():
        totals[phase] += time
    return {k: time / totals[k[0]] for k, time in found.items() if totals[k[0]]}


def gemm_efficiency(run: Run) -> Values:
    devices = {d["device_id"]: d for d in run.tables["devices"]}
    found: dict[Any, list[tuple[int, float]]] = defaultdict(list)
    for o in run.ops:
        i = o["i"]
        flops = cost(o, "model_flops")
        flops = cost(o, "flops") if flops is None else flops
        rate = peak(devices[o["device_id"]], product_type(i)) if o["device_id"] in devices else None
        if product_type(i) and flops and rate:
            found[o["phase"], i["shape"], i["operand_dtype"], flops].append((o["self_ps"], rate))
    return {
        k: k[-1] * len(ops) * 1e12 / (sum(time for time, _ in ops) * max(rate for _, rate in ops))
        for k, ops in found.items()
        if sum(time for time, _ in ops)
    }


def straggler_ranking(run: Run) -> Values:
    return {k: sum(waits) / MS for k, waits in _stragglers(run).items()}


def straggler_share(run: Run) -> Values:
    """Beside straggler_ranking: in what share of its executions a device is last."""
    arrivals = {k: Counter(d for _, d in v) for k, v in _arrivals(run).items()}
    return {k: arrivals[k[:2]][k[2]] / len(waits) for k, waits in _stragglers(run).items()}


def _stragglers(run: Run) -> dict[Any, list[int]]:
    """For each device what others wait in each execution that counts: 0 where another device is last."""
    found: dict[Any, list[tuple[bool, list[Row]]]] = defaultdict(list)
    for ranks in run.all_instances():
        if len(ranks) > 1:
            found[ranks[0]["phase"], ranks[0]["axis"]].append((is_partial(ranks), ranks))
    waits: dict[Any, list[int]] = defaultdict(list)
    for key, executions in whole_first(found).items():
        for ranks in executions:
            transfer = min(c["end_ps"] - c["start_ps"] for c in ranks)
            waited = sum(_waited(c, transfer) for c in ranks)
            starts = sorted(c["start_ps"] for c in ranks)
            for c in ranks:
                is_last = c["start_ps"] > starts[-2]
                waits[*key, c["device_id"]].append(waited if is_last else 0)
    return waits


def collective_attribution(run: Run) -> Values:
    return {k: max(parts.values()) / sum(parts.values()) for k, parts in window_parts(run).items()}


def attributed(run: Run) -> dict[Any, str]:
    """Beside collective_attribution: the largest part."""
    return {k: max(parts, key=lambda p: parts[p]) for k, parts in window_parts(run).items()}


def window_parts(run: Run) -> dict[Any, dict[str, int]]:
    """Time of all ranks by what it goes to, of the executions that are here as a whole."""
    found: dict[Any, dict[str, int]] = defaultdict(lambda: {"transfer": 0, "arrival": 0, "overlap": 0})
    for c in run.collectives:
        window, key = c["end_ps"] - c["start_ps"], (c["phase"], c["kind"], c["axis"])
        if c["link"] == "dcn" and window:
            parts = found.setdefault(key, {"transfer or arrival": 0, "overlap": 0})
            parts["overlap"] += _hidden(run, c)
            parts["transfer or arrival"] += window - _hidden(run, c)
    for ranks in run.instances():
        if ranks[0]["window_source"] == "fused op":
            for c in ranks:
                found[c["phase"], c["kind"], c["axis"]]["overlap"] += c["end_ps"] - c["start_ps"]
            continue
        transfer = min(c["end_ps"] - c["start_ps"] for c in ranks)
        for c in ranks:
            rest = c["end_ps"] - c["start_ps"] - _hidden(run, c)
            parts = found[c["phase"], c["kind"], c["axis"]]
            parts["arrival"] += _waited(c, transfer)
            parts["overlap"] += _hidden(run, c)
            parts["transfer"] += rest - _waited(c, transfer)
    return {k: parts for k, parts in found.items() if sum(parts.values())}


def prefill_throughput(run: Run) -> Values:
    """Of batch size and lengths alone."""
    f, ops = run.facts, [o for o in run.ops if o["phase"] == "prefill"]
    if len({o["step"] for o in ops}) != 1 or not f["batch_size"] or not f["input_length"]:
        return {}
    time = max(o["end"] for o in ops) - min(o["start_ps"] for o in ops)
    return {(): 1e12 * f["batch_size"] * f["input_length"] / time} if time else {}


def traffic_rate(run: Run) -> Values:
    kinds = grouped(run.timed_collectives(), "phase", "kind", "axis")
    spans = {key: sum(run.span(key[0], d) for d in {c["device_id"] for c in rows}) for key, rows in kinds.items()}
    return {k: sum(c["message_bytes"] for c in v) * MS / spans[k] for k, v in kinds.items() if spans[k]}


def collective_count_phase(run: Run) -> Values:
    """The steps over which the collectives of all kinds and axes of a phase are counted."""
    devices: dict[Any, set[int]] = defaultdict(set)
    for c in run.collectives:
        devices[c["phase"]].add(c["device_id"])
    steps = {phase: sum(len(run.steps_of(d, phase)) or 1 for d in found) for phase, found in devices.items()}
    return {key: steps[key[0]] for key in grouped(run.collectives, "phase", "kind", "axis")}


def traffic_volume_devices(run: Run) -> Values:
    devices = len({c["device_id"] for c in run.collectives})
    return dict.fromkeys(grouped(run.collectives, "phase", "kind", "axis"), devices)


def traffic_by_link(run: Run) -> Values:
    devices = {d["device_id"]: d for d in run.tables["devices"]}

    def link(source: Row, target: Row) -> str | None:
        if source["chip_id"] is not None and source["chip_id"] == target["chip_id"]:
            return "die"
        return source["link"] if source["host"] == target["host"] or source["link"] == "ici" else "dcn"

    found = _sent(run, lambda _, t: (link(*(devices[d] for d in _ends(t))),))
    sizes: dict[Any, float] = {k: size for k, (size, _) in found.items()}
    for c in run.collectives:
        if c["link"] == "dcn" and c["wire_bytes"] is not None:
            sizes[c["phase"], "dcn"] = sizes.get((c["phase"], "dcn"), 0) + c["wire_bytes"]
    return sizes


def _ends(t: Row) -> tuple[int, int]:
    return t["source_device_id"], t["target_device_id"]


def _sent(run: Run, key: Callable[[Row, Row], tuple[Any, ...]]) -> dict[Any, tuple[int, int]]:
    """Bytes and executions by phase and key of a collective and a pair of devices."""
    sent = grouped(run.tables["traffic"], "instruction_id", "source_device_id")
    found: dict[Any, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for c in run.collectives:
        for t in sent[c["instruction_id"], c["device_id"]]:
            size, executions = found[c["phase"], *key(c, t)]
            found[c["phase"], *key(c, t)] = size + t["bytes"], executions + 1
    return found


METRICS: dict[str, Callable[[Run], Values]] = {
    f.__name__: f
    for f in (
        step_time, tpot, ttft, e2e_latency, throughput, collective_count, collective_frequency, traffic_volume,
        traffic_matrix, traffic_interval, communication_time, exposed_communication, communication_fraction,
        comm_to_compute, overlap_ratio, collective_skew, sync_wait, collective_transfer, traffic_interval_histogram,
        hbm_bandwidth, copy_overhead,
        moe_fraction, device_idle, load_imbalance, host_gap, op_time_share, layer_time, layer_coverage,
        launch_overhead, pipeline_bubble, copy_bandwidth, ici_utilization, roofline, faster_links, faster_chips, mfu,
        top_kernels, gemm_efficiency, straggler_ranking, collective_attribution, prefill_throughput, traffic_rate,
        traffic_by_link,
    )
}  # fmt: skip
"""The newest version of each metric that is computed here."""

COLUMNS: dict[tuple[str, str], Callable[[Run], Mapping[tuple[Any, ...], object]]] = {
    ("pipeline_bubble", "waiting_ratio"): pipeline_waiting,
    ("roofline", "attained"): roofline_attained,
    ("roofline", "bound"): roofline_bound,
    ("mfu", "hlo_mfu"): hlo_mfu,
    ("hbm_bandwidth", "unsized_share"): hbm_unsized,
    ("step_time", "last_step_ms"): last_step,
    ("collective_count", "phase_device_steps"): collective_count_phase,
    ("traffic_volume", "run_devices"): traffic_volume_devices,
    ("tpot", "p90_ms"): lambda run: {k: rank(v, 90) / MS for k, v in _tokens(run).items()},
    ("traffic_interval", "p50_us"): lambda run: {k: rank(v, 50) / US for k, v in _intervals(run).items()},
    ("collective_transfer", "p90_us"): lambda run: {
        k: rank((t for t, _, _ in v), 90) / US for k, v in _transfers(run).items()
    },
    ("collective_transfer", "wait_us"): collective_wait,
    ("collective_transfer", "bus_gbps"): bus_bandwidth,
    ("collective_skew", "p99_us"): lambda run: {k: rank((t for t, _ in v), 99) / US for k, v in _arrivals(run).items()},
    ("collective_skew", "last_device_id"): last_device,
    ("collective_skew", "last_share"): last_share,
    ("straggler_ranking", "last_share"): straggler_share,
    ("collective_attribution", "bound_by"): attributed,
    ("communication_fraction", "min_fraction"): lambda run: {k: min(v) for k, v in _exposed_shares(run).items()},
    ("communication_fraction", "max_fraction"): lambda run: {k: max(v) for k, v in _exposed_shares(run).items()},
    ("communication_fraction", "speedup_limit"): speedup_limit,
    ("overlap_ratio", "window_source"): window_sources,
    ("device_idle", "before_launch_ms"): lambda run: _idle_before(run, "launch"),
    ("device_idle", "before_tick_ms"): lambda run: _idle_before(run, "tick"),
    ("device_idle", "before_collective_ms"): lambda run: _idle_before(run, "collective"),
    ("device_idle", "before_other_ms"): lambda run: _idle_before(run, "other"),
    ("load_imbalance", "compute_imbalance"): compute_imbalance,
    ("load_imbalance", "moe_imbalance"): moe_imbalance,
}
"""Columns beside the values of the metrics in METRICS."""

OF_FITS: dict[tuple[str, str], Callable[[Run], Values]] = {
    ("hockney", "latency_us"): hockney,
    ("hockney", "latency_high_us"): hockney_latency_high,
    ("hockney", "bandwidth_gbps"): hockney_bandwidth,
    ("hockney", "bandwidth_low_gbps"): hockney_bandwidth_low,
    ("hockney", "r2"): hockney_r2,
    ("faster_links", "saved_percent"): faster_links,
}
"""Columns of metrics that need transfer times on a line."""
