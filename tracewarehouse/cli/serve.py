"""`tw serve`, `tw open` and `tw mcp`: serve pages, a viewer, and the questions of agents."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries import stuck_query


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
    from tracewarehouse.queries import memory_limit
    from tracewarehouse.queries.read_only import Limits

    memory_limit.bounds_process = stuck_query.may_end_process
    run(
        context.obj.open,
        str(context.obj),
        Limits(time_limit, row_limit),
        bind,
        port,
        lambda address: _say(address, has_browser=browser),
    )


def _say(address: str, *, has_browser: bool) -> None:
    typer.echo(address)
    typer.echo("Ctrl-C ends the server", err=True)
    if has_browser:
        webbrowser.open(address)


def open_run(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id, beginning of an id, or name.", show_default=False)],
    viewer: Annotated[Literal["perfetto", "xprof"], typer.Option(help="The Perfetto UI, or XProf.")] = "perfetto",
    capture: Annotated[
        Path | None,
        typer.Option(help="For XProf: the file or folder that the run was ingested from.", show_default=False),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port on this machine; default: a free one, or 8791 for XProf.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Open the trace although the clocks of its hosts are not aligned.")
    ] = False,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Serve a viewer and a run's trace to this machine, until Ctrl-C.

    With the extra `viewer`, the Perfetto UI itself is served and no network is needed; without it, a page hands the
    trace to ui.perfetto.dev at a click.
    """
    with tempfile.TemporaryDirectory(prefix="tracewarehouse-") as folder:
        if viewer == "xprof":
            _open_xprof(context, run, capture, Path(folder), 8791 if port is None else port)
        else:
            _open_perfetto(context, run, Path(folder), port or 0, force=force, has_browser=browser)


def _open_perfetto(
    context: typer.Context, run: str, folder: Path, port: int, *, force: bool, has_browser: bool
) -> None:
    from tracewarehouse.exports.perfetto.export import export_perfetto, opening_window
    from tracewarehouse.viewer.perfetto import bundled_ui, serving

    with context.obj.open() as warehouse:
        name = warehouse.run(run).name
        trace = export_perfetto(warehouse, [run], folder / "trace.pftrace.gz", force=force)
        window = opening_window(warehouse, run)
    with serving(trace, name, bundled_ui(), port, window) as (server, address):
        _say(address, has_browser=has_browser)
        with suppress(KeyboardInterrupt):  # Ctrl-C is how the server ends
            server.serve_forever()


def _open_xprof(context: typer.Context, run: str, capture: Path | None, folder: Path, port: int) -> None:
    from tracewarehouse.viewer.xprof import log_folder, require_xprof, run_xprof

    if capture is None:
        raise TracewarehouseError(
            "XProf reads the capture itself, which a warehouse does not hold; name the file or folder with --capture"
        )
    require_xprof()
    with context.obj.open() as warehouse:
        logs = log_folder(warehouse, run, capture, folder)
    _say(f"http://localhost:{port}/", has_browser=False)
    typer.echo(f"warning: XProf answers every machine that reaches port {port} of this one", err=True)
    with suppress(KeyboardInterrupt):
        if code := run_xprof(logs, port):
            raise TracewarehouseError(f"XProf ended with exit code {code}; its messages are above")


def mcp(
    context: typer.Context,
    skill: Annotated[
        bool, typer.Option("--skill", help="Print SKILL.md, which teaches an agent to use tw, and exit.")
    ] = False,
    time_limit: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Seconds that a query may run.")] = 30.0,
) -> None:
    """Answer an agent's questions about the warehouse over the Model Context Protocol.

    A program that speaks the protocol starts this command and talks to it through standard input and output. It can
    only read, and only this warehouse. docs/mcp.md shows how to set it up.
    """
    if skill:
        from tracewarehouse.mcp_server.description import skill as text

        typer.echo(text(), nl=False)
        return
    try:
        from tracewarehouse.mcp_server.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "anyio"):
            raise
        raise TracewarehouseError(
            "tw mcp needs the package mcp, which is not installed; run `pip install 'tracewarehouse[mcp]'`"
        ) from None
    from tracewarehouse.queries import memory_limit

    with context.obj.open() as warehouse:
        if sys.stdin.isatty():
            typer.echo(
                "note: this waits for a program that speaks the Model Context Protocol, and is not for a terminal; "
                "docs/mcp.md shows how to set it up. Ctrl-C ends it.",
                err=True,
            )
        memory_limit.bounds_process = stuck_query.may_end_process
        has_ended = serve(warehouse, time_limit)
    if not has_ended:  # a thread still runs a query that cannot be interrupted; a normal exit would wait for it
        sys.stdout.flush()
        os._exit(0)
