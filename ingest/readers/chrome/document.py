"""A Chrome trace as a JSON document, read in pieces of whole events, so that no more than a piece is in memory.

A piece is cut where two events seem to meet, and parsed as an array of its own. That proves the cut, if the piece
begins with an event: only outside of strings and at the array's own depth can a closing bracket make whole JSON.
Where it is none, the strings and brackets of the piece are walked one by one. What stands before and behind the events
is parsed as the documents that it makes with an empty array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import msgspec

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.chrome.events import NOTHING, Event, EventParser, NotJsonError
from tracewarehouse.ingest.readers.files import CaptureFile

CHUNK = 4 << 20
"""Bytes of events parsed together; an event that is longer gets a larger piece of its own."""
_HEAD = 1 << 16  # bytes in which the first event is looked for first
_LOOK = 1 << 16  # bytes before the end of a piece, and behind the border of a range, in which two events meet

_SPACE = rb"[ \t\r\n]*+"
_OPENING = re.compile(rb"%b([\[{])" % _SPACE)
_EVENTS = re.compile(rb"%b:%b\[" % (_SPACE, _SPACE))
_BEGIN = re.compile(rb"%b(\{(?:%b\"[^\"\\]*+\")?)" % (_SPACE, _SPACE))
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"|["\[\]{},]', re.DOTALL)
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _Known(msgspec.Struct, gc=False, rename="camel"):
    """Members of a trace that are looked at; a million of others must not become objects."""

    trace_events: msgspec.Raw = NOTHING
    base_time_nanoseconds: msgspec.Raw = NOTHING
    schema_version: msgspec.Raw = NOTHING
    device_properties: msgspec.Raw = NOTHING


_known = msgspec.json.Decoder(_Known).decode


def _members(text: bytes) -> dict[str, msgspec.Raw]:
    """The members of a JSON object that are looked at, by name."""
    found = zip(_Known.__struct_encode_fields__, msgspec.structs.astuple(_known(text)), strict=True)
    return {name: value.copy() for name, value in found if bytes(value)}


class Document:
    """What stands before the events of a trace and behind them.

    Attributes:
        file: the trace.
        start: where the array of events begins, behind its bracket.
        is_list: the trace is nothing but that array.
        members: what is looked at beside the events at top level, as JSON; of those behind the events once they are
            read.
    """

    def __init__(self, file: CaptureFile, chunk: int = CHUNK) -> None:
        """Find the events.

        Args:
            file: the trace.
            chunk: bytes of events that are parsed together.

        Raises:
            MalformedError: there are none, or what stands before them is no JSON.
        """
        self.file, self.chunk = file, chunk
        bom = 3 if file.read(0, min(3, file.size)) == b"\xef\xbb\xbf" else 0
        size, start = _HEAD, None
        while True:
            text = file.read(bom, min(bom + size, file.size))
            opening = _OPENING.match(text)
            self.is_list = opening is not None and opening[1] == b"["
            start = opening.end() if opening and self.is_list else _start_of_events(text)
            if start is not None or not opening or bom + size >= file.size:
                break
            size *= 4
        if opening is None:
            found = repr(text[:20]) if text.strip() else "the end of the file"
            raise MalformedError(f"no Chrome trace: looked for JSON that starts with {{ or [, found {found}")
        self.members = {} if self.is_list else _members_before(text, start)
        self.start = bom + (start or 0)
        begin = _BEGIN.match(file.read(self.start, min(self.start + _LOOK, file.size)))
        first = re.escape(begin[1] if begin else b"{")
        self._border = re.compile(rb"\}%b,(?=%b%b)" % (_SPACE, _SPACE, first))

    def borders(self, places: Iterable[int]) -> list[int]:
        """Where events seem to begin that begin like the first, each behind one of the places; fewer than those."""
        found = []
        for place in places:
            seen = self._border.search(self.file.read(place, min(place + _LOOK, self.file.size)))
            if seen:
                found.append(place + seen.end())
        return sorted(set(found))

    def finish(self, end: int) -> None:
        """Check what stands behind the events, which end at `end`.

        Raises:
            MalformedError: it is no JSON, or names events again.
        """
        text = self.file.read(end, self.file.size)
        if self.is_list:
            rest = text.lstrip(b" \t\r\n")
            if rest:
                raise MalformedError(f"not one JSON text: looked for the end of the file, found {rest[:20]!r}")
            return
        try:
            behind = _members(b'{"":0' + text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            found = f"{text[:20]!r}, which is none: {error}" if text.strip() else "the end of the file; copy it again"
            raise MalformedError(
                f"not complete JSON: looked for ',' or '}}' and other members behind traceEvents, found {found}"
            ) from None
        if "traceEvents" in behind:
            raise MalformedError("ambiguous trace: two members are called traceEvents, expected one")
        self.members |= behind

    def likely_end(self, text: bytearray, *, is_last: bool) -> int:
        """Where the comma or bracket behind a piece seems to be; -1 where it is not seen."""
        if is_last:
            return text.rfind(b"]")
        low = max(0, len(text) - _LOOK)
        return max((border.end() for border in self._border.finditer(text, low)), default=0) - 1


class Pieces:
    """Events of a document, parsed piece by piece, as an iterator of their lists.

    Attributes:
        end: where they end that have been read: behind the comma of the last, or behind the bracket of the array.
        is_closed: they are the last of the array.
        is_open: they are the last of an array that nobody closed, as a program leaves it that was stopped.
    """

    def __init__(self, document: Document, parse: EventParser, low: int, high: int) -> None:
        """Prepare to read from an event at `low` up to `high`, or to the end of the event there."""
        self._document, self._parse, self._high = document, parse, high
        self.end = low
        self.is_closed = self.is_open = False
        self._refusal = ""

    def __iter__(self) -> Iterator[list[Event]]:
        """Parse the events.

        Raises:
            MalformedError: the bytes are not events.
            CaptureError: the file changed.
        """
        document, file = self._document, self._document.file
        size = document.chunk
        while not self.is_closed and (self.end < self._high or self._high == file.size):
            limit = self._high if size == document.chunk else file.size
            count = min(size, limit - self.end)
            text = bytearray(1 + count)  # with a place for the bracket that makes an array of the piece
            text[0] = ord("[")
            file.read_into(memoryview(text)[1:], self.end)
            is_last = self.end + count == file.size
            is_range = self.end + count == self._high and not is_last
            stop = count if is_range and text[count] == ord(",") else document.likely_end(text, is_last=is_last)
            events = self._parsed(text, stop) if stop > 0 else None
            if events is None:
                stop = _end_of_events(text)
                if stop < 0 and not is_last:
                    size = max(2 * size, 2 * count)  # one event is longer than the piece
                    continue
                if stop < 0:
                    stop = self._left_open(text)
                events = self._strictly_parsed(text, stop)
            self.is_closed = self.is_open or text[stop] == ord("]")
            if not events and not self.is_open and not (self.is_closed and self.end == document.start):
                raise self._refused(stop, "none")
            self.end += stop
            size = document.chunk
            yield events

    def _left_open(self, text: bytearray) -> int:
        """Close an array that ends with the file; returns where."""
        if not self._document.is_list:
            raise MalformedError(
                "truncated trace: looked for the end of traceEvents, found the end of the file; copy or record it again"
            )
        if self.end == self._document.start and not text[1:].strip():
            raise MalformedError("truncated trace: looked for events, found a lone [; copy or record it again")
        self.is_open = True
        text.append(ord("]"))
        return len(text) - 1

    def _strictly_parsed(self, text: bytearray, stop: int) -> list[Event]:
        """Events up to the comma or bracket at `stop`, which ends one."""
        if text[stop] == ord("}"):
            raise self._refused(stop, "'}'")
        events = self._parsed(text, stop)
        if events is None:
            raise self._refused(stop, self._refusal)
        return events

    def _refused(self, stop: int, found: str) -> MalformedError:
        at = f"in the bytes {self.end} to {self.end + stop}"
        return MalformedError(
            f"not complete JSON: looked for events, and ',' or ']' behind an event, {at}, found {found}"
        )

    def _parsed(self, text: bytearray, stop: int) -> list[Event] | None:
        """Events up to the comma or bracket at `stop`; None where they are none."""
        mark, text[stop] = text[stop], ord("]")
        try:
            return self._parse(memoryview(text)[: stop + 1])
        except NotJsonError as error:
            self._refusal = str(error)
            return None
        finally:
            text[stop] = mark


def _members_before(text: bytes, start: int | None) -> dict[str, msgspec.Raw]:
    """The members before the events; `start` is None where the whole text has none.

    Raises:
        MalformedError: it has none, or is no JSON.
    """
    try:
        members = _members(text if start is None else text[:start] + b"]}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not JSON: looked for an object with the member traceEvents, found {error}") from None
    if start is None and "traceEvents" in members:
        found = bytes(members["traceEvents"])[:20]
        raise MalformedError(f"no Chrome trace: looked for an array as traceEvents, found {found!r}")
    if start is None:
        names = ", ".join(repr(k[:40]) for k in list(_names(text))[:5])
        raise MalformedError(
            f"no Chrome trace: looked for the member traceEvents, found {f'only {names}' if names else 'none'}; "
            "give the profiler's .trace.json"
        )
    return members


def _start_of_events(text: bytes) -> int | None:
    """Where the array of the top-level member traceEvents begins, behind its bracket."""
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == b'"traceEvents"' and depth == 1 and (events := _EVENTS.match(text, token.end())):
            return events.end()
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
    return None


def _end_of_events(text: bytearray) -> int:
    """Where the last comma between two elements of an array is, or the bracket that ends it; -1 where neither is.

    The bracket may be one of an object, which is an error.
    """
    depth, comma = 0, -1
    for token in _TOKEN.finditer(text, 1):
        mark = text[token.start()]
        if mark == ord('"'):
            if token.end() == token.start() + 1:
                break  # the text ends inside a string
        elif mark in b"{[":
            depth += 1
        elif mark != ord(","):
            depth -= 1
            if depth < 0:
                return token.start()
        elif not depth:
            comma = token.start()
    return comma


__all__ = ["CHUNK", "Document", "Pieces"]
