"""Executions of TPUs whose line of them is missing or cut: inferred from the ops, or flagged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from xplane_builder import Space, TpuPlane, Unsigned
from xplane_reference import MESSAGES

from tracewarehouse.ingest.pipeline import ingest_one

US = 1_000_000
STEP, SAMPLE = 7, 8
BODY = {
    "a": "%a = f32[8]{0} copy(f32[8]{0} %p)",
    "loop": "%loop = (s32[], f32[8]{0}) while((s32[], f32[8]{0}) %t), condition=%c, body=%b",
    "b": "%b = f32[8]{0} negate(f32[8]{0} %a)",
    "c": "%c = f32[8]{0} add(f32[8]{0} %a, f32[8]{0} %b)",
}
EXECUTIONS = """SELECT device_id, name, start_ps // 1000000, end_ps // 1000000, source FROM phases
                WHERE kind = 'module' ORDER BY 1, 3"""
PLACES = "SELECT device_id, execution, step, count(*) FROM ops WHERE is_leaf GROUP BY ALL ORDER BY 1, 2 NULLS FIRST"
SHIPPED = "tpu-v6e-4chip-host-offload.xplane.pb"


def device(space: Space, number: int, *, program_id: bool = True) -> TpuPlane:
    """Three steps of 100 us: `a`, a loop that runs `b` twice, and `c`; after each another program samples.

    The profile begins in the first step, after its `a`. The profiler lost the `a` of the last step.
    """
    tpu = space.tpu(number)
    tpu.modules.event(f"jit_step({STEP})", 5 * US, 45 * US)
    ops = {
        name: tpu.instruction(text, **({"program_id": Unsigned(STEP)} if program_id else {}))
        for name, text in BODY.items()
    }
    sample = tpu.instruction("%s = f32[8]{0} sine(f32[8]{0} %p)", program_id=Unsigned(SAMPLE))
    for step in range(3):
        at = 100 * step * US
        if step:
            tpu.modules.event(f"jit_step({STEP})", at, 50 * US)
        tpu.modules.event(f"jit_sample({SAMPLE})", at + 60 * US, 10 * US)
        if step == 1:
            tpu.ops.event(ops["a"], at, 5 * US)
        tpu.ops.event(ops["loop"], at + 5 * US, 40 * US)
        tpu.ops.event(ops["b"], at + 5 * US, 20 * US)
        tpu.ops.event(ops["b"], at + 25 * US, 20 * US)
        tpu.ops.event(ops["c"], at + 45 * US, 5 * US)
        tpu.ops.event(sample, at + 60 * US, 10 * US)
    return tpu


def test_executions_follow_from_the_ops(ingest: Any) -> None:
    space = Space()
    device(space, 0)
    device(space, 1).lines[0].events.clear()
    result, query = ingest(space)
    assert query(EXECUTIONS)[6:] == [
        (1, "jit_step", 5, 50, "op line"),
        (1, "jit_sample", 60, 70, "op line"),
        (1, "jit_step", 100, 150, "op line"),
        (1, "jit_sample", 160, 170, "op line"),
        (1, "jit_step", 205, 250, "op line"),
        (1, "jit_sample", 260, 270, "op line"),
    ]
    places = query(PLACES)
    assert [p[1:] for p in places[:6]] == [p[1:] for p in places[6:]]
    assert result.entry.flags == ["inferred_executions", "inferred_steps"]
    assert query("SELECT detail FROM quality_flags WHERE flag = 'inferred_executions'") == [
        ("device 1 has no line of its executions: 6 are inferred from its ops",)
    ]


def test_executions_of_one_program_begin_with_its_first_op(ingest: Any) -> None:
    """Nothing lies between the executions, the profile begins in the middle of one, and ops were lost."""
    space = Space()
    for number in (0, 1):
        tpu = space.tpu(number)
        ops = [tpu.instruction(BODY[n], program_id=Unsigned(STEP)) for n in "abc"]
        at = 0
        for places in ((2,), (0, 1, 2), (1,), (0, 1, 2), (0, 1), (2,)):
            if places[-1:] != (2,) or len(places) > 1 or not at:
                tpu.modules.event(f"jit_step({STEP})", at, 30 * US)
            for place in places:
                tpu.ops.event(ops[place], at + 10 * place * US, 9 * US)
            at += 30 * US
    space.planes[1].lines[0].events.clear()
    _, query = ingest(space)
    assert [row[2] for row in query(EXECUTIONS) if row[0] == 1] == [20, 30, 70, 90, 120]


def test_ops_whose_program_nothing_tells_are_flagged(ingest: Any) -> None:
    space = Space()
    device(space, 0)
    device(space, 1, program_id=False).lines[0].events.clear()
    result, query = ingest(space)
    assert query("SELECT DISTINCT execution, step FROM ops WHERE device_id = 1") == [(None, None)]
    assert result.entry.flags == ["inferred_steps", "uneven_steps", "unrecorded_executions"]
    assert query("SELECT detail FROM quality_flags WHERE flag LIKE 'un%' ORDER BY 1") == [
        ("device 0 has 3 steps, device 1 has 0",),
        ("device 1: 13 of 13 ops run in no recorded execution of a program",),
    ]


def test_a_line_of_executions_that_ends_early_is_flagged(ingest: Any) -> None:
    space = Space()
    device(space, 0)
    del device(space, 1).lines[0].events[2:]
    result, query = ingest(space)
    assert result.entry.flags == ["inferred_steps", "uneven_steps", "unrecorded_executions"]
    [(sentence,)] = query("SELECT detail FROM quality_flags WHERE flag = 'unrecorded_executions'")
    assert sentence == "device 1: 9 of 13 ops run in no recorded execution of a program"


def test_a_device_without_ops_is_flagged(ingest: Any) -> None:
    space = Space()
    device(space, 0)
    device(space, 1).ops.events.clear()
    result, query = ingest(space)
    assert "missing_ops" in result.entry.flags
    [(sentence,)] = query("SELECT detail FROM quality_flags WHERE flag = 'missing_ops'")
    assert sentence == "device 1 has 6 executions of programs and no op in them"


@pytest.mark.parametrize("number", range(4))
def test_a_real_capture_without_the_executions_of_one_device(
    shared_traces: Path, shared_tables: Any, tmp_path: Path, tables_in: Any, number: int
) -> None:
    """Each op is in the step, the phase and the execution in which the removed line has it."""
    space = MESSAGES["XSpace"].FromString((shared_traces / SHIPPED).read_bytes())
    [plane] = [p for p in space.planes if p.name == b"/device:TPU:%d" % number]
    [place] = [i for i, line in enumerate(plane.lines) if line.name == b"XLA Modules"]
    del plane.lines[place]
    (tmp_path / SHIPPED).write_bytes(space.SerializeToString())
    result = ingest_one(tmp_path / SHIPPED, tmp_path / "warehouse")
    assert "inferred_executions" in result.entry.flags
    sql = f"""SELECT start_ps, step, phase, dense_rank() OVER (ORDER BY execution) FROM ops
              WHERE line = 'XLA Ops' AND plane = '/device:TPU:{number}' AND run_id IN (
                SELECT run_id FROM runs WHERE name LIKE 'tpu-v6e-4chip%') ORDER BY start_ps, duration_ps DESC"""
    assert tables_in(tmp_path / "warehouse")(sql) == shared_tables(sql)
