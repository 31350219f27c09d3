"""A compiled program is a run without times: real programs of the TPU compiler, and small ones by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.hlo.instruction import Loop
from tracewarehouse.ingest.hlo.program import ModuleText, Program
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.formats import HLO_PROTO, HLO_TEXT, file_format, open_trace
from tracewarehouse.warehouse import Warehouse, open_warehouse

COUNTER = """  %three = s32[] constant(3)
  %more = s32[] add(%count, %three)
  ROOT %next = (s32[], f32[4]{0}) tuple(%more, %sum)"""
CONDITION = """  %reached = s32[] get-tuple-element(%tested), index=0
  %limit = s32[] constant(15)
  ROOT %goes = pred[] compare(%reached, %limit), direction=LT"""
"""A loop that counts from 0 to 15 in steps of 3."""

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")

COUNTED = {
    "llama-tp8.decode.v6e-2x4": ("tp=8", (4, 2, 0, 0, 0)),
    "llama-dp2tp4.prefill.v6e-2x4-libtpu21": ("dp=2,tp=4", (4, 2, 0, 0, 0)),
    "llama-tp8-sp.prefill.v6e-2x4": ("tp=8", (1, 6, 4, 0, 0)),
    "llama-tp8-ulysses.prefill.v5e-2x4": ("tp=8", (2, 3, 0, 8, 0)),
    "deepseek_v2-tp8.decode.v6e-2x4": ("tp=8", (4, 2, 0, 0, 0)),
    "deepseek_v3-dp2ep2tp2.decode.v6e-2x4": ("dp=2,ep=2,tp=2", (5, 3, 0, 2, 0)),
    "deepseek_v3-ep8.decode.v5e-2x4": ("ep=8", (0, 0, 0, 2, 0)),
    "llama-pp2tp4.decode.v6e-2x4": ("pp=2,tp=4", (7, 9, 0, 0, 2)),
    "qwen3_moe-pp2ep4.decode.v6e-2x4-libtpu21": ("pp=2,ep=4", (1, 11, 0, 6, 2)),
    "deepseek_v3-tp8-sp.prefill.v6e-2x4-libtpu21": ("tp=8", (3, 13, 4, 0, 0)),
}
"""Mesh of each program, and its collectives by kind, counted with grep in its text; spread ones once."""

SMALL = """HloModule decode.7, is_scheduled=true, entry_computation_layout={()->f32[4]{0}}, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%a, %b)
}

%body (carried: (s32[], f32[4])) -> (s32[], f32[4]) {
  %carried = (s32[], f32[4]{0}) parameter(0)
  %count = s32[] get-tuple-element(%carried), index=0
  %part = f32[4]{0} get-tuple-element(%carried), index=1
  %sum = f32[4]{0} all-reduce(%part), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add
  ROOT %next = (s32[], f32[4]{0}) tuple(%count, %sum)
}

%condition (tested: (s32[], f32[4])) -> pred[] {
  %tested = (s32[], f32[4]{0}) parameter(0)
  ROOT %goes = pred[] constant(true)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %first = (s32[], f32[4]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[4]{0}) while(%first), condition=%condition, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
  %y = f32[4]{0} get-tuple-element(%loop), index=1
  %start = (f32[4]{0}, f32[16]{0}) all-gather-start(%y), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
  %done = f32[16]{0} all-gather-done(%start)
  ROOT %z = f32[4]{0} slice(%done), slice={[0:4]}
}
"""
"""Four devices, 16 bytes reduced three times along one axis and 64 bytes gathered on all, asynchronously."""


@pytest.fixture
def warehouse(tmp_path: Path) -> Any:
    with open_warehouse(tmp_path / "warehouse", create=True) as opened:
        yield opened


def _rows(warehouse: Warehouse, sql: str) -> list[tuple[Any, ...]]:
    return warehouse.query(sql).rows()


def _write(folder: Path, text: str) -> Path:
    path = folder / "small.hlo.txt"
    path.write_text(text)
    return path


ENDINGS = ("txt.gz", "hlo.pb.gz")
QUESTIONS = {
    "counts": "SELECT run_id, kind, phase, SUM(executions_per_step), MAX(devices) FROM metrics.collective_count "
    "GROUP BY ALL",
    "untimed": "SELECT run_id, COUNT(start_ps), COUNT(exposed_ps), COUNT(previous_axis) FROM main.collectives "
    "GROUP BY ALL",
    "axes": "SELECT DISTINCT run_id, axis FROM main.collectives",
    "metrics": "SELECT DISTINCT run_id, metric FROM metrics.all_values ORDER BY ALL",
    "reasons": "SELECT DISTINCT run_id, unmet FROM metrics.missing ORDER BY ALL",
}


@pytest.fixture(scope="module")
def told(shared_traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a warehouse of all programs says of each, by path and question: DuckDB plans a question once for all."""
    folder = shared_traces / "tpu-hlo"
    meshes = {folder / f"{name}.{e}": mesh for name, (mesh, _) in COUNTED.items() for e in ENDINGS}
    with open_warehouse(tmp_path_factory.mktemp("programs") / "warehouse", create=True) as warehouse:
        runs = {path: warehouse.ingest(path, mesh=mesh)[0] for path, mesh in meshes.items() if path.exists()}
        answers = {question: _rows(warehouse, sql) for question, sql in QUESTIONS.items()}
    assert len({run.run_id for run in runs.values()}) == len(runs)
    return {
        path: {question: [row[1:] for row in rows if row[0] == run.run_id] for question, rows in answers.items()}
        | {"name": run.name}
        for path, run in runs.items()
    }


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("name", COUNTED)
def test_programs_of_the_tpu_compiler_have_the_collectives_that_stand_in_them(
    shared_traces: Path, told: Any, name: str, ending: str
) -> None:
    _, counts = COUNTED[name]
    path = shared_traces / "tpu-hlo" / f"{name}.{ending}"
    if not path.exists():
        pytest.skip("the compiled programs are not here")
    of_program = told[path]
    assert of_program["name"] == name
    phase = name.split(".")[1]
    expected = {(kind, phase, count, 8) for kind, count in zip(_KINDS, counts, strict=True) if count}
    assert set(of_program["counts"]) == expected
    assert of_program["untimed"] == [(0, 0, 0)]
    assert ("unknown",) not in of_program["axes"]
    assert of_program["metrics"] == [
        ("collective_count",),
        ("traffic_by_link",),
        ("traffic_by_parallelism",),
        ("traffic_matrix",),
        ("traffic_volume",),
    ]
    assert of_program["reasons"] == [("known_throughput",), ("predicted",), ("timed",)]


def test_bytes_of_real_programs(shared_traces: Path, warehouse: Warehouse) -> None:
    """By hand from the texts: f32[8,128]; 4 f32[8,32,128] scattered; f32[8,128] joined with f32[1,8,8,128].

    The second result of that is bf16: the message is what goes in.
    """
    folder = shared_traces / "tpu-hlo"
    if not folder.is_dir():
        pytest.skip("the compiled programs are not here")
    for name in ("llama-tp8.decode.v6e-2x4", "llama-tp8-sp.prefill.v6e-2x4", "deepseek_v2-tp8.decode.v6e-2x4"):
        warehouse.ingest(folder / f"{name}.hlo.pb.gz", mesh="tp=8")
    sql = (
        "SELECT kind, message_bytes_per_step, wire_bytes_per_device FROM metrics.traffic_volume "
        "JOIN main.runs USING (run_id) WHERE name LIKE '{}' AND kind = '{}'"
    )
    one = 8 * 128 * 4
    assert _rows(warehouse, sql.format("llama-tp8.decode%", "all-reduce")) == [
        ("all-reduce", 4 * one, 4 * 2 * 7 * one / 8)
    ]
    scattered = 4 * 8 * 32 * 128 * 4
    assert _rows(warehouse, sql.format("llama-tp8-sp%", "reduce-scatter")) == [
        ("reduce-scatter", scattered, scattered * 7 / 8)
    ]
    joined = _rows(
        warehouse,
        "SELECT DISTINCT message_bytes FROM main.collectives JOIN main.runs USING (run_id) "
        "WHERE name LIKE 'deepseek%' AND kind = 'all-reduce' ORDER BY 1",
    )
    assert joined == [(4096,), (4096 + 8 * 8 * 128 * 4,)]


def test_a_loop_runs_its_collectives_as_often_as_the_compiler_says(tmp_path: Path, warehouse: Warehouse) -> None:
    [result] = warehouse.ingest(_write(tmp_path, SMALL), mesh="dp=2,tp=2")
    assert result.notes == []
    assert _rows(
        warehouse,
        "SELECT kind, axis, phase, executions_per_step, message_bytes_per_step FROM metrics.collective_count "
        "JOIN metrics.traffic_volume USING (run_id, phase, kind, axis) ORDER BY kind",
    ) == [("all-gather", "dp+tp", "decode", 1, 64), ("all-reduce", "tp", "decode", 3, 48)]
    assert _rows(
        warehouse, "SELECT sent_bytes FROM metrics.traffic_matrix WHERE source_device_id = 0 AND axis = 'tp'"
    ) == [(3 * 16,)]
    assert _rows(warehouse, "SELECT is_async, COUNT(done_event_id) FROM main.collectives GROUP BY ALL ORDER BY 1") == [
        (False, 0),
        (True, 4),
    ]
    assert _rows(warehouse, "SELECT hlo_text FROM main.instructions WHERE name = 'zero'") == [
        ("%zero = s32[] constant(0)",)
    ]


def test_a_loop_without_a_known_count_counts_once_and_is_flagged(tmp_path: Path, warehouse: Warehouse) -> None:
    text = SMALL.replace(', backend_config={"known_trip_count":{"n":"3"}}', "")
    warehouse.ingest(_write(tmp_path, text))
    counted = "SELECT executions_per_step FROM metrics.collective_count WHERE kind = 'all-reduce'"
    assert _rows(warehouse, counted) == [(1,)]
    assert _rows(warehouse, "SELECT detail FROM main.quality_flags WHERE flag = 'unknown_repeats'") == [("loop",)]


@pytest.mark.parametrize("is_text", [True, False])
def test_the_iterations_of_a_loop_follow_from_its_counter(is_text: bool) -> None:
    """As libtpu's own programs, which do not state them."""
    text = SMALL.replace(', backend_config={"known_trip_count":{"n":"3"}}', "")
    text = text.replace("  ROOT %next = (s32[], f32[4]{0}) tuple(%count, %sum)", COUNTER)
    text = text.replace("  ROOT %goes = pred[] constant(true)", CONDITION)
    program = Program(text if is_text else Program(text).proto)
    assert program.unknown == []
    assert list(program.runs({"sum"}.__contains__)) == ["sum"] * 5
    assert program.loops["sum"] == (Loop("loop", 5),)
    # not known where the limit is no number before it runs
    endless = text.replace("%limit = s32[] constant(15)", "%limit = s32[] partition-id()")
    assert Program(endless).unknown == ["loop"]


def test_of_branches_the_one_with_most_collectives_counts() -> None:
    text = SMALL.replace(
        "while(%first), condition=%condition, body=%body",
        "conditional(%zero, %first, %first), branch_computations={%condition, %body}",
    )
    program = Program(text)
    assert program.unknown == ["loop"]
    assert list(program.runs({"sum", "start"}.__contains__)) == ["sum", "start"]


def test_the_proto_of_a_text_has_the_name_of_its_module() -> None:
    assert CLASSES["HloProto"].FromString(ModuleText(SMALL).proto).hlo_module.name == b"decode.7"


def test_devices_of_a_proto_come_from_the_mesh_or_the_groups(tmp_path: Path, warehouse: Warehouse) -> None:
    """A proto without a device assignment does not say for how many devices it is."""
    proto = Program(SMALL.replace(", num_partitions=4", "")).proto
    path = tmp_path / "small.hlo.pb"
    path.write_bytes(proto)
    warehouse.ingest(path)
    assert _rows(warehouse, "SELECT device_count FROM main.runs") == [(4,)]
    warehouse.ingest(path, mesh="dp=4,tp=2")
    assert _rows(warehouse, "SELECT device_count, mesh FROM main.runs") == [(8, "dp=4,tp=2")]


@pytest.mark.parametrize("first", [0, 4])
def test_groups_are_of_the_devices_to_which_the_program_is_assigned(
    tmp_path: Path, warehouse: Warehouse, first: int
) -> None:
    """Compiled for a mesh over a tray in the order 0,1,3,2; on the second host of two its ids begin at 4."""
    proto = CLASSES["HloProto"].FromString(Program(SMALL).proto)
    for row, number in zip(proto.hlo_module.device_assignment.computation_devices, (0, 1, 3, 2), strict=True):
        row.replica_device_ids[:] = [first + number]
    path = tmp_path / "small.hlo.pb"
    path.write_bytes(proto.SerializeToString())
    warehouse.ingest(path, mesh="dp=2,tp=2")
    found = "SELECT DISTINCT kind, axis, device_id, rank_in_group FROM main.collectives ORDER BY ALL"
    assert _rows(warehouse, found) == [
        *(("all-gather", "dp+tp", device, (0, 1, 3, 2)[device]) for device in range(4)),
        *(("all-reduce", "tp", device, (0, 1, 1, 0)[device]) for device in range(4)),
    ]
    placed = "SELECT global_id, dp_index, tp_index FROM main.devices ORDER BY device_id"
    assert _rows(warehouse, placed) == [(first + i, *at) for i, at in enumerate([(0, 0), (0, 1), (1, 1), (1, 0)])]


def test_the_file_is_told_by_its_content_and_kept_whole(tmp_path: Path, warehouse: Warehouse) -> None:
    text, proto = tmp_path / "a.bin", tmp_path / "b.pb"
    text.write_bytes(gzip.compress(SMALL.encode()))
    proto.write_bytes(Program(SMALL).proto)
    for path, expected in ((text, HLO_TEXT), (proto, HLO_PROTO)):
        file = CaptureFile(path)
        assert file_format(file) is expected
        assert [p.name for p in open_trace(file).planes] == ["/host:metadata"]
        warehouse.ingest(path)
    kept = _rows(warehouse, "SELECT string_value, bytes_value FROM main.metadata_stats WHERE name ILIKE 'HLO%'")
    assert sorted(kept, key=str) == sorted([(SMALL, None), (None, Program(SMALL).proto)], key=str)


def _flags(folder: Path, warehouse: Warehouse, text: str, promised: int) -> list[tuple[Any, ...]]:
    """Quality flags of a program beside a manifest that promises so many all-reduces in a decode step."""
    manifest = {
        "name": f"promises {promised}",
        "dtype": "float32",
        "batch_size": 1,
        "input_length": 1,
        "output_length": 3,
        "mesh": {"axes": {"dp": 2, "tp": 2}},
        "phases": [{"name": "decode", "step": 1, "start_ns": 0, "end_ns": 1}],
        "promised_collectives": [
            {"phase": "prefill", "kind": "all-reduce", "axis": "tp", "count": 99},
            {"phase": "decode", "kind": "all-reduce", "axis": "tp", "count": promised},
        ],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    [result] = warehouse.ingest(_write(folder, text))
    sql = f"SELECT flag FROM main.quality_flags WHERE run_id = '{result.run_id}'"
    return _rows(warehouse, sql)


def test_a_program_keeps_the_promises_of_its_phase(tmp_path: Path, warehouse: Warehouse) -> None:
    assert _flags(tmp_path, warehouse, SMALL, 3) == []
    assert _flags(tmp_path, warehouse, SMALL, 4) == [("promise_broken",)]


def test_an_all_reduce_that_the_compiler_joined_of_two_keeps_two_promises(tmp_path: Path, warehouse: Warehouse) -> None:
    joined = SMALL.replace(
        "%sum = f32[4]{0} all-reduce(%part)", "%sums = (f32[4]{0}, f32[4]{0}) all-reduce(%part, %part)"
    ).replace("tuple(%count, %sum)", "tuple(%count, %part)")
    assert _flags(tmp_path, warehouse, joined, 6) == []
    assert _flags(tmp_path, warehouse, joined, 7) == [("promise_broken",)]


@pytest.mark.parametrize("blanks", ["  ", "\r", " \t", "\x0c"])
def test_blanks_at_the_ends_of_lines_change_nothing(blanks: str) -> None:
    padded = "".join(f"{line}{blanks}\n" for line in SMALL.splitlines())
    plain, blank = Program(SMALL), Program(padded)
    assert (plain.proto, plain.lines) == (blank.proto, blank.lines)


def test_folders_are_not_searched_for_programs(tmp_path: Path, warehouse: Warehouse) -> None:
    """A compiler dumps hundreds of them beside a capture."""
    _write(tmp_path, SMALL)
    with pytest.raises(CaptureError, match="no capture in this folder"):
        warehouse.ingest(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  ROOT %z = f32[4]{0} slice(%done), slice={[0:4]}\n}\n", "", "breaks off in computation main"),
        ("ENTRY %main", "%main", "no ENTRY computation"),
        ("num_partitions=4", "num_partitions=999999999", "999999999 x 1 devices"),
        ("num_partitions=4", "num_partitions=2", "name 4 devices, it is for 2"),
        ("{{0,1},{2,3}}", "{{0,1},{2,", "no HLO instruction"),
        ("{{0,1},{2,3}}", "{{0,x},{2,3}}", "replica_groups cannot be read"),
        ('{"n":"3"}', '{"n":"999999999999999"}', "collectives on each of 4 devices"),
        ("to_apply=%add\n", "to_apply=%add\n  %again = f32[4]{0} call(%part), to_apply=%body\n", "call each other"),
    ],
)
def test_a_damaged_program_is_one_error(tmp_path: Path, warehouse: Warehouse, old: str, new: str, said: str) -> None:
    assert old in SMALL
    path = _write(tmp_path, SMALL.replace(old, new))
    with pytest.raises(CaptureError, match=said):
        warehouse.ingest(path)
    assert not warehouse.lake.runs()


def test_every_cut_of_a_proto_is_one_error(tmp_path: Path, warehouse: Warehouse) -> None:
    proto = Program(SMALL).proto
    path = tmp_path / "cut.hlo.pb"
    for length in (3, 15, 40, len(proto) // 2, len(proto) - 1):
        path.write_bytes(proto[:length])
        with pytest.raises(CaptureError):
            warehouse.ingest(path)


def test_a_text_that_is_no_hlo_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "module.txt"
    path.write_text("module @jit_step {\n}\n")

    with pytest.raises(CaptureError, match="no compiled program: HLO text begins with `HloModule`"):
        file_format(CaptureFile(path))
