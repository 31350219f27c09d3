"""The page in a headless Chromium: charts are drawn without an error, the wheel moves the page, print cuts nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from accessibility import HAS_AXE, covered_texts, needs_axe, violations
from headless_browser import CHROMIUM, Page, browser

from tracewarehouse.dashboards.registry import RUN_CHARTS
from tracewarehouse.dashboards.report import Report, comparison_report, run_report, study_report
from tracewarehouse.dashboards.writing import write_text
from tracewarehouse.warehouse import Warehouse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("asked_once"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; apt-get install chromium"),
]

MARKS = """[...document.querySelectorAll('.chart')].map(place => [place.dataset.chart,
  place.querySelectorAll('svg [class^="mark-"]:not([class*="role-axis"]):not([class*="role-legend"]) > *').length])"""
TOO_WIDE = """[...document.querySelectorAll('.chart')]
  .filter(place => place.scrollWidth > place.clientWidth + 1).map(place => place.dataset.chart)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def reports(recorded: Warehouse, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Report, Path]]:
    """A page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    ours, theirs = "llama-tp4-sp-b4-i16-o9", "llama-tp4-b4-i16-o17"
    made = {
        "runs": run_report(recorded, [theirs, "deepseek_v2-ep4-b4-i16-o9"]),
        "run": run_report(recorded, [theirs]),
        "comparison": comparison_report(recorded, ours, theirs, is_unlike_allowed=True),
        "study": study_report(recorded, "SELECT run_id FROM main.runs"),
    }
    return {kind: (report, write_text(report, folder / f"{kind}.html")) for kind, report in made.items()}


OPEN_ALL = (
    "(async () => { for (const d of document.querySelectorAll('details.folded')) d.open = true;"
    " while ([...document.querySelectorAll('.chart')].some(c => !c.querySelector('svg')))"
    " await new Promise(done => setTimeout(done, 20)); })()"
)
FIRST_SCREEN = """[...document.querySelectorAll('section .first svg.bar, section .words p, #timeline svg.marks')]
  .map(part => part.getBoundingClientRect().bottom)"""


def test_the_first_screen_has_bars_sentences_and_the_timeline(
    page: Page, reports: dict[str, tuple[Report, Path]]
) -> None:
    """All within 900 of 1440 pixels; each sentence leads to a chart, which opens if it is folded.

    The devices are virtual, so no sentence is of links.
    """
    page.open(reports["run"][1], 1440, 900)
    bottoms = page.evaluate(FIRST_SCREEN)
    assert len(bottoms) == 2 + 2 + 1
    assert max(bottoms) < 900
    links = page.evaluate("[...document.querySelectorAll('.words a')].map(a => a.getAttribute('href'))")
    assert "#exposed-communication" in links
    folded = "document.getElementById('overlap').closest('details').open"
    assert not page.evaluate(folded)
    opened = (
        f"(async () => {{ location.hash = 'overlap'; while (!{folded} || !document.querySelector('#overlap svg'))"
        " await new Promise(done => setTimeout(done, 20)); return true; })()"
    )
    assert page.evaluate(opened)


@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [("runs", 1440, "light"), ("run", 800, "dark"), ("comparison", 800, "dark"), ("study", 1440, "light")],
)
def test_every_chart_is_drawn(
    page: Page, reports: dict[str, tuple[Report, Path]], kind: str, width: int, scheme: str
) -> None:
    """Wide or narrow, then very narrow, and on paper; the charts of a run are in two of these pages.

    No text lies on another, and axe-core looks at the narrowest page and the paper where it is installed.
    """
    report, path = reports[kind]
    page.open(path, width, scheme=scheme)
    page.evaluate(OPEN_ALL)
    for resized in (None, 390):
        if resized:
            page.resize(resized)
        marks = dict(page.evaluate(MARKS))
        assert sorted(marks) == sorted(name for name, _ in report.figures())
        assert [name for name, count in marks.items() if not count] == []
        assert page.errors == []
        assert [r for r in page.requests if not r.startswith(("file:", "data:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(TOO_WIDE) == []
        assert covered_texts(page) == []
    assert not HAS_AXE or violations(page) == []
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=700, height=1000, deviceScaleFactor=1, mobile=False)
    assert covered_texts(page) == []
    assert not HAS_AXE or kind == "runs" or violations(page) == []
    page.call("Emulation.setEmulatedMedia", media="")


def test_texts_on_each_other_are_found(page: Page, tmp_path: Path) -> None:
    """The tests above see them, for they would see these."""
    file = tmp_path / "page.html"
    file.write_text("<body>above<br>below<svg width=90 height=40><text y=20>one</text><text x=9 y=22>two</text></svg>")
    page.visit(file.as_uri())
    while page.evaluate("document.readyState") != "complete":
        assert page.errors == []
    assert covered_texts(page) == ["one | two"]


def test_a_notebook_draws_a_chart_without_a_network(page: Page, recorded: Warehouse, tmp_path: Path) -> None:
    """The cell's frame asks for nothing, draws the bars, and becomes as high as its chart."""
    cell = RUN_CHARTS["traffic"](recorded, "llama-tp4-b4-i16-o17")._repr_mimebundle_()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!DOCTYPE html><meta charset=utf-8><body>{cell['text/html']}</body>")
    page.visit(notebook.as_uri(), 800)
    while page.evaluate("document.readyState") != "complete":
        assert page.errors == []
    frame = "document.querySelector('iframe')"
    while not page.evaluate(f"{frame}.contentDocument.querySelectorAll('svg .mark-rect path').length"):
        assert page.errors == []
    while page.evaluate(f"{frame}.style.height") == "":
        assert page.errors == []
    assert [r for r in page.requests if not r.startswith(("file:", "data:", "about:"))] == []
    assert page.evaluate(f"{frame}.contentDocument.documentElement.scrollHeight <= parseInt({frame}.style.height)")


def test_the_wheel_over_every_chart_moves_the_page(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    report, path = reports["run"]
    page.open(path)
    page.evaluate(OPEN_ALL)
    for name, _ in report.figures():
        before, y = page.evaluate(
            f"(() => {{ const box = document.querySelector('[data-chart=\"{name}\"] svg');"
            " box.scrollIntoView({block: 'center'}); const at = box.getBoundingClientRect();"
            " return [window.scrollY, at.top + at.height / 2]; })()"
        )
        page.wheel(600, y, -120)
        moved = page.evaluate(
            "new Promise(done => { const begun = performance.now(); const look = () =>"
            f" window.scrollY < {before} ? done(true) : performance.now() - begun > 5000 ? done(false)"
            " : requestAnimationFrame(look); look(); })"
        )
        assert moved, name


def test_ctrl_and_the_wheel_zoom_the_timeline(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    page.open(reports["run"][1])
    labels = (
        "[...document.querySelectorAll('[data-chart=timeline] .role-axis-label text')].map(t => t.textContent).join()"
    )
    y = page.evaluate(
        "(() => { const box = document.querySelector('[data-chart=timeline] svg');"
        " box.scrollIntoView({block: 'center'}); const at = box.getBoundingClientRect();"
        " return at.top + at.height / 2; })()"
    )
    before, scrolled = page.evaluate(labels), page.evaluate("window.scrollY")
    page.wheel(700, y, -240, is_ctrl_held=True)
    after = page.evaluate(
        f"new Promise(done => {{ const begun = performance.now(); const look = () => {{ const now = {labels};"
        f" now !== '{before}' || performance.now() - begun > 5000 ? done(now) : requestAnimationFrame(look); }};"
        " look(); })"
    )
    assert after != before
    assert page.evaluate("window.scrollY") == scrolled


def test_a_click_on_a_class_singles_it_out(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    """In the timeline's legend; the bars of other classes become pale."""
    page.open(reports["run"][1])
    x, y = page.evaluate(
        "(() => { const label = document.querySelector('[data-chart=timeline] .role-legend-label text');"
        " label.scrollIntoView({block: 'center'}); const at = label.getBoundingClientRect();"
        " return [at.left + at.width / 2, at.top + at.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    pale = """new Promise(done => { const begun = performance.now(); const look = () => {
      const bars = [...document.querySelectorAll('[data-chart=timeline] .mark-rect.role-mark path')];
      const found = bars.filter(bar => bar.getAttribute('opacity') === '0.08').length;
      found || performance.now() - begun > 5000 ? done([found, bars.length]) : requestAnimationFrame(look); };
      look(); })"""
    faded, bars = page.evaluate(pale)
    assert 0 < faded < bars


def test_rows_and_values_are_there_when_asked_for(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    report, path = reports["run"]
    page.open(path)
    page.evaluate(OPEN_ALL)
    for name, figure in report.figures():
        rows = page.evaluate(
            f"(async () => {{ const details = document.querySelector('details[data-rows=\"{name}\"]');"
            " details.open = true; await new Promise(done => setTimeout(done, 0));"
            " return details.querySelectorAll('tbody tr').length; })()"
        )
        assert rows == min(len(figure.rows), 500), name
    found = page.evaluate(
        "(() => { const input = document.querySelector('input[type=search]'); input.value = 'exposed_comm prefill 0';"
        " input.dispatchEvent(new Event('input')); return document.querySelector('.found').innerText; })()"
    )
    assert "device_id 0" in found
    assert "decode" not in found


def test_a_link_opens_the_metric(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    page.open(reports["run"][1])
    opened = page.evaluate(
        "(async () => { const link = document.querySelector('#overlap a[href$=metric-overlap_ratio]'); link.click();"
        " const target = document.querySelector(link.getAttribute('href'));"
        " while (!target.querySelector('tbody tr')) await new Promise(done => setTimeout(done, 20));"
        " return target.open && target.querySelectorAll('tbody tr').length; })()"
    )
    assert opened == 4


def test_print_cuts_no_chart(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    """On paper every drawing is as wide as its panel at most."""
    page.open(reports["run"][1])
    page.call("Emulation.setEmulatedMedia", media="print")
    page.call("Emulation.setDeviceMetricsOverride", width=700, height=1000, deviceScaleFactor=1, mobile=False)
    cut = (
        "[...document.querySelectorAll('.chart svg.marks')].filter(s => s.getBoundingClientRect().right >"
        " s.closest('.panel').getBoundingClientRect().right).length"
    )
    assert page.evaluate(cut) == 0
    pdf = base64.b64decode(page.call("Page.printToPDF", printBackground=False)["data"])
    page.call("Emulation.setEmulatedMedia", media="")
    assert pdf.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) > 3


def test_print_shows_the_values_of_metrics_that_have_few(page: Page, reports: dict[str, tuple[Report, Path]]) -> None:
    report, path = reports["run"]
    page.open(path)
    page.evaluate(
        "window.addEventListener('beforeprint', () => { window.printed = Object.fromEntries([...document"
        ".querySelectorAll('details.metric[open]')].map(d => [d.id, d.querySelectorAll('tbody tr').length])); })"
    )
    page.call("Page.printToPDF", printBackground=False)
    section = report.sections[0]
    assert page.evaluate("window.printed") == {
        f"{section.key}-metric-{v.metric}": len(v.rows) for v in section.values if len(v.rows) <= 12
    }
    assert page.evaluate("document.querySelectorAll('details.metric[open]').length") == 0


@needs_axe
def test_axe_finds_nothing_on_the_page_of_a_tpu(page: Page, shared_captures: Warehouse, tmp_path: Path) -> None:
    report = run_report(shared_captures, ["tpu-v6e-4chip-host-offload"])
    assert "memory" in dict(report.figures())
    page.open(write_text(report, tmp_path / "tpu.html"), 800)
    assert violations(page) == []
    assert page.errors == []
