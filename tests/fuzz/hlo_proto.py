"""The Hlo Proto reader against a plain reading of what protobuf's parser gives."""

from __future__ import annotations

import random
from math import prod
from pathlib import Path
from typing import Any

import hlo_reference as plain
from fuzz.judging import RefusedError, Target
from fuzz.seeds import hlo_protos
from fuzz.xplane_mutations import MUTATIONS, mutated
from google.protobuf.message import DecodeError
from xplane_builder import content, integer

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.hlo.collectives import find_collective
from tracewarehouse.ingest.hlo.proto import device_assignment, read_module
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.shapes import PRIMITIVE_TYPES

COLLECTIVES = (
    "all-gather", "all-gather-start", "all-reduce", "all-reduce-start", "all-to-all", "collective-broadcast",
    "collective-permute", "collective-permute-start", "ragged-all-to-all", "recv", "reduce-scatter", "send",
)  # fmt: skip
PAIRWISE = ("collective-permute", "collective-permute-start", "send", "recv")
OPCODES = (*COLLECTIVES, "fusion", "async-start", "async-done", "parameter", "constant", "dot", "copy", "while", "call")
NAMES = (b"a", b"all-reduce.1", b"fusion.2", b"x\0y", b"\xff\xfe", b"<b>", b"", "é".encode())
OP_NAMES = (b"", b"jit(f)/layer0/attn/dot", b"jit(f)/layer0/mlp/add", b"xla__device_data", b"\xff", b"a/" * 50)
EDGES = (0, 1, 2, 3, 7, 100, -1, 1 << 31, -(1 << 63), (1 << 63) - 1)
_PAIRS = (b"{}", b"{{0,1},{0,2}}", b"x", b"")
DAMAGE = ("none", "none", *MUTATIONS[1:], "part")


class HloProtoTarget(Target):
    """Modules made at random and damaged inside or outside, and now and then a damaged real one."""

    name = "hlo-proto"
    suffix = ".hlo.pb"

    def __init__(self, traces: Path | None = None) -> None:
        self._corpus = sorted({p for p in hlo_protos(traces) if len(p) < 1 << 18}, key=lambda p: (len(p), p))

    def make(self, r: random.Random) -> tuple[str, bytes]:
        kind = r.choice(DAMAGE)
        if self._corpus and r.random() < 0.003:
            return kind, mutated(r, r.choice(self._corpus), kind)
        if kind == "part":
            return kind, module(r, r.choice(MUTATIONS[1:]))
        return kind, mutated(r, module(r), kind)

    def read(self, data: bytes) -> Any:
        found = read_module(data)
        instructions = {}
        for name in found.instructions:
            try:
                instructions[name] = _ours(found.instructions[name])
            except MalformedError as error:
                assert str(error)
                instructions[name] = "malformed"
        return device_assignment(data), instructions

    def reference(self, data: bytes) -> Any:
        proto = CLASSES["HloProto"]()
        try:
            proto.ParseFromString(data)
        except DecodeError as error:
            raise RefusedError(str(error)) from None
        m = proto.hlo_module
        if not m.computations:
            raise RefusedError("no computations")
        by_id = {}
        by_name = {}
        for computation in m.computations:
            for i in computation.instructions:
                by_id[i.id] = i
                by_name[_text(i.name)] = i
        called = {c.id: _text(c.name) for c in m.computations}
        instructions = {}
        for name, i in by_name.items():
            try:
                instructions[name] = _plain(i, by_id, called)
            except plain.UnreadableError:
                if _text(i.opcode) in COLLECTIVES:
                    raise RefusedError(f"the collective {name!r} names impossible devices or shapes") from None
                instructions[name] = "malformed"
        # an op is as readable as the collectives that it runs, and those are readable
        assignment = tuple(tuple(row.replica_device_ids) for row in m.device_assignment.computation_devices)
        return assignment, instructions

    def difference(self, got: Any, want: Any) -> str:
        if got == want:
            return ""
        if got[0] != want[0]:
            return f"expected {want[0]}, found {got[0]}"
        wrong = [n for n in {*got[1], *want[1]} if got[1].get(n) != want[1].get(n)]
        return f"instruction {wrong[0]!r}: expected {want[1].get(wrong[0])}, found {got[1].get(wrong[0])}"


def _ours(found: Any) -> dict[str, Any]:
    find_collective(found)
    assert (found.op_name is None) == (found.op_name_source is None)
    return {
        "opcode": found.opcode,
        "shape": found.shape.text,
        "operands": [
            (n, s.text if s else None) for n, s in zip(found.operand_names, found.operand_shapes, strict=True)
        ],
        "channel_id": found.channel_id,
        "groups": found.replica_groups,
        "pairs": found.source_target_pairs,
        "global": found.use_global_device_ids,
        "host": found.is_host_transfer,
        "op_name": found.op_name if found.op_name_source == "own" else None,
        "op_type": found.op_type,
        "kind": found.fusion_kind,
        "called": found.called,
        "target": found.custom_call_target,
    }


def _plain(i: Any, by_id: dict[int, Any], called: dict[int, str]) -> dict[str, Any]:
    operands = [by_id.get(n) for n in i.operand_ids]
    return {
        "opcode": _text(i.opcode),
        "shape": _shape(i.shape).text,
        "operands": [(_text(o.name), _shape(o.shape).text) if o is not None else ("", None) for o in operands],
        "channel_id": i.channel_id if i.channel_id > 0 else None,
        "groups": _groups(i),
        "pairs": _pairs(i),
        "global": i.use_global_device_ids,
        "host": i.is_host_transfer,
        "op_name": _text(i.metadata.op_name) or None,
        "op_type": _text(i.metadata.op_type) or None,
        "kind": _text(i.fusion_kind) or None,
        "called": tuple(called[c] for c in i.called_computation_ids if c in called),
        "target": _text(i.custom_call_target) or None,
    }


def _shape(proto: Any, depth: int = 0) -> plain.Shape:
    if depth > 64:
        raise plain.UnreadableError
    if proto.element_type == 13:
        return plain.Shape("tuple", elements=tuple(_shape(e, depth + 1) for e in proto.tuple_shapes))
    if proto.element_type == 34 and len(proto.tuple_shapes) == 1:
        return _shape(proto.tuple_shapes[0], depth + 1)
    element = PRIMITIVE_TYPES.get(proto.element_type, f"type{proto.element_type}")
    sizes = [None if n == -(1 << 63) else n for n in proto.dimensions]
    dynamic = list(proto.is_dynamic_dimension)
    return plain.checked_array(element, sizes, dynamic if len(dynamic) == len(sizes) else ())


def _groups(i: Any) -> Any:
    if i.HasField("mesh_axes_replica_group_list"):
        of = i.mesh_axes_replica_group_list
        named = [(a.mesh_axis_index, a.sub_axis_info.pre_size or 1, a.sub_axis_info.size) for a in of.axes]
        return plain.mesh_groups([a.size for a in of.mesh.axes], named, list(of.mesh.device_ids))
    for of, name in ((i, "iota_collective_device_list"), (i.collective_device_list, "iota_replica_group_list")):
        if of.HasField(name):
            iota = getattr(of, name)
            sizes = (iota.num_replica_groups, iota.num_devices_per_group)
            return plain.iota_groups(sizes, list(iota.iota_reshape_dims), list(iota.iota_transpose_perm))
    written = i.collective_device_list.replica_groups or i.replica_groups
    if written:
        return plain.listed([list(g.replica_ids) for g in written])
    opcode = _text(i.opcode)
    return () if opcode in COLLECTIVES and opcode not in PAIRWISE else None


def _pairs(i: Any) -> Any:
    if i.source_target_pairs:
        return plain.checked_pairs([(p.source, p.target) for p in i.source_target_pairs])
    opcode = _text(i.opcode)
    if opcode in ("send", "recv"):
        for attribute in i.frontend_attributes.map:
            if attribute.key == b"_xla_send_recv_source_target_pairs":
                return plain.pair_list(_text(attribute.value))
    return () if opcode in ("collective-permute", "collective-permute-start") else None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def module(r: random.Random, damage: str = "none") -> bytes:
    """A serialized HloProto; `damage` hits one instruction before it is wrapped, so that the lengths around it fit."""
    proto = CLASSES["HloProto"]()
    m = proto.hlo_module
    m.name = r.choice(NAMES)
    count = r.choice((1, 2, 3))
    for c in range(count):
        computation = m.computations.add(name=b"c%d" % c, id=100 + c, root_id=r.choice((0, 1, 2, 3, 999)))
        for _ in range(r.randrange(5)):
            _instruction(r, computation.instructions.add(), count)
    if r.random() < 0.3:
        for _ in range(r.randrange(3)):
            m.device_assignment.computation_devices.add(replica_device_ids=[r.choice(EDGES) for _ in range(3)])
    if r.random() < 0.2:
        frames = m.stack_frame_index
        frames.file_names.extend([b"/a/b.py", b""])
        frames.file_locations.add(file_name_id=r.choice((0, 1, 2, 9)), line=r.choice((0, 5, -1)))
        frames.stack_frames.add(file_location_id=r.choice((0, 1, 2)))
    raw = proto.SerializeToString()
    if damage == "none" or not any(len(c.instructions) for c in m.computations):
        return raw
    inner = CLASSES["HloInstruction"]()
    _instruction(r, inner, count)
    hurt = mutated(r, inner.SerializeToString(), damage)
    computation = integer(5, 100) + content(2, hurt)
    return raw + content(1, content(3, computation))


def _instruction(r: random.Random, i: Any, computations: int) -> None:
    i.name = r.choice(NAMES) + (b".%d" % r.randrange(9) if r.random() < 0.8 else b"")
    i.opcode = r.choice(OPCODES).encode()
    i.id = r.choice((1, 2, 3, 4, 5, 6, 7, -1))
    _fill_shape(r, i.shape)
    i.operand_ids.extend(r.choice((1, 2, 3, 4, 5, 999, -1)) for _ in range(r.randrange(4)))
    i.called_computation_ids.extend(100 + r.randrange(computations + 1) for _ in range(r.choice((0, 0, 1, 2))))
    if r.random() < 0.6:
        i.metadata.op_name, i.metadata.op_type = r.choice(OP_NAMES), r.choice((b"", b"psum", b"\xff"))
        i.metadata.source_file, i.metadata.source_line = r.choice((b"", b"/a.py")), r.choice((0, 7, -1))
        i.metadata.stack_frame_id = r.choice((0, 1, 2, -1))
    if r.random() < 0.3:
        i.channel_id = r.choice(EDGES)
        i.fusion_kind, i.custom_call_target = r.choice((b"", b"kLoop")), r.choice((b"", b"t\xff"))
        i.use_global_device_ids, i.is_host_transfer = r.random() < 0.5, r.random() < 0.5
    if r.random() < 0.7:
        r.choice((_listed, _listed, _iota, _mesh, _permuted, _sent))(r, i)


def _fill_shape(r: random.Random, proto: Any, depth: int = 0) -> None:
    if (depth < 3 and r.random() < 0.2) or (depth and r.random() < 0.01 and depth < 70):
        proto.element_type = r.choice((13, 13, 34))
        for _ in range(r.randrange(4)):
            _fill_shape(r, proto.tuple_shapes.add(), depth + 1)
        return
    proto.element_type = r.choice((11, 16, 4, 1, 17, 14, 20, 32, 0, 99, -1, 18))
    sizes = (1, 2, 8, 1024, 0, -(1 << 63)) if r.random() < 0.98 else (1 << 40, -1, 1)
    proto.dimensions.extend(r.choice(sizes) for _ in range(r.choice((0, 1, 2, 3))))
    if r.random() < 0.2:
        proto.is_dynamic_dimension.extend(r.random() < 0.5 for _ in range(r.randrange(4)))


def _listed(r: random.Random, i: Any) -> None:
    into = r.choice((i, i.collective_device_list)).replica_groups
    n = r.choice((1, 2, 4))
    devices = r.sample(range(8), 8) if r.random() < 0.97 else [r.choice(EDGES) for _ in range(8)]
    for k in range(0, 8, n):
        into.add(replica_ids=devices[k : k + n])


def _iota(r: random.Random, i: Any) -> None:
    iota = r.choice((i.iota_collective_device_list, i.collective_device_list.iota_replica_group_list))
    sizes = r.choice(([2, 2], [4], [2, 3, 2], [1, 4], [2, 1, 3]))
    total = prod(sizes)
    counts = r.choice(((1, total), (total, 1), (2, total // 2), (total // 2, 2)))
    if r.random() < 0.05:
        sizes = r.choice(([], [2, 0], [1 << 17], [1 << 40, 1 << 40], [-1, -4]))
        counts = r.choice(((2, 6), (0, 4), (-1, -4), (1, 1 << 17)))
    iota.iota_reshape_dims.extend(sizes)
    if r.random() < 0.6:
        iota.iota_transpose_perm.extend(r.sample(range(len(sizes)), len(sizes)))
    iota.num_replica_groups, iota.num_devices_per_group = counts


def _mesh(r: random.Random, i: Any) -> None:
    groups = i.mesh_axes_replica_group_list
    sizes = [r.choice((1, 2, 3, 4)) if r.random() < 0.98 else r.choice(EDGES) for _ in range(r.choice((1, 2, 2, 3)))]
    for k, size in enumerate(sizes):
        groups.mesh.axes.add(name=b"axis_%d" % k, size=size)
    for k in r.sample(range(len(sizes)), r.randrange(len(sizes) + 1)):
        axis = groups.axes.add(mesh_axis_index=k if r.random() < 0.98 else r.choice(EDGES))
        if r.random() < 0.2:
            axis.sub_axis_info.pre_size, axis.sub_axis_info.size = r.choice((0, 1, 2)), r.choice((0, 1, 2))
    total = prod(sizes)
    if 0 < total < 65 and r.random() < 0.3:
        groups.mesh.device_ids.extend(r.sample(range(total), total))


def _permuted(r: random.Random, i: Any) -> None:
    for k in range(r.randrange(4)):
        i.source_target_pairs.add(source=k if r.random() < 0.98 else r.choice(EDGES), target=(k + 1) % 4)


def _sent(r: random.Random, i: Any) -> None:
    key = r.choice((b"_xla_send_recv_source_target_pairs", b"_xla_other"))
    i.frontend_attributes.map.add(key=key, value=b"{{0,1},{1,2}}" if r.random() < 0.9 else r.choice(_PAIRS))
