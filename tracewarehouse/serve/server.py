"""Runs the server until it is interrupted."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

import uvicorn

from tracewarehouse.ingest.errors import TracewarehouseError, UnreadRunWarning
from tracewarehouse.queries.memory_limit import share_among
from tracewarehouse.queries.read_only import Limits
from tracewarehouse.serve.application import application
from tracewarehouse.serve.warehouses import FOR_LONG_QUESTIONS, FOR_PAGES, Warehouses
from tracewarehouse.warehouse import Warehouse

_PATIENCE_SECONDS = 2
"""Seconds that unfinished answers may still take when the server ends."""


def run(
    open_one: Callable[[], Warehouse],
    name: str,
    limits: Limits,
    bind: str,
    port: int,
    when_ready: Callable[[str], None],
) -> None:
    """Serve a warehouse until Ctrl-C.

    Args:
        name: its name on the pages.
        limits: the limits of each query.
        bind: the address to listen on.
        port: the port; 0 for a free one.
        when_ready: called with the address of the first page.

    Raises:
        TracewarehouseError: the address or the port cannot be used.
        WarehouseError: there is no such warehouse.
    """
    warnings.simplefilter("once", UnreadRunWarning)  # the list of runs shows it each time
    share_among(FOR_PAGES + FOR_LONG_QUESTIONS)  # short questions need little
    warehouses = Warehouses(open_one, limits)
    listening = listen(bind, port)
    own = int(listening.getsockname()[1])
    is_open = not _is_own(bind)
    if is_open:
        print(
            f"warning: everybody who reaches port {own} of this machine can read the whole warehouse; there is no "
            "password and no encryption",
            file=sys.stderr,
        )
    server = uvicorn.Server(
        uvicorn.Config(
            application(warehouses, name, own, is_open=is_open),
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_PATIENCE_SECONDS,
        )
    )
    host = f"[{bind}]" if ":" in bind else bind
    when_ready(f"http://{'127.0.0.1' if bind in ('0.0.0.0', '::') else host}:{own}/")  # noqa: S104
    with suppress(KeyboardInterrupt):  # Ctrl-C is how the server ends
        server.run(sockets=[listening])
    if not warehouses.close():  # a query still runs; a normal exit would wait for it
        sys.stdout.flush()
        os._exit(0)


def _is_own(bind: str) -> bool:
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def listen(bind: str, port: int) -> socket.socket:
    """A socket that listens already, so that a browser can open its address."""
    try:
        family = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise TracewarehouseError(
            f"{bind} is not an address of this machine: {error}; leave --bind out to listen only to this machine"
        ) from None
    try:
        return socket.create_server((bind, port), family=family, backlog=128)
    except OSError as error:
        raise TracewarehouseError(
            f"port {port} of {bind} cannot be used: {error}; name another one with --port, or --port 0 for a free one"
        ) from None
