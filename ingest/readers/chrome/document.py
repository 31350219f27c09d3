"""A Chrome trace as a JSON document, read in pieces of whole events, so that no more than a piece is in memory.

A piece is cut where two events seem to meet, and parsed as an array of its own. That proves the cut, if the piece
begins with an event: only outside of strings and at the array's own depth can a closing bracket make whole JSON.
Where it is none, the strings and brackets of the piece are walked one by one. What stands before and behind the events
is parsed as the document that it makes with an empty array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.events import NOTHING, Event, NotJsonError, parsed
from tracewarehouse.ingest.readers.files import CaptureFile

CHUNK = 4 << 20
"""Bytes of events parsed together; an event that is longer gets a larger piece of its own."""
_HEAD = 1 << 16  # bytes in which the first event is looked for first
_LOOK = 1 << 16  # bytes in which two events are looked for that meet

_BLANK = b" \t\r\n"
_SPACE = rb"[ \t\r\n]*+"
_EVENTS = re.compile(rb"%b:%b\[" % (_SPACE, _SPACE))
_BEGIN = re.compile(rb"%b(\{(?:%b\"[^\"\\]*+\")?)" % (_SPACE, _SPACE))
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"|["\[\]{},]', re.DOTALL)
_READ = b"[ ]"
"""Stands for the array of events that has been read, where the rest is parsed."""
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Members(msgspec.Struct, gc=False, rename="camel"):
    """Members of a trace that are looked at; a million of others must not become objects."""

    trace_events: msgspec.Raw = NOTHING
    base_time_nanoseconds: msgspec.Raw = NOTHING
    schema_version: msgspec.Raw = NOTHING
    device_properties: msgspec.Raw = NOTHING


_members = msgspec.json.Decoder(_Members).decode


class Document:
    """What stands before the events of a trace and behind them.

    Attributes:
        file: the trace.
        chunk: bytes of events that are parsed together.
        start: where the array of events begins, behind its bracket.
        is_list: the trace is nothing but that array.
    """

    def __init__(self, file: CaptureFile, chunk: int | None = None) -> None:
        """Find the events; `chunk` is CHUNK unless it is given.

        Raises:
            MalformedError: there are none.
        """
        self.file, self.chunk = file, chunk or CHUNK
        bom = 3 if file.read(0, min(3, file.size)) == b"\xef\xbb\xbf" else 0
        size = _HEAD
        while True:
            text = file.read(bom, min(bom + size, file.size))
            mark = text.lstrip(_BLANK)[:1]
            if mark not in (b"[", b"{"):
                found = repr(text[:20]) if mark else "the end of the file"
                raise MalformedError(f"no Chrome trace: looked for JSON that starts with {{ or [, found {found}")
            self.is_list = mark == b"["
            start = text.index(b"[") + 1 if self.is_list else _start_of_events(text)
            if start is not None:
                break
            if bom + size >= file.size:
                raise _without_events(text)
            size *= 4
        self.start = bom + start
        self._head = text[: start - 1]
        begin = _BEGIN.match(file.read(self.start, min(self.start + _LOOK, file.size)))
        first = re.escape(begin[1] if begin else b"{")
        self._border = re.compile(rb"\}%b,(?=%b%b)" % (_SPACE, _SPACE, first))

    def border(self, low: int) -> int:
        """Where a piece ends that begins at `low`: where an event seems to begin that begins like the first.

        It is the first place for it behind the next multiple of `chunk`, so it does not depend on the pieces before.
        """
        place = low + self.chunk - (low - self.start) % self.chunk
        while place < self.file.size:
            seen = self._border.search(self.file.read(place, min(place + _LOOK, self.file.size)))
            if seen:
                return place + seen.end()
            place += max(self.chunk, _LOOK)
        return self.file.size

    def members(self, end: int) -> dict[str, bytes]:
        """What is looked at beside the events, which end at `end`: members at top level, as JSON.

        Raises:
            MalformedError: what stands beside the events is no JSON, or names events again.
        """
        text = self.file.read(end, self.file.size)
        if self.is_list:
            rest = text.lstrip(_BLANK)
            if rest:
                raise MalformedError(f"not one JSON text: looked for the end of the file, found {rest[:20]!r}")
            return {}
        try:
            values = map(bytes, msgspec.structs.astuple(_members(self._head + _READ + text)))
        except _NO_JSON as error:
            found = f"{text[:20]!r} and an error: {error}" if text.strip() else "the end of the file; copy it again"
            raise MalformedError(
                f"not complete JSON: looked for ',' or '}}' and other members around traceEvents, found {found}"
            ) from None
        members = {n: value for n, value in zip(_Members.__struct_encode_fields__, values, strict=True) if value}
        if members.pop("traceEvents") != _READ:
            raise MalformedError("ambiguous trace: two members are called traceEvents, expected one")
        return members


class Piece(NamedTuple):
    """Some of the events."""

    events: list[Event]
    end: int
    """Where they end: behind the comma of the last, or behind the bracket of the array."""
    mark: bytes
    """The comma or bracket there; nothing where nobody closed the array, as a program leaves it that was stopped."""
    is_replaced: bool
    """Bytes that are not UTF-8 were replaced."""


def pieces(document: Document, low: int, high: int) -> Iterator[Piece]:
    """The events from the one at `low` up to `high`, or to the end of the piece there.

    Raises:
        MalformedError: the bytes are not events.
        CaptureError: the file changed.
    """
    size = document.file.size
    end = document.border(low)
    while low < high or high == size:
        text = document.file.read(low, end)
        piece = _piece(document, low, text)
        if piece is None:  # one event is longer than the text
            end = min(low + 2 * len(text), size)
            continue
        yield piece
        if piece.mark != b",":
            return
        low = piece.end
        end = document.border(low)


def _piece(document: Document, low: int, text: bytes) -> Piece | None:
    """The events at `low` of which the text has the end; None if it has none."""
    is_last = low + len(text) == document.file.size
    try:
        return _parsed(document, low, text, text.rfind(b"]") if is_last else len(text) - 1)
    except NotJsonError:
        stop = _end_of_events(text)
    if stop < 0 and not is_last:
        return None
    if stop < 0 and not document.is_list:
        raise MalformedError(
            "truncated trace: looked for the end of traceEvents, found the end of the file; copy or record it again"
        )
    if stop < 0 and low == document.start and not text.strip():
        raise MalformedError("truncated trace: looked for events, found a lone [; copy or record it again")
    stop = len(text) if stop < 0 else stop
    try:
        return _parsed(document, low, text, stop)
    except NotJsonError as error:
        raise MalformedError(
            "not complete JSON: looked for events, and ',' or ']' behind an event, "
            f"in the bytes {low} to {low + stop}, found {error}"
        ) from None


def _parsed(document: Document, low: int, text: bytes, stop: int) -> Piece:
    """The events of a text up to the comma or bracket at `stop`, or up to its end."""
    mark = text[stop : stop + 1]
    if stop < 0 or mark not in (b",", b"]", b""):
        raise NotJsonError(repr(mark.decode("latin-1")))
    events, is_replaced = parsed(b"[%b]" % text[:stop])
    if not events and mark and not (mark == b"]" and low == document.start):
        raise NotJsonError("none")
    return Piece(events, low + stop + len(mark), mark, is_replaced)


def _without_events(text: bytes) -> MalformedError:
    """What is wrong with a document that has no array of events."""
    try:
        events = bytes(_members(text).trace_events)
        names = ", ".join(repr(name[:40]) for name in list(_names(text))[:5])
    except _NO_JSON as error:
        return MalformedError(f"not JSON: looked for an object with the member traceEvents, found {error}")
    if events:
        return MalformedError(f"no Chrome trace: looked for an array as traceEvents, found {events[:20]!r}")
    return MalformedError(
        f"no Chrome trace: looked for the member traceEvents, found {f'only {names}' if names else 'none'}; "
        "give the profiler's .trace.json"
    )


def _start_of_events(text: bytes) -> int | None:
    """Where the array of the top-level member traceEvents begins, behind its bracket."""
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == b'"traceEvents"' and depth == 1 and (events := _EVENTS.match(text, token.end())):
            return events.end()
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
    return None


def _end_of_events(text: bytes) -> int:
    """Where the last comma between two elements of an array is, or the bracket that ends it; -1 where neither is.

    The bracket may be one of an object, which is an error.
    """
    depth, comma = 0, -1
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b'"':
                break  # the text ends inside a string
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
                if depth < 0:
                    return token.start()
            case b"," if not depth:
                comma = token.start()
    return comma
