"""Writes Hlo Protos of programs that tests state as text."""

from __future__ import annotations

from typing import Any

from tracewarehouse.ingest.hlo.proto_messages import CLASSES
from tracewarehouse.ingest.hlo.text import parse_instruction


class Module:
    """A program whose instructions are given as text; shapes are of f32, bf16, u32 and token."""

    def __init__(self) -> None:
        self.proto = CLASSES["HloProto"]()
        self.proto.hlo_module.name = b"jit_step"
        self._ids: dict[str, int] = {}

    def computation(self, number: int, *texts: str, calls: dict[str, int] | None = None) -> None:
        """Add a computation; `calls` names the computation that an instruction calls."""
        made = self.proto.hlo_module.computations.add(name=f"c{number}".encode(), id=number)
        for text in texts:
            stated = parse_instruction(text)
            assert stated is not None
            new = made.instructions.add(name=stated.name.encode(), opcode=stated.opcode.encode())
            self._ids[stated.name] = new.id = len(self._ids) + 1
            _write_shape(new.shape, stated.shape)
            new.operand_ids.extend(self._ids[n] for n in stated.operand_names if n in self._ids)
            new.channel_id = stated.channel_id or 0
            new.use_global_device_ids = stated.use_global_device_ids
            for group in stated.replica_groups or ():
                new.replica_groups.add(replica_ids=group)
            if calls and stated.name in calls:
                new.called_computation_ids.append(calls[stated.name])
            made.root_id = new.id

    def assign(self, replicas: int, partitions: int) -> None:
        """Say how many replicas and partitions it has."""
        for p in range(partitions):
            ids = [r * partitions + p for r in range(replicas)]
            self.proto.hlo_module.device_assignment.computation_devices.add(replica_device_ids=ids)

    def encode(self) -> bytes:
        """The serialized HloProto."""
        encoded: bytes = self.proto.SerializeToString()
        return encoded


def _write_shape(proto: Any, shape: Any) -> None:
    if shape.is_tuple:
        proto.element_type = 13
        for element in shape.elements:
            _write_shape(proto.tuple_shapes.add(), element)
        return
    proto.element_type = {"f32": 11, "bf16": 16, "u32": 8, "token": 17}[shape.element]
    proto.dimensions.extend(shape.dimensions)
