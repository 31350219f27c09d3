"""Says what the reader of a row must know: of the run, of its values, and of the metrics that have none."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracewarehouse.exports.ccl_bench.card import is_of_gpu, sureness
from tracewarehouse.exports.ccl_bench.values import COMPATIBLE, VALUES, ccl_bench_name, metric_of_ours
from tracewarehouse.queries.read_only import literal

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

UNKNOWN = "0 stands for unknown"
"""How what is said of a value begins that CCL-Bench's definition gives as 0 and no trace tells."""
_COUNTING = ("coll_call_num", "straggler", "communication_fraction", "total_communication_time")
"""CCL-Bench's metrics that are 0 if their definitions overlook the collectives of a trace."""
_MARKS = "events of the host named $core.py:331 step, of one version of vLLM"
_SERVERS = "marks of vLLM or SGLang in a Kineto trace"
_SOUGHT = {
    "avg_step_time": (f"{_MARKS}, or iterations in the card", "marks of PyTorch, vLLM or SGLang in a Kineto trace"),
    "ttft": (_MARKS, _SERVERS),
    "tpot": (f"more than one of the {_MARKS}", f"more than one of the {_SERVERS}"),
    "mfu": ("operations that events state, on the chip tpu_v6e", "PyTorch's marks, an A100 or H100, and model sizes"),
    "dominant_kernel_concentration": ("categories that the profiler gives events", "kernels"),
    "average_memory_bandwidth": ("copies in two numbered halves that state bytes", "copies that state bytes"),
    "memory_transfer_overhead": (f"copies in two numbered halves, and {_MARKS}", "copies"),
    "communication_fraction": ("events with a duration", "kernels"),
    "total_communication_time": ("events", "kernels"),
    "compute_comm_overlap": (f"communication during {_MARKS}, or StepMarker", "communication during the host's marks"),
    "bandwidth_utilization": ("collectives that state bytes_accessed", "collectives with sizes in a Kineto trace"),
    "collective_vol": ("events", "a Kineto trace"),
    "mean_sm_coverage": ("kernels of GPUs", "blocks per multiprocessor in a Kineto trace"),
    "moe_fraction": ("kernels of GPUs", "kernels"),
    "load_imbalance_ratio": ("kernels of GPUs", "kernels of several GPUs"),
    "coll_call_num": ("kernels of GPUs", "a Kineto trace"),
    "straggler": ("kernels of GPUs", "Kineto traces of ranks"),
}
"""By metric, what CCL-Bench's definition looks for in the trace of a TPU and in that of a GPU."""


def comment(caveats: Sequence[Mapping[str, Any]], care: Mapping[str, str]) -> str:
    """Lines of comment for the head of a card: what its reader must know."""
    lines = read_with_care(caveats, care)
    return "".join(f"# {line}\n" for line in ["Read with care:", *lines]) if lines else ""


def read_with_care(caveats: Sequence[Mapping[str, Any]], care: Mapping[str, str]) -> list[str]:
    """Lines on what the reader of a row must know: of the run, and one for all values of which the same is said."""
    said = dict.fromkeys(care.values())
    return [*map(_caveat, caveats), *(f"{', '.join(n for n in care if care[n] == s)}: {s}" for s in said)]


def _caveat(row: Mapping[str, Any]) -> str:
    detail = " ".join((row["detail"] or "").split())
    if row["kind"] == "flag":
        return f"{row['name']} ({row['host']}): {detail}" if row["host"] else f"{row['name']}: {detail}"
    what = f"{row['name'] or 'an axis without a name'}={row['value']}"
    return f"{what} is inferred, {sureness(row['confidence'])}{f': {detail}' if detail else ''}"


def cautions(warehouse: Warehouse, run_id: str, values: Mapping[str, float]) -> dict[str, str]:
    """What a reader of a run's published values must know, by published name; most values have nothing special."""
    of_run = f"run_id = {literal(run_id)}"
    counted = f"SELECT count(*) FROM main.collectives WHERE {of_run}"
    facts = f"SELECT device_count, ({counted}) FROM main.runs WHERE {of_run}"
    on_gpu = is_of_gpu(warehouse, run_id)
    [[devices, collectives]] = warehouse.query(facts).rows()
    said = {}
    spans = f"SELECT steps FROM metrics.ccl_avg_step_time WHERE NOT has_marks AND {of_run}"
    for (steps,) in warehouse.query(spans).rows():
        own = _values_of_ours(warehouse, run_id, ("ttft", "tpot"))
        said["avg_step_time"] = (
            "the whole span of the trace, with what the host does before and after the steps, divided by "
            f"{steps} (the iterations of the card, or else the steps), as no event of the host marks a step"
            + "".join(f"; our `{name}` is {text}" for name, text in own.items())
        )
    if not on_gpu and devices > 1:
        said["total_communication_time"] = (
            f"the sum over the {devices} devices, per iteration, so it may be longer than a step; "
            "our `communication_time` is that of each device"
        )
    for name in values:
        if name in _COUNTING and values[name] == 0 and collectives:
            said[name] = f"{UNKNOWN}: there are collectives, and none where CCL-Bench looks"
        if name.startswith("bandwidth_utilization"):
            moved = "elements that go in" if on_gpu else "traffic of the memory, not of links,"
            said[name] = (
                f"{moved} over time, and in GiB/s, though CCL-Bench calls it GB/s; `group_6` is a part of CCL-Bench's "
                "name and no group of devices; our `collective_transfer` has that of the messages"
            )
    unsized = f"""SELECT v.kind FROM metrics.ccl_collective_vol AS v WHERE v.events = 0 AND v.{of_run}
                  AND v.kind IN (SELECT c.kind FROM main.collectives AS c WHERE c.{of_run}) ORDER BY ALL"""
    kinds = [kind for (kind,) in warehouse.query(unsized).rows()]
    for kind in kinds:
        said[ccl_bench_name("collective_vol", kind)] = (
            f"{UNKNOWN}: there are {kind}s, and no bytes where CCL-Bench looks"
        )
    if kinds:
        total = ccl_bench_name("collective_vol", "total")
        what = "it leaves out" if values.get(total) else f"{UNKNOWN}: no bytes are known of"
        said[total] = f"{what} the {' and '.join(f'{kind}s' for kind in kinds)}"
    return {name: sentence for name, sentence in said.items() if name in values}


def _values_of_ours(warehouse: Warehouse, run_id: str, metrics: Sequence[str]) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    rows = warehouse.values(run_id, metrics=metrics).dicts() if metrics else []
    for row in sorted(rows, key=lambda row: (row["metric"], row["dimensions"])):  # they come in any order
        of = ", ".join(f"{name} {value}" for name, value in json.loads(row["dimensions"]).items())
        texts.setdefault(row["metric"], []).append(f"{row['value']:.6g} {row['unit']}{f' ({of})' if of else ''}")
    return {n: ", ".join(t) if len(t) <= 2 else f"{len(t)} values, in `{VALUES}`" for n, t in texts.items()}


def without_value(warehouse: Warehouse, run_id: str, known: Collection[str]) -> list[tuple[str, str]]:
    """Names of CCL-Bench's metrics that are not known, each with what its definition looks for and our value."""
    on_gpu = is_of_gpu(warehouse, run_id)
    lacking = [name for name in COMPATIBLE if name not in known]
    ours = {name: metric_of_ours(warehouse.definitions.metric(f"ccl_{name}", 1).header.about)[0] for name in lacking}
    values = _values_of_ours(warehouse, run_id, [*dict.fromkeys(filter(None, ours.values()))])
    said = []
    for name in lacking:
        own = f"; ours, `metrics.{ours[name]}`, has {values.get(ours[name], 'none either')}" if ours[name] else ""
        said.append((name, f"CCL-Bench looks for {_SOUGHT[name][on_gpu]}{own}."))
    return said
