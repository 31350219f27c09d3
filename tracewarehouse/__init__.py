"""Queries, compares and exports the warehouse of traces.

    import tracewarehouse as tw

    with tw.open("warehouse") as wh:
        wh.query("SELECT kind, count(*) FROM main.collectives GROUP BY kind").rows()

    tw.query("run.xplane.pb", "SELECT * FROM metrics.step_time")

Everything is imported on first use, so that `import tracewarehouse` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracewarehouse.ingest.capture.locations import sample
    from tracewarehouse.ingest.errors import (
        CaptureError,
        MetricError,
        QueryError,
        SkippedEntryWarning,
        TracewarehouseError,
        UnreadRunWarning,
        WarehouseError,
    )
    from tracewarehouse.opened import open_path as open  # noqa: A004  tw.open
    from tracewarehouse.opened import query
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.warehouse import Warehouse

__all__ = [
    "CaptureError",
    "MetricError",
    "QueryError",
    "QueryResult",
    "SkippedEntryWarning",
    "TracewarehouseError",
    "UnreadRunWarning",
    "Warehouse",
    "WarehouseError",
    "open",
    "query",
    "sample",
]

_HOMES = {name: "ingest.errors" for name in __all__ if name.endswith(("Error", "Warning"))} | {
    "QueryResult": "queries.result",
    "Warehouse": "warehouse",
    "open": "opened",
    "query": "opened",
    "sample": "ingest.capture.locations",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tracewarehouse.ingest.version import VERSION

        return VERSION
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_HOMES[name]}")
    value = getattr(module, "open_path" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
