"""Defines what the harness asks of a machine learning stack: a model on the devices, marks, a barrier, a profiler.

torch_xla (tracewarehouse.collect.torch_xla.backend) and JAX (tracewarehouse.collect.jax.backend) implement it. The rest
of a run is the same for both: prompts, weights, reference, generations, checks, promises, manifest and card.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tracewarehouse.collect.harness.subject import Subject


class DeviceModel(Protocol):
    """A model on the devices that remembers what it has seen."""

    def begin(self) -> None:
        """Start a new generation with an empty cache; the first time, also compile the steps."""

    def forward(self, tokens: Any) -> Sequence[Any]:
        """Start a step.

        Returns:
            Logits of the last position [batch, vocabulary], the next tokens [batch, 1], and with experts the dropped
            pairs of token and expert per sequence, [stages in one program, batch].
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
        """Bring prompt tokens [batch, length] to the devices; they are there when this returns."""

    def mark(self, name: str, step: int) -> AbstractContextManager[Any]:
        """Return a host event of the profiler that carries the phase and number of a step."""

    def wait(self, value: Any) -> None:
        """Wait until all devices have a result of the last program."""

    def on_host(self, value: Any) -> Any:
        """Return a value on the devices as a torch tensor on the host."""

    def compile_count(self) -> int:
        """Return how many programs were compiled so far in this process."""
