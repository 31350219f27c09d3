"""What the operator of a kernel and the shapes of its inputs tell of its work."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tracewarehouse.ingest.columns.profiler_names import OPERATOR_SHARE
from tracewarehouse.ingest.hlo.stated_work import Work, stated_work

BF16, HALF, FLOAT, FP8 = "c10::BFloat16", "c10::Half", "float", "c10::Float8_e4m3fn"
UNKNOWN = Work()


def work(operator: str, dims: Any, types: Any, **stats: str) -> Work:
    said = {"tf_op": f"Model_0/{operator}", "Input Dims": json.dumps(dims), "Input type": json.dumps(types)}
    return stated_work(said | stats)


@pytest.mark.parametrize(
    ("operator", "dims", "types", "expected"),
    [
        ("aten::mm", [[2, 3], [3, 5]], [BF16] * 2, Work(60, 2 * (6 + 15 + 10), "bf16[2,5]", "bf16")),
        ("aten::bmm", [[7, 2, 3], [7, 3, 5]], [HALF] * 2, Work(420, 14 * (6 + 15 + 10), "f16[7,2,5]", "f16")),
        ("aten::addmm", [[5], [2, 3], [3, 5], [], []], [FLOAT] * 3 + ["Scalar"] * 2,
         Work(60, 4 * (5 + 6 + 15 + 10), "f32[2,5]", "f32")),
        ("aten::baddbmm", [[7, 2, 5], [7, 2, 3], [7, 3, 5], [], []], [BF16] * 3 + ["Scalar"] * 2,
         Work(420, 14 * (10 + 6 + 15 + 10), "bf16[7,2,5]", "bf16")),
        ("aten::linear", [[4, 2, 3], [5, 3], []], [BF16, BF16, ""],
         Work(240, 2 * (24 + 15 + 40), "bf16[4,2,5]", "bf16")),
        ("aten::linear", [[2, 3], [5, 3], [5]], [BF16] * 3, Work(60, 2 * (6 + 15 + 5 + 10), "bf16[2,5]", "bf16")),
        ("aten::matmul", [[4, 1, 2, 3], [7, 3, 5]], [FLOAT] * 2,
         Work(28 * 60, 4 * (24 + 105 + 280), "f32[4,7,2,5]", "f32")),
        ("aten::matmul", [[2, 3], [3]], [FLOAT] * 2, Work(12, 4 * (6 + 3 + 2), "f32[2]", "f32")),
        ("aten::matmul", [[3], [3]], [FLOAT] * 2, Work(6, 4 * 7, "f32[]", "f32")),
        # the type of the result is an argument
        ("aten::_scaled_mm", [[2, 16], [16, 32], [], []], [FP8, FP8, FLOAT, FLOAT], Work(2048, None, None, "f8e4m3fn")),
        ("aten::_int_mm", [[2, 3], [3, 5]], ["signed char"] * 2, Work(60, 6 + 15 + 40, "s32[2,5]", "s8")),
        ("aten::add", [[4, 1], [1, 8], []], [BF16, BF16, "Scalar"], Work(32, 2 * (4 + 8 + 32))),
        ("aten::add_", [[4], [4], [], [4]], [FLOAT, FLOAT, "Scalar", FLOAT], Work(4, 48)),
        ("aten::mul", [[4], []], [HALF, "double"], Work(4, 16)),  # by a number
        ("aten::silu", [[4]], [BF16], Work(None, 16)),
        ("aten::copy_", [[4, 2], [2], []], [FLOAT, BF16, "Scalar"], Work(0, 32 + 4)),
        ("aten::fill_", [[4, 2], []], [FLOAT, "Scalar"], Work(0, 32)),
    ],
)  # fmt: skip
def test_the_work_of_an_operator(operator: str, dims: Any, types: Any, expected: Work) -> None:
    assert work(operator, dims, types) == expected


@pytest.mark.parametrize(
    ("operator", "dims", "types"),
    [
        ("aten::mm", [[2, 3], [4, 5]], [BF16] * 2),
        ("aten::mm", [[7, 2, 3], [7, 3, 5]], [BF16] * 2),
        ("aten::bmm", [[2, 3], [3, 5]], [BF16] * 2),
        ("aten::mm", [[2, 3], [3, 5]], ["c10::complex<float>"] * 2),
        ("aten::mm", [[2, 3], [3, 5]], ["complexfloat"] * 2),  # four times as many
        ("aten::mm", [[2, 3], [3, 5]], ["c10::Float4_e2m1fn_x2"] * 2),  # two elements in each
        ("aten::mm", [[2, 3]], [BF16]),
        ("aten::mm", [[2, -3], [-3, 5]], [BF16] * 2),
        ("aten::mm", [[1 << 40, 1 << 40], [1 << 40, 1 << 40]], [BF16] * 2),
        ("aten::mm", "none", 7),
        ("aten::matmul", [[4, 2, 3], [7, 3, 5]], [FLOAT] * 2),
        ("aten::addmm", [[5], [2, 3], [[3, 5]]], [FLOAT, FLOAT, "TensorList"]),
        ("aten::add", [[4], [4], []], ["long int", "long int", "Scalar"]),
        ("aten::add", [[4], [4], []], [HALF, FLOAT, "Scalar"]),
        ("aten::add", [[4], [3], []], [FLOAT, FLOAT, "Scalar"]),
        ("aten::add", [[], [], []], [FLOAT, FLOAT, "Scalar"]),
        ("aten::conv2d", [[1, 2, 8, 8], [4, 2, 3, 3]], [BF16] * 2),
        ("aten::_flash_attention_forward", [[1, 8, 4, 2]] * 3, [BF16] * 3),
        ("mm", [[2, 3], [3, 5]], [BF16] * 2),
    ],
)
def test_work_that_shapes_do_not_tell_is_unknown(operator: str, dims: Any, types: Any) -> None:
    assert work(operator, dims, types) == UNKNOWN


def test_of_several_kernels_one_has_the_operations_and_none_the_bytes() -> None:
    one = work("aten::mm", [[2, 3], [3, 5]], [BF16] * 2)
    for share, flops in (("all", 60), ("none", 0)):
        assert work("aten::mm", [[2, 3], [3, 5]], [BF16] * 2, **{OPERATOR_SHARE: share}) == one._replace(
            flops=flops, bytes_accessed=None
        )
    assert work("aten::add", [[4], [4]], [FLOAT] * 2, **{OPERATOR_SHARE: "none"}) == UNKNOWN
