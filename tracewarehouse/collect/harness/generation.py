"""Greedy generation, one marked step at a time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tracewarehouse.collect.harness.stack import DeviceModel, Stack
from tracewarehouse.ingest.capture.manifest import PhaseMark


@dataclass(frozen=True)
class HostTimes:
    """The times of one generation by the host's clock."""

    ttft_ns: int
    """Time to first token: the prefill step."""
    tpot_ns: float | None
    """Time per output token after the first; None when there is only one."""
    end_to_end_ns: int
    """Time from the start of prefill to the last token."""
    cpu_ns: int
    """CPU time of the process during it, over all threads; other work on the machine stretches it less than the other
    times."""


@dataclass(frozen=True)
class Generation:
    """One generation as the host saw it."""

    marks: list[PhaseMark]
    logits: list[Any]
    """One tensor [batch, vocabulary] per step, still on the devices."""
    dropped: list[Any]
    """One tensor [stages, batch] per step: dropped pairs of token and expert, still on the devices; empty without
    experts."""
    host_ns: list[int]
    """CPU time of the host in each step until it handed the program to the devices."""
    compiles: int
    """Programs compiled during it."""
    cpu_ns: int
    """CPU time of the process, over all threads."""

    @property
    def times(self) -> HostTimes:
        """The times to the first token, per further token, and end to end."""
        first, *decode = self.marks
        return HostTimes(
            ttft_ns=first.end_ns - first.start_ns,
            tpot_ns=(decode[-1].end_ns - first.end_ns) / len(decode) if decode else None,
            end_to_end_ns=self.marks[-1].end_ns - first.start_ns,
            cpu_ns=self.cpu_ns,
        )

    @property
    def host_bound_steps(self) -> list[int]:
        """Steps in which the host took more time than it left for the devices."""
        pairs = zip(self.marks, self.host_ns, strict=True)
        return [mark.step for mark, host in pairs if 2 * host > mark.end_ns - mark.start_ns]


def prepare(stack: Stack, model: DeviceModel, prompt: Any) -> Any:
    """Empty the cache and bring the prompt to the devices, so that only the steps are left to run."""
    model.begin()
    return stack.place(prompt)


def generate(stack: Stack, model: DeviceModel, tokens: Any, output_length: int) -> Generation:
    """Prefill, then decode until there are `output_length` tokens; step 0 is the prefill, which gives the first.

    Each step's program starts, and ends on all devices, inside the step's host event.
    """
    import torch

    compiled_before, cpu_before = stack.compile_count(), time.process_time_ns()
    marks, logits, dropped, host_ns = [], [], [], []
    with torch.no_grad():
        for number in range(output_length):
            name = "prefill" if number == 0 else "decode"
            start, thread_start = time.time_ns(), time.thread_time_ns()
            with stack.mark(name, number):
                step_logits, tokens, *step_dropped = model.forward(tokens)
                # CPU time of this thread, without the time that it waited.
                host_ns.append(time.thread_time_ns() - thread_start)
                stack.wait(tokens)
            marks.append(PhaseMark(name=name, step=number, start_ns=start, end_ns=time.time_ns()))
            logits.append(step_logits)
            dropped += step_dropped
    cpu_ns = time.process_time_ns() - cpu_before
    return Generation(marks, logits, dropped, host_ns, stack.compile_count() - compiled_before, cpu_ns)


def logits_on_host(stack: Stack, generation: Generation) -> Any:
    """Return the logits [batch, steps, vocabulary]."""
    import torch

    return torch.stack([stack.on_host(step) for step in generation.logits], 1)


def dropped_on_host(stack: Stack, generation: Generation) -> Any:
    """Return the pairs of token and expert that were dropped, [batch, steps]; None without experts."""
    import torch

    return torch.stack([stack.on_host(s).sum(0) for s in generation.dropped], 1) if generation.dropped else None
