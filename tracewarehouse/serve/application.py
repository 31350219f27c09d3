"""Builds the application: which address leads to which page, and what happens when a page fails."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

from tracewarehouse.ingest.errors import TracewarehouseError
from tracewarehouse.queries.output import Format
from tracewarehouse.serve import compare_page, metrics_page, run_page, runs_page, sql_page, trace
from tracewarehouse.serve.guarded import Guarded
from tracewarehouse.serve.rendering import failure
from tracewarehouse.serve.static import static
from tracewarehouse.serve.tables import FILES
from tracewarehouse.serve.warehouses import FOR_PAGES, FOR_QUESTIONS, Warehouses
from tracewarehouse.viewer.perfetto import TRACE, bundled_ui
from tracewarehouse.warehouse import Warehouse

Answer = Callable[[Request, Warehouse], Response]
FileAnswer = Callable[[Request, Warehouse, Format], Response]


def application(warehouses: Warehouses, name: str, port: int, *, is_open: bool = False) -> Starlette:
    """The application of a server.

    Args:
        warehouses: the warehouses that answer.
        name: the name of the warehouse on the pages.
        port: the port of the server.
        is_open: whether other machines may ask too.
    """

    @asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        app.state.places = {False: CapacityLimiter(FOR_PAGES), True: CapacityLimiter(FOR_QUESTIONS)}
        yield

    app = Starlette(
        routes=_routes(),
        middleware=[Middleware(Guarded, port, is_open=is_open)],
        exception_handlers={HTTPException: _refused},
        lifespan=running,
    )
    app.state.warehouses = warehouses
    app.state.warehouse_name = name
    return app


def _routes() -> list[BaseRoute]:
    pages: dict[str, Answer] = {
        "/": runs_page.runs_page,
        "/runs": runs_page.runs_page,
        "/charts/{chart}": runs_page.runs_chart,
        "/runs/{run}": run_page.run_page,
        "/runs/{run}/charts/{chart}": run_page.run_chart,
        "/runs/{run}/trace/{window}/": trace.viewer,
        "/runs/{run}/trace/{window}/handover.js": trace.script,
        f"/runs/{{run}}/trace/{{window}}/{TRACE}": trace.trace,
        "/compare": compare_page.compare_page,
        "/compare/charts/waterfall": compare_page.compare_chart,
        "/catalogue": sql_page.catalogue_page,
        "/metrics": metrics_page.metrics_page,
        "/metrics/{metric}": metrics_page.metric_page,
        "/metrics/{metric}/charts/over-time": metrics_page.metric_chart,
    }
    files: dict[str, FileAnswer] = {
        "/runs": runs_page.runs_file,
        "/runs/{run}": run_page.run_file,
        "/compare": compare_page.compare_file,
    }
    routes: list[BaseRoute] = [Route("/static/{name}", static)]
    for form in FILES:
        routes += [Route(f"{path}.{form}", _answering(_as(form, answer))) for path, answer in files.items()]
        routes.append(Route(f"/sql.{form}", _answering(_as(form, sql_page.sql_file), is_question=True)))
    routes += [Route(path, _answering(answer)) for path, answer in pages.items()]
    routes.append(Route("/sql", _answering(sql_page.sql_page, is_question=True)))
    if (ui := bundled_ui()) is not None:
        routes.append(Mount("/perfetto", trace.PerfettoUI(directory=ui)))
    return routes


def _as(form: Format, answer: FileAnswer) -> Answer:
    return lambda request, warehouse: answer(request, warehouse, form)


def _answering(answer: Answer, *, is_question: bool = False) -> Callable[[Request], Awaitable[Response]]:
    """A handler that asks one of the warehouses in a thread; until one is free, requests wait without a thread."""

    async def asked(request: Request) -> Response:
        limiter = request.app.state.places[is_question]
        return await to_thread.run_sync(_answered, answer, request, limiter=limiter, abandon_on_cancel=True)

    return asked


def _answered(answer: Answer, request: Request) -> Response:
    try:
        with request.app.state.warehouses.one() as warehouse:
            return answer(request, warehouse)
    except HTTPException:
        raise
    except TracewarehouseError as error:
        return failure(request, str(error), 400)
    except Exception as error:  # nobody sees a traceback
        print(f"error: {request.url.path}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return failure(request, f"This page failed because of a fault in the program: {type(error).__name__}.", 500)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    sentences = {404: f"There is no page {request.url.path[:200]}.", 405: "Pages can only be read."}
    own = error.detail if error.detail not in ("Not Found", "Method Not Allowed") else None
    return failure(request, own or sentences.get(error.status_code, error.detail), error.status_code)
