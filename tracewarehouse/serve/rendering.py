"""Makes answers: pages from templates, tables, files, errors, and the scripts and styles that pages load."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files
from typing import Any
from urllib.parse import quote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from tracewarehouse.dashboards.figure import Figure, NothingToDraw
from tracewarehouse.dashboards.theme import WIDTH, config
from tracewarehouse.dashboards.vega import script_json, vega_script
from tracewarehouse.dashboards.writing import prose
from tracewarehouse.queries.output import Format, dump, encoded
from tracewarehouse.queries.result import QueryResult
from tracewarehouse.queries.text_table import cell

PAGE_ROWS = 200
"""The most rows that a page shows at a time."""

MOST_TEXT = 300
"""The most characters of a cell that a page shows."""

FILES: tuple[Format, ...] = ("json", "csv", "parquet", "arrow")
"""The formats in which each table is available."""

_STARTS, _ENDS = ("start_ps", "first_start_ps"), ("until_ps", "end_ps", "last_end_ps", "duration_ps")

_TYPES: dict[str, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}
_STATIC = {
    "page.css": ("tracewarehouse.dashboards", "templates"),
    "site.css": ("tracewarehouse.serve", "templates"),
    "charts.js": ("tracewarehouse.dashboards", "templates"),
    "site.js": ("tracewarehouse.serve", "templates"),
}
_VEGA = "vega.js"


@cache
def _environment() -> Any:
    import jinja2

    places = [jinja2.PackageLoader(f"tracewarehouse.{room}") for room in ("serve", "dashboards")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(places), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["prose"] = prose
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


def chart(draw: Callable[[], Figure]) -> Response:
    """A figure as JSON, or the reason why there is nothing to draw."""
    try:
        figure = draw()
    except NothingToDraw as absence:
        return JSONResponse({"absent": str(absence)})
    links: Sequence[tuple[str, str]] = [
        ("rows", question(figure.sql)),
        *((form, address(f"/sql.{form}", {"sql": figure.sql})) for form in ("json", "csv")),
        *((metric, f"/metrics/{metric}") for metric in figure.metrics),
    ]
    said: dict[str, Any] = {
        "title": figure.title,
        "subtitle": figure.subtitle,
        "description": figure.description,
        "sql": figure.sql,
        "links": links,
        "specification": figure.specification(),
    }
    return Response(dump(said), media_type="application/json")


def failure(request: Request, sentence: str, status: int) -> Response:
    """An error, as a page or in the format that the request names.

    Args:
        sentence: what was looked for, what was found, what to do.
        status: the status of the answer.
    """
    path = request.url.path
    if path.endswith(".json") or "/charts/" in path:
        return JSONResponse({"error": sentence}, status)
    if path.endswith((".csv", ".parquet", ".arrow", ".gz")):
        return PlainTextResponse(sentence, status)
    return page(request, "failure", status=status, sentence=sentence)


def static(request: Request) -> Response:
    """One of the files; its address changes with its content, so a browser may keep it."""
    name = request.path_params["name"]
    if name not in _STATIC and name != _VEGA:
        raise HTTPException(404)
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    content = vega_script().encode() if name == _VEGA else _content(name)
    return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400"})


@cache
def addresses() -> dict[str, str]:
    """The addresses of the files by their names, without their endings."""
    marks = {name: sha256(_content(name)).hexdigest()[:12] for name in _STATIC}
    marks[_VEGA] = version("vl-convert-python")
    return {name.replace(".", "_"): f"/static/{name}?v={mark}" for name, mark in marks.items()}


@cache
def _content(name: str) -> bytes:
    package, folder = _STATIC[name]
    return (files(package) / folder / name).read_bytes()


@dataclass(frozen=True)
class Cell:
    """One value as a page shows it.

    Attributes:
        text: the value, cut if it is long.
        address: the address that it links to, if any.
        more: how many characters were cut off.
    """

    text: str
    address: str | None = None
    more: int = 0


@dataclass(frozen=True)
class Table:
    """A part of a table.

    Attributes:
        name: what the rows are.
        columns: names of the columns, and whether each holds numbers.
        said: a sentence on which rows these are, and of how many.
        files: the whole table in each format, as label and address.
        sql: the query.
        question: the address where the query can be changed.
        earlier: the address of the rows before these, if there are any.
        later: the address of the rows after these, if there are any.
    """

    name: str
    columns: list[tuple[str, bool]]
    rows: list[list[Cell]]
    said: str
    files: list[tuple[str, str]]
    sql: str | None = None
    question: str | None = None
    earlier: str | None = None
    later: str | None = None


def address(path: str, parameters: Mapping[str, str | Sequence[str] | None] | None = None) -> str:
    """A path of this server with the parameters that are not empty."""
    said = {name: value for name, value in (parameters or {}).items() if value}
    return f"{path}?{urlencode(said, doseq=True, quote_via=quote)}" if said else path


def question(sql: str) -> str:
    """The address that asks a query."""
    return address("/sql", {"sql": sql})


def result_table(
    result: QueryResult,
    name: str,
    *,
    path: str = "/sql",
    parameters: Mapping[str, str | Sequence[str] | None],
    first: int = 0,
    runs: Collection[str] = (),
    sql: str | None = None,
    hidden: Collection[str] = (),
) -> Table:
    """A page of a result's rows.

    Args:
        result: all rows that the limit let through.
        name: what the rows are.
        path: the path of the table; its files are beside it.
        parameters: the other parameters of the table's address.
        first: the first row to show, counted from 0.
        runs: ids of the runs that exist, which link to their pages.
        sql: the query that gives the rows, if the page does not show it elsewhere.
        hidden: columns that are not shown.
    """
    schema = result.arrow().schema
    columns = [(n, _is_number(str(t))) for n, t in zip(schema.names, schema.types, strict=True)]
    shown = result.part(first, PAGE_ROWS).rows()
    window = _window_columns(schema.names)
    places = [i for i, (column, _) in enumerate(columns) if column not in hidden]
    heads = [columns[i] for i in places]
    rows = []
    for row in shown:
        cells = [_cell(row[i], columns[i][0], runs) for i in places]
        rows.append([*cells, _viewer(row, window, runs)] if window else cells)
    last = first + len(shown)
    more = f"more than {len(result):,}" if result.is_cut else f"{len(result):,}"
    said = f"Rows {first + 1:,} to {last:,} of {more}" if last - first < len(result) or result.is_cut else _all(result)
    base = dict(parameters)
    return Table(
        name=name,
        columns=[*heads, ("trace", False)] if window else heads,
        rows=rows,
        said=said,
        files=[] if result.is_cut else [(form, address(f"{path}.{form}", base)) for form in FILES],
        sql=sql,
        question=question(sql) if sql else None,
        earlier=address(path, base | {"from": str(max(0, first - PAGE_ROWS))}) if first > 0 else None,
        later=address(path, base | {"from": str(last)}) if last < len(result) else None,
    )


def viewer_address(run_id: str, start_ps: int | None = None, end_ps: int | None = None) -> str:
    """The address of a run in a trace viewer: all of it, or a window widened by half its length on both sides."""
    if start_ps is None or end_ps is None:
        return f"/runs/{run_id}/trace/all/"
    margin = (end_ps - start_ps) // 2 + 1
    return f"/runs/{run_id}/trace/{max(0, start_ps - margin)}-{end_ps + margin}/"


def _all(result: QueryResult) -> str:
    return "1 row" if len(result) == 1 else f"{len(result):,} rows"


def _cell(value: Any, column: str, runs: Collection[str]) -> Cell:
    if value is None:
        return Cell("")
    text = ", ".join(map(cell, value)) if isinstance(value, list) else cell(value)
    leads = f"/runs/{value}" if column == "run_id" and value in runs else None
    return Cell(text[:MOST_TEXT], leads, max(0, len(text) - MOST_TEXT))


def _is_number(kind: str) -> bool:
    return kind.startswith(("int", "uint", "float", "double", "halffloat", "decimal"))


def _window_columns(names: Sequence[str]) -> tuple[int, int, int, bool] | None:
    """The positions of the columns with a row's run, start and end, and whether the end is a duration; None without."""
    start = next((n for n in _STARTS if n in names), None)
    end = next((n for n in _ENDS if n in names), None)
    if "run_id" not in names or start is None or end is None:
        return None
    return names.index("run_id"), names.index(start), names.index(end), end == "duration_ps"


def _viewer(row: Sequence[Any], window: tuple[int, int, int, bool], runs: Collection[str]) -> Cell:
    run_id, start, end = (row[i] for i in window[:3])
    if run_id not in runs or not isinstance(start, int) or not isinstance(end, int):
        return Cell("")
    end += start if window[3] else 0
    return Cell("show", viewer_address(run_id, start, end)) if end >= start else Cell("")
