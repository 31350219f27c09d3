from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from tracewarehouse.ingest.columns import bounds
from tracewarehouse.ingest.errors import MalformedError, TooManyError
from tracewarehouse.ingest.hlo import proto as proto_module
from tracewarehouse.ingest.hlo.collectives import find_collective
from tracewarehouse.ingest.hlo.instruction import Instruction
from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto import device_assignment, read_module
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.shapes import PRIMITIVE_TYPES, Shape, parse_shape

NUMBERS = {name: number for number, name in PRIMITIVE_TYPES.items()}


class Builder:
    """Writes an HloProto, with ids counted over the module."""

    def __init__(self, name: str = "m") -> None:
        self.proto = CLASSES["HloProto"]()
        self.module = self.proto.hlo_module
        self.module.name = name.encode()
        self.ids: dict[str, int] = {}

    def computation(self, name: str) -> Any:
        return self.module.computations.add(name=name.encode(), id=len(self.module.computations) + 100)

    def add(self, computation: Any, name: str, opcode: str, shape: str = "f32[8]", *operands: str, **more: Any) -> Any:
        made = computation.instructions.add(name=name.encode(), opcode=opcode.encode(), id=len(self.ids) + 1)
        self.ids[name] = made.id
        write_shape(made.shape, parse_shape(shape))
        made.operand_ids.extend(self.ids[operand] for operand in operands)
        if "op_name" in more:
            made.metadata.op_name = more.pop("op_name").encode()
        for called in more.pop("called", ()):
            made.called_computation_ids.append(called.id)
        for field, value in more.items():
            setattr(made, field, value)
        computation.root_id = made.id
        return made

    def read(self) -> Any:
        return read_module(self.proto.SerializeToString()).instructions


def write_shape(proto: Any, shape: Shape) -> None:
    if shape.is_tuple:
        proto.element_type = 13
        for element in shape.elements:
            write_shape(proto.tuple_shapes.add(), element)
        return
    proto.element_type = NUMBERS[shape.element]
    proto.dimensions.extend(-(1 << 63) if size is None else size for size in shape.dimensions)
    proto.is_dynamic_dimension.extend(shape.dynamic or (False,) * len(shape.dimensions))


def one(**more: Any) -> tuple[Builder, Any]:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "x", "parameter")
    return builder, builder.add(entry, "a", "all-reduce", "f32[8]", "x", **more)


def test_an_instruction_with_its_operands_resolved() -> None:
    builder, proto = one(channel_id=7, use_global_device_ids=True, op_name="jit(f)/psum")
    proto.metadata.op_type, proto.metadata.source_file, proto.metadata.source_line = b"psum", b"/a/b.py", 12
    found = builder.read()["a"]
    assert found == Instruction(
        name="a",
        opcode="all-reduce",
        shape=parse_shape("f32[8]"),
        operand_names=("x",),
        operand_shapes=(parse_shape("f32[8]"),),
        channel_id=7,
        replica_groups=(),
        use_global_device_ids=True,
        op_name="jit(f)/psum",
        op_name_source="own",
        op_type="psum",
        source_file="/a/b.py",
        source_line=12,
    )


def add_plain(proto: Any) -> None:
    proto.replica_groups.add(replica_ids=[0, 2])
    proto.replica_groups.add(replica_ids=[1, 3])


def add_list(proto: Any) -> None:
    proto.collective_device_list.replica_groups.add(replica_ids=[0, 2])
    proto.collective_device_list.replica_groups.add(replica_ids=[1, 3])


def fill_iota(iota: Any) -> None:
    iota.num_replica_groups, iota.num_devices_per_group = 2, 2
    iota.iota_reshape_dims.extend([2, 2])
    iota.iota_transpose_perm.extend([1, 0])


def add_mesh(proto: Any) -> None:
    groups = proto.mesh_axes_replica_group_list
    groups.mesh.axes.add(name=b"axis_0", size=2)
    groups.mesh.axes.add(name=b"axis_1", size=2)
    groups.axes.add(mesh_axis_index=0)


def add_sub_axis(proto: Any) -> None:
    groups = proto.mesh_axes_replica_group_list
    groups.mesh.axes.add(name=b"axis_0", size=4)
    groups.axes.add(mesh_axis_index=0).sub_axis_info.pre_size = 1
    groups.axes[0].sub_axis_info.size = 2


def add_permuted_mesh(proto: Any) -> None:
    add_mesh(proto)
    proto.mesh_axes_replica_group_list.axes[0].mesh_axis_index = 1
    proto.mesh_axes_replica_group_list.mesh.device_ids.extend([0, 2, 1, 3])


@pytest.mark.parametrize(
    "fill",
    [
        add_plain,
        add_list,
        lambda proto: fill_iota(proto.collective_device_list.iota_replica_group_list),
        lambda proto: fill_iota(proto.iota_collective_device_list),
        add_mesh,
        add_sub_axis,
        add_permuted_mesh,
    ],
    ids=["49 plain", "87 list", "87 iota", "92 iota", "93 mesh axes", "93 sub-axis", "93 device ids"],
)
def test_replica_groups_in_every_field(fill: Any) -> None:
    builder, proto = one()
    fill(proto)
    assert builder.read()["a"].replica_groups == ((0, 2), (1, 3))


def test_impossible_groups_are_malformed() -> None:
    builder, proto = one()
    proto.replica_groups.add(replica_ids=[0, 0])
    with pytest.raises(MalformedError, match="twice"):
        builder.read()
    builder, proto = one()
    proto.iota_collective_device_list.num_replica_groups = 1 << 40
    proto.iota_collective_device_list.num_devices_per_group = 1 << 40
    proto.iota_collective_device_list.iota_reshape_dims.append(1 << 62)
    with pytest.raises(MalformedError):
        builder.read()


def test_groups_of_all_collectives_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "x", "parameter")
    for number in range(90):
        proto = builder.add(entry, f"a{number}", "all-reduce", "f32[8]", "x")
        proto.iota_collective_device_list.num_replica_groups = 1
        proto.iota_collective_device_list.num_devices_per_group = 1000 + number
        proto.iota_collective_device_list.iota_reshape_dims.append(1000 + number)
    assert len(builder.read()) == 91
    monkeypatch.setattr(proto_module, "_MOST_MEMBERS", 90_000)
    with pytest.raises(MalformedError, match="too many members in all"):
        builder.read()


def test_pairs_of_a_permute_and_of_a_send() -> None:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "x", "parameter")
    permute = builder.add(entry, "p", "collective-permute", "f32[8]", "x")
    permute.source_target_pairs.add(source=0, target=1)
    permute.source_target_pairs.add(source=1, target=0)
    send = builder.add(entry, "s", "send", "(f32[8],u32[],token[])", "x")
    send.frontend_attributes.map.add(key=b"_xla_send_recv_source_target_pairs", value=b"{{0,1},{1,0}}")
    host = builder.add(entry, "h", "send", "(f32[8],u32[],token[])", "x", is_host_transfer=True)
    host.channel_id = 0
    found = builder.read()
    assert found["p"].source_target_pairs == found["s"].source_target_pairs == ((0, 1), (1, 0))
    assert (found["p"].replica_groups, found["s"].replica_groups) == (None, None)
    assert find_collective(found["h"]) is None
    assert found["h"].channel_id is None


def test_source_from_the_stack_frame_index() -> None:
    builder, proto = one()
    proto.metadata.stack_frame_id = 2
    index = builder.module.stack_frame_index
    index.file_names.extend([b"/x.py", b"/y.py"])
    index.file_locations.add(file_name_id=2, line=30)
    index.stack_frames.add(file_location_id=9)
    index.stack_frames.add(file_location_id=1)
    found = builder.read()["a"]
    assert (found.source_file, found.source_line) == ("/y.py", 30)
    proto.metadata.stack_frame_id = 1
    assert builder.read()["a"].source_file is None
    proto.metadata.stack_frame_id = 99
    assert builder.read()["a"].source_file is None


def test_op_name_of_a_fusion_is_its_roots_or_the_nearest_inside() -> None:
    builder = Builder()
    fused = builder.computation("fused")
    builder.add(fused, "p", "parameter", op_name="x/param")
    builder.add(fused, "early", "add", "f32[8]", "p", op_name="layer0/attn/add")
    builder.add(fused, "late", "multiply", "f32[8]", "early", op_name="layer1/mlp/mul")
    root = builder.add(fused, "root", "tuple", "(f32[8])", "late")
    entry = builder.computation("main")
    builder.add(entry, "x", "parameter")
    builder.add(entry, "f", "fusion", "f32[8]", "x", called=[fused], fusion_kind=b"kLoop")
    found = builder.read()["f"]
    assert (found.op_name, found.op_name_source) == ("layer1/mlp/mul", "fusion")
    assert (found.fusion_kind, found.called) == ("kLoop", ("fused",))
    root.metadata.op_name = b"layer1/mlp/out"
    assert builder.read()["f"].op_name == "layer1/mlp/out"


def test_op_name_from_operands_that_agree() -> None:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "w", "parameter", op_name="xla__device_data")
    builder.add(entry, "c", "constant")
    builder.add(entry, "a", "add", "f32[8]", "w", "w", op_name="layer0/attn/add")
    builder.add(entry, "b", "add", "f32[8]", "w", "w", op_name="layer0/attn/mul")
    builder.add(entry, "d", "add", "f32[8]", "w", "w", op_name="layer1/mlp/mul")
    builder.add(entry, "copied", "copy", "f32[8]", "a")
    builder.add(entry, "again", "bitcast", "f32[8]", "copied")
    builder.add(entry, "weights", "transpose", "f32[8]", "w")
    builder.add(entry, "dot", "dot", "f32[8]", "weights", "again")
    builder.add(entry, "window", "reduce-window", "f32[8]", "a", "c")
    builder.add(entry, "same_scope", "select", "f32[8]", "a", "b")
    builder.add(entry, "apart", "select", "f32[8]", "a", "d")
    builder.add(entry, "after", "copy", "f32[8]", "apart")
    builder.add(entry, "id", "partition-id", "u32[]")
    found = builder.read()
    own, operand = "own", "operand"
    assert {name: (found[name].op_name, found[name].op_name_source) for name in found if name not in "abd"} == {
        "w": ("xla__device_data", own),
        "c": (None, None),
        "copied": ("layer0/attn/add", operand),
        "again": ("layer0/attn/add", operand),
        "weights": ("layer0/attn/add", "user"),
        "dot": ("layer0/attn/add", operand),
        "window": ("layer0/attn/add", operand),
        "same_scope": ("layer0/attn", operand),
        "apart": (None, None),
        "after": (None, None),
        "id": (None, None),
    }


def test_a_kernel_of_the_compiler_has_the_path_of_what_it_computes() -> None:
    """The TPU compiler names its kernels of a ragged-dot after itself; operands tell whose product it is."""
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "w", "parameter", op_name="weights[1]['experts.gate_proj']")
    builder.add(entry, "sizes", "reduce", "s32[8]", "w", op_name="jit(decode)/layer1/moe/reduce_sum")
    builder.add(entry, "rows", "gather", "f32[8]", "w", op_name="jit(decode)/layer1/moe/gather")
    builder.add(entry, "facts", "custom-call", "s32[9]", "sizes", op_name="ragged-dot-metadata")
    builder.add(entry, "matrix", "bitcast", "f32[8]", "w")
    builder.add(entry, "product", "custom-call", "f32[8]", "facts", "rows", "matrix", op_name="ragged-dot-none")
    found = builder.read()
    assert (found["facts"].op_name, found["facts"].op_name_source) == ("jit(decode)/layer1/moe/reduce_sum", "operand")
    assert (found["product"].op_name, found["product"].op_name_source) == ("jit(decode)/layer1/moe", "operand")


def test_op_name_from_users_where_operands_do_not_say() -> None:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "w", "parameter", op_name="xla__device_data")
    builder.add(entry, "a", "add", "f32[8]", "w", "w", op_name="layer0/mlp/add")
    builder.add(entry, "b", "add", "f32[8]", "w", "w", op_name="layer1/norm/mul")
    builder.add(entry, "dot", "dot", "f32[8]", "a", "b")
    builder.add(entry, "flat", "bitcast", "f32[8]", "dot")
    builder.add(entry, "view", "bitcast", "f32[8]", "flat", op_name="layer1/attn/linear")
    builder.add(entry, "shared", "copy", "f32[8]", "w")
    builder.add(entry, "one", "add", "f32[8]", "shared", "w", op_name="layer1/attn/add")
    builder.add(entry, "other", "add", "f32[8]", "shared", "w", op_name="layer1/mlp/add")
    builder.add(entry, "far", "copy", "f32[8]", "w")
    builder.add(entry, "third", "add", "f32[8]", "far", "a", op_name="layer0/mlp/add")
    builder.add(entry, "fourth", "add", "f32[8]", "far", "a", op_name="layer1/mlp/add")
    builder.add(entry, "loose", "copy", "f32[8]", "a")
    builder.add(entry, "unused", "dot", "f32[8]", "a", "b")
    found = builder.read()
    names = {name: (found[name].op_name, found[name].op_name_source) for name in found}
    assert names["dot"] == names["flat"] == ("layer1/attn/linear", "user")
    assert names["shared"] == ("layer1", "user")
    assert names["far"] == ("xla__device_data", "operand")
    assert names["loose"] == ("layer0/mlp/add", "operand")
    assert names["unused"] == (None, None)


def test_what_moves_an_argument_is_of_the_layer_that_uses_it() -> None:
    """JAX names a copy of a weight after the argument, whose list of layers has no name."""
    builder = Builder()
    wrapped = builder.computation("wrapped")
    builder.add(wrapped, "p", "parameter", op_name="weights[1][5]['mlp.up_proj']")
    builder.add(wrapped, "s", "slice", "f32[4]", "p", op_name="weights[1][5]['mlp.up_proj']")
    entry = builder.computation("main")
    builder.add(entry, "w", "parameter", op_name="weights[1][5]['mlp.up_proj']")
    builder.add(entry, "old", "parameter", op_name="cache['keys'][4]")
    builder.add(entry, "start", "async-start", "f32[4]", "w", op_name="weights[1][5]['mlp.up_proj']", called=[wrapped])
    builder.add(entry, "done", "async-done", "f32[4]", "start", op_name="weights[1][5]['mlp.up_proj']")
    builder.add(entry, "up", "dot", "f32[8]", "done", op_name="jit(decode)/layer5/mlp/dot")
    builder.add(entry, "new", "dynamic-update-slice", "f32[8]", "old", op_name="jit(decode)/layer4/attn/update")
    builder.add(entry, "out", "copy-start", "f32[8]", "new", op_name="cache['keys'][4]")
    builder.add(entry, "shared", "copy", "f32[8]", "w", op_name="weights[0]['embed']")
    builder.add(entry, "one", "add", "f32[8]", "shared", op_name="embed/add")
    builder.add(entry, "two", "add", "f32[8]", "shared", op_name="jit(decode)/lm_head/add")
    found = builder.read()
    names = {name: (found[name].op_name, found[name].op_name_source) for name in found}
    assert names["start"] == names["done"] == ("jit(decode)/layer5/mlp/dot", "user")
    assert names["out"] == ("jit(decode)/layer4/attn/update", "operand")
    assert names["w"] == ("weights[1][5]['mlp.up_proj']", "own")
    assert names["shared"] == ("weights[0]['embed']", "own")  # its users are not of one part


def test_deep_chains_of_unnamed_instructions_are_one_pass() -> None:
    builder = Builder()
    entry = builder.computation("main")
    builder.add(entry, "n0", "add", op_name="layer3/mlp/add")
    for i in range(1, 3000):
        # Two operands each: walking back instead of passing forward would double at every step.
        builder.add(entry, f"n{i}", "add", "f32[8]", f"n{i - 1}", f"n{max(0, i - 2)}")
    assert builder.read()["n2999"].op_name == "layer3/mlp/add"


def test_collectives_inside_fusions_and_async_ops() -> None:
    builder = Builder()
    inside = builder.computation("inside")
    builder.add(inside, "p", "parameter", "f32[32]")
    reduce = builder.add(inside, "ar", "all-reduce", "f32[32]", "p", channel_id=3)
    add_plain(reduce)
    builder.add(inside, "slice", "dynamic-slice", "f32[8]", "ar")
    wrapped = builder.computation("wrapped")
    builder.add(wrapped, "q", "parameter", "f32[32]")
    builder.add(wrapped, "rs", "reduce-scatter", "f32[8]", "q")
    entry = builder.computation("main")
    builder.add(entry, "x", "parameter", "f32[32]")
    builder.add(entry, "fused", "fusion", "f32[8]", "x", called=[inside])
    builder.add(entry, "start", "async-start", "((f32[32]),f32[8],u32[])", "x", called=[wrapped])
    builder.add(entry, "done", "async-done", "f32[8]", "start", called=[wrapped])
    builder.add(entry, "loop", "while", "f32[8]", "done", called=[inside])
    found = builder.read()
    fused = find_collective(found["fused"])
    assert fused is not None
    assert (fused.kind, fused.role, fused.message_bytes, fused.groups) == ("all-reduce", None, 128, ((0, 2), (1, 3)))
    assert (found["start"].async_opcode, found["done"].async_opcode) == ("reduce-scatter", "reduce-scatter")
    start, done = find_collective(found["start"]), find_collective(found["done"])
    assert start is not None
    assert done is not None
    assert (start.kind, start.role, start.message_bytes) == ("reduce-scatter", "start", 128)
    assert (done.role, done.start_name, done.message_bytes) == ("done", "start", 128)
    assert found["loop"].inner == ()
    assert find_collective(found["loop"]) is None


def test_computations_that_call_themselves_end() -> None:
    builder = Builder()
    ring = builder.computation("ring")
    builder.add(ring, "f", "fusion", called=[ring])
    assert builder.read()["f"].inner == ()


def test_a_name_that_stands_for_two_instructions_ends() -> None:
    """The last one counts, also where the first was a collective inside the computation that the last one calls."""
    builder = Builder()
    ring = builder.computation("ring")
    builder.add(ring, "a", "all-reduce")
    builder.add(ring, "b", "async-start", called=[ring]).name = b"a"
    assert builder.read()["a"].opcode == "async-start"
    assert builder.read()["a"].inner == ()


def test_many_ops_that_run_one_large_computation_cost_little() -> None:
    """2,000 fusions of a computation of 2,000 instructions: it is looked at once, and all of them share what it has."""
    builder = Builder()
    inside = builder.computation("inside")
    for i in range(2000):
        builder.add(inside, f"i{i}", "all-reduce" if i % 2 else "add")
    entry = builder.computation("main")
    long = builder.add(entry, "p", "add", op_name="layer0/" + "x/" * 10_000)
    also = builder.add(entry, "q", "add", op_name="layer0/" + "x/" * 10_000 + "y")
    for i in range(2000):
        builder.add(entry, f"f{i}", "fusion", called=[inside]).operand_ids.extend([long.id, also.id])
    found = builder.read()
    assert len(found["f7"].inner) == 1000
    some = [found[f"f{i}"] for i in range(0, 2000, 99)]
    assert all(one is other for f in some for one, other in zip(f.inner, found["f7"].inner, strict=True))
    assert [f.op_name_source for f in some] == ["operand"] * 21
    assert found["f1"].operand_shapes[0] is found["f2"].operand_shapes[0]


@pytest.mark.parametrize(
    ("names", "scope"),
    [
        (["layer0/a", "layer0/b"], "layer0"),
        (["layer0/a/x", "layer0/a"], "layer0/a"),
        (["layer0/a", "layer0/a!", "layer0/a/x"], "layer0"),
        (["layer0/ab", "layer0/a"], "layer0"),
        (["layer0/a", "layer1/a"], None),
        (["x/a", "x/b"], None),
    ],
)
def test_the_scope_that_operands_share(names: list[str], scope: str | None) -> None:
    builder = Builder()
    entry = builder.computation("main")
    for i, name in enumerate(names):
        builder.add(entry, f"o{i}", "add", op_name=name)
    builder.add(entry, "a", "add", "f32[8]", *(f"o{i}" for i in range(len(names))))
    assert builder.read()["a"].op_name == scope


def test_missing_operands_and_computations_are_unknown() -> None:
    builder, proto = one()
    proto.operand_ids[0] = 999
    proto.called_computation_ids.append(999)
    found = builder.read()["a"]
    assert (found.operand_names, found.operand_shapes, found.called) == (("",), (None,), ())


def test_strings_need_not_be_utf_8() -> None:
    builder, proto = one()
    proto.metadata.op_name = b"a\xffb"
    assert builder.read()["a"].op_name == "a�b"


def test_an_element_type_of_the_future_has_no_size() -> None:
    builder, proto = one()
    proto.shape.element_type = 99
    found = builder.read()["a"]
    assert (found.shape.text, found.shape.byte_size) == ("type99[8]", None)


def test_module_facts() -> None:
    builder, _ = one()
    builder.module.device_assignment.computation_devices.add(replica_device_ids=[4])
    builder.module.device_assignment.computation_devices.add(replica_device_ids=[5])
    data = builder.proto.SerializeToString()
    assert device_assignment(data) == ((4,), (5,))
    module = read_module(data)
    assert len(module.instructions) == 2
    assert "a" in module.instructions
    assert "b" not in module.instructions
    assert module.instructions.get("b") is None
    assert module.instructions["a"] is module.instructions["a"]


@pytest.mark.parametrize("data", [b"", b"\xff" * 20, b"\x0a\x05\x0a", b"\x0a\x00", b"hello world"])
def test_bytes_that_are_no_module(data: bytes) -> None:
    with pytest.raises(MalformedError):
        read_module(data)


def test_a_program_of_more_instructions_than_any_is_refused_before_they_are_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An instruction without a field has 2 bytes, and takes 280 once it is parsed."""
    monkeypatch.setattr(bounds, "PROGRAM", 301)

    def program(instructions: int) -> bytes:
        computation = b"\x12\x00" * instructions
        module = b"\x1a" + bytes([len(computation) & 127 | 128, len(computation) >> 7]) + computation
        return b"\x0a" + bytes([len(module) & 127 | 128, len(module) >> 7]) + module

    assert set(read_module(program(300)).instructions) == {""}
    monkeypatch.setitem(
        CLASSES, "HloProto", Mock(side_effect=lambda: Mock(ParseFromString=Mock(side_effect=AssertionError)))
    )
    with pytest.raises(TooManyError, match="found more than 301 instructions"):
        read_module(program(301))
    with pytest.raises(TooManyError, match="found more than 301 instructions"):
        HloModule("step", program(301), []).instruction("f")
