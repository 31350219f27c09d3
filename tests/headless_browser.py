"""A headless Chromium, driven over a pipe by the DevTools protocol: opens a page and says what happens in it."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The browser's program; None where there is none."""

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
)  # fmt: skip


class Page:
    """A page in a browser.

    Errors of its console gather in `errors`, addresses that it asks for in `requests`, those that answer in `answers`.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.answers: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._last:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def open(self, path: Path, width: int = 1440, height: int = 900, scheme: str = "light") -> None:
        """Open a report's page and wait until all of its charts are drawn."""
        self.visit(path.resolve().as_uri(), width, height, scheme)
        while not self.evaluate("document.documentElement?.dataset.drawn || null"):
            assert not self.errors, self.errors
            time.sleep(0.1)

    def visit(self, address: str, width: int = 1440, height: int = 900, scheme: str = "light") -> None:
        """Go to an address."""
        self.errors.clear()
        self.requests.clear()
        self.answers.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        gone_to = self.call("Page.navigate", url=address)
        assert "errorText" not in gone_to, gone_to

    def resize(self, width: int, height: int = 900) -> None:
        """Change the width of the window, and wait until the charts that are drawn are drawn anew."""
        self.evaluate("document.querySelectorAll('.chart svg.marks').forEach(s => { s.dataset.before = 'yes'; })")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.evaluate(
            "(async () => { const drawn = () => [...document.querySelectorAll('.chart svg.marks')]; let last = [];"
            " for (;;) { await new Promise(done => setTimeout(done, 300)); const now = drawn();"
            " if (!now.some(s => s.dataset.before) && now.every((s, i) => s === last[i])) return; last = now; } })()"
        )

    def wheel(self, x: float, y: float, delta: float, *, is_ctrl_held: bool = False) -> None:
        """Turn the wheel over a point of what is in view."""
        self.call(
            "Input.dispatchMouseEvent", type="mouseWheel", x=x, y=y, deltaX=0, deltaY=delta, modifiers=2 * is_ctrl_held
        )

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], 300)
            assert ready, "the browser says nothing"
            received = os.read(self._read, 1 << 20)
            assert received, "the browser has ended"
            self._rest += received
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, found: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(found["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and found["type"] in ("error", "warning"):
            self.errors.append(" ".join(str(a.get("value", a.get("description"))) for a in found["args"]))
        elif method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.errors.append(found["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(found["request"]["url"])
        elif method == "Network.responseReceived":
            self.answers.append(found["response"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser with its data in a folder, ended at the end; skips the test where there is none."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium; apt-get install chromium")
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()

    def pipes() -> None:  # the protocol's pipe is on descriptors 3 and 4
        low, high = os.dup2(to_read, 103), os.dup2(from_write, 104)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [CHROMIUM, *_FLAGS, f"--user-data-dir={folder}", "about:blank"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=pipes,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(from_read, to_write)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to_write)
        os.close(from_read)
