"""The script of Vega is that of vl-convert, also from the user's cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import vl_convert

from tracewarehouse.dashboards.writing import vega_script


def test_it_is_kept_and_made_anew_if_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    bundled = vl_convert.javascript_bundle()
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda: made.append(1) or bundled)

    def script(cache: str) -> str:
        monkeypatch.setenv("TRACEWAREHOUSE_CACHE", cache)
        vega_script.cache_clear()
        return vega_script()

    assert script(str(tmp_path)) == script(str(tmp_path)) == bundled
    assert len(made) == 1
    [kept] = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert script(str(tmp_path)) == script(str(tmp_path)) == bundled
    assert len(made) == 2
    assert script("/dev/null/nowhere") == bundled
    assert len(made) == 3
    vega_script.cache_clear()
