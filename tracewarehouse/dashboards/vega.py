"""Brings the script that draws specifications: for pages, and for a chart alone in a cell of a notebook."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from html import escape
from importlib.metadata import version
from typing import Any

from tracewarehouse.ingest.capture.locations import cache_folder
from tracewarehouse.ingest.lake.durable_files import placed_whole

_NOTEBOOK = """<!DOCTYPE html><meta charset="utf-8"><body style="margin: 0"><div id="chart"></div>
<script type="module">{script}
await window.vegaEmbed("#chart", {chart}, {{renderer: "svg", actions: {{export: true, source: false, editor: false}}}});
new ResizeObserver(() => {{
  window.frameElement.style.height = document.documentElement.scrollHeight + 20 + "px";
}}).observe(document.getElementById("chart"));
</script>"""
"""A page with one chart, as high as the chart is."""


def notebook_cell(specification: dict[str, Any], title: str) -> str:
    """HTML of a chart for a notebook: a page in a frame, with its script, so that it draws without a network."""
    script = vega_script().replace("</script", "<\\/script")
    page = escape(_NOTEBOOK.format(script=script, chart=script_json(specification)))
    return f'<iframe srcdoc="{page}" title="{escape(title)}" width="100%" height="420" frameborder="0"></iframe>'


def script_json(value: Any) -> str:
    """JSON for a script element: no text in it can end the element."""
    text = json.dumps(value, separators=(",", ":"), default=str)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def vega_script() -> str:
    """JavaScript that draws a specification, the same for every page.

    It is kept in the user's cache folder, since vl-convert takes two seconds to bundle it.
    """
    name = f"vega-{version('vl-convert-python')}.js"
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
        digest, _, kept = (cache_folder() / name).read_bytes().partition(b"\n")
        if digest == _script_digest(kept):
            return kept.decode()

    import vl_convert

    bundle: Callable[[], str] = vl_convert.javascript_bundle  # type: ignore[assignment]  # its snippet is optional
    script = bundle()
    with suppress(OSError, RuntimeError):
        cache_folder().mkdir(parents=True, exist_ok=True)
        with placed_whole(cache_folder() / name) as part:
            part.write_bytes(b"\n".join((_script_digest(script.encode()), script.encode())))
    return script


def _script_digest(script: bytes) -> bytes:
    return hashlib.sha256(script).hexdigest().encode()
