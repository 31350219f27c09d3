"""Hand-made TPU captures: nesting, steps, asynchronous collectives, several hosts; expected rows computed by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from xplane_builder import Space, TpuPlane, Unsigned

from tracewarehouse.ingest.capture.card import load_card
from tracewarehouse.ingest.capture.costs import load_costs
from tracewarehouse.ingest.capture.manifest import Mesh
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.capture.sources import find_captures
from tracewarehouse.ingest.capture_comparison import compare_with_capture
from tracewarehouse.ingest.devices.hosts import DAY_NS, Device, complete_devices
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.garbage import leftovers
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.ingest.tables.run_row import card_facts

START_NS = 1_700_000_000_000_000_000

Query = Callable[..., list[tuple[Any, ...]]]
PROGRAM = 42
GATHER_START = (
    "%all-gather-start.1 = (bf16[4,8]{1,0}, bf16[8,8]{1,0}) all-gather-start(bf16[4,8]{1,0} %p), channel_id=3, "
    "replica_groups=[1,2]<=[2], dimensions={0}, use_global_device_ids=true"
)
GATHER_DONE = (
    "%all-gather-done.1 = bf16[8,8]{1,0} all-gather-done((bf16[4,8]{1,0}, bf16[8,8]{1,0}) %all-gather-start.1)"
)
REDUCE = (
    "%all-reduce.7 = f32[256]{0} all-reduce(f32[256]{0} %x), channel_id=1, replica_groups={{0,1}}, "
    "use_global_device_ids=true, to_apply=%add"
)
DOT = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b), lhs_contracting_dims={1}"


def add_op(plane: TpuPlane, hlo: str, start: int, duration: int, category: str = "") -> None:
    metadata = plane.instruction(hlo, hlo_category=category or "op", program_id=Unsigned(PROGRAM))
    plane.ops.event(metadata, start, duration)


class TestAsyncCollectives:
    def capture(self, *, with_done: bool = True, with_span: bool = True) -> Space:
        #  0    10      50          90   100
        #  |start|..dot..|all-reduce|.done.|
        space = Space()
        tpu = space.tpu(0)
        tpu.modules.event(f"jit_step({PROGRAM})", 0, 100)
        add_op(tpu, GATHER_START, 0, 10, "all-gather-start")
        add_op(tpu, DOT, 10, 40)
        add_op(tpu, REDUCE, 50, 40, "all-reduce")
        if with_done:
            add_op(tpu, GATHER_DONE, 90, 10, "all-gather-done")
        if with_span:
            start = tpu.instruction(GATHER_START, hlo_category="all-gather-start", program_id=Unsigned(PROGRAM))
            tpu.async_ops.event(start, 0, 100, hlo_op="all-gather-done.1")
        return space

    SQL = """SELECT kind, is_async, start_ps, end_ps, exposed_ps, window_source, done_event_id IS NOT NULL
             FROM collectives ORDER BY start_ps"""

    def test_window_and_exposed_part(self, ingest: Any) -> None:
        """The start and the done run on the op line, and so does the all-reduce inside the window; the dot hides."""
        _, query = ingest(self.capture())
        assert query(self.SQL) == [
            ("all-gather", True, 0, 100, 10 + 40 + 10, "start/done pair", True),
            ("all-reduce", False, 50, 90, 40, "op", False),
        ]

    def test_pairs_without_an_async_line(self, ingest: Any) -> None:
        _, query = ingest(self.capture(with_span=False))
        assert query(self.SQL)[0] == ("all-gather", True, 0, 100, 60, "start/done pair", True)

    def test_a_done_that_is_missing_is_taken_from_the_async_line(self, ingest: Any) -> None:
        _, query = ingest(self.capture(with_done=False))
        assert query(self.SQL)[0] == ("all-gather", True, 0, 100, 50, "async line", False)

    def test_a_start_alone_is_its_own_window(self, ingest: Any) -> None:
        _, query = ingest(self.capture(with_done=False, with_span=False))
        assert query(self.SQL)[0] == ("all-gather", True, 0, 10, 10, "start only", False)

    def test_the_start_and_its_async_event_are_one_instruction(self, ingest: Any) -> None:
        _, query = ingest(self.capture())
        sql = """SELECT name, opcode, async_role, async_start, message_bytes, channel_id, group_size
                 FROM instructions WHERE collective = 'all-gather' ORDER BY name"""
        assert query(sql) == [
            ("all-gather-done.1", "all-gather-done", "done", "all-gather-start.1", 128, None, None),
            ("all-gather-start.1", "all-gather-start", "start", None, 128, 3, 2),
        ]

    def test_each_execution_pairs_its_own_halves(self, ingest: Any) -> None:
        """The capture begins after the first start: its done is left alone, the second pair is whole."""
        space = Space()
        tpu = space.tpu(0)
        tpu.modules.event(f"jit_step({PROGRAM})", 0, 100)
        tpu.modules.event(f"jit_step({PROGRAM})", 100, 100)
        add_op(tpu, GATHER_DONE, 20, 10, "all-gather-done")
        add_op(tpu, GATHER_START, 110, 10, "all-gather-start")
        add_op(tpu, GATHER_DONE, 150, 10, "all-gather-done")
        _, query = ingest(space)
        assert query("SELECT start_ps, end_ps, exposed_ps FROM collectives") == [(110, 160, 20)]


class TestInstances:
    def two_devices(self, *, alone_on_first: bool = False) -> Space:
        space = Space()
        for device, late in ((0, 0), (1, 30)):
            tpu = space.tpu(device)
            if alone_on_first and device == 0:
                tpu.modules.event("jit_warm(7)", 0, 50)
            for run in range(2):
                at = 1000 * (run + 1)
                tpu.modules.event(f"jit_step({PROGRAM})", at, 500)
                add_op(tpu, REDUCE, at + late, 200 - late, "all-reduce")
                add_op(tpu, REDUCE, at + 300 + late, 100 - late, "all-reduce")
        return space

    def test_ranks_share_an_instance(self, ingest: Any) -> None:
        _, query = ingest(self.two_devices(alone_on_first=True), mesh="tp=2")
        sql = """SELECT instance, list(start_ps ORDER BY device_id), any_value(axis),
                        list(rank_in_group ORDER BY device_id), bool_or(is_partial)
                 FROM collectives GROUP BY instance ORDER BY instance"""
        assert query(sql) == [
            (0, [1000, 1030], "tp", [0, 1], False),
            (1, [1300, 1330], "tp", [0, 1], False),
            (2, [2000, 2030], "tp", [0, 1], False),
            (3, [2300, 2330], "tp", [0, 1], False),
        ]

    def test_a_device_in_no_pair_of_a_permute_sends_nothing(self, ingest: Any) -> None:
        permute = (
            "%collective-permute.1 = f32[16,16]{1,0} collective-permute(f32[16,16]{1,0} %x), channel_id=1, "
            "source_target_pairs={{0,1}}"
        )
        space = Space()
        for device in range(3):
            tpu = space.tpu(device)
            tpu.modules.event(f"jit_step({PROGRAM})", 100, 100)
            add_op(tpu, permute, 110, 10, "collective-permute")
        _, query = ingest(space)
        assert query("SELECT device_id, message_bytes, wire_bytes FROM collectives ORDER BY ALL") == [
            (0, 1024, 1024),
            (1, 1024, 0),
            (2, 1024, 0),
        ]

    def test_a_rank_that_is_missing_makes_the_instance_partial(self, ingest: Any) -> None:
        space = self.two_devices()
        space.planes[1].lines = [line for line in space.planes[1].lines if line.name != "XLA Ops"]
        _, query = ingest(space)
        assert query("SELECT device_id, is_partial, count(*) FROM collectives GROUP BY ALL") == [(0, True, 4)]


class TestSteps:
    def test_step_line(self, ingest: Any) -> None:
        space = Space()
        tpu = space.tpu(0)
        for number, start, module in ((7, 0, "jit_prefill"), (8, 100, "jit_decode"), (9, 200, "jit_decode")):
            tpu.steps.event(str(number), start, 90)
            tpu.modules.event(f"{module}({PROGRAM})", start + 5, 80)
            add_op(tpu, DOT, start + 10, 20)
        _, query = ingest(space)
        sql = 'SELECT kind, name, "index", start_ps, end_ps, source FROM phases WHERE kind <> ? ORDER BY kind, start_ps'
        assert query(sql, "module") == [
            ("phase", "prefill", 0, 0, 90, "step line"),
            ("phase", "decode", 1, 100, 290, "step line"),
            ("step", "prefill", 7, 0, 90, "step line"),
            ("step", "decode", 8, 100, 190, "step line"),
            ("step", "decode", 9, 200, 290, "step line"),
        ]
        ops = "SELECT phase, step FROM ops WHERE line = 'XLA Ops' ORDER BY start_ps"
        assert query(ops) == [("prefill", 7), ("decode", 8), ("decode", 9)]

    def test_module_names_tell_prefill_and_decode(self, ingest: Any) -> None:
        """A program between the steps (here a copy) belongs to the step before."""
        space = Space()
        tpu = space.tpu(0)
        for name, start in (("prefill.9", 0), ("copy.3", 100), ("decode.5", 200), ("decode.5", 300)):
            tpu.modules.event(f"{name}({PROGRAM + start // 100 % 3})", start, 90)
            add_op(tpu, DOT, start + 10, 20)
        _, query = ingest(space)
        ops = "SELECT phase, step FROM ops WHERE line = 'XLA Ops' ORDER BY start_ps"
        assert query(ops) == [("prefill", 0), ("prefill", 0), ("decode", 1), ("decode", 2)]

    def test_a_capture_of_decode_alone_starts_at_step_one(self, ingest: Any) -> None:
        space = Space()
        tpu = space.tpu(0)
        for start in (0, 100):
            tpu.modules.event(f"decode.5({PROGRAM})", start, 90)
            add_op(tpu, DOT, start, 20)
        _, query = ingest(space)
        assert query("SELECT phase, step FROM ops WHERE is_leaf ORDER BY start_ps") == [("decode", 1), ("decode", 2)]

    def test_host_markers(self, ingest: Any) -> None:
        space = Space()
        tpu = space.tpu(0)
        tpu.modules.event(f"jit_f({PROGRAM})", 5_000, 90)
        thread = space.host().line("python", timestamp_ns=1)  # its events' offsets count from 1,000 ps
        thread.event("prefill", 1_000, 50_000, step_num=0, _r=1)
        thread.event("decode", 60_000, 20_000, step_num=1, _r=1)
        _, query = ingest(space)
        sql = 'SELECT kind, name, "index", start_ps, end_ps FROM phases WHERE device_id IS NULL ORDER BY kind, start_ps'
        assert query(sql) == [
            ("phase", "prefill", 0, 2_000, 52_000),
            ("phase", "decode", 1, 61_000, 81_000),
            ("step", "prefill", 0, 2_000, 52_000),
            ("step", "decode", 1, 61_000, 81_000),
        ]


class TestHosts:
    def host(self, name: str, start_ns: int) -> Space:
        space = Space(hostnames=[name])
        tpu = space.tpu(0)
        tpu.modules.event(f"jit_step({PROGRAM})", 1_000, 500)
        add_op(tpu, REDUCE, 1_100, 200, "all-reduce")
        space.profiled(start_ns, start_ns + 1_000_000)
        return space

    def test_event_ids_are_unique_over_hosts(self, ingest: Any) -> None:
        result, query = ingest(self.host("a", 5_000), self.host("b", 5_002))
        assert query("SELECT count(*), count(DISTINCT event_id), max(event_id) FROM ops") == [(4, 4, 3)]
        assert result.event_count == 4


class TestNothingIsLost:
    def test_unknown_planes_lines_and_stats_are_kept(self, ingest: Any) -> None:
        space = Space(errors=["a device did not answer"], warnings=["3 events dropped"])
        tpu = space.tpu(0)
        tpu.modules.event(f"jit_f({PROGRAM})", 0, 100)
        metadata = tpu.instruction(DOT, program_id=Unsigned(PROGRAM), flops=1024, my_new_fact="x")
        tpu.ops.event(
            metadata,
            0,
            10,
            wide=Unsigned(1 << 63),
            ratio=0.5,
            blob=b"\xff\x00",
            word="<b>",
            device_offset_ps=Unsigned(9),
        )
        tpu.line("A New Line", line_id=77).event("thing", 3, 4)
        space.plane("/device:CUSTOM:Megascale Trace").line("DCN").event("send", 1, 2, bytes=7)
        space.plane("/device:TPU:0 SparseCore 1").line("XLA Ops").event("sc_op", 5, 6)
        space.plane("/odd").line("line").event("event", 8, 9)
        counters = tpu.line("_counters_", line_id=0)
        counters.event("Power", 50, 0, watts=173.5)
        _, query = ingest(space)
        rows = query("SELECT plane, line, device_id, start_ps, duration_ps, is_leaf FROM ops ORDER BY ALL")
        assert rows == [
            ("/device:CUSTOM:Megascale Trace", "DCN", None, 1, 2, False),
            ("/device:TPU:0", "A New Line", 0, 3, 4, False),
            ("/device:TPU:0", "XLA Modules", 0, 0, 100, False),
            ("/device:TPU:0", "XLA Ops", 0, 0, 10, True),
            ("/device:TPU:0", "_counters_", 0, 50, 0, False),
            ("/device:TPU:0 SparseCore 1", "XLA Ops", 0, 5, 6, False),
        ]
        assert query("SELECT plane, thread, name, start_ps, duration_ps FROM host_events") == [
            ("/odd", "line", "event", 8, 9)
        ]
        stats = (
            """SELECT name, kind, int_value, double_value, string_value, bytes_value FROM event_stats ORDER BY name"""
        )
        assert query(stats) == [
            ("blob", "bytes", None, None, None, b"\xff\x00"),
            ("bytes", "int64", 7, None, None, None),
            ("ratio", "double", None, 0.5, None, None),
            ("watts", "double", None, 173.5, None, None),
            ("wide", "uint64", None, None, str(1 << 63), None),
            ("word", "string", None, None, "<b>", None),
        ]
        assert query("SELECT device_offset_ps FROM ops WHERE line = 'XLA Ops' AND is_leaf") == [(9,)]
        assert query("SELECT name, string_value FROM instruction_stats") == [("my_new_fact", "x")]
        assert query("SELECT name, device_id, start_ps, value FROM counters") == [("Power: watts", 0, 50, 173.5)]
        assert query("SELECT is_truncated, event_count FROM runs") == [(True, 7)]
        assert query("SELECT flag, host, detail FROM quality_flags ORDER BY flag, detail") == [
            ("events_dropped", "host0", "3 events dropped"),
            (
                "inferred_steps",
                None,
                "a step begins with each execution of jit_f, the program with most time; "
                "`--step` at ingest names another",
            ),
            ("profiler_error", "host0", "a device did not answer"),
            ("profiler_warning", "host0", "3 events dropped"),
        ]

    def test_what_planes_lines_and_metadata_say_is_kept(self, ingest: Any) -> None:
        space = Space()
        tpu = space.tpu(0)
        body = tpu.instruction("%multiply.1 = f32[8]{0} multiply(%a, %b)")
        loop = tpu.metadata("%while.1 = f32[8]{0} while(%x)", "while.1", children=[body, 99])
        tpu.ops.event(loop, 5, 100).event(body, 10, 20).event(4242, 200, 1)
        tpu.ops.display_name, tpu.ops.display_id, tpu.ops.duration_ps = "Ops of core 0", 30, 777
        tpu.stat_descriptions["peak_teraflops_per_second"] = "Peak of the matrix units"
        space.plane("/device:TPU:1", 10)
        host = space.host()
        host.metadata("f", "shown f", stats={"bytes": 3})
        host.line("python", 7, line_id=12).event("f", 1_000, 2_000)
        _, query = ingest(space)
        assert query("SELECT plane_index, plane, plane_id, kind, device_id, line_count FROM planes ORDER BY 1") == [
            (0, "/device:TPU:0", 2, "device", 0, 1),
            (1, "/device:TPU:1", 10, "device", None, 0),
            (2, "/host:CPU", 0, "host", None, 1),
        ]
        columns = (
            "line, kind, line_id, display_name, display_id, timestamp_ns, duration_ps, first_start_ps, last_end_ps"
        )
        assert query(f"SELECT plane_index, {columns}, event_count FROM lines ORDER BY line_index") == [
            (0, "XLA Ops", "ops", 3, "Ops of core 0", 30, 0, 777, 5, 201, 3),
            (2, "python", "thread", 12, None, None, 7, None, 8_000, 10_000, 1),
        ]
        values = 'plane_index, metadata_id, "index", event, name, int_value, string_value'
        assert query(f"SELECT {values} FROM metadata_stats ORDER BY 1, 2, 3") == [
            (
                0,
                loop,
                0,
                "%while.1 = f32[8]{0} while(%x)",
                "child_id",
                body,
                "%multiply.1 = f32[8]{0} multiply(%a, %b)",
            ),
            (0, loop, 1, "%while.1 = f32[8]{0} while(%x)", "child_id", 99, None),
            (2, 1, 0, "f", "bytes", 3, None),
            (2, 1, 1, "f", "display_name", None, "shown f"),
        ]
        described = [(0, "peak_teraflops_per_second", "Peak of the matrix units")]
        assert query("SELECT plane_index, name, description FROM stat_metadata") == described
        unnamed = "SELECT o.start_ps, s.int_value FROM ops o JOIN event_stats s USING (event_id) WHERE s.name = ?"
        assert query(unnamed, "metadata_id") == [(200, 4242)]
        assert query("SELECT flag, detail FROM quality_flags") == [("silent_device", "/device:TPU:1 has no event")]

    @pytest.mark.parametrize("has_counters", [False, True])
    def test_a_run_whose_devices_recorded_nothing_is_flagged(self, ingest: Any, has_counters: bool) -> None:
        space = Space()
        space.host().line("python").event("decode", 0, 100)
        for ordinal in (0, 1):
            tpu = space.tpu(ordinal)
            assert tpu.ops.name == "XLA Ops" and tpu.modules.name == "XLA Modules"  # the lines are there, and empty
            if has_counters:
                tpu.line("counters_1").event("MXU", 1, 0, value=7.0)
        result, query = ingest(space)
        assert result.entry.flags == ["no_device_events"]
        [(sentence,)] = query("SELECT detail FROM quality_flags")
        assert sentence.startswith("/device:TPU:0 of ") and sentence.endswith("so what they ran is lost")

    def test_a_host_whose_devices_recorded_nothing_is_flagged_beside_one_that_has_events(self, tmp_path: Path) -> None:
        for host, has_events in (("a", True), ("b", False)):
            space = Space(hostnames=(host,))
            space.host().line("python").event("decode", 0, 100)
            tpu = space.tpu(0)
            if has_events:
                tpu.modules.event("jit_step(1)", 0, 9)
                tpu.ops.event("fusion.1", 0, 9)
            space.write(tmp_path / "plugins" / "profile" / "t" / f"{host}.xplane.pb")
        result = ingest_one(tmp_path / "plugins", tmp_path / "w")
        assert "silent_device" in result.entry.flags

    def test_a_device_with_executions_and_no_op_is_flagged(self, ingest: Any) -> None:
        space = Space()
        space.tpu(0).modules.event("jit_step(1)", 0, 9).event("jit_step(1)", 10, 9)
        result, _ = ingest(space)
        assert "missing_ops" in result.entry.flags

    @pytest.mark.parametrize("start_ns", [1_741_722_099_081_000_000, None])
    def test_absolute_timestamps_count_from_the_start_of_the_profile(self, ingest: Any, start_ns: int | None) -> None:
        space = Space()
        space.host().line("t", 1_741_722_099_081_044_120).event("f", 5, 6)
        space.planes[0].line("u", 1_741_722_099_081_044_121).event("g", 7, 8)
        if start_ns is not None:
            space.profiled(start_ns, start_ns + 1_000_000)
        _, query = ingest(space)
        first = 44_120_000 if start_ns is not None else 0
        assert query("SELECT name, start_ps FROM host_events ORDER BY 1") == [("f", first + 5), ("g", first + 1_007)]
        assert query("SELECT timestamp_ns FROM lines ORDER BY 1 LIMIT 1") == [(1_741_722_099_081_044_120,)]
        assert query("SELECT profile_start_ns FROM runs") == [(start_ns or 1_741_722_099_081_044_120,)]

    def test_absolute_timestamps_among_others_are_refused(self, tmp_path: Path) -> None:
        space = Space()
        space.host().line("t", 1_741_722_099_081_044_120).event("f", 5, 6)
        space.tpu(0).ops.event("op", 1, 2)
        with pytest.raises(CaptureError, match="beyond int64 picoseconds"):
            ingest_one(space.write(tmp_path / "x.xplane.pb"), tmp_path / "w")

    def test_planes_and_lines_are_kept_named_and_typed(
        self, tmp_path: Path, tables_in: Callable[[Path], Query]
    ) -> None:
        lines = {
            ("/device:TPU:0 SparseCore 1", "sparse_core"): {"Sparse Core Ops": "ops", "Sparse Core Steps": "steps"},
            ("/device:CUSTOM:Megascale Trace", "megascale"): {"Collective Optical Flow": "dcn"},
            ("/device:CUSTOM:anything", "custom"): {"x": "unknown"},
            ("/device:TPU:0", "device"): {
                "counters_0": "counters",
                "Scalar Unit": "llo",
                "TC Overlay": "overlay",
                "Tensor Core Sync Flag": "sync_flags",
                "Host Offload Ops": "offload",
            },
            ("/host:CPU", "host"): {"DcnHostTraffic": "dcn"},
            ("/host:TPU-runtime", "host"): {"tpu_driver/7": "thread"},
            ("/something:new", "unknown"): {"a line": "unknown"},
        }
        space = Space()
        for (name, _), kinds in lines.items():
            plane = space.plane(name)
            for line in kinds:
                plane.line(line).event("event", 10, 5, value=1.5)
        path = space.write(tmp_path / "x.xplane.pb")
        ingest_one(path, tmp_path / "w")
        query = tables_in(tmp_path / "w")
        sql = "SELECT p.plane, p.kind, line, l.kind, event_count FROM lines AS l JOIN planes AS p USING (plane_index)"
        expected = {(*plane, line, kind, 1) for plane, kinds in lines.items() for line, kind in kinds.items()}
        assert set(query(sql)) == expected
        assert query("SELECT DISTINCT name, double_value, count(*) FROM event_stats GROUP BY ALL") == [
            ("value", 1.5, len(expected))
        ]
        assert query("SELECT name, value FROM counters") == [("event: value", 1.5)]
        assert compare_with_capture(find_captures(path)[0], tmp_path / "w").differences == []

    def test_a_capture_of_the_host_alone(self, ingest: Any) -> None:
        space = Space()
        space.host().line("python").event("f", 1, 2)
        result, query = ingest(space)
        assert query("SELECT backend, device_count FROM runs") == [("unknown", 0)]
        assert any("no device events" in note for note in result.notes)


def test_manifest_and_card_add_facts(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    space = Space()
    for device in range(2):
        tpu = space.tpu(device)
        tpu.modules.event(f"decode({PROGRAM})", 0, 100)
        add_op(tpu, REDUCE, 0, 50, "all-reduce")
    space.profiled(1_000_000, 2_000_000)
    home = tmp_path / "llama"
    space.write(home / "plugins" / "profile" / "t" / "vm.xplane.pb")
    manifest = {
        "name": "llama-dp2",
        "model": {"name": "tiny", "family": "llama", "num_layers": 2},
        "dtype": "float32",
        "batch_size": 4,
        "input_length": 32,
        "output_length": 17,
        "mesh": {"axes": {"dp": 2, "tp": 1}},
        "phases": [{"name": "decode", "step": 1, "start_ns": 1_000_010, "end_ns": 1_000_020}],
        "hosts": ["vm", "elsewhere"],
    }
    (home / "manifest.json").write_text(json.dumps(manifest))
    result = ingest_one(home, tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    assert result.name == "llama-dp2"
    sql = "SELECT name, model_family, batch_size, output_length, mesh, dp, tp, pp, num_layers, missing_hosts FROM runs"
    assert query(sql) == [("llama-dp2", "llama", 4, 17, "dp=2", 2, 1, None, 2, "elsewhere")]
    assert query("SELECT DISTINCT axis FROM collectives") == [("dp",)]
    host = 'SELECT name, "index", start_ps, end_ps, source FROM phases WHERE device_id IS NULL AND kind = ?'
    assert query(host, "step") == [("decode", 1, 10_000, 20_000, "manifest")]


@pytest.mark.parametrize("start_ns", [0, START_NS - 2 * DAY_NS, START_NS + 107 * DAY_NS, 2**63 - 1, -(2**63)])
def test_phases_of_another_time_are_left_out_and_flagged(
    tmp_path: Path, tables_in: Callable[[Path], Query], start_ns: int
) -> None:
    """A manifest of another capture, or a clock that was never set; 107 days are more than 64 bits of picoseconds."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("decode(42)", 0, 100)
    tpu.ops.event(tpu.instruction("%a = f32[2]{0} add(f32[2]{0} %x, f32[2]{0} %y)"), 10, 20)
    space.profiled(START_NS, START_NS + 10**9)
    space.write(tmp_path / "c" / "plugins" / "profile" / "p" / "vm.xplane.pb")
    phases = [{"name": "decode", "step": n, "start_ns": s, "end_ns": s} for n, s in ((1, START_NS), (2, start_ns))]
    (tmp_path / "c" / "manifest.json").write_text(json.dumps({"name": "far", "phases": phases}))
    result = ingest_one(tmp_path / "c", tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    assert query("SELECT count(*) FROM phases WHERE source = 'manifest'") == [(0,)]
    [(detail,)] = query("SELECT detail FROM quality_flags WHERE flag = 'clock_jump'")
    assert re.fullmatch(r"the manifest's phases lie [\d,]+ days from the profile and are left out", detail)
    assert any(detail in note for note in result.notes)


def test_a_card_names_the_chip_where_the_capture_does_not(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    space = Space()
    for device in range(2):
        tpu = space.tpu(device)
        tpu.modules.event(f"decode({PROGRAM})", 0, 100)
        if device == 0:
            tpu.stats.clear()
    space.write(tmp_path / "run" / "vm.xplane.pb")
    topology, chip = "{bandwidth_gbps: [N/A, 800]}", "{type: TPU, model: tpu_v6e}"
    card = f"workload: {{hardware: {{network_topo: {topology}, xpu_spec: {chip}}}}}"
    (tmp_path / "run" / "card.yaml").write_text(card)
    ingest_one(tmp_path / "run", tmp_path / "warehouse")
    devices = tables_in(tmp_path / "warehouse")(
        "SELECT kind, peak_flops_per_s, peak_hbm_gbps, peak_ici_gbps, peak_source FROM devices ORDER BY device_id"
    )
    assert devices == [
        ("TPU v6e", 918e12, 1638.0, 400.0, "card"),
        ("TPU v6 Lite", 918e12, 1637.99, 400.0, "both"),
    ]


@pytest.mark.parametrize(
    ("option", "card", "expected"),
    [
        ("TPU7x", None, [("TPU7x", 2307e12 / 2, "option", 0, 0), ("TPU7x", 2307e12 / 2, "option", 0, 1)]),
        ("tpu_v6e", None, [("TPU v6e", 918e12, "option", None, None)] * 2),
        ("TPU7x", "tpu_v6e", [("TPU v6e", 918e12, "card", None, None)] * 2),  # the card is of this capture
        ("H100", None, [(None, None, None, None, None)] * 2),  # it does not describe a TPU
    ],
)
def test_the_user_names_the_chip_where_nothing_else_does(
    tmp_path: Path, tables_in: Any, option: str, card: str | None, expected: list[Any]
) -> None:
    space = Space()
    for device in range(2):
        space.plane(f"/device:TPU:{device}").line("XLA Modules").event(f"decode({PROGRAM})", 0, 100)
    capture = space.write(tmp_path / "run" / "vm.xplane.pb")
    if card:
        (tmp_path / "run" / "card.yaml").write_text(
            f"workload: {{hardware: {{xpu_spec: {{type: TPU, model: {card}}}}}}}"
        )
    home = tmp_path / "warehouse"
    plain = ingest_one(capture.parent, home)
    result = ingest_one(capture.parent, home, RunOptions.parse(device=option))
    assert result.run_id == plain.run_id and result.entry.version != plain.entry.version
    devices = "SELECT kind, peak_flops_per_s, peak_source, chip_id, core_id FROM devices ORDER BY device_id"
    assert tables_in(home)(devices) == expected


def test_a_chip_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"the peaks of a 'TPU v99' are not known; known are TPU v4, .*MI300X"):
        RunOptions.parse(device="TPU v99")


def test_an_odd_number_of_devices_of_two_a_chip_says_nothing_of_chips(tmp_path: Path, tables_in: Any) -> None:
    space = Space()
    for device in range(3):
        space.tpu(device, "TPU7x").modules.event(f"decode({PROGRAM})", 0, 100)
    ingest_one(space.write(tmp_path / "vm.xplane.pb"), tmp_path / "warehouse")
    assert tables_in(tmp_path / "warehouse")("SELECT DISTINCT kind, chip_id FROM devices") == [("TPU7x", None)]


@pytest.mark.parametrize(
    ("kind", "rates", "memory", "links"),
    [  # TFLOP/s of bf16, int8 and fp8; links of a chip times GB/s of a link in one direction
        ("TPU v4", (275, 275, None), 1200.0, 6 * 50.0),
        ("TPU v5 lite", (197, 393, None), 819.0, 4 * 50.0),
        ("TPU v5p", (459, 918, 459), 2765.0, 6 * 100.0),
        ("TPU v6 lite", (918, 1836, 918), 1638.0, 4 * 100.0),
        ("v6e", (918, 1836, 918), 1638.0, 4 * 100.0),
        (
            "TPU7x",
            (2307 / 2, None, 4614 / 2),
            7380 / 2,
            6 * 100.0,
        ),  # a device is half of a chip, the links are all of it
    ],
)
def test_the_peaks_of_a_chip_are_those_of_its_documentation(
    kind: str, rates: tuple[int | None, ...], memory: float, links: float
) -> None:
    device = Device(0, "vm", "/device:TPU:0", 0, "tpu")
    complete_devices([device], "tpu", kind)
    assert (device.peak_hbm_gbps, device.peak_ici_gbps, device.link, device.peak_link_gbps) == (
        memory, links, "ici", links,
    )  # fmt: skip
    peaks = device.peak_flops_per_s, device.peak_int8_flops_per_s, device.peak_fp8_flops_per_s
    assert peaks == tuple(rate and rate * 1e12 for rate in rates)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ("{moe: false, model_arch: {num_params: 70}}", 70),
        ("{moe: false, model_arch: {num_params: 70, num_params_active: 60}}", 60),
        ("{moe: true, model_arch: {num_params: 70}}", None),
        ("{model_arch: {num_params: 70}}", None),
    ],
)
def test_a_dense_model_uses_all_of_its_parameters(tmp_path: Path, facts: str, expected: int | None) -> None:
    (tmp_path / "card.yaml").write_text(f"workload: {{model: {facts}}}")
    assert card_facts(load_card(tmp_path / "card.yaml")).get("num_params_active") == expected


def test_a_manifest_tells_experts_and_a_shared_table(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    space = Space()
    space.tpu(0).modules.event(f"decode({PROGRAM})", 0, 100)
    for name, model in {
        "dense": {"num_params": 70, "vocab_size": 9, "tie_word_embeddings": True},
        "sparse": {"num_params": 70, "num_experts": 8, "tie_word_embeddings": False},
    }.items():
        space.write(tmp_path / name / "vm.xplane.pb")
        (tmp_path / name / "manifest.json").write_text(json.dumps({"name": name, "model": {"name": "m"} | model}))
        ingest_one(tmp_path / name, tmp_path / f"w-{name}")
    sql = "SELECT num_params_active, vocab_size, has_tied_embeddings FROM runs"
    assert tables_in(tmp_path / "w-dense")(sql) == [(70, 9, True)]
    assert tables_in(tmp_path / "w-sparse")(sql) == [(None, None, False)]


def test_costs_that_are_given_go_to_the_kernels_they_name(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event(f"decode({PROGRAM})", 0, 400)
    kernel = '%RPA-x.{} = bf16[8,8] custom-call(bf16[8,8] %a), custom_call_target="tpu_custom_call"'
    for at, number in enumerate((3, 17)):
        stats = {"flops": 0, "model_flops": 0, "bytes_accessed": 0, "program_id": Unsigned(PROGRAM)}
        tpu.ops.event(tpu.instruction(kernel.format(number), hlo_category="custom-call", **stats), 100 * at, 100)
    add_op(tpu, DOT, 200, 50)
    add_op(tpu, REDUCE, 250, 50, "all-reduce")
    file = space.write(tmp_path / "vm.xplane.pb")
    warehouse = tmp_path / "warehouse"
    before = ingest_one(file, warehouse)
    (tmp_path / "c.toml").write_text('["RPA-*"]\nflops = 5\n["all-reduce"]\nbytes = 7\n')
    costs = load_costs(tmp_path / "c.toml")

    result = ingest_one(file, warehouse, RunOptions(costs=costs))
    assert (result.run_id, result.status) == (before.run_id, "ingested")
    assert "c.toml gives the costs of RPA-* (2 instructions); all-reduce matches none" in result.notes
    assert "given_costs" in result.entry.flags
    query = tables_in(warehouse)
    assert query("SELECT costs FROM runs") == [(costs.text,)]
    sql = "SELECT name, flops, given_flops, bytes_accessed, given_bytes_accessed FROM instructions"
    assert query(f"{sql} WHERE opcode = 'custom-call' ORDER BY name") == [
        ("RPA-x.17", 0, 5, 0, None),
        ("RPA-x.3", 0, 5, 0, None),
    ]
    assert query(f"{sql} WHERE given_bytes_accessed IS NOT NULL") == []

    assert ingest_one(file, warehouse, RunOptions(costs=costs)).status == "unchanged"
    assert ingest_one(file, warehouse).status == "unchanged"
    (tmp_path / "c.toml").write_text('["RPA-*"]\nflops = 6\n')
    assert ingest_one(file, warehouse, RunOptions(costs=load_costs(tmp_path / "c.toml"))).status == "ingested"
    assert compare_with_capture(find_captures(file)[0], warehouse).differences == []


def test_a_given_mesh_that_does_not_fit_replaces_nothing(tmp_path: Path) -> None:
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event(f"decode({PROGRAM})", 0, 100)
    file, warehouse = space.write(tmp_path / "vm.xplane.pb"), tmp_path / "warehouse"
    before = ingest_one(file, warehouse).entry
    with pytest.raises(CaptureError, match="the mesh tp=4 has 4 devices and the capture 1"):
        ingest_one(file, warehouse, RunOptions(Mesh.parse("tp=4")))
    assert Lake(warehouse).runs() == [before]
    assert leftovers(Lake(warehouse), 0) == []


def test_a_mesh_of_another_size_is_said(tmp_path: Path, tables_in: Callable[[Path], Query]) -> None:
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event(f"decode({PROGRAM})", 0, 100)
    add_op(tpu, REDUCE, 0, 50, "all-reduce")
    space.write(tmp_path / "run" / "vm.xplane.pb")
    (tmp_path / "run" / "manifest.json").write_text(json.dumps({"name": "one", "mesh": {"axes": {"tp": 4}}}))
    result, query = (
        ingest_one(tmp_path / "run", tmp_path / "warehouse"),
        tables_in(tmp_path / "warehouse"),
    )
    assert query("SELECT axis, is_partial FROM collectives") == [("unknown", True)]
    assert any("4 devices and the capture 1" in note for note in result.notes)
    assert query("SELECT missing_devices FROM runs") == [(3,)]
