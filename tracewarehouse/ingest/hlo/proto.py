"""Reads HLO modules from the `Hlo Proto` that profilers embed in captures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from google.protobuf import message

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.collectives import KINDS
from tracewarehouse.ingest.hlo.instruction import Instruction, dcn_transfer, is_communicating
from tracewarehouse.ingest.hlo.op_names import decoded, inherited_names, root_instruction, stated_path
from tracewarehouse.ingest.hlo.opcodes import CARRIES_INNER
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.replica_groups import (
    Groups,
    Pairs,
    explicit_groups,
    explicit_pairs,
    iota_groups,
    mesh_groups,
    parse_pairs,
)
from tracewarehouse.ingest.hlo.shapes import (
    BUFFER_TYPE,
    MAX_DEPTH,
    PRIMITIVE_TYPES,
    TUPLE_TYPE,
    Shape,
    array_shape,
)

_COLLECTIVES = KINDS | {"all-gather-start", "all-reduce-start", "collective-permute-start"}
_UNBOUNDED = -(1 << 63)
_MAX_INNER = 1000
_MAX_COMPUTATIONS = 64
"""Most collectives and computations that are read inside one fusion or async op; real ones have a few."""
_MAX_SPACES = 1000
"""Most arrays of an instruction whose memory spaces are kept."""


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        instructions: all instructions of all computations by name. An entry is made when it is first needed,
            because a capture runs few of a large module's instructions. Access may raise MalformedError.
        fused_collectives: names of the fusions that carry a collective whose channel nothing outside of them has.
    """

    instructions: Mapping[str, Instruction]
    fused_collectives: frozenset[str] = frozenset()


def read_module(data: bytes) -> Module:
    """Read the module of a serialized HloProto.

    Raises:
        MalformedError: the bytes are no HloProto with a module, or a collective in it names impossible devices.
        TooManyError: it has more instructions than any program.
    """
    proto = CLASSES["HloProto"]()
    try:
        _check_count(data)
        proto.ParseFromString(data)
    except message.DecodeError as error:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes is damaged: {error}") from error
    module = proto.hlo_module
    if not module.computations:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes holds no HLO module")
    instructions = _Instructions(module, max(_MOST_MEMBERS, len(data)))
    return Module(instructions, frozenset(instructions.fused_collectives()))


def _check_count(data: bytes) -> None:
    """Count instructions before they are parsed: one without a field has 2 bytes, and takes 280 then."""
    if len(data) <= 2 * bounds.PROGRAM:
        return
    module, computation = CLASSES["CountedHloProto"](), CLASSES["CountedHloComputation"]()
    module.ParseFromString(data)
    found = len(module.hlo_module.computations)
    for part in module.hlo_module.computations:
        bounds.check(found, bounds.PROGRAM, "instructions", "a program")
        computation.ParseFromString(part)
        found += len(computation.instructions)
    bounds.check(found, bounds.PROGRAM, "instructions", "a program")


def device_assignment(data: bytes) -> tuple[tuple[int, ...], ...]:
    """Read the global device ids of a serialized HloProto as [partition][replica]; empty if it does not state them.

    A logical id in replica groups counts partitions within replicas, or only replicas, by the collective's mode.

    Raises:
        MalformedError: the bytes are no HloProto.
    """
    proto = CLASSES["PlacedHloProto"]()
    try:
        proto.ParseFromString(data)
    except message.DecodeError as error:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes is damaged: {error}") from error
    rows = proto.hlo_module.device_assignment.computation_devices
    return tuple(tuple(row.replica_device_ids) for row in rows)


def in_one_order(data: bytes) -> bytes:
    """Return a serialized HloProto with its schedule, a map that each process writes in an order of its own, by keys.

    Bytes that are no HloProto stay as they are.
    """
    proto = CLASSES["PlacedHloProto"]()
    try:
        proto.ParseFromString(data)
    except message.DecodeError:
        return data
    proto.hlo_module.schedule.sequences.sort(key=lambda entry: entry.key)
    return bytes(proto.SerializeToString())  # with the fields that are not declared


class _Instructions(Mapping[str, Instruction]):
    """Instructions by name. Each is made once, when first needed; collectives are made at once, so that faults show."""

    def __init__(self, module: Any, most_members: int) -> None:
        self._members_left = most_members
        self._groups: dict[int, Groups] = {}
        self._frames = module.stack_frame_index
        self._protos: dict[str, Any] = {}
        self._by_id: dict[int, Any] = {}
        self._computations: dict[int, Any] = {}
        self._made: dict[str, Instruction] = {}
        self._shapes: dict[int, Shape] = {}
        for computation in module.computations:
            self._computations[computation.id] = computation
            for proto in computation.instructions:
                self._protos[decoded(proto.name)] = proto
                self._by_id[proto.id] = proto
        # names are unique in a legal module; otherwise the last instruction with the name counts
        self._collectives = {name for name, proto in self._protos.items() if decoded(proto.opcode) in _COLLECTIVES}
        self._inside = {c.id: _Inside.read(c, self._collectives) for c in module.computations}
        self._inherited = inherited_names(module, self._computations, self._by_id)
        for name in self._collectives:
            self[name]

    def fused_collectives(self) -> Iterator[str]:
        """Yield the names of fusions that carry a collective whose channel nothing else has.

        The compiler repeats a collective that it spreads over fusions in each of them, with the same channel.
        """
        channels = Counter(i.channel_id for name in self._collectives if (i := self[name]).channel_id)
        for name, proto in self._protos.items():
            if proto.opcode != b"fusion":
                continue
            called = [self._computations[c] for c in proto.called_computation_ids if c in self._computations]
            inside = Counter(i.channel_id for i in self._inner(called))
            if inside and all(channel and channels[channel] == count for channel, count in inside.items()):
                yield name

    def __getitem__(self, name: str) -> Instruction:
        made = self._made.get(name)
        if made is None:
            made = self._made[name] = self._make(name, self._protos[name])
        return made

    def __iter__(self) -> Iterator[str]:
        return iter(self._protos)

    def __len__(self) -> int:
        return len(self._protos)

    def __contains__(self, name: object) -> bool:
        return name in self._protos

    def _counted(self, groups: Groups | None) -> Groups | None:
        """Return the groups, unless the module gets too many: a few bytes can name very many devices."""
        if groups and id(groups) not in self._groups:
            self._groups[id(groups)] = groups
            self._members_left -= sum(map(len, groups))
            if self._members_left < 0:
                raise MalformedError("the replica groups of the module have too many members in all")
        return groups

    def _make(self, name: str, proto: Any) -> Instruction:
        opcode = decoded(proto.opcode)
        operands = [self._by_id.get(operand) for operand in proto.operand_ids]
        shapes = [self._operand_shape(operand) for operand in proto.operand_ids]
        called = [self._computations[called] for called in proto.called_computation_ids if called in self._computations]
        started = self._started(proto) if opcode in ("async-update", "async-done") and not called else called
        inner = tuple(self._inner(started)) if opcode in CARRIES_INNER else ()
        op_name, op_name_source = self._inherited.get(name, (None, None))
        if own := stated_path(decoded(proto.metadata.op_name)):
            op_name, op_name_source = own, "own"
        source_file, source_line = self._source(proto.metadata)
        return Instruction(
            name=name,
            opcode=opcode,
            shape=shape_of(proto.shape),
            operand_names=tuple(decoded(operand.name) if operand else "" for operand in operands),
            operand_shapes=tuple(shapes),
            channel_id=proto.channel_id if proto.channel_id > 0 else None,
            replica_groups=self._counted(_groups(proto, opcode)),
            source_target_pairs=_pairs(proto, opcode),
            use_global_device_ids=proto.use_global_device_ids,
            is_host_transfer=proto.is_host_transfer,
            dcn=dcn_transfer(_frontend_attributes(proto)),
            op_name=op_name,
            op_name_source=op_name_source,
            op_type=decoded(proto.metadata.op_type) or None,
            source_file=source_file,
            source_line=source_line,
            fusion_kind=decoded(proto.fusion_kind) or None,
            called=tuple(decoded(computation.name) for computation in called),
            custom_call_target=decoded(proto.custom_call_target) or None,
            is_communicating=opcode == "custom-call" and is_communicating(decoded(proto.backend_config)),
            async_opcode=self._async_opcode(started) if opcode.startswith("async-") else None,
            spaces=self._spaces(proto),
            inner=inner,
        )

    def _spaces(self, proto: Any) -> tuple[int, ...]:
        operands = (self._by_id[operand].shape for operand in proto.operand_ids if operand in self._by_id)
        spaces = tuple(islice((space for shape in (proto.shape, *operands) for space in _spaces(shape)), _MAX_SPACES))
        return spaces if any(spaces) else ()

    def _started(self, proto: Any) -> list[Any]:
        """Return the computations that the start of an async-update or -done runs; the latter need not repeat them."""
        seen: set[int] = set()
        while proto is not None and proto.id not in seen and decoded(proto.opcode).startswith("async-"):
            if proto.called_computation_ids:
                return [self._computations[c] for c in proto.called_computation_ids if c in self._computations]
            seen.add(proto.id)
            proto = self._by_id.get(proto.operand_ids[0]) if proto.operand_ids else None
        return []

    def _operand_shape(self, operand: int) -> Shape | None:
        """Return the shape of an instruction by its id; all users share one object, because a shape can be large."""
        if operand not in self._shapes and operand in self._by_id:
            self._shapes[operand] = shape_of(self._by_id[operand].shape)
        return self._shapes.get(operand)

    def _inner(self, computations: list[Any]) -> Iterator[Instruction]:
        pending = [c.id for c in reversed(computations[:_MAX_COMPUTATIONS])]
        seen: set[int] = set()
        count = 0
        while pending and len(seen) < _MAX_COMPUTATIONS:
            computation = pending.pop()
            if computation in seen or computation not in self._inside:
                continue
            seen.add(computation)
            inside = self._inside[computation]
            for name in inside.collectives[: _MAX_INNER - count]:
                yield self[name]
            count += len(inside.collectives)
            if count >= _MAX_INNER:
                return
            pending += inside.called

    def _async_opcode(self, called: list[Any]) -> str | None:
        for computation in called:
            root = root_instruction(computation, self._by_id)
            if root is not None:
                return decoded(root.opcode)
        return None

    def _source(self, metadata: Any) -> tuple[str | None, int | None]:
        """Return source file and line. Newer compilers leave them out and number a frame of the stack index."""
        if metadata.source_file:
            return decoded(metadata.source_file), metadata.source_line or None
        frame = _one_based(self._frames.stack_frames, metadata.stack_frame_id)
        location = _one_based(self._frames.file_locations, frame.file_location_id) if frame is not None else None
        file = _one_based(self._frames.file_names, location.file_name_id) if location is not None else None
        if location is None or file is None:
            return None, None
        return decoded(file) or None, location.line or None


class _Inside(NamedTuple):
    collectives: list[str]
    called: list[int]

    @classmethod
    def read(cls, computation: Any, collectives: set[str]) -> _Inside:
        names = (name for proto in computation.instructions if (name := decoded(proto.name)) in collectives)
        called = (
            called
            for proto in computation.instructions
            if proto.called_computation_ids and decoded(proto.opcode) in ("fusion", "call")
            for called in proto.called_computation_ids
        )
        return cls(list(islice(names, _MAX_INNER)), list(islice(called, _MAX_COMPUTATIONS)))


def _one_based(entries: Any, number: int) -> Any | None:
    return entries[number - 1] if 0 < number <= len(entries) else None


def shape_of(proto: Any, depth: int = 0) -> Shape:
    """Return the shape that a ShapeProto states."""
    if depth > MAX_DEPTH:
        raise MalformedError(f"Hlo Proto: tuples nest deeper than {MAX_DEPTH}")
    if proto.element_type == TUPLE_TYPE:
        return Shape("tuple", elements=tuple(shape_of(element, depth + 1) for element in proto.tuple_shapes))
    if proto.element_type == BUFFER_TYPE and len(proto.tuple_shapes) == 1:
        return shape_of(proto.tuple_shapes[0], depth + 1)
    element = PRIMITIVE_TYPES.get(proto.element_type, f"type{proto.element_type}")
    dimensions = tuple(None if size == _UNBOUNDED else size for size in proto.dimensions)
    dynamic = tuple(proto.is_dynamic_dimension)
    return array_shape(element, dimensions, dynamic if len(dynamic) == len(dimensions) else ())


def _spaces(shape: Any) -> Iterator[int]:
    if shape.element_type in (TUPLE_TYPE, BUFFER_TYPE) and (shape.tuple_shapes or shape.element_type == TUPLE_TYPE):
        for element in shape.tuple_shapes:
            yield from _spaces(element)
    else:
        yield shape.layout.memory_space


def _groups(proto: Any, opcode: str) -> Groups | None:
    """Return replica groups from the one of five places that holds them; () if a collective states none."""
    if proto.HasField("mesh_axes_replica_group_list"):
        groups = proto.mesh_axes_replica_group_list
        return mesh_groups(
            tuple(axis.size for axis in groups.mesh.axes),
            tuple((a.mesh_axis_index, a.sub_axis_info.pre_size or 1, a.sub_axis_info.size) for a in groups.axes),
            tuple(groups.mesh.device_ids),
        )
    if proto.HasField("iota_collective_device_list"):
        return _iota(proto.iota_collective_device_list)
    if proto.collective_device_list.HasField("iota_replica_group_list"):
        return _iota(proto.collective_device_list.iota_replica_group_list)
    groups = proto.collective_device_list.replica_groups or proto.replica_groups
    if groups:
        return explicit_groups(group.replica_ids for group in groups)
    return () if opcode in _COLLECTIVES and opcode.removesuffix("-start") not in _PAIRWISE else None


_MOST_MEMBERS = 1 << 20
"""Most members that the distinct groups of a module may have, or one per byte of a larger module."""
_PAIRWISE = frozenset({"collective-permute", "send", "recv"})


def _iota(proto: Any) -> Groups:
    return iota_groups(
        (proto.num_replica_groups, proto.num_devices_per_group),
        tuple(proto.iota_reshape_dims),
        tuple(proto.iota_transpose_perm),
    )


def _pairs(proto: Any, opcode: str) -> Pairs | None:
    if proto.source_target_pairs:
        return explicit_pairs((pair.source, pair.target) for pair in proto.source_target_pairs)
    if opcode in ("send", "recv"):
        pairs = _frontend_attributes(proto).get("_xla_send_recv_source_target_pairs")
        if pairs is not None:
            return parse_pairs(pairs)
    return () if opcode in ("collective-permute", "collective-permute-start") else None


def _frontend_attributes(proto: Any) -> dict[str, str]:
    return {decoded(a.key): decoded(a.value) for a in proto.frontend_attributes.map if a.key.startswith(b"_xla_")}
