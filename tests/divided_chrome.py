"""Reads a Chrome trace of any size in ranges, by helpers that are no processes of their own but are told as much."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from chrome_reference import everything

from tracewarehouse.ingest.errors import CaptureError
from tracewarehouse.ingest.readers.chrome import document
from tracewarehouse.ingest.readers.chrome import ranges as chrome_ranges
from tracewarehouse.ingest.readers.chrome.reader import ChromeTrace
from tracewarehouse.ingest.readers.files import CaptureFile

Columns = list[tuple[Any, ...]]


class Here:
    """Stands for this process and two helpers, which take turns; what goes to and fro is pickled, as in a pipe."""

    def __init__(self, helpers: int, descriptors: Sequence[int], modules: Sequence[str]) -> None:
        self._states: list[Any] = [None] * 3

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def share(self, state: Any) -> None:
        pickled = pickle.dumps(state, pickle.HIGHEST_PROTOCOL)
        self._states = [state, *(pickle.loads(pickled) for _ in range(2))]

    def start(self, function: Callable[[Any, Any], Any], tasks: Sequence[Any]) -> Done:
        answers = [function(self._states[i % 3], task) for i, task in enumerate(tasks)]
        return Done([pickle.loads(pickle.dumps(a, pickle.HIGHEST_PROTOCOL)) for a in answers])


@dataclass(frozen=True)
class Done:
    """What is done."""

    answers: list[Any]

    def results(self) -> list[Any]:
        return self.answers


@contextmanager
def always_divided() -> Iterator[None]:
    """Divides traces of any size, as soon as one of their events is known."""
    with patch.object(chrome_ranges, "DIVIDED", 0), patch.object(document, "CHUNK", 1 << 16):
        yield


def opened(path: Path, chunk: int, jobs: int = 1) -> ChromeTrace:
    """A trace, read in pieces of this size."""
    return ChromeTrace(CaptureFile(path), jobs, chunk)


def opened_in_ranges(path: Path, chunk: int) -> ChromeTrace:
    """The same, read in ranges."""
    with always_divided(), patch.object(chrome_ranges, "start_helpers", Here):
        return opened(path, chunk, 3)


def columns(trace: ChromeTrace) -> Columns:
    """All that the trace says, array by array, so that also orders and the cuts between batches are seen."""
    found: Columns = [(trace.digest, trace.hostnames, trace.warnings, trace.size)]
    for plane in trace.planes:
        found.append((plane.name, plane.plane_id, plane.stats, plane.event_metadata))
        for line in plane.lines:
            found.append((line.name, line.line_id))
            for b in trace.batches(plane, line):
                found.append((b.metadata.tolist(), b.start_ps.tolist(), b.duration_ps.tolist()))
                found += [(s.name, s.rows.tolist(), s.kinds.tolist(), s.bits.tolist(), list(s.texts)) for s in b.stats]
    return found


def read_all_ways(path: Path, chunk: int) -> Any:
    """What a trace holds, read in ranges; read from front to back it must be the same, or the same error.

    The error may name another piece of the file that is no JSON.

    Raises:
        CaptureError: what the reader says.
        AssertionError: the ways differ.
    """
    try:
        whole = columns(opened(path, chunk))
    except CaptureError as error:
        try:
            opened_in_ranges(path, chunk)
        except CaptureError as other:
            assert str(other).partition("in the bytes")[0] == str(error).partition("in the bytes")[0]
            raise
        raise AssertionError(f"read in ranges it is no error: {error}") from None
    trace = opened_in_ranges(path, chunk)
    assert columns(trace) == whole
    return everything(trace)
