"""`tw build`, `tw audit` and `tw gc`."""

from __future__ import annotations

from typing import Annotated

import typer


def build(context: typer.Context) -> None:
    """Write warehouse.duckdb, which any DuckDB opens: tables, metrics, comments and the catalogue.

    It holds views over the runs of this moment. Needed for other tools only; the commands of tw do without it.
    """
    with context.obj.open() as warehouse:
        typer.echo(warehouse.build())


def audit(
    context: typer.Context,
    run: Annotated[list[str] | None, typer.Argument(help="Run ids, beginnings of them, or names; all without.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most rows to print of one audit and run.")] = 20,
) -> None:
    """Look for what must never be so, such as overlapping ops on a serial line; exit code 1 when something is found."""
    from tracewarehouse.text_table import draw

    with context.obj.open() as warehouse:
        findings = warehouse.audit(run, limit)
    for finding in findings:
        typer.echo(f"{finding.audit}: {finding.description}")
        for line in draw(list(finding.columns), list(finding.rows)):
            typer.echo(line)
        typer.echo()
    if findings:
        raise typer.Exit(1)
    typer.echo("no audit found anything", err=True)


def gc(
    context: typer.Context,
    grace_hours: Annotated[
        float, typer.Option(min=0, help="Keep files younger than this, for readers that still use them.")
    ] = 24.0,
) -> None:
    """Remove the files of replaced runs and of interrupted ingests."""
    with context.obj.open() as warehouse:
        for path in warehouse.collect_garbage(grace_hours * 3600):
            typer.echo(path)
