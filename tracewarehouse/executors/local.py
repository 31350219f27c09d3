"""Ingests captures in processes of this machine: small ones side by side, large ones one at a time.

A large capture is read by several processes of its own (see `tracewarehouse.ingest.tables.parts`), so two of them at
once would only share the cores, and hold twice the memory.
"""

from __future__ import annotations

import gc
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from tracewarehouse.database.temporary import remove_abandoned
from tracewarehouse.executors.executor import IngestTask, Outcome, ingest_task
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.garbage import remove_staging
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.processes.pool import Helper, HelperError, start_helper, usable_cores

_BYTES_PER_PROCESS = 512 << 20
"""Memory for the ingest of a small capture: twice what 10 MB were measured to take, 1.5 times what 100 MB take."""
_SECONDS_TO_TIDY = 10.0
_MODULES = ("tracewarehouse.ingest.pipeline", "tracewarehouse.evaluation.evaluator")


def default_jobs() -> int:
    """Number of processes that ingest side by side: one per core, as far as free memory allows."""
    return max(1, min(usable_cores(), _free_memory() // _BYTES_PER_PROCESS))


class LocalProcesses:
    """An `Executor` of this machine's processes.

    If a process is killed, only the capture that it worked on fails; another takes its place. Use it in one thread.

    Args:
        jobs: number of processes; None for `default_jobs`.
    """

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = default_jobs() if jobs is None else jobs
        self._waiting: deque[IngestTask] = deque()
        self._busy: dict[Helper, IngestTask] = {}
        self._idle: list[Helper] = []
        self._warehouses: set[Path] = set()

    def submit(self, task: IngestTask) -> None:
        """Accept a task, and begin it if a process is free."""
        if task.sql is not None:
            from tracewarehouse.definitions.reading import load_with

            load_with(task.sql)
        self._warehouses.add(task.warehouse)
        self._waiting.append(task)
        self._begin()

    def results(self) -> Iterator[Outcome]:
        """Yield the outcome of every accepted task once, in the order in which they end."""
        while self._waiting or self._busy:
            self._begin()
            if not self._busy:  # no process can be started, so this one does the work
                yield ingest_task(self._waiting.popleft(), self._jobs)
                continue
            ready, _, _ = select.select(list(self._busy), [], [])
            for helper in ready:
                yield self._outcome(helper)

    def cancel(self) -> None:
        """End all processes; those that work on a capture first remove what they wrote of it."""
        self._waiting.clear()
        busy, idle = list(self._busy), self._idle
        self._busy, self._idle = {}, []
        for helper in busy:
            helper.terminate()
        deadline = time.monotonic() + _SECONDS_TO_TIDY
        for helper in busy:  # wait for its answer or its end
            select.select([helper], [], [], max(0.0, deadline - time.monotonic()))
        for helper in [*busy, *idle]:
            helper.end()
        self._tidy(busy)

    def _begin(self) -> None:
        while self._waiting:
            task = self._waiting[0]
            jobs = self._jobs if task.is_large else 1
            is_alone = any(t.is_large for t in self._busy.values())
            if len(self._busy) >= self._jobs or is_alone or (self._busy and jobs > 1):
                return
            helper = self._idle.pop() if self._idle else _started()
            if helper is None:
                return
            self._waiting.popleft()
            self._busy[helper] = task
            try:
                helper.send(_do, (task, jobs))
            except HelperError:  # it ended while it was idle; its outcome will say so
                continue

    def _outcome(self, helper: Helper) -> Outcome:
        task = self._busy.pop(helper)
        try:
            outcome: Outcome = helper.answer()
        except HelperError as error:
            helper.end()
            self._tidy([helper])
            where = task.capture.files[0] if task.capture.files else task.capture.name
            return Outcome(task.number, error=CaptureError(f"{where}: {error}"))
        self._idle.append(helper)
        return outcome

    def _tidy(self, ended: list[Helper]) -> None:
        """Remove what processes left behind that ended while they worked on a capture."""
        if ended:
            for warehouse in self._warehouses:
                remove_staging(Lake(warehouse), [h.pid for h in ended])
            remove_abandoned()


def _started() -> Helper | None:
    try:
        return start_helper(_MODULES)
    except OSError:
        return None


def _do(_: Any, work: tuple[IngestTask, int]) -> Outcome:
    if signal.getsignal(signal.SIGTERM) is not _leave:
        signal.signal(signal.SIGTERM, _leave)
    outcome = ingest_task(*work)
    gc.collect()  # otherwise never done in such a process, which may ingest thousands of captures
    return outcome


def _leave(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _free_memory() -> int:
    free = [sys.maxsize]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        group = Path("/sys/fs/cgroup")  # the limit of a container
        free.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):  # no Linux, or no limit
        pass
    return min(free)
