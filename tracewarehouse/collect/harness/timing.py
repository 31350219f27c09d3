"""Runs the generations of one run: first to warm up, then in turns with the profiler off and on."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracewarehouse.collect.errors import CheckError
from tracewarehouse.ingest.capture_names import xplane_files

if TYPE_CHECKING:
    from tracewarehouse.collect.harness.generation import Generation, HostTimes
    from tracewarehouse.collect.harness.stack import Profiler

MAX_WARMUPS = 4
PROFILED_PAIRS = 5
"""Generations with the profiler off, and as many with it on; host times are medians over them."""


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
    """Generate until no host compiles anything; bfloat16 compiles once more in the second generation.

    Args:
        generate: Runs a whole generation, from its prompt.
        total: Sums a count over the hosts.

    Returns:
        The generations that it took, at least two.

    Raises:
        CheckError: something is compiled again and again.
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

    Args:
        profiler: The profiler that records.
        prepare: Puts the prompt on the devices, with an empty cache, and returns the function that runs the generation.
        logdir: Gets the last recording; the others are discarded.
        wait: Called before each generation, to start together with other hosts.

    Raises:
        CheckError: a program was compiled while the profiler was on, or it wrote nothing.
    """
    off, on = [], []
    for left in reversed(range(PROFILED_PAIRS)):
        wait()
        off.append(prepare()().times)
        wait()
        with tempfile.TemporaryDirectory(prefix="discarded-", dir=logdir) as discarded:
            profiled, files = _profiled(profiler, prepare(), Path(discarded) if left else logdir)
        on.append(profiled.times)
    return Timed(off, on, profiled, files)


def _profiled(profiler: Profiler, generate: Callable[[], Generation], logdir: Path) -> tuple[Generation, list[Path]]:
    profiler.start_profiler(logdir)
    generation = generate()
    time.sleep(0.05)  # the worker threads are still handing over events of the last step
    profiler.stop_profiler()
    files = xplane_files(logdir)
    if not files or any(not f.stat().st_size for f in files):
        raise CheckError(f"the profiler wrote {len(files)} xplane files, some empty or none; nothing was recorded")
    if generation.compiles:
        raise CheckError(f"{generation.compiles} programs were compiled inside the capture")
    return generation, files


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
    for name, of in (("profiling_overhead", "host_end_to_end_ns"), ("profiling_overhead_cpu", "host_cpu_ns")):
        checks[name] = checks[f"{of}_profiler_on"] / checks[f"{of}_profiler_off"]
    return checks
