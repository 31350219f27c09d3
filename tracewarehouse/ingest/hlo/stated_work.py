"""Tells the work of a GPU's kernel from the operator that launched it and the shapes of its inputs, where no HLO does.

A product of m x k by k x n takes 2 m n k operations, each matrix of a batch alike. It reads its inputs and writes its
result once, and so does an elementwise operator, whose result is as large as its inputs broadcast. Views that repeat
elements count as if they were whole, since strides are not read. What needs more than shapes is not known, such as
attention, which may be causal, and convolutions, which have strides and padding.
"""

from __future__ import annotations

from itertools import zip_longest
from math import prod
from typing import NamedTuple

from tracewarehouse.ingest.columns.profiler_names import (
    ELEMENTWISE_OPERATORS,
    OPERATOR_SHARE,
    PRODUCT_OPERATORS,
    WRITING_OPERATORS,
)
from tracewarehouse.ingest.hlo.shapes import ELEMENT_BITS
from tracewarehouse.ingest.hlo.stated_collectives import Stated, stated_inputs, text

_RANKS = {
    "aten::mm": 2,
    "aten::addmm": 2,
    "aten::_scaled_mm": 2,
    "aten::_int_mm": 2,
    "aten::bmm": 3,
    "aten::baddbmm": 3,
}
_OF_OTHER_TYPE = {"aten::_scaled_mm": None, "aten::_int_mm": "s32"}
"""Products whose result is not of the type of their inputs; None if an argument tells it."""
_MOST = (1 << 63) - 1

Array = tuple[tuple[int, ...], str]
"""Dimensions and element type."""


class Work(NamedTuple):
    """What one kernel does; None is unknown.

    Attributes:
        flops: floating-point operations.
        bytes_accessed: bytes that it reads and writes in HBM.
        shape: the result of the product, such as bf16[1024,5120].
        operand_dtype: element type that the product multiplies.
    """

    flops: int | None = None
    bytes_accessed: int | None = None
    shape: str | None = None
    operand_dtype: str | None = None


def stated_work(stated: Stated) -> Work:
    """Return the work of a kernel by its stats; see the module.

    Of several kernels of one call of an operator, one has all its operations and the others none. What such a kernel
    reads and writes is not known, since parts of the result pass between them.
    """
    operator = (text(stated, "tf_op") or "").rpartition("/")[2]
    arrays = stated_inputs(text(stated, "Input Dims"), text(stated, "Input type"))
    share = text(stated, OPERATOR_SHARE)
    if operator not in PRODUCT_OPERATORS:
        return _elementwise(operator, arrays) if share is None else Work()
    work = _product(operator, arrays)
    if share is None:
        return work
    return work._replace(flops=0 if share == "none" and work.flops is not None else work.flops, bytes_accessed=None)


def _product(operator: str, arrays: list[Array | None]) -> Work:
    found = _chosen(PRODUCT_OPERATORS[operator], arrays)
    if found is None:
        return Work()
    (left, dtype), (right, other) = found[:2]
    if operator == "aten::linear":
        right, found = right[::-1], [*found, *(bias for bias in arrays[2:3] if bias)]
    ranks = _RANKS.get(operator)
    if not left or not right or (ranks and {len(left), len(right)} != {ranks}):
        return Work()
    inner, columns = (right[-2], right[-1:]) if len(right) > 1 else (right[0], ())
    batch = _broadcast([left[:-2], right[:-2]])
    is_real = dtype in ELEMENT_BITS and other in ELEMENT_BITS and not dtype.startswith("c")
    if left[-1] != inner or batch is None or not is_real:
        return Work()
    result = (*batch, *left[:-1][-1:], *columns)
    wider = max(dtype, other, key=ELEMENT_BITS.__getitem__)
    written = _OF_OTHER_TYPE.get(operator, wider)
    flops = 2 * prod(result) * inner
    size = _size([*found, (result, written)]) if written else None
    shape = f"{written}[{','.join(map(str, result))}]" if written else None
    return Work(flops, size, shape, wider) if flops <= _MOST else Work()


def _elementwise(operator: str, arrays: list[Array | None]) -> Work:
    """Return the work of an elementwise operator, unknown for any other; writing and copying compute nothing."""
    if touched := WRITING_OPERATORS.get(operator):
        found = _chosen(touched, arrays)
        return Work(0, _size(found)) if found else Work()
    count, flops = ELEMENTWISE_OPERATORS.get(operator, (0, None))
    read = [a for a in arrays[:count] if a is None or a[0]]  # a number is no traffic
    known = [a for a in read if a is not None]
    dtypes = {dtype for _, dtype in known}
    result = _broadcast([dimensions for dimensions, _ in known])
    if len(known) < len(read) or len(dtypes) != 1 or result is None:
        return Work()
    [dtype] = dtypes
    if not dtype.startswith(("f", "bf")):  # of whole numbers the result may be of another type
        return Work()
    size = _size([*known, (result, dtype)])
    return Work(flops * prod(result) if flops and size is not None else None, size)


def _chosen(places: tuple[int, ...], arrays: list[Array | None]) -> list[Array] | None:
    found = [a for i in places if i < len(arrays) and (a := arrays[i]) is not None]
    return found if len(found) == len(places) else None


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape to which all are repeated; None if they do not fit."""
    result = []
    for sizes in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        larger = {size for size in sizes if size != 1}
        if len(larger) > 1:
            return None
        result.append(larger.pop() if larger else 1)
    return tuple(reversed(result))


def _size(arrays: list[Array]) -> int | None:
    if not all(dtype in ELEMENT_BITS for _, dtype in arrays):
        return None
    size = sum((prod(dimensions) * ELEMENT_BITS[dtype] + 7) // 8 for dimensions, dtype in arrays)
    return size if size <= _MOST else None
