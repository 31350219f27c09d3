"""Compares what the reader gives of kept exports with the facts of an independent decoder."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracewarehouse.ingest.columns.batches import concatenate, integers
from tracewarehouse.ingest.columns.nesting import Coverage
from tracewarehouse.ingest.columns.profiler_names import LAUNCH_STEP, STEP_LINE, STREAM_PREFIX
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.nsys.reader import NsysTrace

SHARED = Path(__file__).parents[5] / "shared" / "traces" / "gpu"
FACTS = sorted((SHARED / "facts").glob("nsys*.facts.json"))
COPIES = {"HtoD": ("Host-to-Device", "1"), "DtoH": ("Device-to-Host", "2"), "DtoD": ("Device-to-Device", "8")}
"""How the facts call the kinds of copies; the number where the export does not name them."""


@pytest.fixture(params=FACTS or [None], ids=lambda p: p.name.split(".")[0] if p else "none", scope="module")
def facts(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param is None:
        pytest.skip(f"no exports of Nsight Systems in {SHARED}")
    return json.loads(request.param.read_text())


@lru_cache(maxsize=1)
def opened(name: str) -> NsysTrace:
    return NsysTrace(CaptureFile(SHARED / name))


def devices(trace: NsysTrace, facts: dict[str, Any]) -> list[tuple[Plane, dict[str, Any]]]:
    """The plane of each device and its facts, by the process and ordinal that the plane keeps."""
    planes = {}
    for plane in trace.planes:
        stats = {s.name: s.value for s in plane.stats}
        if plane.name.startswith("/device:GPU:"):
            planes[f"pid {stats['process']} dev {stats['cuda_ordinal']}"] = plane
    assert set(planes) == set(facts["devices"])
    return [(planes[name], known) for name, known in facts["devices"].items()]


def streams(trace: NsysTrace, plane: Plane) -> dict[str, EventBatch]:
    """All events of each stream."""
    return {
        line.name.removeprefix(STREAM_PREFIX): concatenate(list(trace.batches(plane, line)))
        for line in plane.lines
        if line.name.startswith(STREAM_PREFIX)
    }


def names(plane: Plane, batch: EventBatch) -> list[str]:
    return [plane.event_metadata[i].name for i in batch.metadata.tolist()]


def busy_ns(start: Any, end: Any) -> int:
    return Coverage(start, end).total // 1000


def test_streams_and_busy_time(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"])
    for plane, known in devices(trace, facts):
        found = streams(trace, plane)
        assert set(found) == set(known["streams"])
        starts, ends, kinds = [], [], []
        for stream, told in known["streams"].items():
            batch = found[stream]
            is_graph = np.array([n.startswith("CUDA graph") for n in names(plane, batch)])
            kept = np.flatnonzero(~is_graph)  # the facts count kernels, copies and sets
            named = [names(plane, batch)[i] for i in kept.tolist()]
            kind = ["set" if n.startswith("Memset") else "copy" if n.startswith("Memcpy") else "kernel" for n in named]
            assert (kind.count("kernel"), len(kind) - kind.count("kernel")) == (told["kernels"], told["copies_sets"])
            assert sum("nccl" in n for n in named) == told["nccl"]
            start, end = batch.start_ps[kept], (batch.start_ps + batch.duration_ps)[kept]
            assert int((end - start).sum()) == told["sum_ns"] * 1000
            assert busy_ns(start, end) == told["busy_ns"]
            starts.append(start)
            ends.append(end)
            kinds += ["nccl" if "nccl" in n else k for n, k in zip(named, kind, strict=True)]
        start, end, of = np.concatenate(starts), np.concatenate(ends), np.array(kinds)
        assert (int(start.min()), int(end.max())) == (known["first"] * 1000, known["last"] * 1000)
        assert busy_ns(start, end) == known["busy_all_ns"]
        is_nccl, is_compute = of == "nccl", of == "kernel"
        assert busy_ns(start[is_nccl | is_compute], end[is_nccl | is_compute]) == known["busy_kernels_ns"]
        assert busy_ns(start[is_compute], end[is_compute]) == known["compute_union_ns"]
        assert busy_ns(start[is_nccl], end[is_nccl]) == known["comm_union_ns"]
        exposed = known["busy_kernels_ns"] - known["compute_union_ns"]
        assert exposed == known["exposed_comm_ns(comm - compute kernels)"]


def test_copies_and_unlinked_kernels(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"])
    for plane, known in devices(trace, facts):
        found: dict[str, Counter[str]] = {}
        unlinked = 0
        for batch in streams(trace, plane).values():
            size, _ = integers(_stat(batch, "bytes"), len(batch))
            unlinked += int(integers(_stat(batch, "is_unlinked"), len(batch))[0].sum())
            for name, length, count in zip(names(plane, batch), batch.duration_ps.tolist(), size.tolist(), strict=True):
                if name.startswith("Memcpy"):
                    found.setdefault(name.split()[1], Counter()).update(count=1, bytes=count, ns=length // 1000)
        assert unlinked == known["gpu_events_without_launch"]
        told = {kind: known["copies"].get(n) or known["copies"].get(i) for kind, (n, i) in COPIES.items()}
        assert {k: dict(v) for k, v in found.items()} == {k: v for k, v in told.items() if v}


def test_names_of_kernels(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"])
    for plane, known in devices(trace, facts):
        total: Counter[str] = Counter()
        for batch in streams(trace, plane).values():
            for name, length in zip(names(plane, batch), batch.duration_ps.tolist(), strict=True):
                total[name] += length // 1000
        assert {n: total[n] for n in known["top_kernels_ns"]} == known["top_kernels_ns"]


def test_calls_of_the_host(facts: dict[str, Any]) -> None:
    trace = opened(facts["file"])
    [host] = [p for p in trace.planes if p.name == "/host:CPU"]
    found: Counter[str] = Counter()
    nvtx = 0
    for line in host.lines:
        for batch in trace.batches(host, line):
            found.update(name.split("_v")[0] for name in names(host, batch))
            nvtx += len(batch)
    calls = {name: told["count"] for name, told in facts["runtime_calls"].items()}
    assert {name: found[name] for name in calls} == calls
    ranges = facts["nvtx_types"]["59"]
    assert nvtx == sum(found.values()) == ranges + facts["tables"]["CUPTI_ACTIVITY_KIND_RUNTIME"]


def test_the_session(facts: dict[str, Any]) -> None:
    assert opened(facts["file"]).origin_ns == facts["session"][0]["utcEpochNs"]


def test_the_steps_of_the_synthetic_export() -> None:
    """Its truth follows from closed forms; windows there count kernels and graphs, here also the copy 20 us before."""
    path = SHARED / "facts" / "nsys-synthetic-tp2.truth.json"
    if not path.exists():
        pytest.skip(f"no exports of Nsight Systems in {SHARED}")
    trace = opened("nsys-synthetic-tp2.sqlite.gz")
    for plane, truth in zip(trace.planes, json.loads(path.read_text())["ranks"].values(), strict=False):
        stats = {s.name: s.value for s in plane.stats}
        assert (stats["process"], stats["world_size"]) == (truth["pid"], 2)
        [line] = [x for x in plane.lines if x.name == STEP_LINE]
        [steps] = trace.batches(plane, line)
        found = streams(trace, plane)
        for i, step in enumerate(truth["steps"]):
            assert names(plane, steps)[i] == step["name"]
            host = integers(_stat(steps, "mark_start_ps"), 4)[0][i], integers(_stat(steps, "mark_duration_ps"), 4)[0][i]
            assert (host[0], host[0] + host[1]) == tuple(at * 1000 for at in step["host"])
            window = int(steps.start_ps[i]), int(steps.start_ps[i] + steps.duration_ps[i])
            assert window == ((step["device_start"] - 20_000) * 1000, step["device_end"] * 1000)
            of_step = [(b, integers(_stat(b, LAUNCH_STEP), len(b))[0] == i) for b in found.values()]
            kernels = [
                (name, start, start + length)
                for batch, mine in of_step
                for name, start, length, own in zip(
                    names(plane, batch), batch.start_ps.tolist(), batch.duration_ps.tolist(), mine.tolist(), strict=True
                )
                if own and not name.startswith("Memcpy")
            ]
            whole = [k for k in kernels if k[0].startswith("CUDA graph")]
            parts = [k for k in kernels if k not in whole]
            assert min(k[1] for k in kernels) == step["device_start"] * 1000
            assert (len(parts), sum("nccl" in k[0] for k in parts)) == (step["kernels"], step["n_all_reduce"])
            assert [[s // 1000, e // 1000] for _, s, e in whole] == ([step["graph"]] if step["graph"] else [])


def _stat(batch: EventBatch, name: str) -> Any:
    return next((s for s in batch.stats if s.name == name), None)
