"""Brings an execution into the form for the search for layers: its ops in order, in families, and parts of a layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracewarehouse.ingest.columns.nesting import Flags
from tracewarehouse.ingest.columns.records import Int32, Int64
from tracewarehouse.ingest.hlo.instruction_row import InstructionRow
from tracewarehouse.ingest.hlo.op_names import layer_and_part
from tracewarehouse.ingest.layers.loops import LoopPlaces

_CONTRACTS = re.compile(r"convolution|dot|custom-call|gemm|matmul|all-|reduce-scatter|collective|ragged")
_MOVES = re.compile(r"copy|async|-start|-done|slice|bitcast$|broadcast$|parameter|partition-id|tuple|constant")
_NUMBER = re.compile(r"[._]\d+(?:\.(?:clone|remat)\d*)*$|\.clone$")
_DIGITS = re.compile(r"\d+")
_NO_TIME = 1e-6
"""Share of an execution's time below which an op is a marker of the compiler."""


@dataclass(frozen=True)
class Execution:
    """One execution of a program on one device.

    Attributes:
        module: name of the program.
        program_id: its id, if the capture has one.
        instruction_id: its leaf ops by start, shape (n,).
        self_ps: their self times, shape (n,).
        is_cut: ops are missing at its start or end.
        has_loop: it has more ops than are kept, because an instruction runs several times; its ops are left out.
        loops: the places of the ops in loops, shape (n,); None if there are no loops.
    """

    module: str
    program_id: int | None
    device_id: int
    instruction_id: Int32
    self_ps: Int64
    is_cut: bool = False
    has_loop: bool = False
    loops: LoopPlaces | None = None


class Kind(NamedTuple):
    """The facts about an instruction that the search for layers needs.

    Attributes:
        fine: family by category, name without its number, shape and place in the framework's code.
        coarse: family by category and shape only.
        place: the place in the framework's code, or a substitute.
        contracts: whether it is a product or a collective, which show the order of layers.
        collective: kind of collective; None if it is none.
        moves: whether it is a copy or half of one, which the scheduler moves between layers.
    """

    fine: str
    coarse: str
    place: str
    contracts: bool
    collective: str | None
    moves: bool


def op_kind(row: InstructionRow) -> Kind:
    """Return the kind of an instruction, from its facts; numbers in its names are not used."""
    shape = row.hlo.shape if row.hlo else None
    category = row.category or (row.hlo.opcode if row.hlo else "")
    collective = row.collective.kind if row.collective and not row.is_fused else None
    place = _DIGITS.sub("#", row.op_name or row.source or "")
    text = shape.text if shape else ""
    return Kind(
        f"{category}|{_NUMBER.sub('', row.name)}|{text}|{place}",
        f"{collective or category}|{text}",
        place or f"{category}|{shape.dtype if shape else ''}",
        collective is not None or row.contracts or _contracts(category),
        collective,
        _moves(category),
    )


@lru_cache(maxsize=1 << 12)
def _contracts(category: str) -> bool:
    return _CONTRACTS.search(category) is not None


@lru_cache(maxsize=1 << 12)
def _moves(category: str) -> bool:
    return _MOVES.search(category) is not None


@dataclass(frozen=True)
class OpSequence:
    """The leaf ops of an execution by start; arrays of shape (n,).

    Attributes:
        time: self times in ps.
        fine: codes of the families by name, shape and place, from 0.
        coarse: codes of the families by shape only, from 0.
        place: codes of the places in the framework's code, from 0.
        contracts: products and collectives.
        moves: copies, and ops of no time, which are markers of the compiler.
    """

    time: npt.NDArray[np.float64]
    fine: Int64
    coarse: Int64
    place: Int64
    contracts: Flags
    collective: Flags
    moves: Flags

    @classmethod
    def from_kinds(cls, kinds: Sequence[Kind], time: npt.NDArray[np.float64]) -> OpSequence:
        """Return the sequence of ops of these kinds, with times in ps, shape (n,)."""
        is_empty = time < _NO_TIME * time.sum()
        return cls(
            time,
            _codes([k.fine for k in kinds]),
            _codes([k.coarse for k in kinds]),
            _codes([k.place for k in kinds]),
            np.array([k.contracts for k in kinds], bool) & ~is_empty,
            np.array([k.collective is not None for k in kinds], bool),
            np.array([k.moves for k in kinds], bool) | is_empty,
        )


def _codes(values: Sequence[Any]) -> Int64:
    seen: dict[Any, int] = {}
    return np.array([seen.setdefault(v, len(seen)) for v in values], np.int64)


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
