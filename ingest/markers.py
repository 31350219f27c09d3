"""Step markers: host events that say which step of which phase the host was launching."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ingest.records import EventBatch, Plane, integers

_PHASE = re.compile(r"(?<![a-z])(prefill|decode)(?![a-z])", re.IGNORECASE)


@dataclass(frozen=True)
class StepMarker:
    """A host event with a `step_num`: one step, from its launch to its end on the host."""

    name: str
    step: int
    start_ps: int
    end_ps: int


def phase_of(name: str) -> str | None:
    """Prefill or decode, where the name of a marker or HLO module says so; None otherwise."""
    found = _PHASE.search(name.replace("_", " "))
    return found.group(1).lower() if found else None


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


def innermost(markers: Sequence[StepMarker], at: int) -> StepMarker | None:
    """The marker of a thread that begins last of those that last at a time."""
    around = (m for m in markers if m.start_ps <= at <= m.end_ps)
    return max(around, key=lambda m: m.start_ps, default=None)
