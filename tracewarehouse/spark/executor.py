"""Ingests captures in tasks of Spark: one task per capture, which publishes its run itself.

Spark repeats a task whose process is killed or raises. Nothing is lost or doubled by that, because publishing the same
capture twice publishes it once.
"""

from __future__ import annotations

import pickle
import queue
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from tracewarehouse.executors.executor import IngestTask, Outcome
from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.lake.garbage import remove_abandoned_staging
from tracewarehouse.ingest.lake.lake import Lake
from tracewarehouse.spark.connection import connect

_AT_ONCE = 256
"""Jobs in flight; Spark queues those that no core is free for."""


class SparkExecutor:
    """An `Executor` whose processes are those of Spark's workers.

    Each capture is a job of one task, so that a capture whose task fails again and again costs no other. The workers
    must have tracewarehouse installed, and see captures and warehouse under the same paths as this machine.

    Args:
        master: where Spark runs; see `connect`.
    """

    def __init__(self, master: str | None = None) -> None:
        self._spark = connect(master)
        self._tag = f"tracewarehouse-{uuid.uuid4().hex[:12]}"
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="spark-job")
        self._futures: list[Future[None]] = []
        self._ended: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._warehouses: set[Path] = set()
        self._is_cancelled = threading.Event()

    def submit(self, task: IngestTask) -> None:
        """Accept a task, and return without waiting for it."""
        self._warehouses.add(task.warehouse)
        self._futures.append(self._pool.submit(self._run, _with_whole_paths(task)))

    def results(self) -> Iterator[Outcome]:
        """Yield the outcome of every accepted task once, in the order in which they end."""
        for _ in range(len(self._futures)):
            yield self._ended.get()

    def cancel(self) -> None:
        """Stop what is unfinished, and remove what killed workers left behind."""
        self._is_cancelled.set()
        for future in self._futures:
            future.cancel()
        if not all(f.done() for f in self._futures):
            self._spark.interruptTag(self._tag)
        self._pool.shutdown(wait=True)
        for warehouse in self._warehouses:
            remove_abandoned_staging(Lake(warehouse))

    def _run(self, task: IngestTask) -> None:
        if self._is_cancelled.is_set():
            return
        try:
            self._spark.addTag(self._tag)
            rows = self._spark.range(0, 1, 1, 1).mapInArrow(_on_worker(task), "outcome BINARY").collect()
            outcome: Outcome = pickle.loads(rows[0][0])  # noqa: S301  our own
        except Exception as error:  # of pyspark, py4j or grpc, after all attempts that Spark makes
            outcome = Outcome(task.number, error=_lost(task, error))
        self._ended.put(outcome)


def _with_whole_paths(task: IngestTask) -> IngestTask:
    """The task with paths that mean the same in the folder of a worker."""
    capture = task.capture
    files = tuple(f.absolute() for f in capture.files)
    manifest, card = (p.absolute() if p else None for p in (capture.manifest, capture.card))
    return replace(
        task,
        capture=replace(capture, files=files, manifest=manifest, card=card),
        sql=task.sql.absolute() if task.sql else None,
    )


def _on_worker(task: IngestTask) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The work of the job: what `mapInArrow` calls in a Python process of a worker."""

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle

        import pyarrow as pa

        from tracewarehouse.executors.executor import ingest_task

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(ingest_task(task, is_repeated=True))]})

    return work


def _lost(task: IngestTask, error: Exception) -> CaptureError:
    where = task.capture.files[0] if task.capture.files else task.capture.name
    said = str(error)
    raised = [n for n in said.splitlines() if n.startswith("tracewarehouse") or "Error: " in n]
    if "No module named 'tracewarehouse'" in said:
        return CaptureError(f"{where}: tracewarehouse is not installed on Spark's workers")
    why = (raised or [n for n in said.splitlines() if n.strip()] or [type(error).__name__])[0].strip()
    return CaptureError(f"{where}: Spark gave up on this capture: {why[:300]}")
