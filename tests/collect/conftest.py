"""Fixtures of the collector's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collect.fake_cloud import Cloud


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A Google Cloud in a folder."""
    return Cloud(tmp_path, monkeypatch)
