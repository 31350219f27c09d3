"""Brings an execution into the form for the search for layers: its ops in order, grouped into families."""

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
        device_id: the device.
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
        collective: collectives.
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
