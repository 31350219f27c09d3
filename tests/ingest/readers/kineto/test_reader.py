"""Small Kineto traces: the forms of old and new versions, of CUDA and ROCm, and files that are no traces."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import tempfile
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from kineto_reference import read

from tracewarehouse.ingest.columns.batches import concatenate
from tracewarehouse.ingest.columns.records import EventBatch, Plane
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.ingest.processes.pool import Processes
from tracewarehouse.ingest.readers.chrome.reader import ChromeTrace
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.kineto import reader
from tracewarehouse.ingest.readers.kineto.events import Table
from tracewarehouse.ingest.readers.kineto.reader import KinetoTrace

Event = dict[str, Any]


def event(cat: str, name: str, tid: int, ts: float, dur: float, pid: int = 9, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(ts: float, dur: float, correlation: int, name: str = "gemm", stream: int = 7, **args: Any) -> Event:
    given = {"device": 0, "stream": stream, "correlation": correlation} | args
    return event("kernel", name, stream, ts, dur, 0, **given)


def call(ts: float, correlation: int, name: str = "cudaLaunchKernel", tid: int = 9) -> Event:
    return event("cuda_runtime", name, tid, ts, 1, correlation=correlation)


def write(folder: Path, events: list[Event], **members: Any) -> Path:
    path = folder / "t.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1} | members | {"traceEvents": events}))
    return path


def opened(folder: Path, events: list[Event], **members: Any) -> KinetoTrace:
    return KinetoTrace(CaptureFile(write(folder, events, **members)))


def line(trace: KinetoTrace, plane: int, name: str) -> tuple[Plane, EventBatch]:
    found = trace.planes[plane]
    [of_name] = [x for x in found.lines if x.name == name]
    return found, concatenate(list(trace.batches(found, of_name)))


def said(trace: KinetoTrace, name: str = "Stream #7") -> list[tuple[str, dict[str, Any]]]:
    """Name and facts of each event of a stream."""
    plane, batch = line(trace, 0, name)
    metadata = [plane.event_metadata[i] for i in batch.metadata.tolist()]
    return [(m.name, {s.name: s.value for s in m.stats}) for m in metadata]


def test_marks_on_a_stream_stand_beside_it_and_threads_among_the_hosts(tmp_path: Path) -> None:
    trace = opened(tmp_path, [kernel(5, 1, 1), event("gpu_user_annotation", "step", 7, 4, 9, 0), call(1, 1)])
    assert [x.name for x in trace.planes[0].lines][:2] == ["Stream #7", "Annotations #7"]
    assert [x.name for x in trace.planes[1].lines] == ["thread 9"]


def test_times_are_read_from_their_digits(tmp_path: Path) -> None:
    """A double cannot hold this time in nanoseconds; the base is the time from which it counts."""
    text = '{"schemaVersion":1,"baseTimeNanoseconds":1711964646000000000,"traceEvents":[%s]}'
    one = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":4458676522690.%s,"dur":%s,"args":{"device":0}}'
    path = tmp_path / "t.json"
    path.write_text(text % ",".join((one % ("655", "0.001"), one % ("656", "1"), one % ("9", "0"))))
    trace = KinetoTrace(CaptureFile(path))
    _, batch = line(trace, 0, "Stream #7")
    assert batch.start_ps.tolist() == [0, 1000, 245000]
    assert batch.duration_ps.tolist() == [1000, 1_000_000, 0]
    [start] = [s.value for s in trace.planes[-1].stats if s.name == "profile_start_time"]
    assert start == 1711964646000000000 + 4458676522690655


def test_microseconds_since_1970_need_no_base(tmp_path: Path) -> None:
    trace = opened(tmp_path, [kernel(1661203463029566, 7, 1), kernel(1661203463029580, 3, 2)])
    _, batch = line(trace, 0, "Stream #7")
    assert batch.start_ps.tolist() == [0, 14_000_000]
    assert trace.planes[-1].stats[0].value == 1661203463029566000


def test_a_kernel_is_of_the_operator_and_the_modules_around_its_launch(tmp_path: Path) -> None:
    """The kernel runs long after; a second operator without a module is on another thread."""
    inputs = {"Input Dims": [[4, 8], [8, 8]], "Input type": ["float", "float"]}
    events = [
        event("python_function", "nn.Module: LlamaDecoderLayer_3", 9, 10, 50),
        event("python_function", "model.py(7): forward", 9, 11, 40),
        event("python_function", "nn.Module: LlamaMLP_3", 9, 12, 30),
        event("cpu_op", "aten::linear", 9, 13, 20),
        event("cpu_op", "aten::mm", 9, 14, 10, **inputs),
        call(15, 1),
        event("cpu_op", "aten::add", 8, 13, 9),
        call(14, 2, tid=8),
        kernel(900, 5, 1, "nvjet"),
        kernel(950, 5, 2, "add"),
        kernel(960, 5, 0, "lost"),
    ]
    assert said(opened(tmp_path, events)) == [
        (
            "nvjet",
            {
                "tf_op": "LlamaDecoderLayer_3/LlamaMLP_3/aten::mm",
                "Input Dims": "[[4,8],[8,8]]",
                "Input type": '["float","float"]',
            },
        ),
        ("add", {"tf_op": "aten::add"}),
        ("lost", {}),
    ]


def test_a_launch_of_the_backward_pass_is_of_the_modules_of_its_forward_operator(tmp_path: Path) -> None:
    events = [
        event("python_function", "nn.Module: Block_1", 9, 10, 10),
        event("cpu_op", "aten::mm", 9, 11, 5, **{"Sequence number": 7}),
        event(
            "cpu_op", "autograd::engine::evaluate_function: MmBackward0", 8, 30, 10,
            **{"Sequence number": 7, "Fwd thread id": 1},
        ),
        event("cpu_op", "aten::mm", 8, 32, 5),
        call(33, 1, tid=8),
        kernel(40, 5, 1),
    ]  # fmt: skip
    assert said(opened(tmp_path, events)) == [("gemm", {"tf_op": "Block_1/MmBackward0/aten::mm"})]


@pytest.mark.parametrize("name", ["External id", "external id"])
def test_external_ids_name_the_operator_where_the_call_is_not_recorded(tmp_path: Path, name: str) -> None:
    """The third kernel has a call; the fourth names an operator from before the recording."""
    events = [
        event("user_annotation", "decode 4", 9, 5, 40), event("python_function", "nn.Module: Block_1", 9, 10, 10),
        event("cpu_op", "aten::mm", 9, 11, 5, **{name: 21}), event("cpu_op", "aten::add", 9, 30, 9, **{name: 22}),
        call(31, 3), kernel(100, 5, 1, **{name: 21}), kernel(110, 5, 2, "add", **{name: 22}),
        kernel(120, 5, 3, "mul", **{name: 21}), kernel(130, 5, 9, "lost", **{name: 20}),
    ]  # fmt: skip
    trace = opened(tmp_path, events)
    paths = [(kernel_name, facts.get("tf_op")) for kernel_name, facts in said(trace)]
    assert paths == [("gemm", "Block_1/aten::mm"), ("add", "aten::add"), ("mul", "aten::add"), ("lost", None)]
    assert trace.findings[0][1].startswith("1 of 4 kernels")
    assert trace.warnings == ["2 kernels, copies and sets lack their call: it counts from its operator's start"]
    _, steps = line(trace, 0, "Steps")
    assert (steps.start_ps.tolist(), steps.duration_ps.tolist()) == ([95_000_000], [25_000_000])


def captured(at: float, operators: list[tuple[str, str, int]], tid: int = 9, first: int = 100) -> list[Event]:
    """The capture of a graph: a module, an operator and the stream's thread for each of its calls."""
    events = [call(at, 0, "cudaStreamBeginCapture_v10000")]
    for i, (module, operator, thread) in enumerate(operators):
        events += [
            event("python_function", f"nn.Module: {module}", thread, at + 10 * i + 1, 9),
            event("cpu_op", operator, thread, at + 10 * i + 2, 7), call(at + 10 * i + 4, first + i, tid=thread),
        ]  # fmt: skip
    return [*events, call(at + 10 * len(operators) + 1, 0, "cudaStreamEndCapture_v10000", tid=tid)]


def replay(at: float, correlation: int, names: str, **args: Any) -> list[Event]:
    kernels = [kernel(at + 10 * i + 5, 5, correlation, name, **args) for i, name in enumerate(names)]
    return [call(at, correlation, "cudaGraphLaunch"), *kernels]


LAYERS = [
    ("Layer_0", "aten::mm", 9),
    ("Layer_0", "aten::add", 8),
    ("Layer_1", "aten::mm", 9),
    ("Layer_1", "aten::add", 8),
]


def paths_of(folder: Path, events: list[Event]) -> list[str]:
    return [facts.get("tf_op", "") for _, facts in said(opened(folder, events))]


FOUND = [f"{module}/{operator}" for module, operator, _ in LAYERS]


class TestCaptures:
    """Kernels a and b are those of aten::mm and aten::add."""

    def test_a_replay_has_the_modules_of_its_capture(self, tmp_path: Path) -> None:
        """Two threads launch, as the backward pass does; what runs at once meanwhile is not captured."""
        events = [*captured(0, LAYERS), call(12, 7, tid=5), kernel(14, 2, 7, "other"), *replay(100, 1, "abab"),
                  *replay(200, 2, "abab")]  # fmt: skip
        assert paths_of(tmp_path, events) == ["", *FOUND, *FOUND]

    def test_nodes_of_a_graph_are_in_the_order_of_the_capture(self, tmp_path: Path) -> None:
        """Branches of a graph run at the same time: the second node begins last."""
        kernels = [kernel(105 + start, 3, 1, name, **{"graph node id": 50 + node})
                   for start, (name, node) in enumerate((("a", 0), ("a", 2), ("b", 3), ("b", 1)))]  # fmt: skip
        events = [*captured(0, LAYERS), call(100, 1, "cudaGraphLaunch"), *kernels]
        assert paths_of(tmp_path, events) == [FOUND[i] for i in (0, 2, 3, 1)]

    @pytest.mark.parametrize("names", ["aba", "ababa"])
    def test_a_capture_with_other_many_calls_is_not_that_of_the_graph(self, tmp_path: Path, names: str) -> None:
        assert set(paths_of(tmp_path, [*captured(0, LAYERS), *replay(100, 1, names)])) == {""}

    def test_calls_that_never_ran_are_no_capture(self, tmp_path: Path) -> None:
        events = [e for e in captured(0, LAYERS) if "Capture" not in e["name"]]
        assert set(paths_of(tmp_path, [*events, *replay(100, 1, "abab")])) == {""}

    def test_a_capture_whose_operators_launch_other_kernels_is_refused(self, tmp_path: Path) -> None:
        """Without a graph a is of aten::add, so the graph is another one with four kernels."""
        eager = [event("cpu_op", "aten::add", 9, 80, 9), call(81, 60), kernel(90, 2, 60, "a")]
        assert paths_of(tmp_path, [*captured(0, LAYERS), *eager, *replay(100, 1, "abab")]) == ["aten::add", *[""] * 4]

    def test_of_two_captures_alike_that_which_agrees_counts(self, tmp_path: Path) -> None:
        swapped = [(module, {"aten::mm": "aten::add", "aten::add": "aten::mm"}[op], 9) for module, op, _ in LAYERS]
        events = [*captured(0, LAYERS), *captured(300, swapped, first=200)]
        eager = [event("cpu_op", "aten::mm", 9, 80, 9), call(81, 60), kernel(90, 2, 60, "a")]
        unknown = paths_of(tmp_path, [*events, *replay(500, 1, "abab")])
        assert set(unknown) == {""}
        assert paths_of(tmp_path, [*events, *eager, *replay(500, 1, "abab")])[1:] == FOUND


def test_the_operations_of_a_product_belong_to_one_of_its_kernels(tmp_path: Path) -> None:
    """Of 2 x 3 by 3 x 5 a kernel of a split product computes, though what adds up its parts takes longer."""
    # linear [-------------)                                              holds both, and adds nothing
    #   mm     [-----)  mm [--)  add [--)   copy_ [--)  mm, of a graph
    dims = {"Input Dims": [[2, 3], [3, 5]], "Input type": ["float", "float"]}
    added = {"Input Dims": [[4], [4], []], "Input type": ["float", "float", "Scalar"]}
    events = [
        event("cpu_op", "aten::linear", 9, 0, 30, **{"Input Dims": [[2, 3], [5, 3]], "Input type": ["float", "float"]}),
        *(event("cpu_op", "aten::mm", 9, at, 9, **dims) for at in (1, 11)),
        event("cpu_op", "aten::add", 9, 40, 9, **added),
        event("cpu_op", "aten::add", 9, 50, 9, **added),
        *(call(at, number) for number, at in enumerate((2, 4, 6, 12, 14, 41, 51, 53), 1)),
        event("gpu_memset", "Memset (Device)", 7, 100, 1, 0, device=0, stream=7, correlation=1, bytes=4),
        kernel(110, 20, 2, "nvjet_splitk"),
        kernel(130, 30, 3, "splitKreduce_kernel"),
        kernel(160, 10, 4, "first"),
        kernel(170, 40, 5, "second"),
        kernel(210, 10, 6, "adds"),
        kernel(220, 10, 7, "adds"),
        kernel(230, 20, 8, "adds too"),
        kernel(250, 20, 9, "replayed"),
        event("cpu_op", "aten::mm", 9, 60, 9, **dims),
        call(61, 10),
        kernel(270, 9, 10, "cutlass_80_tensorop_s1688gemm_64x64"),
    ]
    ingest_one(write(tmp_path, events), tmp_path / "w")
    [path] = (tmp_path / "w").rglob("instructions.parquet")
    rows = pq.read_table(path, columns=["name", "flops", "bytes_accessed", "shape", "operand_dtype"]).to_pylist()
    found = {tuple(row.values()) for row in rows if row["name"] in {e["name"] for e in events if e["pid"] == 0}}
    product = "f32[2,5]", "f32"
    assert found == {
        ("Memset (Device)", None, None, None, None),
        ("nvjet_splitk", 60, None, *product),
        ("splitKreduce_kernel", 0, None, *product),
        ("first", 0, None, *product),
        ("second", 60, None, *product),
        ("cutlass_80_tensorop_s1688gemm_64x64", 60, 4 * (6 + 15 + 10), "f32[2,5]", "tf32"),
        ("adds", 4, 48, None, None),
        ("adds", None, None, None, None),  # with another kernel
        ("adds too", None, None, None, None),
        ("replayed", None, None, None, None),  # by no call in the trace
    }


class TestCoalesced:
    """Calls say what they move, and one kernel under `nccl:coalesced` does it all."""

    def moved(self, folder: Path, calls: list[tuple[float, str, int, str]]) -> dict[str, Any]:
        """What a kernel says whose mark of the thread 9 begins at 50; of each call start, name, elements and type."""
        told = [
            (ts, {"Collective name": name, "In msg nelems": count, "Out msg nelems": count}, {"dtype": dtype})
            for ts, name, count, dtype in calls
        ]
        events = [
            *(event("cpu_op", "record_param_comms", 9, ts, 2, **a, **(b if b["dtype"] else {})) for ts, a, b in told),
            event("user_annotation", "nccl:coalesced", 9, 50, 9), call(52, 1),
            kernel(80, 5, 1, "ncclDevKernel_SendRecv"),
        ]  # fmt: skip
        [(_, facts)] = said(opened(folder, events))
        return facts

    def test_a_kernel_moves_what_its_calls_send(self, tmp_path: Path) -> None:
        both = [(10, "send", 8, "Float"), (20, "recv", 5, "Float"), (30, "send", 4, "Float"), (40, "wait", 0, "Byte")]
        sums = {"In msg nelems": "12", "Out msg nelems": "12", "dtype": "Float"}
        assert self.moved(tmp_path, both) == {"annotation": "nccl:coalesced", **sums}
        assert self.moved(tmp_path, both[1:2])["In msg nelems"] == "5"
        facts = self.moved(tmp_path, [*both, (45, "send", 1, "Half")])
        assert (facts["In msg nelems"], facts["dtype"]) == ("[12,1]", '["Float","Half"]')

    @pytest.mark.parametrize(
        "calls",
        [
            [(10, "_allgather_base", 8, "Float"), (20, "allreduce", 8, "Float")],
            [(10, "send", 8, "Float"), (20, "send", 8, "")],
            [(10, "send", 10**18, "Float")],
            [(60, "send", 8, "Float")],
            [],
        ],
    )
    def test_other_calls_have_no_sum(self, tmp_path: Path, calls: list[tuple[float, str, int, str]]) -> None:
        assert self.moved(tmp_path, calls) == {"annotation": "nccl:coalesced"}

    def test_calls_before_another_mark_and_of_other_threads_are_not_its_own(self, tmp_path: Path) -> None:
        one = {"Collective name": "send", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8}
        events = []
        for number, (at, tid) in enumerate([(0, 9), (100, 9), (100, 8)], 1):
            events += [
                event("cpu_op", "record_param_comms", tid, at + 10, 2, **one),
                event("user_annotation", "nccl:coalesced", tid, at + 50, 9),
                call(at + 52, number, tid=tid),
                kernel(300 + number, 1, number, "ncclDevKernel_SendRecv"),
            ]
        assert [facts["In msg nelems"] for _, facts in said(opened(tmp_path, events))] == ["8", "8", "8"]


def test_one_correlation_of_two_calls_is_that_of_the_last_before_the_kernel(tmp_path: Path) -> None:
    """Ranks in one file count their correlations for themselves."""
    events = [
        event("cpu_op", "first", 9, 9, 3), call(10, 5), event("cpu_op", "second", 8, 19, 3), call(20, 5, tid=8),
        kernel(15, 2, 5), kernel(25, 2, 5),
    ]  # fmt: skip
    assert [facts["tf_op"] for _, facts in said(opened(tmp_path, events))] == ["first", "second"]


@pytest.mark.parametrize(
    ("agent", "properties", "plane", "kind"),
    [
        (3, [{"id": i, "name": f"NVIDIA {i}"} for i in range(4)], "/device:GPU:3", "NVIDIA 3"),
        (9, [{"id": 0, "name": "AMD Instinct MI300X"}], "/device:GPU:0", "AMD Instinct MI300X"),
        (2, [{"id": i, "name": ""} for i in range(8)], "/device:GPU:0", None),
    ],
)
def test_a_device_is_numbered_by_cuda_but_not_by_hsa(
    tmp_path: Path, agent: int, properties: list[Any], plane: str, kind: str | None
) -> None:
    version = {} if plane.endswith("3") else {"roctracer_version": 4.1}
    trace = opened(tmp_path, [kernel(1, 1, 1, device=agent)], deviceProperties=properties, **version)
    assert trace.planes[0].name == plane
    stats = {s.name: s.value for s in trace.planes[0].stats}
    assert (stats["profiler_device"], stats.get("gpu_device_name")) == (str(agent), kind)


def test_names_of_categories_of_2021(tmp_path: Path) -> None:
    events = [
        event("Operator", "aten::mm", 9, 1, 5),
        event("Runtime", "cudaLaunchKernel", 9, 2, 1, correlation=4, **{"external id": 4}),
        event("Kernel", "gemm", 7, 5, 3, 0, device=0, stream=7, correlation=4),
        event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 9, 1, 0, device=0, stream=7, correlation=0),
    ]
    assert [n for n, _ in said(opened(tmp_path, events))] == ["gemm", "Memcpy HtoD (Pageable -> Device)"]
    assert said(opened(tmp_path, events))[0][1] == {"tf_op": "aten::mm"}


def test_arguments_of_any_type_are_kept_and_a_zero_is_no_time(tmp_path: Path) -> None:
    far = 4835912161316.5
    events = [
        kernel(far, 1, 1, grid=[8, 1, 1], **{"blocks per SM": 0.5, "registers per thread": 40, "priority": "high"}),
        kernel(far + 2, 1, 2, grid="8,1", **{"est. achieved occupancy %": {"theoretical": 50}}),
        kernel(0, 0, 3),
    ]
    trace = opened(tmp_path, events)
    _, batch = line(trace, 0, "Stream #7")
    assert len(batch) == 2
    assert trace.warnings == ["1 events without a time, left out"]
    names = {s.name: (s.rows.tolist(), list(s.texts)) for s in batch.stats}
    assert names["grid"] == ([0, 1], [b"[8,1,1]", b"8,1"])
    assert names["est. achieved occupancy %"] == ([1], [b'{"theoretical":50}'])
    assert names["blocks per SM"] == ([0], [])


def test_kernels_of_one_stream_overlap_and_a_negative_duration_is_flagged(tmp_path: Path, tables_in: Any) -> None:
    """As by programmatic launches: what viewers drop counts once in busy time (kineto 136, 646)."""
    path = write(tmp_path, [kernel(10, 10, 1), kernel(15, 10, 2), kernel(18, 2, 3), kernel(40, -5, 4), call(1, 4)])
    assert {"clock_jump", "unlinked_ops"} <= set(ingest_one(path, tmp_path / "w").entry.flags)
    query = tables_in(tmp_path / "w")
    assert query("SELECT start_ps, duration_ps, overlap_ps FROM ops WHERE duration_ps > 0 ORDER BY 1") == [
        (9_000_000, 10_000_000, 0), (14_000_000, 10_000_000, 5_000_000), (17_000_000, 2_000_000, 2_000_000),
    ]  # fmt: skip
    [(said,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unlinked_ops'")
    assert said == "3 of 4 kernels, copies and sets have no launch in the file, 100% of their time"


@pytest.mark.parametrize(("kept", "lost"), [((1, 3), ["1 of 3"]), ((1, 2), []), ((1, 2, 3), []), ((3,), ["2 of 3"])])
def test_replays_without_kernels_are_flagged(tmp_path: Path, kept: tuple[int, ...], lost: list[str]) -> None:
    """As hipGraph's were lost (sglang 35390); after the last one that has kernels the recording may have ended."""
    calls = [call(10 * k, k, "hipGraphLaunch") for k in (1, 2, 3)]
    trace = opened(tmp_path, [*calls, *(kernel(10 * k + 5, 2, k) for k in kept)])
    assert trace.findings == [("missing_ops", f"{n} launches of graphs have no kernels in the file") for n in lost]


def test_a_trace_of_the_host_alone_has_no_device(tmp_path: Path) -> None:
    path = write(tmp_path, [event("cpu_op", "aten::mm", 9, 1, 5), event("user_annotation", "ProfilerStep#1", 9, 0, 9)])
    assert ingest_one(path, tmp_path / "w").entry.flags == ["no_device_events"]


GOOD = json.dumps({"schemaVersion": 1, "traceEvents": [kernel(1, 1, 1), call(0, 1)]})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GOOD[:-20], "truncated trace"),
        (GOOD[: GOOD.index("[") + 1], "truncated trace"),
        (GOOD.replace('"ts": 1', '"ts": 01'), "not complete JSON"),
        (GOOD.replace('"traceEvents"', '"events"'), "looked for the member traceEvents"),
        (
            GOOD.replace('"correlation": 1', '"correlation": [1]'),
            "looked for events with numbers and lists as arguments",
        ),
        (GOOD.replace('"args": {', '"args": 5, "x": {'), "looked for events with numbers and lists as arguments"),
        (GOOD.replace('"pid": 0', '"pid": {}'), "not complete JSON"),
        ('{"schemaVersion": 1, "traceEvents": []}', "without events"),
        ('{"schemaVersion": 1, "traceEvents": {}}', "looked for an array as traceEvents"),
        (GOOD[:-1] + ', "deviceProperties": [1, {"name": 3}], "distributedInfo": [], "baseTimeNanoseconds": "x"}', ""),
        (GOOD.replace('"stream": 7', f'"stream": {1 << 63}').replace('"tid": 9', f'"tid": {-(1 << 70)}'), ""),
        (GOOD[:-1] + ', "distributedInfo": {"rank": -5, "pg_config": 7}}', ""),
        (GOOD.replace('"gemm"', '"\\ud800"'), "not complete JSON"),
        (GOOD.replace('"gemm"', '"a\\q"'), "not complete JSON"),  # kineto 336, pytorch 98432
        (GOOD.replace('"gemm"', '"say "gemm""'), "not complete JSON"),  # pytorch 146900
        (GOOD.replace('"gemm"', '"ge\nmm"'), "not complete JSON"),  # pytorch 113001
        (GOOD[:200] + GOOD[90:], "truncated trace"),  # two ranks that wrote one file: TensorRT-LLM 13536
    ],
)
def test_a_file_is_read_whole_or_refused_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.pt.trace.json.gz"
    path.write_bytes(gzip.compress(text.encode("utf-8", "surrogatepass")))
    warehouse = tmp_path / "w"
    if not sentence:
        assert ingest_one(path, warehouse).entry.rows["ops"] > 0
        return
    with pytest.raises(CaptureError, match=sentence) as refused:
        ingest_one(path, warehouse)
    assert "\n" not in str(refused.value)
    assert not list(warehouse.glob("lake/*/*"))


def test_pieces_of_any_size_give_the_same_rows(tmp_path: Path) -> None:
    path = write(tmp_path, [kernel(i, 1, i) for i in range(1, 50)] + [call(i - 0.5, i) for i in range(1, 50, 2)])
    assert read(path, 60) == read(path, 100_000)


class Together(Processes):
    """Three processes, whose tasks are done here; results are pickled as those of a helper are."""

    count = 2

    def start(self, function: Any, tasks: Any, then: Any = None) -> Any:
        each = (pickle.loads(pickle.dumps(function(None, task))) for task in tasks)
        return SimpleNamespace(in_order=lambda: each)


def content(path: Path, processes: Processes | None) -> Any:
    """What is read of a trace, or how it is refused without the place."""
    try:
        trace = KinetoTrace(CaptureFile(path), processes, 1000)
    except CaptureError as error:
        return re.sub(r"in the bytes.*", "", str(error))
    table = trace._table
    columns = [v.tolist() if isinstance(v, np.ndarray) else v for n, v in sorted(vars(table).items()) if n != "_file"]
    return columns, trace.warnings, trace.planes


def test_parts_that_processes_read_give_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage anywhere too; names and arguments hold what looks like the border of two events."""
    monkeypatch.setattr(reader, "_PART", 1000)
    said = {"Collective name": "send", "dtype": "Float", "In msg nelems": 8, "Seq": 3, "bytes": 4}
    shown = {"Input Dims": [[2], [3]], "Input type": ["float", "x"], "Sequence number": 4, "Fwd thread id": 1}
    events = [
        each
        for i in range(0, 150, 10)
        for each in (
            event("cpu_op", f'"}}, {{"ph": "X", "{i % 30}', i % 3, i, 9, **shown, inside=[{"ph": "X"}] * (i % 4)),
            event("cpu_op", "record_param_comms", i % 3, i, 2, **said),
            call(i + 2, i + 1, tid=i % 3),
            kernel(i + 500, 5, i + 1, f"k{i % 40}", i % 20, **(said if i % 20 else {}), grid=[i, 1, 1]),
            {"ph": "M", "name": "thread_name", "pid": 9, "tid": i, "args": {"name": f"t{i}"}},
        )
    ]
    path = write(tmp_path, events, other=[{"ph": "X"}] * 200)
    whole = path.read_bytes()
    joined: list[Table] = []
    monkeypatch.setattr(Table, "join", lambda table, part, join=Table.join: (joined.append(part), join(table, part)))
    assert content(path, Together([])) == content(path, None)
    assert len(joined) >= 6
    for at in range(1500, len(whole), len(whole) // 6):
        for damaged in (whole[:at] + b"}" + whole[at:], whole[:at] + b"]" + whole[at + 1 :], whole[:at] + b'"'):
            path.write_bytes(damaged)
            assert content(path, Together([])) == content(path, None)


def test_the_memory_of_an_event_is_less_than_its_columns(tmp_path: Path) -> None:
    """Operators around a call for each kernel; the columns of an event take 45 bytes, and wait in a file.

    The most memory is that of the events that are parsed at once, below some thousands of them.
    """

    def peak(steps: int) -> int:
        events: list[Event] = []
        for i in range(steps):
            operators = [event("cpu_op", f"aten::{k}", 9, 100 * i + k, 90 - 2 * k) for k in range(30)]
            events += [*operators, call(100 * i + 40, i + 1), kernel(100 * i + 50, 20, i + 1)]
        file = CaptureFile(write(tmp_path, events))
        tracemalloc.start()
        try:
            trace = KinetoTrace(file, chunk=1 << 16)
            assert trace.planes
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(60), peak(140)
    assert (many - few) / (80 * 32) < 45


def test_no_room_for_the_events_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: Path("/dev/full").open("r+b"))  # noqa: SIM115
    with pytest.raises(CaptureError, match=r"need a temporary file, and .* cannot take it: No space left on device"):
        opened(tmp_path, [call(1, 1), kernel(2, 1, 1)])
    spans = [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}]
    (tmp_path / "a.trace.json").write_text(json.dumps({"traceEvents": spans}))
    with pytest.raises(CaptureError, match=r"need a temporary file, and .* cannot take it: No space left on device"):
        ChromeTrace(CaptureFile(tmp_path / "a.trace.json"))
