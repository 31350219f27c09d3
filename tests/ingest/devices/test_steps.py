"""What a step is in captures that nobody marked: made-up servers whose steps are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from served_steps import head, layers, served
from transformer_capture import capture, transformer
from xplane_builder import PlaneBuilder, Space, Unsigned

from tracewarehouse.ingest.devices.steps import starters
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.pipeline import ingest_one

US = 1_000_000
DOT = "%dot.1 = f32[8,8]{1,0} dot(f32[8,8]{1,0} %a, f32[8,8]{1,0} %b)"
PROGRAMS = (("jit_step_fun", 60), ("jit_select", 5), ("jit_logits", 10), ("jit_sample", 5))
STEPS = """SELECT device_id, "index", name, start_ps / 1000000, end_ps / 1000000, source FROM phases
           WHERE kind = 'step' AND device_id IS NOT NULL ORDER BY 1, 2"""
OPS = "SELECT DISTINCT device_id, step, phase, count(*) FROM ops WHERE is_leaf GROUP BY ALL ORDER BY 1, 2 NULLS FIRST"


def server(
    devices: int = 2, steps: int = 3, late_us: int = 1_000, frame: str = "$core.py:411 step_with_batch_queue"
) -> tuple[Space, PlaneBuilder]:
    """Four programs a step, launched in one call of 40 us that another like it holds; device clocks run behind.

    A call that launches nothing comes after each. Calls begin every 100 us.
    """
    space = Space()
    for device in range(devices):
        tpu = space.tpu(device)
        for step in range(steps):
            at = (2_000 + 100 * step - late_us + device) * US
            for k, (name, us) in enumerate(PROGRAMS):
                run_id = 100 * (device + 1) + 4 * step + k
                tpu.modules.event(f"{name}({k + 1})", at, us * US, run_id=Unsigned(run_id))
                tpu.ops.event(tpu.instruction(DOT), at, us * US)
                at += us * US
    host = space.host()
    thread = host.line("engine")
    for step in range(steps):
        call = (2_000 + 100 * step) * US
        thread.event(frame, call, 40 * US)
        thread.event("$runner.py:558 execute_model", call + US, 38 * US)
        thread.event(frame, call + 50 * US, 20 * US)
    return space, host


def test_a_call_of_the_server_is_a_step_whatever_the_clocks_say(ingest: Any) -> None:
    """The k-th launch of the thread is the k-th execution of each device, a millisecond before the launch."""
    space, host = server()
    thread = host.lines[0]
    for step in range(3):
        for k in range(4):
            thread.event("PJRT_LoadedExecutable_Execute linkage", (2_005 + 100 * step + 5 * k) * US, US)
    result, query = ingest(space)
    assert query(STEPS) == [
        (d, s, "step", 1_000 + 100 * s + d, 1_080 + 100 * s + d, "server call") for d in (0, 1) for s in range(3)
    ]
    assert query(OPS) == [(d, s, None, 4) for d in (0, 1) for s in range(3)]
    assert result.entry.flags == []


def test_executions_join_their_launch_by_run_id_where_the_profile_begins_in_the_middle(ingest: Any) -> None:
    """The first call and its launches are not in the profile, but their executions are: these are outside."""
    space, host = server(frame="$scheduler.py:7 run_batch")
    host.lines.clear()
    thread, queue = host.line("scheduler"), host.line("queue")
    for step in (1, 2):
        thread.event("$scheduler.py:7 run_batch", (2_000 + 100 * step) * US, 40 * US)
        for device in (0, 1):
            for k in range(4):
                ids = {"run_id": 100 * (device + 1) + 4 * step + k, "device_ordinal": device}
                queue.event("DoEnqueueProgram", (2_005 + 100 * step + 5 * k) * US, US, **ids)
    _, query = ingest(space)
    assert [row[:2] for row in query(STEPS)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert query(OPS) == [(d, *of, 4) for d in (0, 1) for of in ((None, "outside"), (0, None), (1, None))]


def test_engines_prefill_and_generate_on_threads_of_their_own(ingest: Any) -> None:
    space = Space()
    tpu = space.tpu(0)
    host = space.host()
    one, other = host.line("prefill"), host.line("generate")
    work = ((one, "prefill", 0), (other, "generate", 100), (other, "generate", 200))
    for n, (thread, call, at) in enumerate(work):
        thread.event(f"$maxengine.py:{40 + n} {call}", at * US, 50 * US)
        for k, name in enumerate(("jit_call", "jit_insert")):
            tpu.modules.event(f"{name}({k})", (at + 20 + 20 * k) * US, 15 * US, run_id=Unsigned(2 * n + k))
            tpu.ops.event(tpu.instruction(DOT), (at + 20 + 20 * k) * US, 15 * US)
            thread.event("PjitFunction(call)", (at + 5 + 20 * k) * US, 4 * US)
    _, query = ingest(space)
    assert query(OPS) == [(0, 0, "prefill", 2), (0, 1, "decode", 2), (0, 2, "decode", 2)]


@pytest.mark.parametrize("is_nested", [False, True])
def test_marks_of_the_harness_number_the_steps_of_tpus(ingest: Any, is_nested: bool) -> None:
    """Programs that are named after graphs, launched under a mark with the number of the step.

    Marks inside it and around all change nothing.
    """
    space = Space()
    tpu = space.tpu(0)
    thread = space.host().line("python")
    if is_nested:
        thread.event("request", 0, 300 * US, step_num=0, _r=1)
    for step in range(3):
        thread.event("decode" if step else "prefill", 100 * step * US, 50 * US, step_num=step + 5, _r=1)
        if is_nested:
            thread.event("forward", (100 * step + 1) * US, 40 * US, step_num=10 * step, _r=1)
            thread.event("decode_inner", (100 * step + 2) * US, 30 * US, step_num=10 * step, _r=1)
        for k in range(2):
            tpu.modules.event(f"SyncTensorsGraph.{k}({k})", (100 * step + 30 * k + 20) * US, 25 * US)
            tpu.ops.event(tpu.instruction(DOT), (100 * step + 30 * k + 20) * US, 25 * US)
            thread.event("PJRT_LoadedExecutable_Execute linkage", (100 * step + 10 * k + 5) * US, US)
    result, query = ingest(space)
    assert query(OPS) == [(0, 5, "prefill", 2), (0, 6, "decode", 2), (0, 7, "decode", 2)]
    assert {row[-1] for row in query(STEPS)} == {"marker"}
    assert result.entry.flags == []


def test_without_a_host_steps_begin_with_the_program_of_most_time(ingest: Any) -> None:
    """A program alone on one device before the first changes no number."""
    space, _ = server()
    space.planes.pop()
    lone = space.planes[0]
    modules, ops = lone.lines
    modules.event("jit_setup(9)", 10 * US, 20 * US)
    ops.event(lone.metadata(DOT), 10 * US, 20 * US)
    result, query = ingest(space)
    assert query(STEPS) == [
        (d, s, "jit_step_fun", 1_000 + 100 * s + d, 1_080 + 100 * s + d, "program") for d in (0, 1) for s in range(3)
    ]
    assert query(OPS) == [(0, None, "outside", 1), *[(d, s, None, 4) for d in (0, 1) for s in range(3)]]
    assert result.entry.flags == ["inferred_steps"]


def test_programs_that_hold_layers_go_before_the_one_of_most_time(ingest: Any) -> None:
    """Another program, longer than all five executions of the one with six layers, runs after them."""
    ops = transformer(6)
    space = capture(ops)
    end = 5 * (sum(op.ns for op in ops) * 1000 + US) + US
    for tpu in space.planes:
        modules, line = tpu.lines
        modules.event("jit_long(9)", end, end)
        line.event(tpu.metadata("%copy.9 = f32[8]{0} copy(f32[8]{0} %a)"), end, end)
    _, query = ingest(space, mesh="tp=2")
    assert [row[:3] for row in query(STEPS)] == [(d, s, "jit_step") for d in (0, 1) for s in range(5)]
    [(sentence,)] = query("SELECT detail FROM quality_flags WHERE flag = 'inferred_steps'")
    assert "each execution of jit_step, of those that hold layers;" in sentence
    assert query("SELECT count(*) FROM ops WHERE is_leaf AND step IS NULL") == [(0,)]


def test_the_user_names_another_program(ingest: Any) -> None:
    space, _ = server(devices=1)
    result, query = ingest(space, step="jit_logits")
    assert query(STEPS) == [
        (0, 0, "jit_logits", 1_065, 1_165, "told program"),
        (0, 1, "jit_logits", 1_165, 1_265, "told program"),
        (0, 2, "jit_logits", 1_265, 1_280, "told program"),
    ]
    assert query(OPS) == [(0, None, "outside", 2), (0, 0, None, 4), (0, 1, None, 4), (0, 2, None, 2)]
    assert result.entry.flags == []


def test_a_program_that_never_ran_is_refused(ingest: Any) -> None:
    space, _ = server(devices=1)
    with pytest.raises(CaptureError, match=r"--step jit_x: no execution .*; 4 programs ran: jit_logits, jit_sample"):
        ingest(space, step="jit_x")


def test_a_device_without_a_steps_line_has_the_steps_of_the_one_beside_it(ingest: Any) -> None:
    space, _ = server(steps=2)
    first = space.planes[0]
    for step in (0, 1):
        first.line("Steps").event(str(step + 7), (1_000 + 100 * step) * US, 80 * US)  # type: ignore[attr-defined]
    result, query = ingest(space)
    assert query(STEPS) == [
        (0, 7, "step", 1_000, 1_080, "step line"),
        (0, 8, "step", 1_100, 1_180, "step line"),
        (1, 7, "step", 1_001, 1_081, "step line of another device"),
        (1, 8, "step", 1_101, 1_181, "step line of another device"),
    ]
    assert result.entry.flags == ["inferred_steps"]


@pytest.mark.parametrize(
    ("names", "flags"),
    [
        (["7", "8", "9", "10"], []),
        (["8", "9", "10", "11"], []),  # the profile cuts the first of one device and the last of the other
        (["7", "8", "9", "9"], ["uneven_steps"]),
        (["train 7", "8", "9", "10"], ["uneven_steps"]),
    ],
)
def test_devices_that_number_their_steps_otherwise_are_flagged(ingest: Any, names: list[str], flags: list[str]) -> None:
    """Names that are no numbers, or repeat, are not used: such steps count from 0."""
    space, _ = server(steps=4)
    for plane, of_device in zip(space.planes, (["7", "8", "9", "10"], names), strict=False):
        line = plane.line("Steps")
        for step, name in enumerate(of_device):
            line.event(name, (1_000 + 100 * step) * US, 80 * US)
    result, query = ingest(space)
    assert result.entry.flags == flags
    if flags:
        assert query("SELECT detail FROM quality_flags") == [
            ("device 0 numbers its steps 7 to 10, device 1 0 to 3",),
        ]


def test_a_host_without_calls_of_the_server_has_the_steps_of_the_one_beside_it(ingest: Any) -> None:
    space, host = server(devices=1)
    for step in range(3):
        for k in range(4):
            host.lines[0].event("PJRT_LoadedExecutable_Execute linkage", (2_005 + 100 * step + 5 * k) * US, US)
    other, _ = server(devices=1)
    other.planes.pop()
    for of_host in (space, other):
        of_host.profiled(10**18, 10**18 + 10**7)
    result, query = ingest(space, other)
    assert query(STEPS) == [
        (d, s, "step", 1_000 + 100 * s, 1_080 + 100 * s, source)
        for d, source in ((0, "server call"), (1, "server call of another device"))
        for s in range(3)
    ]
    assert query(OPS) == [(d, s, None, 4) for d in (0, 1) for s in range(3)]
    assert "inferred_steps" in result.entry.flags


def test_ops_and_collectives_after_a_step_have_the_same_owner(ingest: Any) -> None:
    """Steps line at 0-50 and 100-150 us; a sampling program reduces at 60, and again after the last step."""
    space = Space()
    for device in (0, 1):
        tpu = space.tpu(device)
        reduce = tpu.instruction("%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %a), replica_groups={{0,1}}")
        for step, name in enumerate(("prefill", "decode")):
            tpu.steps.event(str(step), 100 * step * US, 50 * US)
            tpu.modules.event(f"{name}.1(1)", 100 * step * US, 50 * US)
            tpu.modules.event("sample(2)", (100 * step + 60) * US, 5 * US)
            tpu.ops.event(reduce, (100 * step + 10) * US, 5 * US)
            tpu.ops.event(reduce, (100 * step + 60) * US, 5 * US)
    _, query = ingest(space, mesh="tp=2")
    owners = [("prefill", 0, 10), ("prefill", 0, 60), ("decode", 1, 110), ("decode", 1, 160)]
    for table in ("ops WHERE is_leaf AND", "collectives WHERE"):
        sql = f"SELECT phase, step, start_ps // {US} FROM {table} device_id = 1 ORDER BY start_ps"
        assert query(sql) == owners, table
    assert query("SELECT max(end_ps) / 1000000 FROM phases WHERE kind = 'step' AND device_id = 1") == [(165,)]


def test_programs_that_hold_layers_begin_steps() -> None:
    time = {"jit_prefill_256": 50, "jit_decode_8": 20, "jit_sample": 90}
    assert starters(time) == {"jit_sample"}
    assert starters(time, {"jit_prefill_256", "jit_decode_8", "jit_elsewhere"}) == {"jit_prefill_256", "jit_decode_8"}
    assert starters({}) == set()


COMPOSITION = {"num_reqs": 2, "min_kv_len": 100, "total_num_scheduled_tokens": 4}


def batches(folder: Path, *tokens: tuple[int, int]) -> None:
    """Files of a server about batches of so many tokens that prefill and that decode."""
    for number, (prefill, decode) in enumerate(tokens):
        counts = {"num_prefill_tokens": prefill, "num_decode_tokens": decode, "batch_id": number}
        (folder / f"batch_composition_stats_{number}.json").write_text(json.dumps(COMPOSITION | counts))


@pytest.mark.parametrize(
    ("tokens", "phases"),
    [
        ([(0, 400), (0, 400), (0, 8)], ["decode", "decode", "decode"]),
        ([(400, 0), (300, 2), (0, 8)], ["prefill", "mixed", "decode"]),
        ([(0, 400), (0, 8)], ["decode", "decode", "decode"]),  # one file is lost, and all say the same
        ([(300, 2), (0, 8)], [None, None, "decode"]),  # nothing says which step is mixed, but none prefills
        ([(400, 0), (300, 2), *[(0, 8)] * 3], [None, None, "decode"]),  # shapes do not tell mixed from prefill
        ([(400, 0), (500, 0), *[(0, 8)] * 3], ["prefill", "prefill", "decode"]),
        ([], ["prefill", "prefill", "decode"]),
    ],
)
def test_what_the_server_says_of_a_batch_goes_before_shapes(
    tmp_path: Path, tables_in: Any, tokens: list[tuple[int, int]], phases: list[str | None]
) -> None:
    """Two steps of 512 rows and one of 8, each with a head of 8."""
    steps = [[("jit_step", layers(rows)), ("jit_logits", [head(8)])] for rows in (512, 512, 8)]
    capture = tmp_path / "capture"
    capture.mkdir()
    served(*steps).write(capture / "vm.xplane.pb")
    batches(capture, *tokens)
    ingest_one(capture, tmp_path / "warehouse")
    query = tables_in(tmp_path / "warehouse")
    of_steps = query("SELECT DISTINCT step, phase FROM ops WHERE is_leaf AND step IS NOT NULL ORDER BY step")
    assert [phase for _, phase in of_steps] == phases


def test_what_the_server_says_of_a_batch_goes_before_the_name_of_a_program(tmp_path: Path, tables_in: Any) -> None:
    space = Space()
    tpu = space.tpu(0)
    for step in range(2):
        tpu.modules.event("jit_prefill(1)", 100 * step * US, 50 * US)
        tpu.ops.event(tpu.instruction(DOT), 100 * step * US, 50 * US)
    capture = tmp_path / "capture"
    capture.mkdir()
    space.write(capture / "vm.xplane.pb")
    batches(capture, (400, 0), (0, 8))
    ingest_one(capture, tmp_path / "warehouse")
    assert tables_in(tmp_path / "warehouse")("SELECT step, phase FROM ops WHERE is_leaf ORDER BY step") == [
        (0, "prefill"),
        (1, "decode"),
    ]
