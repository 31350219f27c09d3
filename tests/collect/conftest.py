"""Fixtures of the collector's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collect.fake_cloud import Cloud
from tracewarehouse.collect.reference_cache import FOLDER


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A Google Cloud in a folder."""
    return Cloud(tmp_path, monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep references in a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("references")))
        yield
