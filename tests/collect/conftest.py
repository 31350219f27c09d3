"""Fixtures of the collector's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collect.fake_cloud import Cloud, compiled_programs
from tests.collect.torch_processes import TorchProcesses
from tracewarehouse.collect.reference_cache import FOLDER


@pytest.fixture(scope="session")
def cloud_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of the fake cloud, compiled once."""
    return compiled_programs(tmp_path_factory.mktemp("cloud-programs"))


@pytest.fixture
def cloud(tmp_path: Path, cloud_programs: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """A Google Cloud in a folder."""
    return Cloud(tmp_path, cloud_programs, monkeypatch)


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
    """Runs programs in processes that have JAX, and torch without torch_xla, from the start."""
    with TorchProcesses(tmp_path_factory.mktemp("jax-processes"), "jax") as processes:
        yield processes
