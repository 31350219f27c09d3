"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from tracewarehouse.queries.memory_limit import VARIABLE

if TYPE_CHECKING:
    from tracewarehouse.warehouse import Warehouse

ROOT = Path(__file__).resolve().parent.parent

hypothesis.settings.register_profile("any machine", deadline=None)  # a slow one must pass
hypothesis.settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that writes golden values anew."""
    parser.addoption("--update-golden", action="store_true", help="write golden values anew; review the difference")


@pytest.fixture(autouse=True)
def memory_limit_of_the_caller() -> Iterator[None]:
    """Take back the memory limit that a command or server set for its process, which is that of the tests here."""
    before = os.environ.get(VARIABLE)
    yield
    if before is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = before


def pytest_configure() -> None:
    """Take interrupts again, which a script's background job or `nohup` ignores, as would what the tests interrupt."""
    for number, action in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, action)


@pytest.fixture(scope="session")
def all_captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouse]:
    """A warehouse of all captures in data/, for tests that only read it."""
    from tracewarehouse.warehouse import open_warehouse

    with open_warehouse(tmp_path_factory.mktemp("all-captures") / "warehouse", create=True) as opened:
        opened.ingest(ROOT / "data" / "captures")
        yield opened


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of real captures that lies beside the repository; tests that need it skip where it is absent."""
    folder = Path(os.environ.get("TRACEWAREHOUSE_TEST_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"the real captures are not here: no folder {folder.name} beside the repository")
    return folder
