"""Reads a Chrome trace as a JSON document in pieces of whole events, so that only one piece is in memory.

A piece ends where two events seem to meet, and is parsed as an array of its own. This proves the end, because the piece
begins with an event: a closing bracket makes whole JSON only outside of strings and at the array's own depth. If a
piece is no array, its strings and brackets are walked one by one. The text before and after the events is parsed as a
document with an empty array in their place.

So several processes can read a large trace: each parses a part that seems to hold whole events, and does not end unless
its end is one of an event. If the first part begins where an event does, all do.

Events are JSON to the letter, with fields of the types of `Event`; anything else is refused. The array may lack its
end, as in the trace of a program that was stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, Generic, TypeVar

import msgspec

from tracewarehouse.ingest.errors import MalformedError
from tracewarehouse.ingest.readers.files import CaptureFile

CHUNK = 1 << 20
"""Bytes of events that are parsed together; a longer event gets a larger piece of its own."""
_HEAD = 1 << 16  # bytes that are searched first for the first event, and walked first for the end of one
_GAP = 1 << 8  # bytes that are searched for the comma between two events

_BLANK = b" \t\r\n"
_SPACE = rb"[ \t\r\n]*+"
_EVENTS = re.compile(rb"%b:%b\[" % (_SPACE, _SPACE))
_FIRST = re.compile(rb"%b(\{(?:%b\"[^\"\\]*+\")?)" % (_SPACE, _SPACE))
_COMMA = re.compile(rb"\}%b(,)%b\Z" % (_SPACE, _SPACE))
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"|["\[\]{},]', re.DOTALL)
_READ = b"[ ]"
"""Takes the place of the array of events when the rest is parsed."""
NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What is raised for a text that is no JSON of the expected types."""
_names = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Id = int | float | str | None
"""The values that a trace may have as pid, tid or id."""
NOTHING = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents; numbers and arguments stay text until they are needed."""

    ph: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    exact_dur: msgspec.Raw = NOTHING
    name: str = ""
    cat: str = ""
    args: msgspec.Raw = NOTHING
    id: Id = None


class Members(msgspec.Struct, gc=False, rename="camel"):
    """The members of a trace that are read, as JSON; a million others must not become objects."""

    trace_events: msgspec.Raw = NOTHING
    base_time_nanoseconds: msgspec.Raw = NOTHING


class _Metadata(msgspec.Struct, gc=False, frozen=True, rename="camel"):
    added_arguments: tuple[str, ...] = ()
    prediction: str | None = None


class _Head(msgspec.Struct, gc=False):
    metadata: _Metadata = _Metadata()


E = TypeVar("E")
M = TypeVar("M")
_decode = msgspec.json.Decoder(list[Event]).decode
_added = msgspec.json.Decoder(_Head).decode
_members = msgspec.json.Decoder(Members).decode


class Document(Generic[E]):
    """The events of a trace, and the members before and after them.

    Attributes:
        low: first byte of the next events.
    """

    def __init__(
        self,
        file: CaptureFile,
        chunk: int | None = None,
        decode: Callable[[bytes], list[E]] = _decode,  # type: ignore[assignment]
        part: tuple[int, int] | None = None,
    ) -> None:
        """Find the events; `chunk` is CHUNK unless it is given. `decode` turns an array into events.

        Of a part, a first byte and an end, there are only the events.
        """
        self._file, self._chunk, self._decode = file, chunk or CHUNK, decode
        self.low, self._high = self._start, _ = part or (0, file.size)
        self._mark, self._is_list, self._is_part = b",", False, part is not None
        if part:
            return
        bom = 3 if file.read(0, min(3, file.size)) == b"\xef\xbb\xbf" else 0
        size = _HEAD
        while True:
            text = file.read(bom, min(bom + size, file.size))
            mark = text.lstrip(_BLANK)[:1]
            if mark not in (b"[", b"{"):
                found = repr(text[:20]) if mark else "the end of the file"
                raise MalformedError(f"no Chrome trace: looked for JSON that starts with {{ or [, found {found}")
            self._is_list = mark == b"["
            start = text.index(b"[") + 1 if self._is_list else _start_of_events(text)
            if start is not None:
                break
            if bom + size >= file.size:
                raise _without_events(text)
            size *= 4
        self._start = self.low = bom + start  # start of the array, after its bracket, and of the next events
        self._head = text[: start - 1]

    def parts(self, size: int) -> list[tuple[int, int]]:
        """Return where parts of about `size` bytes of the next events seem to be, up to a rest; none if there is one.

        Once all events up to the end of a part are read, by a `Document` of each part, set `low` to it.
        """
        lows = [self.low]
        first = _FIRST.match(self._file.read(self.low, min(self.low + _GAP, self._file.size)))
        if not first or self._mark != b",":
            return []
        border = re.compile(rb"\}%b,(?=%b%b)" % (_SPACE, _SPACE, re.escape(first[1])))
        while (near := lows[0] + len(lows) * size) < self._file.size:
            if not (found := border.search(self._file.read(near, min(near + _HEAD, self._file.size)))):
                break
            lows.append(near + found.end())
        return list(pairwise(lows)) if len(lows) > 2 else []

    def pieces(self) -> Iterator[list[E]]:
        """Yield the events in file order; they can be read only once."""
        size = self._chunk
        while self._mark == b"," and not (self._is_part and self.low == self._high):
            low, is_last = self.low, self.low + size >= self._high
            text = self._file.read(low, min(low + size, self._high))
            try:
                events = self._parsed_to_seeming_end(text, is_last)
            except ValueError:
                stop = _end_of_events(text)
                if stop < 0 and not is_last:  # one event is longer than the text
                    size *= 2
                    continue
                if stop < 0 and (not self._is_list or (low == self._start and not text.strip())):
                    looked = "truncated trace: looked for events and the end of their array, found the end of the file"
                    raise MalformedError(f"{looked}; copy or record it again") from None
                stop = len(text) if stop < 0 else stop
                try:
                    events = self._parsed(text, stop)
                except ValueError as error:
                    raise MalformedError(
                        "not complete JSON: looked for events, and ',' or ']' behind an event, "
                        f"in the bytes {low} to {low + stop}, found {error}"
                    ) from None
            size = self._chunk
            yield events

    @property
    def is_ended(self) -> bool:
        """Whether the array of events is closed; a program that was stopped leaves it open."""
        return self._mark == b"]"

    def _parsed_to_seeming_end(self, text: bytes, is_last: bool) -> list[E]:
        """Return events up to a place that is found without walking the whole text; ValueError if none is an end."""
        if is_last:
            with suppress(ValueError):
                return self._parsed(text, text.rfind(b"," if self._is_part else b"]"))
        with suppress(ValueError):
            return self._parsed(text, _seeming_end(text))
        return self._parsed(text, _end_of_events(text[:_HEAD]))  # one whose first key no later event has

    def _parsed(self, text: bytes, stop: int) -> list[E]:
        """Return the events of a text up to the comma or bracket at `stop`, or to the text's end."""
        mark = text[stop : stop + 1]
        if stop < 0 or mark not in (b",", b"]", b""):
            raise ValueError(repr(mark.decode("latin-1")))
        array = b"[%b]" % text[:stop]
        if not array.isascii():
            array.decode()  # the parser does not look into values that it skips
        try:
            events = self._decode(array)
        except msgspec.MsgspecError as error:
            raise ValueError(str(error)) from None
        except RecursionError:
            raise ValueError("values nested too deeply") from None
        if not events and mark and not (mark == b"]" and self.low == self._start):
            raise ValueError("none")
        self.low += stop + len(mark)
        self._mark = mark
        return events

    @property
    def added_arguments(self) -> frozenset[str]:
        """Names of the arguments that `tw export chrome` added to those of the profiler, if it wrote the trace."""
        return frozenset(self._metadata.added_arguments)

    @property
    def prediction(self) -> str | None:
        """What `tw export chrome` says of a predicted run; None for any other."""
        return self._metadata.prediction

    @property
    def _metadata(self) -> _Metadata:
        try:
            return _Metadata() if self._is_list else _added(self._head + b"[]}").metadata
        except NO_JSON:  # the members that follow the events tell what is wrong
            return _Metadata()

    def members(self, decode: Callable[[bytes], Any] = _members) -> Any:
        """Return the members beside the events, once these have been read; `decode` makes what has `trace_events`."""
        text = self._file.read(self.low, self._file.size)
        if self._is_list and text.strip(_BLANK):
            raise MalformedError(
                f"not one JSON text: looked for the end of the file, found {text.strip(_BLANK)[:20]!r}"
            )
        rest = self._head + _READ + text
        try:
            if not rest.isascii():
                rest.decode()
            members = decode(b"{}" if self._is_list else rest)
        except NO_JSON as error:
            found = f"{text[:20]!r} and an error: {error}" if text.strip() else "the end of the file; copy it again"
            raise MalformedError(
                f"not complete JSON: looked for ',' or '}}' and other members around traceEvents, found {found}"
            ) from None
        if not self._is_list and bytes(members.trace_events) != _READ:
            raise MalformedError("ambiguous trace: two members are called traceEvents, expected one")
        return members


def _without_events(text: bytes) -> MalformedError:
    try:
        members = _names(text)
    except NO_JSON as error:
        return MalformedError(f"not JSON: looked for an object with the member traceEvents, found {error}")
    if events := bytes(members.get("traceEvents", b"")):
        return MalformedError(f"no Chrome trace: looked for an array as traceEvents, found {events[:20]!r}")
    names = ", ".join(repr(name[:40]) for name in list(members)[:5])
    return MalformedError(
        f"no Chrome trace: looked for the member traceEvents, found {f'only {names}' if names else 'none'}; "
        "give the profiler's .trace.json"
    )


def _start_of_events(text: bytes) -> int | None:
    """Return the position after the bracket that opens the top-level array traceEvents; None if there is none."""
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark == b'"traceEvents"' and depth == 1 and (events := _EVENTS.match(text, token.end())):
            return events.end()
        depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
    return None


def _seeming_end(text: bytes) -> int:
    """Return the position of what seems the last comma between an event and one like the first; -1 if there is none."""
    first = _FIRST.match(text)
    behind = text.rfind(first[1]) if first else -1
    comma = _COMMA.search(text, max(behind - _GAP, 0), max(behind, 0))
    return comma.start(1) if comma else -1


def _end_of_events(text: bytes) -> int:
    """Return the position of the last comma between two elements of an array, or of its last bracket; -1 if none.

    The bracket may belong to an object, which is an error.
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
