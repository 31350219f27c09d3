"""Answers only requests of this machine's own pages, and tells browsers what a page may load."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracewarehouse.viewer.guard import refusal

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The policy of every page: scripts and styles are files of this server; nothing inline or from elsewhere, no eval."""

_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Guarded:
    """The application behind the guard; a response that has one of the headers keeps its own.

    Args:
        app: the application.
        port: the port of the server.
        is_open: whether other machines may ask too.
    """

    def __init__(self, app: ASGIApp, port: int, *, is_open: bool = False) -> None:
        self._app, self._port, self._is_open = app, port, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it and say why."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = refusal(Headers(scope=scope), self._port, is_open=self._is_open)
        answer = PlainTextResponse(refused, 403) if refused else self._app
        await answer(scope, receive, send_with_headers)
