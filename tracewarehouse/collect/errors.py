"""Errors of the collector; every message says what was looked for, what was found and what to do."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Make sure that what torch_xla needs is installed, without importing it."""
    require_packages(("torch", "torch_xla", "transformers"), "recording a capture", "collect")


def require_packages(packages: Sequence[str], what: str, extra: str) -> None:
    """Make sure that packages are installed, without importing them; `extra` of tracewarehouse brings them."""
    if missing := [name for name in packages if not _is_installed(name)]:
        raise MissingDependencyError(
            f"{what} needs {', '.join(missing)}, which is not installed: pip install 'tracewarehouse[{extra}]' "
            "(Linux, Python 3.11 to 3.13), or name another interpreter with --python"
        )


def require_libtpu(backend: str) -> None:
    """Make sure that the TPU driver is installed, without loading it."""
    if not _is_installed("libtpu"):
        package = {"jax": "jax[tpu]", "torch_tpu": "torch_tpu"}.get(backend, "torch_xla[tpu]==2.9.0")
        raise MissingDependencyError(f"recording on TPUs needs libtpu, which is not installed: pip install '{package}'")


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(package) is not None
    except ImportError:
        return False
