"""Times of kernels that somebody wrote for the core (Pallas), for which the compiler estimates nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tracewarehouse.ingest.capture.prediction import MeasuredKernel
from tracewarehouse.ingest.hlo.opcodes import kernel_name
from tracewarehouse.ingest.hlo.schedule import Buffer, ScheduledOp
from tracewarehouse.predict.collectives import Exchange
from tracewarehouse.predict.machine import Machine
from tracewarehouse.predict.rules import NS, US, Cost, cost, hbm_bytes, is_hbm_bound, rated

_FLOATS = ("bf16", "f16", "f32")


def kernel_cost(
    op: ScheduledOp,
    machine: Machine,
    given: Mapping[str, int],
    context_tokens: float | None = None,
    exchange: Exchange | None = None,
    measured: MeasuredKernel | None = None,
) -> Cost:
    """Return the cost of a Pallas kernel.

    Args:
        op: the custom call.
        machine: what it runs on.
        given: time in ps of one execution of kernels, by name, in place of what follows.
        context_tokens: tokens of each sequence that paged attention reads; None for all that its cache has room for.
        exchange: between the devices that share experts, which tells how many rows a product of experts finds filled.
        measured: what a recorded run says of the same kernel, in place of the formula.
    """
    name = kernel_name(op.name)
    if name in given:
        return cost(given[name], "kernel_measured", 0.9, 1.1, hbm_bytes(op.buffers))
    if measured is not None:
        return _measured(measured, round(_moved(op, context_tokens)), machine)
    if "flash" in name or "splash" in name:
        return _flash(op, machine)
    if is_paged(name):
        is_ragged = "ragged" in name or "RPA" in name
        known = is_ragged and _ragged_attention(op, machine, context_tokens)
        return known or _paged(op, machine, context_tokens)
    share = machine.rates["other_kernel", "share"]
    if "ragged" in name and (expected := _ragged(op, machine, share.value, exchange)):
        (mid, moved), most = expected, _ragged(op, machine, share.low, None) or expected
        low = mid * share.value / share.high
        return Cost(round(low), round(mid), round(most[0]), "kernel_model", moved)
    moved = hbm_bytes(op.buffers)
    moved = min(op.bytes_accessed or moved, moved)
    time = max((op.flops or 0) / (share.value * machine.flops_per_s) * 1e12, moved / machine.hbm_bytes_per_ps)
    return rated(time, "kernel_model", share, moved)


def _measured(kernel: MeasuredKernel, moved: int, machine: Machine) -> Cost:
    """Return the median of a recorded run, by which HBM that is faster by a factor makes it faster if HBM bounds it.

    The range has eight in ten executions, and a tenth at least: those of one run repeat one workload.
    """
    faster = machine.hbm_factor if is_hbm_bound(moved, kernel.us * US, machine) else 1.0
    low, high = min(kernel.low_us / kernel.us, 0.9), max(kernel.high_us / kernel.us, 1.1)
    return cost(kernel.us * US / faster, "kernel_measured", low, high, moved)


def _moved(op: ScheduledOp, context_tokens: float | None) -> float:
    return paged_bytes(op, context_tokens) if is_paged(kernel_name(op.name)) else hbm_bytes(op.buffers)


def _ragged(op: ScheduledOp, machine: Machine, share: float, exchange: Exchange | None) -> tuple[float, int] | None:
    """Return the time in ps of products of the rows of several experts with their matrices, and the bytes in HBM.

    Only filled rows count, and only the matrices of experts that have one. The matrix units are fed with matrices about
    as fast from VMEM as from HBM (a judgement). None if it is another kernel.
    """
    arrays = [b for operand in op.operands for b in operand if b.element in _FLOATS]
    matrices = next((b for b in arrays if len(b.dimensions) == 3), None)
    rows = next((b for b in arrays if len(b.dimensions) == 2), None)
    if matrices is None or rows is None:
        return None
    experts, depth, width = matrices.dimensions
    room = rows.dimensions[0]
    count = exchange.expected(room) if exchange else float(room)
    loaded = matrices.byte_size * min(1.0, count / max(experts, 1))
    moved = count / room * hbm_bytes([rows, *op.results])
    time = max(
        2 * count * depth * width / (share * machine.flops_per_s) * 1e12, (loaded + moved) / machine.hbm_bytes_per_ps
    )
    return time, round(moved + (loaded if matrices.space == "hbm" else 0))


def _flash(op: ScheduledOp, machine: Machine) -> Cost:
    """Return the cost of causal attention over whole prompts, by its FLOPs.

    A query sees the keys up to its own, so s queries at the end of t keys make s (t - s / 2) products of a row of
    queries and of values.
    """
    arrays = [b for operand in op.operands for b in operand if len(b.dimensions) >= 3 and b.element in _FLOATS]
    if len(arrays) < 3:
        return cost(0, "unknown", 1.0, 1.0)
    query, key, value = (array.dimensions for array in arrays[:3])
    seen = query[-2] * max(key[-2] - query[-2] / 2, 0)
    flops = 2 * math.prod(query[:-2]) * seen * (query[-1] + value[-1])
    share = machine.rates["flash_attention", "share"]
    time = flops / (share.value * machine.flops_per_s) * 1e12
    return rated(time, "kernel_model", share, hbm_bytes(op.buffers))


def _paged(op: ScheduledOp, machine: Machine, context_tokens: float | None) -> Cost:
    """Attention over pages: the keys and values of the contexts in use, once through HBM, and something a sequence."""
    moved, sequences = paged_bytes(op, context_tokens), _sequences(op)
    share = machine.rates["paged_attention", "share"]
    time = moved / (share.value * machine.hbm_bytes_per_ps)
    time += sequences * machine.rate("paged_attention", "sequence_ns") * NS
    return rated(time, "kernel_model", share, round(moved))


def _ragged_attention(op: ScheduledOp, machine: Machine, context_tokens: float | None) -> Cost | None:
    """Return the cost of attention of sequences of different lengths over pages, as a calibration measured it.

    It reads the keys and values in use, or computes with them where prompts do, and takes something for a sequence.
    None if nothing was measured, or the kernel has other operands than queries and pages that hold keys and values.
    """
    names = ("prompt_share", "share", "sequence_ns")
    rates = [machine.rates[key] for each in names if (key := ("ragged_attention", each)) in machine.rates]
    arrays = [b for operand in op.operands for b in operand if b.element in _FLOATS]
    query = next((b for b in arrays if len(b.dimensions) == 3), None)
    pages = next((b for b in arrays if len(b.dimensions) == 4), None)
    if len(rates) < len(names) or query is None or pages is None:
        return None
    sequences, (tokens, heads, width) = _sequences(op), query.dimensions
    count, page = pages.dimensions[:2]
    context = min(count * page / sequences, context_tokens or math.inf)
    asked = min(tokens / sequences, context)
    flops = 4 * sequences * heads * width * asked * (context - asked / 2)
    moved = pages.byte_size * context * sequences / (count * page)
    low, mid, high = (
        max(flops / (prompt * machine.flops_per_s) * 1e12, moved / (share * machine.hbm_bytes_per_ps))
        + sequences * sequence_ns * NS
        for prompt, share, sequence_ns in (
            (rates[0].high, rates[1].high, rates[2].low),
            (rates[0].value, rates[1].value, rates[2].value),
            (rates[0].low, rates[1].low, rates[2].high),
        )
    )
    return Cost(round(low), round(mid), round(high), "kernel_measured", round(moved))


def is_paged(name: str) -> bool:
    """Whether a kernel of this name attends to pages of keys and values."""
    return "paged" in name or "RPA" in name


def paged_bytes(op: ScheduledOp, context_tokens: float | None) -> float:
    """Return the bytes of keys and values in HBM that attention over pages reads: those of the contexts in use."""
    caches = sorted(
        (b for operand in op.operands for b in operand if b.space == "hbm" and len(b.dimensions) >= 4),
        key=lambda b: -b.byte_size,
    )[:2]
    moved: float = sum(b.byte_size for b in caches)
    if context_tokens is not None and caches:
        room = caches[0].dimensions[-2] * caches[0].dimensions[-3] / max(_sequences(op), 1)
        moved *= min(1.0, context_tokens / room)
    return moved


def _sequences(op: ScheduledOp) -> int:
    """Return the number of sequences: the first operand with one dimension has their lengths."""
    vectors: list[Buffer] = [b for operand in op.operands for b in operand if len(b.dimensions) == 1]
    return vectors[0].dimensions[0] if vectors else 1
