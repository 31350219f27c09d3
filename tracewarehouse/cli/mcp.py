"""`tw mcp`: a server for agents."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from tracewarehouse.ingest.errors import TracewarehouseError


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
    with context.obj.open() as warehouse:
        if sys.stdin.isatty():
            typer.echo(
                "note: this waits for a program that speaks the Model Context Protocol, and is not for a terminal; "
                "docs/mcp.md shows how to set it up. Ctrl-C ends it.",
                err=True,
            )
        has_ended = serve(warehouse, time_limit)
    if not has_ended:  # a thread still runs a query that cannot be interrupted; a normal exit would wait for it
        sys.stdout.flush()
        os._exit(0)
