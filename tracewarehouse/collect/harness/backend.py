"""Defines the interfaces to a machine learning stack, which runs a model and records it.

A backend is one class that implements `Backend`, in a room beside jax/, torch_xla/ and torch_tpu/ or in any other
package: a run names it as `module:Class`. Its module imports the stack in functions only. A backend that implements
`Stack` too shares the rest of a run with the others: prompts, weights, reference, generations, checks, promises,
manifest and card.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from tracewarehouse.collect.errors import CollectError
from tracewarehouse.collect.harness.subject import Subject
from tracewarehouse.collect.run_spec import RunSpec
from tracewarehouse.ingest.capture.manifest import ModelFacts, PhaseMark, PromisedCollective

BACKENDS = {
    "jax": "tracewarehouse.collect.jax.backend:JaxBackend",
    "torch_xla": "tracewarehouse.collect.torch_xla.backend:TorchXlaBackend",
    "torch_tpu": "tracewarehouse.collect.torch_tpu.backend:TorchTpuBackend",
}
"""Name to class of the backends that come with the package."""


@dataclass(frozen=True)
class Recording:
    """A backend's knowledge of a run that it recorded."""

    model: ModelFacts | None
    """None for microbenchmarks."""
    phases: list[PhaseMark]
    """Every step of the recorded generation, on the host's clock."""
    hosts: list[str]
    """Stems of the profiles, one per host: `plugins/profile/<any folder>/<stem>.xplane.pb` in the capture."""
    prompt_source: str = "random tokens"
    checks: dict[str, Any] = field(default_factory=dict)
    """Results of checks and measurements, by name."""
    promised_collectives: list[PromisedCollective] | None = None
    """Collectives that ingest must find in the capture; None promises nothing."""
    chip: str | None = None
    """Kind of the accelerator, as in the hardware table, such as `TPU v6e`; None for virtual devices."""
    devices_per_host: int | None = None
    """Devices per host; None if unknown."""


class Backend(Protocol):
    """A machine learning stack with its profiler."""

    name: str
    """Name of the backend in the manifest, and of its package in the manifest's list of versions."""

    def require(self) -> None:
        """Make sure that the stack is installed, without importing it.

        Raises:
            MissingDependencyError: it is not installed; the message says what to install.
        """

    def environment(self, spec: RunSpec) -> Mapping[str, str]:
        """Return the variables to set before the stack is imported; every run has its own process."""

    def record(self, spec: RunSpec, capture: Path) -> Recording:
        """Run one configuration, and leave its profiles in the capture directory.

        Raises:
            CollectError: it cannot be run, or its result is wrong; nothing of the capture is kept.
        """


class BackendOfProcesses(Backend, Protocol):
    """A backend whose runs may take several processes, each of which records its own profile."""

    def record_part(self, spec: RunSpec, number: int, shared: Path) -> None:
        """Run one process of a run, by its number; all of them use the folder `shared`."""


def find_backend(name: str) -> Backend:
    """Return the backend of this name, or the class that `module:Class` names."""
    module, _, attribute = BACKENDS.get(name, name).partition(":")
    try:
        return cast(Backend, getattr(import_module(module), attribute)())
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise CollectError(
            f"backend {name!r} cannot be used: {error}; known are {', '.join(BACKENDS)}, and any module:Class that "
            "Python finds"
        ) from None


class DeviceModel(Protocol):
    """A model on the devices that remembers what it has seen."""

    def begin(self) -> None:
        """Start a new generation with an empty cache; the first time, also compile the steps."""

    def forward(self, tokens: Any) -> Sequence[Any]:
        """Start a step.

        Returns:
            Logits of the last position [batch, vocabulary], the next tokens [batch, 1], and with experts what
            they count per sequence, [stages in one program, batch]: dropped pairs of token and expert; or as served,
            without a capacity factor, the devices of ep to which its tokens went.
        """


class Profiler(Protocol):
    """The profiler of the stack, which writes plugins/profile/<time>/<host>.xplane.pb."""

    def start_profiler(self, logdir: Path) -> None:
        """Begin to record into a log directory."""

    def stop_profiler(self) -> None:
        """End the recording and write it."""


class Stack(Profiler, Protocol):
    """A stack with the devices of one run."""

    @property
    def devices_per_host(self) -> int:
        """Number of devices of this host."""

    def model(self, subject: Subject) -> DeviceModel:
        """Bring a model to the devices, split as its run says."""

    def place(self, prompt: Any) -> Any:
        """Bring prompt tokens, [batch, length] in numpy, to the devices; they are there when this returns."""

    def mark(self, name: str, step: int) -> AbstractContextManager[Any]:
        """Return a host event of the profiler that carries the phase and number of a step."""

    def wait(self, value: Any) -> None:
        """Wait until all devices have a result of the last program."""

    def wait_for_all(self) -> None:
        """Wait until all processes of the run are here."""

    def total(self, count: int) -> int:
        """Sum a number over the processes of the run."""

    def on_host(self, value: Any) -> Any:
        """Return a value on the devices of all processes in numpy; values that are not integers become float32."""

    def compile_count(self) -> int:
        """Return how many programs were compiled so far in this process."""
