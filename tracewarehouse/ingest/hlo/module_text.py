"""Reads the HLO text of a whole module into the proto that the compiler would have written."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.shapes import PRIMITIVE_TYPES, TUPLE_TYPE, Shape
from tracewarehouse.ingest.hlo.text import parse_instruction

MOST_DEVICES = 1 << 16
"""Most devices that a program may be compiled for; the largest slices have about ten thousand."""

_NUMBERS = {name: number for number, name in PRIMITIVE_TYPES.items()}
_UNBOUNDED = -(1 << 63)
_HEAD = re.compile(r"(ENTRY )?%?([^\s(%]+) .*\{$|(ENTRY )?%?([^\s(%]+)\s*\(.*\{$")
_PARTITIONS, _REPLICAS = re.compile(r"\bnum_partitions=(\d{1,9})"), re.compile(r"\breplica_count=(\d{1,9})")
_TRIPS = re.compile(r'"known_trip_count":\s*\{"n":\s*"\d{1,18}"\}')
_HAS_MEMBERS = re.compile(r",\s*(replica_groups|source_target_pairs)=")


class ModuleText:
    """A module in text.

    Attributes:
        lines: the text of each instruction, by its name.
        proto: the content of the text as a serialized HloProto.

    Raises:
        MalformedError: the text is no module, breaks off, or names devices that cannot be.
    """

    def __init__(self, text: str) -> None:
        self.lines: dict[str, str] = {}
        lines = text.split("\n")
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
        partitions, replicas = (int(m[1]) if (m := p.search(header)) else 1 for p in (_PARTITIONS, _REPLICAS))
        if not 0 < partitions * replicas <= MOST_DEVICES:
            raise MalformedError(f"the program is for {partitions} x {replicas} devices; 1 to {MOST_DEVICES} are read")
        for p in range(partitions):
            row = self._module.device_assignment.computation_devices.add()
            row.replica_device_ids.extend(r * partitions + p for r in range(replicas))

    def _read(self, lines: Iterable[str]) -> None:
        """Read computations and their instructions; names become numbers in `_link`."""
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
        _fill(proto, instruction, line)
        self._parsed.append((proto, instruction))

    def _link(self) -> None:
        for proto, instruction in self._parsed:
            operands = (self._instructions.get(name) for name in instruction.operand_names)
            proto.operand_ids.extend(number for number in operands if number)
            called = (self._computations.get(name) for name in instruction.called)
            proto.called_computation_ids.extend(number for number in called if number)
        self._parsed.clear()


def _fill(proto: Any, instruction: Instruction, line: str) -> None:
    """Fill in the facts on the instruction's own line."""
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
    if instruction.opcode == "while" and (trips := _TRIPS.search(line)):
        proto.backend_config = f"{{{trips[0]}}}".encode()


def _fill_shape(proto: Any, shape: Shape) -> None:
    if shape.is_tuple:
        proto.element_type = TUPLE_TYPE
        for element in shape.elements:
            _fill_shape(proto.tuple_shapes.add(), element)
        return
    proto.element_type = _NUMBERS.get(shape.element, 0)
    proto.dimensions.extend(_UNBOUNDED if size is None else size for size in shape.dimensions)
    proto.is_dynamic_dimension.extend(shape.dynamic)
