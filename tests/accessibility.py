"""What axe-core finds on a page that is open in the headless browser."""

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


def violations(page: Page) -> list[str]:
    """What axe-core finds on the open page, of whatever impact."""
    assert _AXE is not None
    assert _AXE.submodule_search_locations
    page.evaluate(_PREPARE)
    page.evaluate((Path(_AXE.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8") + ";0")
    found = page.evaluate("axe.run({resultTypes: ['violations']}).then(result => result.violations)")
    return [f"{v['impact']} {v['id']}: {[n['html'][:200] for n in v['nodes'][:3]]}" for v in found]
