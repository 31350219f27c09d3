"""`tw watch`: ingest captures as they appear."""

from __future__ import annotations

from typing import Annotated

import typer

from tracewarehouse.cli.ingest import MeshOption, StepOption, complain, say
from tracewarehouse.cli.progress import status
from tracewarehouse.ingest.capture.run_options import RunOptions


def watch(
    context: typer.Context,
    location: Annotated[
        str, typer.Argument(help="Folder, or gs://, s3:// or https:// URI, that captures are written to.")
    ],
    mesh: MeshOption = None,
    step: StepOption = None,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks at the folder.")] = 2.0,
    settle: Annotated[
        float, typer.Option(min=0, help="A capture is complete once it has not changed for this many seconds.")
    ] = 5,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for the hosts that a manifest names.")] = 600,
    until_idle: Annotated[
        float | None,
        typer.Option(min=0, help="Stop when nothing has changed for this many seconds.", show_default=False),
    ] = None,
) -> None:
    """Ingest captures as they appear in a folder, until interrupted.

    Prints the line of `tw ingest` for each run. A capture that cannot be read is reported and the others go on; it is
    tried again when its files change. After a restart, it finds the runs that are in the warehouse already. With
    --until-idle the exit code is 1 when a capture could not be ingested.
    """
    from tracewarehouse.watch import Failed, Ingested, Watcher

    complaints: set[str] = set()
    with context.obj.open(create=True) as warehouse, status() as update:
        watcher = Watcher(warehouse, location, RunOptions(mesh, step_program=step), settle=settle, patience=patience)
        for event in watcher.follow(interval):
            if isinstance(event, Ingested):
                say(event.result)
                if event.replaces:
                    typer.echo(
                        f"note: {event.result.name}: run {event.replaces} was made from it when it was not complete; "
                        f"`tw remove {event.replaces}` removes that run",
                        err=True,
                    )
            elif isinstance(event, Failed):
                if str(event.error) not in complaints:
                    complain(event.error)
                complaints.add(str(event.error))
            else:
                update(f"watching {location}" + "".join(f", {name} is being written" for name in event.pending))
                if until_idle is not None and not event.pending and event.idle_seconds >= until_idle:
                    break
    if complaints:
        raise typer.Exit(1)
