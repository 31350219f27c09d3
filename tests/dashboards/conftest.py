"""The warehouse that the tests of charts draw: a run of two devices, one of the host alone, and recorded captures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_capture import write_capture_directory
from xplane_builder import Space

from tracewarehouse.warehouse import Warehouse, open_warehouse

CAPTURES = Path(__file__).parents[2] / "data" / "captures"


@pytest.fixture(scope="session")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse with a run of two devices, and a run of the host alone whose name is hostile."""
    folder = tmp_path_factory.mktemp("charts")
    with open_warehouse(folder / "warehouse", create=True) as opened:
        opened.ingest(write_capture_directory(folder / "tiny"))
        space = Space()
        space.host().line("python").event("f", 1, 2)
        opened.ingest(space.write(folder / "x.xplane.pb"), name="<script>alert('x')</script>")
        yield opened


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse with three captures of data/: two of one model, and one whose collectives are all-to-all."""
    with open_warehouse(tmp_path_factory.mktemp("recorded") / "warehouse", create=True) as opened:
        for name in ("llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9", "deepseek_v2-ep4-b4-i16-o9"):
            opened.ingest(CAPTURES / name)
        yield opened
