"""Finds the element type in which a matrix product multiplies; it decides the peak rate."""

from __future__ import annotations

import re
from collections import Counter

from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.shapes import ELEMENT_BITS, Shape

_OPCODES = frozenset({"dot", "convolution", "ragged-dot"})
_NAMED = re.compile(r"convolution|dot|gemm|matmul")


def operand_dtype(instruction: Instruction, category: str | None) -> str | None:
    """Return the element type that a matrix product multiplies; None for other instructions, or if no operand tells.

    The unit multiplies two operands in the wider of their types. The text of a fusion does not say which operands it
    multiplies. If two matrices have a narrow type, such as quantized activations and weights, they are taken as the
    operands, and wider matrices as ones that it adds. A single narrow one, such as quantized weights, is widened first.

    Args:
        instruction: the instruction, with its operands.
        category: the profiler's category, which tells that a fusion or library call holds a product.
    """
    is_named = _NAMED.search(f"{category} {instruction.custom_call_target}") is not None
    if instruction.opcode not in _OPCODES and not (is_named and instruction.opcode in ("fusion", "custom-call")):
        return None
    operands = [s for s in instruction.operand_shapes if s is not None and s.element in ELEMENT_BITS]
    if instruction.opcode in _OPCODES:
        types = [s.element for s in operands[:2]] if len(operands) > 1 else []
        return max(types, key=ELEMENT_BITS.__getitem__, default=None)
    matrices = Counter(s.element for s in operands if _is_matrix(s))
    shared = [element for element, count in matrices.items() if count > 1]
    if shared:
        return min(shared, key=ELEMENT_BITS.__getitem__)
    return max(matrices, key=ELEMENT_BITS.__getitem__, default=None)


def _is_matrix(shape: Shape) -> bool:
    """True for an array of numbers with at least two dimensions whose size is not 1."""
    return shape.element != "pred" and sum(d != 1 for d in shape.dimensions) > 1
