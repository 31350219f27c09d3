"""Builds the application: which address leads to which page, who is answered, and what happens when a page fails."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from operator import itemgetter

from anyio import CancelScope, CapacityLimiter, Event, create_task_group, to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.output import Format
from tracewarehouse.serve import compare_page, run_pages, sql_pages
from tracewarehouse.serve.rendering import FILES, failure, static
from tracewarehouse.serve.warehouses import FOR_LONG_QUESTIONS, FOR_PAGES, FOR_QUESTIONS, Warehouses
from tracewarehouse.viewer.perfetto import TRACE, bundled_ui, refusal
from tracewarehouse.warehouse import Warehouse

Answer = Callable[[Request, Warehouse], Response]
FileAnswer = Callable[[Request, Warehouse, Format], Response]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""The policy of every page: scripts and styles are files of this server; nothing inline or from elsewhere, no eval."""

_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

SHORT_SECONDS = (0.1, 0.5)
"""How long a question may take at its first and at its second try; then it counts as long."""
_CLIENT_LEFT = 499
"""Status of an answer that nobody gets, as nginx has it."""


def application(warehouses: Warehouses, name: str, port: int, *, is_open: bool = False) -> Starlette:
    """The application of a server.

    Args:
        warehouses: the warehouses that answer.
        name: the name of the warehouse on the pages.
        is_open: whether other machines may ask too.
    """

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        state = app.state
        state.pages, state.long_questions = CapacityLimiter(FOR_PAGES), CapacityLimiter(FOR_LONG_QUESTIONS)
        state.questions = _NewestFirst(FOR_QUESTIONS)
        yield

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(_Guarded, port, is_open=is_open)],
        exception_handlers={HTTPException: _refused},
        lifespan=running,
    )
    app.state.warehouses = warehouses
    app.state.warehouse_name = name
    return app


def _routes() -> list[BaseRoute]:
    pages: dict[str, Answer] = {
        "/": run_pages.runs_page,
        "/runs": run_pages.runs_page,
        "/charts/{chart}": run_pages.runs_chart,
        "/runs/{run}": run_pages.run_page,
        "/runs/{run}/step": run_pages.run_step,
        "/runs/{run}/charts/{chart}": run_pages.run_chart,
        "/runs/{run}/trace/{window}/": run_pages.viewer,
        "/runs/{run}/trace/{window}/handover.js": run_pages.script,
        f"/runs/{{run}}/trace/{{window}}/{TRACE}": run_pages.trace,
        "/compare": compare_page.compare_page,
        "/compare/charts/differences": compare_page.compare_chart,
        "/catalogue": sql_pages.catalogue_page,
        "/metrics": sql_pages.metrics_page,
        "/metrics/{metric}": sql_pages.metric_page,
        "/metrics/{metric}/charts/over-time": sql_pages.metric_chart,
    }
    files: dict[str, FileAnswer] = {
        "/runs": run_pages.runs_file,
        "/runs/{run}": run_pages.run_file,
        "/compare": compare_page.compare_file,
    }
    routes: list[BaseRoute] = [Route("/static/{name}", static)]
    for form in FILES:
        routes += [Route(f"{path}.{form}", _answering(_as(form, answer))) for path, answer in files.items()]
        routes.append(Route(f"/sql.{form}", _answering(_as(form, sql_pages.sql_file), is_question=True)))
    routes += [Route(path, _answering(answer)) for path, answer in pages.items()]
    routes.append(Route("/sql", _answering(sql_pages.sql_page, is_question=True)))
    if (ui := bundled_ui()) is not None:
        routes.append(Mount("/perfetto", run_pages.PerfettoUI(directory=ui)))
    return routes


def _as(form: Format, answer: FileAnswer) -> Answer:
    return lambda request, warehouse: answer(request, warehouse, form)


def _answering(answer: Answer, *, is_question: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A handler that asks one of the warehouses in a thread; until one is free, requests wait without a thread.

    A question that is not answered at once begins again, and at last in a place for long ones, where it waits. If
    the client leaves, a request that waits is dropped, and the query of another one is interrupted.
    """

    async def answered(request: Request) -> Response:
        state = request.app.state
        if not is_question:
            return await in_thread(request, state.pages)
        most = state.warehouses.limits.seconds
        for number, seconds in enumerate(SHORT_SECONDS):
            if most is None or most > seconds:
                request.state.seconds, request.state.is_slow = seconds, False
                async with state.questions.place(number):
                    response = await in_thread(request, None)
                if not request.state.is_slow:
                    return response
        request.state.seconds = None
        return await in_thread(request, state.long_questions)

    async def in_thread(request: Request, limiter: CapacityLimiter | None) -> Response:
        return await to_thread.run_sync(_answered, answer, request, limiter=limiter, abandon_on_cancel=True)

    async def asked(request: Request) -> Response:
        request.state.unwanted, request.state.seconds, request.state.is_slow = Future(), None, False
        response = Response(status_code=_CLIENT_LEFT)
        async with create_task_group() as group:
            group.start_soon(_until_left, request, group.cancel_scope)
            response = await answered(request)
            group.cancel_scope.cancel()
        return response

    return asked


class _NewestFirst:
    """Places that go to first tries before second ones, so that many questions that come at once are all tried soon.

    Among these they go to those who came last: who waits longest has most likely asked for much at once.

    Args:
        places: how many there are.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: list[tuple[int, Event]] = []

    @asynccontextmanager
    async def place(self, number: int) -> AsyncIterator[None]:
        """A place for a try of this number, from 0."""
        if self._free:
            self._free -= 1
        else:
            turn = Event()
            self._waiting.append((-number, turn))
            try:
                await turn.wait()
            except BaseException:
                if (-number, turn) in self._waiting:
                    self._waiting.remove((-number, turn))
                else:
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._waiting:
            self._waiting.sort(key=itemgetter(0))  # keeps the order of those that came for the same try
            self._waiting.pop()[1].set()
        else:
            self._free += 1


async def _until_left(request: Request, answering: CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    request.state.unwanted.set_result(None)
    answering.cancel()


def _answered(answer: Answer, request: Request) -> Response:
    try:
        with request.app.state.warehouses.one(request.state.unwanted) as warehouse:
            return answer(request, warehouse)
    except HTTPException as error:
        return _refused(request, error)
    except TracewarehouseError as error:
        return failure(request, str(error), 400)
    except Exception as error:  # nobody sees a traceback
        if isinstance(error, MemoryError) or "start new thread" in str(error):  # which needs memory for its stack
            return failure(request, "All memory of the server is in use by other questions; ask again later.", 503)
        print(f"error: {request.url.path}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return failure(request, f"This page failed because of a fault in the program: {type(error).__name__}.", 500)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    sentences = {404: f"There is no page {request.url.path[:200]}.", 405: "Pages can only be read."}
    own = error.detail if error.detail not in ("Not Found", "Method Not Allowed") else None
    return failure(request, own or sentences.get(error.status_code, error.detail), error.status_code)


class _Guarded:
    """The application behind the guard; a response that has one of the headers keeps its own.

    Args:
        port: the port of the server.
        is_open: whether other machines may ask too.
    """

    def __init__(self, app: ASGIApp, port: int, *, is_open: bool = False) -> None:
        self._app, self._port, self._is_open = app, port, is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
