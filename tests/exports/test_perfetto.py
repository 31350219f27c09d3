"""The Perfetto trace of a run: its tracks, slices, arguments, flows and counters, as in the warehouse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT
from nsys_builder import Export
from perfetto_reader import Slice, Trace, read_trace
from perfetto_ui import ask
from tiny_capture import US, write_capture_directory
from typer.testing import CliRunner
from xplane_builder import Space, Unsigned

from tracewarehouse.cli import app
from tracewarehouse.exports.perfetto import packets
from tracewarehouse.exports.perfetto.export import export_perfetto, picoseconds, steps
from tracewarehouse.exports.perfetto.selected_run import Selection
from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse, open_warehouse


def ingested(tmp_path: Path, *captures: Path) -> Warehouse:
    for capture in captures:
        ingest_one(capture, tmp_path / "warehouse")  # without metric values, which no track shows
    return open_warehouse(tmp_path / "warehouse")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """The tiny capture: two TPUs, a prefill and three decode steps of 2 layers with 2 all-reduces each."""
    folder = tmp_path_factory.mktemp("tiny")
    return ingested(folder, write_capture_directory(folder / "tiny"))


@pytest.fixture(scope="module")
def tiny_trace(tiny: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """All of the tiny capture, as it is exported without options."""
    return exported(tiny, tmp_path_factory.mktemp("trace") / "out.pftrace")


def exported(warehouse: Warehouse, target: Path, *runs: str, **options: object) -> Trace:
    names = runs or [run.run_id for run in warehouse.lake.runs()]
    return read_trace(export_perfetto(warehouse, names, target, **options))  # type: ignore[arg-type]


def test_tracks_of_a_tpu(tiny_trace: Trace) -> None:
    paths = [tiny_trace.path(t) for t in tiny_trace.tracks.values()]
    device = "2. TPUs > /device:TPU:"
    of_device = ["1. Steps", "2. XLA Modules", "3. XLA Ops", "5. Name Scope", "6. Collectives"]
    of_device.append("6. Collectives > all-reduce tp")
    assert sorted(paths) == sorted(
        [
            "1. Global Counters",
            "1. Global Counters > Collectives",
            "1. Global Counters > Collectives > In-flight collectives",
            "1. Global Counters > Collectives > In-flight bytes",
            "2. TPUs",
            *(f"{device}{n}{name and ' > '}{name}" for n in (0, 1) for name in ["", *of_device]),
            "3. Hosts",
            "3. Hosts > vm",
            "3. Hosts > vm > python",
        ]
    )


def test_tracks_of_a_device_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Steps, which no line has, are written after the other lines and shown before them."""
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    tpu.async_ops.event(tpu.instruction("%copy-start.1 = f32[8]{0} copy-start(%a)"), 0, US)
    for n in range(2):
        tpu.modules.event("jit_step(1)", n * 10 * US, 9 * US, run_id=Unsigned(n))
        dot = tpu.instruction("%dot.1 = f32[8]{0} dot(%a, %b)", program_id=Unsigned(1), tf_op="layer0/attn/op")
        tpu.ops.event(dot, n * 10 * US, 5 * US)
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    of_device = [t for t in trace.tracks.values() if t.parent and trace.tracks[t.parent].name == "/device:TPU:0"]
    shown = [t.name for t in sorted(of_device, key=lambda t: t.rank)]
    assert shown == ["1. Steps", "2. XLA Modules", "3. XLA Ops", "5. Name Scope", "Async XLA Ops"]


def test_what_a_gpu_launches_is_no_module_of_xla(tmp_path: Path) -> None:
    export = Export().range(0, 90, "decode 3")
    export.kernel(100, 160, launch=export.call(20, 25)).kernel(160, 200, "add", export.call(30, 35))
    trace = exported(ingested(tmp_path, export.write(tmp_path / "a.sqlite")), tmp_path / "out.pftrace")
    of_device = [t for t in trace.tracks.values() if t.parent and trace.tracks[t.parent].name == "/device:GPU:0"]
    assert [t.name for t in sorted(of_device, key=lambda t: t.rank)] == ["1. Steps", "2. Launches", "Stream #7"]
    [launch] = trace.slices("GPU:0 > 2. Launches")
    assert (launch.name, launch.start, launch.end) == ("decode", 100, 200)
    ops = trace.slices("GPU:0 > Stream #7")
    assert {op.arguments["run_id"] for op in ops} == {launch.arguments["run_id"]}


def test_an_op_has_its_facts_as_arguments(tiny: Warehouse, tmp_path: Path) -> None:
    """The second op of the second step of device 0: an all-reduce from 172 to 180 us."""
    trace = exported(tiny, tmp_path / "out.pftrace", flows="all")
    op = trace.slices("TPU:0 > 3. XLA Ops")[9]
    event_id = op.arguments.pop("event_id")
    assert (op.name, op.start, op.end, op.depth) == ("all-reduce.04", 172_000, 180_000, 0)
    assert op.arguments == {
        "hlo_category": "all-reduce",
        "program_id": 12,
        "shape_with_layout": "f32[1,64]{1,0}",
        "long_name": "%all-reduce.04 = f32[1,64]{1,0} all-reduce(f32[1,64]{1,0} %x.0), channel_id=1, "
        "replica_groups={{0,1}}, use_global_device_ids=true, to_apply=%add",
        "tf_op": "layer0/attn/op",
        "op_class": "communication",
        "layer": 0,
        "part": "attn",
        "phase": "decode",
        "step": 1,
        "run_id": 160,
        "start_ps": 172 * US,
        "duration_ps": 8 * US,
    }
    [same] = [s for s in trace.slices("TPU:0 > 6. Collectives > all-reduce tp") if s.arguments["event_id"] == event_id]
    assert (same.name, same.start, same.end) == (op.name, op.start, op.end)
    assert same.arguments["message_bytes"] == same.arguments["wire_bytes"] == 256
    assert {k: same.arguments[k] for k in ("kind", "axis", "group_size", "rank_in_group", "exposed_ps", "step")} == {
        "kind": "all-reduce", "axis": "tp", "group_size": 2, "rank_in_group": 0, "exposed_ps": 8 * US, "step": 1,
    }  # fmt: skip


def test_layers_hold_their_parts(tiny_trace: Trace) -> None:
    scopes = [(s.name, s.start, s.end, s.depth) for s in tiny_trace.slices("TPU:1 > 5. Name Scope")][:6]
    assert scopes == [
        ("layer 0", 12_000, 50_000, 0),
        ("attn", 12_000, 30_000, 1),
        ("mlp", 30_000, 50_000, 1),
        ("layer 1", 50_000, 90_000, 0),
        ("attn", 50_000, 70_000, 1),
        ("mlp", 70_000, 90_000, 1),
    ]


def test_a_flow_leads_from_rank_to_rank(tiny: Warehouse, tmp_path: Path) -> None:
    """Each of 16 executions starts on one device first, or on both at once: one arrow each."""
    trace = exported(tiny, tmp_path / "all.pftrace", flows="all")
    slices = trace.slices("all-reduce tp")
    assert (len(slices), trace.links()) == (32, 16)
    assert all(len(s.flows) == 1 for s in slices)
    assert exported(tiny, tmp_path / "none.pftrace", flows="none").links() == 0


def test_only_slow_executions_have_flows_unless_told_otherwise(tmp_path: Path) -> None:
    """Of ten executions of 10 us, one lasts 16 us: longer than 1.5 times the median."""
    space = Space(hostnames=["h"])
    for index in range(2):
        tpu = space.tpu(index)
        reduce = tpu.instruction(
            "%all-reduce.1 = f32[8]{0} all-reduce(%a), channel_id=1, replica_groups={{0,1}}, to_apply=%add",
            hlo_category="all-reduce",
            program_id=Unsigned(1),
        )
        for n in range(10):
            tpu.modules.event("step(1)", n * 100 * US, 90 * US, run_id=Unsigned(n))
            tpu.ops.event(reduce, (n * 100 + 5) * US, (16 if n == 4 else 10) * US)
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    assert [s.start for t in trace.tracks.values() for s in t.slices if s.flows] == [405_000] * 2
    assert trace.links() == 1


def test_counters_follow_the_collectives(tiny_trace: Trace) -> None:
    """The first all-reduce: device 0 from 22 to 30 us, device 1 from 24 to 30 us, 16 x 64 floats each."""
    counters = {t.name: t for t in tiny_trace.tracks.values() if t.samples}
    assert counters["In-flight collectives"].samples[:3] == [(22_000, 1), (24_000, 1), (30_000, 0)]
    assert counters["In-flight bytes"].samples[:3] == [(22_000, 4096), (24_000, 8192), (30_000, 0)]
    assert [counters[n].unit for n in ("In-flight collectives", "In-flight bytes")] == ["count", "bytes"]


def test_slices_that_overlap_get_tracks_of_the_same_name(tmp_path: Path) -> None:
    """Two copies on the line of asynchronous ops, from 1 to 4 us and from 2 to 6 us."""
    space = Space(hostnames=["h"])
    tpu = space.tpu(0)
    for n, (start, end) in enumerate(((1, 4), (2, 6), (5, 7))):
        tpu.async_ops.event(
            tpu.instruction(f"%copy-start.{n} = f32[8]{{0}} copy-start(%a)"), start * US, (end - start) * US
        )
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    tracks = [[(s.name, s.start) for s in t.slices] for t in trace.tracks.values() if t.name == "Async XLA Ops"]
    assert tracks == [[("copy-start.0", 1_000), ("copy-start.2", 5_000)], [("copy-start.1", 2_000)]]


def test_windows_that_overlap_are_on_child_tracks_of_one_name(tmp_path: Path) -> None:
    """Two all-gathers of both devices, from 0 to 22 and from 2 to 26 us: the UI draws tracks of one parent as one."""
    space = Space(hostnames=["h"])
    for device in range(2):
        tpu = space.tpu(device)
        tpu.modules.event("step(1)", 0, 100 * US, run_id=Unsigned(1))
        for n, done in ((1, 20), (2, 24)):
            start = (
                f"%all-gather-start.{n} = (f32[32]{{0}}, f32[64]{{0}}) all-gather-start(f32[32]{{0}} %x), "
                f"channel_id={n}, replica_groups={{{{0,1}}}}, dimensions={{0}}, use_global_device_ids=true"
            )
            end = f"%all-gather-done.{n} = f32[64]{{0}} all-gather-done((f32[32], f32[64]) %all-gather-start.{n})"
            tpu.ops.event(tpu.instruction(start, program_id=Unsigned(1)), 2 * (n - 1) * US, US)
            tpu.ops.event(tpu.instruction(end, program_id=Unsigned(1)), done * US, 2 * US)
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    windows = [t for t in trace.tracks.values() if t.name.startswith("all-gather")]
    assert [(len(t.slices), t.slices[0].start, t.slices[0].end) for t in windows] == [
        (1, 0, 22_000), (1, 2_000, 26_000)
    ] * 2  # fmt: skip
    assert {t.name for t in windows} == {windows[0].name}
    parents = [t.parent for t in windows]
    assert parents[0] == parents[1] != parents[2] == parents[3]
    assert {trace.tracks[p].name for p in parents if p} == {"6. Collectives"}


def test_a_time_before_the_profile_is_the_first_of_the_trace(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    space.tpu(0).ops.event("early", -1_500_000, 1).event("late", 2_000_000, 0)
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    early, late = trace.slices("3. XLA Ops")
    assert (early.start, early.arguments["start_ps"], early.arguments["duration_ps"]) == (0, -1_500_000, 1)
    assert (late.start, late.end, late.arguments["duration_ps"]) == (3500, 3500, 0)


def test_stats_of_events_are_arguments(tmp_path: Path) -> None:
    space = Space(hostnames=["h"])
    thread = space.host().line("main", line_id=5)
    thread.event("wait", 10, 20, what="lock", count=Unsigned(3), share=0.5, _flow=1).event("plain", 40, 1)
    space.write(tmp_path / "run.xplane.pb")
    trace = exported(ingested(tmp_path, tmp_path / "run.xplane.pb"), tmp_path / "out.pftrace")
    wait, plain = trace.slices("3. Hosts > h > main")
    assert {k: wait.arguments[k] for k in ("what", "count", "share")} == {"what": "lock", "count": 3, "share": "0.5"}
    assert wait.arguments.keys() - {"what", "count", "share"} == plain.arguments.keys()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(first_step=1, last_step=2), [1, 2]),
        (Selection(phase="prefill"), [0]),
        (Selection(phase="decode"), [1, 2, 3]),
        (Selection(start_ps=160 * US, end_ps=310 * US), [1]),
        (Selection(start_ps=300 * US), [2, 3]),
    ],
)
def test_a_selection_has_what_starts_in_it(
    tiny: Warehouse, tmp_path: Path, selection: Selection, expected: list[int]
) -> None:
    trace = exported(tiny, tmp_path / "out.pftrace", selection=selection)
    ops = trace.slices("3. XLA Ops")
    assert Counter(s.arguments["step"] for s in ops) == dict.fromkeys(expected, 16)
    assert {s.arguments["step"] for s in trace.slices("tp")} == set(expected)
    assert min(s.start for t in trace.tracks.values() for s in t.slices) == 0
    modules = trace.slices("TPU:0 > 2. XLA Modules")
    assert [s.arguments["run_id"] for s in modules] == [10 + 150 * n for n in expected]


def test_an_empty_selection_says_what_there_is(tiny: Warehouse, tmp_path: Path) -> None:
    with pytest.raises(
        TracewarehouseError, match=r"no event in the selection; it has steps 0 to 3, phases decode, pre"
    ):
        exported(tiny, tmp_path / "out.pftrace", selection=Selection(first_step=7, last_step=7))
    assert not list(tmp_path.glob("*.pftrace"))


def test_packets_are_the_same_however_many_are_written_at_once(
    tiny: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = exported(tiny, tmp_path / "whole.pftrace", flows="all")
    assert exported(tiny, tmp_path / "packed.pftrace.gz", flows="all") == whole
    first = (tmp_path / "whole.pftrace").read_bytes()
    monkeypatch.setattr(packets, "AT_ONCE", 3)
    assert exported(tiny, tmp_path / "whole.pftrace", flows="all") == whole
    monkeypatch.undo()
    exported(tiny, tmp_path / "whole.pftrace", flows="all")
    assert (tmp_path / "whole.pftrace").read_bytes() == first


def test_several_runs_have_tracks_of_their_own(tmp_path: Path) -> None:
    first = write_capture_directory(tmp_path / "first", "first")
    second = write_capture_directory(tmp_path / "second", "second", period=170)
    trace = exported(ingested(tmp_path, first, second), tmp_path / "out.pftrace", "first", "second", flows="all")
    assert [t.name for t in trace.tracks.values() if not t.parent] == ["first", "second"]
    ops = [trace.slices(f"{name} > 2. TPUs > /device:TPU:0 > 3. XLA Ops") for name in ("first", "second")]
    assert [len(found) for found in ops] == [32, 32]
    assert trace.links() == 32


def two_hosts(tmp_path: Path, *, has_times: bool) -> Path:
    for n in range(2):
        space = Space(hostnames=[f"h{n}"])
        tpu = space.tpu(0)
        tpu.modules.event("step(1)", 0, 10 * US)
        tpu.ops.event(tpu.instruction("%dot.1 = f32[8]{0} dot(%a, %b)", program_id=Unsigned(1)), 0, 5 * US)
        if has_times:
            space.profiled(10**18, 10**18 + 10**6)
        space.write(tmp_path / "plugins" / "profile" / "run" / f"h{n}.xplane.pb")
    return tmp_path / "plugins"


def test_devices_of_several_hosts_have_names_of_their_own(tmp_path: Path) -> None:
    trace = exported(ingested(tmp_path, two_hosts(tmp_path, has_times=True)), tmp_path / "out.pftrace")
    assert len(trace.slices("/device:TPU:0 > 3. XLA Ops")) == len(trace.slices("/device:TPU:1 > 3. XLA Ops")) == 1


def test_clocks_that_are_not_aligned_are_refused_unless_forced(tmp_path: Path) -> None:
    warehouse = ingested(tmp_path, two_hosts(tmp_path, has_times=False))
    with pytest.raises(TracewarehouseError, match="the clocks of its hosts are not aligned"):
        exported(warehouse, tmp_path / "out.pftrace")
    assert len(exported(warehouse, tmp_path / "out.pftrace", force=True).slices("3. XLA Ops")) == 2


def test_times_and_steps_are_read() -> None:
    assert (picoseconds("1.5ms"), picoseconds("-3ns"), picoseconds("2s")) == (
        15 * 10**8,
        -3000,
        2 * 10**12,
    )
    assert (steps("4"), steps("3-5")) == ((4, 4), (3, 5))
    for text in ("5", "ms", "1 hour"):
        with pytest.raises(TracewarehouseError, match="is not a time"):
            picoseconds(text)
    for text in ("x", "3-", "5-3"):
        with pytest.raises(TracewarehouseError, match="is not a step"):
            steps(text)


def test_command(tiny: Warehouse, tmp_path: Path) -> None:
    target = tmp_path / "some" / "out.pftrace.gz"
    options = ["-w", str(tiny.path), "export", "perfetto", "tiny-tp2", "-o", str(target)]
    result = CliRunner().invoke(app, [*options, "--step", "1", "--flows", "all", "--from", "0ms", "--to", "1s"])
    assert result.output.strip() == str(target)
    assert len(read_trace(target).slices("3. XLA Ops")) == 16


CAPTURES = ["deepseek_v2-ep4-b4-i16-o9", "llama-pp2tp2-b4-i16-o5-hosts2"]
SHARED = [
    "gpu-mi300-jax-gemm.xplane.pb",
    "tpu-2chip-vllm-tp2-prefill.xplane.pb",
    "tpu-v6e-4chip-host-offload.xplane.pb",
]
EVENTS = """
    SELECT event_id, i.name, o.start_ps, o.duration_ps
    FROM main.ops AS o
    INNER JOIN main.instructions AS i USING (run_id, instruction_id)
    ASOF JOIN (SELECT first_event_id, kind FROM main.lines WHERE event_count > 0) AS l ON event_id >= first_event_id
    WHERE NOT (l.kind = 'counters' AND o.duration_ps = 0)
    UNION ALL
    SELECT event_id, name, start_ps, duration_ps FROM main.host_events
"""
COLLECTIVES = "SELECT event_id, kind || ' ' || axis AS track, start_ps, end_ps - start_ps FROM main.collectives"
LINKS = "SELECT coalesce(sum(n - 1), 0) FROM (SELECT count(*) AS n FROM main.collectives GROUP BY instance)"


Whole = Callable[[Path], tuple[Warehouse, Path, Trace]]


@pytest.fixture(scope="module")
def whole(taken: Callable[[Path], Warehouse], tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Exports all of a capture, once for the tests of it."""

    def exported_whole(capture: Path) -> tuple[Warehouse, Path, Trace]:
        warehouse = taken(capture)
        ending = "pftrace" if capture.is_dir() else "pftrace.gz"  # both ways of packing
        target = tmp_path_factory.mktemp("whole") / f"out.{ending}"
        return warehouse, target, exported(warehouse, target, flows="all")

    return cache(exported_whole)


def is_as_in_the_warehouse(warehouse: Warehouse, trace: Trace) -> None:
    """Every event and collective is one slice, with its own times; arrows join all ranks of each collective."""
    events: Counter[tuple[object, ...]] = Counter()
    collectives: Counter[tuple[object, ...]] = Counter()
    [(origin,)] = warehouse.query("SELECT least(0, min(first_start_ps)) FROM main.lines").rows()
    for track in trace.tracks.values():
        path = trace.path(track)
        for s in track.slices:
            start, duration = s.arguments["start_ps"], s.arguments["duration_ps"]
            assert isinstance(start, int)
            assert isinstance(duration, int)
            assert (s.start, s.end) == ((start - origin) // 1000, (start - origin + duration) // 1000)
            if " 6. Collectives > " in path:
                collectives[s.arguments["event_id"], track.name, start, duration] += 1
            elif "event_id" in s.arguments:
                events[s.arguments["event_id"], s.name, start, duration] += 1
    assert events == Counter(warehouse.query(EVENTS).rows())
    assert collectives == Counter(warehouse.query(COLLECTIVES).rows())
    assert trace.links() == warehouse.query(LINKS).scalar()


@pytest.mark.parametrize("name", CAPTURES)
def test_captures_of_the_repository(name: str, whole: Whole) -> None:
    warehouse, _, trace = whole(ROOT / "data" / "captures" / name)
    is_as_in_the_warehouse(warehouse, trace)


@pytest.mark.parametrize("name", SHARED)
def test_real_captures(name: str, shared_traces: Path, whole: Whole) -> None:
    warehouse, _, trace = whole(shared_traces / name)
    is_as_in_the_warehouse(warehouse, trace)


PROBLEMS = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
TRACKS = """
    SELECT t.name AS track, count(*) AS slices, sum(s.dur) AS ns,
      sum(extract_arg(s.arg_set_id, 'debug.duration_ps')) AS ps
    FROM slice AS s JOIN track AS t ON s.track_id = t.id
    GROUP BY t.name
"""
OPS = """
    SELECT s.name, s.ts, s.dur, extract_arg(s.arg_set_id, 'debug.run_id') AS run_id, device.name AS device
    FROM slice AS s JOIN track AS t ON s.track_id = t.id JOIN track AS device ON t.parent_id = device.id
    WHERE lower(t.name) GLOB lower('*XLA Ops*')
    ORDER BY s.ts, s.dur, s.name, device.name
"""
COUNTERS = (
    "SELECT t.name AS counter, count(*) AS samples FROM counter AS c JOIN track AS t ON c.track_id = t.id GROUP BY 1"
)


@pytest.mark.slow
def test_trace_processor_reads_a_capture_of_the_repository(whole: Whole) -> None:
    _, target, trace = whole(ROOT / "data" / "captures" / CAPTURES[1])
    trace_processor_agrees(target, trace)


def trace_processor_agrees(target: Path, trace: Trace) -> None:
    """It sees the slices, durations, arrows and samples that are in the file, and finds no fault with it."""
    problems, tracks, ops, links, counters = ask(
        target, [PROBLEMS, TRACKS, OPS, "SELECT count(*) AS n FROM flow", COUNTERS]
    )
    assert problems == []
    expected: dict[str, list[Slice]] = {}
    for track in trace.tracks.values():
        expected.setdefault(track.name, []).extend(track.slices)
    assert {row["track"]: (row["slices"], row["ns"], row["ps"]) for row in tracks} == {
        name: (len(found), sum(s.end - s.start for s in found), sum(int(s.arguments["duration_ps"]) for s in found))
        for name, found in expected.items()
        if found
    }
    named = [
        (s.start, s.end - s.start, s.name, trace.tracks[track.parent].name, s.arguments.get("run_id"))
        for track in trace.tracks.values()
        if "XLA Ops" in track.name
        for s in track.slices
    ]
    assert named
    found = [(row["ts"], row["dur"], row["name"], row["device"], row["run_id"]) for row in ops]
    assert sorted(found, key=str) == sorted(named, key=str)
    assert links == [{"n": trace.links()}]
    sampled = Counter(name for track in trace.tracks.values() for name in [track.name] * len(track.samples))
    assert {row["counter"]: row["samples"] for row in counters} == sampled
