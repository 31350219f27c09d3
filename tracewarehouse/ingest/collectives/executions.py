"""Gathers the executions of collectives while a run's events are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tracewarehouse.ingest.collectives.windows import AsyncSpans, CollectiveOps, windows
from tracewarehouse.ingest.columns.nesting import Coverage
from tracewarehouse.ingest.columns.records import Int64
from tracewarehouse.ingest.columns.spill import Spill
from tracewarehouse.ingest.hlo.instruction_row import OpFacts


class CollectiveExecutions:
    """The executions of collectives on some devices, stored on disk; as a context manager, it removes them at its end.

    Groups and instance of an execution are known only after all planes have been read; a few integers suffice to find
    them then.

    Attributes:
        hosts: host by device, for the devices that have executions.
        rows: the rows of `collective_windows.windows` by device, once it is finished.
    """

    def __init__(self, path: Path) -> None:
        self.hosts: dict[int, str] = {}
        self.rows = Spill(path)
        self._ops: dict[int, list[CollectiveOps]] = {}
        self._spans: dict[int, list[AsyncSpans]] = {}
        self._compute: dict[int, Coverage] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.rows.__exit__(*error)

    def add_ops(self, device_id: int, host: str, ops: CollectiveOps) -> None:
        """Add events of a device's op line; they may come in several chunks, or from several threads."""
        self.hosts[device_id] = host
        self._ops.setdefault(device_id, []).append(ops)

    def add_spans(self, device_id: int, spans: AsyncSpans) -> None:
        """Add events of a device's Async XLA Ops line."""
        self._spans.setdefault(device_id, []).append(spans)

    def add_compute(self, device_id: int, start: Int64, end: Int64) -> None:
        """Add the times in which a device that executes several ops at once computes; these hide its collectives."""
        self._compute[device_id] = Coverage(start, end)

    def finish_device(self, device_id: int, facts: Sequence[OpFacts], programs: Mapping[int, int | None]) -> None:
        """Pair starts and dones of a device whose events have all been added.

        Raises:
            OSError: the disk is full.
        """
        spans = self._spans.pop(device_id, None)
        if device_id in self._ops:
            ops = CollectiveOps.joined(self._ops.pop(device_id))
            compute = self._compute.pop(device_id, None)
            joined = AsyncSpans.joined(spans) if spans else None
            self.rows.put(device_id, windows(facts, programs, ops, joined, compute))
