"""Serves the scripts and styles of pages: files of this package and of the reports, and Vega in one bundle."""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from importlib.metadata import version
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tracewarehouse.dashboards.vega import vega_script

_FILES = {
    "page.css": ("tracewarehouse.dashboards", "templates"),
    "site.css": ("tracewarehouse.serve", "templates"),
    "charts.js": ("tracewarehouse.dashboards", "templates"),
    "site.js": ("tracewarehouse.serve", "templates"),
}
_VEGA = "vega.js"


def static(request: Request) -> Response:
    """One of the files; its address changes with its content, so a browser may keep it."""
    name = request.path_params["name"]
    if name not in _FILES and name != _VEGA:
        raise HTTPException(404)
    kind = "text/css" if name.endswith(".css") else "text/javascript"
    content = vega_script().encode() if name == _VEGA else _content(name)
    return Response(content, media_type=kind, headers={"Cache-Control": "private, max-age=86400"})


@cache
def addresses() -> dict[str, str]:
    """The addresses of the files by their names, without their endings."""
    marks = {name: sha256(_content(name)).hexdigest()[:12] for name in _FILES}
    marks[_VEGA] = version("vl-convert-python")
    return {name.replace(".", "_"): f"/static/{name}?v={mark}" for name, mark in marks.items()}


@cache
def _content(name: str) -> bytes:
    package, folder = _FILES[name]
    return (files(package) / folder / name).read_bytes()
