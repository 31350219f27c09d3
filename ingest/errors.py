"""The errors a user can meet; every message says what was looked for, what was found and what to do."""

from __future__ import annotations


class TracewarehouseError(Exception):
    """Base of all errors that tracewarehouse raises on purpose."""


class CaptureError(TracewarehouseError):
    """A capture cannot be read: missing, empty, truncated, of another type, or contradicting itself."""


class MalformedError(CaptureError):
    """The bytes of a capture are not what their format promises."""


class WarehouseError(TracewarehouseError):
    """A warehouse cannot be read or written: absent, of another schema version, or damaged."""


class QueryError(TracewarehouseError):
    """A query was refused or failed."""


class MetricError(TracewarehouseError):
    """A metric definition is not valid, or a metric was asked for that does not exist."""
