"""Reads a compiled program the plain way: the whole content, with the name that protobuf's own parser finds."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from tracewarehouse.ingest.columns.profiler_names import METADATA_PLANE
from tracewarehouse.ingest.columns.records import StatKind
from tracewarehouse.ingest.protobuf import Field, message_classes
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane.plain import PlainMetadata, PlainPlane

_CLASSES = message_classes(
    "tracewarehouse.plain_hlo",
    {"HloProto": (Field(1, "module", "HloModule"),), "HloModule": (Field(1, "name", "bytes"),)},
)


def plain_planes(file: CaptureFile) -> Iterator[PlainPlane]:
    """Yield the one plane of a program, in text or as a proto.

    Raises:
        ValueError: it is neither.
    """
    content = file.read(0, file.size)
    if content.startswith(b"HloModule "):
        name, stat = content.split(maxsplit=2)[1].rstrip(b","), ("HLO text", StatKind.STRING, content)
    else:
        try:
            proto = _CLASSES["HloProto"].FromString(content)
        except DecodeError as error:
            raise ValueError(str(error)) from None
        name, stat = proto.module.name, ("Hlo Proto", StatKind.BYTES, content)
    metadata = PlainMetadata(0, name.decode(), "", [stat], [])
    yield PlainPlane(METADATA_PLANE, plane_id=0, metadata=[metadata])
