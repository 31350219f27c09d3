from __future__ import annotations

import random

import pytest

from tests.predict.programs import loop, program
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.schedule import Buffer, Schedule


def small() -> HloModule:
    return program(
        main=f"""
        %w = bf16[128,64] parameter(0)
        %copy-start = (bf16[128,64]{{1,0:S(1)}}, bf16[128,64], u32[]{{:S(2)}}) copy-start(%w)
        %copy-done = bf16[128,64]{{1,0:S(1)}} copy-done(%copy-start)
        %c = (f32[128]{{0:S(1)}}, f32[128]) fusion(%copy-done), kind=kLoop, calls=%inner, {loop(2200)}
        """,
        inner="""
        %p = bf16[128,64] parameter(0)
        %r = f32[128] fusion(%p), kind=kLoop, calls=%innermost
        """,
        innermost="""
        %q = bf16[128,64] parameter(0)
        %s = f32[128] reduce(%q), to_apply=%inner
        """,
    )


def test_an_op_has_its_buffers_with_their_memories_and_the_estimate() -> None:
    schedule = Schedule(small().raw)
    *_, start, done, fusion = schedule.ops(schedule.entry)
    assert start.results == (Buffer("bf16", (128, 64), "vmem", 16384, (1, 0)),)
    assert done.operands[0][1] == Buffer("bf16", (128, 64), "hbm", 16384)
    assert [b.space for b in fusion.results] == ["vmem", "hbm"]
    assert (fusion.cycles, fusion.cost_model, fusion.fusion_kind) == (2200, "INVALID", "kLoop")
    assert schedule.opcodes(fusion) == {"parameter", "fusion", "reduce"}


def test_the_schedule_counts_and_not_the_order_of_the_proto() -> None:
    """A proto lists instructions behind their operands, in an order that the core does not follow."""
    module = CLASSES["HloProto"].FromString(small().raw)
    order = module.hlo_module.schedule.sequences[0].value.instruction_ids
    listed = module.hlo_module.computations[0].instructions
    kept = list(listed)
    del listed[:]
    listed.extend(reversed(kept))
    schedule = Schedule(module.SerializeToString())
    assert [op.name for op in schedule.ops(schedule.entry)] == ["w", "copy-start", "copy-done", "c"]
    del order[:]
    del module.hlo_module.schedule.sequences[:]
    unscheduled = Schedule(module.SerializeToString())
    assert [op.name for op in unscheduled.ops(unscheduled.entry)] == ["c", "copy-done", "copy-start", "w"]


def test_the_order_in_which_a_process_writes_the_schedule_does_not_make_another_program() -> None:
    """Hosts of one program write its schedule, a map, each in an order of its own; instructions differ if orders do."""
    kept = small()
    proto = CLASSES["HloProto"].FromString(kept.raw + b"\x1a\x03abc")  # with a field that is not declared
    whole = HloModule(kept.name, proto.SerializeToString(), [])
    proto.hlo_module.schedule.sequences.reverse()
    other = HloModule(kept.name, proto.SerializeToString(), [])
    assert other.raw != whole.raw
    assert other.digest == whole.digest != kept.digest
    proto.hlo_module.schedule.sequences[0].value.instruction_ids.reverse()
    assert HloModule(kept.name, proto.SerializeToString(), []).digest != whole.digest
    assert HloModule(kept.name, b"\xff", []).digest != whole.digest


def counted(*, begin: int, end: str, step: int, direction: str, kept: str = "%limit.1") -> int | None:
    """The iterations that are read of a loop, whose state is its counter and its limit."""
    state = "(s32[], s32[])"
    module = program(
        main=f"""
        %begin = s32[] constant({begin})
        %copied = s32[] copy(%begin)
        %last = s32[] constant(12)
        %state = {state} tuple(%copied, %last)
        %w = {state} while(%state), condition=%test, body=%body
        """,
        test=f"""
        %s = {state} parameter(0)
        %n = s32[] get-tuple-element(%s), index=0
        %limit = s32[] get-tuple-element(%s), index=1
        %twelve = s32[] constant(12)
        %p = s32[] partition-id()
        %go = pred[] compare(%n, {end}), direction={direction}
        """,
        body=f"""
        %b = {state} parameter(0)
        %m = s32[] get-tuple-element(%b), index=0
        %limit.1 = s32[] get-tuple-element(%b), index=1
        %step = s32[] constant({step})
        %here = s32[] copy(%m)
        %next = s32[] add(%here, %step)
        %state.1 = {state} tuple(%next, {kept})
        """,
    )
    schedule = Schedule(module.raw)
    return schedule.ops(schedule.entry)[-1].trips


def test_the_iterations_of_a_loop_follow_from_its_condition() -> None:
    """libtpu's own programs do not state them."""
    assert counted(begin=0, end="%twelve", step=1, direction="LT") == 12
    assert counted(begin=2, end="%twelve", step=4, direction="LT") == 3
    assert counted(begin=2, end="%twelve", step=5, direction="LE") == 3
    assert counted(begin=40, end="%twelve", step=-7, direction="GT") == 4
    assert counted(begin=12, end="%twelve", step=1, direction="LT") == 0
    assert counted(begin=0, end="%limit", step=1, direction="LT") == 12


def test_a_loop_whose_end_is_not_stated_has_no_number() -> None:
    assert counted(begin=0, end="%p", step=1, direction="LT") is None
    assert counted(begin=0, end="%twelve", step=0, direction="LT") is None
    assert counted(begin=0, end="%twelve", step=-1, direction="LT") is None
    assert counted(begin=0, end="%twelve", step=1, direction="NE") is None
    assert counted(begin=0, end="%limit", step=1, direction="LT", kept="%next") is None


def test_a_program_without_an_entry_is_refused() -> None:
    module = CLASSES["HloProto"].FromString(small().raw)
    module.hlo_module.entry_computation_id = 77
    with pytest.raises(MalformedError, match="entry"):
        Schedule(module.SerializeToString())


def test_damaged_bytes_give_ops_or_one_error() -> None:
    raw, source = small().raw, random.Random(7)
    read = 0
    for _ in range(3000):
        damaged = bytearray(raw)
        for _ in range(source.randint(1, 4)):
            damaged[source.randrange(len(damaged))] = source.randrange(256)
        try:
            schedule = Schedule(bytes(damaged))
            for op in schedule.ops(schedule.entry):
                schedule.opcodes(op)
                schedule.root(op)
                list(schedule.inside(op))
        except MalformedError:
            continue
        read += 1
    assert read > 100
