"""Completes names of runs and of metrics when the user presses Tab."""

from __future__ import annotations

from pathlib import Path

import typer


def runs(context: typer.Context, incomplete: str) -> list[str]:
    """Names of the runs that begin with what was typed; none if there is no warehouse."""
    from tracewarehouse.ingest.errors import TracewarehouseError
    from tracewarehouse.ingest.lake.lake import Lake

    try:
        listed, _ = Lake(Path(str(context.find_root().params.get("warehouse")))).listing()
    except TracewarehouseError:
        return []
    return sorted({r.name for r in listed if r.name.startswith(incomplete)})


def metrics(incomplete: str) -> list[str]:
    """Names of the package's metrics that complete a name, or the last name of a list such as `ttft,tp`."""
    from tracewarehouse.definitions.reading import SQL

    before, comma, last = incomplete.rpartition(",")
    names = {p.stem.rpartition("_v")[0] for p in SQL.rglob("*_v[0-9]*.sql")}
    return sorted(f"{before}{comma}{n}" for n in names if n.startswith(last))
