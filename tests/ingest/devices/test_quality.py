"""The quality flags of a run."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from tiny_capture import run_step, tiny_capture
from xplane_builder import Space, TpuPlane, Unsigned
from xplane_reference import MESSAGES

from tracewarehouse.ingest.columns.profiler_names import is_compilation
from tracewarehouse.ingest.devices.flags import FLAGS, Flag
from tracewarehouse.ingest.devices.quality import uneven_steps
from tracewarehouse.ingest.devices.timeline import Run, Step, Timeline
from tracewarehouse.ingest.pipeline import ingest_one
from tracewarehouse.warehouse import Warehouse


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("TfrtTpuCompiler::Compile", True),
        ("backend_compile", True),
        ("PjRtComputationClient::Compile", True),
        ("CpuCompiler::CompileCpuExecutable", True),
        ("PjRtCpuClient::CompileAndLoad", True),
        ("TfrtCpuClient::Compile (HLO)", True),
        ("SetupCompileTimeHelpfulBackendConfigInfo", False),
        ("$compilation.py:94 valid_runtime_modes", False),
        ("$re.py:11 compile", False),
        ("_clear_pending_ops_before_compile", False),
        ("CompileOptionsProto", False),
        ("precompiled", False),
    ],
)
def test_which_events_are_compilations(name: str, is_one: bool) -> None:
    assert is_compilation(name) == is_one


def test_the_vocabulary_is_closed() -> None:
    with pytest.raises(ValueError, match="nonsense is not a quality flag"):
        Flag("nonsense", "x")
    assert all(sentence.endswith(".") for sentence in FLAGS.values())


class TestQuality:
    """Each flag, from a capture that has just that fault."""

    def flags(self, query: Any) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = query('SELECT flag, detail FROM quality_flags ORDER BY "index"')
        return found

    def test_a_clean_capture_has_none(self, ingest: Any) -> None:
        space = tiny_capture()
        _, query = ingest(space, mesh="tp=2")
        assert self.flags(query) == []

    def test_dropped_traces_of_a_plane(self, ingest: Any) -> None:
        space = tiny_capture()
        space.planes[0].stat("dropped_traces", Unsigned(12))
        space.planes[1].stat("dropped_traces", Unsigned(0))
        _, query = ingest(space, mesh="tp=2")
        assert self.flags(query) == [("events_dropped", "/device:TPU:0: dropped_traces is 12")]
        assert query("SELECT is_truncated FROM runs") == [(True,)]

    def test_compilation_inside_the_capture(self, ingest: Any) -> None:
        space = tiny_capture()
        thread = next(p for p in space.planes if p.name == "/host:CPU").line("compiler")
        for name in ("TfrtTpuCompiler::Compile", "backend_compile", "backend_compile", "$re.py:11 compile"):
            thread.event(name, 5, 6)
        _, query = ingest(space, mesh="tp=2")
        assert self.flags(query) == [("compiled_in_capture", "1 x TfrtTpuCompiler::Compile, 2 x backend_compile")]

    @pytest.mark.parametrize(
        ("start", "duration", "what"),
        [
            (-5_000_000_000_000, 1, "begins 5.0 s before the profile"),
            (9_001_000_000_000, 0, "ends 9.0 s after the profile"),
            (50, -1, "1 events have a negative duration"),
        ],
    )
    def test_times_that_cannot_be(self, ingest: Any, start: int, duration: int, what: str) -> None:
        space = tiny_capture()
        space.planes[0].line("odd").event("x", start, duration)
        _, query = ingest(space, mesh="tp=2")
        assert self.flags(query) == [("clock_jump", f"line 'odd' of /device:TPU:0: {what}")]

    def test_a_span_that_no_profile_lasts(self, ingest: Any) -> None:
        space = Space()
        space.tpu(0).ops.event("a", 0, 1).event("b", 7_200_000_000_000_000, 1)
        _, query = ingest(space)
        assert [f for f, _ in self.flags(query)] == ["clock_jump"]

    def test_many_alike_are_summed_up(self, ingest: Any) -> None:
        _, query = ingest(tiny_capture_with_warnings(9), mesh="tp=2")
        found = [d for f, d in self.flags(query) if f == "profiler_warning"]
        assert found == [*(f"warning {i}" for i in range(5)), "and 4 more like these"]

    def test_an_event_cap(self, ingest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tracewarehouse.ingest.devices.quality.EVENT_CAPS", frozenset({32}))
        _, query = ingest(tiny_capture(), mesh="tp=2")
        assert self.flags(query) == [
            ("event_cap", "line 'XLA Ops' of /device:TPU:0 has 32 events"),
            ("event_cap", "line 'XLA Ops' of /device:TPU:1 has 32 events"),
        ]

    def test_a_program_that_ran_more_often_on_one_device(self, ingest: Any) -> None:
        space = tiny_capture()
        tpu = space.planes[0]
        assert isinstance(tpu, TpuPlane)
        run_step(tpu, 12, 700_000_000, 1, 0)
        _, query = ingest(space, mesh="tp=2")
        assert self.flags(query) == [
            ("partial_collectives", "4 executions of collectives lack ranks whose devices are in the capture"),
            ("uneven_launches", "decode.12 ran 4 times on device 0 and 3 times on device 1"),
        ]


def tiny_capture_with_warnings(count: int) -> Space:
    space = tiny_capture()
    space.warnings = [f"warning {i}" for i in range(count)]
    return space


def all_reduces(*sizes: int) -> Space:
    """Two cores run an all-reduce of each number of floats, and a text that breaks off within its shape."""
    space = Space()
    for device in range(2):
        tpu = space.tpu(device)
        tpu.modules.event("step(1)", 0, 151_000_000)
        for number, size in enumerate(sizes):
            hlo = (
                f"%all-reduce.{number} = f32[{size}]{{0}} all-reduce(f32[{size}]{{0}} %x), channel_id={number + 1}, "
                "replica_groups={{0,1}}, to_apply=%add"
            )
            facts = {"program_id": Unsigned(1), "flops": 1, "bytes_accessed": 1}
            for repeat in range(50):
                tpu.ops.event(tpu.instruction(hlo, **facts), 1_000_000 * (1 + 50 * number + repeat), 500_000)
        tpu.ops.event(tpu.instruction("%fusion.9 = f32[8", "fusion.9"), 150_000_000, 500_000)
    return space


def test_absurd_sizes_and_unreadable_texts_are_kept_and_named(ingest: Any, tmp_path: Path) -> None:
    """Sizes that no memory holds are unknown; no sum over them leaves 64 bits, whichever metric is asked."""
    least, wide = 1 << 41, 1 << 62  # the least that is absurd, and one whose bytes leave 64 bits
    result, query = ingest(all_reduces(least, 8, wide))
    assert result.entry.flags == ["absurd_sizes", "hlo_unreadable", "inferred_axes", "inferred_steps"]
    sql = "SELECT detail FROM quality_flags WHERE flag = ? ORDER BY 1"
    assert query(sql, "absurd_sizes") == [(f"all-reduce.0: f32[{least}]",), (f"all-reduce.2: f32[{wide}]",)]
    assert query(sql, "hlo_unreadable") == [("fusion.9: its text is no HLO instruction",)]
    assert query(
        "SELECT name, opcode, collective, message_bytes, shape, hlo_text IS NOT NULL FROM instructions "
        "WHERE opcode IS NOT NULL OR name LIKE 'fusion%' ORDER BY 1"
    ) == [
        ("all-reduce.0", "all-reduce", "all-reduce", None, f"f32[{least}]", True),
        ("all-reduce.1", "all-reduce", "all-reduce", 32, "f32[8]", True),
        ("all-reduce.2", "all-reduce", "all-reduce", None, f"f32[{wide}]", True),
        ("fusion.9", None, None, None, None, False),
    ]
    assert ("%fusion.9 = f32[8",) in query("SELECT string_value FROM instruction_stats WHERE name = 'name'")
    assert query("SELECT count(*), count(message_bytes) FROM collectives") == [(300, 100)]
    with Warehouse(tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT sum(message_bytes) FROM models.collective_work").scalar() == 32 * 100
        for metric in warehouse.definitions.metrics:
            warehouse.query(f"SELECT * FROM {metric.view.qualified}").rows()


def test_the_largest_size_that_is_believed_adds_up_in_64_bits(ingest: Any, tmp_path: Path) -> None:
    result, _ = ingest(all_reduces(1 << 40))
    assert "absurd_sizes" not in result.entry.flags
    with Warehouse(tmp_path / "warehouse") as warehouse:
        assert warehouse.query("SELECT sum(message_bytes) FROM models.collective_work").scalar() == 100 << 42
        for metric in warehouse.definitions.metrics:
            warehouse.query(f"SELECT * FROM {metric.view.qualified}").rows()


def test_groups_of_a_few_bytes_that_name_very_many_devices_are_bounded(ingest: Any) -> None:
    """Twenty instructions, each with another order of 131,072 devices; the first 8 fit into what is read."""
    space = Space()
    tpu = space.tpu(0)
    tpu.modules.event("step(1)", 0, 100_000_000)
    for number in range(20):
        shape = f"{1 << 17 - number % 17},{1 << number % 17}"
        hlo = (
            f"%all-reduce.{number} = f32[8]{{0}} all-reduce(f32[8]{{0}} %x), channel_id={number + 1}, "
            f"replica_groups=[{shape}]<=[131072], to_apply=%add"
        )
        tpu.ops.event(tpu.instruction(hlo, program_id=Unsigned(1)), 1_000_000 * number, 500_000)
    result, query = ingest(space)
    assert "groups_left_out" in result.entry.flags
    known = "SELECT count(*), count(replica_groups), count(hlo_text), count(message_bytes) FROM instructions"
    assert query(f"{known} WHERE collective = 'all-reduce'") == [(20, 8, 20, 20)]
    assert query("SELECT count(*) FROM collectives") == [(20,)]
    assert query("SELECT count(*) FROM collective_groups") == [(8 << 17,)]


@pytest.mark.parametrize(("is_embedded", "collectives"), [(True, 32), (False, 0)])
def test_a_capture_without_its_programs_says_that_collectives_are_unknown(
    tmp_path: Path, tables_in: Any, is_embedded: bool, collectives: int
) -> None:
    """A real capture of JAX on virtual CPU devices, with and without the plane that holds its HLO."""
    capture = Path(__file__).parents[1] / "captures" / "jax-dp2tp2.xplane.pb.gz"
    space = MESSAGES["XSpace"].FromString(gzip.decompress(capture.read_bytes()))
    if not is_embedded:
        [place] = [i for i, plane in enumerate(space.planes) if plane.name == b"/host:metadata"]
        del space.planes[place]
    (tmp_path / "c.xplane.pb").write_bytes(space.SerializeToString())
    result = ingest_one(tmp_path / "c.xplane.pb", tmp_path / "w")
    query = tables_in(tmp_path / "w")
    assert query("SELECT count(*) FROM collectives") == [(collectives,)]
    assert ("missing_hlo" in result.entry.flags) is not is_embedded


def test_devices_with_programs_of_their_own_have_steps_of_their_own() -> None:
    """Two prefill twice while the others decode; a copy runs on all. The last lost half of its steps."""

    def device(program: str, steps: int) -> Timeline:
        runs = [Run(program, 1, 100 * i, 100 * i + 90) for i in range(steps)]
        runs.append(Run("jit_copy", 2, 100 * steps, 100 * steps + 2))
        return Timeline(runs, [Step(i, None, "step", 100 * i, 100 * i + 90, "module name") for i in range(steps)])

    timelines = [(i, device(*which)) for i, which in enumerate([("jit_prefill", 2)] * 2 + [("jit_decode", 8)] * 2)]
    assert uneven_steps(timelines) == []
    [flag] = uneven_steps([*timelines, (4, device("jit_decode", 4))])
    assert flag.detail == "device 2 has 8 steps, device 4 has 4"
