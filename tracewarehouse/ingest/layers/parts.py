"""Finds the parts of a layer, such as attention and mlp, from the names of some of its ops."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.hlo.op_names import layer_and_part

_BLOCKS = frozenset({"attn", "mlp", "moe"})
_NORM = re.compile(r"rsqrt|aten::mean|variance|rms_?norm|layer_?norm|aten(?:__|::)pow", re.IGNORECASE)
_HINTS = (
    ("moe", re.compile(r"gmm|megablox|ragged[_-]dot", re.IGNORECASE)),
    ("attn", re.compile(r"\brpa-|flash|splash|index_copy|softmax", re.IGNORECASE)),
    ("mlp", re.compile(r"MergedColumnParallel|silu|swiglu", re.IGNORECASE)),
)
"""Kernels and functions that identify a part, but only in a layer: outside, a sampler has a softmax too."""


def said_part(name: str, op_name: str | None) -> str | None:
    """Return the part that an instruction's names state if it is in a layer; None if they state none."""
    _, part = layer_and_part(op_name)
    text = f"{op_name or ''} {name}"
    return part or next((p for p, pattern in _HINTS if pattern.search(text)), None)


def is_norm(name: str, op_name: str | None) -> bool:
    """Return whether the functions of an instruction are those of a norm."""
    return _NORM.search(f"{op_name or ''} {name}") is not None


def parts_in_layers(
    said: Sequence[str | None], norms: Flags, layer: Int64, contracts: Flags, moves: Flags
) -> list[str | None]:
    """Return the part of each op of an execution; None if the op is in no layer or its part is unknown.

    Args:
        said: the part that the names of each op state.
        norms: which ops have the functions of a norm, shape (n,).
        layer: layer of each op, -1 for none, shape (n,).
        contracts: products and collectives, shape (n,).
        moves: copies, shape (n,).
    """
    parts: list[str | None] = [None] * len(said)
    for number in range(int(layer.max(initial=-1)) + 1):
        at = np.flatnonzero(layer == number).tolist()
        of_layer = _of_layer([said[i] for i in at], [bool(contracts[i]) for i in at], [bool(moves[i]) for i in at])
        for i, part in zip(at, of_layer, strict=True):
            parts[i] = part or ("norm" if norms[i] else None)
    return parts


def _of_layer(said: list[str | None], contracts: list[bool], moves: list[bool]) -> list[str | None]:
    is_seed = [part in _BLOCKS and c for part, c in zip(said, contracts, strict=True)]
    if len({part for part, seed in zip(said, is_seed, strict=True) if seed}) < 2:
        return said  # names of one kind of block do not tell where another kind begins
    parts = list(said)
    block: str | None = None
    pending: list[int] = []
    for i, part in enumerate(said):
        if is_seed[i] and part != block:
            for p in pending:
                if said[p] in (None, block) and not moves[p]:
                    parts[p] = "norm"
                else:
                    parts[p] = said[p] or part
            block, pending = part, []
        elif contracts[i] or (block and part == block):
            for p in pending:
                parts[p] = said[p] or block
            parts[i], pending = part or block, []
        else:
            pending.append(i)
    for p in pending:
        parts[p] = said[p] or block
    return parts
