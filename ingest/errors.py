"""The errors a user can meet; every message says what was looked for, what was found and what to do."""

from __future__ import annotations

MAX_SHOWN = 1000
"""Most characters of a foreign text that an error repeats."""


def printable(text: str) -> str:
    """A text that a capture or a file may have made up, on one line and without anything that a terminal obeys.

    Control characters, line ends, invisible and bidirectional marks become escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(text: str) -> str:
    """A foreign text as an error repeats it: printable, and not too long."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


class TracewarehouseError(Exception):
    """Base of all errors that tracewarehouse raises on purpose."""


class CaptureError(TracewarehouseError):
    """A capture cannot be read: missing, empty, truncated, of another type, or contradicting itself."""


class MalformedError(CaptureError):
    """The bytes of a capture are not what their format promises."""


class NoCaptureError(CaptureError):
    """There is nothing at a location, or nothing that is a capture."""


class WarehouseError(TracewarehouseError):
    """A warehouse cannot be read or written: absent, of another schema version, or damaged."""


class QueryError(TracewarehouseError):
    """A query was refused or failed."""


class MetricError(TracewarehouseError):
    """A metric definition is not valid, or a metric was asked for that does not exist."""


class UnreadRunWarning(UserWarning):
    """Runs of a warehouse cannot be read and are left out of its answers; all others are there."""
