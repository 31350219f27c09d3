"""The rules by which an op of a compiled program takes time on the core: each a small function with its source.

Times are integer picoseconds. Where a source says "measured", the op ran on a real chip: in captures of a server on
TPU7x (vllm-project/tpu-inference, profiles of January 2026), whose ops were joined with those of a program that libtpu
compiled for the same model, by opcode, shapes and memories. Everything else is the compiler's own number, or says that
it is a judgement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from tracewarehouse.ingest.hlo.schedule import Buffer, ScheduledOp, Space
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.links import TimeRange
from tracewarehouse.predict.machine import Machine

RULES_VERSION = 3
"""Rises with each change of a rule or of a constant here, in `kernels`, `timeline` or `links`."""

Basis = Literal[
    "compiler_cycles",
    "links",
    "kernel_model",
    "kernel_measured",
    "hbm_bytes",
    "vmem_bytes",
    "host_link",
    "gather",
    "small_op",
    "wait",
    "container",
    "unknown",
]
"""What a time rests on: the compiler's cycles, the links of the slice, a formula of a kernel or its measured median,
bytes through HBM or VMEM or over the host's link, rows that a gather reads, what an op without work takes, the wait
for another queue, the ops inside, or nothing that is known: then the time is a judgement, or 0."""

NS, US = 1_000, 1_000_000
"""Picoseconds of a nanosecond and of a microsecond."""

SMALL_BYTES = 64
"""A buffer of so many bytes is a scalar or an index, which the core holds itself."""
_WIDE = frozenset({"bf16", "f16", "f32", "s32", "u32", "pred"})
"""Elements of which no product exceeds the peak for bf16, and those of indices and masks beside them."""
HBM_BOUND = 0.7
"""From this share of its time on, moving its bytes is what an op waits for (a judgement)."""
SEGMENT_BYTES = 256
"""A gather reads rows in segments of this size."""
_SEGMENT = {"hbm": "segment_ns", "host": "segment_ns"}


class Cost(NamedTuple):
    """The time of an op on the core, and the bytes that it moves through HBM meanwhile.

    The three times are in ps. `low_ps` and `high_ps` hold nine of ten ops of the class, by what the basis is worth.
    """

    low_ps: int
    mid_ps: int
    high_ps: int
    basis: Basis
    hbm_bytes: int = 0


def cost(mid_ps: float, basis: Basis, low: float, high: float, hbm_bytes: int = 0) -> Cost:
    """Return a cost whose range is the time times `low` and `high`."""
    mid = round(mid_ps)
    return Cost(min(round(mid_ps * low), mid), mid, max(round(mid_ps * high), mid), basis, hbm_bytes)


def rated(mid_ps: float, basis: Basis, rate: Calibration, hbm_bytes: int = 0) -> Cost:
    """Return a cost that is inverse to a rate, and whose range is that of the rate."""
    return cost(mid_ps, basis, rate.value / rate.high, rate.value / rate.low, hbm_bytes)


def hbm_bytes(buffers: Iterable[Buffer]) -> int:
    """Return the bytes of the buffers in HBM, without scalars."""
    return sum(b.byte_size for b in buffers if b.space == "hbm" and b.byte_size > SMALL_BYTES)


def is_product(op: ScheduledOp) -> bool:
    """Return whether the compiler's estimate of an op is that of its model of the matrix units."""
    return op.cycles is not None and (op.cost_model == "CLASSIC" or op.fusion_kind == "kOutput")


def stated_cost(
    op: ScheduledOp, machine: Machine, inside: frozenset[str] = frozenset(), flops: int | None = None
) -> Cost | None:
    """Return the cost of an op whose cycles the compiler estimates; None without an estimate.

    `inside` are its opcode and those in the computations that it calls, `flops` the operations of its products.
    """
    if op.cycles is None:
        return None
    moved = hbm_bytes(op.buffers)
    if is_product(op):
        is_wide = all(buffer.element in _WIDE for buffer in op.buffers)
        return product_cost(op.cycles, moved, machine, (flops or 0) if is_wide else 0)
    if op.opcode == "copy":
        return (
            transposing_cost(op, machine) if not moved and is_transposing(op) else copy_cost(op.cycles, moved, machine)
        )
    touched = _size(op.buffers) if "reduce" in inside else None
    return loop_cost(op.cycles, moved, machine, touched)


def product_cost(cycles: int, moved: int, machine: Machine, flops: int = 0) -> Cost:
    """Return the cost of a product, whose estimate is that of the compiler's model of the matrix units.

    Where computing bounds it, the chip's product factor applies, whose source stands beside it in calibrations.csv, but
    nothing takes less than its operations take at the chip's peak for bf16: the factor is that of products that the
    compiler holds for slow. Where HBM bounds it, HBM that is faster by a factor makes it faster by that factor.
    """
    time, least = cycles / machine.rate("clock", "hz") * 1e12, flops / machine.flops_per_s * 1e12
    if is_hbm_bound(moved, time, machine):
        spent = rated(time / machine.hbm_factor, "compiler_cycles", machine.rates["hbm", "stream_share"], moved)
    else:
        factor = machine.rates["product", "factor"]
        time = max(time * factor.value, moved / machine.hbm_bytes_per_ps)
        spent = cost(time, "compiler_cycles", factor.low / factor.value, factor.high / factor.value, moved)
    low, mid, high = (max(each, math.ceil(least)) for each in spent[:3])
    return spent._replace(low_ps=low, mid_ps=mid, high_ps=high)


def is_hbm_bound(moved: int, time_ps: float, machine: Machine) -> bool:
    """Return whether an op that takes some time and moves some bytes waits for the real HBM."""
    return moved >= HBM_BOUND * machine.hbm_bytes_per_ps / machine.hbm_factor * time_ps


def loop_cost(cycles: int, moved: int, machine: Machine, reduced: int | None = None) -> Cost:
    """Return the cost of a loop fusion, broadcast, iota, slice, pad or reduction, which goes over `reduced` bytes.

    The estimate holds a constant that the chip does not take (measured on TPU7x: f32[1024] add and rsqrt in VMEM 10 ns
    where the estimate says 1,044), and beyond it counts bytes of VMEM at a rate that the chip exceeds: the work takes a
    share of the estimate, and as long as its bytes in HBM at least. Where the estimate is what HBM takes, it holds.

    Of a reduction the estimate says 2 to 10 times what libtpu's own schedule of it takes, and of one kind of reduction
    more than of another. It takes its bytes at a rate, and the estimate at most. A product of one row is such a
    reduction on all chips but TPU7x: the compiler multiplies the matrix by the row and adds up.
    """
    constant = round(machine.rate("loop_fusion", "constant_cycles"))
    work = max(cycles - constant, 0) / machine.rate("clock", "hz") * 1e12
    small, through_hbm = _small(moved, machine), moved / machine.hbm_bytes_per_ps
    if moved and is_hbm_bound(moved, work, machine):
        return cost(work / machine.hbm_factor + small, "compiler_cycles", 0.9, 1.1, moved)
    if reduced is None:
        factor = machine.rates["loop_fusion", "elementwise_factor"]
        works = [work * share for share in (factor.low, factor.value, factor.high)]
    else:
        rate, cycle = machine.rates["reduction", "bytes_per_cycle"], 1e12 / machine.rate("clock", "hz")
        works = [min(work, reduced / each * cycle) for each in (rate.high, rate.value, rate.low)]
    low, mid, high = (max(each, through_hbm) + small for each in works)
    return Cost(round(low * 0.9), round(mid), round(high * 1.1), "compiler_cycles", moved)


def copy_cost(cycles: int, moved: int, machine: Machine) -> Cost:
    """Return the cost of a copy, whose estimate holds the constant of loop fusions only if it reaches it."""
    constant = round(machine.rate("loop_fusion", "constant_cycles"))
    work = (cycles - constant if cycles >= constant else cycles) / machine.rate("clock", "hz") * 1e12
    if moved and is_hbm_bound(moved, work, machine):
        work /= machine.hbm_factor
    low = 0.9 if moved else 0.2
    return cost(work + _small(moved, machine), "compiler_cycles", low, 1.1, moved)


def transposing_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a copy within VMEM that transposes: its bytes, read and written, at a rate that was measured.

    The compiler's estimate is up to 9 times too low in one direction and 6 times too high in the other.
    """
    rate = machine.rates["transposing_copy", "bytes_per_cycle"]
    time = sum(b.byte_size for b in op.buffers) / rate.value / machine.rate("clock", "hz") * 1e12
    return rated(time + _small(0, machine), "vmem_bytes", rate)


def is_transposing(op: ScheduledOp) -> bool:
    """Return whether the dimension that lies closest together is another in a copy's result than in its operand."""
    innermost = [next((d for d in b.order if d < len(b.dimensions) and b.dimensions[d] > 1), None) for b in op.buffers]
    return len(set(innermost)) > 1


def _small(moved: int, machine: Machine) -> float:
    """Return what an op takes beside its work, in ps: more if it touches HBM."""
    return machine.rate("small_op", "hbm_us") * US if moved else machine.rate("small_op", "vmem_ns") * NS


def gather_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a gather of rows, for which the compiler states no cycles.

    Each row costs at least a constant, the core's, and else its segments of 256 bytes, which take longer if they lie in
    HBM, and less in a faster HBM.
    """
    table = max(op.operands[0], key=lambda b: b.byte_size, default=op.results[0]) if op.operands else op.results[0]
    moved = op.results[0].byte_size if "hbm" in (table.space, op.results[0].space) else 0
    return _rows_cost(op.results[0], table.space, 1, moved, machine)


def scatter_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a scatter, which writes rows into the buffer that it got: those of a gather, read and written.

    Its updates are the largest operand behind the buffer. No scatter was measured.
    """
    updates = max((b for operand in op.operands[1:] for b in operand), key=lambda b: b.byte_size, default=op.results[0])
    space = op.results[0].space
    return _rows_cost(updates, space, 2, 2 * updates.byte_size if space == "hbm" else 0, machine)


def _rows_cost(array: Buffer, space: Space, times: int, moved: int, machine: Machine) -> Cost:
    """Return the cost of finding the rows of an array one by one in a memory, some times."""
    rows = times * math.prod(array.dimensions[:-1] or array.dimensions)
    segments = math.ceil(times * array.byte_size / max(rows, 1) / SEGMENT_BYTES)
    row, segment = machine.rates["gather", "row_ns"], machine.rates["gather", _SEGMENT.get(space, "vmem_segment_ns")]
    faster = machine.hbm_factor if space == "hbm" else 1.0
    low, mid, high = (
        max(rows * max(row_ns, segments * segment_ns / faster) * NS, moved / machine.hbm_bytes_per_ps)
        + _small(moved, machine)
        for row_ns, segment_ns in ((row.low, segment.low), (row.value, segment.value), (row.high, segment.high))
    )
    return Cost(round(low), round(mid), round(high), "gather", moved)


def update_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a dynamic-update-slice, which writes its update into the buffer that it got.

    The update is read and written; the buffer itself never moves.
    """
    moved = 2 * sum(b.byte_size for b in op.operands[1]) if len(op.operands) > 1 else 0
    return cost(moved / machine.hbm_bytes_per_ps + _small(1, machine), "hbm_bytes", 0.5, 1.5, moved)


def moving_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of any other op without an estimate: that of its bytes in HBM. A slice reads what it returns.

    Scalar arithmetic takes nothing. What a sort or a window takes in VMEM is not known: the passes of an algorithm that
    it may use, at the rate of elementwise fusions, which is a judgement.
    """
    parts = ("slice", "dynamic-slice")
    buffers = [*op.results, *op.results] if op.opcode in parts else list(op.buffers)
    is_read = op.opcode in parts and hbm_bytes(op.operands[0] if op.operands else ()) > 0
    moved = hbm_bytes(op.buffers) if op.opcode not in parts else hbm_bytes(op.results) + is_read * _size(op.results)
    if all(b.byte_size <= SMALL_BYTES for b in buffers):
        return Cost(0, 0, 0, "small_op")
    if op.opcode not in ("sort", "reduce-window") and moved:
        return cost(moved / machine.hbm_bytes_per_ps + _small(moved, machine), "hbm_bytes", 0.7, 1.5, moved)
    rate = machine.rates["passes", "bytes_per_cycle"]
    passed = passes(op) * _size(buffers) / rate.value / machine.rate("clock", "hz") * 1e12
    return cost(max(passed, moved / machine.hbm_bytes_per_ps) + _small(moved, machine), "unknown", 0.1, 10.0, moved)


def passes(op: ScheduledOp) -> int:
    """Return how often an op goes over its arrays.

    A sorting network of n values has log2 n (log2 n + 1) / 2 stages (Batcher, AFIPS 1968). A window reads each value as
    often as it is large.
    """
    if op.opcode == "sort" and op.results and op.axes:
        stages = math.ceil(math.log2(max(op.results[0].dimensions[op.axes[0]], 2)))
        return stages * (stages + 1) // 2
    return math.prod(op.window) if op.opcode == "reduce-window" else 1


def _size(buffers: Iterable[Buffer]) -> int:
    return sum(b.byte_size for b in buffers)


def start_cost(machine: Machine) -> Cost:
    """Return the cost of starting a transfer or a collective beside the core."""
    start = machine.rates["small_op", "start_ns"]
    return Cost(round(start.low * NS), round(start.value * NS), round(start.high * NS), "small_op")


def wait_cost(wait_ps: int, machine: Machine) -> Cost:
    """Return the cost of the done of an asynchronous op that the core waits for.

    The wait is what the transfer takes longer than the ops before it, so it is uncertain by more than either.
    """
    done = machine.rates["small_op", "done_ns"]
    if wait_ps <= done.value * NS:
        return Cost(round(done.low * NS), round(done.value * NS), round(done.high * NS), "wait")
    return cost(wait_ps, "wait", 0.5, 1.5)


def transferred_bytes(start: ScheduledOp, root: ScheduledOp | None) -> int:
    """Return the bytes that an asynchronous copy or slice moves through HBM: those of its result, at each end in HBM.

    An update in place moves its update.
    """
    if root is not None and root.opcode == "dynamic-update-slice" and len(root.operands) > 1:
        return _size(root.operands[1])
    source, target = _ends(start)
    return _size(start.results) * (source, target).count("hbm")


def host_time(start: ScheduledOp, machine: Machine) -> tuple[str, TimeRange] | None:
    """Return the direction and the time of a copy from or to the memory of the host; None for other transfers.

    The two directions do not wait for each other. The rate is that of all chips of a host copying at once.
    """
    source, target = _ends(start)
    if "host" not in (source, target):
        return None
    rate = machine.rates["host", "gbps"]
    time = _size(start.results) / rate.value * NS
    return f"host from {source}", TimeRange(*rated(time, "host_link", rate)[:3])


def _ends(start: ScheduledOp) -> tuple[str, str]:
    source = start.operands[0][0].space if start.operands and start.operands[0] else "hbm"
    return source, start.results[0].space if start.results else "vmem"
