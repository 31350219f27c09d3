"""Events of a Chrome trace as the JSON has them: numbers and arguments stay text until they are needed.

They are parsed strictly and fast where they can be, tolerantly where they must be. Tolerated are invalid UTF-8 and
halves of surrogate pairs (replaced by U+FFFD), control characters inside strings, NaN and Infinity (taken as strings)
and fields of an unusual type (taken as their JSON text).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

Id = int | float | str | None
"""What a trace may have as pid, tid or id."""
NOTHING = msgspec.Raw(b"")


class NotJsonError(Exception):
    """A piece is not a JSON array of objects: it is malformed, or was cut at a wrong place."""


class Event(msgspec.Struct, gc=False):
    """One element of traceEvents; fields that no table has (s, tts, cname, ...) are not looked at."""

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


_decode = msgspec.json.Decoder(list[Event]).decode


def parsed(array: bytes) -> tuple[list[Event], bool]:
    """The events of a JSON array, and whether bytes that are not UTF-8 were replaced.

    Raises:
        NotJsonError: the text is not an array of JSON objects.
    """
    is_replaced = False
    if not array.isascii():
        try:
            array.decode()
        except UnicodeDecodeError:
            array, is_replaced = array.decode("utf-8", "replace").encode(), True
    try:
        return _decode(array), is_replaced
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        elements = json.loads(
            array, strict=False, parse_float=verbatim, parse_int=verbatim, parse_constant=lambda name: name
        )
        return _decode(msgspec.json.encode([_usual(e) for e in elements])), is_replaced
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
        if not isinstance(value, str):
            event[field] = "" if value is None else msgspec.json.encode(value).decode()
    for field in ("pid", "tid", "id"):
        text = msgspec.json.encode(event.get(field))
        try:
            msgspec.json.decode(text, type=Id)
        except msgspec.MsgspecError:  # true, an array, a float without end
            event[field] = text.decode()
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
