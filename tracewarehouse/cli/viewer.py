"""`tw open`: show a run in a viewer."""

from __future__ import annotations

import tempfile
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracewarehouse.ingest.errors import TracewarehouseError


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
    from tracewarehouse.exports.perfetto.export import export_perfetto
    from tracewarehouse.viewer.perfetto import bundled_ui, serving

    with context.obj.open() as warehouse:
        name = warehouse.run(run).name
        trace = export_perfetto(warehouse, [run], folder / "trace.pftrace.gz", force=force)
    with serving(trace, name, bundled_ui(), port) as (server, address):
        typer.echo(address)
        typer.echo("Ctrl-C ends the server", err=True)
        if has_browser:
            webbrowser.open(address)
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
    typer.echo(f"http://localhost:{port}/")
    typer.echo("Ctrl-C ends the server", err=True)
    typer.echo(f"warning: XProf answers every machine that reaches port {port} of this one", err=True)
    with suppress(KeyboardInterrupt):
        if code := run_xprof(logs, port):
            raise TracewarehouseError(f"XProf ended with exit code {code}; its messages are above")
