"""`tw serve`: show the warehouse as pages in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from tracewarehouse.ingest.errors import TracewarehouseError


def serve(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for a free one.")] = 8765,
    bind: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS", help="Address to listen on. Any but this machine's own lets others read the warehouse."
        ),
    ] = "127.0.0.1",
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds that a query may run.")] = 30.0,
    row_limit: Annotated[int, typer.Option(min=1, help="Rows that an answer may have.")] = 100_000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Serve pages about the warehouse to this machine, until Ctrl-C: runs, comparisons, metrics, and a box for SQL.

    The pages can only read. Each query has limits of time and rows, and all queries together keep to --memory-limit.
    """
    try:
        from tracewarehouse.serve.server import run
    except ModuleNotFoundError as error:
        if error.name not in ("anyio", "starlette", "uvicorn"):
            raise
        raise TracewarehouseError(
            f"the server needs {error.name}, which is not installed; run `pip install 'tracewarehouse[serve]'`"
        ) from None
    from tracewarehouse.queries.read_only import Limits

    run(
        context.obj.open,
        str(context.obj),
        Limits(time_limit, row_limit),
        bind,
        port,
        lambda address: _say(address, has_browser=browser),
    )


def _say(address: str, *, has_browser: bool) -> None:
    import webbrowser

    typer.echo(address)
    typer.echo("Ctrl-C ends the server", err=True)
    if has_browser:
        webbrowser.open(address)
