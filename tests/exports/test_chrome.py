"""The Chrome trace of a run: the profiler's layout, nothing left out, and read back as the same run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from math import floor
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from perfetto_ui import ask
from xplane_builder import Ref, Space, Unsigned

from tracewarehouse.exports import chrome
from tracewarehouse.exports.chrome import chrome_text, export_chrome
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse

OPS = """
    SELECT o.host, o.plane, o.line, d.local_ordinal, o.execution, i.program_id, i.name, i.opcode, i.category,
      i.op_class, i.collective,
      i.async_role, i.shape, i.dtype, i.message_bytes, i.group_size, i.replica_groups, i.op_name, i.source,
      i.channel_id, i.flops, i.model_flops, i.bytes_accessed, i.layer, i.part, o.start_ps, o.duration_ps, o.depth,
      o.self_ps, o.device_offset_ps, o.device_duration_ps
    FROM main.ops AS o
    INNER JOIN main.instructions AS i USING (run_id, instruction_id)
    LEFT JOIN main.devices AS d USING (run_id, device_id)
    WHERE run_id = $run
"""
COLLECTIVES = """
    SELECT c.host, d.local_ordinal, c.kind, c.group_size, c.rank_in_group, c.message_bytes, c.wire_bytes, c.is_async,
      c.start_ps, c.end_ps, c.exposed_ps, c.window_source, c.instance, c.dtype, c.channel_id, c.is_partial
    FROM main.collectives AS c
    INNER JOIN main.devices AS d USING (run_id, device_id)
    WHERE run_id = $run
"""
HOST_EVENTS = "SELECT host, plane, thread, name, start_ps, duration_ps FROM main.host_events WHERE run_id = $run"
COUNTERS = "SELECT name, plane, start_ps, value FROM main.counters WHERE run_id = $run"
OWN_STATS = """SELECT name, count(*) FROM main.event_stats
               WHERE run_id = $run AND name IN ('layer', 'iteration', 'phase', 'step') GROUP BY name"""


def made(tmp_path: Path) -> Warehouse:
    """A run of one TPU with ops, an asynchronous copy, a counter and a host thread."""
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    dot = tpu.instruction(
        '%dot.1 = bf16[8,8]{1,0} dot(%a, %b), metadata={op_name="a \\"b\\""}',
        hlo_category="convolution fusion",
        flops=1024,
        model_flops=1000,
        program_id=Unsigned(42),
        symbol_id=Unsigned(7),
        memory_access_breakdown=b"\1\2",
    )
    copy = tpu.instruction(
        "%copy-start.1 = (f32[8]{0}, f32[8]{0}, u32[]) copy-start(%a)",
        hlo_category="copy-start",
        flops=8,
        model_flops=8,
    )
    tpu.modules.event("jit_step(42)", 1_000_000, 9_000_001, run_id=Unsigned(1))
    tpu.ops.event(dot, 1_000_000, 5_000_000, device_offset_ps=Unsigned(17), note="über\n", share=0.25)
    tpu.async_ops.event(copy, 2_000_000, 3_500_000)
    tpu.line("counters_1").event("power", 2_500_000, 0, watts=70)
    space.host().line("main", line_id=5).event("wait", 123, 1, what=Ref("lock"))
    space.write(tmp_path / "run.xplane.pb")
    return ingested(tmp_path, tmp_path / "run.xplane.pb")


def ingested(tmp_path: Path, capture: Path) -> Warehouse:
    ingest_one(capture, tmp_path / "warehouse")  # without metric values, which the trace does not show
    return open_warehouse(tmp_path / "warehouse")


def exported(warehouse: Warehouse, target: Path, run: str = "run") -> dict[str, Any]:
    export_chrome(warehouse, run, target)
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_layout_is_that_of_the_profiler(tmp_path: Path) -> None:
    found = exported(made(tmp_path), tmp_path / "out.trace.json")
    events = found.pop("traceEvents")
    added = ["layer", "iteration", "phase", "step"]
    assert found == {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True, "addedArguments": added}}
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e.get("name") in chrome_names()}
    pid = next(pid for (pid, _), name in names.items() if name == "/device:TPU:0")
    lines = {name: tid for (p, tid), name in names.items() if p == pid}
    assert {"XLA Modules", "XLA Ops", "Async XLA Ops"} <= lines.keys()
    assert names[701, None] == "/host:CPU"
    events = [e for e in events if e.get("ph") != "M"]
    op = next(e for e in events if e["name"] == "dot.1")
    assert (op["ph"], op["tid"], op["ts"], op["dur"]) == ("X", lines["XLA Ops"], 1.0, 5.0)
    assert op["args"] == {
        "note": "über\n",
        "share": 0.25,
        "hlo_category": "convolution fusion",
        "long_name": '%dot.1 = bf16[8,8]{1,0} dot(%a, %b), metadata={op_name="a \\"b\\""}',
        "flops": "1024",
        "model_flops": "1000",
        "program_id": "42",
        "tf_op": 'a "b"',
        "symbol_id": "7",
        "memory_access_breakdown": "<opaque bytes>",
        "device_offset_ps": "17",
        "step": "0",
    }
    module = next(e for e in events if e["name"] == "jit_step(42)")
    assert (module["ts"], module["dur"], module["args"]) == (1.0, 9.000001, {"run_id": "1", "step": "0"})
    begin, end = (e for e in events if e["name"] == "copy-start.1")
    assert (begin["ph"], begin["ts"], begin["args"]["hlo_category"]) == ("b", 2.0, "copy-start")
    assert (end["ph"], end["ts"], end["id2"], end["cat"]) == ("e", 5.5, begin["id2"], begin["cat"])
    assert (begin["exact_dur"], end["exact_dur"]) == (3.5, 3.5)
    assert begin["args"]["flops"] == "8"
    assert "model_flops" not in begin["args"]
    counter = next(e for e in events if e["name"] == "power")
    assert (counter["ph"], counter["ts"], counter["args"]) == ("C", 2.5, {"watts": 70})
    assert next(e for e in events if e["pid"] == 701) == {
        "ph": "X", "pid": 701, "tid": 5, "ts": 0.000123, "dur": 0.000001, "name": "wait", "args": {"what": "lock"},
    }  # fmt: skip


def chrome_names() -> set[str]:
    return {"process_name", "thread_name"}


def test_events_are_the_same_however_many_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = made(tmp_path)
    whole = exported(warehouse, tmp_path / "whole.json")
    monkeypatch.setattr(chrome, "AT_ONCE", 2)
    assert exported(warehouse, tmp_path / "pieces.json") == whole
    export_chrome(warehouse, "run", tmp_path / "packed.json.gz")
    assert json.loads(gzip.decompress((tmp_path / "packed.json.gz").read_bytes())) == whole


def test_times_before_the_profile_keep_their_sign(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    space.tpu(0).ops.event("early", -1_500_000, 1)
    space.write(tmp_path / "run.xplane.pb")
    with ingested(tmp_path, tmp_path / "run.xplane.pb") as warehouse:
        start = warehouse.query("SELECT start_ps FROM main.ops").scalar()
        events = exported(warehouse, tmp_path / "out.json")["traceEvents"]
    assert start < 0
    assert next(e["ts"] for e in events if e.get("name") == "early") == start / 1e6


def test_rounded_events_end_where_the_next_one_begins(tmp_path: Path) -> None:
    """From 0.4 to 1.6 and from 1.6 to 3 ns: rounded, the first is from 0 to 2, which 1 ns is not."""
    space = Space(hostnames=["h"])
    ops = space.tpu(0).ops
    for name, start, end in (("a", 400, 1_600), ("b", 1_600, 3_000), ("c", 3_000, 5_000)):
        ops.event(name, start, end - start)
    space.write(tmp_path / "run.xplane.pb")
    with ingested(tmp_path, tmp_path / "run.xplane.pb") as warehouse:
        events = {e["name"]: e for e in exported(warehouse, tmp_path / "out.json")["traceEvents"] if e["ph"] == "X"}
        [plain] = warehouse.lake.runs()
        exact = json.loads(b"".join(chrome_text(warehouse, plain.run_id, ["h"], is_for_viewers=False)))["traceEvents"]
    assert [(events[n]["ts"], events[n]["dur"], events[n].get("exact_dur")) for n in "abc"] == [
        (0.0004, 0.002, 0.0012),
        (0.0016, 0.0014, None),
        (0.003, 0.002, None),
    ]
    assert [e["dur"] for e in exact if e["ph"] == "X"] == [0.0012, 0.0014, 0.002]


CAPTURES = ["deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5-hosts2", "llama-tp4-b4-i16-o17-jax"]
SHARED = [
    "gpu-mi300-jax-gemm.xplane.pb",
    "tpu-2chip-vllm-tp2-prefill.trace.json.gz",
    "tpu-2chip-vllm-tp2-prefill.xplane.pb",
    "tpu-v6e-4chip-host-offload.xplane.pb",
]
Taken = Callable[[Path], Warehouse]


def comes_back(first: Warehouse, tmp_path: Path, collectives: str = COLLECTIVES) -> None:
    """Export and ingest again; a run of one host does not keep the host's name, and no manifest comes along."""
    run = first.lake.runs()[0].run_id
    export_chrome(first, run, tmp_path / "log")
    queries = OPS, collectives, HOST_EVENTS, COUNTERS, OWN_STATS
    before = [first.query(sql, run=run) for sql in queries]
    ingest_one(tmp_path / "log", tmp_path / "second")
    with open_warehouse(tmp_path / "second") as second:
        [again] = second.lake.runs()
        after = [second.query(sql, run=again.run_id) for sql in queries]
    hosts = len({row[0] for row in before[2].rows()})
    for one, other in zip(before, after, strict=True):
        skipped = 1 if hosts == 1 and one.columns[0] == "host" else 0
        assert Counter(row[skipped:] for row in one.rows()) == Counter(row[skipped:] for row in other.rows())


PLACES = """
    SELECT o.line, CAST(o.start_ps AS DECIMAL(19)) * 0.000001, COALESCE(s.string_value, i.name),
      CAST(l.layer AS VARCHAR), CAST(o.iteration AS VARCHAR), o.phase, CAST(o.step AS VARCHAR)
    FROM main.ops AS o
    INNER JOIN main.instructions AS i USING (run_id, instruction_id)
    LEFT JOIN main.instruction_stats AS s
      ON i.run_id = s.run_id AND i.instruction_id = s.instruction_id AND s.name IN ('display_name', 'event_name')
    INNER JOIN models.op_layers AS l ON o.run_id = l.run_id AND o.event_id = l.event_id
    WHERE (o.duration_ps > 0 OR o.line NOT LIKE '%counters_') AND o.plane <> '/host:CPU'
"""


def tells_places(warehouse: Warehouse, events: list[dict[str, Any]]) -> Counter[str]:
    """Each op has its layer, iteration, phase and step as arguments, if it has them; return how many have which."""
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] in chrome_names()}
    on_devices = [e for e in events if e["ph"] in "Xb" and names[e["pid"], None].endswith(":CPU") is False]
    keys = [
        (names[e["pid"], e["tid"]], f"{e['ts']:.6f}", e["name"], *(e.get("args", {}).get(n) for n in chrome.ADDED))
        for e in on_devices
    ]
    expected = Counter((line, f"{ts:.6f}", *rest) for line, ts, *rest in warehouse.query(PLACES).rows())
    assert Counter(keys) == expected
    return Counter(n for e in on_devices for n in chrome.ADDED if n in e.get("args", {}))


def keeps_the_rules_of_viewers(warehouse: Warehouse, tmp_path: Path) -> list[dict[str, Any]]:
    """What chrome://tracing and the Perfetto UI ask of a file, which neither says when it is broken."""
    [run] = warehouse.lake.runs()
    events: list[dict[str, Any]] = exported(warehouse, tmp_path / "out.trace.json", run.run_id)["traceEvents"]
    written = warehouse.query("SELECT sum(event_count) FROM main.lines").scalar()
    assert sum(e["ph"] in "XbC" for e in events) == written
    assert all(type(e[n]) is int and 0 <= e[n] < 1 << 32 for e in events for n in ("pid", "tid") if n in e)
    named = {(e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    begun: dict[tuple[int, str, str], dict[str, Any]] = {}
    last: dict[tuple[int, int], float] = {}
    open_ends: dict[tuple[int, int], list[int]] = {}
    ids = Counter((e["pid"], e["cat"], e["id2"]["local"]) for e in events if e["ph"] == "b")
    assert set(ids.values()) <= {1}
    for e in events:
        if e["ph"] == "M":
            continue
        assert ("process_name", e["pid"], None) in named
        assert ("thread_name", e["pid"], e["tid"]) in named
        if e["ph"] == "b":
            begun[e["pid"], e["cat"], e["id2"]["local"]] = e
        elif e["ph"] == "e":
            begin = begun.pop((e["pid"], e["cat"], e["id2"]["local"]))
            assert (begin["name"], begin["tid"]) == (e["name"], e["tid"])
            assert begin["ts"] <= e["ts"]
        elif e["ph"] == "X":
            thread = e["pid"], e["tid"]
            assert e["ts"] >= last.get(thread, e["ts"])
            last[thread] = e["ts"]
            start = floor(e["ts"] * 1000 + 0.5)
            around = open_ends.setdefault(thread, [])
            while around and around[-1] <= start:
                around.pop()
            end = start + floor(e["dur"] * 1000 + 0.5)
            assert not around or end <= around[-1]
            around.append(end)
    assert not begun
    return events


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_of_the_repository(name: str, taken: Taken, tmp_path: Path) -> None:
    warehouse = taken(ROOT / "data" / "captures" / name)
    comes_back(warehouse, tmp_path)
    keeps_the_rules_of_viewers(warehouse, tmp_path)


@pytest.mark.parametrize("name", SHARED)
def test_real_captures(name: str, shared_traces: Path, taken: Taken, tmp_path: Path) -> None:
    warehouse = taken(shared_traces / name)
    collectives = COLLECTIVES
    if "v6e" in name:  # whose groups lack devices, and no Chrome trace has the device assignment that tells their ranks
        collectives = COLLECTIVES.replace(" c.rank_in_group,", "").replace(" c.wire_bytes,", "")
    comes_back(warehouse, tmp_path, collectives)
    keeps_the_rules_of_viewers(warehouse, tmp_path)


PROBLEMS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
THREADS = """
    SELECT pid, tid, thread.name AS thread, count(*) AS slices, sum(dur) AS ns
    FROM slice JOIN thread_track ON slice.track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid)
    GROUP BY 1, 2, 3
"""
ASYNCHRONOUS = """
    SELECT pid, count(*) AS slices, sum(dur) AS ns
    FROM slice JOIN process_track ON slice.track_id = process_track.id JOIN process USING (upid)
    GROUP BY pid
"""


@pytest.mark.slow
def test_trace_processor_reads_captures_of_the_repository(taken: Taken, tmp_path: Path) -> None:
    trace_processor_agrees(taken(ROOT / "data" / "captures" / "llama-pp2tp2-b4-i16-o5-hosts2"), tmp_path)


def trace_processor_agrees(warehouse: Warehouse, tmp_path: Path) -> None:
    """The Perfetto UI has every event of every thread and finds no fault; the profiler's own files lack 3 % there."""
    events = keeps_the_rules_of_viewers(warehouse, tmp_path)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    threads: dict[tuple[int, int, str], list[int]] = {}
    for e in events:
        if e["ph"] == "X":
            found = threads.setdefault((e["pid"], e["tid"], names[e["pid"], e["tid"]]), [0, 0])
            found[0] += 1
            found[1] += floor(e["dur"] * 1000 + 0.5)
    problems, slices, asynchronous = ask(tmp_path / "out.trace.json", [PROBLEMS, THREADS, ASYNCHRONOUS])
    assert problems == []
    assert {(r["pid"], r["tid"], r["thread"]): [r["slices"], r["ns"]] for r in slices} == threads
    begun = Counter(e["pid"] for e in events if e["ph"] == "b")
    assert {r["pid"]: r["slices"] for r in asynchronous} == begun


@pytest.mark.parametrize(
    ("name", "some"),
    [
        ("tpu-2chip-vllm-tp2-prefill.xplane.pb", {"layer", "phase", "step"}),
        ("gpu-own/h200-jax-llama6-scan-marked.xplane.pb.gz", {"layer", "iteration", "phase", "step"}),
    ],
)
def test_ops_tell_their_places(name: str, some: set[str], shared_traces: Path, taken: Taken, tmp_path: Path) -> None:
    warehouse = taken(shared_traces / name)
    [run] = warehouse.lake.runs()
    told = tells_places(warehouse, exported(warehouse, tmp_path / "out.trace.json", run.run_id)["traceEvents"])
    assert told.keys() == some


def test_arguments_of_that_name_in_other_traces_stay(tmp_path: Path) -> None:
    """A layer that another tool states is a stat; only in a file that names it as added it is left out."""
    event = {"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 1, "name": "a", "args": {"layer": "3", "phase": "x"}}
    for number, metadata in enumerate([{}, {"addedArguments": ["layer"]}, {"addedArguments": 7}, [1]]):
        path = tmp_path / f"{number}.trace.json"
        path.write_text(json.dumps({"metadata": metadata, "traceEvents": [event]}))
        ingest_one(path, tmp_path / "warehouse")
    with open_warehouse(tmp_path / "warehouse") as warehouse:
        found = warehouse.query(
            "SELECT r.name, s.name FROM main.event_stats AS s INNER JOIN main.runs AS r USING (run_id)"
        )
        stats = {run: sorted(n for r, n in found.rows() if r == run) for run, _ in found.rows()}
    both = ["layer", "phase"]
    assert [stats[run] for run in sorted(stats)] == [both, ["phase"], both, both]


def test_what_an_event_states_counts_after_its_instruction(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    dot = tpu.instruction("%dot.1 = bf16[8,8]{1,0} dot(%a, %b)", hlo_category="convolution", model_flops=1000)
    tpu.ops.event(dot, 0, 5_000_000, model_flops=7)
    tpu.ops.event(dot, 5_000_000, 5_000_000)
    space.write(tmp_path / "run.xplane.pb")
    with ingested(tmp_path, tmp_path / "run.xplane.pb") as warehouse:
        events = exported(warehouse, tmp_path / "out.json")["traceEvents"]
    assert [e["args"]["model_flops"] for e in events if e["ph"] == "X"] == ["7", "1000"]
