"""Makes pages from templates, and answers with files and errors in the format that the request names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from tracewarehouse.dashboards.page import script_json, with_code
from tracewarehouse.dashboards.theme import WIDTH, config
from tracewarehouse.queries.output import Format, encoded
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.serve.static import addresses

_TYPES: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}


@cache
def _environment() -> Any:
    import jinja2

    places = [jinja2.PackageLoader(f"tracewarehouse.{room}") for room in ("serve", "dashboards")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(places), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["with_code"] = with_code
    environment.policies["json.dumps_kwargs"] = {"default": str}
    return environment


@cache
def _look() -> str:
    """The settings with which the script draws charts, as JSON."""
    return script_json({"width": WIDTH, "config": config()})


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> Response:
    """A page of a template; it adds `warehouse_name` and the addresses of scripts and styles."""
    text = _environment().get_template(f"{template}.html.j2").render(
        here=request.url.path, warehouse_name=request.app.state.warehouse_name, static=addresses(), look=_look(),
        **context,
    )  # fmt: skip
    return HTMLResponse(text, status)


def file(result: QueryResult, form: Format, name: str) -> Response:
    """All rows of a result, as `tw query` writes them."""
    kind = {} if form == "json" else {"Content-Disposition": f'attachment; filename="{name}.{form}"'}
    return Response(encoded(result, form), media_type=_TYPES[form], headers=kind)


def failure(request: Request, sentence: str, status: int, links: Sequence[tuple[str, str]] = ()) -> Response:
    """An error, as a page or in the format that the request names.

    Args:
        request: the request.
        sentence: what was looked for, what was found, what to do.
        status: the status of the answer.
        links: where to go from here, as label and address.
    """
    path = request.url.path
    if path.endswith(".json") or "/charts/" in path:
        return JSONResponse({"error": sentence}, status)
    if path.endswith((".csv", ".parquet", ".arrow", ".gz")):
        return PlainTextResponse(sentence, status)
    return page(request, "failure", status=status, sentence=sentence, links=links)
