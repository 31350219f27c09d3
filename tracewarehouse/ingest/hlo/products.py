"""Finds matrix products among HLO instructions, and what they multiply."""

from __future__ import annotations

import re
from collections import Counter
from itertools import permutations

from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.shapes import ELEMENT_BITS, Shape

_MULTIPLIES = frozenset({"dot", "convolution", "ragged-dot"})
_NAMED = re.compile(r"convolution|dot|gemm|matmul")
_NAMES_PRODUCT = re.compile(r"dot_general|gemm|matmul|gmm|conv_general")


def is_product(instruction: Instruction, category: str | None, op_name: str | None) -> bool:
    """Whether an instruction is a matrix product: by its opcode, the names it goes by, or a custom call's shapes."""
    if instruction.opcode in _MULTIPLIES:
        return True
    if instruction.opcode not in ("fusion", "custom-call"):
        return False
    names = f"{category} {instruction.custom_call_target} {instruction.name}"
    is_named = _NAMED.search(names) or _NAMES_PRODUCT.search(op_name or "")
    return bool(is_named) or (instruction.opcode == "custom-call" and _contracted(instruction) is not None)


def operand_dtype(instruction: Instruction, category: str | None, op_name: str | None) -> str | None:
    """Return the element type that a matrix product multiplies; None for other instructions, or if no operand tells.

    The unit multiplies two operands in the wider of their types. Shapes tell those of a custom call, such as a Pallas
    kernel. The text of a fusion does not say which operands it multiplies. If two matrices have a narrow type, such as
    quantized activations and weights, they are taken as the operands, and wider matrices as ones that it adds. A single
    narrow one, such as quantized weights, is widened first.
    """
    is_other_fusion = instruction.opcode == "fusion" and not _NAMED.search(category or "")
    if is_other_fusion or not is_product(instruction, category, op_name):
        return None  # the name path of a fusion may be that of a product whose operands or result it prepares
    operands = [s for s in instruction.operand_shapes if s is not None and s.element in ELEMENT_BITS]
    if instruction.opcode in _MULTIPLIES:
        return _wider(operands[0], operands[1]) if len(operands) > 1 else None
    if instruction.opcode == "custom-call" and (contracted := _contracted(instruction)):
        return _wider(*contracted)
    matrices = Counter(s.element for s in operands if s.element != "pred" and sum(d != 1 for d in s.dimensions) > 1)
    shared = [element for element, count in matrices.items() if count > 1]
    if shared:
        return min(shared, key=ELEMENT_BITS.__getitem__)
    return max(matrices, key=ELEMENT_BITS.__getitem__, default=None)


def _wider(one: Shape, other: Shape) -> str:
    return max(one.element, other.element, key=ELEMENT_BITS.__getitem__)


def _contracted(instruction: Instruction) -> tuple[Shape, Shape] | None:
    """Return the operands of m x k and of k x n or n x k where the result is m x n; None if none fit.

    Three square matrices of one size prove nothing: a sum has them too.
    """
    result = _matrix(instruction.shape.leaves[0]) if instruction.shape.leaves else None
    if result is None:
        return None
    sized = [(shape, size) for shape in instruction.operand_shapes if shape is not None and (size := _matrix(shape))]
    for (one, (rows, depth)), (other, size) in permutations(sized, 2):
        if rows == result[0] and sorted(size) == sorted((depth, result[1])) and not rows == depth == result[1]:
            return one, other
    return None


def _matrix(shape: Shape) -> tuple[int, int] | None:
    sizes = [d for d in shape.dimensions if d is not None and d != 1]
    return (sizes[0], sizes[1]) if len(sizes) == 2 and not shape.is_tuple and shape.element in ELEMENT_BITS else None
