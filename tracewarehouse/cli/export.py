"""`tw export`: runs and rows in the formats of other tools.

A subcommand only reads its options; it imports its module of `tracewarehouse.exports` when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
    run: RunArgument,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .json or .json.gz file, or a folder for one file per host."),
    ] = None,
) -> None:
    """Write a run as Chrome trace JSON, for the Perfetto UI, chrome://tracing, and tools that read the profiler's."""
    from tracewarehouse.exports.chrome import export_chrome

    with context.obj.open() as warehouse:
        target = output or Path(f"{warehouse.run(run).name}.trace.json")
        for path in export_chrome(warehouse, run, target):
            typer.echo(path)
