"""What axe-core finds on a page that is open in the headless browser, and which of its texts lie on others."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from headless_browser import Page

_AXE = importlib.util.find_spec("axe_playwright_python")

HAS_AXE = _AXE is not None
needs_axe = pytest.mark.skipif(_AXE is None, reason="there is no axe-core; `make test` installs it where pip has it")

# marks have no text of their own and are thousands; opened are one of each kind of what can be opened
_PREPARE = """document.querySelectorAll('.role-mark > *').forEach(
    mark => mark.tagName === 'text' || mark.querySelector('text') || mark.remove());
  for (const one of ['details.unknown', 'details.metric', 'details[data-rows]'])
    document.querySelector(one)?.setAttribute('open', ''); 0"""


_COVERED = """(() => {
  const boxes = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.textContent.trim(), of = walk.currentNode.parentElement;
    const isShown = of.checkVisibility({opacityProperty: true, visibilityProperty: true});
    if (!text || !isShown || of.closest('script, style, title, desc')) continue;
    const range = document.createRange();
    const scrolled = (of.closest('.rows, pre') ?? document.body).getBoundingClientRect();
    range.selectNodeContents(walk.currentNode);
    for (const r of range.getClientRects()) if (r.width > 1 && r.top < scrolled.bottom && r.bottom > scrolled.top)
      // the letters, without the space above and below them
      boxes.push([r.left, r.top + 0.2 * r.height, r.right, r.bottom - 0.2 * r.height, text.slice(0, 40)]);
  }
  boxes.sort((a, b) => a[1] - b[1]);
  const found = [];
  boxes.forEach((a, i) => {
    for (const b of boxes.slice(i + 1)) {
      if (b[1] >= a[3] - 2) break;
      if (Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 2) found.push(`${a[4]} | ${b[4]}`);
    }
  });
  return found; })()"""


def covered_texts(page: Page) -> list[str]:
    """The pairs of texts of the open page that lie on each other."""
    found: list[str] = page.evaluate(_COVERED)
    return found


def violations(page: Page) -> list[str]:
    """What axe-core finds on the open page, of whatever impact."""
    assert _AXE is not None
    assert _AXE.submodule_search_locations
    page.evaluate(_PREPARE)
    page.evaluate((Path(_AXE.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8") + ";0")
    found = page.evaluate("axe.run({resultTypes: ['violations']}).then(result => result.violations)")
    return [f"{v['impact']} {v['id']}: {[n['html'][:200] for n in v['nodes'][:3]]}" for v in found]
