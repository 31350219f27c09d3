"""The type that a matrix product multiplies, from its operands."""

from __future__ import annotations

import pytest

from tracewarehouse.ingest.hlo.instruction import operand_dtype
from tracewarehouse.ingest.hlo.text import parse_instruction

FUSION = "kind=kOutput, calls=%fused_computation.1"


@pytest.mark.parametrize(
    ("text", "category", "expected"),
    [
        ("%d = f32[8,8] dot(bf16[8,4] %a, bf16[4,8] %b)", None, "bf16"),
        ("%d = s32[8,8] dot(s8[8,4] %a, s8[4,8] %b)", None, "s8"),
        ("%d = f32[8,8] dot(f8e4m3fn[8,4] %a, bf16[4,8] %b)", None, "bf16"),
        ("%c = bf16[8,8] convolution(u8[8,4] %a, u8[4,8] %b), dim_labels=bf_io->bf", None, "u8"),
        # quantized activations and weights, scales, and a residual stream that is added
        (
            f"%f = bf16[1024,512] fusion(s8[1024,256] %x, s8[256,512] %w, f32[512] %s, bf16[1024,512] %r), {FUSION}",
            "convolution fusion",
            "s8",
        ),
        # quantized weights alone are widened, beside one matrix or two
        (f"%f = bf16[1024,512] fusion(bf16[1024,256] %x, s8[256,512] %w), {FUSION}", "convolution fusion", "bf16"),
        (
            f"%f = bf16[1024,512] fusion(bf16[1024,256] %x, s8[256,512] %w, bf16[1024,512] %r), {FUSION}",
            "convolution fusion",
            "bf16",
        ),
        # vectors, columns and predicates are no matrices
        (
            f"%f = bf16[8,8] fusion(bf16[8,4] %x, bf16[4,8] %w, s8[8] %a, s8[8,1] %b, pred[8,8] %p, pred[8,8] %q), "
            f"{FUSION}",
            "convolution fusion",
            "bf16",
        ),
        (f"%f = bf16[8,8] fusion(bf16[8,4] %x, bf16[4,8] %w), {FUSION}", "loop fusion", None),
        (f"%f = bf16[8,8] fusion(%x, %w), {FUSION}", "convolution fusion", None),
        ('%g = f32[8,8] custom-call(f32[8,4] %x, f32[4,8] %w), custom_call_target="__cublas$gemm"', None, "f32"),
        ('%k = bf16[8,8] custom-call(s8[8,4] %x, s8[4,8] %w), custom_call_target="tpu_custom_call"', "kernel", "s8"),
        # a kernel of packed weights, transposed, with scales of three dimensions, and one with tokens in two dimensions
        (
            "%k = bf16[1024,512] custom-call(bf16[1024,256] %x, f4e2m1fn[512,256] %w, f32[8,1,512] %s), "
            'custom_call_target="tpu_custom_call"',
            "custom-call",
            "bf16",
        ),
        (
            '%k = (bf16[64,32], u8[0]) custom-call(s32[3] %i, f8e4m3fn[64,16] %x, f8e4m3fn[16,32] %w), '
            'custom_call_target="tpu_custom_call"',
            "custom-call",
            "f8e4m3fn",
        ),
        # a sum, of squares and of others; attention; a kernel without matrices
        ('%k = f32[8,8] custom-call(f32[8,8] %x, f32[8,8] %y), custom_call_target="t"', "custom-call", None),
        ('%k = f32[8,4] custom-call(f32[8,4] %x, f32[8,4] %y), custom_call_target="t"', "custom-call", None),
        ('%k = f32[8,4,2] custom-call(f32[8,4,2] %q, f32[9,4,2] %k), custom_call_target="t"', "custom-call", None),
        ('%k = f32[64] custom-call(f32[64] %x), custom_call_target="t"', "custom-call", None),
        # equal squares are a product only by name
        ('%matmul.1 = f32[8,8] custom-call(f32[8,8] %x, f32[8,8] %y), custom_call_target="t"', "custom-call", "f32"),
        # the name path of a product, on a fusion that only prepares its operand
        (
            f'%f = bf16[8,8] fusion(bf16[8,8] %x), {FUSION}, metadata={{op_name="jit(f)/dot_general"}}',
            "loop fusion",
            None,
        ),
        ("%a = f32[8,8] add(f32[8,8] %x, f32[8,8] %y)", "non-fusion elementwise", None),
    ],
)  # fmt: skip
def test_the_type_of_a_product(text: str, category: str | None, expected: str | None) -> None:
    instruction = parse_instruction(text)
    assert instruction is not None
    assert operand_dtype(instruction, category, instruction.op_name) == expected
