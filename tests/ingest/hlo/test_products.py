"""The type that a matrix product multiplies, from its operands."""

from __future__ import annotations

import pytest

from tracewarehouse.ingest.hlo.instruction_row import operand_dtype
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
        ('%k = bf16[8,8] custom-call(s8[8,4] %x, s8[4,8] %w), custom_call_target="tpu_custom_call"', "kernel", None),
        ("%a = f32[8,8] add(f32[8,8] %x, f32[8,8] %y)", "non-fusion elementwise", None),
    ],
)  # fmt: skip
def test_the_type_of_a_product(text: str, category: str | None, expected: str | None) -> None:
    instruction = parse_instruction(text)
    assert instruction is not None
    assert operand_dtype(instruction, category) == expected
