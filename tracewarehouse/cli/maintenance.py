"""`tw build`, `tw audit`, `tw fsck`, `tw remove` and `tw gc`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracewarehouse.cli.options import FormatOption, OutputOption, RunsArgument
from tracewarehouse.cli.output import put

if TYPE_CHECKING:
    from tracewarehouse.queries.result import QueryResult
    from tracewarehouse.warehouse import Warehouse


def build(context: typer.Context) -> None:
    """Write warehouse.duckdb, which any DuckDB opens: tables, metrics, comments and the catalogue.

    It holds the manifests and small tables of all runs, and views of the other tables. Ingest keeps it up to date, and
    makes it once there are 64 runs: then it answers questions about all runs. It can be deleted at any time.
    """
    with context.obj.open() as warehouse:
        typer.echo(warehouse.build())


def audit(
    context: typer.Context,
    run: RunsArgument = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many rows per audit and run.")] = 20,
) -> None:
    """Look for what must never be true, such as overlapping ops on a serial line; exit with 1 if anything is found."""
    from tracewarehouse.queries.text_table import draw

    with context.obj.open() as warehouse:
        findings = warehouse.audit([r.run_id for r in warehouse.find(run)] if run else None, limit)
    for finding in findings:
        typer.echo(f"{finding.audit}: {finding.description}")
        for line in draw(list(finding.columns), list(finding.rows)):
            typer.echo(line)
        typer.echo()
    if findings:
        raise typer.Exit(1)
    typer.echo("no audit found anything", err=True)


def fsck(
    context: typer.Context,
    captures: Annotated[
        list[Path] | None, typer.Argument(help="More captures, after --against.", show_default=False)
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="CAPTURE", help="Compare captures with their runs, line by line."),
    ] = None,
    output_format: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Verify every byte of the warehouse and say what to do; exit with 1 if something is wrong.

    With --against CAPTURE..., decode the captures with another parser and prove that their runs have every event and
    stat. Prints one row per line of a capture.
    """
    if captures and not against:
        raise typer.BadParameter("captures go with --against; `tw fsck` alone verifies the warehouse")
    with context.obj.open() as warehouse:
        paths = [*(against or []), *(captures or [])]
        result, remarks, is_well = _compared(warehouse, paths) if paths else _verified(warehouse)
    if len(result) or output_format or output:
        put(context, result, output_format, output)
    for remark in remarks:
        typer.echo(remark, err=True)
    if not is_well:
        raise typer.Exit(1)


def _verified(warehouse: Warehouse) -> tuple[QueryResult, list[str], bool]:
    from tracewarehouse.queries.result import QueryResult, TypedRows

    problems = warehouse.fsck()
    columns = ("run_id", "run", "file", "severity", "problem", "action")
    rows = [(p.run_id, p.run, p.file, "error" if p.is_error else "note", p.sentence, p.action) for p in problems]
    listed = QueryResult(TypedRows(columns, ["VARCHAR"] * len(columns), rows))
    return listed, [] if problems else ["nothing is wrong"], not any(p.is_error for p in problems)


def _compared(warehouse: Warehouse, paths: list[Path]) -> tuple[QueryResult, list[str], bool]:
    from tracewarehouse.ingest.devices.joined_hosts import find_whole_captures
    from tracewarehouse.queries.result import QueryResult, TypedRows

    comparisons = [warehouse.against(c) for c in find_whole_captures(*paths)]
    columns = ("run_id", "host", "plane", "line", "events", "events_in_run", "stats", "is_equal")
    types = [*["VARCHAR"] * 4, *["BIGINT"] * 3, "BOOLEAN"]
    rows = [
        (c.run_id, n.host, n.plane, n.line, n.events, n.events_in_run, n.stats, n.is_equal)
        for c in comparisons
        for n in c.counts
    ]
    remarks = [f"run {c.run_id}: {d}" for c in comparisons for d in c.differences]
    for c in comparisons:
        counts = f"{c.events:,} events and {c.stats:,} stats on {len(c.counts)} lines of {c.planes} planes"
        remarks.append(
            f"run {c.run_id}: {counts}, {f'{len(c.differences)} differences' if c.differences else 'all equal'}"
        )
    return QueryResult(TypedRows(columns, types, rows)), remarks, not any(c.differences for c in comparisons)


def remove(
    context: typer.Context,
    run: Annotated[
        list[str], typer.Argument(help="Run ids, beginnings of ids, or names.", metavar="RUN...", show_default=False)
    ],
) -> None:
    """Forget runs. `tw gc` deletes their files later, because readers may still use them."""
    with context.obj.open() as warehouse:
        for removed in warehouse.remove(run):
            typer.echo(f"{removed.run_id}\t{removed.name}\tremoved")


def gc(
    context: typer.Context,
    grace_hours: Annotated[
        float,
        typer.Option(
            min=0,
            help="Keep versions that were replaced within this many hours, for readers that still use them.",
        ),
    ] = 24.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Print what would be removed, and remove nothing.")
    ] = False,
) -> None:
    """Remove what interrupted commands left and the files of replaced runs, and print what is removed.

    Temporary folders of killed processes are removed too, whatever their warehouse. Files that warehouse.duckdb still
    reads stay until the next `tw build`.
    """
    from tracewarehouse.database.temporary import abandoned, remove_abandoned

    with context.obj.open() as warehouse:
        grace = grace_hours * 3600
        leftovers = warehouse.leftovers(grace) if dry_run else warehouse.collect_garbage(grace)
    leftovers += abandoned() if dry_run else remove_abandoned()
    for leftover in leftovers:
        typer.echo(leftover.path)
    verb = "would be removed" if dry_run else "removed"
    typer.echo(f"{len(leftovers)} leftovers {verb}, {sum(f.bytes for f in leftovers):,} bytes", err=True)
