"""Greedy generation, one marked step at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tracewarehouse.collect.parallel.device_mesh import DeviceMesh
from tracewarehouse.collect.parallel.partition import BATCH
from tracewarehouse.collect.phase_marks import phase
from tracewarehouse.ingest.capture.manifest import PhaseMark


class DeviceModel(Protocol):
    """A model on the devices that remembers what it has seen."""

    def begin(self) -> None:
        """Start a new generation with an empty cache."""

    def forward(self, tokens: Any) -> Sequence[Any]:
        """Start a step.

        Returns:
            Logits of the last position [batch, vocabulary], the next tokens [batch, 1], and with experts how many pairs
            of token and expert were dropped of each sequence, [stages in one program, batch].
        """


@dataclass(frozen=True)
class HostTimes:
    """How long one generation took by the host's clock."""

    ttft_ns: int
    """Time to first token: the prefill step."""
    tpot_ns: float | None
    """Time per output token after the first; None when there is only one."""
    end_to_end_ns: int
    """From the start of prefill to the last token."""
    cpu_ns: int
    """CPU time of the process in it, over all threads; other work on the machine stretches it less than the others."""


@dataclass(frozen=True)
class Generation:
    """One generation as the host saw it."""

    marks: list[PhaseMark]
    logits: list[Any]
    """One tensor [batch, vocabulary] per step, still on the devices."""
    dropped: list[Any]
    """One tensor [stages, batch] per step of pairs of token and expert, still on the devices; empty without experts."""
    host_ns: list[int]
    """What the host computed in each step until its program was handed to the devices."""
    compiles: int
    """Programs compiled during it."""
    cpu_ns: int
    """CPU time of the process, over all threads."""

    @property
    def times(self) -> HostTimes:
        """Times of its first token, of each further one, and of all."""
        first, *decode = self.marks
        return HostTimes(
            ttft_ns=first.end_ns - first.start_ns,
            tpot_ns=(decode[-1].end_ns - first.end_ns) / len(decode) if decode else None,
            end_to_end_ns=self.marks[-1].end_ns - first.start_ns,
            cpu_ns=self.cpu_ns,
        )

    @property
    def host_bound_steps(self) -> list[int]:
        """Steps of which the host took more than it left for the devices."""
        pairs = zip(self.marks, self.host_ns, strict=True)
        return [mark.step for mark, host in pairs if 2 * host > mark.end_ns - mark.start_ns]


def prepare(model: DeviceModel, mesh: DeviceMesh, prompt: Any) -> Any:
    """Empty the cache and put the prompt on the devices, so that nothing but the steps is left to do."""
    import torch_xla
    import torch_xla.core.xla_model as xm

    model.begin()
    tokens = mesh.place(prompt, (BATCH, None))
    torch_xla.sync()
    xm.wait_device_ops()
    return tokens


def generate(model: DeviceModel, tokens: Any, output_length: int) -> Generation:
    """Prefill, then decode until `output_length` tokens are there; step 0 is the prefill, which gives the first."""
    import torch

    compiled_before, cpu_before = compile_count(), time.process_time_ns()
    marks, logits, dropped, host_ns = [], [], [], []
    with torch.no_grad():
        for number in range(output_length):
            with phase("prefill" if number == 0 else "decode", number) as step:
                step_logits, tokens, *step_dropped = model.forward(tokens)
                step.token = tokens
            assert step.mark is not None  # noqa: S101
            marks.append(step.mark)
            logits.append(step_logits)
            dropped += step_dropped
            host_ns.append(step.host_ns)
    cpu_ns = time.process_time_ns() - cpu_before
    return Generation(marks, logits, dropped, host_ns, compile_count() - compiled_before, cpu_ns)


def logits_on_host(generation: Generation) -> Any:
    """Logits [batch, steps, vocabulary]."""
    import torch
    from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

    return torch.stack([unwrap_sharded_tensor(step).cpu() for step in generation.logits], 1)


def dropped_on_host(generation: Generation) -> Any:
    """Pairs of token and expert that were dropped, [batch, steps]; None without experts."""
    import torch

    return torch.stack([step.cpu().sum(0) for step in generation.dropped], 1) if generation.dropped else None


def compile_count() -> int:
    """Programs compiled so far in this process."""
    import torch_xla.debug.metrics as xla_metrics

    data = xla_metrics.metric_data("CompileTime")
    return int(data[0]) if data else 0
