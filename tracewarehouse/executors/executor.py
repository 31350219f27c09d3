"""Runs the ingest of many captures: tasks, their outcomes, and the processes of this machine that do them."""

from __future__ import annotations

import gc
import select
import signal
import sys
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tracewarehouse.database.temporary import remove_abandoned
from tracewarehouse.ingest.capture.run_options import DEFAULT_OPTIONS, RunOptions
from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.errors import DUCKDB_INTERRUPTED, CaptureError, TracewarehouseError, shown
from tracewarehouse.ingest.lake.garbage import remove_staging
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.ingest.processes.pool import Helper, HelperError, start_helper, usable_cores

if TYPE_CHECKING:
    from tracewarehouse.evaluation.evaluator import Evaluator
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.queries.result import QueryResult

_PACKED = 10
"""About how many times its own size a gzipped capture holds."""
_BYTES_PER_PROCESS = 512 << 20
"""Memory for the ingest of a small capture: twice what 10 MB were measured to take, 1.5 times what 100 MB take."""
_SECONDS_TO_TIDY = 10.0
_MODULES = ("tracewarehouse.ingest.pipeline", "tracewarehouse.evaluation.evaluator")


@dataclass(frozen=True)
class IngestTask:
    """One capture to ingest, with everything that the process for it needs; it can be pickled.

    Attributes:
        number: its number among the caller's tasks.
        capture: the files of one run, which the process must be able to read.
        warehouse: the folder of the warehouse, by its whole path.
        sql: the folder of the user's own metrics, or None.
        options: what the user says about the run.
    """

    number: int
    capture: Capture
    warehouse: Path
    sql: Path | None = None
    options: RunOptions = DEFAULT_OPTIONS

    @property
    def is_large(self) -> bool:
        """Whether several processes may read the capture at once; judged by the sizes of its files."""
        from tracewarehouse.ingest.tables.parts import DIVIDED

        sizes = {f: f.stat().st_size for f in self.capture.files if f.exists()}
        return sum(size * (_PACKED if f.suffix == ".gz" else 1) for f, size in sizes.items()) >= DIVIDED


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task: either its result, or the error that prevented it.

    Attributes:
        number: the task's number.
        result: the run, if the capture was ingested.
        error: the error, if it was not.
    """

    number: int
    result: IngestResult | None = None
    error: TracewarehouseError | None = None


class IngestResults(list["IngestResult"]):
    """The results of one ingest, one for each capture."""

    @classmethod
    def of(cls, outcomes: Iterable[Outcome]) -> IngestResults:
        """The results of outcomes, in the order of their captures."""
        ended = sorted(outcomes, key=lambda o: o.number)
        failures = [o.error for o in ended if o.error]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            reasons = "; ".join(map(str, failures))
            raise CaptureError(f"{len(failures)} of {len(ended)} captures could not be ingested: {reasons}")
        return cls(o.result for o in ended if o.result)

    def __repr__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> QueryResult:
        from tracewarehouse.queries.result import QueryResult, TypedRows

        columns = {"run_id": "VARCHAR", "name": "VARCHAR", "status": "VARCHAR", "events": "BIGINT"}
        rows: list[tuple[object, ...]] = [(r.run_id, r.name, r.status, r.event_count) for r in self]
        if any(r.notes for r in self):
            columns["notes"] = "VARCHAR"
            rows = [(*row, "; ".join(r.notes) or None) for row, r in zip(rows, self, strict=True)]
        return QueryResult(TypedRows(list(columns), list(columns.values()), rows))


class Executor(Protocol):
    """Ingests captures in processes of its own.

    The caller submits all tasks, takes the results, and calls `cancel` at the end, whatever has happened.
    """

    def submit(self, task: IngestTask) -> None:
        """Accept a task, and return without waiting for it."""
        ...

    def results(self) -> Iterator[Outcome]:
        """Yield the outcome of every accepted task once, in the order in which they end.

        If a process ends, the outcome of its task is an error; nothing is raised here, and all other tasks go on.
        """
        ...

    def cancel(self) -> None:
        """Stop what is unfinished, and return once nothing writes any more; runs that are published stay."""
        ...


def run_tasks(tasks: Iterable[IngestTask], executor: Executor) -> Generator[Outcome, None, None]:
    """Yield the outcome of each task; a caller that stops early has what is unfinished taken back."""
    try:
        for task in sorted(tasks, key=lambda t: t.is_large):  # the small ones first, so that results come early
            executor.submit(task)
        yield from executor.results()
    finally:
        executor.cancel()


def ingest_task(task: IngestTask, jobs: int = 1, *, is_repeated: bool = False) -> Outcome:
    """Do a task in this process; an error becomes its outcome.

    Args:
        jobs: number of processes that may read the capture if it is large, this one included.
        is_repeated: raise errors that do not come from the capture or the warehouse, so that the caller tries again.
    """
    try:
        return Outcome(task.number, run_task(task, prepared_evaluator(task.sql, jobs), jobs))
    except TracewarehouseError as error:
        return Outcome(task.number, error=error)
    except Exception as error:  # a fault of this program must not stop the other captures
        if is_repeated or str(error) == DUCKDB_INTERRUPTED:
            raise
        where = task.capture.files[0] if task.capture.files else task.capture.name
        why = f"{where}: a fault of tracewarehouse, please report it: {type(error).__name__}: {shown(str(error))}"
        return Outcome(task.number, error=CaptureError(why))


@cache
def prepared_evaluator(sql: Path | None, threads: int) -> Evaluator:
    """The evaluator of this process: it parses all metrics once for all of its captures.

    Args:
        sql: the folder of the user's own metrics, or None.
        threads: number of threads that may evaluate a run.
    """
    from tracewarehouse.definitions.reading import load_with
    from tracewarehouse.evaluation.evaluator import Evaluator

    return Evaluator(lambda: load_with(sql), threads=threads)


def run_task(task: IngestTask, evaluator: Evaluator | None, jobs: int | None) -> IngestResult:
    """Ingest the capture of a task in this process.

    Args:
        evaluator: evaluates the metrics of the run, or None.
        jobs: number of processes that may read the capture if it is large, this one included; None for one per core.

    Raises:
        TracewarehouseError: the capture cannot be ingested.
    """
    from tracewarehouse.ingest.pipeline import ingest_capture

    result = ingest_capture(task.capture, task.warehouse, task.options, evaluate=evaluator, jobs=jobs)
    return _with_findings(result, evaluator)


def _with_findings(result: IngestResult, evaluator: Evaluator | None) -> IngestResult:
    if evaluator is None or result.status == "unchanged":
        return result
    notes = [f"audit {f.audit} found something; see `tw audit {result.run_id}`" for f in evaluator.findings]
    if evaluator.beyond_range:
        names = ", ".join(n.removeprefix("metrics.") for n in evaluator.beyond_range)
        notes.append(f"numbers too large for 64 bits leave these metrics without a value: {names}")
    return replace(result, notes=[*result.notes, *notes])


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
