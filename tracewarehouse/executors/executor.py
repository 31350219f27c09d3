"""Defines executors, which run the ingest of many captures: in processes of this machine, or on a cluster.

An executor takes tasks, calls `ingest_task` for each in some process, and passes its outcome on. A task publishes its
run itself, and publishing the same capture twice publishes it once, so an executor may repeat a task that was lost.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tracewarehouse.ingest.capture.run_options import DEFAULT_OPTIONS, RunOptions
from tracewarehouse.ingest.capture.sources import Capture
from tracewarehouse.ingest.errors import DUCKDB_INTERRUPTED, CaptureError, TracewarehouseError, shown

if TYPE_CHECKING:
    from tracewarehouse.evaluation.evaluator import Evaluator
    from tracewarehouse.ingest.pipeline import IngestResult
    from tracewarehouse.queries.result import QueryResult

_PACKED = 10
"""About how many times its own size a gzipped capture holds."""


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
