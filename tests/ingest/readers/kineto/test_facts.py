"""Compares what the reader gives of real Kineto traces with the facts of an independent decoder."""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracewarehouse.ingest.columns.batches import concatenate, integers
from tracewarehouse.ingest.columns.nesting import Coverage
from tracewarehouse.ingest.columns.profiler_names import CPU_PLANE, LAUNCH_STEP, STEP_LINE, STREAM_PREFIX
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.kineto.reader import KinetoTrace

SHARED = Path(__file__).parents[5] / "shared" / "traces" / "gpu"
FACTS = sorted((SHARED / "facts").glob("*.json.facts.json"))
NCCL = re.compile(r"ncclDevKernel|ncclKernel|ncclSymk|ncclSymDevKernel|rccl|msccl")
KINETO = [path for path in FACTS if not path.name.startswith("nsys")]


@pytest.fixture(params=KINETO or [None], ids=lambda p: p.name.split(".")[0] if p else "none", scope="module")
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param is None:
        pytest.skip(f"no GPU traces in {SHARED}")
    return json.loads(request.param.read_text())


@lru_cache(maxsize=1)
def opened(name: str) -> KinetoTrace:
    return KinetoTrace(CaptureFile(next(SHARED.rglob(f"{name.removesuffix('.gz')}.gz"))))


def device(trace: KinetoTrace) -> Plane:
    [plane] = [p for p in trace.planes if p.name.startswith("/device:GPU:")]
    return plane


def streams(trace: KinetoTrace) -> dict[str, EventBatch]:
    """All events of each stream."""
    plane = device(trace)
    return {
        line.name.removeprefix(STREAM_PREFIX): concatenate(list(trace.batches(plane, line)))
        for line in plane.lines
        if line.name.startswith(STREAM_PREFIX)
    }


def busy_ns(batches: list[EventBatch]) -> int:
    start = np.concatenate([b.start_ps for b in batches])
    duration = np.concatenate([b.duration_ps for b in batches])
    return Coverage(start, start + duration).total // 1000


def test_streams_and_busy_time(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"].split("/")[-1])
    [(number, known)] = facts["devices"].items()
    stats = {s.name: s.value for s in device(trace).stats}
    assert stats["profiler_device"] == number
    found = streams(trace)
    metadata = device(trace).event_metadata
    assert set(found) == set(known["streams"])
    for stream, told in known["streams"].items():
        names = [metadata[i].name for i in found[stream].metadata.tolist()]
        moved = sum(name.startswith(("Memcpy", "Memset")) for name in names)
        assert (len(names) - moved, moved) == (told["kernels"], told["copies_sets"])
        assert int(found[stream].duration_ps.sum()) == told["sum_ns"] * 1000
        assert busy_ns([found[stream]]) == told["busy_ns"]
    assert busy_ns(list(found.values())) == known["busy_all_ns"]
    first = min(int(b.start_ps.min()) for b in found.values())
    last = max(int((b.start_ps + b.duration_ps).max()) for b in found.values())
    assert last - first == known["span_ns"] * 1000
    unlinked = sum(int(integers(_stat(b, "is_unlinked"), len(b))[0].sum()) for b in found.values())
    assert unlinked == known["gpu_events_without_launch"]


def test_steps_are_those_of_the_device(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"].split("/")[-1])
    plane = device(trace)
    found = streams(trace)
    [(_, known)] = facts["devices"].items()
    zero = min(int(b.start_ps.min()) for b in found.values())
    [line] = [line for line in plane.lines if line.name == STEP_LINE]
    [steps] = trace.batches(plane, line)
    marks = [m for m in facts["marks"] if not m["name"].startswith("step[")]  # which is inside another
    assert [plane.event_metadata[i].name for i in steps.metadata.tolist()] == [m["name"] for m in marks]
    numbers = integers(_stat(steps, "step_num"), len(steps))[0]
    host = integers(_stat(steps, "mark_duration_ps"), len(steps))[0]
    for i, mark in enumerate(marks):
        start, end = mark["device_start_ns"] - known["first_ns"], mark["device_end_ns"] - known["first_ns"]
        assert int(steps.start_ps[i]) - zero == start * 1000
        assert int(steps.duration_ps[i]) == (end - start) * 1000
        assert host[i] == mark["host_dur_ns"] * 1000
        own = [(b, integers(_stat(b, LAUNCH_STEP), len(b))[0] == numbers[i]) for b in found.values()]
        assert sum(int(mine.sum()) for _, mine in own) == mark["gpu_events"]
        of_step = [EventBatch(b.metadata[m], b.start_ps[m], b.duration_ps[m]) for b, m in own]
        assert busy_ns(of_step) == mark["busy_ns"]


def test_launches_and_graphs(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"].split("/")[-1])
    [(_, known)] = facts["devices"].items()
    plane = device(trace)
    [line] = [line for line in plane.lines if line.name == "Launches"]
    [ran] = trace.batches(plane, line)
    graphs = [i for i in ran.metadata.tolist() if plane.event_metadata[i].name.startswith("graph ")]
    is_in_pieces = "piecewise" in facts["file"]  # a graph for each layer: the whole step is one execution
    assert len(graphs) == (0 if is_in_pieces else known["graph_launches_with_kernels"])
    assert not is_in_pieces or len(ran) == len(facts["marks"])
    assert trace.rank == facts.get("distributedInfo", {}).get("rank")


def test_exposed_communication_copies_and_collectives(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"].split("/")[-1])
    [(_, known)] = facts["devices"].items()
    plane, found = device(trace), concatenate(list(streams(trace).values()))
    names = np.array([plane.event_metadata[i].name for i in found.metadata.tolist()])
    is_copy = np.array([n.startswith(("Memcpy", "Memset")) for n in names])
    is_nccl = np.array([bool(NCCL.match(n)) for n in names])

    def union(of: Any) -> int:
        return busy_ns([EventBatch(found.metadata[of], found.start_ps[of], found.duration_ps[of])])

    is_compute = ~is_copy & ~is_nccl
    assert int(found.duration_ps[~is_copy].sum()) == known["sum_kernel_ns"] * 1000
    assert union(~is_copy) == known["busy_kernels_ns"]
    assert (union(is_compute), union(is_nccl)) == (known["compute_union_ns"], known["comm_union_ns"])
    exposed = union(is_compute | is_nccl) - union(is_compute)
    assert exposed == known["exposed_comm_ns(comm - compute kernels)"]
    assert known["busy_all_ns"] - union(~is_nccl) == known["exposed_comm_ns(comm - all other gpu work)"]
    assert known["busy_all_ns"] - union(~is_copy) == known["exposed_copy_ns(copies - kernels)"]
    moved, _ = integers(_stat(found, "bytes"), len(found))
    for name, told in known["copies"].items():
        own = names == name
        assert (own.sum(), moved[own].sum(), found.duration_ps[own].sum()) == (
            told["count"], told["bytes"], told["ns"] * 1000
        )  # fmt: skip
    assert sum(told["count"] for told in known["copies"].values()) == is_copy.sum()

    counts: Counter[str] = Counter()
    elements: Counter[tuple[str, ...]] = Counter()
    for i in found.metadata[is_nccl].tolist():
        said = {s.name: str(s.value) for s in plane.event_metadata[i].stats}
        kernel = plane.event_metadata[i].name.split("(")[0]
        counts[kernel] += 1
        for way in ("In", "Out"):
            elements[kernel, said.get("Collective name", ""), said.get("dtype", ""), way] += int(
                said.get(f"{way} msg nelems", 0)
            )
    told_counts: Counter[str] = Counter()
    for told in known["nccl"]:
        told_counts[told["kernel"]] += told["count"]
        for way in ("In", "Out") if told["sized"] else ():
            size = {"BFloat16": 2, "Float": 4, "Int": 4, "Long": 8}[told["dtype"]]
            assert (
                elements[told["kernel"], told["collective"], told["dtype"], way] * size == told[f"{way.lower()}_bytes"]
            )
    assert counts == told_counts
    assert elements.total() == 0 or any(told["sized"] for told in known["nccl"])  # a size that is not known is none


def test_calls_and_annotations_of_the_host(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"].split("/")[-1])
    [plane] = [p for p in trace.planes if p.name == CPU_PLANE]
    count: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for line in plane.lines:
        batch = concatenate(list(trace.batches(plane, line)))
        for i, duration in zip(batch.metadata.tolist(), batch.duration_ps.tolist(), strict=True):
            count[plane.event_metadata[i].name] += 1
            time[plane.event_metadata[i].name] += duration
    for name, told in facts["host_runtime_calls"].items():
        assert (count[name], time[name]) == (told["count"], told["ns"] * 1000)
    numbered: Counter[str] = Counter()
    for name, found in count.items():
        numbered[re.sub(r"\d+", "N", name)] += found
    for name, told in facts["user_annotations"].get("user_annotation", {}).items():
        assert numbered[re.sub(r"\d+", "N", name)] == told


def _stat(batch: EventBatch, name: str) -> Any:
    return next((s for s in batch.stats if s.name == name), None)
