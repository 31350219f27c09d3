"""Builds protobuf message classes from tables of fields at import, without generated code, and encodes integers.

Any protobuf runtime from 4.25 on therefore works, and a message declares only the fields that are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Descriptor = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "double": _Descriptor.TYPE_DOUBLE,
    "int64": _Descriptor.TYPE_INT64,
    "uint64": _Descriptor.TYPE_UINT64,
    "int32": _Descriptor.TYPE_INT32,
    "bool": _Descriptor.TYPE_BOOL,
    "bytes": _Descriptor.TYPE_BYTES,  # also for text: a capture may hold text that is not UTF-8
}


class Field(NamedTuple):
    """One field: its number, its name, and a scalar type or the name of a message of the same table."""

    number: int
    name: str
    kind: str
    is_repeated: bool = False
    oneof: str | None = None


def varint(value: int) -> bytes:
    """One integer; a negative one as its two's complement in 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message_classes(package: str, messages: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Return the message classes by name, in a descriptor pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        oneofs: list[str] = []
        for f in fields:
            label = _Descriptor.LABEL_REPEATED if f.is_repeated else _Descriptor.LABEL_OPTIONAL
            field = message.field.add(name=f.name, number=f.number, label=label)
            field.type = _SCALARS.get(f.kind, _Descriptor.TYPE_MESSAGE)
            if f.kind not in _SCALARS:
                field.type_name = f".{package}.{f.kind}"
            if f.oneof is not None:
                if f.oneof not in oneofs:
                    oneofs.append(f.oneof)
                    message.oneof_decl.add(name=f.oneof)
                field.oneof_index = oneofs.index(f.oneof)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{n}")) for n in messages}
