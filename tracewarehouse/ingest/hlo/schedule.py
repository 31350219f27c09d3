"""Reads a compiled program as its device runs it: ops in order, memories of their buffers, the compiler's estimates.

The schedule of a module is the order on the core; the order in which a proto lists instructions is another. Layouts say
in which memory a buffer lies. The configuration of an instruction holds what libtpu estimates of it and decided for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from google.protobuf.message import DecodeError

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.instruction import KNOWN_TRIPS
from tracewarehouse.ingest.hlo.op_names import decoded
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.shapes import (
    BUFFER_TYPE,
    MAX_BYTES,
    MAX_DEPTH,
    PRIMITIVE_TYPES,
    TUPLE_TYPE,
    array_shape,
)

Space = Literal["hbm", "vmem", "cmem", "host", "scalar"]
"""A memory of a TPU: HBM, vector memory, the common memory of a v4, the host's, or one for scalars and semaphores."""

_SPACES: dict[int, Space] = {0: "hbm", 1: "vmem", 3: "cmem", 5: "host"}
_CYCLES = re.compile(rb'"estimated_cycles":"(\d{1,15})"')
_COST_MODEL = re.compile(rb'"cost_model_type":"COST_MODEL_TYPE_(\w{1,40})"')
_EMITTER = re.compile(rb'"emitter":"(\w{1,80})"')
_STRATEGY = re.compile(rb'"strategy":"(\w{1,80})"')
_FLOPS = re.compile(rb'"cost_estimate":\{[^{}]*?"flops":"?(\d{1,18})')
_BYTES = re.compile(rb'"cost_estimate":\{[^{}]*?"bytes_accessed":"?(\d{1,18})')


class Buffer(NamedTuple):
    """An array in a memory of the device.

    Attributes:
        element: element type such as 'bf16'.
        dimensions: sizes, the upper bounds of dynamic ones.
        byte_size: bytes of the values without padding; 0 if they are not known.
        order: its dimensions from the one that lies closest together to the outermost.
    """

    element: str
    dimensions: tuple[int, ...]
    space: Space
    byte_size: int
    order: tuple[int, ...] = ()


class ScheduledOp(NamedTuple):
    """An instruction of a compiled program.

    Attributes:
        name: name without '%'.
        opcode: HLO opcode.
        results: arrays that it makes; of the start of an asynchronous op, those that its end gives.
        operands: arrays of each operand.
        called: ids of the computations that it calls.
        fusion_kind: 'kLoop', 'kOutput', 'kCustom', ... of a fusion.
        target: target of a custom call.
        cycles: cycles of the core by the compiler's estimate; None without one.
        cost_model: the model of that estimate: 'CLASSIC' for products, 'INVALID' for other ops.
        trips: iterations of a loop; None if the compiler does not tell.
        emitter: what emits a collective, such as 'RotatedPincerEmitter'.
        strategy: its algorithm, such as 'UniDirection1DRingStrategy'.
        flops: FLOPs of a kernel that somebody wrote, as its author states them.
        bytes_accessed: bytes that such a kernel reads and writes, as its author states them.
        axes: numbers of the dimensions along which it sorts, reduces or joins.
        window: sizes of the window of a reduce-window or convolution.
        thread: the thread of an asynchronous op that does not run on the core, such as 'sparsecore'; '' otherwise.
    """

    name: str
    opcode: str
    results: tuple[Buffer, ...]
    operands: tuple[tuple[Buffer, ...], ...] = ()
    operand_names: tuple[str, ...] = ()
    called: tuple[int, ...] = ()
    fusion_kind: str | None = None
    target: str | None = None
    cycles: int | None = None
    cost_model: str | None = None
    trips: int | None = None
    emitter: str | None = None
    strategy: str | None = None
    flops: int | None = None
    bytes_accessed: int | None = None
    axes: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    thread: str = ""

    @property
    def buffers(self) -> Iterator[Buffer]:
        """The arrays that it makes, and then those of its operands."""
        yield from self.results
        for operand in self.operands:
            yield from operand


class Schedule:
    """The computations of a program by id, each with its ops in order.

    Args:
        raw: the serialized HloProto.

    Attributes:
        entry: id of the computation that runs first.
    """

    def __init__(self, raw: bytes) -> None:
        proto = CLASSES["HloProto"]()
        try:
            proto.ParseFromString(raw)
        except DecodeError as error:
            raise MalformedError(f"the Hlo Proto of {len(raw)} bytes is damaged: {error}") from error
        self.entry: int = proto.hlo_module.entry_computation_id
        self._computations = {c.id: c for c in proto.hlo_module.computations}
        if self.entry not in self._computations:
            raise MalformedError("the program has no entry computation")
        self._by_id = {i.id: i for c in proto.hlo_module.computations for i in c.instructions}
        self._order = {entry.key: entry.value.instruction_ids for entry in proto.hlo_module.schedule.sequences}
        self._ops: dict[int, tuple[ScheduledOp, ...]] = {}
        self._inside: dict[int, tuple[frozenset[str], set[int]]] = {}
        self._leaves: dict[int, tuple[Buffer, ...]] = {}

    def ops(self, computation: int) -> tuple[ScheduledOp, ...]:
        """Return the ops of a computation in order; none if the program lacks it."""
        if computation not in self._ops:
            self._ops[computation] = tuple(map(self._op, self._instructions(computation)))
        return self._ops[computation]

    def opcodes(self, op: ScheduledOp) -> frozenset[str]:
        """Return the opcodes in the computations that an op calls, and in those that these call."""
        return self._opcodes_in(op.called)

    def root(self, op: ScheduledOp) -> ScheduledOp | None:
        """Return the root of the first computation that an op calls."""
        found = self._computations.get(op.called[0]) if op.called else None
        root = self._by_id.get(found.root_id) if found is not None else None
        return self._op(root) if root is not None else None

    def inside(self, op: ScheduledOp) -> Iterator[ScheduledOp]:
        """Yield the ops of the computations that an op calls, and of those that these call."""
        pending, seen = list(reversed(op.called)), set[int]()
        while pending:
            computation = pending.pop()
            if computation not in seen:
                seen.add(computation)
                for inner in self.ops(computation):
                    yield inner
                    pending += inner.called

    def _instructions(self, computation: int) -> list[Any]:
        """Return the instructions of a computation as scheduled; those of a fusion have no schedule, only an order."""
        found = self._computations.get(computation)
        order = self._order.get(computation)
        if order is not None:
            return [self._by_id[number] for number in order if number in self._by_id]
        return list(found.instructions) if found is not None else []

    def _opcodes_in(self, computations: Iterable[int]) -> frozenset[str]:
        pending, found = set(computations), set[str]()
        seen: set[int] = set()
        while pending:
            computation = pending.pop()
            seen.add(computation)
            if computation not in self._inside:
                instructions = self._instructions(computation)
                opcodes = frozenset(decoded(i.opcode) for i in instructions)
                self._inside[computation] = opcodes, {c for i in instructions for c in i.called_computation_ids}
            opcodes, called = self._inside[computation]
            found |= opcodes
            pending |= called - seen
        return frozenset(found)

    def _op(self, proto: Any) -> ScheduledOp:
        opcode, config = decoded(proto.opcode), proto.backend_config
        operands = self._operands(proto)
        is_kernel = opcode == "custom-call"
        is_collective = b'"collective_algorithm_config"' in config
        return ScheduledOp(
            name=decoded(proto.name),
            opcode=opcode,
            results=self._results(proto, opcode),
            operands=tuple(map(self._buffers, operands)),
            operand_names=tuple(decoded(operand.name) for operand in operands),
            called=tuple(proto.called_computation_ids),
            fusion_kind=decoded(proto.fusion_kind) or None,
            target=decoded(proto.custom_call_target) or None,
            cycles=_number(_CYCLES, config),
            cost_model=_text(_COST_MODEL, config),
            trips=trip_count(proto, self._computations, self._by_id) if opcode == "while" else None,
            emitter=_text(_EMITTER, config) if is_collective else None,
            strategy=_text(_STRATEGY, config) if is_collective else None,
            flops=_number(_FLOPS, config) if is_kernel else None,
            bytes_accessed=_number(_BYTES, config) if is_kernel else None,
            axes=tuple(proto.dimensions),
            window=tuple(dimension.size for dimension in proto.window.dimensions),
            thread=decoded(proto.async_execution_thread),
        )

    def _operands(self, proto: Any) -> list[Any]:
        return [self._by_id[number] for number in proto.operand_ids if number in self._by_id]

    def _results(self, proto: Any, opcode: str) -> tuple[Buffer, ...]:
        """Return the arrays of a result; a copy-start has it first, an async-start behind the operands."""
        parts = proto.shape.tuple_shapes
        if opcode == "copy-start" and parts:
            return tuple(_leaves(parts[0], 1))
        if opcode == "async-start" and len(parts) > 1:
            return tuple(_leaves(parts[1], 1))
        return self._buffers(proto)

    def _buffers(self, proto: Any) -> tuple[Buffer, ...]:
        if proto.id not in self._leaves:
            self._leaves[proto.id] = tuple(_leaves(proto.shape))
        return self._leaves[proto.id]


def _leaves(shape: Any, depth: int = 0) -> Iterator[Buffer]:
    if depth > MAX_DEPTH:
        raise MalformedError(f"Hlo Proto: tuples nest deeper than {MAX_DEPTH}")
    if shape.element_type in (TUPLE_TYPE, BUFFER_TYPE):
        for element in shape.tuple_shapes:
            yield from _leaves(element, depth + 1)
        return
    element = PRIMITIVE_TYPES.get(shape.element_type, f"type{shape.element_type}")
    array = array_shape(element, tuple(max(size, 0) for size in shape.dimensions))
    size = array.byte_size or 0
    yield Buffer(
        element,
        tuple(shape.dimensions),
        _SPACES.get(shape.layout.memory_space, "scalar"),
        size if size <= MAX_BYTES else 0,
        tuple(shape.layout.minor_to_major),
    )


def _number(pattern: re.Pattern[bytes], config: bytes) -> int | None:
    found = pattern.search(config)
    return int(found[1]) if found else None


def _text(pattern: re.Pattern[bytes], config: bytes) -> str | None:
    found = pattern.search(config)
    return decoded(found[1]) if found else None


def trip_count(loop: Any, computations: Mapping[int, Any], instructions: Mapping[int, Any]) -> int | None:
    """Return the iterations of a `while` of a module, whose parts are given by id; None if nothing tells them.

    XLA states them in the loop's configuration, which libtpu leaves out of the programs that it gives back. There they
    follow where the condition compares a counter with a constant and the body adds a constant to it.
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
