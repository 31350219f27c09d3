"""`tw build` and `tw gc`."""

from __future__ import annotations

from typing import Annotated

import typer


def build(context: typer.Context) -> None:
    """Write warehouse.duckdb, which any DuckDB opens: tables, metrics, comments and the catalogue.

    It holds views over the runs of this moment. Needed for other tools only; the commands of tw do without it.
    """
    from tracewarehouse.warehouse import open_warehouse

    with open_warehouse(context.obj) as warehouse:
        typer.echo(warehouse.build())


def gc(
    context: typer.Context,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="Keep files younger than this, for readers that still use them.")
    ] = 24.0,
) -> None:
    """Remove the files of replaced runs and of interrupted ingests."""
    from tracewarehouse.warehouse import open_warehouse

    with open_warehouse(context.obj) as warehouse:
        for path in warehouse.collect_garbage(grace_hours * 3600):
            typer.echo(path)
