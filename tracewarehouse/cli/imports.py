"""`tw import`: turn what other tools have published into runs of the warehouse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracewarehouse.cli.ingest import MeshOption, complain, say
from tracewarehouse.ingest.capture.run_options import RunOptions
from tracewarehouse.ingest.errors import TracewarehouseError

app = typer.Typer(
    help="Turn what other tools have published into runs of the warehouse.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def imports() -> None:
    """Turn what other tools have published into runs of the warehouse."""


@app.command("ccl-bench")
def ccl_bench(
    context: typer.Context,
    folder: Annotated[
        list[Path],
        typer.Argument(metavar="DIR...", help="Folders of CCL-Bench: a card and a trace each.", show_default=False),
    ],
    mesh: MeshOption = None,
) -> None:
    """Turn folders of CCL-Bench into runs, with the facts of their cards.

    `tw compare RUN --published FILE` then shows the published values beside ours.
    """
    from tracewarehouse.ingest.capture.sources import ccl_bench_capture

    failures = 0
    with context.obj.open(create=True) as warehouse:
        for path in folder:
            try:
                say(warehouse.ingest_capture(ccl_bench_capture(path), RunOptions(mesh)))
            except TracewarehouseError as error:
                failures += 1
                complain(error)
    if failures:
        raise typer.Exit(1)
