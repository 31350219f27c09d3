"""`tw export`: write runs and rows in the formats of other tools.

A subcommand only reads its options; it imports its module of `tracewarehouse.exports` when it is called.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracewarehouse.cli.options import FormatOption, OutputOption, RunsArgument, a_folder
from tracewarehouse.cli.output import chosen_format, say_flags
from tracewarehouse.queries.output import write

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE|METRIC|SQL",
        help="A table such as ops, a view such as models.steps, a metric, or a query.",
        show_default=False,
    ),
]
RunArgument = Annotated[str, typer.Argument(help="Run id, beginning of an id, or name.", show_default=False)]

app = typer.Typer(
    help="Write runs and rows in the formats of other tools.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def export() -> None:
    """Write runs and rows in the formats of other tools."""


@app.command()
def chrome(
    context: typer.Context,
    run: Annotated[list[str], typer.Argument(help="Run ids, beginnings of ids, or names.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="A .json or .json.gz file, or a folder for one file per host; of several runs, a folder for all. "
            "Default: named after the run, a file for one host and a folder for several.",
        ),
    ] = None,
) -> None:
    """Write runs as Chrome trace JSON, for the Perfetto UI, chrome://tracing, and tools for the profiler's files."""
    from tracewarehouse.exports.chrome import export_chrome, file_name
    from tracewarehouse.exports.files import naming_the_unwritable

    is_folder = len(run) > 1
    if is_folder and output is not None and output.name.endswith((".json", ".json.gz")):
        raise typer.BadParameter(f"{output} is one file, and {len(run)} runs are asked for; name a folder")
    with context.obj.open() as warehouse:
        entries = {entry.run_id: entry for entry in map(warehouse.run, run)}.values()
        if is_folder and output is not None:
            with naming_the_unwritable(a_folder(output) or output):
                output.mkdir(parents=True, exist_ok=True)
        names = Counter(entry.name for entry in entries)
        for entry in entries:
            has_several_hosts = entry.rows.get("hosts", 1) > 1
            name = file_name(entry.name if names[entry.name] == 1 else f"{entry.name}-{entry.run_id}")
            own = Path(name if has_several_hosts else f"{name}.trace.json")
            target = own if output is None else output / own if is_folder else output
            files = export_chrome(warehouse, entry.run_id, target)
            for path in files:
                typer.echo(path)
            if has_several_hosts and len(files) == 1:
                typer.echo(
                    "note: one file of several hosts is for viewers; name a folder to get files that `tw ingest` reads",
                    err=True,
                )


@app.command("ccl-bench")
def ccl_bench(
    context: typer.Context,
    run: Annotated[list[str], typer.Argument(help="Run ids, beginnings of ids, or names.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the folders of the rows.", callback=a_folder)] = Path(
        "ccl-bench"
    ),
    into: Annotated[
        Path | None, typer.Option(metavar="CHECKOUT", help="Also merge the rows into this checkout of CCL-Bench.")
    ] = None,
    trace_url: Annotated[str, typer.Option(help="Public address of the folder, with the trace and the tables.")] = "",
    name: Annotated[str | None, typer.Option(help="Name of the row; for one run.")] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Also pack each folder as .tar.gz.")] = False,
    capture: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="The recorded files of GPU runs, or a folder with them; they go into the rows."
        ),
    ] = None,
) -> None:
    """Write runs as rows of CCL-Bench: card, trace, tables and values, and the files for its repository."""
    from tracewarehouse.exports.ccl_bench.row import row_name, write_row
    from tracewarehouse.exports.ccl_bench.values import compatible_info
    from tracewarehouse.exports.ccl_bench.website import merge, require_checkout, write_website

    if name is not None and len(run) > 1:
        raise typer.BadParameter("--name is for one run")
    rows = []
    with context.obj.open() as warehouse:
        named = [(entry, name or row_name(warehouse, entry)) for entry in (warehouse.run(r) for r in run)]
        if into is not None:
            for _, each in named:
                require_checkout(into, each)  # before anything is written
        for entry, each in named:
            row = write_row(warehouse, entry, out / each, trace_url=trace_url, archive=archive, capture=capture)
            rows.append(row)
            typer.echo(row.folder)
            for warning in row.warnings:
                typer.echo(f"warning: {row.name}: {warning}", err=True)
            if into is not None:
                for path in merge(row, into):
                    typer.echo(path)
        typer.echo(write_website(rows, out, compatible_info(warehouse.definitions)))


@app.command()
def perfetto(
    context: typer.Context,
    run: Annotated[list[str], typer.Argument(help="Run ids, beginnings of ids, or names.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .pftrace or .pftrace.gz file; default: the first run's name."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only what starts from here on, such as 1.5ms.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only what starts before.")] = None,
    phase: Annotated[str | None, typer.Option(help="Only this phase, such as decode.")] = None,
    step: Annotated[
        str | None, typer.Option(help="Only this step, or the steps from the first to the last of 3-5.")
    ] = None,
    flows: Annotated[
        Literal["none", "slow", "all"],
        typer.Option(help="Arrows between the ranks of a collective: none, slow (of slow executions) or all."),
    ] = "slow",
    force: Annotated[
        bool, typer.Option("--force", help="Write the trace although the clocks of its hosts are not aligned.")
    ] = False,
) -> None:
    """Write runs as one native Perfetto trace, with collectives, layers and counters on tracks of their own."""
    from tracewarehouse.exports.perfetto.export import export_perfetto, picoseconds, steps
    from tracewarehouse.exports.perfetto.selected_run import Selection

    first, last = steps(step) if step is not None else (None, None)
    selection = Selection(
        start_ps=None if start is None else picoseconds(start),
        end_ps=None if end is None else picoseconds(end),
        phase=phase,
        first_step=first,
        last_step=last,
    )
    with context.obj.open() as warehouse:
        target = output or Path(f"{warehouse.run(run[0]).name}.pftrace.gz")
        typer.echo(export_perfetto(warehouse, run, target, selection, flows=flows, force=force))


@app.command()
def chakra(
    context: typer.Context,
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Default: the run's name with .chakra.", callback=a_folder
        ),
    ] = None,
) -> None:
    """Write a run as Chakra execution traces, one per rank, for simulators such as ASTRA-sim."""
    from tracewarehouse.exports.chakra import export_chakra

    with context.obj.open() as warehouse:
        written = export_chakra(warehouse, run, output or Path(f"{warehouse.run(run).name}.chakra"))
        for path in written.files:
            typer.echo(path)
        for warning in written.warnings:
            typer.echo(f"warning: {warning}", err=True)


@app.command()
def duckdb(
    context: typer.Context,
    run: RunsArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path("runs.duckdb"),
) -> None:
    """Write runs as one DuckDB file that can be moved: tables, metrics, comments and the catalogue."""
    from tracewarehouse.exports.rows import export_duckdb

    with context.obj.open() as warehouse:
        runs = [warehouse.run(r) for r in run] if run else warehouse.lake.runs()
        typer.echo(export_duckdb(warehouse, list({r.run_id: r for r in runs}.values()), output))


@app.command()
def iceberg(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the catalogue and the metadata.", callback=a_folder
        ),
    ] = Path("iceberg"),
) -> None:
    """Register the lake's files as Iceberg tables, without copying them.

    Run it again whenever runs were added, replaced or removed. Needs the extra `iceberg`.
    """
    from tracewarehouse.exports.iceberg import CATALOGUE, export_iceberg

    with context.obj.open() as warehouse:
        tables = export_iceberg(warehouse, output)
    typer.echo(output / CATALOGUE)
    for table in tables:
        typer.echo(f"{table.name}\t{table.metadata}")
    added, removed = sum(t.added for t in tables), sum(t.removed for t in tables)
    typer.echo(f"note: {added} files were added and {removed} removed", err=True)


@app.command()
def rows(
    context: typer.Context, source: SourceArgument, output_format: FormatOption = None, output: OutputOption = None
) -> None:
    """Write a table, a metric or a query as Parquet, Arrow, CSV, JSON or an Excel workbook, as -o ends.

    Rows of a metric say by `origin` whether their run was recorded or predicted. Excel needs the extra `xlsx`.
    """
    from tracewarehouse.exports.rows import source_rows

    chosen = chosen_format(context, output_format, output)
    with context.obj.open() as warehouse:
        result = source_rows(warehouse, source)
    write(result, chosen, output)
    say_flags(result.flagged_runs)
