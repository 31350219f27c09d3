"""Reads a compiled program: HLO text, or an HloProto, as compilers and `xla_dump_to` write them.

A program has no events. Its trace is one plane without lines. The plane's only event metadata is the module, with the
content as a stat, as profilers embed the programs of a capture. `ingest.hlo` reads the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal

from tracewarehouse.ingest.columns.profiler_names import METADATA_PLANE
from tracewarehouse.ingest.columns.records import EventBatch, EventMetadata, Line, Plane, Stat, StatKind
from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.readers.files import CaptureFile

MOST_BYTES = 1 << 30
"""Size from which a file is refused: programs of the largest models have some tens of MB, and are read as a whole."""
PROTO_STAT, TEXT_STAT = "Hlo Proto", "HLO text"
_TEXT_NAME = re.compile(rb"HloModule ([^\s,]+)")


class HloProgramTrace:
    """One compiled program."""

    origin_ns = None
    foreign = None

    def __init__(self, file: CaptureFile, format_: Literal["hlo_proto", "hlo_text"]) -> None:
        self.format: str = format_
        self.size, self.digest = file.size, file.digest
        self.hostnames: Sequence[str] = ()
        self.errors: Sequence[str] = ()
        self.warnings: Sequence[str] = ()
        if file.size > MOST_BYTES:
            raise MalformedError(f"{file.path}: a compiled program of {file.size} bytes; at most {MOST_BYTES} are read")
        content = file.read(0, file.size)
        self.is_text = format_ == "hlo_text"
        try:
            name = text_name(content) if self.is_text else proto_name(content)
            stat = (
                Stat(TEXT_STAT, StatKind.STRING, content.decode())
                if self.is_text
                else Stat(PROTO_STAT, StatKind.BYTES, content)
            )
        except (UnicodeDecodeError, MalformedError) as error:
            raise MalformedError(f"{file.path}: cannot be read as a compiled program: {shown(str(error))}") from None
        self.module_name = name
        self.planes = [Plane(METADATA_PLANE, event_metadata=[EventMetadata(name, stats=(stat,))], metadata_ids=[0])]

    @property
    def content(self) -> str | bytes:
        """The text, or the serialized HloProto."""
        value = self.planes[0].event_metadata[0].stats[0].value
        assert isinstance(value, str | bytes)  # noqa: S101
        return value

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield no events: a program has no lines."""
        return iter(())


def text_name(content: bytes) -> str:
    """Return the name of the module of HLO text.

    Raises:
        MalformedError: the text does not begin with a module's header.
    """
    header = _TEXT_NAME.match(content)
    if not header:
        raise MalformedError("the text does not begin with 'HloModule NAME'")
    return header[1].decode()


def proto_name(content: bytes) -> str:
    """Return the name of the module of a serialized HloProto.

    Raises:
        MalformedError: the bytes are no HloProto.
    """
    _, position = _varint(content, 1)
    length, begin = _varint(content, position + 1)
    if begin + length > len(content):
        raise MalformedError("the module's name runs past the end of the file")
    return content[begin : begin + length].decode()


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    value = 0
    for shift in range(0, 64, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise MalformedError("the module's length is not a number")
