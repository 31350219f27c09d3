"""Errors of the collector; every message says what was looked for, what was found and what to do."""

from __future__ import annotations

from tracewarehouse.ingest.errors import TracewarehouseError


class CollectError(TracewarehouseError):
    """A capture cannot be recorded."""


class ExperimentError(CollectError):
    """An experiment file or a run's specification is not valid."""


class MissingDependencyError(CollectError):
    """The machine learning stack of the collector is not installed."""


class CheckError(CollectError):
    """A run finished, but its results or its recording are wrong."""


class TpuError(CollectError):
    """A TPU slice cannot be created, used or deleted."""


class QuotaError(TpuError):
    """A slice does not fit the quota."""


def require_torch_xla() -> None:
    """Make sure that torch, torch_xla and transformers are installed, without importing them.

    Raises:
        MissingDependencyError: one is missing; the message says what to install.
    """
    missing = [name for name in ("torch", "torch_xla", "transformers") if not _is_installed(name)]
    if missing:
        raise MissingDependencyError(
            f"recording a capture needs {', '.join(missing)}, which is not installed: "
            "pip install 'tracewarehouse[collect]' (Linux, Python 3.11 to 3.13)"
        )


def require_libtpu() -> None:
    """Make sure that the TPU driver is installed, without loading it.

    Raises:
        MissingDependencyError: it is missing; the message says what to install.
    """
    if not _is_installed("libtpu"):
        raise MissingDependencyError(
            "recording on TPUs needs libtpu, which is not installed: pip install 'torch_xla[tpu]==2.9.0'"
        )


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ImportError:
        return False
