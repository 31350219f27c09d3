"""Reads a compiled program: HLO text, or an HloProto, as compilers and `xla_dump_to` write them.

A program has no events. Its trace is one plane without lines. The plane's only event metadata is the module, with the
content as a stat, as profilers embed the programs of a capture. `ingest.hlo` reads the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracewarehouse.ingest.columns.profiler_names import METADATA_PLANE
from tracewarehouse.ingest.columns.records import EventBatch, EventMetadata, Line, Plane, Stat, StatKind, Trace
from tracewarehouse.ingest.errors import MalformedError, shown
from tracewarehouse.ingest.readers.files import CaptureFile
from tracewarehouse.ingest.readers.xplane import wire

MOST_BYTES = 1 << 30
"""Size from which a file is refused: programs of the largest models have some tens of MB, and are read as a whole."""
_TEXT_NAME = re.compile(rb"HloModule ([^\s,]+)")


class HloProgramTrace(Trace):
    """One compiled program; `content` is its text, or the serialized HloProto."""

    def __init__(self, file: CaptureFile) -> None:
        self._file = file
        self.size = file.size
        if file.size > MOST_BYTES:
            raise MalformedError(f"{file.path}: a compiled program of {file.size} bytes; at most {MOST_BYTES} are read")
        content = file.read(0, file.size)
        is_text = content.startswith(b"HloModule ")
        self.format = "hlo_text" if is_text else "hlo_proto"
        try:
            self.module_name = text_name(content) if is_text else proto_name(content)
            self.content: str | bytes = content.decode() if is_text else content
        except (UnicodeDecodeError, MalformedError) as error:
            raise MalformedError(f"{file.path}: cannot be read as a compiled program: {shown(str(error))}") from None
        name, kind = ("HLO text", StatKind.STRING) if is_text else ("Hlo Proto", StatKind.BYTES)
        metadata = EventMetadata(self.module_name, stats=(Stat(name, kind, self.content),))
        self.planes = [Plane(METADATA_PLANE, event_metadata=[metadata], metadata_ids=[0])]

    @property
    def digest(self) -> str:
        """SHA-256 of the uncompressed bytes, in hex."""
        return self._file.digest

    def batches(self, plane: Plane, line: Line) -> Iterator[EventBatch]:
        """Yield no events: a program has no lines."""
        return iter(())


def open_file(file: CaptureFile) -> HloProgramTrace:
    """Open a compiled program."""
    return HloProgramTrace(file)


def text_name(content: bytes) -> str:
    """Return the name of the module of HLO text."""
    header = _TEXT_NAME.match(content)
    if not header:
        raise MalformedError("the text does not begin with 'HloModule NAME'")
    return header[1].decode()


def proto_name(content: bytes) -> str:
    """Return the name of the module of a serialized HloProto."""
    _, position = wire.read_varint(content, 1, len(content))
    length, begin = wire.read_varint(content, position + 1, len(content))
    if begin + length > len(content):
        raise MalformedError("the module's name runs past the end of the file")
    return content[begin : begin + length].decode()
