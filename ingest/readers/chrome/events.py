"""Events of a Chrome trace as the JSON has them: numbers and arguments stay text until they are needed."""

from __future__ import annotations

import json
from typing import Any

import msgspec

Id = int | float | str | None
"""What a trace may have as pid or tid."""
NOTHING = msgspec.Raw(b"")


class NotJsonError(Exception):
    """A piece is not a JSON array of objects: it is malformed, or was cut at a wrong place."""


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents; fields that no table has (id, s, tts, cname, ...) are not looked at."""

    ph: str = ""
    pid: Id = None
    tid: Id = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    name: str = ""
    cat: str = ""
    args: msgspec.Raw = NOTHING


_decode = msgspec.json.Decoder(list[Event]).decode


class EventParser:
    """Parses arrays of events: strictly and fast where it can, tolerantly where it must.

    Tolerated are invalid UTF-8 and halves of surrogate pairs (replaced by U+FFFD), control characters inside
    strings, NaN and Infinity (taken as strings) and fields of an unusual type (taken as their JSON text).

    Attributes:
        has_replaced: invalid UTF-8 was replaced somewhere.
    """

    def __init__(self) -> None:
        self.has_replaced = False

    def __call__(self, array: memoryview) -> list[Event]:
        """The events of a JSON array.

        Raises:
            NotJsonError: the text is not an array of JSON objects.
        """
        text, is_replaced = bytes(array), False
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError:
                text = text.decode("utf-8", "replace").encode()
                is_replaced = True
        events = self._events(text)
        self.has_replaced |= is_replaced
        return events

    def _events(self, text: bytes) -> list[Event]:
        try:
            return _decode(text)
        except (msgspec.MsgspecError, RecursionError):
            pass
        try:
            elements = json.loads(
                text, strict=False, parse_float=verbatim, parse_int=verbatim, parse_constant=lambda name: name
            )
            return _decode(msgspec.json.encode([_usual(e) for e in elements]))
        except RecursionError:
            raise NotJsonError("values nested too deeply") from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise NotJsonError(str(error)) from None


def verbatim(number: str) -> msgspec.Raw:
    """A JSON number that is written again as it was read."""
    return msgspec.Raw(number.encode())


def _usual(element: Any) -> dict[str, Any]:
    """An event whose fields have the types of `Event`."""
    if not isinstance(element, dict):
        raise NotJsonError("an element that is not an event (a JSON object)")
    event: dict[str, Any] = _clean(element)
    for field in ("ph", "name", "cat"):
        value = event.get(field, "")
        if value is None:
            del event[field]
        elif not isinstance(value, str):
            event[field] = msgspec.json.encode(value).decode()
    for field in ("pid", "tid"):
        value = event.get(field)
        if isinstance(value, msgspec.Raw):
            try:
                msgspec.json.decode(value, type=Id)
            except msgspec.MsgspecError:  # a float without end, say
                event[field] = bytes(value).decode()
        elif value is not None and not isinstance(value, str):
            event[field] = msgspec.json.encode(value).decode()
    return event


def _clean(value: Any) -> Any:
    """The value without halves of surrogate pairs, which no UTF-8 text can hold."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_clean(v) for v in value]
    if isinstance(value, dict):
        return {_clean(k): _clean(v) for k, v in value.items()}
    return value
