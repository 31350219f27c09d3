"""Counts the iterations of a program's loops.

XLA states them in the loop's configuration, but libtpu leaves that out of the programs that it gives back. They follow
from the loop itself where its condition compares a counter with a constant and its body adds a constant to the counter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tracewarehouse.ingest.hlo.instruction import KNOWN_TRIPS
from tracewarehouse.ingest.hlo.op_names import decoded
from tracewarehouse.ingest.hlo.shapes import MAX_DEPTH


def trip_count(loop: Any, computations: Mapping[int, Any], instructions: Mapping[int, Any]) -> int | None:
    """Return the iterations of a `while`; None if they are not known before it runs.

    Args:
        loop: the instruction.
        computations: those of the module by id.
        instructions: those of the module by id.
    """
    stated = KNOWN_TRIPS.search(decoded(loop.backend_config))
    if stated:
        return int(stated[1])
    found = [computations.get(called) for called in loop.called_computation_ids]
    roots: list[Any] = [instructions.get(computation.root_id) for computation in found if computation is not None]
    first = _operands(loop, instructions)
    if len(roots) != 2 or None in roots or not first:
        return None
    body, test = roots
    if (body.opcode, test.opcode, first[0].opcode) != (b"tuple", b"compare", b"tuple"):
        return None
    state = _State(_operands(first[0], instructions), _operands(body, instructions), instructions)
    compared = [_behind(operand, instructions) for operand in _operands(test, instructions)]
    if len(compared) != 2 or (number := state.element(compared[0])) is None:
        return None
    begin, end, step = _constant(state.before(number)), state.kept(compared[1]), state.step(number)
    if begin is None or end is None or not step:
        return None
    return _iterations(begin, end, step, test.comparison_direction)


class _State(NamedTuple):
    """What a loop hands from one iteration to the next: a tuple, before the first and after each."""

    first: list[Any]
    following: list[Any]
    instructions: Mapping[int, Any]

    def element(self, proto: Any) -> int | None:
        is_element = proto is not None and proto.opcode == b"get-tuple-element"
        has_it = is_element and 0 <= proto.tuple_index < min(len(self.first), len(self.following))
        return int(proto.tuple_index) if has_it else None

    def before(self, number: int) -> Any:
        return _behind(self.first[number], self.instructions)

    def after(self, number: int) -> Any:
        return _behind(self.following[number], self.instructions)

    def kept(self, proto: Any) -> int | None:
        """Return the value of a constant, or of an element that is one and that no iteration changes."""
        number = self.element(proto)
        if number is None:
            return _constant(proto)
        return _constant(self.before(number)) if self.element(self.after(number)) == number else None

    def step(self, number: int) -> int | None:
        added = self.after(number)
        if added is None or added.opcode != b"add":
            return None
        parts = [_behind(operand, self.instructions) for operand in _operands(added, self.instructions)]
        steps = [_constant(part) for part in parts if self.element(part) != number]
        return steps[0] if len(parts) == 2 and len(steps) == 1 else None


def _behind(proto: Any, instructions: Mapping[int, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        if proto is None or proto.opcode not in (b"copy", b"bitcast"):
            return proto
        proto = next(iter(_operands(proto, instructions)), None)
    return None


def _operands(proto: Any, instructions: Mapping[int, Any]) -> list[Any]:
    return [instructions[number] for number in proto.operand_ids if number in instructions]


def _constant(proto: Any) -> int | None:
    is_scalar = proto is not None and proto.opcode == b"constant" and len(proto.literal.s32s) == 1
    return int(proto.literal.s32s[0]) if is_scalar else None


def _iterations(begin: int, end: int, step: int, direction: bytes) -> int | None:
    if direction in (b"GT", b"GE"):  # it counts down
        begin, end, step, direction = -begin, -end, -step, {b"GT": b"LT", b"GE": b"LE"}[direction]
    if direction not in (b"LT", b"LE") or step <= 0:
        return None
    return max(0, -((begin - end - (direction == b"LE")) // step))
