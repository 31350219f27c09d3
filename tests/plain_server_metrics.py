"""Metrics of a server's batches, of memory and of counters a second time, in plain Python over a run's rows."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from statistics import mean
from typing import Any

from plain_metrics import US, Row, Run, Values, grouped, timed_steps_of


def padding_waste(run: Run) -> Values:
    known = [b for b in run.tables["step_batches"] if b["padded_tokens"] and b["scheduled_tokens"] is not None]
    return {
        key: 1 - sum(b["scheduled_tokens"] for b in rows) / sum(b["padded_tokens"] for b in rows)
        for key, rows in grouped(known, "kind").items()
    }


def _by_step(run: Run) -> dict[int, list[Row]]:
    return {s: rows for (s,), rows in grouped(run.tables["step_batches"], "step").items() if s is not None}


def contexts(run: Run) -> dict[int, tuple[int, int, int, int]]:
    """Requests, tokens of context, tokens and time of each step that decodes alone and has an end."""
    found = {}
    timed = timed_steps_of(run)
    for step, rows in _by_step(run).items():
        if (
            step not in timed
            or timed[step][0] in ("prefill", "mixed")
            or any((b["prefill_tokens"] or 0) > 0 for b in rows)
        ):
            continue
        if all(b["requests"] is not None and b["min_kv_length"] is not None and b["decode_tokens"] for b in rows):
            context = sum(b["requests"] * b["min_kv_length"] for b in rows)
            tokens = sum(b["decode_tokens"] for b in rows)
            found[step] = sum(b["requests"] for b in rows), context, tokens, timed[step][1]
    return found


def _stretches(run: Run) -> list[list[int]]:
    """Consecutive steps of `contexts` in which the same requests go on."""
    before = {}
    for rows in grouped(run.tables["step_batches"], "rank").values():
        ordered = sorted(rows, key=lambda b: b["position"])
        for last, b in pairwise(ordered):
            known = None not in (last["requests"], last["min_kv_length"], b["requests"], b["min_kv_length"])
            goes_on = known and (b["requests"], b["min_kv_length"]) == (last["requests"], last["min_kv_length"] + 1)
            before[b["rank"], b["position"]] = last["step"] if goes_on else None
    found: list[list[int]] = []
    starts = {
        s.number: min(x.start for x in run.all_device_steps if x.number == s.number) for s in run.all_device_steps
    }
    for step in sorted(contexts(run), key=lambda s: starts[s]):
        last_step = found[-1][-1] if found else None
        continued = {before.get((b["rank"], b["position"])) for b in _by_step(run)[step]}
        if last_step is not None and continued == {last_step} and contexts(run)[step][0] == contexts(run)[last_step][0]:
            found[-1].append(step)
        else:
            found.append([step])
    return [steps for steps in found if len(steps) > 2]


def _lines(run: Run) -> dict[int, tuple[Fraction, Fraction]]:
    """Slope and lowest intercept by the number of requests."""
    stretches: dict[int, list[list[tuple[int, int]]]] = defaultdict(list)
    for steps in _stretches(run):
        stretches[contexts(run)[steps[0]][0]].append([(contexts(run)[s][1], contexts(run)[s][3]) for s in steps])
    found = {}
    for requests, of_requests in stretches.items():
        if sum(len(points) for points in of_requests) < 6:
            continue
        means = [tuple(Fraction(sum(p[at] for p in points), len(points)) for at in (0, 1)) for points in of_requests]
        moved = [(x - mx, y - my) for points, (mx, my) in zip(of_requests, means, strict=True) for x, y in points]
        slope = sum(x * y for x, y in moved) / sum(x * x for x, _ in moved)
        found[requests] = slope, min(my - slope * mx for mx, my in means)
    return found


def decode_cost_per_context_token(run: Run) -> Values:
    return {(requests,): float(slope) / US for requests, (slope, _) in _lines(run).items()}


def decode_base(run: Run) -> Values:
    """Beside decode_cost_per_context_token: the time without context."""
    return {(requests,): float(base) / US for requests, (_, base) in _lines(run).items()}


def _cache(run: Run) -> dict[Any, list[tuple[int, int]]]:
    """Bytes read and written of each device in each decode step with attention kernels."""
    if len({b["rank"] for b in run.tables["step_batches"]}) != 1:
        return {}
    token_bytes: dict[Any, int] = defaultdict(int)
    for o in run.ops:
        if o["i"]["opcode"] == "custom-call" and o["step"] is not None:
            token_bytes[o["device_id"], o["step"]] += 2 * 4 * 2 * 128  # of the shape that every kernel here has
    found: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for (device, step), size in token_bytes.items():
        if step in contexts(run):
            _, context, tokens, _ = contexts(run)[step]
            found[(device,)].append((size * context, size * tokens))
    return found


def kv_cache_traffic(run: Run) -> Values:
    return {key: mean(read for read, _ in v) for key, v in _cache(run).items()}


def kv_cache_written(run: Run) -> Values:
    """Beside kv_cache_traffic: bytes written."""
    return {key: mean(written for _, written in v) for key, v in _cache(run).items()}


def prefill_throughput(run: Run) -> Values:
    steps = {key: rows for (key,), rows in grouped([o for o in run.ops if o["phase"] == "prefill"], "step").items()}
    time = {s: max(o["end"] for o in rows) - min(o["start_ps"] for o in rows) for s, rows in steps.items()}
    tokens = {}
    for step, rows in _by_step(run).items():
        alone = all(b["prefill_tokens"] is not None and not b["decode_tokens"] for b in rows)
        if step in time and alone and sum(b["prefill_tokens"] for b in rows):
            tokens[step] = sum(b["prefill_tokens"] for b in rows)
    if not tokens and len(time) == 1 and run.facts["batch_size"] and run.facts["input_length"]:
        tokens = dict.fromkeys(time, run.facts["batch_size"] * run.facts["input_length"])
    total = sum(time[s] for s in tokens)
    return {(): 1e12 * sum(tokens.values()) / total} if total else {}


def memory_in_use(run: Run) -> Values:
    stats = {e: {s["name"]: s for s in rows} for (e,), rows in grouped(run.tables["event_stats"], "event_id").items()}
    found: dict[Any, list[int]] = defaultdict(list)
    for e in run.tables["host_events"]:
        of = stats.get(e["event_id"], {})
        if e["name"] in ("MemoryAllocation", "MemoryDeallocation") and "bytes_allocated" in of:
            number = str(of["index_on_host"]["int_value"]) if "index_on_host" in of else None
            name = of["allocator_name"]["string_value"] if "allocator_name" in of else number
            reserved = of["bytes_reserved"]["int_value"] if "bytes_reserved" in of else 0
            found[e["host"], name].append(of["bytes_allocated"]["int_value"] + reserved)
    return {key: max(v) for key, v in found.items()}


def unit_utilization(run: Run) -> Values:
    found: dict[Any, list[float]] = defaultdict(list)
    for s in run.tables["plane_stats"]:
        unit, ending = s["name"].removesuffix("_utilization_percent"), s["name"].endswith("_utilization_percent")
        value = s["int_value"] if s["double_value"] is None else s["double_value"]
        if ending and value is not None:
            found[s["host"], None, unit].append(value / 100)
    values = {key: max(v) for key, v in found.items()}
    samples: dict[Any, list[float]] = defaultdict(list)
    for c in run.tables["counters"]:
        if c["name"].endswith(": % util") and c["value"] is not None:
            samples[c["host"], c["device_id"], c["name"].removesuffix(": % util")].append(c["value"] / 100)
    return values | {key: sum(v) / len(v) for key, v in samples.items()}


COLUMNS = {
    ("padding_waste", "padding_share"): padding_waste,
    ("decode_cost_per_context_token", "us_per_token"): decode_cost_per_context_token,
    ("decode_cost_per_context_token", "base_us"): decode_base,
    ("kv_cache_traffic", "read_bytes_per_step"): kv_cache_traffic,
    ("kv_cache_traffic", "written_bytes_per_step"): kv_cache_written,
    ("prefill_throughput", "prompt_tokens_per_s"): prefill_throughput,
    ("memory_in_use", "peak_bytes"): memory_in_use,
    ("unit_utilization", "utilization"): unit_utilization,
}
"""Columns of metrics that need batches, allocations or counters."""
