"""A fake cloud for the tests of `tw tpu`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.collect.tpu.fake_cloud import Cloud, compiled_programs


@pytest.fixture(scope="session")
def cloud_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the fake cloud, compiled once."""
    return compiled_programs(tmp_path_factory.mktemp("cloud-programs"))


@pytest.fixture
def cloud(tmp_path: Path, cloud_programs: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A Google Cloud in a folder."""
    return Cloud(tmp_path, cloud_programs, monkeypatch)
