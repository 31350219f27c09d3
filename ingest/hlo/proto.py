"""Reads HLO modules from the `Hlo Proto` that profilers embed in captures.

Field numbers are those of hlo.proto and xla_data.proto. Only the fields that are read are declared; the parser skips
the others. Strings are declared as bytes, because a profiler's strings need not be valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

from google.protobuf import message

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.instruction import Instruction, OpNameSource
from tracewarehouse.ingest.hlo.op_name import layer_and_part
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
from tracewarehouse.ingest.protobuf import Field, message_classes

_MESSAGES: dict[str, tuple[Field, ...]] = {
    "HloProto": (Field(1, "hlo_module", "HloModule"),),
    "PlacedHloProto": (Field(1, "hlo_module", "PlacedHloModule"),),
    "PlacedHloModule": (Field(15, "device_assignment", "DeviceAssignment"),),
    "HloModule": (
        Field(1, "name", "bytes"),
        Field(3, "computations", "HloComputation", is_repeated=True),
        Field(5, "id", "int64"),
        Field(6, "entry_computation_id", "int64"),
        Field(15, "device_assignment", "DeviceAssignment"),
        Field(17, "stack_frame_index", "StackFrameIndex"),
    ),
    "HloComputation": (
        Field(1, "name", "bytes"),
        Field(2, "instructions", "HloInstruction", is_repeated=True),
        Field(5, "id", "int64"),
        Field(6, "root_id", "int64"),
    ),
    "HloInstruction": (
        Field(1, "name", "bytes"),
        Field(2, "opcode", "bytes"),
        Field(3, "shape", "Shape"),
        Field(7, "metadata", "OpMetadata"),
        Field(11, "fusion_kind", "bytes"),
        Field(26, "channel_id", "int64"),
        Field(28, "custom_call_target", "bytes"),
        Field(35, "id", "int64"),
        Field(36, "operand_ids", "int64", is_repeated=True),
        Field(38, "called_computation_ids", "int64", is_repeated=True),
        Field(43, "backend_config", "bytes"),
        Field(47, "is_host_transfer", "bool"),
        Field(49, "replica_groups", "ReplicaGroup", is_repeated=True),
        Field(52, "source_target_pairs", "SourceTarget", is_repeated=True),
        Field(68, "frontend_attributes", "FrontendAttributes"),
        Field(71, "use_global_device_ids", "bool"),
        Field(87, "collective_device_list", "CollectiveDeviceList"),
        Field(92, "iota_collective_device_list", "IotaReplicaGroupList"),
        Field(93, "mesh_axes_replica_group_list", "MeshAxesReplicaGroupList"),
    ),
    "Shape": (
        Field(2, "element_type", "int32"),
        Field(3, "dimensions", "int64", is_repeated=True),
        Field(4, "tuple_shapes", "Shape", is_repeated=True),
        Field(6, "is_dynamic_dimension", "bool", is_repeated=True),
    ),
    "OpMetadata": (
        Field(1, "op_type", "bytes"),
        Field(2, "op_name", "bytes"),
        Field(3, "source_file", "bytes"),
        Field(4, "source_line", "int32"),
        Field(15, "stack_frame_id", "int32"),
    ),
    "ReplicaGroup": (Field(1, "replica_ids", "int64", is_repeated=True),),
    "SourceTarget": (Field(1, "source", "int64"), Field(2, "target", "int64")),
    "CollectiveDeviceList": (
        Field(1, "replica_groups", "ReplicaGroup", is_repeated=True),
        Field(2, "iota_replica_group_list", "IotaReplicaGroupList"),
    ),
    "IotaReplicaGroupList": (
        Field(1, "num_replica_groups", "int64"),
        Field(2, "num_devices_per_group", "int64"),
        Field(3, "iota_reshape_dims", "int64", is_repeated=True),
        Field(4, "iota_transpose_perm", "int32", is_repeated=True),
    ),
    "MeshAxesReplicaGroupList": (Field(1, "mesh", "Mesh"), Field(2, "axes", "AxisRef", is_repeated=True)),
    "Mesh": (Field(1, "axes", "MeshAxis", is_repeated=True), Field(2, "device_ids", "int64", is_repeated=True)),
    "MeshAxis": (Field(1, "name", "bytes"), Field(2, "size", "int64")),
    "AxisRef": (Field(1, "mesh_axis_index", "int64"), Field(2, "sub_axis_info", "SubAxis")),
    "SubAxis": (Field(1, "pre_size", "int64"), Field(2, "size", "int64")),
    "FrontendAttributes": (Field(1, "map", "FrontendAttribute", is_repeated=True),),
    "FrontendAttribute": (Field(1, "key", "bytes"), Field(2, "value", "bytes")),
    "DeviceAssignment": (Field(3, "computation_devices", "ComputationDevice", is_repeated=True),),
    "ComputationDevice": (Field(1, "replica_device_ids", "int64", is_repeated=True),),
    "StackFrameIndex": (
        Field(1, "file_names", "bytes", is_repeated=True),
        Field(3, "file_locations", "FileLocation", is_repeated=True),
        Field(4, "stack_frames", "StackFrame", is_repeated=True),
    ),
    "FileLocation": (Field(1, "file_name_id", "int32"), Field(3, "line", "int32")),
    "StackFrame": (Field(1, "file_location_id", "int32"),),
}


CLASSES = message_classes("tracewarehouse.hlo", _MESSAGES)
"""The protobuf message classes by short name."""

_COLLECTIVES = frozenset(
    {
        "all-gather",
        "all-gather-start",
        "all-reduce",
        "all-reduce-start",
        "all-to-all",
        "collective-broadcast",
        "collective-permute",
        "collective-permute-start",
        "ragged-all-to-all",
        "recv",
        "reduce-scatter",
        "send",
    }
)
# Values without an operation of their own: their op_name tells nothing about the op that uses them.
_PASSIVE = frozenset({"parameter", "constant", "iota", "partition-id", "replica-id"})
_VIEWS = frozenset({"bitcast", "broadcast", "convert", "copy", "reshape", "slice", "transpose"})
# torch_xla's names for values from outside the program, however the compiler slices them.
_DATA_NAMES = ("xla__device_data", "prim__Constant")
_CARRIES_INNER = frozenset({"fusion", "async-start", "async-update", "async-done"})
_UNBOUNDED = -(1 << 63)
_MAX_INNER = 1000
_MAX_COMPUTATIONS = 64
"""Most collectives and computations that are read inside one fusion or async op; real ones have a few."""


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        name: module name, such as 'jit_step_fun'.
        module_id: the module's own id; on CPU the profiler's program_id, on TPU another number.
        instructions: all instructions of all computations by name. An entry is made when it is first needed,
            because a capture runs few of a large module's instructions. Access may raise MalformedError.
        device_assignment: global device ids as [partition][replica]; empty if the module does not state them. A logical
            id in replica groups counts partitions within replicas (or only replicas, by the collective's mode).
    """

    name: str
    module_id: int
    instructions: Mapping[str, Instruction]
    device_assignment: tuple[tuple[int, ...], ...] = ()


def read_module(data: bytes) -> Module:
    """Read the module of a serialized HloProto.

    Raises:
        MalformedError: the bytes are no HloProto with a module, or a collective in it names impossible devices.
    """
    proto = CLASSES["HloProto"]()
    try:
        proto.ParseFromString(data)
    except message.DecodeError as error:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes is damaged: {error}") from error
    module = proto.hlo_module
    if not module.computations:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes holds no HLO module")
    return Module(
        name=_text(module.name),
        module_id=module.id,
        instructions=_Instructions(module, max(_MOST_MEMBERS, len(data))),
        device_assignment=tuple(tuple(row.replica_device_ids) for row in module.device_assignment.computation_devices),
    )


def device_counts(data: bytes) -> tuple[int, int]:
    """Read the numbers of replicas and partitions from a serialized HloProto's device assignment; 1 if not stated.

    Raises:
        MalformedError: the bytes are no HloProto.
    """
    proto = CLASSES["PlacedHloProto"]()
    try:
        proto.ParseFromString(data)
    except message.DecodeError as error:
        raise MalformedError(f"the embedded Hlo Proto of {len(data)} bytes is damaged: {error}") from error
    rows = proto.hlo_module.device_assignment.computation_devices
    return max((len(row.replica_device_ids) for row in rows), default=1) or 1, len(rows) or 1


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
        self._op_names: dict[int, str | None] = {}
        self._inherited: dict[str, tuple[str, OpNameSource]] = {}
        for computation in module.computations:
            self._computations[computation.id] = computation
            for proto in computation.instructions:
                self._protos[_text(proto.name)] = proto
                self._by_id[proto.id] = proto
        # names are unique in a legal module; otherwise the last instruction with the name counts
        collectives = {name for name, proto in self._protos.items() if _text(proto.opcode) in _COLLECTIVES}
        self._inside = {c.id: _Inside.of(c, collectives) for c in module.computations}
        for computation in module.computations:
            self._inherit_op_names(computation)
        for name in collectives:
            self[name]

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
        """Return the groups, unless the module gets too many: a few bytes can name very many devices.

        Raises:
            MalformedError: the module has too many group members.
        """
        if groups and id(groups) not in self._groups:
            self._groups[id(groups)] = groups
            self._members_left -= sum(map(len, groups))
            if self._members_left < 0:
                raise MalformedError("the replica groups of the module have too many members in all")
        return groups

    def _make(self, name: str, proto: Any) -> Instruction:
        opcode = _text(proto.opcode)
        operands = [self._by_id.get(operand) for operand in proto.operand_ids]
        shapes = [self._operand_shape(operand) for operand in proto.operand_ids]
        called = [self._computations[called] for called in proto.called_computation_ids if called in self._computations]
        started = self._started(proto) if opcode in ("async-update", "async-done") and not called else called
        inner = tuple(self._inner(started)) if opcode in _CARRIES_INNER else ()
        op_name, op_name_source = self._inherited.get(name, (None, None))
        if proto.metadata.op_name:
            op_name, op_name_source = _text(proto.metadata.op_name), "own"
        source_file, source_line = self._source(proto.metadata)
        return Instruction(
            name=name,
            opcode=opcode,
            shape=_shape(proto.shape),
            operand_names=tuple(_text(operand.name) if operand else "" for operand in operands),
            operand_shapes=tuple(shapes),
            channel_id=proto.channel_id if proto.channel_id > 0 else None,
            replica_groups=self._counted(_groups(proto, opcode)),
            source_target_pairs=_pairs(proto, opcode),
            use_global_device_ids=proto.use_global_device_ids,
            is_host_transfer=proto.is_host_transfer,
            op_name=op_name,
            op_name_source=op_name_source,
            op_type=_text(proto.metadata.op_type) or None,
            source_file=source_file,
            source_line=source_line,
            fusion_kind=_text(proto.fusion_kind) or None,
            called=tuple(_text(computation.name) for computation in called),
            custom_call_target=_text(proto.custom_call_target) or None,
            async_opcode=self._async_opcode(started) if opcode.startswith("async-") else None,
            inner=inner,
        )

    def _started(self, proto: Any) -> list[Any]:
        """Return the computations that the start of an async-update or -done runs; the latter need not repeat them."""
        seen: set[int] = set()
        while proto is not None and proto.id not in seen and _text(proto.opcode).startswith("async-"):
            if proto.called_computation_ids:
                return [self._computations[c] for c in proto.called_computation_ids if c in self._computations]
            seen.add(proto.id)
            proto = self._by_id.get(proto.operand_ids[0]) if proto.operand_ids else None
        return []

    def _operand_shape(self, operand: int) -> Shape | None:
        """Return the shape of an instruction by its id; all users share one object, because a shape can be large."""
        if operand not in self._shapes and operand in self._by_id:
            self._shapes[operand] = _shape(self._by_id[operand].shape)
        return self._shapes.get(operand)

    def _inner(self, computations: list[Any]) -> Iterator[Instruction]:
        """Return the collectives in the computations of a fusion or async op, and of the fusions and calls in those.

        There are at most _MAX_INNER, from at most _MAX_COMPUTATIONS, because many ops may run the same computations.
        """
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
            root = self._root(computation)
            if root is not None:
                return _text(root.opcode)
        return None

    def _root(self, computation: Any) -> Any | None:
        root = self._by_id.get(computation.root_id)
        if root is not None:
            return root
        return computation.instructions[-1] if computation.instructions else None

    def _source(self, metadata: Any) -> tuple[str | None, int | None]:
        """Return source file and line. Newer compilers leave them out and number a frame of the stack index."""
        if metadata.source_file:
            return _text(metadata.source_file), metadata.source_line or None
        frame = _one_based(self._frames.stack_frames, metadata.stack_frame_id)
        location = _one_based(self._frames.file_locations, frame.file_location_id) if frame is not None else None
        file = _one_based(self._frames.file_names, location.file_name_id) if location is not None else None
        if location is None or file is None:
            return None, None
        return _text(file) or None, location.line or None

    def _inherit_op_names(self, computation: Any) -> None:
        """Give instructions without op_name the op_name of those fused in them, of their operands or of their users.

        A fusion takes it from its root, or from the nearest instruction before the root that has one. Operands count if
        they share one, or share a scope that names a layer or part. Parameters, constants and views of them tell
        nothing about the op that uses them. They count only if there is nothing else, not even users that share one:
        the compiler may rewrite a product with another shape and no name, under a view that keeps the name. Operands
        precede their users, so one pass in each direction is enough.
        """
        names: dict[int, str] = {}
        passive: set[int] = set()
        unsaid: set[int] = set()
        for proto in computation.instructions:
            opcode = _text(proto.opcode)
            if opcode in _PASSIVE or (opcode in _VIEWS and passive.issuperset(proto.operand_ids)):
                passive.add(proto.id)
            if proto.metadata.op_name:
                names[proto.id] = _text(proto.metadata.op_name)
                if names[proto.id].endswith(_DATA_NAMES):
                    passive.add(proto.id)
                continue
            source: OpNameSource = "fusion"
            name = self._fused_op_name(proto) if opcode in _CARRIES_INNER else None
            if name is None and opcode not in _PASSIVE:
                source = "operand"
                operands = list(proto.operand_ids)
                active = [operand for operand in operands if operand not in passive]
                name = _shared({names.get(operand) for operand in active or operands})
                if not name or not active:
                    unsaid.add(proto.id)
            if name:
                names[proto.id] = name
                self._inherited[_text(proto.name)] = name, source
        if unsaid:
            self._inherit_from_users(computation, names, unsaid)

    def _inherit_from_users(self, computation: Any, names: dict[int, str], unsaid: set[int]) -> None:
        users: dict[int, set[str | None]] = {proto_id: set() for proto_id in unsaid}
        for proto in reversed(computation.instructions):
            name = _shared(users[proto.id]) if proto.id in unsaid else None
            if name and not name.endswith(_DATA_NAMES):
                names[proto.id] = name
                self._inherited[_text(proto.name)] = name, "user"
            for operand in proto.operand_ids:
                if operand in unsaid:
                    users[operand].add(names.get(proto.id))

    def _fused_op_name(self, proto: Any) -> str | None:
        for called in proto.called_computation_ids:
            if called not in self._op_names and called in self._computations:
                self._op_names[called] = self._op_name_of(self._computations[called])
            if name := self._op_names.get(called):
                return name
        return None

    def _op_name_of(self, computation: Any) -> str | None:
        root = self._root(computation)
        for inner in chain([root] if root is not None else [], reversed(computation.instructions)):
            if inner.metadata.op_name and _text(inner.opcode) not in _PASSIVE:
                return _text(inner.metadata.op_name)
        return None


class _Inside(NamedTuple):
    """Return what a computation runs: names of its collectives, and ids of the computations that it fuses or calls."""

    collectives: list[str]
    called: list[int]

    @classmethod
    def of(cls, computation: Any, collectives: set[str]) -> _Inside:
        """Each list is cut to the number that is read."""
        names = (name for proto in computation.instructions if (name := _text(proto.name)) in collectives)
        called = (
            called
            for proto in computation.instructions
            if proto.called_computation_ids and _text(proto.opcode) in ("fusion", "call")
            for called in proto.called_computation_ids
        )
        return cls(list(islice(names, _MAX_INNER)), list(islice(called, _MAX_COMPUTATIONS)))


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


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _one_based(entries: Any, number: int) -> Any | None:
    return entries[number - 1] if 0 < number <= len(entries) else None


def _shape(proto: Any, depth: int = 0) -> Shape:
    if depth > MAX_DEPTH:
        raise MalformedError(f"Hlo Proto: tuples nest deeper than {MAX_DEPTH}")
    if proto.element_type == TUPLE_TYPE:
        return Shape("tuple", elements=tuple(_shape(element, depth + 1) for element in proto.tuple_shapes))
    if proto.element_type == BUFFER_TYPE and len(proto.tuple_shapes) == 1:
        return _shape(proto.tuple_shapes[0], depth + 1)
    element = PRIMITIVE_TYPES.get(proto.element_type, f"type{proto.element_type}")
    dimensions = tuple(None if size == _UNBOUNDED else size for size in proto.dimensions)
    dynamic = tuple(proto.is_dynamic_dimension)
    return array_shape(element, dimensions, dynamic if len(dynamic) == len(dimensions) else ())


def _groups(proto: Any, opcode: str) -> Groups | None:
    """Return replica groups from whichever of the five places holds them; () if a collective states none."""
    if proto.HasField("mesh_axes_replica_group_list"):
        groups = proto.mesh_axes_replica_group_list
        return mesh_groups(
            [axis.size for axis in groups.mesh.axes],
            [(axis.mesh_axis_index, axis.sub_axis_info.pre_size or 1, axis.sub_axis_info.size) for axis in groups.axes],
            list(groups.mesh.device_ids),
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
"""Members that the distinct groups of a module may have, or one per byte of a larger module."""
_PAIRWISE = frozenset({"collective-permute", "send", "recv"})


def _iota(proto: Any) -> Groups:
    return iota_groups(
        (proto.num_replica_groups, proto.num_devices_per_group),
        list(proto.iota_reshape_dims),
        list(proto.iota_transpose_perm),
    )


def _pairs(proto: Any, opcode: str) -> Pairs | None:
    if proto.source_target_pairs:
        return explicit_pairs((pair.source, pair.target) for pair in proto.source_target_pairs)
    if opcode in ("send", "recv"):
        for attribute in proto.frontend_attributes.map:
            if attribute.key == b"_xla_send_recv_source_target_pairs":
                return parse_pairs(_text(attribute.value))
    return () if opcode in ("collective-permute", "collective-permute-start") else None
