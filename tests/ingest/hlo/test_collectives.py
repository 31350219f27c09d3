from __future__ import annotations

import pytest

from tracewarehouse.ingest.hlo.collectives import Collective, find_collective
from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.shapes import parse_shape
from tracewarehouse.ingest.hlo.text import parse_instruction

GROUPS = "replica_groups={{0,1,2,3}}"


def found(text: str) -> Collective:
    instruction = parse_instruction(text)
    assert instruction is not None
    collective = find_collective(instruction)
    assert collective is not None
    return collective


@pytest.mark.parametrize(
    ("text", "kind", "role", "message_bytes", "dtype"),
    [
        ("%a = f32[8] all-reduce(f32[8] %x)", "all-reduce", None, 32, "f32"),
        ("%a = f32[8] all-reduce(%x)", "all-reduce", None, 32, "f32"),
        ("%a = (f32[8], bf16[4]) all-reduce(f32[8] %x, bf16[4] %y)", "all-reduce", None, 40, "f32"),
        ("%a = f32[32] all-gather(f32[8] %x)", "all-gather", None, 128, "f32"),
        ("%a = (f32[32], s8[4]) all-gather(f32[8] %x, s8[1] %y)", "all-gather", None, 132, "f32"),
        ("%a = f32[8] reduce-scatter(f32[32] %x)", "reduce-scatter", None, 128, "f32"),
        ("%a = f32[8] reduce-scatter(%x)", "reduce-scatter", None, 128, "f32"),
        ("%a = (f32[2], f32[2]) all-to-all(f32[2] %x, f32[2] %y)", "all-to-all", None, 16, "f32"),
        ("%a = f32[8,4] all-to-all(%x)", "all-to-all", None, 128, "f32"),
        ("%a = f32[8] collective-permute(f32[8] %x)", "collective-permute", None, 32, "f32"),
        ("%a = f32[8] collective-broadcast(f32[8] %x)", "collective-broadcast", None, 32, "f32"),
        (
            "%a = f32[64] ragged-all-to-all(f32[32] %x, f32[64] %o, s32[4] %a, s32[4] %b, s32[4] %c, s32[4] %d)",
            "ragged-all-to-all",
            None,
            128,
            "f32",
        ),
        # operands that are not all listed: the result decides
        ("%a = (f32[8], f32[8]) all-reduce(f32[8] %x, %y)", "all-reduce", None, 64, "f32"),
        ("%a = ((f32[8], f32[8]), f32[16]) reduce-scatter-start(f32[8] %x, %y)", "reduce-scatter", "start", 64, "f32"),
        ("%a = (f32[8], f32[8], f32[8]) all-reduce(f32[8] %x, ...(+2))", "all-reduce", None, 96, "f32"),
        # native starts
        ("%a = (f32[8], f32[32]) all-gather-start(f32[8] %x)", "all-gather", "start", 128, "f32"),
        ("%a = (f32[8], f32[32]) all-gather-start(%x)", "all-gather", "start", 128, "f32"),
        (
            "%a = ((f32[8], s8[1]), (f32[32], s8[4])) all-gather-start(f32[8] %x, s8[1] %y)",
            "all-gather",
            "start",
            132,
            "f32",
        ),
        ("%a = f32[8] all-reduce-start(f32[8] %x)", "all-reduce", "start", 32, "f32"),
        ("%a = f32[8] all-reduce-start(%x)", "all-reduce", "start", 32, "f32"),
        ("%a = (f32[8], u32[]) all-reduce-start(%x, %y)", "all-reduce", "start", 36, "f32"),
        ("%a = (f32[8], f32[8], u32[], u32[]) all-reduce-start(%x)", "all-reduce", "start", 32, "f32"),
        (
            "%a = (f32[8], f32[8], u32[], u32[]) collective-permute-start(f32[8] %x)",
            "collective-permute",
            "start",
            32,
            "f32",
        ),
        ("%a = (f32[8], f32[8], u32[], u32[]) collective-permute-start(%x)", "collective-permute", "start", 32, "f32"),
        (
            "%a = ((f32[8], f32[2]), (f32[8], f32[2]), u32[]) collective-permute-start(%x, %y)",
            "collective-permute",
            "start",
            40,
            "f32",
        ),
        # async ops around a collective, in both spellings
        ("%a = ((f32[32]), f32[8], s32[]) reduce-scatter-start(%x)", "reduce-scatter", "start", 128, "f32"),
        (
            "%a = ((f32[32]), f32[8], u32[]) async-start(%x), calls=%async_reduce_scatter",
            "reduce-scatter",
            "start",
            128,
            "f32",
        ),
        (
            "%a = ((f32[8]), f32[32], u32[]) async-start(f32[8] %x), calls=%async_all_gather",
            "all-gather",
            "start",
            128,
            "f32",
        ),
        ("%all-to-all-start.1 = ((s8[8]), s8[8], u32[]) async-start(%x), calls=%c", "all-to-all", "start", 8, "s8"),
        (
            "%all-to-all-update.1 = ((s8[8]), s8[8], u32[]) async-update(%s), calls=%c",
            "all-to-all",
            "update",
            None,
            None,
        ),
        # done halves: what the operand's shape tells, else the result
        ("%a = f32[32] all-gather-done((f32[8], f32[32]) %s)", "all-gather", "done", 128, "f32"),
        ("%a = f32[32] all-gather-done(%s)", "all-gather", "done", 128, "f32"),
        ("%a = f32[8] all-reduce-done(f32[8] %s)", "all-reduce", "done", 32, "f32"),
        ("%a = f32[8] all-reduce-done(%s)", "all-reduce", "done", 32, "f32"),
        ("%a = f32[8] reduce-scatter-done(((f32[32]), f32[8], u32[]) %s)", "reduce-scatter", "done", 128, "f32"),
        (
            "%a = f32[8] collective-permute-done((f32[8], f32[8], u32[], u32[]) %s)",
            "collective-permute",
            "done",
            32,
            "f32",
        ),
        # send and recv
        ("%a = (f32[8], u32[], token[]) send(f32[8] %x, token[] %t)", "send", "start", 32, "f32"),
        ("%a = (f32[8], u32[], token[]) send(%x, %t)", "send", "start", 32, "f32"),
        ("%a = token[] send-done((f32[8], u32[], token[]) %s)", "send", "done", 32, "f32"),
        ("%a = (f32[8], u32[], token[]) recv(token[] %t)", "recv", "start", 32, "f32"),
        ("%a = (f32[8], token[]) recv-done((f32[8], u32[], token[]) %s)", "recv", "done", 32, "f32"),
        ("%a = (f32[8], token[]) recv-done(%s)", "recv", "done", 32, "f32"),
    ],
)
def test_kind_role_and_message(text: str, kind: str, role: str | None, message_bytes: int | None, dtype: str) -> None:
    collective = found(f"{text}, {GROUPS}")
    assert (collective.kind, collective.role) == (kind, role)
    assert (collective.message_bytes, collective.dtype) == (message_bytes, dtype)


def test_a_side_that_cannot_be_derived_is_unknown() -> None:
    # The group size of {} is that of the run, which HLO does not say.
    collective = found("%a = f32[8] reduce-scatter(%x), replica_groups={}")
    assert (collective.message_bytes, collective.group_size, collective.groups) == (None, None, ())
    assert found("%a = f32[?] all-reduce(f32[?] %x)").message_bytes is None
    assert found("%a = f99[8] all-reduce(f99[8] %x)").message_bytes is None


def test_a_done_names_its_start() -> None:
    assert found("%a = f32[8] all-reduce-done(f32[8] %all-reduce-start.7)").start_name == "all-reduce-start.7"
    assert found("%a = f32[8] all-reduce(f32[8] %x)").start_name is None


def test_groups_pairs_and_members() -> None:
    grouped = found("%a = f32[8] all-reduce(%x), channel_id=5, replica_groups=[2,2]<=[4]")
    assert (grouped.groups, grouped.group_size, grouped.channel_id) == (((0, 1), (2, 3)), 2, 5)
    assert grouped.members == grouped.groups
    paired = found("%a = f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,2},{2,0}}")
    assert (paired.pairs, paired.group_size, paired.members) == (((0, 1), (1, 2), (2, 0)), 2, paired.pairs)
    uneven = found("%a = f32[8] all-reduce(%x), replica_groups={{0},{1,2,3}}")
    assert (uneven.group_size, uneven.members) == (None, ((0,), (1, 2, 3)))
    assert found("%a = f32[8] all-reduce(%x)").members is None


@pytest.mark.parametrize(
    "text",
    [
        "%all-reduce.1 = f32[8] fusion(f32[8] %x), kind=kLoop, calls=%all-reduce-computation",
        "%all-gather = f32[8] broadcast(f32[] %x), dimensions={}",
        "%reduce.1 = f32[] reduce(f32[8] %x, f32[] %c), dimensions={0}, to_apply=%all-reduce",
        "%copy-start = (f32[8], f32[8], u32[]) copy-start(f32[8] %x)",
        "%slice-start = ((f32[8]), f32[4], u32[]) async-start(f32[8] %x), calls=%async_computation",
        "%s = (f32[8], u32[], token[]) send(f32[8] %x, token[] %t), is_host_transfer=true",
        "%d = token[] send-done((f32[8], u32[], token[]) %s), is_host_transfer=true",
        "%p = u32[] partition-id()",
    ],
)
def test_what_is_no_collective(text: str) -> None:
    instruction = parse_instruction(text)
    assert instruction is not None
    assert find_collective(instruction) is None


def inner(kind: str, shape: str, groups: tuple[tuple[int, ...], ...] = ((0, 1),)) -> Instruction:
    value = parse_shape(shape)
    return Instruction(
        kind, kind, value, operand_names=("x",), operand_shapes=(value,), replica_groups=groups, channel_id=4
    )


def test_a_fusion_carries_the_collective_of_its_computation() -> None:
    fusion = Instruction("all-reduce-scatter", "fusion", parse_shape("f32[4]"), inner=(inner("all-reduce", "f32[8]"),))
    assert find_collective(fusion) == Collective(
        "all-reduce", message_bytes=32, dtype="f32", groups=((0, 1),), channel_id=4, group_size=2
    )


def test_several_collectives_of_one_kind_are_one_message() -> None:
    both = (inner("all-reduce", "f32[8]"), inner("all-reduce", "f32[2]"))
    collective = find_collective(Instruction("f", "fusion", parse_shape("f32[4]"), inner=both))
    assert collective is not None
    assert (collective.message_bytes, collective.group_size) == (40, 2)


def test_collectives_of_several_kinds_or_groups_are_no_one_collective() -> None:
    kinds = (inner("all-reduce", "f32[8]"), inner("all-gather", "f32[8]"))
    groups = (inner("all-reduce", "f32[8]"), inner("all-reduce", "f32[8]", ((0, 2),)))
    for each in (kinds, groups):
        assert find_collective(Instruction("f", "fusion", parse_shape("f32[4]"), inner=each)) is None


def test_the_halves_of_an_async_op_carry_it_too() -> None:
    carried = (inner("all-reduce", "f32[8]"),)
    shape = parse_shape("((f32[8]), f32[8], u32[])")
    start = find_collective(Instruction("s", "async-start", shape, inner=carried))
    done = find_collective(Instruction("d", "async-done", shape, operand_names=("s",), inner=carried))
    assert start is not None
    assert done is not None
    assert (start.role, start.start_name, done.role, done.start_name) == ("start", None, "done", "s")
    assert start.message_bytes == done.message_bytes == 32
