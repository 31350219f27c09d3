"""Protobuf messages of a capture without its events, built at import from descriptors.

No generated code, so any protobuf runtime from 4.25 on works. Field numbers: tsl/profiler/protobuf/xplane.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Field = descriptor_pb2.FieldDescriptorProto
INT64, UINT64, DOUBLE, STRING, BYTES, INT32, BOOL = (
    Field.TYPE_INT64, Field.TYPE_UINT64, Field.TYPE_DOUBLE, Field.TYPE_STRING, Field.TYPE_BYTES, Field.TYPE_INT32,
    Field.TYPE_BOOL,
)  # fmt: skip


def build(
    package: str, messages: Mapping[str, Mapping[str, tuple[int, int | str] | tuple[int, int | str, str]]]
) -> Any:
    """Message classes by name.

    A field is (number, type); a type given as text names a message of the package, one that ends in `[]` is
    repeated, and a third item names the oneof that the field belongs to.
    """
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, spec in messages.items():
        message = file.message_type.add(name=name)
        oneofs: dict[str, int] = {}
        for field_name, (number, kind, *oneof) in spec.items():
            f = message.field.add(name=field_name, number=number, label=Field.LABEL_OPTIONAL)
            if isinstance(kind, str):
                if kind.endswith("[]"):
                    f.label = Field.LABEL_REPEATED
                f.type, f.type_name = Field.TYPE_MESSAGE, f".{package}.{kind.removesuffix('[]')}"
            else:
                f.type = kind
            if oneof:
                if oneof[0] not in oneofs:
                    oneofs[oneof[0]] = len(oneofs)
                    message.oneof_decl.add(name=oneof[0])
                f.oneof_index = oneofs[oneof[0]]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{n}")) for n in messages}


XPLANE = build(
    "tracewarehouse.xplane",
    {
        "XStat": {
            "metadata_id": (1, INT64),
            "double_value": (2, DOUBLE, "value"),
            "uint64_value": (3, UINT64, "value"),
            "int64_value": (4, INT64, "value"),
            "str_value": (5, BYTES, "value"),  # read as bytes: a capture may hold text that is not UTF-8
            "bytes_value": (6, BYTES, "value"),
            "ref_value": (7, UINT64, "value"),
        },
        "XEventMetadata": {
            "id": (1, INT64),
            "name": (2, BYTES),
            "display_name": (4, BYTES),
            "metadata": (3, BYTES),
            "stats": (5, "XStat[]"),
        },
        "XStatMetadata": {"id": (1, INT64), "name": (2, BYTES)},
        "EventMetadataEntry": {"key": (1, INT64), "value": (2, "XEventMetadata")},
        "StatMetadataEntry": {"key": (1, INT64), "value": (2, "XStatMetadata")},
        "XPlane": {
            "id": (1, INT64),
            "name": (2, BYTES),
            "stat_metadata": (5, "StatMetadataEntry[]"),
            "stats": (6, "XStat[]"),
        },
    },
)
"""XPlane without its lines and event metadata, which the reader walks itself."""
