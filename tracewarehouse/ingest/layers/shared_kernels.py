"""Finds the layers of executions in which one kernel runs for several layers, as in a CUDA graph of an unrolled model.

The compiler makes one kernel of what is alike in several layers, and an event names the kernel, not the layer. So a
layer is a fact of the op, not of its instruction: the kernels of an execution repeat in order, once per layer. Products
that run again and again are families of their own. Other kernels are alike if their names are, up to the first digit,
since the compiler numbers kernels and picks their tiles layer by layer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

from tracewarehouse.ingest.columns.keys import Integers
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part
from tracewarehouse.ingest.layers.loops import MIN_PRODUCTS, LoopPlaces
from tracewarehouse.ingest.layers.repetition import MIN_CONFIDENCE, Pieces, find_pieces
from tracewarehouse.ingest.layers.sequence import Kind, OpSequence

_MOST_OPS = 1 << 15
"""Most ops of an execution that are searched."""
_MOSTLY = 0.5
"""Share of the ops from which on names tell the layers."""
_NUMBER = re.compile(r"[._]*\d")
_INDUCTOR = re.compile(r"triton_[a-z]{3}_fused(?=_)")
"""How names of TorchInductor's kernels begin; the operators behind it differ in the first layer and the last."""
_PRODUCT = re.compile(r"gemm|matmul|_dot|nvjet|cutlass|xmma")
"""Names of kernels that multiply matrices, as XLA, cuBLAS and CUTLASS call theirs."""


def place_in_repetition(
    places: LoopPlaces, execution: Integers, start: Int64, instruction: Int32, rows: Sequence[InstructionRow]
) -> None:
    """Set the iterations of ops in executions without loops to the layers in which their kernels repeat.

    Args:
        places: the places of a device's ops in loops, shape (n,).
        execution: the execution of each op, -1 for none, shape (n,).
        start: its start, shape (n,).
        instruction: its instruction, shape (n,).
        rows: the instructions by id.
    """
    at = np.flatnonzero(execution >= 0)
    at = at[np.lexsort((start[at], execution[at]))]
    edges = np.flatnonzero(np.diff(execution[at], prepend=-1, append=-1))
    found: dict[bytes, Pieces | None] = {}
    placed: list[tuple[Int64, Pieces, Hashable]] = []
    votes: dict[Hashable, Counter[int]] = {}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        own = at[low:high]
        ids = instruction[own]
        if (places.loop[own] >= 0).any():
            continue
        key = ids.tobytes()
        if key not in found:
            found[key] = repeated_layers(ids, rows)
        if pieces := found[key]:
            programs = Counter((rows[i].module, rows[i].program_id) for i in np.unique(ids).tolist())
            ((module, _),) = programs.most_common(1)
            placed.append((own, pieces, module))
            votes.setdefault(module, Counter())[pieces.count] += 1
    for own, pieces, program in placed:
        if 2 * votes[program][pieces.count] > votes[program].total():  # one that the profile cuts has other layers
            places.iteration[own] = pieces.layer


def repeated_layers(instruction: Int32, rows: Sequence[InstructionRow]) -> Pieces | None:
    """Return the layers of an execution whose kernels run for several layers; None if there are none for sure.

    Args:
        instruction: the instructions of its ops by start, shape (n,).
        rows: the instructions by id.
    """
    times = Counter(instruction.tolist())
    if len(instruction) > _MOST_OPS or max(times.values(), default=0) < 2:
        return None
    named = sum(n for i, n in times.items() if layer_and_part(rows[i].op_name)[0] is not None)
    if named >= _MOSTLY * len(instruction):
        return None
    kinds = {i: _kind(rows[i]) for i in times}
    runs = Counter(kinds[i].fine for i in instruction.tolist())
    for i, kind in kinds.items():
        if not kind.contracts or runs[kind.fine] < 2:
            kinds[i] = kind._replace(fine=kind.coarse)
    sequence = OpSequence.from_kinds([kinds[i] for i in instruction.tolist()], np.ones(len(instruction)))
    pieces = find_pieces(sequence)
    at = np.flatnonzero(sequence.contracts & ~sequence.collective & (pieces.layer >= 0))
    of_piece = np.unique(np.column_stack([pieces.layer[at], instruction[at]]), axis=0)[:, 0]
    products = np.median(np.bincount(of_piece, minlength=max(pieces.count, 1)))
    return pieces if products >= MIN_PRODUCTS and pieces.confidence >= MIN_CONFIDENCE else None


def _kind(row: InstructionRow) -> Kind:
    """The kind of a kernel: itself, and all whose names begin like its name."""
    kernel = row.kernel or row.name
    inductor = _INDUCTOR.match(kernel)
    family = inductor[0].replace("per", "red") if inductor else _NUMBER.split(kernel, maxsplit=1)[0]
    collective = row.collective.kind if row.collective and not row.is_fused else None
    contracts = collective is not None or row.contracts or bool(_PRODUCT.search(kernel))
    return Kind(kernel, family, family, contracts, collective, row.op_class == "copy")
