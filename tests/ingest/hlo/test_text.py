from __future__ import annotations

import pytest

from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.text import MAX_NESTING, parse_instruction

ALL_REDUCE = (
    "%psum.3 = bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)} all-reduce(bf16[1024,5120]{1,0:T(8,128)(2,1)S(1)} %fusion.7), "
    "channel_id=3, replica_groups=[1,2]<=[2], use_global_device_ids=true, to_apply=%add.2.clone, "
    'metadata={op_type="psum" op_name="jit(f)/mlp/\\"x\\"" source_file="/a/b.py" source_line=12}, '
    'backend_config={"note":"a ) and { in a string","list":[1,2]}'
)


def parsed(text: str) -> Instruction:
    instruction = parse_instruction(text)
    assert instruction is not None
    return instruction


def test_all_facts_of_an_all_reduce() -> None:
    found = parsed(ALL_REDUCE)
    assert (found.name, found.opcode, found.shape.text) == ("psum.3", "all-reduce", "bf16[1024,5120]")
    assert found.operand_names == ("fusion.7",)
    assert [shape and shape.text for shape in found.operand_shapes] == ["bf16[1024,5120]"]
    assert (found.channel_id, found.replica_groups, found.use_global_device_ids) == (3, ((0, 1),), True)
    assert found.called == ("add.2.clone",)
    assert (found.op_name, found.op_name_source, found.op_type) == ('jit(f)/mlp/"x"', "own", "psum")
    assert (found.source_file, found.source_line) == ("/a/b.py", 12)
    assert (found.text, found.is_truncated) == (ALL_REDUCE, False)


def test_operands_with_and_without_shapes() -> None:
    found = parsed("ROOT %t = (f32[8], s32[]) tuple(f32[8]{0} %a, /*index=1*/%b, c, s32[] d)")
    assert found.operand_names == ("a", "b", "c", "d")
    assert [shape.text if shape else None for shape in found.operand_shapes] == ["f32[8]", None, None, "s32[]"]


def test_operands_that_are_left_out_are_said_to_be() -> None:
    found = parsed("%f = f32[8] fusion(%a, %b, ...(+3)), kind=kLoop, calls=%c")
    assert (found.operand_names, found.is_truncated, found.fusion_kind) == (("a", "b"), True, "kLoop")


def test_parameters_and_constants_have_no_operands() -> None:
    assert parsed("%p = f32[8]{0} parameter(0)").operand_names == ()
    assert parsed("%c = s32[3]{0} constant({1, 2, 3})").operand_names == ()


def test_called_computations() -> None:
    assert parsed("%w = s32[] while(s32[] %x), condition=%cond.1, body=%body.2").called == ("body.2", "cond.1")
    branches = parsed("%c = f32[] conditional(s32[] %i, f32[] %a), branch_computations={%b0, %b1}")
    assert branches.called == ("b0", "b1")


def test_custom_call_target_with_nested_attributes() -> None:
    found = parsed(
        "%r = (f32[2]{0}, f32[3]{0}) custom-call(f32[2]{0} %a), "
        'custom_call_target="tpu_custom_call", operand_layout_constraints={f32[2]{0}}, '
        "output_to_operand_aliasing={{1}: (0, {})}, backend_config={}"
    )
    assert (found.custom_call_target, found.is_truncated) == ("tpu_custom_call", False)


def test_source_target_pairs() -> None:
    found = parsed("%p = f32[8] collective-permute(f32[8] %x), channel_id=1, source_target_pairs={{0,1},{1,0}}")
    assert (found.source_target_pairs, found.replica_groups) == (((0, 1), (1, 0)), None)


@pytest.mark.parametrize("quote", ['"', ""])
def test_pairs_of_a_send_made_from_a_permute(quote: str) -> None:
    pairs = f"_xla_send_recv_source_target_pairs={quote}{{{{0,1}},{{1,2}}}}{quote}"
    found = parsed(
        "%s = (f32[8], u32[], token[]) send(f32[8] %x, token[] %t), channel_id=1, "
        f"frontend_attributes={{{pairs},_xla_other={quote}x{quote}}}"
    )
    assert found.source_target_pairs == ((0, 1), (1, 2))


def test_transfers_to_the_host() -> None:
    assert parsed("%s = (f32[8], u32[], token[]) send(%x, %t), channel_id=1, is_host_transfer=true").is_host_transfer


@pytest.mark.parametrize(
    ("text", "opcode"),
    [
        ("%slice-start.4 = ((s8[8]), s8[4], s32[]) async-start(s8[8] %x), calls=%async_computation.4", "slice"),
        ("%slice-done.4 = s8[4] async-done(((s8[8]), s8[4], s32[]) %slice-start.4)", "slice"),
        ("%a.1 = ((f32[8]), f32[16], s32[]) async-start(f32[8] %x), calls=%async_all_gather.1", "all-gather"),
        (
            "%a.1 = ((f32[8]), f32[2], s32[]) async-start(f32[8] %x), calls=%async_wrapped_reduce_scatter",
            "reduce-scatter",
        ),
        ("%a.1 = ((f32[8]), f32[2], s32[]) async-start(f32[8] %x), calls=%async_computation", None),
        ("%all-gather-like-start = ((f32[8]), f32[2], s32[]) async-start(f32[8] %x), calls=%c", None),
        ("%all-gather-start = f32[8] fusion(f32[8] %x), calls=%c", None),
    ],
)
def test_what_an_async_op_runs(text: str, opcode: str | None) -> None:
    assert parsed(text).async_opcode == opcode


@pytest.mark.parametrize(
    "text",
    [
        "",
        "%",
        "hello",
        "$main.py:12 run",
        "jit_step_fun(123)",
        "%a",
        "%a = ",
        "%a = f32[2]",
        "%a = f32[2] add",
        "%a = f32[2 add(%x)",
        "%a = (f32[2] add(%x)",
        "a = 3",
        "x = y(z)",
        "% = f32[2] add(%x)",
        "%a=f32[2] add(%x)",
        "end: all-reduce.1",
    ],
)
def test_what_is_not_hlo_text_is_none(text: str) -> None:
    assert parse_instruction(text) is None


def test_brackets_are_read_to_a_depth() -> None:
    for depth, is_truncated in ((MAX_NESTING, False), (MAX_NESTING + 1, True)):
        assert parsed(f"%a = f32[8] add(%x), note={'(' * depth}{')' * depth}").is_truncated is is_truncated


def test_of_a_key_twice_the_first_counts() -> None:
    assert parsed("%a = f32[8] fusion(%x), kind=kLoop, kind=kInput").fusion_kind == "kLoop"


def test_an_ellipsis_at_the_end_is_a_truncation() -> None:
    assert parsed('%a = f32[8] add(%x, %y), metadata={op_name="f"}, backend_con...').is_truncated


@pytest.mark.parametrize(
    "text",
    [
        "%a = f32[2] add(" + "(" * 10_000_000,
        "%a = " + "(" * 10_000_000,
        "%a = f32[2] add(" + "()" * 500_000,
        '%a = f32[2] add(%x), m={n="' + '\\"' * 5_000_000,
        "%a = f32[2] add(%x), m={" + '"' * 1_000_000,
        '%a = f32[2] add(%x), metadata={op_name="' + "a" * 10_000_000,
        "%a = f32[2] add(%x), metadata={" + "a" * 10_000_000 + "}",
        "%a = f32[2] add(" + "," * 1_000_000,
        "%a = f32[2]{" + "{}" * 500_000,
        "%a = f32[2] add(" + "/*" * 1_000_000,
        "%a = " + "/**/" * 500_000,
        "%" + "a" * 10_000_000,
        "%a = " * 2_000_000,
        " " * 10_000_000,
        "%a = " + " " * 10_000_000,
        "%a = f32[" + "9" * 10_000_000 + "] add(%x)",
        "%a = f32[" + "1," * 500_000 + "1] add(%x)",
        "%a = f32[2] all-reduce(%x), replica_groups={" + "{0,1}," * 100_000 + "{2}}",
        "%a = f32[2] all-reduce(%x), replica_groups=[" + "1," * 500_000 + "1]<=[1]",
        "%a = f32[2] all-reduce(%x), replica_groups=mesh[" + "a" * 5_000_000 + "] {'b'}",
        "%a" + ".1" * 5_000_000 + "x = f32[2] async-start(%x)",
        "%a = f32[2] async-start(%x), calls=%" + "async_" * 1_000_000 + "!",
        "%a = f32[2] send(%x), frontend_attributes={" + "_xla_send_recv_source_target_pairs={" * 100_000,
    ],
    ids=lambda text: text[:60].strip().replace(" ", "_"),
)
def test_hostile_text_costs_linear_time(text: str) -> None:
    # Quadratic work on these lengths would run into the time limit of the test suite.
    found = parse_instruction(text)
    assert found is None or found.replica_groups is None
