"""Finds the requests that a server on this machine must refuse: those to another host, and those of others' pages.

A page from anywhere can make a browser ask this machine. If it asks for its own name, which its DNS points here, the
header Host shows it; if it asks for ours, Origin and Sec-Fetch-Site do.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from typing import Protocol

ADDRESS = "127.0.0.1"


class _Headers(Protocol):
    def get(self, name: str, /) -> str | None: ...


def refusal(headers: _Headers, port: int, *, is_open: bool = False) -> str | None:
    """The reason to refuse a request; None if it may be answered.

    Args:
        headers: the headers of the request, whatever the case of their names.
        port: the port that the server listens on.
        is_open: whether other machines may ask too; then any address in numbers and this machine's name are its own.
    """
    host = headers.get("Host") or ""
    if not _is_own(host, port, is_open=is_open):
        return "This server answers only to the name of its own machine."
    if headers.get("Origin") not in (None, f"http://{host}"):
        return "This server answers only its own pages."
    if headers.get("Sec-Fetch-Site") not in (None, "same-origin", "none"):
        # a link on another page may lead here, but that page may not load this one
        is_link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        return None if is_link else "This server answers only its own pages."
    return None


def _is_own(host: str, port: int, *, is_open: bool) -> bool:
    name, _, number = host.rpartition(":")
    if number != str(port):
        return False
    try:
        address = ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is not None:
        return is_open or address.is_loopback
    names = {"localhost"} | ({socket.gethostname().lower(), socket.getfqdn().lower()} if is_open else set())
    return name.lower() in names
