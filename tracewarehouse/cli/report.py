"""`tw report`: the page that draws runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.cli.options import RunsArgument
from tracewarehouse.ingest.errors import WarehouseError


def report(
    context: typer.Context,
    run: RunsArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML page about runs: timeline, communication, metrics."""
    with context.obj.open() as warehouse:
        runs = [warehouse.run(r) for r in run] if run else warehouse.lake.runs()
        if not runs:
            raise WarehouseError(f"the warehouse {context.obj} is empty; add runs with `tw ingest CAPTURE`")
        from tracewarehouse.dashboards.report import write_report

        write_report(warehouse, list(dict.fromkeys(r.run_id for r in runs)), output)
    typer.echo(output)
