"""Cuts a Chrome trace into pieces of whole events, so that no more than a piece is in memory at a time.

A piece is taken up to a place that looks like the border of two events and is then parsed as an array of its
own. That proves the cut: only outside of any string and at the array's own depth can a closing bracket make a
whole JSON text. Where the guess fails, the strings and brackets of the piece are walked one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from tracewarehouse.ingest.errors import MalformedError

CHUNK = 4 << 20
"""Bytes of events parsed together; an event that is longer gets a larger piece of its own."""
_FIRST_CHUNK = 1 << 16
"""The first piece is small and each next one twice as large: what is learned of it makes the others cheaper."""
MARGIN = 64
"""Spaces before and behind an array that is to be parsed, for those who look at more than one byte at a time."""
_LOOK = 1 << 12  # bytes looked at first outside of the events
_KEPT = 1 << 20  # longest value beside the events that is handed on
_BEGINNING, _ENDING = b" " * MARGIN + b"[", b"]" + b" " * MARGIN
_LOW = len(_BEGINNING)

_BORDER = re.compile(rb"\}[ \t\r\n]*+(?=,[ \t\r\n]*+\{)")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"', re.DOTALL)
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*"|["\[\]{},]', re.DOTALL)
_BEGIN = re.compile(rb"[ \t\r\n]*+(\{[ \t\r\n]*+\"[^\"\\]*+\")")
_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[-+.0-9A-Za-z]++")

T = TypeVar("T")
V = TypeVar("V")


class NotJsonError(Exception):
    """A piece is not a JSON array: it is malformed, or was cut at a wrong place."""


class Chunks(Generic[T]):
    """The events of a Chrome trace, parsed piece by piece.

    Attributes:
        members: what stands beside the events at top level, short values only: key to JSON text.
        is_open: the file is a bare array that nobody closed, as a program leaves it that was stopped.
    """

    def __init__(
        self,
        read_into: Callable[[memoryview, int], None],
        size: int,
        parse: Callable[[memoryview], T],
        chunk: int = CHUNK,
        elsewhere: Callable[[Chunks[T], int], tuple[int, int]] | None = None,
    ) -> None:
        """Prepare to read events, at least `chunk` bytes at a time.

        Args:
            read_into: fills a buffer with what the file has from a place on.
            size: bytes of the file.
            parse: gives the events of an array, whose text has `MARGIN` spaces on both sides and is soon overwritten;
                raises NotJsonError where it is none.
            chunk: bytes of events that are parsed together.
            elsewhere: asked between two pieces, with these chunks and where the next event begins; says where to go on,
                behind events that someone else has read, and where a piece had better end.
        """
        self._read_into, self._parse, self._chunk = read_into, parse, chunk
        self._size = size
        # used again and again, as pages of new memory cost more than what is read into them
        self._window = bytearray(_BEGINNING)
        self._elsewhere = elsewhere or (lambda _, at: (at, size))
        self.members: dict[str, bytes] = {}
        self.is_open = False

    def __iter__(self) -> Iterator[T]:
        """Parse the file from start to end.

        Raises:
            MalformedError: it is not JSON, not a trace, or ends too early.
        """
        at = self._skip(3 if self._bytes(0, 3) == b"\xef\xbb\xbf" else 0)
        match self._bytes(at, at + 1):
            case b"[":
                at = yield from self._array(at + 1, may_be_open=True)
            case b"{":
                at = yield from self._object(at + 1)
            case _:
                raise MalformedError(f"no Chrome trace: looked for JSON that starts with {{ or [, {self._found(at)}")
        at = self._skip(at)
        if at < self._size:
            raise MalformedError(f"not one JSON text: looked for the end of the file, {self._found(at)}")

    def _object(self, at: int) -> Generator[T, None, int]:
        """The members of the top-level object; returns where it ends."""
        has_events = False
        at = self._skip(at)
        mark = self._bytes(at, at + 1) if self._bytes(at, at + 1) == b"}" else b","
        while mark == b",":
            end = self._match(_STRING, at)
            if end is None:
                raise MalformedError(f"not complete JSON: looked for the name of a member, {self._found(at)}")
            key = self._checked(at, end, str)
            at = self._skip(end)
            if self._bytes(at, at + 1) != b":":
                raise MalformedError(f"not complete JSON: looked for ':' behind {key[:40]!r}, {self._found(at)}")
            at = self._skip(at + 1)
            if key != "traceEvents":
                end = self._value_end(at)
                self._checked(at, end, msgspec.Raw)
                if end - at <= _KEPT:
                    self.members[key] = self._bytes(at, end)
                at = end
            elif has_events:
                raise MalformedError("ambiguous trace: two members are called traceEvents, expected one")
            elif self._bytes(at, at + 1) != b"[":
                raise MalformedError(f"no Chrome trace: looked for an array as traceEvents, {self._found(at)}")
            else:
                has_events = True
                at = yield from self._array(at + 1, may_be_open=False)
            at = self._skip(at)
            mark = self._bytes(at, at + 1)
            if mark not in (b",", b"}"):
                raise MalformedError(f"not complete JSON: looked for ',' or '}}' behind a member, {self._found(at)}")
            at = self._skip(at + 1)
        if not has_events:
            raise MalformedError(
                "no Chrome trace: looked for the member traceEvents, found "
                + (f"only {', '.join(repr(k[:40]) for k in list(self.members)[:5])}" if self.members else "none")
                + "; give the profiler's .trace.json"
            )
        return at

    def _array(self, at: int, *, may_be_open: bool) -> Generator[T, None, int]:
        """The events of an array whose elements start at `at`; returns where the array ends."""
        usual = size = min(self._chunk, _FIRST_CHUNK)
        is_first = True
        while True:
            high = at + size
            if size == usual:
                at, limit = self._elsewhere(self, at)
                high = min(at + size, limit)
            count = self._fill(at, high)
            is_last = at + count >= self._size
            stop, events = self._guess(count, is_last=is_last)
            if events is None:
                stop = _walk(self._window, count)
                if stop < 0 and not is_last:
                    size *= 2  # one event is longer than the window
                    continue
                if stop < 0:
                    yield from self._rest(at, count, is_first=is_first, may_be_open=may_be_open)
                    return self._size
                events = self._parsed(at, stop)
            is_end = self._window[_LOW + stop] == ord("]")
            if self._window[_LOW + stop] == ord("}"):
                raise MalformedError(
                    f"not complete JSON: looked for ',' or ']' behind an event, {self._found(at + stop)}"
                )
            if self._is_empty(stop) and not (is_first and is_end):
                raise MalformedError(f"not complete JSON: looked for an event, {self._found(self._skip(at))}")
            yield events
            usual = size = min(self._chunk, 2 * usual)
            at, is_first = at + stop + 1, False
            if is_end:
                return at

    def range(self, low: int, high: int) -> Iterator[T]:
        """The events of [low:high], provided that an event begins at `low`.

        Raises:
            NotJsonError: the bytes are not whole events, each with a comma behind it.
        """
        at = low
        size = (high - low) // max(1, round((high - low) / self._chunk))  # alike, so that none is small
        while at < high:
            count = self._fill(at, high if high - at < size + size // 8 else at + size)
            stop, events = count - 1, None
            if at + count < high:
                stop, events = self._guess(count, is_last=False)
                if events is None:
                    stop = _walk(self._window, count)
            if stop < 0 or self._window[_LOW + stop] != ord(",") or self._is_empty(stop):
                raise NotJsonError("no event with a comma behind it")
            yield self._parse_to(stop) if events is None else events
            at += stop + 1

    def borders(self, at: int, places: Iterable[int]) -> list[int]:
        """Likely beginnings of events, like that at `at`, each the first behind one of the places; fewer than those."""
        begin = _BEGIN.match(self._bytes(at, at + _LOOK))
        found = []
        if begin:
            border = re.compile(rb"\}[ \t\r\n]*,(?=[ \t\r\n]*" + re.escape(begin[1]) + rb")")
            for place in places:
                seen = border.search(self._bytes(place, place + _FIRST_CHUNK))
                if seen:
                    found.append(place + seen.end())
        return sorted(set(found))

    def _guess(self, count: int, *, is_last: bool) -> tuple[int, T | None]:
        """Events up to a likely border, and where the comma or bracket behind them is; None if it is no border."""
        end = _LOW + count
        if is_last:
            stop = self._window.rfind(b"]", _LOW, end)
        else:
            low = max(_LOW, end - _FIRST_CHUNK)
            stop = self._window.rfind(b"},{", low, end) + 1
            if not stop:
                stop = max((border.end() for border in _BORDER.finditer(self._window, low, end)), default=0)
            if not stop:
                stop = self._window.rfind(b"},{", _LOW, low) + 1
        stop -= _LOW
        if stop <= 0:
            return -1, None
        try:
            return stop, self._parse_to(stop)
        except NotJsonError:
            return -1, None

    def _parsed(self, at: int, stop: int) -> T:
        try:
            return self._parse_to(stop)
        except NotJsonError as error:
            raise MalformedError(
                f"not complete JSON: looked for events in the bytes {at} to {at + stop}, found {error}"
            ) from None

    def _rest(self, at: int, count: int, *, is_first: bool, may_be_open: bool) -> Iterator[T]:
        """What stands behind the last comma of an array without an end."""
        if not may_be_open:
            raise MalformedError(
                f"truncated trace: looked for the end of traceEvents, found the end of the file at byte {self._size}; "
                "copy or record it again"
            )
        self.is_open = True
        if not self._is_empty(count):
            yield self._parsed(at, count)
        elif is_first:
            raise MalformedError("truncated trace: looked for events, found a lone [; copy or record it again")

    def _fill(self, low: int, high: int) -> int:
        """Fill the window with [low:high], as far as the file goes; returns how many bytes that are."""
        count = min(high, self._size) - low
        if len(self._window) < _LOW + count + len(_ENDING):
            self._window = bytearray(_BEGINNING) + bytearray(count + len(_ENDING))
        self._read_into(memoryview(self._window)[_LOW : _LOW + count], low)
        return count

    def _is_empty(self, stop: int) -> bool:
        """Whether there is nothing in the window before `stop`."""
        return _SPACE.fullmatch(self._window, _LOW, _LOW + stop) is not None

    def _parse_to(self, stop: int) -> T:
        """The events that stand in the window before `stop`, parsed where they are."""
        end = _LOW + stop
        behind = self._window[end : end + len(_ENDING)]
        self._window[end : end + len(_ENDING)] = _ENDING
        try:
            return self._parse(memoryview(self._window)[: end + len(_ENDING)])
        finally:
            self._window[end : end + len(_ENDING)] = behind

    def _value_end(self, at: int) -> int:
        """End of the JSON value that starts at `at`, by its brackets alone."""
        if self._bytes(at, at + 1) not in (b"{", b"["):
            end = self._match(_STRING, at) or self._match(_SCALAR, at)
            if end is None:
                raise MalformedError(f"not complete JSON: looked for a value, {self._found(at)}")
            return end
        size = _LOOK
        while True:
            window = self._bytes(at, at + size)
            end = _close(window)
            if end is not None:
                return at + end
            if at + size >= self._size:
                raise MalformedError(
                    f"truncated trace: looked for the end of the value at byte {at}, found the end of the file; "
                    "copy or record it again"
                )
            size *= 2

    def _match(self, pattern: re.Pattern[bytes], at: int) -> int | None:
        """Where a match that starts at `at` ends."""
        size = _LOOK
        while True:
            window = self._bytes(at, at + size)
            found = pattern.match(window)
            is_whole = at + size >= self._size or (found.end() < len(window) if found else window[:1] != b'"')
            if is_whole:
                return at + found.end() if found else None
            size *= 2

    def _checked(self, start: int, end: int, kind: type[V]) -> V:
        try:
            return msgspec.json.decode(self._bytes(start, end), type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedError(f"not JSON: the value at byte {start}: {error}") from None

    def _bytes(self, low: int, high: int) -> bytes:
        low, high = min(low, self._size), min(high, self._size)
        found = bytearray(high - low)
        self._read_into(memoryview(found), low)
        return bytes(found)

    def _skip(self, at: int) -> int:
        return self._match(_SPACE, at) or at

    def _found(self, at: int) -> str:
        if at >= self._size:
            return "found the end of the file"
        return f"found {self._bytes(at, at + 20)!r} at byte {at}"


def _walk(window: bytearray, count: int) -> int:
    """Where the last comma between two elements of an array is, or the bracket that ends it; -1 where neither is.

    The bracket may be one of an object, which is an error.
    """
    comma = -1
    for depth, start in _marks(window, _LOW, _LOW + count):
        if depth < 0:
            return start - _LOW
        if not depth and window[start] == 44:
            comma = start - _LOW
    return comma


def _close(window: bytes) -> int | None:
    """Where the array or object that starts the window ends."""
    return next(
        (start + 1 for depth, start in _marks(window, 0, len(window)) if not depth and window[start] in b"]}"), None
    )


def _marks(window: bytes | bytearray, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Commas and brackets outside of strings: the depth behind them and where they are."""
    depth = 0
    for token in _TOKEN.finditer(window, low, high):
        start = token.start()
        mark = window[start]
        if mark == 34:
            if token.end() - start == 1:
                return  # the window ends inside a string
            continue
        if mark in b"{[":
            depth += 1
        elif mark != 44:
            depth -= 1
        yield depth, start
