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

from tracewarehouse.ingest.hlo.schedule import Buffer, ScheduledOp
from tracewarehouse.predict.calibrations import Calibration
from tracewarehouse.predict.machine import Machine

RULES_VERSION = 1
"""Rises with each change of a rule or of a constant here, in `kernels`, `timeline` or `links`."""

Basis = Literal[
    "compiler_cycles",
    "links",
    "kernel_model",
    "kernel_measured",
    "hbm_bytes",
    "gather",
    "small_op",
    "wait",
    "container",
    "unknown",
]
"""What a time rests on: the compiler's cycles, the links of the slice, a formula of a kernel or its measured median,
bytes through HBM, rows that a gather reads, what an op without work takes, the wait for another queue, the ops inside,
or nothing that is known."""

NS, US = 1_000, 1_000_000
"""Picoseconds of a nanosecond and of a microsecond."""

SMALL_BYTES = 64
"""A buffer of so many bytes is a scalar or an index, which the core holds itself."""
HBM_BOUND = 0.7
"""From this share of its time on, moving its bytes is what an op waits for (a judgement)."""
SEGMENT_BYTES = 256
"""A gather reads rows in segments of this size."""


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


def stated_cost(op: ScheduledOp, machine: Machine) -> Cost | None:
    """Return the cost of an op whose cycles the compiler estimates; None without an estimate."""
    if op.cycles is None:
        return None
    moved = hbm_bytes(op.buffers)
    if op.cost_model == "CLASSIC" or op.fusion_kind == "kOutput":
        return product_cost(op.cycles, moved, machine)
    return loop_cost(op.cycles, moved, machine)


def product_cost(cycles: int, moved: int, machine: Machine) -> Cost:
    """Return the cost of a product, whose estimate is that of the compiler's model of the matrix units.

    Where computing bounds it, the chip's product factor applies, whose source stands beside it in calibrations.csv.
    Where HBM bounds it, HBM that is faster by a factor makes it faster by that factor.
    """
    time = cycles / machine.rate("clock", "hz") * 1e12
    stream = machine.rates["hbm", "stream_share"]
    if is_hbm_bound(moved, time, machine):
        return rated(time / machine.hbm_factor, "compiler_cycles", stream, moved)
    factor = machine.rates["product", "factor"]
    time = max(time * factor.value, moved / machine.hbm_bytes_per_ps)
    return cost(time, "compiler_cycles", factor.low / factor.value, factor.high / factor.value, moved)


def is_hbm_bound(moved: int, time_ps: float, machine: Machine) -> bool:
    """Return whether an op that takes some time and moves some bytes waits for the real HBM."""
    return moved >= HBM_BOUND * machine.hbm_bytes_per_ps / machine.hbm_factor * time_ps


def loop_cost(cycles: int, moved: int, machine: Machine) -> Cost:
    """Return the cost of a loop fusion, copy, broadcast or iota.

    The estimate holds a constant that the chip does not take (measured on TPU7x: f32[1024] add and rsqrt in VMEM 10 ns
    where the estimate says 1,044; that other generations behave alike is a judgement). A copy within VMEM may state
    less than the constant, and then holds none.
    """
    constant = round(machine.rate("loop_fusion", "constant_cycles"))
    work = (cycles - constant if cycles >= constant else cycles) / machine.rate("clock", "hz") * 1e12
    if not moved:
        return cost(work + machine.rate("small_op", "vmem_ns") * NS, "compiler_cycles", 0.2, 1.0)
    if is_hbm_bound(moved, work, machine):
        work /= machine.hbm_factor
    return cost(work + machine.rate("small_op", "hbm_us") * US, "compiler_cycles", 0.9, 1.1, moved)


def gather_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a gather of rows, for which the compiler states no cycles.

    Each row costs at least a constant, and else its segments of 256 bytes. The two constants are fitted to two gathers
    that were measured.
    """
    out = op.results[0]
    rows = out.dimensions[0] if out.dimensions else 1
    segments = math.ceil(out.byte_size / max(rows, 1) / SEGMENT_BYTES)
    row = max(machine.rate("gather", "row_ns"), segments * machine.rate("gather", "segment_ns"))
    time = rows * row * NS + machine.rate("small_op", "hbm_us") * US
    return cost(time, "gather", 0.7, 1.5, out.byte_size)


def update_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of a dynamic-update-slice, which writes its update into the buffer that it got.

    The update is read and written; the buffer itself never moves.
    """
    moved = 2 * sum(b.byte_size for b in op.operands[1]) if len(op.operands) > 1 else 0
    time = moved / machine.hbm_bytes_per_ps + machine.rate("small_op", "hbm_us") * US
    return cost(time, "hbm_bytes", 0.5, 1.5, moved)


def moving_cost(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of any other op without an estimate: that of its bytes in HBM.

    Scalar arithmetic takes nothing. What an op of arrays in VMEM takes without an estimate, such as a sort, is not
    known; it counts as a small op.
    """
    moved = hbm_bytes(op.buffers)
    if moved:
        time = moved / machine.hbm_bytes_per_ps + machine.rate("small_op", "hbm_us") * US
        return cost(time, "hbm_bytes", 0.7, 1.5, moved)
    if all(b.byte_size <= SMALL_BYTES for b in op.buffers):
        return Cost(0, 0, 0, "small_op")
    return cost(machine.rate("small_op", "vmem_ns") * NS, "unknown", 0.0, 100.0)


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

    An update in place moves its update. Memory of the host is another path.
    """
    if root is not None and root.opcode == "dynamic-update-slice" and len(root.operands) > 1:
        return sum(b.byte_size for b in root.operands[1])
    size = sum(b.byte_size for b in start.results)
    source = start.operands[0][0].space if start.operands and start.operands[0] else "hbm"
    target = start.results[0].space if start.results else "vmem"
    return 0 if "host" in (source, target) else size * (source, target).count("hbm")
