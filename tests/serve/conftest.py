"""The warehouse that the tests serve: runs with hostile names, a run of two devices, and recorded captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from page_client import HOSTILE, client_of
from starlette.testclient import TestClient
from tiny_capture import write_capture_directory
from xplane_builder import Space

from tracewarehouse.warehouse import open_warehouse


@pytest.fixture(scope="session")
def host_only(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Makes a capture of the host alone, another one for each number."""
    folder = tmp_path_factory.mktemp("host")

    def made(number: int) -> Path:
        space = Space()
        space.host().line("python").event("f", 1, 2 + number)
        return space.write(folder / f"{number}.xplane.pb")

    return made


@pytest.fixture(scope="session")
def folder(
    copy_of_captures: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory, host_only: Callable[[int], Path]
) -> Path:
    """A warehouse with a run of two devices, runs with hostile names, and two captures of one model."""
    made = tmp_path_factory.mktemp("served")
    copy_of_captures(made / "warehouse", "llama-tp4-b4-i16-o17", "llama-tp4-sp-b4-i16-o9")
    with open_warehouse(made / "warehouse") as opened:
        opened.ingest(write_capture_directory(made / "tiny"))
        for number, name in enumerate(HOSTILE):
            opened.ingest(host_only(number), name=name)
    return made / "warehouse"


@pytest.fixture(scope="session")
def ids(folder: Path) -> dict[str, str]:
    """Run ids by the names of the runs."""
    with open_warehouse(folder) as opened:
        return {r.name: r.run_id for r in opened.lake.runs()}


@pytest.fixture(scope="session")
def client(folder: Path) -> Iterator[TestClient]:
    """A client of a server of this warehouse."""
    with client_of(folder) as opened:
        yield opened
