"""Finds op_names for the instructions of an Hlo Proto that have none, because the compiler made or rewrote them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

from tracewarehouse.ingest.hlo.instruction import OpNameSource
from tracewarehouse.ingest.hlo.op_name import layer_and_part
from tracewarehouse.ingest.hlo.opcodes import CARRIES_INNER
from tracewarehouse.ingest.hlo.proto_messages import root_of, text_of

# Values without an operation of their own: their op_name tells nothing about the op that uses them.
_PASSIVE = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id"})
_VIEWS = frozenset({"bitcast", "broadcast", "convert", "copy", "reshape", "slice", "transpose"})
# torch_xla's names for values from outside the program, however the compiler slices them.
_DATA_NAMES = ("xla__device_data", "prim__Constant")


def inherited_names(
    module: Any, computations: Mapping[int, Any], instructions: Mapping[int, Any]
) -> dict[str, tuple[str, OpNameSource]]:
    """Return the op_names of instructions that have none of their own, and the source of each, by instruction name.

    Args:
        module: the HloModule.
        computations: its HloComputations by id.
        instructions: its HloInstructions by id.
    """
    inheritance = _Inheritance(computations, instructions)
    for computation in module.computations:
        inheritance.inherit(computation)
    return inheritance.names


class _Inheritance:
    def __init__(self, computations: Mapping[int, Any], instructions: Mapping[int, Any]) -> None:
        self.names: dict[str, tuple[str, OpNameSource]] = {}
        self._computations = computations
        self._instructions = instructions
        self._of_computation: dict[int, str | None] = {}

    def inherit(self, computation: Any) -> None:
        """Give instructions without op_name the op_name of those fused in them, of their operands or of their users.

        A fusion takes the name of its root, or of the nearest instruction before the root that has one. Operands count
        if they share one, or share a scope that names a layer or part. Parameters, constants and views of them tell
        nothing about the op that uses them. They count only if there is nothing else, not even users that share one:
        the compiler may rewrite a product with another shape and no name, under a view that keeps the name. Operands
        precede their users, so one pass in each direction is enough.
        """
        names: dict[int, str] = {}
        passive: set[int] = set()
        unsaid: set[int] = set()
        for proto in computation.instructions:
            opcode = text_of(proto.opcode)
            if opcode in _PASSIVE or (opcode in _VIEWS and passive.issuperset(proto.operand_ids)):
                passive.add(proto.id)
            if proto.metadata.op_name:
                names[proto.id] = text_of(proto.metadata.op_name)
                if names[proto.id].endswith(_DATA_NAMES):
                    passive.add(proto.id)
                continue
            source: OpNameSource = "fusion"
            name = self._fused_op_name(proto) if opcode in CARRIES_INNER else None
            if name is None and opcode not in _PASSIVE:
                source = "operand"
                operands = list(proto.operand_ids)
                active = [operand for operand in operands if operand not in passive]
                name = _shared({names.get(operand) for operand in active or operands})
                if not name or not active:
                    unsaid.add(proto.id)
            if name:
                names[proto.id] = name
                self.names[text_of(proto.name)] = name, source
        if unsaid:
            self._inherit_from_users(computation, names, unsaid)

    def _inherit_from_users(self, computation: Any, names: dict[int, str], unsaid: set[int]) -> None:
        users: dict[int, set[str | None]] = {proto_id: set() for proto_id in unsaid}
        for proto in reversed(computation.instructions):
            name = _shared(users[proto.id]) if proto.id in unsaid else None
            if name and not name.endswith(_DATA_NAMES):
                names[proto.id] = name
                self.names[text_of(proto.name)] = name, "user"
            for operand in proto.operand_ids:
                if operand in unsaid:
                    users[operand].add(names.get(proto.id))

    def _fused_op_name(self, proto: Any) -> str | None:
        for called in proto.called_computation_ids:
            if called not in self._of_computation and called in self._computations:
                self._of_computation[called] = self._op_name_of(self._computations[called])
            if name := self._of_computation.get(called):
                return name
        return None

    def _op_name_of(self, computation: Any) -> str | None:
        root = root_of(computation, self._instructions)
        for inner in chain([root] if root is not None else [], reversed(computation.instructions)):
            if inner.metadata.op_name and text_of(inner.opcode) not in _PASSIVE:
                return text_of(inner.metadata.op_name)
        return None


def _shared(names: set[str | None]) -> str | None:
    """Return the only name, or the scope that several names share if it names a layer or part of the model."""
    known = [name for name in names if name]
    if len(known) < len(names) or not known:
        return None
    if len(known) == 1:
        return known[0]
    scope = _shared_scope(known)
    return scope if layer_and_part(scope) != (None, None) else None


def _shared_scope(names: list[str]) -> str:
    """Return the path with which all names begin.

    It compares whole slices and not components, because an op may have many operands with long names.
    """
    first, last = min(names), max(names)
    low, high = 0, min(len(first), len(last))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[:middle] == last[:middle] else (low, middle - 1)
    prefix = first[:low]
    is_whole = all(len(name) == low or name[low] == "/" for name in names)
    return prefix if is_whole else prefix.rpartition("/")[0]
