"""A warehouse with one run of two devices."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory

from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="session")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture directory tiny-tp2."""
    return write_capture_directory(tmp_path_factory.mktemp("captures") / "tiny")


@pytest.fixture(scope="session")
def made_once(capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "warehouse"
    with open_warehouse(folder, create=True) as warehouse:
        warehouse.ingest(capture)
    return folder


@pytest.fixture
def folder(made_once: Path, tmp_path: Path) -> Path:
    """A warehouse that holds tiny-tp2, for one test alone."""
    return Path(shutil.copytree(made_once, tmp_path / "warehouse"))
