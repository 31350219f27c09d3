"""The main numbers of a run a second time, in plain Python over its rows: see the macro run_tiles."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from plain_metrics import (
    METRICS,
    MS,
    Run,
    collective_count,
    exposed_communication,
    grouped,
    prefill_throughput,
    top_kernels,
    window_parts,
)

Numbers = dict[tuple[str, str], float]
"""Value by metric and part (clock, phase, or ''); bytes for traffic, otherwise in the unit of the macro."""


def main_numbers(run: Run) -> Numbers:
    """Every main number that the run has."""
    return {key: value for key, value in _numbers(run) if value is not None}


def _numbers(run: Run) -> Iterator[tuple[tuple[str, str], float | None]]:
    for name in ("ttft", "tpot"):
        for (clock,), value in METRICS[name](run).items():
            yield (name, clock), value
    for value in METRICS["throughput"](run).values():
        yield ("throughput", ""), value
    for (phase,), value in METRICS["mfu"](run).items():
        yield ("mfu", phase), None if value is None else 100 * value
    stepped = {phase for (phase, _), value in METRICS["step_time"](run).items() if value is not None}
    steps: dict[str | None, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for phase, device in run.places():
        for s in run.timed_steps(device, phase):
            steps[phase][s.number].append(s.until - s.start)
    for phase in stepped:
        means = [sum(of) / len(of) / MS for of in steps[phase].values()]
        yield ("step_time", phase or ""), sum(means) / len(means)
    moved: dict[str | None, list[tuple[float, int]]] = defaultdict(list)
    for (phase, device), gbps in METRICS["hbm_bandwidth"](run).items():
        moved[phase].append((gbps or 0, run.busy(phase, device)))
    for phase, rates in moved.items():
        yield ("hbm_bandwidth", phase or ""), sum(r * t for r, t in rates) / sum(t for _, t in rates)
    idle: dict[str | None, list[int]] = defaultdict(list)
    for phase, device in METRICS["device_idle"](run):
        idle[phase].append(device)
    exposed: dict[str | None, float] = defaultdict(float)
    for (phase, *_), value in exposed_communication(run).items():
        exposed[phase] += value or 0
    counts: dict[str | None, float] = defaultdict(float)
    for (phase, *_), value in collective_count(run).items():
        counts[phase] += value or 0
    for phase, devices in idle.items():
        span = sum(run.span(phase, d) for d in devices)
        busy = sum(run.busy(phase, d, steps=run.timed_steps(d, phase)) for d in devices)
        yield ("device_idle", phase or ""), 100 * max(0, 1 - busy / span)
        if phase in exposed:
            yield ("exposed_communication", phase or ""), exposed[phase] / len(devices)
    if "outside" in exposed:
        apart = {device for phase, device, *_ in exposed_communication(run) if phase == "outside"}
        yield ("exposed_communication", "outside"), exposed["outside"] / len(apart)
    for phase, count in counts.items():
        yield ("collective_count", phase or ""), count
        yield ("traffic_volume", phase or ""), _traffic(run, phase)


def other_numbers(run: Run) -> dict[tuple[str, ...], float]:
    """What else docs/agreement.md compares: value by metric and parts, shares in %."""
    found: dict[tuple[str, ...], float] = {}
    for value in prefill_throughput(run).values():
        if value is not None:
            found["prefill_throughput", ""] = value
    shares = {key: share for key, share in top_kernels(run).items() if share is not None}
    for phase in {p for p, *_ in shares}:
        (_, kernel, _), share = max((i for i in shares.items() if i[0][0] == phase), key=lambda i: i[1])
        found["top_kernels", phase or "", kernel] = 100 * share
    times: dict[str, int] = defaultdict(int)
    for o in run.ops:
        times[re.sub(r"(\.\d+)+$", "", o["i"]["name"])] += o["self_ps"]
    if sum(times.values()):
        largest = max(times, key=lambda k: times[k])
        found["top_kernels", "whole capture", largest] = 100 * times[largest] / sum(times.values())
    for (phase, kind, axis), parts in window_parts(run).items():
        for part, time in parts.items():
            found["collective_attribution", phase or "", kind, axis, part] = 100 * time / sum(parts.values())
    size: dict[Any, float] = defaultdict(float)
    for (phase, kind, axis), rows in grouped(run.collectives, "phase", "kind", "axis").items():
        size[phase or "", kind] += _traffic(run, phase, kind, axis) if rows[0]["message_bytes"] is not None else 0
    found |= {("traffic_volume", *key): value for key, value in size.items()}
    found |= {("rank_overlap", part): pairs for part, pairs in _rank_overlap(run).items()}
    layers: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for (phase, layer, _), value in METRICS["layer_time"](run).items():
        if layer is not None:
            layers[phase or ""][layer] += value or 0
    return found | {("layer_time", phase): sum(of.values()) / len(of) for phase, of in layers.items()}


def _rank_overlap(run: Run) -> dict[str, float]:
    """Pairs of a rank and the first of its execution to leave, on one host, and those that overlap in time."""
    reductions = ("all-gather", "all-reduce", "all-to-all", "ragged-all-to-all", "reduce-scatter")
    compared = overlapping = 0
    synchronous = [c for c in run.collectives if not c["is_async"] and c["kind"] in reductions]
    for ranks in grouped(synchronous, "instance", "host").values():
        first, *others = sorted(ranks, key=lambda c: (c["end_ps"], c["device_id"]))
        compared += len(others)
        overlapping += sum(c["start_ps"] <= first["end_ps"] for c in others)
    return {"compared": compared, "overlapping in time": overlapping} if compared else {}


def _traffic(run: Run, phase: str | None, *of: str) -> float:
    """Message bytes per device and step: of each kind and axis over the devices that take part."""
    size: dict[tuple[str, str], int] = defaultdict(int)
    devices: dict[tuple[str, str], set[int]] = defaultdict(set)
    for c in run.collectives:
        key = c["kind"], c["axis"]
        if c["phase"] == phase and c["message_bytes"] is not None and of in ((), key):
            size[key] += c["message_bytes"]
            devices[key].add(c["device_id"])
    return sum(b / sum(len(run.steps_of(d, phase)) or 1 for d in devices[key]) for key, b in size.items())
