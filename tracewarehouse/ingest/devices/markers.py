"""Reads from the names of host events which step of which phase the host launched, or that it compiled."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np

from tracewarehouse.ingest.columns.batches import integers
from tracewarehouse.ingest.columns.records import EventBatch, Plane

_COMPILES = re.compile(r"(?:\A|::|XLA|Xla|[_ ])[Cc]ompile(?:AndLoad|CpuExecutable|AheadOfTime\w*)?(?!\w)")
_NO_COMPILES = re.compile(r"\A\$|before_compile")
_PHASE = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class StepMarker:
    """A host event with a `step_num`: one step, from its launch to its end on the host."""

    name: str
    step: int
    start_ps: int
    end_ps: int


def phase_of(name: str) -> str | None:
    """Prefill or decode, if the name of a marker or HLO module says so; else None."""
    match = _PHASE.search(name.replace("_", " "))
    return match.group(1).lower() if match else None


def step_markers(plane: Plane, events: EventBatch) -> list[StepMarker]:
    """The step markers among a host line's events, in file order."""
    column = next((s for s in events.stats if s.name == "step_num"), None)
    if column is None:
        return []
    steps, known = integers(column, len(events))
    return [
        StepMarker(
            plane.event_metadata[events.metadata[i]].name if events.metadata[i] >= 0 else "",
            int(steps[i]),
            int(events.start_ps[i]),
            int(events.start_ps[i] + events.duration_ps[i]),
        )
        for i in np.flatnonzero(known).tolist()
    ]


class MarkedTime:
    """The step markers of a thread; finds the one that is active at a given time."""

    def __init__(self, markers: Sequence[StepMarker]) -> None:
        self._markers = sorted(markers, key=lambda m: m.start_ps)
        self._starts = [m.start_ps for m in self._markers]
        self._latest_ends = list(accumulate((m.end_ps for m in self._markers), max))

    def innermost(self, at: int) -> StepMarker | None:
        """Return the marker that began last among those that are active at a time."""
        for i in range(bisect_right(self._starts, at) - 1, -1, -1):
            if self._latest_ends[i] < at:
                break
            if self._markers[i].end_ps >= at:
                return self._markers[i]
        return None


@cache
def is_compilation(event_name: str) -> bool:
    """Whether a host event of this name is the compilation of a program.

    Examples are TfrtTpuCompiler::Compile, backend_compile and PjRtComputationClient::Compile. Frames of the Python
    tracer, `$file.py:line function`, do not count: importing `re` compiles too.
    """
    return bool(_COMPILES.search(event_name)) and not _NO_COMPILES.search(event_name)
