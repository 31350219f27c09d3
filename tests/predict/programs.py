"""Writes compiled programs that tests state as text, with the memories of their buffers and the compiler's words."""

from __future__ import annotations

import re
from typing import Any

from tracewarehouse.ingest.hlo.modules import HloModule
from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.shapes import PRIMITIVE_TYPES, TUPLE_TYPE, Shape
from tracewarehouse.ingest.hlo.text import parse_instruction

_NUMBERS = {name: number for number, name in PRIMITIVE_TYPES.items()}
_LAYOUT = re.compile(r"\w+\[[^\]]*\](?:\{([\d,]*)(?::[^}]*?(?:S\((\d)\))?)?\})?")
_CONSTANT = re.compile(r"constant\((-?\d+)\)")
_INDEX, _DIRECTION = re.compile(r"\bindex=(\d+)"), re.compile(r"\bdirection=(\w+)")
_AXES = re.compile(r"dimensions=\{([\d,]+)\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_THREAD = re.compile(r'async_execution_thread="(\w+)"')


def product(cycles: int) -> str:
    """The configuration of a product with an estimate."""
    return _estimate(cycles, "CLASSIC")


def loop(cycles: int) -> str:
    """The configuration of a loop fusion with an estimate."""
    return _estimate(cycles, "INVALID")


def _estimate(cycles: int, model: str) -> str:
    window = f'"estimated_cycles":"{cycles}","cost_model_type":"COST_MODEL_TYPE_{model}"'
    return f'backend_config={{"window_config":{{{window}}}}}'


def program(devices: int = 1, **computations: str) -> HloModule:
    """Return the program of these computations, which begins with `main`; a line is an instruction.

    Layouts are as HLO text has them: {1,0:S(1)} is in VMEM, {1,0} or none in HBM.
    """
    proto = CLASSES["HloProto"]()
    module = proto.hlo_module
    module.name = b"jit_step"
    for n in range(devices):
        module.device_assignment.computation_devices.add(replica_device_ids=[n])
    ids = {name: number for number, name in enumerate(computations, 1)}
    module.entry_computation_id = ids["main"]
    numbers: dict[str, int] = {}
    for name, text in computations.items():
        made = module.computations.add(name=name.encode(), id=ids[name])
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        for line in lines:
            _add(made, line, ids, numbers)
        order = module.schedule.sequences.add(key=ids[name])
        order.value.instruction_ids.extend(i.id for i in made.instructions)
        made.root_id = made.instructions[-1].id
    return HloModule("jit_step", proto.SerializeToString(), [])


def _add(computation: Any, line: str, ids: dict[str, int], numbers: dict[str, int]) -> None:
    stated = parse_instruction(line)
    assert stated is not None, line
    made = computation.instructions.add(name=stated.name.encode(), opcode=stated.opcode.encode())
    made.id = numbers[stated.name] = len(numbers) + 1
    stated_shape = line[: line.index(f" {stated.opcode}(")]
    spaces = iter(
        (int(m[2] or 0), tuple(map(int, m[1].split(","))) if m[1] else ()) for m in _LAYOUT.finditer(stated_shape)
    )
    _write(made.shape, stated.shape, spaces)
    made.operand_ids.extend(numbers[name] for name in stated.operand_names)
    made.called_computation_ids.extend(ids[name] for name in stated.called)
    made.fusion_kind = (stated.fusion_kind or "").encode()
    made.custom_call_target = (stated.custom_call_target or "").encode()
    made.channel_id, made.use_global_device_ids = stated.channel_id or 0, stated.use_global_device_ids
    for group in stated.replica_groups or ():
        made.replica_groups.add(replica_ids=group)
    for source, target in stated.source_target_pairs or ():
        made.source_target_pairs.add(source=source, target=target)
    _, has_config, config = line.partition("backend_config=")
    made.backend_config = config.encode() if has_config else b""
    if stated.opcode == "constant" and (value := _CONSTANT.search(line)):
        made.literal.s32s.append(int(value[1]))
    index, direction = _INDEX.search(line), _DIRECTION.search(line)
    made.tuple_index = int(index[1]) if index else 0
    made.comparison_direction = direction[1].encode() if direction else b""
    axes = _AXES.search(line)
    made.dimensions.extend(map(int, axes[1].split(","))) if axes else None
    named = _OP_NAME.search(line)
    made.metadata.op_name = named[1].encode() if named else b""
    thread = _THREAD.search(line)
    made.async_execution_thread = thread[1].encode() if thread else b""


def _write(proto: Any, shape: Shape, spaces: Any) -> None:
    if shape.is_tuple:
        proto.element_type = TUPLE_TYPE
        for element in shape.elements:
            _write(proto.tuple_shapes.add(), element, spaces)
        return
    proto.element_type = _NUMBERS[shape.element]
    proto.dimensions.extend(shape.dimensions)
    proto.layout.memory_space, order = next(spaces)
    proto.layout.minor_to_major.extend(order)
