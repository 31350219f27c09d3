"""Writes the sentences of an answer on flagged runs and on aligned clocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracewarehouse.ingest.lake.manifest import RunVersion

CLOCKS = """
SELECT r.run_id, r.name, concat(
    'clock of ', h.host, ': ', printf('%+.3f us', h.clock_offset_ps / 1e6), ' (', h.clock_source,
    printf(', of which %+.3f us', h.clock_correction_ps / 1e6),
    printf(', %d shared collectives', h.clock_instances),
    printf(', residual %.3f us', h.clock_residual_ps / 1e6), ')'
) AS note
FROM main.hosts AS h JOIN main.runs AS r ON r.run_id = h.run_id
WHERE r.host_count > 1
ORDER BY r.name, r.run_id, h.host_index
"""
"""Selects how the clocks of hosts were aligned, in a sentence per host; runs of one host have no row."""


@dataclass(frozen=True)
class FlaggedRun:
    """A run whose numbers must be read with care; `SELECT * FROM main.quality_flags` gives the details."""

    run_id: str
    name: str
    flags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.flags)})"


def flagged(runs: Iterable[RunVersion]) -> list[FlaggedRun]:
    """The runs that have flags, sorted by name."""
    with_flags = [FlaggedRun(r.run_id, r.name, tuple(r.flags)) for r in runs if r.flags]
    return sorted(with_flags, key=lambda r: (r.name, r.run_id))


def note(runs: Sequence[FlaggedRun], most: int = 5) -> str | None:
    """One sentence for people that names the flagged runs and counts predicted ones; None if there are none."""
    if not runs:
        return None
    listed = ", ".join(map(str, runs[:most])) + (f" and {len(runs) - most} more" if len(runs) > most else "")
    predicted = sum("predicted" in r.flags for r in runs)
    origin = f"{predicted} run{'s are' if predicted > 1 else ' is'} predicted, not measured; " if predicted else ""
    return f"{origin}read with care, flagged: {listed}; `tw runs --notes` says why"
