"""Judges a reader: makes inputs from a seed, reads each, compares with a reference, bounds memory and, if asked, time.

An input is repeated by its number: everything about it follows from the target's name, the seed and the number.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import tempfile
import time
import tracemalloc
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from tracewarehouse.ingest.errors import TracewarehouseError

WORKS, WORKS_PER_BYTE = 20.0, 1e-4
"""Most CPU time of one input, as a multiple of `pace`: a constant, and more for each of its bytes."""
MEMORY, MEMORY_PER_BYTE = 16 << 20, 200
"""Most memory that reading one input may allocate at its peak, in bytes, measured by tracemalloc."""
ROOM = 2 << 30
"""Most address space that a process may take beyond what it has at its start."""
TRACED = 50
"""One input in so many is read a second time under tracemalloc, which slows it down."""
HANG_SECONDS = 600
"""After this time the process says where it is and ends."""


class RefusedError(Exception):
    """The reference does not take the input; the text says why."""


class UnknownError(Exception):
    """The reference cannot say whether the input is legal; the text says why."""


class Target(ABC):
    """One reader, with inputs for it and a reference to compare it with."""

    name: str
    suffix: str = ".bin"
    works: float = WORKS
    """Most CPU time of one input, but for its bytes, as a multiple of `pace`."""
    memory: int = MEMORY
    """Most traced memory of one input, but for its bytes."""
    room: int = ROOM
    """Address space that a process may take beyond what it has at its start: more is a MemoryError, and a failure."""

    @abstractmethod
    def make(self, r: random.Random) -> tuple[str, bytes]:
        """A kind of damage (or 'none') and an input that has it."""

    @abstractmethod
    def read(self, data: bytes) -> Any:
        """What our reader makes of it; raises an error of ours where it refuses."""

    @abstractmethod
    def reference(self, data: bytes) -> Any:
        """What must come out.

        Raises:
            RefusedError: the input is not legal.
            UnknownError: it cannot say.
        """

    def difference(self, got: Any, want: Any) -> str:
        """What differs; '' where nothing does."""
        return "" if got == want else f"expected {_short(want)}, found {_short(got)}"

    def may_refuse(self, data: bytes, want: Any, refusal: str) -> str:
        """Why the reader may refuse what the reference takes; '' where it may not."""
        return ""


@dataclass(frozen=True)
class Outcome:
    """What became of one input: a category, and why it is one that must not be."""

    category: str
    is_accepted: bool = False
    failure: str = ""
    seconds: float = 0.0


def pace() -> float:
    """CPU seconds of a fixed piece of work on this machine, now: the least of several rounds; 0.05 s in 2026."""
    rounds = []
    for _ in range(5):
        begin = time.thread_time()
        json.dumps([{"number": n, "text": str(n)} for n in range(60_000)])
        rounds.append(time.thread_time() - begin)
    return min(rounds)


def judge(target: Target, data: bytes, pace: float | None = None) -> Outcome:
    """Read an input with our reader and with the reference, and compare.

    The reader may refuse legal input for the reasons that its target lists. It may never take what is not legal, give
    other rows, raise anything but one sentence of ours, or, where a pace is given, take too many times that.
    """
    begin = time.thread_time()
    got, refusal = None, ""
    try:
        got = target.read(data)
    except TracewarehouseError as error:
        refusal = str(error)
        if not refusal or "\n" in refusal or len(refusal) > 4000:
            return Outcome("error", failure=f"the error is not one sentence: {_short(refusal)}")
    except Exception as error:
        return Outcome("exception", failure=f"{type(error).__name__}: {_short(str(error))}")
    seconds = time.thread_time() - begin
    if pace is not None and seconds > pace * (target.works + WORKS_PER_BYTE * len(data)):
        return Outcome("slow", failure=f"{seconds:.1f} s of CPU for {len(data)} bytes", seconds=seconds)
    try:
        want = target.reference(data)
    except RefusedError as error:
        if refusal:
            return Outcome("both refuse", seconds=seconds)
        return Outcome("accepted, not legal", True, f"the reference refuses it: {error}", seconds)
    except UnknownError as error:
        return Outcome(f"{'refused' if refusal else 'accepted'}, not compared: {error}", not refusal, seconds=seconds)
    if refusal:
        reason = target.may_refuse(data, want, refusal)
        if reason:
            return Outcome(f"refused, legal: {reason}", seconds=seconds)
        return Outcome("refused, legal", failure=f"refused although legal: {_short(refusal)}", seconds=seconds)
    found = target.difference(got, want)
    if found:
        return Outcome("other rows", True, found, seconds)
    return Outcome("same rows", True, seconds=seconds)


def peak_memory(target: Target, data: bytes) -> int:
    """Bytes that reading the input allocates at its peak."""
    tracemalloc.start()
    try:
        target.read(data)
    except Exception:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def judge_all(target: Target, data: bytes, *, is_traced: bool, pace: float | None = None) -> tuple[Outcome, int]:
    """The outcome, and the peak of memory where it is traced (else 0)."""
    outcome = judge(target, data, pace)
    if not is_traced or outcome.failure:
        return outcome, 0
    peak = peak_memory(target, data)
    if peak > target.memory + MEMORY_PER_BYTE * len(data):
        return Outcome("memory", outcome.is_accepted, f"{peak >> 20} MB for {len(data)} bytes", outcome.seconds), peak
    return outcome, peak


@dataclass(frozen=True)
class Failure:
    """An input that failed, as made and minimised."""

    number: int
    kind: str
    failure: str
    data: bytes


@dataclass
class Report:
    """Outcomes by kind of damage and category."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: int = 0
    failed: int = 0
    failures: list[Failure] = field(default_factory=list)
    slowest: tuple[float, int, int] = (0.0, -1, 0)
    """CPU seconds, number and bytes of the input that took longest."""
    largest: tuple[int, int, int] = (0, -1, 0)
    """Peak of traced memory in bytes, number and bytes of the input that took most."""
    peak_rss_kb: int = 0
    bytes: int = 0

    @property
    def inputs(self) -> int:
        return sum(self.counts.values())

    def add(self, other: Report) -> None:
        """Count another report's outcomes too."""
        self.counts.update(other.counts)
        self.accepted += other.accepted
        self.failed += other.failed
        self.failures += other.failures
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)
        self.peak_rss_kb = max(self.peak_rss_kb, other.peak_rss_kb)
        self.bytes += other.bytes


def make(target: Target, seed: int, number: int) -> tuple[str, bytes]:
    """Input `number` of a seed."""
    return target.make(random.Random(f"{target.name}/{seed}/{number}"))


def run(
    target: Target,
    seed: int,
    numbers: Iterable[int],
    *,
    seconds: float | None = None,
    pace: float | None = None,
    now_at: Synchronized[int] | None = None,
    keep: int = 20,
) -> Report:
    """Judge the inputs of these numbers; stop early after `seconds`. Of the failures the first `keep` are minimised.

    The time of an input has a bound where a pace is given, of which it is a multiple.
    """
    report = Report()
    begin = time.monotonic()
    for count, number in enumerate(numbers):
        if now_at is not None:
            now_at.value = number
            if count % 10 == 0:
                faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        kind, data = make(target, seed, number)
        is_traced = number % TRACED == 0
        outcome, peak = judge_all(target, data, is_traced=is_traced, pace=pace)
        report.counts[kind, outcome.category] += 1
        report.accepted += outcome.is_accepted
        report.bytes += len(data)
        report.slowest = max(report.slowest, (outcome.seconds, number, len(data)))
        report.largest = max(report.largest, (peak, number, len(data)))
        if outcome.failure:
            report.failed += 1
            if len(report.failures) < keep:
                category = outcome.category
                small = minimised(
                    data,
                    lambda d: judge_all(target, d, is_traced=is_traced, pace=pace)[0].category == category,  # noqa: B023
                )
                report.failures.append(Failure(number, kind, outcome.failure, small))
        if seconds is not None and time.monotonic() - begin > seconds:
            break
    if now_at is not None:
        faulthandler.cancel_dump_traceback_later()
    report.peak_rss_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return report


def minimised(data: bytes, fails: Callable[[bytes], bool], seconds: float = 10.0) -> bytes:
    """The input with as much left out as it still fails without, within a time."""
    end = time.monotonic() + seconds
    size = len(data) // 2
    while size:
        at = 0
        while at < len(data):
            if time.monotonic() > end:
                return data
            shorter = data[:at] + data[at + size :]
            if fails(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def scratch_file(owner: Target, name: str) -> Path:
    """A file for inputs, in memory where that can be; its folder goes with its owner."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / name


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) < 400 else f"{text[:200]} ... {text[-200:]}"
