"""Reads a compiled program, from HLO text or a proto: its instructions, each as often as the program runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError

from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.hlo.instruction import KNOWN_TRIPS, Instruction, Loop, carried_arrays
from tracewarehouse.ingest.hlo.op_names import decoded
from tracewarehouse.ingest.hlo.proto import shape_of
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.schedule import trip_count
from tracewarehouse.ingest.hlo.shapes import PRIMITIVE_TYPES, TUPLE_TYPE, Shape
from tracewarehouse.ingest.hlo.text import frontend_attributes, parse_instruction

MOST_DEVICES = 1 << 16
"""Most devices that a program may be compiled for; the largest slices have about ten thousand."""

_NUMBERS = {name: number for number, name in PRIMITIVE_TYPES.items()}
_UNBOUNDED = -(1 << 63)
_HEAD = re.compile(r"(ENTRY )?%?([^\s(%]+) .*\{$|(ENTRY )?%?([^\s(%]+)\s*\(.*\{$")
_PARTITIONS, _REPLICAS = re.compile(r"\bnum_partitions=(\d{1,9})"), re.compile(r"\breplica_count=(\d{1,9})")
_HAS_MEMBERS = re.compile(r",\s*(replica_groups|source_target_pairs)=")
_COUNTING = {
    "constant": re.compile(r"\bconstant\((-?\d{1,10})\)"),
    "get-tuple-element": re.compile(r",\s*index=(\d{1,6})\b"),
    "compare": re.compile(r",\s*direction=([A-Z]{2})\b"),
}
"""What `trip_count` reads of instructions beside their operands."""


class ModuleText:
    """A module in text.

    Attributes:
        lines: the text of each instruction, by its name.
        proto: the content of the text as a serialized HloProto.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[str, str] = {}
        lines = [line.rstrip() for line in text.split("\n")]
        proto = CLASSES["HloProto"]()
        self._module = proto.hlo_module
        self._module.name = lines[0].removeprefix("HloModule ").split(",")[0].split()[0].encode()
        self._assign_devices(lines[0])
        self._instructions: dict[str, int] = {}
        self._computations: dict[str, int] = {}
        self._read(lines[1:])
        self._link()
        self.proto: bytes = proto.SerializeToString()

    def _assign_devices(self, header: str) -> None:
        stated = [pattern.search(header) for pattern in (_PARTITIONS, _REPLICAS)]
        if not any(stated):
            return
        partitions, replicas = (int(m[1]) if m else 1 for m in stated)
        if not 0 < partitions * replicas <= MOST_DEVICES:
            raise MalformedError(f"the program is for {partitions} x {replicas} devices; 1 to {MOST_DEVICES} are read")
        for p in range(partitions):
            row = self._module.device_assignment.computation_devices.add()
            row.replica_device_ids.extend(r * partitions + p for r in range(replicas))

    def _read(self, lines: Iterable[str]) -> None:
        self._parsed: list[tuple[Any, Instruction]] = []
        computation = None
        for line in lines:
            if computation is None:
                head = _HEAD.match(line)
                if head and not line.startswith((" ", "\t")):
                    computation = self._add_computation(head[2] or head[4], is_entry=line.startswith("ENTRY "))
            elif line.startswith("}"):
                computation = None
            elif line.strip():
                self._add_instruction(computation, line)
        if computation is not None:
            raise MalformedError(f"the text breaks off in computation {computation.name.decode()}")
        if not self._module.entry_computation_id:
            raise MalformedError("the text has no ENTRY computation")

    def _add_computation(self, name: str, *, is_entry: bool) -> Any:
        computation = self._module.computations.add()
        computation.id = self._computations[name] = len(self._computations) + 1
        computation.name = name.encode()
        if is_entry:
            self._module.entry_computation_id = computation.id
        return computation

    def _add_instruction(self, computation: Any, line: str) -> None:
        instruction = parse_instruction(line)
        if instruction is None or instruction.is_truncated:
            raise MalformedError(f"no HLO instruction: {shown(line)}")
        members = _HAS_MEMBERS.search(line)
        if members and instruction.replica_groups is None and instruction.source_target_pairs is None:
            raise MalformedError(f"{members[1]} cannot be read: {shown(line)}")
        proto = computation.instructions.add()
        proto.id = self._instructions[instruction.name] = len(self._instructions) + 1
        if line.lstrip().startswith("ROOT "):
            computation.root_id = proto.id
        self.lines[instruction.name] = line.strip().removeprefix("ROOT ")
        _fill_instruction(proto, instruction, line)
        self._parsed.append((proto, instruction))

    def _link(self) -> None:
        for proto, instruction in self._parsed:
            operands = (self._instructions.get(name) for name in instruction.operand_names)
            proto.operand_ids.extend(number for number in operands if number)
            called = (self._computations.get(name) for name in instruction.called)
            proto.called_computation_ids.extend(number for number in called if number)
        self._parsed.clear()


def _fill_instruction(proto: Any, instruction: Instruction, line: str) -> None:
    proto.name, proto.opcode = instruction.name.encode(), instruction.opcode.encode()
    _fill_shape(proto.shape, instruction.shape)
    proto.channel_id = instruction.channel_id or 0
    proto.use_global_device_ids = instruction.use_global_device_ids
    proto.is_host_transfer = instruction.is_host_transfer
    proto.fusion_kind = (instruction.fusion_kind or "").encode()
    proto.custom_call_target = (instruction.custom_call_target or "").encode()
    if instruction.op_name or instruction.op_type or instruction.source_file:
        proto.metadata.op_name = (instruction.op_name or "").encode()
        proto.metadata.op_type = (instruction.op_type or "").encode()
        proto.metadata.source_file = (instruction.source_file or "").encode()
        proto.metadata.source_line = min(instruction.source_line or 0, (1 << 31) - 1)
    for group in instruction.replica_groups or ():
        proto.replica_groups.add().replica_ids.extend(group)
    for source, target in instruction.source_target_pairs or ():
        pair = proto.source_target_pairs.add()
        pair.source, pair.target = source, target
    if instruction.dcn:
        for key, value in frontend_attributes(line).items():
            attribute = proto.frontend_attributes.map.add()
            attribute.key, attribute.value = key.encode(), value.encode()
    if instruction.is_communicating:
        proto.backend_config = b'{"has_communication": true}'
    if instruction.opcode == "while" and (trips := KNOWN_TRIPS.search(line)):
        proto.backend_config = f"{{{trips[0]}}}".encode()
    if instruction.opcode in _COUNTING and (said := _COUNTING[instruction.opcode].search(line)):
        if instruction.opcode == "get-tuple-element":
            proto.tuple_index = int(said[1])
        elif instruction.opcode == "compare":
            proto.comparison_direction = said[1].encode()
        elif instruction.shape.element == "s32" and abs(int(said[1])) < 1 << 31:
            proto.literal.s32s.append(int(said[1]))


def _fill_shape(proto: Any, shape: Shape) -> None:
    if shape.is_tuple:
        proto.element_type = TUPLE_TYPE
        for element in shape.elements:
            _fill_shape(proto.tuple_shapes.add(), element)
        return
    proto.element_type = _NUMBERS.get(shape.element, 0)
    proto.dimensions.extend(_UNBOUNDED if size is None else size for size in shape.dimensions)
    proto.is_dynamic_dimension.extend(shape.dynamic)


MOST_NESTED = 64
"""Deepest nesting of loops, branches and calls that is followed."""


@dataclass(frozen=True)
class _Call:
    """The computations that an instruction runs, and how often each; of several branches, one."""

    computations: tuple[int, ...]
    times: tuple[int, ...]
    is_branch: bool = False
    loop: Loop | None = None


@dataclass
class Program:
    """A compiled program.

    Args:
        content: its HLO text, or the serialized HloProto.

    Attributes:
        proto: the serialized HloProto, made from the text if there is only text.
        lines: the text of each instruction, by its name; empty if there is no text.
        unknown: names of the loops whose number of iterations, and of the conditionals whose branch, is not known.

    Raises:
        MalformedError: the content is no program, or damaged.
    """

    content: str | bytes
    unknown: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines: dict[str, str] = {}
        try:
            if isinstance(self.content, str):
                text = ModuleText(self.content)
                self.proto, self.lines = text.proto, text.lines
            else:
                self.proto = self.content
            module = CLASSES["HloProto"].FromString(self.proto).hlo_module
        except (DecodeError, ValueError) as error:  # ValueError: a number that 64 bits do not hold
            raise MalformedError(str(error)) from None
        self._entry = module.entry_computation_id
        self._computations = {computation.id: computation for computation in module.computations}
        self._instructions = {each.id: each for computation in module.computations for each in computation.instructions}
        self._started = {
            decoded(i.name): tuple(i.called_computation_ids)
            for c in module.computations
            for i in c.instructions
            if i.opcode == b"async-start"
        }
        self._steps: dict[int, list[tuple[str, _Call | None]]] = {
            c.id: [(decoded(i.name), self._call(i)) for i in c.instructions] for c in module.computations
        }
        if self._entry not in self._steps:
            raise MalformedError("the program has no entry computation")

    def _call(self, proto: Any) -> _Call | None:
        """Return the call of a control flow instruction; a loop's condition runs once more than its body."""
        called = tuple(proto.called_computation_ids)
        if proto.opcode == b"while" and len(called) == 2:
            trips = trip_count(proto, self._computations, self._instructions)
            if trips is None:
                self.unknown.append(decoded(proto.name))
            count = 1 if trips is None else trips
            loop = Loop(decoded(proto.name), trips or 0, carried_arrays(shape_of(proto.shape)))
            return _Call(called, (count, count + 1), loop=loop)
        if proto.opcode == b"conditional" and called:
            self.unknown.append(decoded(proto.name))
            return _Call(called, (1,) * len(called), is_branch=True)
        if proto.opcode == b"call" and called:
            return _Call(called[:1], (1,))
        return None

    @cached_property
    def names(self) -> list[str]:
        """The instructions that a device executes, and those that hold such, in the order of their computations."""
        reached: dict[int, None] = {}
        self._reach(self._entry, reached, 0)
        return [name for c in reached for name, _ in self._steps[c]]

    def _reach(self, computation: int, reached: dict[int, None], depth: int) -> None:
        if depth > MOST_NESTED:
            raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
        if computation in reached:
            return
        reached[computation] = None
        for _, call in self._steps.get(computation, ()):
            for called in call.computations if call else ():
                self._reach(called, reached, depth + 1)

    @cached_property
    def loops(self) -> dict[str, tuple[Loop, ...]]:
        """The loops that hold each instruction, outermost first; an instruction in no loop is absent.

        Raises:
            MalformedError: computations nest too deeply.
        """
        found: dict[str, tuple[Loop, ...]] = {}
        seen: set[int] = set()

        def walk(computation: int, around: tuple[Loop, ...], depth: int) -> None:
            if depth > MOST_NESTED:
                raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
            if computation in seen:
                return
            seen.add(computation)
            for name, call in self._steps.get(computation, ()):
                if around:
                    found[name] = around
                inside = (*around, call.loop) if call and call.loop else around
                for called in call.computations if call else self._started.get(name, ()):
                    walk(called, inside, depth + 1)

        walk(self._entry, (), 0)
        return found

    def count(self, is_kept: Callable[[str], bool]) -> int:
        """Return how many times one execution of the program runs the instructions with some names.

        Of the branches of a conditional, the one that runs most of them counts.
        """
        return self._counts(is_kept)(self._entry, 0)

    def runs(self, is_kept: Callable[[str], bool]) -> Iterator[str]:
        """Yield the names of these instructions in the order in which they run, each time that they do."""
        count = self._counts(is_kept)

        def run(computation: int, depth: int) -> Iterator[str]:
            for name, call in self._steps.get(computation, ()):
                if is_kept(name):
                    yield name
                if call is None:
                    continue
                pairs = list(zip(call.computations, call.times, strict=True))
                if call.is_branch:
                    pairs = [max(pairs, key=lambda pair: count(pair[0], depth + 1))]
                for called, times in pairs:
                    if count(called, depth + 1):
                        for _ in range(times):
                            yield from run(called, depth + 1)

        return run(self._entry, 0)

    def _counts(self, is_kept: Callable[[str], bool]) -> Callable[[int, int], int]:
        known: dict[int, int] = {}

        def count(computation: int, depth: int) -> int:
            if depth > MOST_NESTED:
                raise MalformedError(f"computations call each other more than {MOST_NESTED} deep")
            if computation not in known:
                total = 0
                for name, call in self._steps.get(computation, ()):
                    total += is_kept(name)
                    if call:
                        each = [
                            times * count(called, depth + 1)
                            for called, times in zip(call.computations, call.times, strict=True)
                        ]
                        total += max(each) if call.is_branch else sum(each)
                known[computation] = total
            return known[computation]

        return count
