"""Counts operations and bytes of a compiled program's instructions, as XLA's cost analysis states them to profilers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.opcodes import attention_form, kernel_name
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.schedule import Buffer, Schedule, ScheduledOp
from tracewarehouse.predict.kernels import paged_bytes

_PRODUCTS = frozenset({b"convolution", b"dot"})
_MOST_STEPS = 1 << 24
"""Most positions of a window that are tried one by one; a product that has more has unknown operations."""


@dataclass(frozen=True)
class OpCost:
    """One execution of an instruction; None where a number is not known.

    Attributes:
        category: the profiler's category, such as 'convolution fusion', where it is not that of the opcode.
        flops: floating-point operations of its matrix products; of a kernel, those that its author states.
        bytes: bytes that it reads and writes, in all memories of the device.
        hbm_bytes: the part of them in HBM.
    """

    category: str | None = None
    flops: int | None = None
    bytes: int | None = None
    hbm_bytes: int | None = None


def op_costs(module: HloModule, names: Collection[str], context_tokens: float | None = None) -> Mapping[str, OpCost]:
    """Return the costs of some of a program's instructions, by name.

    Attention over pages reads the keys and values of contexts of `context_tokens`; None for all there is room for.
    """
    schedule = module.schedule
    products = _Products(module.raw)
    ops = {op.name: op for computation in products.computations for op in schedule.ops(computation)}
    return {name: _cost(ops[name], ops, schedule, products, context_tokens) for name in names if name in ops}


def product_flops(module: HloModule) -> Callable[[ScheduledOp], int | None]:
    """Return what gives the operations of an op's matrix products, those of a fusion inside it; None if not known."""
    products, schedule = _Products(module.raw), module.schedule
    return lambda op: products.flops({op.name, *(inner.name for inner in schedule.inside(op))})


def _cost(
    op: ScheduledOp,
    ops: Mapping[str, ScheduledOp],
    schedule: Schedule,
    products: _Products,
    context_tokens: float | None,
) -> OpCost:
    if op.opcode in ("while", "conditional", "call"):
        return OpCost()  # that of the ops inside
    if op.opcode == "custom-call":
        if op.bytes_accessed is None and attention_form(kernel_name(op.name)) in ("paged", "ragged"):
            read = round(paged_bytes(op, context_tokens))
            return OpCost(flops=op.flops, bytes=read or None, hbm_bytes=read or None)
        return OpCost(flops=op.flops, bytes=op.bytes_accessed)
    inside = {op.name, *(inner.name for inner in schedule.inside(op))} if op.opcode == "fusion" else {op.name}
    opcodes = {products.names[name].opcode for name in inside if name in products.names}
    flops = products.flops(inside) if opcodes else 0
    touched = list(_touched(op, ops, schedule))
    return OpCost(
        "convolution fusion" if opcodes & _PRODUCTS and op.opcode == "fusion" else None,
        flops,
        sum(b.byte_size for b in touched),
        sum(b.byte_size for b in touched if b.space == "hbm"),
    )


def _touched(op: ScheduledOp, ops: Mapping[str, ScheduledOp], schedule: Schedule) -> Iterator[Buffer]:
    """Yield the buffers that an op reads and writes, as far as it does.

    A gather reads the rows that it gives. An update in place reads and writes its update, not the whole buffer. A start
    states what its transfer reads, and the done what that writes.
    """
    if op.opcode.endswith("-start"):
        source = op.operands[0][0].space if op.operands and op.operands[0] else "hbm"
        yield from (b._replace(space=source) for b in _moved(op, schedule))
    elif op.opcode.endswith("-done"):
        start = ops.get(op.operand_names[0]) if op.operand_names else None
        yield from _moved(start, schedule) if start else op.results
    elif op.opcode == "dynamic-update-slice":
        for operand in op.operands[1:2]:
            yield from (*operand, *operand)
    elif op.opcode == "dynamic-slice" or (op.opcode == "fusion" and "gather" in schedule.opcodes(op)):
        yield from (*op.results, *op.results)
    else:
        yield from op.buffers


def _moved(start: ScheduledOp, schedule: Schedule) -> tuple[Buffer, ...]:
    """Return what an asynchronous op makes: its result, or of an update in place the update."""
    root = schedule.root(start)
    is_update = root is not None and root.opcode == "dynamic-update-slice" and len(root.operands) > 1
    return root.operands[1] if root is not None and is_update else start.results


class _Products:
    """The matrix products of a program, in all of its computations."""

    def __init__(self, raw: bytes) -> None:
        module = CLASSES["HloProto"].FromString(raw).hlo_module
        self.computations = [c.id for c in module.computations]
        self._by_id = {i.id: i for c in module.computations for i in c.instructions}
        self.names = {i.name.decode("utf-8", "replace"): i for i in self._by_id.values() if self._is_product(i)}

    def flops(self, names: Iterable[str]) -> int | None:
        """Return the operations of the products among these, two for each product of numbers; None if not known."""
        total = 0
        terms_of = {b"dot": self._dot_terms, b"convolution": self._convolution_terms, b"reduce": self._row_terms}
        for proto in (self.names[name] for name in names if name in self.names):
            terms = terms_of[proto.opcode](proto)
            if terms is None:
                return None
            total += 2 * terms
        return total

    def _operand(self, proto: Any, number: int) -> list[int]:
        return [int(size) for size in self._by_id[proto.operand_ids[number]].shape.dimensions]

    def _is_product(self, proto: Any) -> bool:
        """Return whether it is a product, or the sum of products as which the compiler writes one of a single row."""
        is_sum = proto.opcode == b"reduce" and proto.metadata.op_name.endswith(b"/dot_general")
        return proto.opcode in _PRODUCTS or is_sum

    def _row_terms(self, proto: Any) -> int:
        return math.prod(self._operand(proto, 0))

    def _dot_terms(self, proto: Any) -> int:
        left = self._operand(proto, 0)
        contracted = [left[d] for d in proto.dot_dimension_numbers.lhs_contracting_dimensions]
        return math.prod([*map(int, proto.shape.dimensions), *contracted])

    def _convolution_terms(self, proto: Any) -> int | None:
        """Return how many products of numbers a convolution sums: only those where the window lies on the input.

        The compiler writes a batched product as a convolution whose window runs over the batch: of each place only one
        term lies on the input (see HandleConvolution in XLA's hlo_cost_analysis.cc).
        """
        numbers, left, right = proto.convolution_dimension_numbers, self._operand(proto, 0), self._operand(proto, 1)
        features = right[numbers.kernel_input_feature_dimension] * right[numbers.kernel_output_feature_dimension]
        terms = left[numbers.input_batch_dimension] * features
        spatial = zip(
            proto.window.dimensions, numbers.input_spatial_dimensions, numbers.output_spatial_dimensions, strict=True
        )
        for window, of_input, of_output in spatial:
            size, places = left[of_input], proto.shape.dimensions[of_output]
            if window.size * places > _MOST_STEPS:
                return None
            terms *= _positions(window, size, places)
        return int(terms)


def _positions(window: Any, size: int, places: int) -> int:
    """Return how many pairs of an output and a place in its window lie on the input of this size."""
    base, step = max(window.base_dilation, 1), max(window.window_dilation, 1)
    end = (size - 1) * base + 1 if size else 0
    count = 0
    for place in range(places):
        first = place * window.stride - window.padding_low
        count += sum(1 for k in range(window.size) if 0 <= (at := first + k * step) < end and at % base == 0)
    return count
