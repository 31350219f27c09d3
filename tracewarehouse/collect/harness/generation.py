"""Greedy generations, one marked step at a time: first to warm up, then in turns with the profiler off and on."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.collect.harness.backend import DeviceModel, Profiler, Stack
from tracewarehouse.ingest.capture.manifest import PhaseMark
from tracewarehouse.ingest.capture_names import xplane_files

_Result = TypeVar("_Result")

MAX_WARMUPS = 4
PROFILED_PAIRS = 5
"""Generations with the profiler off, and as many with it on; host times are medians over them."""


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
    """One array [batch, vocabulary] per step, still on the devices."""
    counted: list[Any]
    """One array [stages, batch] per step: see `DeviceModel.forward`; still on the devices, empty without experts."""
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
    compiled_before, cpu_before = stack.compile_count(), time.process_time_ns()
    marks, logits, counted, host_ns = [], [], [], []
    for number in range(output_length):
        name = "prefill" if number == 0 else "decode"
        start, thread_start = time.time_ns(), time.thread_time_ns()
        with stack.mark(name, number):
            step_logits, tokens, *step_counted = model.forward(tokens)
            # CPU time of this thread, without the time that it waited.
            host_ns.append(time.thread_time_ns() - thread_start)
            stack.wait(tokens)
        marks.append(PhaseMark(name=name, step=number, start_ns=start, end_ns=time.time_ns()))
        logits.append(step_logits)
        counted += step_counted
    cpu_ns = time.process_time_ns() - cpu_before
    return Generation(marks, logits, counted, host_ns, stack.compile_count() - compiled_before, cpu_ns)


def logits_on_host(stack: Stack, generation: Generation) -> Any:
    """Return the logits [batch, steps, vocabulary]."""
    return np.stack([stack.on_host(step) for step in generation.logits], 1)


def counted_on_host(stack: Stack, generation: Generation) -> Any:
    """Return what the experts counted, [batch, steps]; None without experts."""
    return np.stack([stack.on_host(s).sum(0) for s in generation.counted], 1) if generation.counted else None


@dataclass(frozen=True)
class Timed:
    """Generations with the profiler off and on, in turn."""

    off: list[HostTimes]
    on: list[HostTimes]
    profiled: Generation
    """The last generation with the profiler on, which the capture shows."""
    files: list[Path]
    """The capture's files, one per host."""


def warm_up(generate: Callable[[], Generation], total: Callable[[int], int] = int) -> int:
    """Generate until no host compiles anything, at least twice; return the number of generations.

    bfloat16 compiles once more in the second generation. `total` sums a count over the hosts.
    """
    for done in range(1, MAX_WARMUPS + 1):
        if total(generate().compiles) == 0 and done > 1:
            return done
    raise CheckError(
        f"programs are still compiled in the generation number {MAX_WARMUPS}; some shape or constant changes"
    )


def generate_timed(
    profiler: Profiler,
    prepare: Callable[[], Callable[[], Generation]],
    logdir: Path,
    wait: Callable[[], None] = lambda: None,
) -> Timed:
    """Generate with the profiler off and on in turns, so that a drift of the machine affects both.

    `prepare` puts the prompt on the devices, with an empty cache, and returns the function that runs the generation.
    `logdir` gets the last recording; the others are discarded. `wait` lets hosts start together.
    """
    off, on = [], []
    for left in reversed(range(PROFILED_PAIRS)):
        wait()
        off.append(prepare()().times)
        wait()
        with tempfile.TemporaryDirectory(prefix="discarded-", dir=logdir) as discarded:
            generation, files = profiled(profiler, prepare(), Path(discarded) if left else logdir)
        if generation.compiles:
            raise CheckError(f"{generation.compiles} programs were compiled inside the capture")
        on.append(generation.times)
    return Timed(off, on, generation, files)


def profiled(profiler: Profiler, work: Callable[[], _Result], logdir: Path) -> tuple[_Result, list[Path]]:
    """Do some work with the profiler on; return its result and the files of the profile, one per host."""
    profiler.start_profiler(logdir)
    result = work()
    time.sleep(0.05)  # the worker threads are still handing over events of the last step
    profiler.stop_profiler()
    files = xplane_files(logdir)
    if not files or any(not f.stat().st_size for f in files):
        raise CheckError(f"the profiler wrote {len(files)} xplane files, some empty or none; nothing was recorded")
    return result, files


def timing_checks(warmups: int, timed: Timed) -> dict[str, Any]:
    """Return the measurements; host times are medians, beside the times of each generation, which show the noise."""
    checks: dict[str, Any] = {
        "warmups": warmups,
        "compiles_in_capture": timed.profiled.compiles,
        "host_step_ns": statistics.median(timed.profiled.host_ns),
        "host_bound_steps": timed.profiled.host_bound_steps,
    }
    for label, times in (("profiler_off", timed.off), ("profiler_on", timed.on)):
        decode = [t.tpot_ns for t in times if t.tpot_ns is not None]
        checks[f"host_ttft_ns_{label}"] = statistics.median(t.ttft_ns for t in times)
        checks[f"host_tpot_ns_{label}"] = statistics.median(decode) if decode else None
        checks[f"host_end_to_end_ns_{label}"] = statistics.median(t.end_to_end_ns for t in times)
        checks[f"host_end_to_end_ns_{label}_each"] = [t.end_to_end_ns for t in times]
        checks[f"host_cpu_ns_{label}"] = statistics.median(t.cpu_ns for t in times)
    # 1.0 is no overhead. All generations carry the marks of phases and layers; only the recording differs.
    for name, time_name in (("profiling_overhead", "host_end_to_end_ns"), ("profiling_overhead_cpu", "host_cpu_ns")):
        checks[name] = checks[f"{time_name}_profiler_on"] / checks[f"{time_name}_profiler_off"]
    return checks
