"""Fixtures of the collector's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.checks.reference import FOLDER


@pytest.fixture(scope="session", autouse=True)
def references(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep references in a folder of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(tmp_path_factory.mktemp("references")))
        yield


@pytest.fixture(scope="session")
def torch_processes(references: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchProcesses]:
    """Runs programs in processes that have torch_xla from the start."""
    with TorchProcesses(tmp_path_factory.mktemp("torch-processes")) as processes:
        yield processes


@pytest.fixture(scope="session")
def jax_processes(references: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchProcesses]:
    """Runs programs in processes that have JAX from the start, and nothing of torch."""
    with TorchProcesses(tmp_path_factory.mktemp("jax-processes"), "jax") as processes:
        yield processes
