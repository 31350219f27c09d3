"""Times of kernels that somebody wrote for the core (Pallas), for which the compiler estimates nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tracewarehouse.ingest.capture.prediction import MeasuredKernel
from tracewarehouse.ingest.hlo.opcodes import attention_form, kernel_name
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
        is_paged = attention_form(name) in ("paged", "ragged")
        moved = round(paged_bytes(op, context_tokens)) if is_paged else hbm_bytes(op.buffers)
        return _measured(measured, moved, machine)
    form = attention_form(name)
    if form == "flash":
        return _flash(op, machine)
    if form is not None:
        known = form == "ragged" and _ragged_attention(op, machine, context_tokens)
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
    keys = [("ragged_attention", what) for what in ("prompt_share", "share", "sequence_ns")]
    query = next((b for o in op.operands for b in o if b.element in _FLOATS and len(b.dimensions) == 3), None)
    if query is None or not (caches := _caches(op)) or any(key not in machine.rates for key in keys):
        return None
    sequences, (tokens, heads, width) = _sequences(op), query.dimensions
    context = min(_room(op, caches[0]), context_tokens or math.inf)
    asked = min(tokens / sequences, context)
    flops = 4 * sequences * heads * width * asked * (context - asked / 2)
    moved = paged_bytes(op, context_tokens)
    prompt, share, sequence = (machine.rates[key] for key in keys)
    low, mid, high = (
        max(flops / (of_peak * machine.flops_per_s) * 1e12, moved / (of_hbm * machine.hbm_bytes_per_ps))
        + sequences * sequence_ns * NS
        for of_peak, of_hbm, sequence_ns in (
            (prompt.high, share.high, sequence.low),
            (prompt.value, share.value, sequence.value),
            (prompt.low, share.low, sequence.high),
        )
    )
    return Cost(round(low), round(mid), round(high), "kernel_measured", round(moved))


def paged_bytes(op: ScheduledOp, context_tokens: float | None) -> float:
    """Return the bytes of keys and values in HBM that attention over pages reads: those of the contexts in use."""
    caches = _caches(op)
    moved: float = sum(b.byte_size for b in caches)
    return moved * min(1.0, context_tokens / _room(op, caches[0])) if context_tokens is not None and caches else moved


def _caches(op: ScheduledOp) -> list[Buffer]:
    """Return the pages of keys and values."""
    every = (b for operand in op.operands for b in operand if b.space == "hbm" and len(b.dimensions) >= 4)
    return sorted(every, key=lambda b: -b.byte_size)[:2]


def _room(op: ScheduledOp, cache: Buffer) -> float:
    """Return the tokens of a sequence for which there are pages; ragged attention has heads behind pages and tokens."""
    begin = 0 if attention_form(kernel_name(op.name)) == "ragged" else -3
    pages, tokens = cache.dimensions[begin : begin + 2]
    return pages * tokens / max(_sequences(op), 1)


def _sequences(op: ScheduledOp) -> int:
    """Return the number of sequences: the first operand with one dimension has their lengths."""
    vectors: list[Buffer] = [b for operand in op.operands for b in operand if len(b.dimensions) == 1]
    return vectors[0].dimensions[0] if vectors else 1
