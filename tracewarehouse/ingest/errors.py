"""The errors that users can see; every message says what was looked for, what was found and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DUCKDB_INTERRUPTED = "Query interrupted"
"""The RuntimeError of DuckDB in place of what a signal raises while a statement runs in the main thread."""
MAX_SHOWN = 200
"""Most characters of a foreign text that an error message quotes."""


def printable(text: str) -> str:
    """Make a foreign text, such as one from a capture, safe to print on one line of a terminal.

    Control characters, line ends, invisible and bidirectional marks become escapes.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(text: str) -> str:
    """Return a foreign text as an error message quotes it: printable and not too long."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def found_instead(path: Path) -> str:
    """Return a phrase that says what is at a path instead of a file."""
    if path.is_symlink() and not path.exists():
        return "found a link that leads nowhere or to itself"
    return "found a folder" if path.is_dir() else "found a pipe or device"


@contextmanager
def system_refusals(what: str, kind: type[TracewarehouseError]) -> Iterator[None]:
    """Raise an error that says what cannot be done, such as "FILE: cannot be read", and why the system refuses it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from None


class TracewarehouseError(Exception):
    """Base of all errors that tracewarehouse raises on purpose."""


class CaptureError(TracewarehouseError):
    """A capture cannot be read: missing, empty, truncated, of another type, or contradicting itself."""


class MalformedError(CaptureError):
    """The bytes of a capture do not follow their format."""


class TooManyError(MalformedError):
    """A capture has more of something than any profiler writes; see `ingest.columns.bounds`."""


class NoCaptureError(CaptureError):
    """A location does not exist, or holds no capture."""


class WarehouseError(TracewarehouseError):
    """A warehouse cannot be read or written: absent, of another schema version, or damaged."""


class QueryError(TracewarehouseError):
    """A query was refused or failed."""


class SlowQueryError(QueryError):
    """A query takes longer than its limit of time."""


class StuckQueryError(SlowQueryError):
    """A query takes too long and does not stop when it is interrupted; its connection cannot be used any more."""


class MetricError(TracewarehouseError):
    """A metric definition is not valid, or a requested metric does not exist."""


class UnreadRunWarning(UserWarning):
    """Some runs of a warehouse cannot be read and are left out of its answers; all other runs are included."""


class SkippedEntryWarning(UserWarning):
    """A folder has entries that are left alone, such as links that lead out of it; all others are read."""
