"""The seam to the machine learning stack: what runs a model and records it.

torch_xla is one such stack (tracewarehouse.collect.harness). Another, such as torch_tpu or JAX, is one more class of
the shape of `Backend`, in a module of its own, here or in any package: a run names it as `module:Class`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.ingest.capture.manifest import ModelFacts, PhaseMark, PromisedCollective

if TYPE_CHECKING:
    from tracewarehouse.collect.run_spec import RunSpec

BACKENDS = {"torch_xla": "tracewarehouse.collect.harness:TorchXlaBackend"}
"""Name to class of the backends that come with the package."""


@dataclass(frozen=True)
class Recording:
    """What a backend knows of a run that it recorded."""

    model: ModelFacts
    phases: list[PhaseMark]
    """Every step of the recorded generation by the host's clock."""
    hosts: list[str]
    """Stems of the profiles, one per host: `plugins/profile/<any folder>/<stem>.xplane.pb` in the capture."""
    prompt_source: str = "random tokens"
    checks: dict[str, Any] = field(default_factory=dict)
    """What the run proved and measured, by name."""
    promised_collectives: list[PromisedCollective] | None = None
    """What ingest must find in the capture; None promises nothing."""
    chip: str | None = None
    """Kind of the accelerator as in the table of hardware, such as `TPU v6e`; None for virtual devices."""
    devices_per_host: int | None = None
    """None where not known."""


class Backend(Protocol):
    """A machine learning stack with its profiler."""

    name: str
    """As in the manifest, and as its package is called where the manifest lists versions."""

    def require(self) -> None:
        """Make sure that the stack is installed, without importing it.

        Raises:
            MissingDependencyError: it is not; the message says what to install.
        """

    def environment(self, spec: RunSpec) -> Mapping[str, str]:
        """Variables that must be set before the stack is imported; a run has a process of its own."""

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration and leave its profiles in the capture directory.

        Raises:
            CollectError: it cannot be run, or what it computed is wrong; nothing of the capture is kept.
        """


def find_backend(name: str) -> Backend:
    """The backend of this name, or the class that `module:Class` names.

    Raises:
        CollectError: there is none.
    """
    module, _, attribute = BACKENDS.get(name, name).partition(":")
    try:
        return cast(Backend, getattr(import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CollectError(
            f"backend {name!r} cannot be used: {error}; known are {', '.join(BACKENDS)}, and any module:Class that "
            "Python finds"
        ) from None
